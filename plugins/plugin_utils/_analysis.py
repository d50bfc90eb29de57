# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stage between traces and C(results.json): what to analyse, whether it has been analysed before, and doing it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, sha256_file
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    FILE_NAME,
    Note,
    Results,
    load_results,
    save_results,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import read_nodes, traces_of_run
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import FOLDER as TRACELENS_FOLDER
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import (
    Setup,
    TraceLens,
    detect_tracelens,
    setup_of,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens_results import (
    forget,
    identity,
    run_beside,
    take_over,
)
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
    tell: Callable[[str], None] | None = None

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
    tell: Callable[[str], None] | None = None,
) -> Job:
    """Put together what the arguments and C(spec.json) say; arguments win. C(tell) is given lines for people.

    Raises ValueError, with what is wrong, for arguments or a specification that can't be used.
    """
    path = run_dir / "spec.json"
    spec = read_json(path) if path.is_file() else {}
    if not isinstance(spec, dict):
        raise ValueError(f"{path}: an object expected")
    values = spec.get("values") or {}
    if trace_dir is None:
        trace_dir = Path(spec["trace_dir"]) if spec.get("trace_dir") else traces_of_run(run_dir) or run_dir / "traces"
    elif not trace_dir.exists():
        raise ValueError(f"trace_dir: {trace_dir} does not exist")
    artifacts = Artifacts(
        trace_dir=trace_dir,
        options=dict(values.get("analysis") or {}),
        expected_ranks=expected_ranks if expected_ranks is not None else _planned_ranks(trace_dir),
        nodes=dict(nodes or {}),
        run_id=spec.get("run_id"),
        progress=progress,
    )
    return Job(run_dir, trace_dir, str(spec.get("benchmark") or "aorta"), artifacts, tell)


def _planned_ranks(trace_dir: Path) -> frozenset[int] | None:
    """The ranks that the run which made C(trace_dir) was to have, None when no run of ours made it."""
    path = trace_dir.parent / "spec.json"
    if not path.is_file():
        return None
    spec = read_json(path)
    if not isinstance(spec, dict) or "run" not in (spec.get("phases") or ()):
        return None
    per_node = (spec.get("values") or {}).get("gpus_per_node")
    if not isinstance(per_node, int) or not spec.get("hosts"):
        return None
    return frozenset(range(len(spec["hosts"]) * per_node))


def run(job: Job, use_cache: bool = True) -> Results:
    """Analyse, or take over the figures of an earlier analysis of the same files; write C(results.json).

    Raises ValueError or OSError where the arguments can't be used; damaged traces are no such case.
    """
    engine = str(job.artifacts.options.get("engine") or "auto")
    setup = setup_of(job.artifacts.options)
    found = None if engine == "native" else find_tracelens(setup)
    if engine == "tracelens" and found is not None and not found.found:
        raise ValueError(f"analysis.engine: tracelens: {found.message}; or use 'native' or 'auto'")
    parser = load_parser(job.benchmark)
    if not job.trace_dir.exists() and job.trace_dir not in (job.run_dir / "traces", job.run_dir / "summaries"):
        raise ValueError(f"trace_dir: {job.trace_dir} does not exist")
    fingerprint = _fingerprint(job, parser)
    replace = engine == "tracelens" and found is not None
    results = None
    if use_cache and replace and found is not None:
        results = _reused_tracelens(job, parser, {**fingerprint, "engine": identity(found)}, found)
    if results is None:
        earlier = _reusable(job, parser, fingerprint) if use_cache else None
        results = parser.parse(job.artifacts) if earlier is None else earlier[0]
        results.analysis = fingerprint
        if engine == "native" or found is None:
            forget(results)
        elif earlier is None or replace or not take_over(results, found, earlier[1], job.run_dir):
            forget(results)
            _run_tracelens(job, results, found, setup, replace=replace)
    if results.tracelens is None:
        shutil.rmtree(job.run_dir / TRACELENS_FOLDER, ignore_errors=True)  # of an earlier analysis
    save_results(results, job.results_path)
    return results


