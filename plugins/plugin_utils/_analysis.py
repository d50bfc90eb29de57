# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stage between traces and C(results.json): what to analyse, whether it has been analysed before, and doing it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, sha256_file
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    FILE_NAME,
    Results,
    load_results,
    save_results,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import read_nodes
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import detect_tracelens
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts, Parser, load_parser

# Of the runs beside this one, so many of the newest are asked for results that can be used again.
_SIBLINGS = 20
# Such errors may be gone the next time.
_PASSING_ERRORS = frozenset(("reader_died", "trace_unreadable"))


@dataclasses.dataclass(frozen=True)
class Job:
    """What to analyse and where the results go."""

    run_dir: Path
    trace_dir: Path
    benchmark: str
    artifacts: Artifacts

    @property
    def results_path(self) -> Path:
        """The file this stage writes."""
        return self.run_dir / FILE_NAME


def plan(
    run_dir: Path,
    trace_dir: Path | None = None,
    expected_ranks: frozenset[int] | None = None,
    nodes: Mapping[int, str] | None = None,
    progress: Callable[[int, int, int, str], None] | None = None,
) -> Job:
    """Put together what the arguments and C(spec.json) say; arguments win.

    Raises ValueError, with what is wrong, for arguments or a specification that can't be used.
    """
    path = run_dir / "spec.json"
    spec = read_json(path) if path.is_file() else {}
    if not isinstance(spec, dict):
        raise ValueError(f"{path}: an object expected")
    values = spec.get("values") or {}
    if trace_dir is None:
        trace_dir = Path(spec["trace_dir"]) if spec.get("trace_dir") else run_dir / "traces"
    elif not trace_dir.exists():
        raise ValueError(f"trace_dir: {trace_dir} does not exist")
    artifacts = Artifacts(
        trace_dir=trace_dir,
        options=dict(values.get("analysis") or {}),
        expected_ranks=expected_ranks,
        nodes=dict(nodes or {}),
        run_id=spec.get("run_id"),
        progress=progress,
    )
    return Job(run_dir, trace_dir, str(spec.get("benchmark") or "aorta"), artifacts)


def run(job: Job, use_cache: bool = True) -> Results:
    """Analyse, or take over the figures of an earlier analysis of the same files; write C(results.json).

    Raises ValueError or OSError where the arguments can't be used; damaged traces are no such case.
    """
    engine = job.artifacts.options.get("engine") or "auto"
    if engine == "tracelens":
        raise ValueError(f"analysis.engine: tracelens: {_why_no_tracelens()}; use 'native' or 'auto'")
    parser = load_parser(job.benchmark)
    if not job.trace_dir.exists() and job.trace_dir != job.run_dir / "traces":
        raise ValueError(f"trace_dir: {job.trace_dir} does not exist")
    fingerprint = _fingerprint(job, parser)
    results = _reusable(job, parser, fingerprint) if use_cache else None
    if results is None:
        results = parser.parse(job.artifacts)
    results.analysis = fingerprint
    save_results(results, job.results_path)
    return results


def _why_no_tracelens() -> str:
    found = detect_tracelens()
    return (
        f"{found.message} is there, but it is not supported as the source of the figures"
        if found.found
        else (found.message)
    )


def _fingerprint(job: Job, parser: Parser) -> dict[str, Any]:
    """All but the files themselves that decides the figures."""
    expected = job.artifacts.expected_ranks
    nodes = {**read_nodes(job.trace_dir), **job.artifacts.nodes}
    return {
        "benchmark": job.benchmark,
        "version": parser.engine_version(),
        **parser.effective_options(job.artifacts.options),
        "expected_ranks": None if expected is None else sorted(expected),
        "nodes": {str(rank): node for rank, node in sorted(nodes.items())},
    }


def _reusable(job: Job, parser: Parser, fingerprint: dict[str, Any]) -> Results | None:
    """Earlier results over the same bytes with the same options; None if there are none."""
    files = parser.list_files(job.trace_dir)
    if not files:
        return None
    sizes = {file.name: file.bytes for file in files}
    checksums: dict[str, str] | None = None
    for path in _earlier(job):
        try:
            earlier = load_results(path)
        except (OSError, ValueError):
            continue  # another version's, or damaged: simply not reused
        if earlier.analysis != fingerprint or {source.file: source.bytes for source in earlier.sources} != sizes:
            continue
        if any(problem.code in _PASSING_ERRORS for problem in earlier.errors):
            continue
        if checksums is None:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                sums = pool.map(sha256_file, [file.path for file in files])
                checksums = dict(zip(sizes, sums, strict=True))
        if {source.file: source.sha256 for source in earlier.sources} == checksums:
            if path != job.results_path:
                earlier.reused_from = str(path)
            earlier.run_id = job.artifacts.run_id
            earlier.trace_dir = str(job.trace_dir)
            return earlier
    return None


def _earlier(job: Job) -> Iterator[Path]:
    """Where results of the same traces may lie: here, beside the traces, in the newest runs beside this one."""
    beside = [folder / FILE_NAME for folder in job.run_dir.resolve().parent.glob("*/") if not folder.is_symlink()]
    newest = sorted((path for path in beside if path.is_file()), key=lambda path: -path.stat().st_mtime_ns)
    near = (job.results_path, job.trace_dir.parent / FILE_NAME)
    yield from (path for path in dict.fromkeys((*near, *newest[:_SIBLINGS])) if path.is_file())
