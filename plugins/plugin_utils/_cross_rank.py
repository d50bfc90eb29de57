# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only all ranks together tell: collectives, who arrives last, clocks of different hosts.

Times are absolute integer nanoseconds. Definitions: C(docs/metrics.md).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    Collective,
    CollectiveSize,
    Note,
    Straggler,
    StragglerStep,
)

DTYPE_BYTES = {
    "Float": 4,
    "Int": 4,
    "Long": 8,
    "BFloat16": 2,
    "Half": 2,
    "Short": 2,
    "Double": 8,
    "Bool": 1,
    "Byte": 1,
}
# The names PyTorch gives collectives, by what they do.
_CLASSES = {
    "allreduce": "allreduce allreduce_coalesced",
    "reducescatter": "reducescatter _reduce_scatter_base reduce_scatter_tensor_coalesced reduce_scatter",
    "allgather": "allgather all_gather _allgather_base"
    " all_gather_into_tensor_coalesced allgather_into_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_allv",
    "barrier": "barrier",
    "point to point": "send recv isend irecv sendrecv batch_isend_irecv",
}
CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
# Every rank needs every other one, so whoever comes last is waited for.
SYNCHRONISING = frozenset(("allreduce", "reducescatter", "allgather", "alltoall", "alltoallv", "barrier"))
# nccl-tests, doc/PERFORMANCE.md: bus bandwidth = factor x algorithm bandwidth, n ranks.
_BUS_FACTOR = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}
_KERNEL_OPERATION = re.compile(
    r"nccl(?:Dev)?Kernel_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)", re.I
)
# At most this many collective_unmatched warnings for single collectives; the rest is counted in one.
MAX_UNMATCHED = 20
MAX_MISMATCHES = 5
# Operations in which all ranks have to give the same type and number of elements.
_EQUAL_SIZES = frozenset(("allreduce", "reducescatter", "allgather", "alltoall"))
_CAUSES = {
    "compute": ("late_compute_us", "its GPU computed longer than that of the rank before it"),
    "host": ("late_host_us", "its GPU stood without computation longer: work was launched later, or waited for copies"),
    "network": ("late_network_us", "the collective before ended later on it"),
}
CLOCK_OFFSET_WORTH_A_WARNING_NS = 10_000


@dataclasses.dataclass
class Match:
    """One collective: the record of each rank that has it. C(expected): the ranks that should have."""

    records: dict[int, dict[str, Any]]
    expected: set[int]
    how: str  # "seq", "order" or "unlabelled"
    name: str | None = None
    group: str | None = None
    group_ranks: list[int] | None = None

    @property
    def first(self) -> dict[str, Any]:
        """The lowest rank's record."""
        return self.records[min(self.records)]

    @property
    def kind(self) -> str | None:
        """The class of the operation, None if unknown."""
        return CLASS_OF.get(self.name) if self.name is not None else None

    @property
    def synchronising(self) -> bool:
        """Does everyone wait for the last? Kernels without metadata are taken to, as TraceLens takes them."""
        if self.how == "unlabelled":
            return self.name not in ("broadcast", "reduce")
        return self.kind in SYNCHRONISING


def parse_ranks(text: str | None) -> list[int] | None:
    """C("[0, 1]") as a list; None where it is absent or PyTorch shortened it with dots."""
    try:
        ranks = json.loads(text or "")
    except ValueError:
        return None
    return ranks if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else None


def match_collectives(
    records: Mapping[int, Sequence[dict[str, Any]]], groups: Mapping[str, list[int]], world: set[int]
) -> tuple[list[Match], list[Note]]:
    """Find which kernels of different ranks are the same collective.

    C(records): rank -> its communication kernels in order of start. By process group (name and ranks), sequence number
    and operation where the trace has C(Seq); else by order among kernels of the same group, operation and size; kernels
    without any metadata by order, where all ranks show the same kernels on one stream each. C(groups): ranks of a
    process group from the header; C(world): all ranks.
    """
    found: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    unlabelled: dict[int, list[dict[str, Any]]] = {}
    for rank, kernels in records.items():
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        bare = []
        for record in kernels:
            if record.get("name") is None and record.get("group") is None:
                bare.append(record)
                continue
            key = _key(record)
            counts[key] += 1
            found[(*key, counts[key])][rank] = record
        unlabelled[rank] = bare
    matches = [_labelled(key[0], by_rank, groups, world) for key, by_rank in found.items()]
    notes = []
    ordered = sum(match.how == "order" and len(match.records) > 1 for match in matches)
    if ordered:
        message = (
            f"{ordered} collectives have no sequence number (Seq, torch >= 2.6) and were matched by their order:"
            " one lost record shifts those after it"
        )
        notes.append(Note(code="collectives_matched_by_order", message=message, count=ordered))
    if not found and len(records) > 1:
        matches = _unlabelled(unlabelled)
    matches.sort(key=lambda match: (match.first["start"], match.group or "", match.first.get("seq") or 0))
    return matches, notes


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    group = (record.get("group"), record.get("group_ranks"), record.get("name"))
    if record.get("seq") is not None:
        return ("seq", *group, record["seq"])
    # Where ranks may send different amounts, the amount says nothing.
    same = CLASS_OF.get(record.get("name") or "") in ("allreduce", "reducescatter", "allgather", "alltoall")
    sizes = (record.get("in_elements"), record.get("out_elements")) if same else ()
    return ("order", *group, record.get("dtype"), *sizes)


