# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: B905 (zip has no "strict" before Python 3.10)
"""What one trace file says about one GPU: the compact summary that is all the cross-rank analysis needs.

Everything is integer nanoseconds. Definitions follow AMD TraceLens' GPU timeline (docs/metrics.md).
"""

from __future__ import annotations

import array
import bisect
import dataclasses
import hashlib
import itertools
import json
import math
import operator
import os
import re
from typing import Any, Iterable, Sequence

from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import (
    CHUNK,
    KERNEL,
    MEMCPY,
    Collected,
    TraceError,
    clean,
    read_trace,
)

SUMMARY_VERSION = 2

COMPUTATION, COMMUNICATION, COPY = "computation", "communication", "memcpy"
TIMELINE_KEYS = (
    "total",
    "busy",
    "idle",
    "computation",
    "communication",
    "exposed_communication",
    "memcpy",
    "exposed_memcpy",
)

# ROCm 7.1 and older wrote copies as kernels of these names; the full name counts.
_COPY_KERNEL = re.compile(
    r"(?:MEMORY_COPY_(?:HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)"
    r"|__amd_rocclr_copyBuffer(?:Rect)?(?:Aligned)?)(?:\.kd)?\Z"
)
# TraceLens' rule, so that numbers compare.
TRACELENS_COMMUNICATION = ("nccl", "rccl", "cross_device_reduce")
# What that rule misses. Ordinary (for instance compiled) kernels that merely have all_reduce in their name stay out.
EXTENDED_COMMUNICATION = (
    "msccl",  # MSCCL, MSCCL++
    "quick_?reduce",  # AMD QuickReduce
    "(?:one|two)_?shot_?all_?reduce",  # PyTorch symmetric memory
    "multimem_(?:all_reduce|all_gather|one_shot)",
    "cross_device_all_gather",
    "allreduce_fusion_kernel",  # AITER
    "nvshmem",
    "roc_?shmem",
    r"\bdeep_ep::",
    r"::ep::(?:internode|intranode)",  # DeepEP
)
OVERLAP_TOLERANCE_NS = 1000
OUTSIDE_SHARE = 0.01
_FEW_STREAMS = 32


def compile_rule(rule: str | Sequence[str]) -> re.Pattern[str]:
    """The pattern that says which kernels are communication.

    C(rule) is C(tracelens), C(extended), or a list of regular expressions (plain parts of a name are such), searched
    anywhere in the name in any case. Raises ValueError naming what is wrong.
    """
    if isinstance(rule, str):
        known = {"tracelens": TRACELENS_COMMUNICATION, "extended": TRACELENS_COMMUNICATION + EXTENDED_COMMUNICATION}
        if rule not in known:
            raise ValueError(
                f"communication_kernels: {rule!r} is neither 'tracelens' nor 'extended' nor a list of patterns"
            )
        rule = known[rule]
    for pattern in rule:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise ValueError(f"communication_kernels: {pattern!r} is no regular expression: {exc}") from None
    if not rule or any(not pattern for pattern in rule):
        raise ValueError("communication_kernels: empty pattern; give parts of kernel names, 'tracelens' or 'extended'")
    return re.compile("|".join(f"(?:{pattern})" for pattern in rule), re.IGNORECASE)


_EXTENDED = compile_rule("extended")


def category_of(kind: int, name: str, communication: re.Pattern[str]) -> str:
    """The bucket of a GPU event; the first rule that fits wins (docs/metrics.md)."""
    if kind == MEMCPY or (kind == KERNEL and _COPY_KERNEL.match(name)):
        return COPY
    return COMMUNICATION if communication.search(name) else COMPUTATION


