# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only all ranks together tell: collectives, who arrives last, clocks of different hosts.

Times are absolute integer nanoseconds. Definitions: C(docs/metrics.md).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._results import Collective, Note, Straggler

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


def clock_offsets(matches: Iterable[Match], nodes: Mapping[int, str]) -> tuple[dict[str, int], list[Note]]:
    """Nanoseconds by which each node's clock is ahead of the first node's (that of the lowest rank).

    A synchronising collective ends everywhere at (nearly) the same moment, so the median over all of them of the
    difference of ends is the difference of the clocks. Nodes that share no collective with the first are reached over
    others. With fewer than two known nodes nothing is estimated: one host has one clock.
    """
    order = list(dict.fromkeys(nodes[rank] for rank in sorted(nodes)))
    if len(order) < 2:
        return {}, []
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
            reached.append(node)
            if abs(offsets[node]) >= CLOCK_OFFSET_WORTH_A_WARNING_NS:
                spread = statistics.median(abs(value - offset) for value in found)
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
    return offsets, notes


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


def stragglers(matches: Iterable[Match], nodes: Mapping[int, str], offsets: Mapping[str, int]) -> list[Straggler]:
    """Each rank's part in the synchronising collectives of two or more ranks; who costs the others most, first."""
    count: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    first: dict[int, int] = defaultdict(int)
    wait: dict[int, int] = defaultdict(int)
    cost: dict[int, int] = defaultdict(int)
    for match in matches:
        if not match.synchronising or len(match.records) < 2:
            continue
        starts = arrivals(match, nodes, offsets)
        latest = max(starts.values())
        for rank, start in starts.items():
            count[rank] += 1
            wait[rank] += latest - start
        late, early = _last(starts), _first(starts)
        if late is not None and early is not None:
            last[late] += 1
            first[early] += 1
            cost[late] += latest - sorted(starts.values())[-2]
    rows = [
        Straggler(
            rank=rank,
            node=nodes.get(rank),
            collectives=count[rank],
            times_last=last[rank],
            times_first=first[rank],
            wait_us=wait[rank] / 1000,
            made_others_wait_us=cost[rank] / 1000,
        )
        for rank in sorted(count)
    ]
    return sorted(rows, key=lambda row: (-row.made_others_wait_us, -row.times_last, row.rank))
