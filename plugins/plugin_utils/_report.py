# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reports show, put together once for all their forms: the files of a run directory in, C(View) out.

Everything may be absent: without results, verdict or manifest the view says so instead of showing zeros.
Times are milliseconds here; shares lie in 0..1; C(None) is "not measured".
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible_collections.aorta.automation.plugins.plugin_utils import _results, _verdict
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    Collective,
    CollectiveSize,
    Comparison,
    Kernel,
    KernelKind,
    RankResult,
    Results,
    Straggler,
    StragglerStep,
    Timeline,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._thresholds import failure_line, one_line, rank_name
from ansible_collections.aorta.automation.plugins.plugin_utils._verdict import Check, Verdict

SHOWN_RANKS = 16
SHOWN_LINES = 16
SHOWN_MESSAGES = 50
SHOWN_COLLECTIVES = 10
SHOWN_ROWS = 12
DEFINITIONS = "https://github.com/aorta-automation/aorta.automation/blob/main/docs/metrics.md"
# A rank is called slow when it takes this much longer than the median of all.
SLOW = 0.05
# A rank is called a straggler when it comes last in this share of the collectives, and the others' wait is no trifle.
OFTEN_LAST = 0.5
WORTH_WAITING_MS = 1.0
MASK = "***"
MODEL_DEFAULT = "model default"

# Lines of a log that say why something ended; the source lines of a traceback (indented) don't.
_TELLING = re.compile(
    r"^(?!\s)(.*[\s\]|])?[A-Za-z_][\w.]*(Error|Exception|Failure)\s*:\s*\S|\b(ERROR|FATAL)\b.*\S|\bKilled\b"
    r"|out of memory|[Ss]egmentation fault|Memory access fault|core dumped|HSA_STATUS_ERROR|NCCL WARN"
)

WORDS = {
    "passed": "PASSED",
    "failed": "FAILED",
    "no_data": "NO DATA",
    "error": "ERROR",
    None: "NOT JUDGED",
}
UNLIMITED = "COMPLETED, NO LIMITS SET"


@dataclasses.dataclass(frozen=True)
class Shares:
    """Disjoint parts of a window that add up to 1, and how much of the communication was hidden."""

    compute: float
    exposed_communication: float
    exposed_memcpy: float
    idle: float


@dataclasses.dataclass
class RankRow:
    """One rank; C(remarks) say in words what is wrong with it, C(severity) orders (higher is worse)."""

    rank: int
    node: str | None
    local_rank: int | None
    result: RankResult | None
    shares: Shares | None
    straggler: Straggler | None
    remarks: list[str] = dataclasses.field(default_factory=list)
    severity: float = 0.0

    @property
    def mean_ms(self) -> float | None:
        """Mean iteration time."""
        return None if self.result is None or self.result.iterations is None else self.result.iterations.mean_ms

    @property
    def p95_ms(self) -> float | None:
        """95th percentile of the iteration times."""
        return None if self.result is None or self.result.iterations is None else self.result.iterations.p95_ms

    @property
    def overlap(self) -> float | None:
        """Share of the communication hidden by computation."""
        return None if self.result is None else self.result.ratios.overlap

    @property
    def made_others_wait_ms(self) -> float | None:
        """What it made the others wait, over all matched collectives."""
        return None if self.straggler is None else self.straggler.made_others_wait_us / 1000


@dataclasses.dataclass(frozen=True)
class NodeRow:
    """The ranks of one node together (means over those that have the figure)."""

    node: str
    ranks: list[int]
    missing: int
    mean_ms: float | None
    shares: Shares | None
    clock_offset_us: float | None
    conspicuous: list[int]


@dataclasses.dataclass(frozen=True)
class Axis:
    """Range and ticks of a chart's axis, in the data's unit."""

    low: float
    high: float
    ticks: list[float]

    @property
    def span(self) -> float:
        """Never zero."""
        return self.high - self.low