class Union:
    """A union of half-open intervals; overlapping and touching ones are one. Gives its length within any window."""

    def __init__(self, starts: Iterable[int], ends: Iterable[int]) -> None:
        # With both sorted, the i-th start opens a new block exactly when all i earlier intervals have ended before it.
        first, last = sorted(starts), sorted(ends)
        opens = bytearray(map(operator.gt, itertools.islice(first, 1, None), last))
        self.sorted_starts, self.sorted_ends = first, last
        self.starts, self.ends = first[:1], list(itertools.compress(last, opens))
        self.starts.extend(itertools.compress(itertools.islice(first, 1, None), opens))
        self.ends.extend(last[-1:])
        self.before = list(itertools.accumulate(map(operator.sub, self.ends, self.starts), initial=0))

    @property
    def length(self) -> int:
        """Covered time."""
        return self.before[-1]

    def _covered(self, time: int) -> int:
        index = bisect.bisect_right(self.starts, time)
        if index == 0:
            return 0
        return self.before[index] - max(0, self.ends[index - 1] - time)

    def within(self, start: int, end: int) -> int:
        """Covered time between C(start) and C(end)."""
        return self._covered(end) - self._covered(start)


@dataclasses.dataclass
class FileSummary:
    """One trace file in kilobytes. Times are ns; C(start), C(end), those of steps and collectives are absolute
    (C(baseTimeNanoseconds) added).

    C(timeline): the eight lengths by name, None without GPU events. C(steps): [number, start, duration, timeline|None].
    C(outside): the timeline outside all step windows, None without steps. C(kernels): [name, category, calls, total,
    p50, p99, histogram], the histogram as [duration, calls, duration, calls, ...] (C(histogram)). C(collectives): one
    dict for each communication kernel; C(gap) is the time since the communication kernel before it ended (None for the
    first, negative where they overlap), C(computed) the computation within that time.
    C(notes): [code, text, count|None] of findings.
    """

    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    gpu: str | None = None
    events: int = 0
    gpu_events: int = 0
    text_bytes: int = 0
    start: int | None = None
    end: int | None = None
    timeline: dict[str, int] | None = None
    counts: dict[str, int] | None = None
    steps: list[list[Any]] = dataclasses.field(default_factory=list)
    outside: dict[str, int] | None = None
    kernels: list[list[Any]] = dataclasses.field(default_factory=list)
    collectives: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    fingerprint: str = ""
    notes: list[list[Any]] = dataclasses.field(default_factory=list)
    sha256: str = ""
    version: int = SUMMARY_VERSION