def _labelled(how: str, by_rank: dict[int, dict[str, Any]], groups: Mapping[str, list[int]], world: set[int]) -> Match:
    first = by_rank[min(by_rank)]
    group, size = first.get("group"), first.get("group_size")
    ranks = parse_ranks(first.get("group_ranks"))
    from_header = groups.get(group or "")
    if ranks is None and from_header is not None and size in (None, len(from_header)):
        ranks = from_header
    if ranks is None and size == len(world):
        ranks = sorted(world)
    match = Match(by_rank, set(ranks or by_rank), how, first.get("name"), group, ranks)
    if match.kind == "point to point":
        match.expected = set(by_rank)
    return match


def _unlabelled(kernels: dict[int, list[dict[str, Any]]]) -> list[Match]:
    """Match by order only if nothing contradicts it: the same kernels in the same order, one stream a rank."""
    names = {tuple(record["kernel"].split("(")[0] for record in rank) for rank in kernels.values()}
    streams = {len({record["stream"] for record in rank}) for rank in kernels.values()}
    if len(names) != 1 or streams != {1}:
        return []
    return [
        Match(dict(zip(kernels, row, strict=True)), set(kernels), "unlabelled", _operation(row[0]["kernel"]))
        for row in zip(*kernels.values(), strict=True)
    ]


def _operation(kernel: str) -> str | None:
    found = _KERNEL_OPERATION.search(kernel)
    if found:
        return found.group(1).lower()
    return "allreduce" if "cross_device_reduce" in kernel.lower() else None


def unmatched_notes(matches: Iterable[Match], present: set[int]) -> list[Note]:
    """One C(collective_unmatched) for each collective that a rank with a trace lacks; one for all those lost ranks
    (not in C(present)) lack."""
    notes: list[Note] = []
    more = 0
    lost: set[int] = set()
    without_lost = 0
    for match in matches:
        missing = match.expected - set(match.records)
        if missing - present:
            lost |= missing - present
            without_lost += 1
        lacking = sorted(missing & present)
        if not lacking:
            continue
        if len(notes) == MAX_UNMATCHED:
            more += 1
            continue
        seq = match.first.get("seq")
        label = f"{match.name or 'collective'}, process group {match.group}" + ("" if seq is None else f", Seq {seq}")
        message = f"{label}: recorded by {_ranks(match.records)}, not by {_ranks(lacking)}"
        notes.append(Note(code="collective_unmatched", message=message))
    if more:
        notes.append(
            Note(code="collective_unmatched", message=f"{more} further collectives lack a rank's record", count=more)
        )
    if without_lost:
        message = f"{without_lost} collectives lack {_ranks(lost)}, of which there are no GPU events"
        notes.append(Note(code="collective_unmatched", message=message, count=without_lost))
    return notes


def _ranks(ranks: Iterable[int]) -> str:
    return list_ranks(ranks, "rank ", "ranks ")


def list_ranks(ranks: Iterable[int], one: str = "", many: str = "") -> str:
    """C("1, 3, 4"); more than 16 with runs drawn together: C("1-63, 70")."""
    ordered = sorted(ranks)
    if len(ordered) <= 16:
        return (one if len(ordered) == 1 else many) + ", ".join(map(str, ordered))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return many + ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


# --- clocks -----------------------------------------------------------------------------------------------------------


