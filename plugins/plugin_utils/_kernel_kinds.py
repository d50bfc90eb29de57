# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a kernel does, told from its name: the kinds of C(docs/metrics.md), extendable by the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import COMMUNICATION, COPY

OTHER = "other"
# Copies and communication are told by the timeline's own rules. Of the rest, the first pattern found in the name
# decides, in any case. Attention and convolution stand before GEMM because they are often built of it.
PATTERNS: dict[str, tuple[str, ...]] = {
    "attention": ("attn", "attention", "fmha", "flash_(?:fwd|bwd|api)", "flash::", "sdpa", r"\bmha_", r"\bmla_"),
    "convolution": (
        "conv(?!er)",
        "winograd",
        "im2col",
        "col2im",
        "igemm_(?:fwd|bwd|wrw)",
        "dgrad",
        "wgrad",
        "fprop",
    ),
    "optimizer": ("multi_tensor_apply", "adam", "adagrad", "rmsprop", r"\blamb", "sgd", "optimizer"),
    "gemm": (
        "gemm",
        "gemv",
        "Cijk_",
        "cutlass",
        "matmul",
        "nvjet",
        "xmma",
        "splitk",
        "triton_tem_fused",
        r"(?:^|_)b?mm(?:_|$)",
    ),
    "reduction": (
        "reduce",
        "reduction",
        "softmax",
        "(?:layer|rms|batch|group|instance)_?norm",
        "cuComputeGrad",
        "GammaBeta",
        "welford",
        "triton_(?:red|per)_",
        "cross_?entropy",
        "nll_loss",
        "argm(?:ax|in)",
        "top_?k",
        "cumsum",
        r"\bscan",
        "rowwise_?moments",
    ),
    "memory": (
        "memset",
        "memcpy",
        "rocclr_(?:copy|fill)",
        "FillFunctor",
        "direct_copy",
        "copy_kernel",
        "CatArray",
        "transpose",
        "nchw_?to_?nhwc",
        "nhwc_?to_?nchw",
        r"\bgather",
        r"\bscatter",
        "index_(?:select|put|copy)",
    ),
    "elementwise": (
        "elementwise",
        "pointwise",
        "triton_poi_",
        "dropout",
        "gelu",
        "silu",
        "relu",
        "swiglu",
        "sigmoid",
        "rotary",
        r"\brope",
    ),
}
KINDS = (*PATTERNS, "communication", OTHER)


def compile_kinds(extra: Mapping[str, Sequence[str]] | None = None) -> Callable[[str, str], str]:
    """A function (name, category of the timeline) -> kind. C(extra): further patterns by kind, which are tried first.

    New kinds may be named. Raises ValueError for what is no regular expression.
    """
    rules: list[tuple[str, re.Pattern[str]]] = []
    for kind, patterns in (*(extra or {}).items(), *PATTERNS.items()):
        rules.append((kind, _compile(kind, patterns)))

    @cache
    def kind_of(name: str, category: str) -> str:
        if category == COMMUNICATION:
            return "communication"
        if category == COPY:
            return "memory"
        return next((kind for kind, pattern in rules if pattern.search(name)), OTHER)

    return kind_of


def _compile(kind: str, patterns: Iterable[str]) -> re.Pattern[str]:
    patterns = list(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise ValueError(f"kernel_categories: {kind}: {pattern!r} is no regular expression: {exc}") from None
    if not patterns or "" in patterns:
        raise ValueError(f"kernel_categories: {kind}: give parts of kernel names")
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