def find_tracelens(setup: Setup) -> TraceLens:
    """Where it is and which version, without importing it."""
    return detect_tracelens(setup.python, path=setup.path, deep=False)


def _run_tracelens(job: Job, results: Results, found: TraceLens, setup: Setup, *, replace: bool) -> None:
    """Run it, if it is there and in order. Raises ValueError where it must be and is not."""
    if not any(rank.timeline_us is not None for rank in results.per_rank):
        return
    if found.found:
        # Once for all ranks: a broken installation is one message, not one for each.
        found = detect_tracelens(setup.python, path=setup.path)
    if not found.found and replace:
        raise ValueError(f"analysis.engine: tracelens: {found.message}; or use 'native' or 'auto'")
    if found.found:
        if replace:
            results.analysis = {**results.analysis, "engine": identity(found)}
            results.reused_from = None  # the timelines are new
        processes = job.artifacts.processes
        run_beside(
            results, found, setup, job.run_dir, job.trace_dir, replace=replace, processes=processes, tell=job.tell
        )
    elif found.conspicuous or setup.chosen:
        results.warnings.append(Note(code="tracelens_unavailable", message=found.message))


def _reused_tracelens(job: Job, parser: Parser, fingerprint: dict[str, Any], found: TraceLens) -> Results | None:
    """Earlier results of this TraceLens, whose workbooks are still there."""
    earlier = _reusable(job, parser, fingerprint)
    if earlier is not None and take_over(earlier[0], found, earlier[1], job.run_dir):
        return earlier[0]
    return None


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


def _reusable(job: Job, parser: Parser, fingerprint: dict[str, Any]) -> tuple[Results, Path] | None:
    """Earlier results over the same bytes with the same options, and their folder; None if there are none."""
    files = parser.list_files(job.trace_dir)
    if not files:
        return None
    sizes = {file.name: file.bytes for file in files}
    times = {file.name: file.mtime_ns for file in files}
    trust = bool(job.artifacts.options.get("trust_mtime"))
    checksums: dict[str, str] | None = None
    for path in _earlier(job):
        earlier = _comparable(path, fingerprint, sizes)
        if earlier is None or any(problem.code in _PASSING_ERRORS for problem in earlier.errors):
            continue
        same = trust and {source.file: source.mtime_ns for source in earlier.sources} == times
        if not same:
            if checksums is None:
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                    sums = pool.map(lambda file: file.sha256 or sha256_file(file.path), files)
                    checksums = dict(zip(sizes, sums, strict=True))
            same = {source.file: source.sha256 for source in earlier.sources} == checksums
        if same:
            if path != job.results_path:
                earlier.reused_from = str(path)
            earlier.run_id = job.artifacts.run_id
            earlier.trace_dir = str(job.trace_dir)
            return earlier, path.parent
    return None


def _comparable(path: Path, fingerprint: dict[str, Any], sizes: dict[str, int]) -> Results | None:
    """The results in C(path) if they are of the same options and files of the same sizes."""
    try:
        # Large ones of other runs are not checked field by field, only to be put aside.
        if read_json(path).get("analysis") != fingerprint:
            return None
        earlier = load_results(path)
    except (OSError, ValueError, AttributeError):
        return None  # another version's, or damaged: simply not reused
    return earlier if {source.file: source.bytes for source in earlier.sources} == sizes else None


def _earlier(job: Job) -> Iterator[Path]:
    """Where results of the same traces may lie: here, beside the traces, in the newest runs beside this one."""
    beside = [folder / FILE_NAME for folder in job.run_dir.resolve().parent.glob("*/") if not folder.is_symlink()]
    newest = sorted((path for path in beside if path.is_file()), key=lambda path: -path.stat().st_mtime_ns)
    near = (job.results_path, job.trace_dir.parent / FILE_NAME)
    yield from (path for path in dict.fromkeys((*near, *newest[:_SIBLINGS])) if path.is_file())