def clock_offsets(
    matches: Iterable[Match], nodes: Mapping[int, str]
) -> tuple[dict[str, int], dict[str, float], list[Note]]:
    """Nanoseconds by which each node's clock is ahead of the first node's (that of the lowest rank), and their spread.

    A synchronising collective ends everywhere at (nearly) the same moment, so the median over all of them of the
    difference of ends is the difference of the clocks. Nodes that share no collective with the first are reached over
    others. With fewer than two known nodes nothing is estimated: one host has one clock. The spread is the median
    absolute deviation over the collectives that the offset comes from; the first node has none.
    """
    order = list(dict.fromkeys(nodes[rank] for rank in sorted(nodes)))
    if len(order) < 2:
        return {}, {}, []
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for match in matches:
        if not match.synchronising:
            continue
        ends: dict[str, list[int]] = defaultdict(list)
        for rank, record in match.records.items():
            if rank in nodes:
                ends[nodes[rank]].append(record["start"] + record["duration"])
        for one in ends:
            for other in ends:
                if one != other:
                    samples[one, other].append(_difference(ends[other], ends[one]))
    offsets = {order[0]: 0}
    spreads = {}
    notes = []
    reached = collections.deque(order[:1])
    while reached:
        base = reached.popleft()
        for node in order:
            found = samples.get((base, node))
            if node in offsets or not found:
                continue
            offset = round(statistics.median(found))
            offsets[node] = offsets[base] + offset
            spreads[node] = spread = statistics.median(abs(value - offset) for value in found)
            reached.append(node)
            if abs(offsets[node]) >= CLOCK_OFFSET_WORTH_A_WARNING_NS:
                message = (
                    f"the clock of {node} is {abs(offsets[node]) / 1e6:.3f} ms ({abs(offsets[node]) / 1000:.3f} us)"
                    f" {'ahead of' if offsets[node] > 0 else 'behind'} that of {order[0]}"
                    f" (median over {len(found)} collectives, median deviation {spread / 1000:.3f} us);"
                    " taken out before ranks are compared"
                )
                notes.append(Note(code="clock_offset", message=message, count=len(found)))
    lost = [node for node in order if node not in offsets]
    if lost:
        message = f"no collective connects {', '.join(lost)} with {order[0]}: clocks are compared as they are"
        notes.append(Note(code="clock_offset_unknown", message=message))
    return offsets, spreads, notes


def _difference(later: list[int], earlier: list[int]) -> float:
    """Median of C(later) minus median of C(earlier); from a near origin, for floats lose ns of absolute times."""
    origin = earlier[0]
    return statistics.median(time - origin for time in later) - statistics.median(time - origin for time in earlier)


# --- what came of it --------------------------------------------------------------------------------------------------


def arrivals(match: Match, nodes: Mapping[int, str], offsets: Mapping[str, int]) -> dict[int, int]:
    """Rank -> start on the first node's clock, ns."""
    return {
        rank: record["start"] - offsets.get(nodes.get(rank, ""), 0) for rank, record in sorted(match.records.items())
    }


def _last(starts: Mapping[int, int]) -> int | None:
    """Who started last: the lowest such rank; None if all started together or there is one only."""
    latest = max(starts.values())
    return min(rank for rank in starts if starts[rank] == latest) if min(starts.values()) < latest else None


def _first(starts: Mapping[int, int]) -> int | None:
    """Who started first: the highest such rank (as TraceLens has it)."""
    earliest = min(starts.values())
    return max(rank for rank in starts if starts[rank] == earliest) if max(starts.values()) > earliest else None


def describe(match: Match, nodes: Mapping[int, str], offsets: Mapping[str, int]) -> Collective:
    """The row of C(results.json)."""
    first = match.first
    starts = arrivals(match, nodes, offsets)
    ends = {rank: start + match.records[rank]["duration"] for rank, start in starts.items()}
    several = len(starts) > 1
    shortest = min(record["duration"] for record in match.records.values())
    elements = first.get("out_elements" if match.kind == "allgather" else "in_elements")
    width = DTYPE_BYTES.get(first.get("dtype") or "")
    size = elements * width if elements is not None and width is not None else None
    algorithm = bus = None
    number = first.get("group_size") or len(match.group_ranks or ())
    factor = _BUS_FACTOR.get(match.kind or "")
    # One rank's kernel also contains its wait for the others: no bandwidth.
    if several and factor is not None and size is not None and shortest > 0:
        algorithm = size / shortest  # bytes per ns = 10^9 bytes per s
        bus = algorithm * factor(number) if number else None
    return Collective(
        group=match.group,
        group_ranks=match.group_ranks,
        seq=first.get("seq"),
        name=match.name,
        dtype=first.get("dtype"),
        in_elements=first.get("in_elements"),
        out_elements=first.get("out_elements"),
        bytes=size,
        ranks=sorted(match.records),
        missing_ranks=sorted(match.expected - set(match.records)),
        min_duration_us=shortest / 1000,
        arrival_skew_us=(max(starts.values()) - min(starts.values())) / 1000 if several else None,
        end_skew_us=(max(ends.values()) - min(ends.values())) / 1000 if several else None,
        first_rank=_first(starts),
        last_rank=_last(starts),
        algbw_gbps=algorithm,
        busbw_gbps=bus,
    )