@dataclasses.dataclass(frozen=True)
class Line:
    """One rank's iteration times; C(points) are (position, ms)."""

    label: str
    conspicuous: bool
    points: list[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class StepChart:
    """Iteration times by step. C(band) is (position, min, max) over all ranks where there are too many for lines."""

    axis: Axis
    labels: list[str]
    by_number: bool
    lines: list[Line]
    median: list[tuple[int, float]]
    band: list[tuple[int, float, float]]
    limit: float | None


@dataclasses.dataclass(frozen=True)
class RankChart:
    """A figure in ms by rank: (position, row, value). C(nodes) are (first position, number of ranks, name)."""

    key: str
    title: str
    unit: str
    axis: Axis
    points: list[tuple[int, RankRow, float]]
    nodes: list[tuple[int, int, str]]
    limit: float | None
    median: float


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Mean over ranks of a part of the time: C(ms) in the measured window, C(share) of its total."""

    key: str
    name: str
    share: float
    ms: float


@dataclasses.dataclass(frozen=True)
class StragglerRow:
    """A rank's lateness; C(per_step_ms) is what it made the others wait, over its number of steps."""

    one: Straggler
    per_step_ms: float | None

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """What the lateness is made of, in ms; together they are what it made the others wait."""
        one = self.one
        late = (one.late_compute_us, one.late_host_us, one.late_network_us, one.late_unexplained_us)
        names = ("compute", "host", "network", "unexplained")
        return [(name, None if us is None else us / 1000) for name, us in zip(names, late, strict=True)]


@dataclasses.dataclass(frozen=True)
class KindRow:
    """GPU time of one kind of kernel over all ranks; C(by_rank) is its total in ms on each of them."""

    one: KernelKind
    by_rank: dict[int, float]

    @property
    def spread(self) -> float | None:
        """By what share of the median the rank with the largest total exceeds it."""
        most, median = self.one.max_total_us, self.one.median_total_us
        return None if most is None or not median else most / median - 1


@dataclasses.dataclass(frozen=True)
class OutsideRow:
    """GPU work of a rank outside all steps; C(share) is of its busy time."""

    rank: int
    node: str | None
    timeline: Timeline
    share: float | None


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value of the configuration and which layer set it."""

    path: str
    value: str
    layer: str

    @property
    def changed(self) -> bool:
        """Whether it differs in origin from what the model has."""
        return self.layer != MODEL_DEFAULT


@dataclasses.dataclass(frozen=True)
class Message:
    """A warning or an error."""

    code: str
    message: str
    place: str = ""


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the run directory; C(href) is relative to the report."""

    name: str
    href: str
    what: str


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why the run itself failed."""

    line: str
    phase: str
    host: str | None
    rank: int | None
    exit_code: int | None
    reason: str | None
    message: str
    log_tail: list[str]
    log: File | None

    @property
    def telling(self) -> str | None:
        """The first line of the log's end that looks like the cause."""
        return next((line.strip() for line in self.log_tail if _TELLING.search(line)), None)


@dataclasses.dataclass
class View:
    """All that a report shows."""

    run_id: str
    created: str | None
    benchmark: str
    status: str | None
    word: str
    reason: str
    hint: str | None
    failure: Failure | None
    verdict: Verdict | None
    results: Results | None
    spec: dict[str, Any]
    manifest: dict[str, Any]
    ranks: list[RankRow]
    worst_first: list[RankRow]
    nodes: list[NodeRow]
    world_size: int
    gpus: list[str]
    rank_charts: list[RankChart]
    step_chart: StepChart | None
    breakdown: list[Breakdown]
    total_ms: float | None
    sizes: list[CollectiveSize]
    stragglers: list[StragglerRow]
    straggler_steps: list[StragglerStep]
    kinds: list[KindRow]
    outside: list[OutsideRow]
    most_skewed: list[Collective]
    kernels: list[Kernel]
    errors: list[Message]
    warnings: list[Message]
    settings: list[Setting]
    files: list[File]

    @property
    def clocks(self) -> list[tuple[str, float]]:
        """(node, microseconds ahead of the first node's clock), farthest first."""
        offsets = self.results.clock_offsets_us if self.results else {}
        return sorted(offsets.items(), key=lambda pair: -abs(pair[1]))

    @property
    def num_measured(self) -> int:
        """Ranks with figures."""
        return 0 if self.results is None else len(self.results.per_rank)

    @property
    def unlimited(self) -> bool:
        """Whether the verdict is C(passed) only for want of limits."""
        return _unlimited(self.verdict)

    def result_of(self, check: Check) -> str:
        """The status of a check, or C(not_counted): what a failed run has left proves nothing."""
        counts = self.status != "error" or check.name == _verdict.DATA_COMPLETE
        return check.status if counts else "not_counted"

    @property
    def checks(self) -> list[Check]:
        """The checks, those that keep the verdict from C(passed) first."""
        order = ("fail", "not_measured", "pass", "not_applicable")
        return sorted(self.verdict.checks, key=lambda check: order.index(check.status)) if self.verdict else []

    @property
    def compared(self) -> list[Comparison]:
        """For each length of the timeline, the rank where TraceLens and this engine are farthest apart."""
        farthest: dict[str, Comparison] = {}
        for one in self.results.tracelens.comparison if self.results and self.results.tracelens else ():
            known = farthest.get(one.metric)
            if known is None or abs(one.difference_us) > abs(known.difference_us):
                farthest[one.metric] = one
        return list(farthest.values())

    @property
    def compared_ranks(self) -> int:
        """How many ranks TraceLens measured."""
        lens = self.results.tracelens if self.results else None
        return len({one.rank for one in lens.comparison}) if lens else 0

    @property
    def conspicuous(self) -> list[RankRow]:
        """The ranks to look at, worst first."""
        return [row for row in self.worst_first if row.severity > 0]

    @property
    def environment(self) -> list[str]:
        """The variables that the training process was given, as C(NAME=text); secrets are C(***)."""
        hidden = {str(name).rpartition(".")[2] for name in self.spec.get("secrets") or []}
        variables = self.spec.get("container_env") or {}
        return [f"{name}={MASK if name in hidden else value}" for name, value in variables.items()]

    @property
    def phases(self) -> list[dict[str, Any]]:
        """The phases of the run with their times."""
        phases: list[dict[str, Any]] = self.manifest.get("phases") or []
        return phases

    def place(self, rank: int | None) -> str:
        """C("rank 5 on node1")."""
        return "" if rank is None else rank_name(rank, {row.rank: row.node for row in self.ranks})


def build_view(run_dir: Path, written: Iterable[str] = ()) -> View:
    """Read the files of C(run_dir). C(written): names of reports that are about to be there.

    A damaged file does not hide the others: it becomes an error of the report. Raises OSError where C(run_dir)
    can't be read.
    """
    if not run_dir.is_dir():
        raise NotADirectoryError(f"run_dir: {run_dir} is not a directory")
    damaged: list[Message] = []

    def load(name: str, reader: Any) -> Any:
        path = run_dir / name
        if not path.is_file():
            return None
        try:
            return reader(path)
        except ValueError as exc:
            damaged.append(Message("damaged_file", one_line(str(exc)), name))
            return None

    spec = load("spec.json", read_json)
    manifest = load("manifest.json", read_json)
    return make_view(
        results=load(_results.FILE_NAME, _results.load_results),
        verdict=load(_verdict.FILE_NAME, _verdict.load_verdict),
        spec=spec if isinstance(spec, dict) else {},
        manifest=manifest if isinstance(manifest, dict) else {},
        files=list_files(run_dir, written),
        damaged=damaged,
        run_id=run_dir.name,
    )


def make_view(
    results: Results | None,
    verdict: Verdict | None,
    spec: dict[str, Any],
    manifest: dict[str, Any],
    files: list[File],
    damaged: Sequence[Message] = (),
    run_id: str = "",
) -> View:
    """Put the view together from what was read."""
    rows = rank_rows(results, manifest)
    worst = sorted(rows, key=_worst_first)
    failure = _failure(manifest.get("failure"), files)
    status = verdict.status if verdict is not None else ("error" if failure else None)
    if verdict is not None:
        reason = verdict.reason
    elif failure is not None:
        reason = failure.line
    else:
        reason = "There is no verdict: the run has not been judged."
    limit = None
    if verdict is not None:
        limits = [check.limit for check in verdict.checks if check.metric == "summary.avg_iteration_ms"]
        limit = limits[0] if limits else None
    breakdown, total_ms = _breakdown(results)
    return View(
        run_id=str(spec.get("run_id") or manifest.get("run_id") or run_id),
        created=spec.get("created") or manifest.get("created"),
        benchmark=str(spec.get("benchmark") or "aorta"),
        status=status,
        word=UNLIMITED if _unlimited(verdict) else WORDS.get(status, WORDS[None]),
        reason=reason,
        hint=_hint(status, worst, failure),
        failure=failure,
        verdict=verdict,
        results=results,
        spec=spec,
        manifest=manifest,
        ranks=rows,
        worst_first=worst,
        nodes=_node_rows(rows, results),
        world_size=len(rows),
        gpus=sorted({rank.gpu for rank in results.per_rank if rank.gpu}) if results else [],
        rank_charts=_rank_charts(rows, limit),
        step_chart=_step_chart(rows, results, limit),
        breakdown=breakdown,
        total_ms=total_ms,
        sizes=_sizes(results),
        stragglers=_stragglers(results),
        straggler_steps=results.straggler_steps if results else [],
        kinds=_kinds(results),
        outside=_outside(results),
        most_skewed=_most_skewed(results),
        kernels=[kernel for kernel in results.top_kernels if kernel.rank is None] if results else [],
        errors=[*damaged, *_messages(results.errors if results else ())],
        warnings=[
            *(Message(str(one.get("code")), str(one.get("message"))) for one in spec.get("warnings") or []),
            *(Message(remark.code, remark.message) for remark in (verdict.warnings if verdict else ())),
            *_messages(results.warnings if results else ()),
        ],
        settings=settings_of(spec),
        files=files,
    )


def _unlimited(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.status == "passed" and not verdict.limits


def _worst_first(row: RankRow) -> tuple[float, ...]:
    return -row.severity, -(row.made_others_wait_ms or 0), -(row.mean_ms or 0), row.rank


# --- ranks and nodes --------------------------------------------------------------------------------------------------


def shares_of(timeline: Timeline | None) -> Shares | None:
    """The disjoint parts of a window; None without GPU events."""
    if timeline is None or timeline.total <= 0:
        return None
    return Shares(
        compute=timeline.computation / timeline.total,
        exposed_communication=timeline.exposed_communication / timeline.total,
        exposed_memcpy=timeline.exposed_memcpy / timeline.total,
        idle=timeline.idle / timeline.total,
    )


def rank_rows(results: Results | None, manifest: Mapping[str, Any]) -> list[RankRow]:
    """All ranks that are, or should be, there; ascending."""
    if results is None:
        return []
    gathered = [*(manifest.get("traces") or []), *(manifest.get("summaries") or [])]
    hosts = {entry.get("rank"): entry.get("host") for entry in gathered}
    stragglers = {row.rank: row for row in results.stragglers}
    rows = [
        RankRow(one.rank, one.node, one.local_rank, one, shares_of(one.timeline_us), stragglers.get(one.rank))
        for one in results.per_rank
    ]
    present = {row.rank for row in rows}
    rows += [
        RankRow(rank, hosts.get(rank), None, None, None, None)
        for rank in results.world.missing_ranks
        if rank not in present
    ]
    rows.sort(key=lambda row: row.rank)
    _remark_errors(rows, results)
    _remark_slow(rows)
    _remark_stragglers(rows)
    return rows


def _remark_errors(rows: Sequence[RankRow], results: Results) -> None:
    codes: dict[int, list[str]] = defaultdict(list)
    for problem in results.errors:
        if problem.rank is not None and problem.code not in codes[problem.rank]:
            codes[problem.rank].append(problem.code)
    for row in rows:
        if row.result is None:
            row.remarks.append("no figures" + (f": {', '.join(codes[row.rank])}" if codes[row.rank] else ": no trace"))
            row.severity += 1000
        elif codes[row.rank]:
            row.remarks.append(", ".join(codes[row.rank]))
            row.severity += 500


def _computation_ms(row: RankRow) -> float | None:
    timeline = None if row.result is None else row.result.timeline_us
    return None if timeline is None else timeline.computation / 1000


def _remark_slow(rows: Sequence[RankRow]) -> None:
    """Whose iterations, or whose computation, take conspicuously longer than the median of all ranks."""

    longer: dict[int, list[str]] = defaultdict(list)
    for what, figure, weight in (("iterations", lambda row: row.mean_ms, 2.0), ("computation", _computation_ms, 1.0)):
        measured = [(row, value) for row in rows if (value := figure(row)) is not None]
        median = statistics.median(value for _row, value in measured) if measured else 0
        for row, value in measured:
            if median > 0 and value > median * (1 + SLOW):
                longer[row.rank].append(f"{what} {100 * (value / median - 1):.0f} %")
                row.severity += weight * (value / median - 1) * 100
    for row in rows:
        if longer[row.rank]:
            row.remarks.append(f"{' and '.join(longer[row.rank])} longer than the median")


def _remark_stragglers(rows: Sequence[RankRow]) -> None:
    for row in rows:
        one = row.straggler
        if one is None or not one.collectives or one.made_others_wait_us < WORTH_WAITING_MS * 1000:
            continue
        if one.times_last / one.collectives >= OFTEN_LAST and len(rows) > 1:
            row.remarks.append(f"last to arrive in {one.times_last} of {one.collectives} collectives")
            row.severity += 50 * one.times_last / one.collectives


def _hint(status: str | None, worst: Sequence[RankRow], failure: Failure | None) -> str | None:
    """Where to look first: at the log of what failed; at a node whose ranks stand out; else at the worst rank."""
    if failure is not None:
        return None if failure.telling is None else one_line(f"Its log says: {failure.telling}", 300)
    marked = [row for row in worst if row.severity > 0]
    if not marked:
        return None
    row = marked[0]
    start = "Look first at" if status != "passed" else "Most conspicuous:"
    same = sum(other.node == row.node for other in marked)
    there = sum(other.node == row.node for other in worst)
    if row.node is not None and same >= 2 and 2 * same >= there and 4 * same >= 3 * len(marked) and there < len(worst):
        what = f"{same} of its {there} ranks stand out, worst rank {row.rank}"
        return f"{start} {row.node}: {what}: {'; '.join(row.remarks)}."
    others = len(marked) - 1
    more = "" if not others else f" ({others} more rank{'s' if others > 1 else ''} marked below)"
    return f"{start} {rank_name(row.rank, {row.rank: row.node})}: {'; '.join(row.remarks)}{more}."


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def mean_shares(rows: Iterable[Shares | None]) -> Shares | None:
    """The mean of each part; None where nothing was measured."""
    measured = [dataclasses.astuple(row) for row in rows if row is not None]
    return Shares(*(statistics.fmean(part) for part in zip(*measured, strict=True))) if measured else None


def _node_rows(rows: Sequence[RankRow], results: Results | None) -> list[NodeRow]:
    by_node: dict[str, list[RankRow]] = defaultdict(list)
    for row in rows:
        if row.node is not None:
            by_node[row.node].append(row)
    offsets = results.clock_offsets_us if results is not None else {}
    return [
        NodeRow(
            node=node,
            ranks=[row.rank for row in members],
            missing=sum(row.result is None for row in members),
            mean_ms=_mean(row.mean_ms for row in members),
            shares=mean_shares(row.shares for row in members),
            clock_offset_us=offsets.get(node),
            conspicuous=[row.rank for row in members if row.severity > 0],
        )
        for node, members in by_node.items()
    ]


# --- charts: only numbers; the template draws -------------------------------------------------------------------------


def make_axis(values: Sequence[float], around: float) -> Axis:
    """Holds all values, and at least 10 % to both sides of C(around), so that noise does not look like drama."""
    low, high = min([*values, around * 0.9]), max([*values, around * 1.1])
    high += (high - low) / 20  # room for labels
    if high <= low:
        low, high = low - 1, high + 1
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= (high - low) / 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [round(number * step, 12) for number in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)


def _rank_charts(rows: Sequence[RankRow], limit: float | None) -> list[RankChart]:
    """Iteration times, and computation: where ranks wait for one another, only the latter tells who is slow."""
    nodes: list[tuple[int, int, str]] = []
    for position, row in enumerate(rows):
        name = row.node or ""
        if nodes and nodes[-1][2] == name:
            nodes[-1] = (nodes[-1][0], nodes[-1][1] + 1, name)
        else:
            nodes.append((position, 1, name))
    charts = []
    for key, title, unit, figure, bound in (
        ("iteration", "Mean iteration time by rank", "iteration (ms)", lambda row: row.mean_ms, limit),
        ("computation", "Computation by rank, in the profiled window", "computation (ms)", _computation_ms, None),
    ):
        points = [(at, row, value) for at, row in enumerate(rows) if (value := figure(row)) is not None]
        if len(points) < 2:
            continue
        values = [value for _at, _row, value in points]
        median = statistics.median(values)
        shown = bound if bound is not None and bound <= 1.5 * max(values) else None
        axis = make_axis([*values, *([] if shown is None else [shown])], median)
        charts.append(RankChart(key, title, unit, axis, points, nodes if len(nodes) < len(rows) else [], shown, median))
    return charts


def _step_chart(rows: Sequence[RankRow], results: Results | None, limit: float | None) -> StepChart | None:
    series = {
        row.rank: row.result.iterations.durations_ms
        for row in rows
        if row.result is not None and row.result.iterations is not None
    }
    longest = max(map(len, series.values()), default=0)
    if results is None or longest < 2:
        return None
    numbers: dict[int, list[int]] = defaultdict(list)
    for step in results.steps:
        numbers[step.rank].append(step.step)
    same = next(iter(numbers.values()), [])
    by_number = len(same) == longest and all(numbers[rank] == same for rank in series)
    labels = [str(number) for number in (same if by_number else range(1, longest + 1))]
    chosen = [row for row in rows if row.rank in series]
    few = len(chosen) <= SHOWN_LINES
    if not few:
        ordered = sorted(chosen, key=lambda row: -row.severity)
        chosen = [row for row in ordered[:3] if row.severity > 0]
    lines = [Line(f"rank {row.rank}", row.severity > 0, list(enumerate(series[row.rank]))) for row in chosen]
    columns = [[values[at] for values in series.values() if at < len(values)] for at in range(longest)]
    middle = [(at, statistics.median(column)) for at, column in enumerate(columns)]
    band = [] if few else [(at, min(column), max(column)) for at, column in enumerate(columns)]
    values = [value for column in columns for value in column]
    shown = limit if limit is not None and limit <= 1.5 * max(values) else None
    axis = make_axis([*values, *([] if shown is None else [shown])], statistics.median(values))
    return StepChart(axis, labels, by_number, lines, middle, band, shown)


# --- where the time goes, collectives ---------------------------------------------------------------------------------


def _breakdown(results: Results | None) -> tuple[list[Breakdown], float | None]:
    timelines = [one.timeline_us for one in (results.per_rank if results else ()) if one.timeline_us is not None]
    timelines = [timeline for timeline in timelines if timeline.total > 0]
    if not timelines:
        return [], None
    parts = (
        ("compute", "compute", "computation"),
        ("exposed", "exposed communication", "exposed_communication"),
        ("memcpy", "exposed copies", "exposed_memcpy"),
        ("idle", "idle", "idle"),
    )
    return [
        Breakdown(
            key,
            name,
            statistics.fmean(getattr(timeline, field) / timeline.total for timeline in timelines),
            statistics.fmean(getattr(timeline, field) for timeline in timelines) / 1000,
        )
        for key, name, field in parts
    ], statistics.fmean(timeline.total for timeline in timelines) / 1000


def _sizes(results: Results | None) -> list[CollectiveSize]:
    """Those that take most time first."""
    sizes = results.collective_sizes if results else []
    return sorted(sizes, key=lambda one: -one.count * one.median_duration_us)


def _stragglers(results: Results | None) -> list[StragglerRow]:
    if results is None:
        return []
    steps = Counter(step.rank for step in results.steps)
    return [
        StragglerRow(one, one.made_others_wait_us / 1000 / steps[one.rank] if steps[one.rank] else None)
        for one in results.stragglers
    ]


def _kinds(results: Results | None) -> list[KindRow]:
    if results is None:
        return []
    by_rank: dict[str, dict[int, float]] = defaultdict(dict)
    for one in results.kernel_kinds:
        if one.rank is not None:
            by_rank[one.kind][one.rank] = one.total_us / 1000
    return [KindRow(one, by_rank[one.kind]) for one in results.kernel_kinds if one.rank is None]


def _outside(results: Results | None) -> list[OutsideRow]:
    """The ranks with steps, those with most work outside them first."""
    rows = [
        OutsideRow(
            one.rank,
            one.node,
            one.outside_steps_us,
            one.outside_steps_us.busy / one.timeline_us.busy if one.timeline_us.busy else None,
        )
        for one in (results.per_rank if results else ())
        if one.outside_steps_us is not None and one.timeline_us is not None
    ]
    return sorted(rows, key=lambda row: (-row.timeline.busy, row.rank))


def _most_skewed(results: Results | None) -> list[Collective]:
    skewed = [one for one in (results.collectives if results else ()) if one.arrival_skew_us]
    return sorted(skewed, key=lambda one: -(one.arrival_skew_us or 0))[:SHOWN_COLLECTIVES]


# --- messages, configuration, files -----------------------------------------------------------------------------------


def _messages(entries: Iterable[Any]) -> list[Message]:
    result = []
    for entry in entries:
        place = [] if entry.rank is None else [f"rank {entry.rank}"]
        byte = getattr(entry, "byte", None)
        if entry.file:
            place.append(entry.file + ("" if byte is None else f", byte {byte}"))
        result.append(Message(entry.code, entry.message, ", ".join(place)))
    return result


def settings_of(spec: Mapping[str, Any]) -> list[Setting]:
    """Every value of the configuration as text, with the layer that set it. Secrets stay C(***)."""
    layers = spec.get("layers") or {}
    hidden = {str(name) for name in spec.get("secrets") or []}
    result: list[Setting] = []

    def walk(path: tuple[str, ...], value: Any) -> None:
        name = ".".join(path)
        if isinstance(value, Mapping) and value and name not in layers:
            for key, item in value.items():
                walk((*path, str(key)), item)
            return
        secret = bool(hidden & {name, path[-1], f"aorta_{name}"})
        text = MASK if secret else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        result.append(Setting(name, text, _layer(layers, path)))

    for key, value in (spec.get("values") or {}).items():
        walk((str(key),), value)
    return result


def _layer(layers: Mapping[str, Any], path: Sequence[str]) -> str:
    for length in range(len(path), 0, -1):
        layer = layers.get(".".join(path[:length]))
        if layer is not None:
            return str(layer)
    return "not recorded"


_WHAT = {
    "verdict.json": "the verdict, for programs",
    "results.json": "all figures, for programs",
    "report.xlsx": "all figures as a workbook",
    "junit.xml": "the checks, for CI",
    "spec.json": "the configuration that was used",
    "manifest.json": "hosts, versions, phases, traces",
}


def list_files(run_dir: Path, written: Iterable[str] = ()) -> list[File]:
    """The files of C(run_dir) that a reader may want, with links relative to it."""
    coming = set(written)
    files = [
        File(name, quote(name), what) for name, what in _WHAT.items() if name in coming or (run_dir / name).is_file()
    ]
    logs = run_dir / "logs"
    for path in sorted(logs.glob("*.log")) if logs.is_dir() else ():
        files.append(File(f"logs/{path.name}", f"logs/{quote(path.name, safe='')}", f"output of {path.stem}"))
    files += _tracelens_files(run_dir / "tracelens")
    if (run_dir / "traces").is_dir():
        files.append(File("traces/", "traces/", "the traces of all ranks"))
    if (run_dir / "summaries").is_dir():
        files.append(File("summaries/", "summaries/", "what the hosts have measured in their traces"))
    return files


def _tracelens_files(folder: Path) -> list[File]:
    """Its workbooks, the one over all ranks first, and the folder with its logs."""
    if not folder.is_dir():
        return []
    ordered = sorted(
        folder.glob("*.xlsx"),
        key=lambda path: (path.name.startswith("rank"), [int(number) for number in re.findall(r"[0-9]+", path.name)]),
    )
    files = []
    for path in ordered:
        of = re.match(r"rank([0-9]+)", path.name)
        what = f"rank {of.group(1)}" if of else "the collectives of all ranks"
        files.append(File(f"tracelens/{path.name}", f"tracelens/{quote(path.name, safe='')}", f"AMD TraceLens: {what}"))
    return [*files, File("tracelens/", "tracelens/", "AMD TraceLens: all it wrote, with its logs")]


def _failure(given: Any, files: Sequence[File]) -> Failure | None:
    if not isinstance(given, Mapping):
        return None
    host = given.get("host")
    log = next((file for file in files if host is not None and file.name == f"logs/{host}.log"), None)
    return Failure(
        line=one_line(failure_line(given)),
        phase=str(given.get("phase") or "unknown"),
        host=None if host is None else str(host),
        rank=given.get("rank"),
        exit_code=given.get("exit_code"),
        reason=given.get("reason"),
        message=str(given.get("message") or ""),
        log_tail=[str(line) for line in given.get("log_tail") or []],
        log=log,
    )


__all__ = [
    "SHOWN_COLLECTIVES",
    "SHOWN_MESSAGES",
    "SHOWN_RANKS",
    "Axis",
    "Breakdown",
    "Failure",
    "File",
    "KindRow",
    "Message",
    "NodeRow",
    "OutsideRow",
    "RankRow",
    "Setting",
    "Shares",
    "StragglerRow",
    "View",
    "build_view",
    "list_files",
    "make_axis",
    "make_view",
    "rank_rows",
    "settings_of",
    "shares_of",
]
