# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a benchmark's parser is: a module of this folder, named as the benchmark, with one function C(parse).

A parser turns what a run left behind into C(Results) and knows nothing of how the run was made.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results

_PACKAGE = "ansible_collections.aorta.automation.plugins.plugin_utils.parsers"


@dataclasses.dataclass(frozen=True)
class Artifacts:
    """What to parse: C(trace_dir) with the traces; C(options) is the section C(analysis) of the configuration.

    C(expected_ranks) None: as many as the traces themselves say. C(nodes) (rank -> host) wins over C(nodes.json).
    C(progress) is told each finished file: (files done, files in all, bytes done, name).
    """

    trace_dir: Path
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expected_ranks: frozenset[int] | None = None
    nodes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    run_id: str | None = None
    processes: int | None = None
    progress: Callable[[int, int, int, str], None] | None = None


class Parser(Protocol):
    """The interface of a parser module."""

    @staticmethod
    def engine_version() -> str:
        """Changes whenever the same artifacts would give other figures."""

    @staticmethod
    def effective_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that decide the figures, with defaults, in plain JSON types. Raises ValueError."""

    @staticmethod
    def list_files(trace_dir: Path) -> list[Any]:
        """The files that would be read (C(path), C(name), C(bytes), C(mtime_ns) each)."""

    @staticmethod
    def parse(artifacts: Artifacts) -> Results:
        """Measure. Damage in the data ends up in C(Results.errors). Raises ValueError, OSError for unusable input."""


def load_parser(benchmark: str) -> Parser:
    """The parser of a benchmark. Raises ValueError if there is none."""
    if re.fullmatch(r"[a-z][a-z0-9_]*", benchmark):
        name = f"{_PACKAGE}.{benchmark}"
        try:
            return importlib.import_module(name)  # type: ignore[return-value]
        except ModuleNotFoundError as exc:
            if exc.name != name:
                raise
    raise ValueError(f"no parser for benchmark {benchmark!r} (looked for plugin_utils/parsers/{benchmark}.py)")