def _integer(value: Any) -> int | None:
    """A header number (text of one, or a string of digits) as int; None for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdigit():
        return int(value)
    return None


def _header(collected: Collected, summary: FileSummary) -> int:
    """Fill in what the header tells; returns the clock's base in ns."""
    info = collected.header.get("distributedInfo")
    if isinstance(info, dict):
        rank, world_size = _integer(info.get("rank")), _integer(info.get("world_size"))
        summary.rank = rank if rank is not None and rank >= 0 else None
        summary.world_size = world_size if world_size is not None and world_size > 0 else None
        for group in info.get("pg_config") or []:
            ranks = [_integer(rank) for rank in group.get("ranks") or []] if isinstance(group, dict) else []
            if ranks and None not in ranks:
                summary.groups[str(group.get("pg_name"))] = [rank for rank in ranks if rank is not None]
    properties = collected.header.get("deviceProperties")
    names: dict[int | None, str] = {}
    for entry in properties if isinstance(properties, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            names[_integer(entry.get("id"))] = clean(entry["name"])
    device = next(iter(collected.devices), None)
    if device in names:
        summary.gpu = names[device]
    elif len(set(names.values())) == 1:
        summary.gpu = next(iter(names.values()))
    return _integer(collected.header.get("baseTimeNanoseconds")) or 0


def summarise(collected: Collected, communication: re.Pattern[str]) -> FileSummary:
    """Reduce what was read from a file to its summary. Raises TraceError(multiple_devices)."""
    summary = FileSummary(events=collected.events, gpu_events=len(collected.starts), text_bytes=collected.bytes)
    base = _header(collected, summary)
    _file_notes(collected, summary)
    devices = [device for device in collected.devices if device is not None]
    if len(devices) > 1:
        found = ", ".join(f"{device} ({collected.devices[device]} kernels)" for device in sorted(devices, key=str))
        raise TraceError(
            "multiple_devices",
            f"kernels of {len(devices)} GPUs in one file: devices {found}; give one file for each rank",
        )
    if len(collected.processes) > 1:
        # Kineto writes the device's number there; tools that merge the ranks' traces write the rank as well.
        shown = ", ".join(sorted(repr(process)[:40] for _device, process in collected.processes)[:8])
        raise TraceError(
            "multiple_devices",
            f"kernels of {len(collected.processes)} processes (pid {shown}) on one device: the traces of several ranks"
            " merged into one file; give the file of each rank",
        )
    steps = sorted(collected.steps.items(), key=lambda item: (item[1], item[0]))
    summary.steps = [[number, start + base, end - start, None] for number, (start, end) in steps]
    if not steps:
        summary.notes.append(["no_profiler_steps", "no ProfilerStep marks: iteration times are not measured", None])
    everything = Union((), ())
    if collected.starts:
        everything = _gpu_timeline(collected, communication, base, summary)
    digest = hashlib.sha256(json.dumps([summary.start, summary.steps and [s[:3] for s in summary.steps]]).encode())
    digest.update(json.dumps(sorted(summary.kernels)).encode())
    if collected.starts:
        first = everything.sorted_starts[0]
        for times in (everything.sorted_starts, everything.sorted_ends):
            digest.update(array.array("q", map((-first).__add__, times)).tobytes())
    summary.fingerprint = digest.hexdigest()
    return summary


def _file_notes(collected: Collected, summary: FileSummary) -> None:
    note = summary.notes.append
    if collected.nonstandard:
        note(["nonstandard_json", "holds bare inf/nan or raw control characters, which JSON does not have", None])
    if collected.encoding_replaced:
        note(["encoding_replaced", "holds bytes that are not UTF-8; they were replaced in names", None])
    if collected.legacy:
        note(["legacy_categories", "written by torch <= 1.9 (categories Kernel, Memcpy, ...)", None])
    if collected.skipped:
        text = f"{collected.skipped} GPU records without a usable start or duration were left out"
        note(["events_skipped", text, collected.skipped])


def _gpu_timeline(collected: Collected, communication: re.Pattern[str], base: int, summary: FileSummary) -> Union:
    starts, ends, keys = collected.starts, collected.ends, collected.keys
    categories = [category_of(kind, name, communication) for kind, name in collected.names]

    def union(*wanted: str) -> Union:
        table = [category in wanted for category in categories]
        chosen = bytearray(map(table.__getitem__, keys))
        result = Union(itertools.compress(starts, chosen), itertools.compress(ends, chosen))
        result.sorted_starts = result.sorted_ends = []  # megabytes that nobody asks for
        return result

    everything = Union(starts, ends)
    computation, communicating, copying = union(COMPUTATION), union(COMMUNICATION), union(COPY)
    # Without one of them, the others are the whole.
    hidden = union(COMPUTATION, COMMUNICATION) if copying.starts else everything

    def lengths(total: int, measure: Any) -> dict[str, int]:
        busy, compute, work = measure(everything), measure(computation), measure(hidden)
        values = (
            total,
            busy,
            total - busy,
            compute,
            measure(communicating),
            work - compute,
            measure(copying),
            busy - work,
        )
        return dict(zip(TIMELINE_KEYS, values))

    first, last = everything.sorted_starts[0], everything.sorted_ends[-1]
    summary.start, summary.end = first + base, last + base
    summary.timeline = lengths(last - first, lambda one: one.length)
    for step in summary.steps:
        start, end = step[1] - base, step[1] - base + step[2]
        step[3] = lengths(end - start, lambda one, start=start, end=end: one.within(start, end))
    windows = Union([step[1] - base for step in summary.steps], [step[1] - base + step[2] for step in summary.steps])
    if summary.steps:
        blocks = list(zip(windows.starts, windows.ends))
        total = last - first - sum(max(0, min(end, last) - max(start, first)) for start, end in blocks)
        summary.outside = lengths(total, lambda one: one.length - sum(one.within(*block) for block in blocks))
    _kernels(collected, categories, summary)
    _collectives(collected, categories, base, computation, summary)
    _plausibility(collected, windows, everything, summary)
    return everything


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value such that at least C(share) of all values are no larger (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def histogram(ordered: Sequence[int]) -> list[int]:
    """Durations as [duration, calls, ...]: exact below 128 ns, else the middle of a bucket 1/64 of its start wide.

    So a figure taken from it is off by less than 0.8 %, and those of several ranks can be added up.
    """
    result: list[int] = []
    place = 0
    while place < len(ordered):
        shift = max(0, ordered[place].bit_length() - 7)
        bucket = ordered[place] >> shift
        stop = bisect.bisect_left(ordered, (bucket + 1) << shift, place)
        result += ((bucket << shift) + ((1 << shift) >> 1), stop - place)
        place = stop
    return result


def _kernels(collected: Collected, categories: list[str], summary: FileSummary) -> None:
    table: dict[tuple[str, str], list[int]] = {}
    # A copy and a kernel may share name and category.
    rows = [table.setdefault((name, category), []) for (_kind, name), category in zip(collected.names, categories)]
    for row, duration in zip(
        map(rows.__getitem__, collected.keys), map(operator.sub, collected.ends, collected.starts)
    ):
        row.append(duration)
    counts = dict.fromkeys((COMPUTATION, COMMUNICATION, COPY), 0)
    missed: dict[str, int] = {}
    for (name, category), durations in table.items():
        counts[category] += len(durations)
        durations.sort()
        figures = (len(durations), sum(durations), percentile(durations, 0.5), percentile(durations, 0.99))
        summary.kernels.append([name, category, *figures, histogram(durations)])
        if category == COMPUTATION and _EXTENDED.search(name):
            missed[name] = len(durations)
    summary.counts = counts
    if missed:
        names = sorted(missed, key=lambda name: -missed[name])
        shown = ", ".join(repr(name[:80]) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        number = sum(missed.values())
        text = f"{number} calls of {len(names)} kernels that look like communication count as computation: {shown}"
        summary.notes.append(["communication_counted_as_computation", text, number])


def _collectives(
    collected: Collected, categories: list[str], base: int, computation: Union, summary: FileSummary
) -> None:
    unlabelled = 0
    table = [category == COMMUNICATION for category in categories]
    for row in itertools.compress(itertools.count(), map(table.__getitem__, collected.keys)):
        record = dict(collected.collectives.get(row) or {})
        unlabelled += not record
        record["kernel"] = collected.names[collected.keys[row]][1]
        record["stream"] = collected.streams[row]
        record["start"] = collected.starts[row] + base
        record["duration"] = collected.ends[row] - collected.starts[row]
        summary.collectives.append(record)
    summary.collectives.sort(key=lambda record: record["start"])
    before = None
    for record in summary.collectives:
        record["gap"] = record["computed"] = None
        if before is not None:
            ended = before["start"] + before["duration"]
            record["gap"] = record["start"] - ended
            record["computed"] = computation.within(ended - base, record["start"] - base) if record["gap"] > 0 else 0
        before = record
    if unlabelled:
        text = f"{unlabelled} of {len(summary.collectives)} communication kernels carry no collective metadata"
        summary.notes.append(["collectives_unlabelled", text, unlabelled])


def _plausibility(collected: Collected, windows: Union, everything: Union, summary: FileSummary) -> None:
    """Findings that hint at lost or wrong records; none changes a figure."""
    _overlaps(collected, summary)
    _beyond(collected, summary)
    if summary.steps:
        _steps(collected, windows, everything, summary)


def _overlaps(collected: Collected, summary: FileSummary) -> None:
    kernels = bytes(kind == KERNEL for kind, _name in collected.names)
    known = [stream for stream, name in enumerate(collected.stream_names) if name is not None]
    chosen = bytearray(map(kernels.__getitem__, collected.keys))
    pairs: dict[int, tuple[list[int], list[int]]] = {}
    if len(known) > _FEW_STREAMS:
        pairs = {stream: ([], []) for stream in known}
        for start, end, stream, kernel in zip(collected.starts, collected.ends, collected.streams, chosen):
            if kernel and stream in pairs:
                pairs[stream][0].append(start)
                pairs[stream][1].append(end)
    overlapping = 0
    streams = []
    for stream in known:
        if stream in pairs:
            starts, ends = map(sorted, pairs.pop(stream))
        else:
            here = bytearray(map(operator.and_, chosen, map(stream.__eq__, collected.streams)))
            starts = sorted(itertools.compress(collected.starts, here))
            ends = sorted(itertools.compress(collected.ends, here))
        later = itertools.islice(starts, 1, None)
        found = sum(map(operator.lt, later, map((-OVERLAP_TOLERANCE_NS).__add__, ends)))
        overlapping += found
        if found:
            streams.append(str(collected.stream_names[stream]))
    if overlapping:
        shown = ", ".join(streams[:8]) + (", ..." if len(streams) > 8 else "")
        text = (
            f"{overlapping} kernels start before the one before them on the same stream has ended"
            f" (stream {shown}): records are doubled or their times are wrong"
        )
        summary.notes.append(["stream_overlap", text, overlapping])


def _beyond(collected: Collected, summary: FileSummary) -> None:
    """GPU events longer than all that was traced: a lost end, or a broken clock."""
    spans = [*collected.spans, *collected.steps.values()]
    if not spans:
        return
    length = max(end for _start, end in spans) - min(start for start, _end in spans)
    durations = list(map(operator.sub, collected.ends, collected.starts))
    longest = max(durations)
    if length > 0 and longest > length:
        number = sum(map(length.__lt__, durations))
        text = (
            f"{number} GPU events last longer than all that was traced on the host ({length / 1e6:.3f} ms):"
            f" the longest {longest / 1e6:.3f} ms; their ends are lost or wrong"
        )
        summary.notes.append(["duration_beyond_trace", text, number])


def _steps(collected: Collected, windows: Union, everything: Union, summary: FileSummary) -> None:
    note = summary.notes.append
    empty = [step[0] for step in summary.steps if step[3] is not None and step[3]["busy"] == 0]
    if empty:
        shown = ", ".join(f"ProfilerStep#{number}" for number in empty[:10]) + (", ..." if len(empty) > 10 else "")
        text = f"{len(empty)} of {len(summary.steps)} steps hold no GPU work ({shown})"
        note(["steps_without_gpu_events", text, len(empty)])
    step = percentile(sorted(step[2] for step in summary.steps), 0.5)
    early = windows.starts[0] - everything.sorted_starts[0]
    if early > step:
        number = bisect.bisect_left(everything.sorted_starts, windows.starts[0] - step)
        text = (
            f"{number} GPU events start more than a step ({step / 1e6:.3f} ms) before the first ProfilerStep, the first"
            f" {early / 1e6:.3f} ms before it: work of unrecorded steps, or wrong times"
        )
        note(["gpu_work_before_steps", text, number])
    # A host that runs a little ahead leaves a little work behind the last window; that is no finding.
    inside = sum(everything.within(start, end) for start, end in zip(windows.starts, windows.ends))
    most = len(collected.starts) - sum(
        bisect.bisect_left(everything.sorted_starts, end) - bisect.bisect_left(everything.sorted_starts, start)
        for start, end in zip(windows.starts, windows.ends)
    )
    if max(most / len(collected.starts), 1 - inside / (everything.length or 1)) <= OUTSIDE_SHARE:
        return
    outside = 0
    for start, end in zip(collected.starts, collected.ends):
        index = bisect.bisect_right(windows.starts, start)
        before = index > 0 and windows.ends[index - 1] > start
        after = index < len(windows.starts) and windows.starts[index] < end
        outside += not (before or after)
    share = max(outside / len(collected.starts), 1 - inside / (everything.length or 1))
    if outside and share > OUTSIDE_SHARE:
        text = (
            f"{outside} of {len(collected.starts)} GPU events lie outside every ProfilerStep window"
            f" ({(everything.length - inside) / 1e6:.3f} ms busy): part of the whole, of no step"
        )
        note(["gpu_events_outside_steps", text, outside])


def summarise_file(
    path: str | os.PathLike[str],
    communication: re.Pattern[str],
    *,
    fast: bool | None = None,
    chunk: int = CHUNK,
    max_bytes: int | None = None,
    processes: int = 1,
) -> FileSummary:
    """Read one trace file and reduce it. Raises OSError, TraceError, NotATrace (see C(read_trace))."""
    collected = read_trace(path, fast=fast, chunk=chunk, max_bytes=max_bytes, processes=processes)
    return summarise(collected, communication)
