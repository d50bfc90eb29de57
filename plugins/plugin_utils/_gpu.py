# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD Instinct models: how they are spelled, and how many compute units one device has."""

from __future__ import annotations

import re

# Compute units of one device as ROCm presents it: for the two-die MI250 and MI250X that is one GCD.
# Source: AMD, "AMD GPU specifications" (https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html);
# for MI308X, which is not on that page, ROCm/rocMLIR pull request 1927. A partitioned GPU (CPX, DPX) has
# fewer: set TENSILE_STREAMK_MAX_CUS then.
KNOWN_GPUS: dict[str, int] = {
    "mi355x": 256,
    "mi350x": 256,
    "mi325x": 304,
    "mi308x": 80,
    "mi300x": 304,
    "mi300a": 228,
    "mi250x": 110,
    "mi250": 104,
    "mi210": 104,
    "mi100": 120,
}

_NUMBER = re.compile(r"mi[\s_-]?(\d{3})([ax]?)(?![a-z0-9])", re.IGNORECASE)


def normalise_gpu_model(text: str) -> str | None:
    """Turn a product name into its key in C(KNOWN_GPUS), or None when it is not one of them.

    C("AMD Instinct MI300X"), C("MI300X_HF"), C("mi-300x") and C("mi300x") all give C("mi300x"). A number
    without its letter (C("mi325")) is understood where only one model has that number.
    """
    match = _NUMBER.search(text.replace("_", " "))
    if match is None:
        return None
    name = f"mi{match[1]}{match[2].lower()}"
    if name in KNOWN_GPUS:
        return name
    variants = [known for known in KNOWN_GPUS if known.startswith(name)]
    return variants[0] if len(variants) == 1 else None


def compute_units(model: str) -> int | None:
    """Compute units of one device of C(model) (any spelling), or None when the model is not known."""
    name = normalise_gpu_model(model)
    return KNOWN_GPUS[name] if name else None


__all__ = ["KNOWN_GPUS", "compute_units", "normalise_gpu_model"]
