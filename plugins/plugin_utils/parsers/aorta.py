# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Aorta's artifacts are PyTorch profiler traces, one or more files a rank: traces in, C(Results) out."""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome, TraceFile, read_files
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import DEFAULT_MAX_TRACE_BYTES
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import (
    COMMUNICATION,
    COMPUTATION,
    COPY,
    TIMELINE_KEYS,
    compile_rule,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._cross_rank import (
    clock_offsets,
    describe,
    list_ranks,
    match_collectives,
    mismatch_notes,
    sizes,
    stragglers,
    unmatched_notes,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._kernel_kinds import compile_kinds
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    Engine,
    Iterations,
    Kernel,
    KernelCounts,
    KernelKind,
    Note,
    Problem,
    RankResult,
    Ratios,
    Results,
    Source,
    Step,
    Summary,
    Timeline,
    World,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._summaries import (
    find_summaries,
    is_summary,
    load_outcome,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import (
    RankTrace,
    TraceSet,
    assign_ranks,
    find_traces,
    read_nodes,
)
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts

VERSION = "2"
TOP_KERNELS = 20
# A warning of so many ranks is read once, not for each.
MANY_RANKS = 8
# A rank is unlike its peers when it is this far from their median.
PEER_SHARE = 0.25
# A kernel is slow on one rank when its mean there exceeds the other ranks' median by one half, and all theirs less
# than a fifth; looked at where it is called often enough and takes a share of the rank's GPU time worth a word.
SLOW_KERNEL, USUAL_KERNEL = 1.5, 1.2
SLOW_KERNEL_CALLS, SLOW_KERNEL_SHARE = 5, 0.005
MAX_SLOW_KERNELS = 10


@dataclasses.dataclass
class _Rank:
    """One rank's figures over all its profiler windows, ns."""

    rank: int
    trace: str
    gpu: str | None
    timeline: dict[str, int] | None
    counts: dict[str, int] | None
    steps: list[list[Any]]
    outside: dict[str, int] | None
    kernels: dict[tuple[str, str], _Calls]
    collectives: list[dict[str, Any]]
    gpu_events: int = 0


@dataclasses.dataclass
class _Calls:
    """The calls of a kernel, durations in ns; C(exact) p50 and p99 where one file alone says so."""

    calls: int = 0
    total: int = 0
    histogram: Counter[int] = dataclasses.field(default_factory=Counter)
    exact: tuple[int, int] | None = None

    def add(self, calls: int, total: int, durations: Mapping[int, int], exact: tuple[int, int] | None) -> None:
        """Add a further part."""
        self.exact = exact if self.calls == 0 else None
        self.calls += calls
        self.total += total
        self.histogram.update(durations)

    @property
    def mean(self) -> float:
        """Nanoseconds a call."""
        return self.total / self.calls

    def percentile(self, share: float) -> int:
        """Nearest rank; from the histogram, so off by less than 0.8 %, unless one file alone says it exactly."""
        if self.exact is not None:
            return self.exact[0 if share == 0.5 else 1]
        wanted = math.ceil(share * self.calls)
        seen = 0
        for duration, calls in sorted(self.histogram.items()):
            seen += calls
            if seen >= wanted:
                return duration
        raise ValueError("no calls")


def engine_version() -> str:
    """Version of the native engine; it changes whenever the same traces would give other figures."""
    return VERSION


def effective_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide the figures, in plain JSON types. Raises ValueError for an unusable one."""
    rule = options.get("communication_kernels")
    rule = "tracelens" if rule is None else str(rule) if isinstance(rule, str) else [str(pattern) for pattern in rule]
    compile_rule(rule)
    limit, top = options.get("max_trace_bytes"), options.get("top_kernels")
    given = options.get("kernel_categories") or {}
    kinds = {str(kind): [str(one) for one in ones] for kind, ones in given.items() if ones is not None}
    compile_kinds(kinds)
    return {
        "kernel_categories": kinds,
        "communication_kernels": rule,
        "max_trace_bytes": DEFAULT_MAX_TRACE_BYTES if limit is None else int(limit),
        "top_kernels": TOP_KERNELS if top is None else int(top),
    }


def list_files(trace_dir: Path) -> list[TraceFile]:
    """The candidate trace files below C(trace_dir), or where there are none, those that hosts have sent summaries of.

    Raises OSError, and ValueError for summaries of another version.
    """
    return find_traces(trace_dir) or find_summaries(trace_dir)


def parse(artifacts: Artifacts) -> Results:
    """Analyse all traces below C(artifacts.trace_dir), or the summaries that hosts have made of them.

    Raises ValueError or OSError for unusable arguments only.
    """
    options = effective_options(artifacts.options)
    rule = compile_rule(options["communication_kernels"])
    nodes = {**read_nodes(artifacts.trace_dir), **artifacts.nodes}
    files = list_files(artifacts.trace_dir)
    if files and is_summary(files[0]):
        outcomes = [load_outcome(file, options["communication_kernels"]) for file in files]
    else:
        outcomes = read_files(
            files,
            rule,
            max_bytes=options["max_trace_bytes"],
            processes=artifacts.processes,
            progress=_progress(files, artifacts.progress),
        )
    traces = assign_ranks(outcomes)
    if not files:
        message = f"{artifacts.trace_dir}: no trace here (looked for *.json and *.json.gz, also in subfolders)"
        traces.errors.append(Problem(code="no_traces", message=message))
    results = _combine(traces, nodes, artifacts, options)
    results.trace_dir = str(artifacts.trace_dir)
    results.analysis = options
    counted = {file.name for trace in traces.ranks.values() for file, _summary in trace.files}
    results.sources = [
        Source(
            rank=traces.file_ranks.get(outcome.file.name),
            file=outcome.file.name,
            bytes=outcome.file.bytes,
            sha256=outcome.sha256,
            mtime_ns=outcome.file.mtime_ns,
            counted=outcome.file.name in counted,
        )
        for outcome in outcomes
    ]
    return results


def _progress(
    files: list[TraceFile], tell: Callable[[int, int, int, str], None] | None
) -> Callable[[Outcome], None] | None:
    if tell is None:
        return None
    done = [0, 0]

    def count(outcome: Outcome) -> None:
        done[0] += 1
        done[1] += outcome.file.bytes
        tell(done[0], len(files), done[1], outcome.file.name)

    return count


# --- one rank ---------------------------------------------------------------------------------------------------------


def _rank(trace: RankTrace, traces: TraceSet, alone: bool) -> _Rank:
    """Add up a rank's windows; its findings go to C(traces). C(alone): the world is this one rank."""
    result = _Rank(
        rank=trace.rank,
        trace=trace.files[0][0].name,
        gpu=next((summary.gpu for _file, summary in trace.files if summary.gpu), None),
        timeline=None,
        counts=None,
        steps=[],
        outside=None,
        kernels={},
        collectives=[],
    )
    for file, summary in trace.files:
        for code, text, count in summary.notes:
            if code == "collectives_unlabelled" and alone:
                continue  # there is no one to compare with
            message = f"rank {trace.rank}: {file.name}: {text}"
            traces.notes.append(Note(code=code, message=message, rank=trace.rank, file=file.name, count=count))
        result.steps.extend(summary.steps)
        result.collectives.extend(summary.collectives)
        result.gpu_events += summary.gpu_events
        for name, category, calls, total, p50, p99, durations in summary.kernels:
            row = result.kernels.setdefault((name, category), _Calls())
            row.add(calls, total, dict(zip(durations[::2], durations[1::2], strict=True)), (p50, p99))
        if summary.timeline is None or summary.counts is None:
            message = (
                f"rank {trace.rank}: {file.name}: no GPU event among {summary.events} events:"
                " the profiler recorded the host only, or lost the GPU's records"
            )
            traces.errors.append(Problem(code="no_gpu_events", message=message, rank=trace.rank, file=file.name))
            continue
        result.timeline = _sum(result.timeline, summary.timeline)
        result.counts = _sum(result.counts, summary.counts)
        if summary.outside is not None:
            result.outside = _sum(result.outside, summary.outside)
    return result


def _sum(one: dict[str, int] | None, other: dict[str, int]) -> dict[str, int]:
    return dict(other) if one is None else {key: one[key] + other[key] for key in other}


def timeline_us(timeline: Mapping[str, int]) -> Timeline:
    """The eight lengths in microseconds."""
    return Timeline(**{key: timeline[key] / 1000 for key in TIMELINE_KEYS})


def ratios(timeline: Mapping[str, float] | None) -> Ratios:
    """Shares of the total time; null where there is nothing to divide by."""

    def share(part: float, whole: float) -> float | None:
        return part / whole if whole > 0 else None

    if timeline is None:
        return Ratios(compute=None, communication=None, exposed_communication=None, overlap=None, idle=None)
    total, communication = timeline["total"], timeline["communication"]
    return Ratios(
        compute=share(timeline["computation"], total),
        communication=share(communication, total),
        exposed_communication=share(timeline["exposed_communication"], total),
        overlap=share(communication - timeline["exposed_communication"], communication),
        idle=share(timeline["idle"], total),
    )


def iterations(durations_ns: list[int]) -> Iterations | None:
    """Statistics of step durations; None without a step. p95 interpolates linearly between neighbours."""
    if not durations_ns:
        return None
    ordered = sorted(durations_ns)
    position = 0.95 * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    p95 = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return Iterations(
        count=len(ordered),
        mean_ms=sum(ordered) / len(ordered) / 1e6,
        median_ms=statistics.median(ordered) / 1e6,
        std_ms=statistics.stdev(ordered) / 1e6 if len(ordered) > 1 else None,
        min_ms=ordered[0] / 1e6,
        max_ms=ordered[-1] / 1e6,
        p95_ms=p95 / 1e6,
        durations_ms=[duration / 1e6 for duration in durations_ns],
    )


def condense(notes: list[Note]) -> list[Note]:
    """A warning that more than MANY_RANKS ranks share becomes one, with the first rank's text as the example."""
    by_code: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        by_code[note.code].append(note)
    result = []
    for code, group in by_code.items():
        ranks = {note.rank for note in group if note.rank is not None}
        if len(ranks) <= MANY_RANKS:
            result += group
            continue
        result += [note for note in group if note.rank is None]
        counts = [note.count for note in group if note.rank is not None and note.count is not None]
        example = next(note for note in group if note.rank is not None)
        message = f"{len(ranks)} ranks ({list_ranks(ranks)}), for example {example.message}"
        result.append(Note(code=code, message=message, count=sum(counts) if counts else None))
    return result


# --- all ranks --------------------------------------------------------------------------------------------------------


def _combine(traces: TraceSet, nodes: Mapping[int, str], artifacts: Artifacts, options: Mapping[str, Any]) -> Results:
    alone = max(len(traces.ranks), traces.world_size or 1, len(artifacts.expected_ranks or ())) == 1
    read = [_rank(trace, traces, alone) for _number, trace in sorted(traces.ranks.items())]
    ranks = [rank for rank in read if rank.timeline is not None or rank.steps]
    world = _world(ranks, traces, nodes, artifacts.expected_ranks)
    known_nodes = {rank.rank: nodes[rank.rank] for rank in ranks if rank.rank in nodes}
    per_rank = [_rank_result(rank, nodes) for rank in ranks]
    with_gpu = {rank.rank for rank in ranks if rank.timeline is not None}
    groups: dict[str, list[int]] = {}
    for trace in traces.ranks.values():
        for _file, summary in trace.files:
            groups.update({name: members for name, members in summary.groups.items() if name not in groups})
    matches, notes = match_collectives(
        {rank.rank: rank.collectives for rank in ranks if rank.rank in with_gpu},
        groups,
        set(world.ranks) | set(world.missing_ranks),
    )
    notes += unmatched_notes(matches, with_gpu) + mismatch_notes(matches)
    offsets, spreads, clock_notes = clock_offsets(matches, known_nodes)
    described = [describe(match, known_nodes, offsets) for match in matches]
    late, late_by_step = stragglers(matches, known_nodes, offsets, {rank.rank: rank.steps for rank in ranks})
    kind_of = compile_kinds(options["kernel_categories"])
    errors = sorted(traces.errors, key=lambda problem: (problem.rank is None, problem.rank or 0, problem.file or ""))
    return Results(
        status="error" if not ranks else "partial" if errors else "ok",
        run_id=artifacts.run_id,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        engine=Engine(name="native", version=VERSION),
        world=world,
        per_rank=per_rank,
        summary=summarise(per_rank),
        steps=[
            Step(rank=rank.rank, step=number, timeline_us=None if timeline is None else timeline_us(timeline))
            for rank in ranks
            for number, _start, _duration, timeline in rank.steps
        ],
        collectives=described,
        collective_sizes=sizes(described),
        stragglers=late,
        straggler_steps=late_by_step,
        clock_offsets_us={node: offset / 1000 for node, offset in offsets.items()},
        clock_spreads_us={node: spread / 1000 for node, spread in spreads.items()},
        top_kernels=_top_kernels(ranks, options["top_kernels"], kind_of),
        kernel_kinds=_kernel_kinds(ranks, kind_of),
        warnings=condense(traces.notes) + notes + clock_notes + _peers(ranks) + _slow_kernels(ranks),
        errors=errors,
    )


def _world(ranks: list[_Rank], traces: TraceSet, nodes: Mapping[int, str], expected: frozenset[int] | None) -> World:
    present = [rank.rank for rank in ranks]
    if expected is None:
        expected = frozenset(range(traces.world_size or 0))
    elif traces.world_size is not None and traces.world_size < len(expected):
        message = f"no rank knew of more than {traces.world_size} ranks, though {len(expected)} were to train together"
        traces.errors.append(Problem(code="world_size_mismatch", message=message))
    seen = set(traces.file_ranks.values()) | set(traces.ranks)
    missing = sorted((set(expected) | seen) - set(present))
    # A rank whose trace is damaged has its own error, and so has a trace whose rank is unknown.
    explained = {problem.rank for problem in traces.errors if problem.rank is not None}
    unexplained = [rank for rank in missing if rank not in explained]
    if unexplained and len(unexplained) > traces.unplaced:
        message = f"{len(unexplained)} of {len(missing) + len(present)} ranks left no trace: {list_ranks(unexplained)}"
        traces.errors.append(Problem(code="missing_ranks", message=message))
    known = {nodes[rank] for rank in present if rank in nodes}
    return World(
        num_nodes=len(known) if known and all(rank in nodes for rank in present) else None,
        num_ranks=len(present),
        ranks=present,
        missing_ranks=missing,
    )


def _rank_result(rank: _Rank, nodes: Mapping[int, str]) -> RankResult:
    node = nodes.get(rank.rank)
    neighbours = sorted(other for other, name in nodes.items() if name == node)
    counts = rank.counts
    return RankResult(
        rank=rank.rank,
        node=node,
        local_rank=neighbours.index(rank.rank) if node is not None else None,
        gpu=rank.gpu,
        trace=rank.trace,
        timeline_us=None if rank.timeline is None else timeline_us(rank.timeline),
        ratios=ratios(rank.timeline),
        iterations=iterations([duration for _number, _start, duration, _timeline in rank.steps]),
        kernel_counts=None
        if counts is None
        else KernelCounts(computation=counts[COMPUTATION], communication=counts[COMMUNICATION], memcpy=counts[COPY]),
        outside_steps_us=None if rank.outside is None else timeline_us(rank.outside),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def summarise(ranks: list[RankResult]) -> Summary:
    """Means over the ranks that have the figure."""
    means = [rank.iterations.mean_ms for rank in ranks if rank.iterations is not None]
    average = _mean(means)
    return Summary(
        avg_iteration_ms=average,
        avg_compute_ratio=_mean(rank.ratios.compute for rank in ranks),
        avg_communication_ratio=_mean(rank.ratios.communication for rank in ranks),
        avg_exposed_communication_ratio=_mean(rank.ratios.exposed_communication for rank in ranks),
        avg_overlap_ratio=_mean(rank.ratios.overlap for rank in ranks),
        avg_idle_ratio=_mean(rank.ratios.idle for rank in ranks),
        time_variance_ratio=statistics.stdev(means) / average if len(means) > 1 and average else None,
    )


def _peers(ranks: Sequence[_Rank]) -> list[Note]:
    """Ranks whose number of GPU events or busy time is far from the others': lost records, or other work."""
    measured = [rank for rank in ranks if rank.timeline is not None]
    notes: list[Note] = []
    if len(measured) < 2:
        return notes
    figures: list[tuple[str, str, dict[int, int], Callable[[float], str]]] = [
        ("events_differ_from_peers", "GPU events", {r.rank: r.gpu_events for r in measured}, lambda n: f"{n:.0f}"),
        (
            "busy_differs_from_peers",
            "GPU busy time",
            {r.rank: r.timeline["busy"] for r in measured if r.timeline is not None},
            lambda ns: f"{ns / 1e6:.3f} ms",
        ),
    ]
    for code, what, values, show in figures:
        middle = statistics.median(values.values())
        for rank, value in values.items():
            if abs(value - middle) > PEER_SHARE * middle:
                percent = f"{abs(value - middle) / middle:.0%}" if middle else "far"
                message = (
                    f"rank {rank}: {what}: {show(value)}, {percent} {'above' if value > middle else 'below'} the ranks'"
                    f" median of {show(middle)}: lost records, or other work than its peers'"
                )
                notes.append(Note(code=code, message=message, rank=rank))
    return condense(notes)


def _slow_kernels(ranks: Sequence[_Rank]) -> list[Note]:
    """Kernels that are slow on one GPU only: that GPU, not the kernel, is the finding. Needs three ranks."""
    found = []
    for (name, category), by_rank in _by_kernel(ranks).items():
        if category == COMMUNICATION:  # lasts as long as the others let it wait
            continue
        often = {rank: one for rank, one in by_rank.items() if one.calls >= SLOW_KERNEL_CALLS}
        if len(often) < 3:
            continue
        slowest = max(often, key=lambda rank: (often[rank].mean, -rank))
        others = [one.mean for rank, one in often.items() if rank != slowest]
        usual = statistics.median(others)
        slow = often[slowest]
        if usual <= 0 or slow.mean < SLOW_KERNEL * usual or max(others) > USUAL_KERNEL * usual:
            continue
        whole = sum(one.total for rank in ranks if rank.rank == slowest for one in rank.kernels.values())
        lost = slow.total - round(usual * slow.calls)
        if lost < SLOW_KERNEL_SHARE * whole:
            continue
        message = (
            f"rank {slowest}: {name[:80]!r} takes {slow.mean / 1000:.1f} us a call, on the other ranks"
            f" {usual / 1000:.1f} us (median): {lost / 1e6:.3f} ms more in {slow.calls} calls"
        )
        found.append((-lost, Note(code="kernel_slow_on_one_rank", message=message, rank=slowest, count=slow.calls)))
    return [note for _lost, note in sorted(found, key=lambda pair: pair[0])][:MAX_SLOW_KERNELS]


def _by_kernel(ranks: Iterable[_Rank]) -> dict[tuple[str, str], dict[int, _Calls]]:
    result: dict[tuple[str, str], dict[int, _Calls]] = defaultdict(dict)
    for rank in ranks:
        for key, calls in rank.kernels.items():
            result[key][rank.rank] = calls
    return result


def _top_kernels(ranks: Sequence[_Rank], number: int, kind_of: Callable[[str, str], str]) -> list[Kernel]:
    by_kernel = _by_kernel(ranks)
    overall: dict[tuple[str, str], _Calls] = {}
    totals = {key: sum(one.total for one in found.values()) for key, found in by_kernel.items()}
    for key in sorted(totals, key=lambda key: (-totals[key], key))[:number]:
        overall[key] = _Calls()
        for one in by_kernel[key].values():
            overall[key].add(one.calls, one.total, one.histogram, one.exact)
    rows = _top(None, overall, sum(totals.values()), kind_of)
    for row in rows:
        means = {rank: one.mean / 1000 for rank, one in by_kernel[row.name, row.category].items()}
        row.ranks = len(means)
        row.slowest_rank = max(means, key=lambda rank: (means[rank], -rank)) if len(means) > 1 else None
        row.slowest_mean_us = max(means.values())
        row.median_mean_us = statistics.median(means.values())
    for rank in ranks:
        ordered = sorted(rank.kernels.items(), key=lambda item: (-item[1].total, item[0]))
        rows += _top(rank.rank, dict(ordered[:number]), sum(one.total for one in rank.kernels.values()), kind_of)
    return rows


def _top(
    rank: int | None,
    kernels: Mapping[tuple[str, str], _Calls],
    whole: int,
    kind_of: Callable[[str, str], str],
) -> list[Kernel]:
    return [
        Kernel(
            rank=rank,
            name=name,
            category=category,  # type: ignore[arg-type]
            calls=one.calls,
            total_us=one.total / 1000,
            mean_us=one.mean / 1000,
            share=one.total / whole if whole else None,
            kind=kind_of(name, category),
            p50_us=one.percentile(0.5) / 1000,
            p99_us=one.percentile(0.99) / 1000,
        )
        for (name, category), one in kernels.items()
    ]


def _kernel_kinds(ranks: Sequence[_Rank], kind_of: Callable[[str, str], str]) -> list[KernelKind]:
    """GPU time by kind, over all ranks first; a rank without a kind counts as zero in the spread."""
    tables: dict[int | None, dict[str, list[int]]] = {}
    names: dict[str, set[str]] = defaultdict(set)
    for rank in ranks:
        table = tables[rank.rank] = {}
        for (name, category), one in rank.kernels.items():
            kind = kind_of(name, category)
            names[kind].add(name)
            for place, value in enumerate((1, one.calls, one.total)):
                table.setdefault(kind, [0, 0, 0])[place] += value
    rows = []
    overall: dict[str, list[int]] = {
        kind: [len(found), *(sum(table[kind][place] for table in tables.values() if kind in table) for place in (1, 2))]
        for kind, found in names.items()
    }
    for rank_number, kinds in ({None: overall} | tables).items():
        whole = sum(total for _names, _calls, total in kinds.values())
        for kind, (different, calls, total) in sorted(kinds.items(), key=lambda item: (-item[1][2], item[0])):
            row = KernelKind(
                rank=rank_number,
                kind=kind,
                names=different,
                calls=calls,
                total_us=total / 1000,
                mean_us=total / calls / 1000,
                share=total / whole if whole else None,
            )
            if rank_number is None and len(tables) > 1:
                totals = {rank.rank: tables[rank.rank].get(kind, (0, 0, 0))[2] / 1000 for rank in ranks if rank.kernels}
                row.slowest_rank = max(totals, key=lambda rank: (totals[rank], -rank))
                row.max_total_us, row.min_total_us = max(totals.values()), min(totals.values())
                row.median_total_us = statistics.median(totals.values())
            rows.append(row)
    return rows