def sizes(rows: Iterable[Collective]) -> list[CollectiveSize]:
    """The collectives of two or more ranks by operation, group, type and size; the largest first."""
    found: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for row in rows:
        if len(row.ranks) > 1:
            members = None if row.group_ranks is None else tuple(row.group_ranks)
            found[row.name, row.group, members, row.dtype, row.bytes].append(row)
    result = []
    for (name, group, members, dtype, size), group_rows in found.items():
        durations = [row.min_duration_us for row in group_rows]
        skews = [row.arrival_skew_us for row in group_rows if row.arrival_skew_us is not None]
        algorithm = [row.algbw_gbps for row in group_rows if row.algbw_gbps is not None]
        bus = [row.busbw_gbps for row in group_rows if row.busbw_gbps is not None]
        result.append(
            CollectiveSize(
                name=name,
                group=group,
                group_size=None if members is None else len(members),
                dtype=dtype,
                bytes=size,
                count=len(group_rows),
                min_duration_us=min(durations),
                median_duration_us=statistics.median(durations),
                max_duration_us=max(durations),
                median_arrival_skew_us=statistics.median(skews) if skews else None,
                max_arrival_skew_us=max(skews, default=None),
                median_algbw_gbps=statistics.median(algorithm) if algorithm else None,
                min_busbw_gbps=min(bus, default=None),
                median_busbw_gbps=statistics.median(bus) if bus else None,
                max_busbw_gbps=max(bus, default=None),
            )
        )
    return sorted(result, key=lambda row: (-(row.bytes or 0), row.name or "", row.group or "", row.dtype or ""))


def mismatch_notes(matches: Iterable[Match]) -> list[Note]:
    """C(collective_mismatch) where ranks give one collective different types or sizes; the first few one by one."""
    notes: list[Note] = []
    more = 0
    for match in matches:
        if match.kind not in _EQUAL_SIZES:
            continue
        given: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for rank, record in match.records.items():
            given[record.get("dtype"), record.get("in_elements"), record.get("out_elements")].append(rank)
        if len(given) < 2:
            continue
        if len(notes) == MAX_MISMATCHES:
            more += 1
            continue
        seq = match.first.get("seq")
        label = f"{match.name}, process group {match.group}" + ("" if seq is None else f", Seq {seq}")
        texts = (f"{_ranks(ranks)}: {dtype}, {ins} in, {outs} out" for (dtype, ins, outs), ranks in given.items())
        message = f"{label}: the ranks disagree on type or number of elements: {'; '.join(texts)}"
        notes.append(Note(code="collective_mismatch", message=message))
    if more:
        message = f"{more} further collectives have different types or sizes on different ranks"
        notes.append(Note(code="collective_mismatch", message=message, count=more))
    return notes


@dataclasses.dataclass
class _Part:
    """A rank's part in the collectives, ns. The lateness adds up to C(cost)."""

    count: int = 0
    last: int = 0
    first: int = 0
    wait: int = 0
    cost: int = 0
    compute: int = 0
    host: int = 0
    network: int = 0
    unexplained: int = 0


