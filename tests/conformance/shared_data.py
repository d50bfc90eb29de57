# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the shared reference data lie: C($AORTA_SHARED), else the folder C(shared) beside the checkout."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("AORTA_SHARED") or Path(__file__).resolve().parents[3] / "shared")


def cases(kind: str) -> list[Any]:
    """Parameters for all cases of a kind; one skipped parameter where the data are absent."""
    found = []
    for path in sorted((SHARED / "cases").glob("*/expected.json")):
        expected = json.loads(path.read_text(encoding="utf-8"))
        if expected["kind"] == kind:
            found.append(pytest.param(path.parent, expected, id=expected["case"]))
    return found or [_absent("cases", 2)]


def trace_sets() -> list[Any]:
    """Parameters for all recorded sets of traces, with their reference values."""
    found = []
    for path in sorted((SHARED / "traces").glob("*/golden.json")):
        golden = json.loads(path.read_text(encoding="utf-8"))
        found.append(pytest.param(path.parent, golden, id=path.parent.name))
    return found or [_absent("traces", 2)]


def _absent(folder: str, arguments: int) -> Any:
    reason = f"reference data not found: {SHARED / folder} (set AORTA_SHARED)"
    return pytest.param(*[None] * arguments, id="absent", marks=pytest.mark.skip(reason=reason))
