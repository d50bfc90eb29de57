# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts what AMD's TraceLens measured beside the native figures (engine C(auto)) or in their place (C(tracelens)).

Both measure all GPU events by the same definitions, so a difference beyond TraceLens' own float64 error is a finding.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    Comparison,
    Engine,
    KernelCounts,
    Note,
    Problem,
    Results,
    Timeline,
    TraceLensCollectives,
    TraceLensRank,
    TraceLensRun,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import (
    FOLDER,
    FileOutcome,
    Outcome,
    Setup,
    TraceLens,
    publish,
    run_tracelens,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens_driver import METRICS as DRIVER_METRICS
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers.aorta import condense, ratios, summarise

METRICS = tuple(DRIVER_METRICS)
# What another rule for communication kernels makes differ by definition.
_BY_RULE = ("computation", "communication", "exposed_communication")
# TraceLens adds float64 microseconds: see docs/metrics.md.
TOLERANCE_US = 0.1
TOLERANCE = 1e-4


def run_beside(
    results: Results,
    found: TraceLens,
    setup: Setup,
    run_dir: Path,
    trace_dir: Path,
    *,
    replace: bool,
    processes: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Run TraceLens over the traces that C(results) count, and add what comes of it to C(results).

    C(replace): its timelines take the place of the native ones. Raises OSError where C(run_dir) can't be written.
    """
    files = _counted(results, trace_dir)
    absent = [path for paths in files.values() for path in paths if not path.is_file()]
    if absent:
        message = f"TraceLens was not run: {len(absent)} traces are not on this machine, for example {absent[0]}"
        if replace:
            raise OSError(message)
        results.warnings.append(Note(code="tracelens_skipped", message=message, count=len(absent)))
        return
    skipped, worth_saying = _why_no_collectives(results, files)
    outcome = run_tracelens(
        files, run_dir, setup, collectives=skipped is None, processes=processes, tell=tell if len(files) > 1 else None
    )
    if skipped is not None and worth_saying:
        message = f"TraceLens' workbook of collectives was left out: {skipped}"
        results.warnings.append(Note(code="tracelens_skipped", message=message))
    add_outcome(results, outcome, found, skipped, replace=replace)


def _counted(results: Results, trace_dir: Path) -> dict[int, list[Path]]:
    """The traces of each rank that has a timeline, as the native figures count them, in order of their names."""
    measured = {rank.rank for rank in results.per_rank if rank.timeline_us is not None}
    root = trace_dir if trace_dir.is_dir() else trace_dir.parent
    files: dict[int, list[Path]] = {rank: [] for rank in sorted(measured)}
    for source in results.sources:
        if source.counted and source.rank in measured:
            files[source.rank].append(root / source.file)
    return {rank: paths for rank, paths in files.items() if paths}


def _why_no_collectives(results: Results, files: dict[int, list[Path]]) -> tuple[str | None, bool]:
    """Why TraceLens can't be given all ranks (None: it can), and whether that is worth a warning."""
    world = results.world
    if len(files) + len(world.missing_ranks) < 2:
        return "there is one rank only", False
    if not any(rank.kernel_counts is not None and rank.kernel_counts.communication for rank in results.per_rank):
        return "there is no communication kernel", False
    size = len(set(world.ranks) | set(world.missing_ranks))
    absent = sorted(set(range(max(size, max(files) + 1))) - set(files))
    if absent:
        listed = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
        return f"it takes a rank's number from its place in the list, and {len(absent)} are missing: {listed}", True
    several = [rank for rank, paths in files.items() if len(paths) > 1]
    if several:
        return f"it takes one trace a rank, and rank {several[0]} has {len(files[several[0]])} profiler windows", True
    return None, False


def add_outcome(results: Results, outcome: Outcome, found: TraceLens, skipped: str | None, *, replace: bool) -> None:
    """Add the comparison, what went wrong, and (C(replace)) TraceLens' figures to C(results)."""
    native = {rank.rank: rank.timeline_us for rank in results.per_rank}
    rule = results.analysis.get("communication_kernels", "tracelens")
    metrics = METRICS if rule == "tracelens" else tuple(metric for metric in METRICS if metric not in _BY_RULE)
    comparison: list[Comparison] = []
    rows: list[TraceLensRank] = []
    disagreements: list[Note] = []
    failures: list[Note] = []
    theirs: dict[int, tuple[Timeline, KernelCounts] | None] = {}
    for rank, files in outcome.ranks.items():
        wrong = _wrong(rank, files)
        measured = _added_up(files)
        theirs[rank] = measured
        ours = native[rank]
        if measured is not None and ours is not None:
            compared = compare(rank, ours, measured[0], metrics)
            comparison += compared
            disagreements += _disagreement(rank, compared)
        if wrong is not None and (measured is not None or not replace):
            failures.append(Note(code="tracelens_failed", message=wrong, rank=rank))
        elif wrong is not None:
            trace = next((one.trace for one in results.per_rank if one.rank == rank), None)
            results.errors.append(Problem(code="tracelens_failed", message=wrong, rank=rank, file=trace))
        rows.append(
            TraceLensRank(
                rank=rank,
                workbooks=[f"{FOLDER}/{file.workbook}" for file in files if file.workbook is not None],
                logs=[f"{FOLDER}/{file.log}" for file in files],
                error=wrong,
            )
        )
    whole = outcome.collectives
    if whole is not None and whole.workbook_error is not None:
        message = f"TraceLens wrote no workbook of the collectives: {whole.workbook_error} ({FOLDER}/{whole.log})"
        failures.append(Note(code="tracelens_failed", message=message))
    results.warnings += condense(disagreements) + condense(failures)
    results.tracelens = TraceLensRun(
        version=found.version,
        commit=found.commit,
        agrees=all(one.agrees for one in comparison) if comparison else None,
        ranks=rows,
        collectives=TraceLensCollectives(
            workbook=f"{FOLDER}/{whole.workbook}" if whole is not None and whole.workbook is not None else None,
            log=None if whole is None else f"{FOLDER}/{whole.log}",
            error=skipped if whole is None else whole.workbook_error,
        ),
        comparison=comparison,
        not_compared=[metric for metric in METRICS if metric not in metrics],
    )
    if replace:
        _replace(results, theirs, found)


def compare(rank: int, ours: Timeline, theirs: Timeline, metrics: Sequence[str] = METRICS) -> list[Comparison]:
    """Each length of two timelines of a rank; they agree within max(0.1 us, 1e-4 x total)."""
    tolerance = max(TOLERANCE_US, TOLERANCE * ours.total)
    rows = []
    for metric in metrics:
        one, other = getattr(ours, metric), getattr(theirs, metric)
        rows.append(
            Comparison(
                rank=rank,
                metric=metric,
                ours_us=one,
                theirs_us=other,
                difference_us=other - one,
                tolerance_us=tolerance,
                agrees=abs(other - one) <= tolerance,
            )
        )
    return rows


def _disagreement(rank: int, compared: Sequence[Comparison]) -> list[Note]:
    apart = sorted((one for one in compared if not one.agrees), key=lambda one: -abs(one.difference_us))
    if not apart:
        return []
    texts = [f"{one.metric} {one.theirs_us:.3f} us, here {one.ours_us:.3f} us" for one in apart[:3]]
    more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
    message = f"rank {rank}: TraceLens measures {'; '.join(texts)}{more} (tolerance {apart[0].tolerance_us:.3f} us)"
    return [Note(code="tracelens_disagrees", message=message, rank=rank, count=len(apart))]


def _wrong(rank: int, files: Sequence[FileOutcome]) -> str | None:
    """One line for the first file of a rank that something went wrong with."""
    for file in files:
        if file.error is not None:
            return f"rank {rank}: TraceLens measured nothing: {file.error} ({FOLDER}/{file.log})"
    for file in files:
        if file.workbook_error is not None:
            return f"rank {rank}: TraceLens wrote no workbook: {file.workbook_error} ({FOLDER}/{file.log})"
    return None


def _added_up(files: Sequence[FileOutcome]) -> tuple[Timeline, KernelCounts] | None:
    """A rank's timeline over all its profiler windows; None unless all were measured."""
    lengths = dict.fromkeys(METRICS, 0.0)
    counts = dict.fromkeys(KernelCounts.model_fields, 0)
    for file in files:
        if file.timeline is None or file.events is None:
            return None
        for metric in METRICS:
            lengths[metric] += file.timeline[metric]
        for bucket in counts:
            counts[bucket] += file.events[bucket]
    return Timeline(**lengths), KernelCounts(**counts)


def _replace(results: Results, theirs: dict[int, tuple[Timeline, KernelCounts] | None], found: TraceLens) -> None:
    for rank in results.per_rank:
        measured = theirs.get(rank.rank)
        rank.timeline_us, rank.kernel_counts = measured or (None, None)
        rank.ratios = ratios(None if measured is None else measured[0].model_dump())
    results.summary = summarise(results.per_rank)
    results.engine = Engine(name="tracelens", version=found.name)
    if all(rank.timeline_us is None for rank in results.per_rank):
        results.status = "error"
    elif results.errors:
        results.status = "partial"


# --- using them again -------------------------------------------------------------------------------------------------


def forget(results: Results) -> None:
    """Take TraceLens' part out of native results. Those of engine C(tracelens) can't be made native again."""
    results.tracelens = None
    results.warnings = [note for note in results.warnings if not note.code.startswith("tracelens_")]


def take_over(results: Results, found: TraceLens, earlier_dir: Path, run_dir: Path) -> bool:
    """Whether earlier C(results) hold what this TraceLens would make again; its files are copied to C(run_dir).

    Not when anything went wrong then, for that may be gone. Raises OSError where C(run_dir) can't be written.
    """
    run = results.tracelens
    if run is None or (run.version, run.commit) != (found.version, found.commit) or found.name == "unknown":
        return False
    if any(rank.error is not None for rank in run.ranks) or (run.collectives.log and run.collectives.error):
        return False
    names = [name for rank in run.ranks for name in (*rank.workbooks, *rank.logs)]
    names += [name for name in (run.collectives.workbook, run.collectives.log) if name is not None]
    folder = earlier_dir / FOLDER
    if not all((folder / Path(name).name).is_file() for name in names):
        return False
    if folder.resolve() != (run_dir / FOLDER).resolve():
        staged = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=run_dir))
        try:
            for path in folder.iterdir():
                if path.is_file() and not path.is_symlink():
                    shutil.copy2(path, staged / path.name)
            staged.chmod(folder.stat().st_mode & 0o777)
            publish(staged, run_dir / FOLDER)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return True


def identity(found: TraceLens) -> dict[str, Any]:
    """What tells figures of this TraceLens from others', for the comparison of options."""
    return {"name": "tracelens", "version": found.version, "commit": found.commit}