def stragglers(
    matches: Iterable[Match],
    nodes: Mapping[int, str],
    offsets: Mapping[str, int],
    steps: Mapping[int, Sequence[Sequence[Any]]] | None = None,
) -> tuple[list[Straggler], list[StragglerStep]]:
    """Each rank's part in the synchronising collectives of two or more ranks; who costs the others most, first.

    C(steps): rank -> [number, start, duration, ...] of its steps; gives the cost by step as well, worst first.
    """
    matches = list(matches)
    parts: dict[int, _Part] = defaultdict(_Part)
    by_step: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    windows = {
        rank: sorted((start, start + duration, number) for number, start, duration, *_rest in rows)
        for rank, rows in (steps or {}).items()
    }
    before = _before(matches)
    for match in matches:
        if not match.synchronising or len(match.records) < 2:
            continue
        starts = arrivals(match, nodes, offsets)
        latest = max(starts.values())
        for rank, start in starts.items():
            parts[rank].count += 1
            parts[rank].wait += latest - start
        late, early = _last(starts), _first(starts)
        if late is None or early is None:
            continue
        parts[late].last += 1
        parts[early].first += 1
        second = max((rank for rank in starts if rank != late), key=lambda rank: (starts[rank], -rank))
        cost = latest - starts[second]
        parts[late].cost += cost
        _explain(parts[late], cost, match.records[late], match.records[second], before)
        step = _step_at(windows.get(late, ()), match.records[late]["start"])
        if step is not None:
            by_step[step, late][0] += 1
            by_step[step, late][1] += cost
    rows = [_straggler(rank, parts[rank], nodes) for rank in sorted(parts)]
    rows.sort(key=lambda row: (-row.made_others_wait_us, -row.times_last, row.rank))
    per_step = [
        StragglerStep(step=step, rank=rank, node=nodes.get(rank), times_last=last, made_others_wait_us=cost / 1000)
        for (step, rank), (last, cost) in by_step.items()
    ]
    per_step.sort(key=lambda row: (-row.made_others_wait_us, row.step, row.rank))
    return rows, per_step


def _before(matches: Sequence[Match]) -> dict[int, tuple[int, dict[str, Any]]]:
    """id of a record -> (number of the collective before it on its rank, that collective's record)."""
    by_rank: dict[int, list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for number, match in enumerate(matches):
        for rank, record in match.records.items():
            by_rank[rank].append((record["start"], number, record))
    result = {}
    for records in by_rank.values():
        records.sort(key=lambda entry: entry[:2])
        for (_start, number, earlier), (_later, _number, record) in itertools.pairwise(records):
            result[id(record)] = (number, earlier)
    return result


def _explain(
    part: _Part,
    cost: int,
    late: Mapping[str, Any],
    other: Mapping[str, Any],
    before: Mapping[int, tuple[int, Mapping[str, Any]]],
) -> None:
    """Split C(cost), by which C(late) starts after C(other), by what happened since the collective before.

    start = end of the collective before + computation + rest, on both ranks; so the differences add up to the cost.
    """
    ours, theirs = before.get(id(late)), before.get(id(other))
    if ours is None or theirs is None or ours[0] != theirs[0]:
        part.unexplained += cost
        return
    (gap, computed), (other_gap, other_computed) = _since(late, ours[1]), _since(other, theirs[1])
    if gap is None or other_gap is None:
        part.unexplained += cost
        return
    part.compute += computed - other_computed
    part.host += (gap - computed) - (other_gap - other_computed)
    part.network += cost - (gap - other_gap)


def _since(record: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[int | None, int]:
    """Time since the collective C(before) ended, and computation within; no time where kernels without a match lie
    between or the two overlap."""
    gap, computed = record.get("gap"), record.get("computed")
    if gap is None or computed is None or gap < 0 or gap != record["start"] - before["start"] - before["duration"]:
        return None, 0
    return gap, computed


def _step_at(windows: Sequence[tuple[int, int, int]], time: int) -> int | None:
    index = bisect.bisect_right(windows, time, key=lambda window: window[0]) - 1
    return windows[index][2] if index >= 0 and time < windows[index][1] else None


def _straggler(rank: int, part: _Part, nodes: Mapping[int, str]) -> Straggler:
    causes = {"compute": part.compute, "host": part.host, "network": part.network}
    cause = max(causes, key=lambda name: causes[name])
    message = None
    if part.cost > 0 and causes[cause] > max(0, part.unexplained):
        figure, meaning = _CAUSES[cause]
        message = (
            f"{figure} {causes[cause] / 1000:.1f} of {part.cost / 1000:.1f} us: since the collective before, {meaning}"
        )
    return Straggler(
        rank=rank,
        node=nodes.get(rank),
        collectives=part.count,
        times_last=part.last,
        times_first=part.first,
        wait_us=part.wait / 1000,
        made_others_wait_us=part.cost / 1000,
        late_compute_us=part.compute / 1000,
        late_host_us=part.host / 1000,
        late_network_us=part.network / 1000,
        late_unexplained_us=part.unexplained / 1000,
        cause=cause if message else None,  # type: ignore[arg-type]
        cause_message=message,
    )
