# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank's schedule as a trace in the form in which torch.profiler (Kineto on ROCm) writes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .schedule import AUX_STREAM, COMM_STREAM, COMPUTE_STREAM, Collective, Op, RankStep

# Kineto counts from the last quarter of a mean Gregorian year, so that ts stay small.
_QUARTER_NS = 7_889_238 * 1_000_000_000

_CPU_LEAD = 500  # a CPU operator begins this long before its first inner event, ns
_CHILD_NS = 1_200
_LAUNCH_NS = 5_000
_LAUNCH_TO_START = 8_000  # the shortest way from launch to start
_FIRST_LAUNCH = 600_000  # after the host's start of the step
_CHILDREN = ("aten::view", "aten::empty_strided", "aten::as_strided", "aten::t")

_COMPLETE = (
    '  {\n    "ph": "X", "cat": "%s", "name": %s, "pid": %d, "tid": %d,\n'
    '    "ts": %s, "dur": %s,\n    "args": {%s}\n  }'
)
_FLOW_START = '  {\n    "ph": "s", "id": %d, "pid": %d, "tid": %d, "ts": %s,\n    "cat": "ac2g", "name": "ac2g"\n  }'
_FLOW_END = (
    '  {\n    "ph": "f", "id": %d, "pid": %d, "tid": %d, "ts": %s,\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
)
_META = '  {\n    "name": "%s", "ph": "M", "ts": %s, "pid": %s, "tid": %s,\n    "args": {"%s": %s}\n  }'
_SPAN = (
    '  {\n    "ph": "X", "cat": "Trace", "ts": %s, "dur": %s,\n    "pid": "Spans", "tid": "PyTorch Profiler",\n'
    '    "name": "PyTorch Profiler (0)",\n    "args": {"Op count": 0}\n  }'
)
_INSTANT = '  {\n    "name": "%s", "ph": "i", "s": "g",\n    "pid": "%s", "tid": "%s", "ts": %s\n  }'


class Process(NamedTuple):
    """The process that a trace is of. clock_ns: this host's clock at the schedule's origin, ns since the epoch."""

    rank: int
    world_size: int
    device: int
    pid: int
    clock_ns: int
    base_time_ns: int


def base_time(now_ns: int) -> int:
    """The baseTimeNanoseconds that Kineto chooses for a trace taken at now_ns."""
    return now_ns // _QUARTER_NS * _QUARTER_NS


def document(process: Process, steps: Sequence[RankStep], *, trace_name: str, gpu_events: bool = True) -> str:
    """The text of the trace of these steps. Without gpu_events, as when the GPU's profiler lost its records."""
    return "".join(
        (
            _header(process, trace_name),
            '  "traceEvents": [\n',
            ",\n".join(_Writer(process, steps, gpu_events).events()),
            '\n  ],\n  "traceName": ',
            json.dumps(trace_name),
            ',\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": ',
            str(process.base_time_ns),
            "\n}\n",
        )
    )


def _header(process: Process, trace_name: str) -> str:
    device = {
        "name": "AMD Instinct MI300X (simulated)",
        "totalGlobalMem": 206141652992,
        "computeMajor": 9,
        "computeMinor": 4,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 64,
        "sharedMemPerBlock": 65536,
        "numSms": 304,
        "maxSharedMemoryPerMultiProcessor": 65536,
    }
    header: dict[str, Any] = {
        "schemaVersion": 1,
        "generator": "aorta.automation stand-in workload: simulated, not measured",
        "deviceProperties": [{"id": number, **device} for number in range(max(8, process.device + 1))],
        "roctracer_version": 4.1,
        "hip_runtime_version": 60443483,
        "hip_driver_version": 60443483,
        "distributedInfo": {
            "backend": "nccl",
            "rank": process.rank,
            "world_size": process.world_size,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": process.world_size,
                    "ranks": list(range(process.world_size)),
                }
            ],
            "nccl_version": "2.22.3",
        },
        "record_shapes": 1,
        "trace_id": hashlib.sha256(f"{trace_name}/{process.rank}/{process.clock_ns}".encode()).hexdigest()[:32].upper(),
    }
    return "{\n" + "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())


def group_ranks(world_size: int) -> str:
    """`Process Group Ranks` as PyTorch writes it: lists of more than 30 are shortened in the middle."""
    if world_size > 30:
        return f"[{', '.join(map(str, range(29)))}, ..., {world_size - 1}]"
    return str(list(range(world_size)))


class _Writer:
    def __init__(self, process: Process, steps: Sequence[RankStep], gpu_events: bool) -> None:
        self.p = process
        self.steps = steps
        self.gpu_events = gpu_events
        self.shift = process.clock_ns - process.base_time_ns
        self.main = process.pid
        self.autograd = process.pid + 97
        self.group = json.dumps(group_ranks(process.world_size))
        self.names: dict[str, str] = {}
        self.index = 0  # Ev Idx
        self.id = 1024  # External id
        self.correlation = 4096
        self.host: list[str] = []
        self.runtime: list[str] = []
        self.device: list[str] = []

    def ts(self, ns: int) -> str:
        return _us(ns + self.shift)

    def name(self, text: str) -> str:
        if text not in self.names:
            self.names[text] = json.dumps(text)
        return self.names[text]

    def events(self) -> Iterable[str]:
        for step in self.steps:
            self._step(step)
        begin, end = self.steps[0].host_start - 20_000, self.steps[-1].host_end + 20_000
        yield from self.host
        yield from self.runtime
        if self.gpu_events:
            yield from self.device
        yield from self._metadata(begin)
        yield _SPAN % (self.ts(begin), _us(end - begin))
        yield _INSTANT % ("Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", self.ts(begin))
        yield _INSTANT % ("Record Window End", "", "", self.ts(end))

    def _metadata(self, ts_ns: int) -> Iterable[str]:
        ts, pid = self.ts(ts_ns), self.main
        processes = [(pid, "CPU", pid)] + [(n, f"GPU {n}", 5_000_000 + n) for n in range(max(8, self.p.device + 1))]
        for number, label, order in processes:
            yield _META % ("process_name", ts, number, 0, "name", '"python3"')
            yield _META % ("process_labels", ts, number, 0, "labels", json.dumps(label))
            yield _META % ("process_sort_index", ts, number, 0, "sort_index", order)
        threads = [
            (pid, self.main, f"thread {self.main} (python3)"),
            (pid, self.autograd, f"thread {self.autograd} (pt_autograd_0)"),
        ]
        threads += [
            (self.p.device, stream, f"stream {stream} ") for stream in (COMPUTE_STREAM, AUX_STREAM, COMM_STREAM)
        ]
        for number, thread, label in threads:
            yield _META % ("thread_name", ts, number, thread, "name", json.dumps(label))
            yield _META % ("thread_sort_index", ts, number, thread, "sort_index", thread)

    def _annotation(self, name: str, tid: int, start: int, end: int) -> int:
        """A user annotation on the CPU; returns its External id."""
        self.id += 1
        args = f'"External id": {self.id}, "Record function id": 0, "Ev Idx": {self._next_index()}'
        self.host.append(
            _COMPLETE % ("user_annotation", self.name(name), self.p.pid, tid, self.ts(start), _us(end - start), args)
        )
        return self.id

    def _gpu_annotation(self, name: str, stream: int, start: int, end: int, external: int) -> None:
        args = f'"External id": {external}'
        self.device.append(
            _COMPLETE
            % ("gpu_user_annotation", self.name(name), self.p.device, stream, self.ts(start), _us(end - start), args)
        )

    def _next_index(self) -> int:
        self.index += 1
        return self.index

    def _step(self, step: RankStep) -> None:
        external = self._annotation(f"ProfilerStep#{step.step}", self.main, step.host_start, step.host_end)
        compute = [op for op in step.ops if op.stream == COMPUTE_STREAM]
        self._gpu_annotation(f"ProfilerStep#{step.step}", COMPUTE_STREAM, compute[0].start, compute[-1].end, external)
        launches = list(zip(launch_times(step), step.ops))  # noqa: B905  strict= needs Python 3.10
        optimizer = [(at, op) for at, op in launches if op.operator == "aten::_fused_adamw_"]
        name = "Optimizer.step#AdamW.step"
        external = self._annotation(
            name, self.main, optimizer[0][0] - _lead(optimizer[0][1]) - 200, optimizer[-1][0] + _LAUNCH_NS + 1_000
        )
        self._gpu_annotation(name, AUX_STREAM, optimizer[0][1].start, optimizer[-1][1].end, external)
        for at, op in launches:
            self._op(op, at)

    def _op(self, op: Op, launch: int) -> None:
        p = self.p
        tid = self.autograd if op.backward else self.main
        begin, end = launch - _lead(op), launch + _LAUNCH_NS + 500
        self.id += 1
        self.correlation += 1
        external, correlation = self.id, self.correlation
        args = f'"External id": {external}, "Record function id": 0'
        comm = ""
        operator = op.operator
        if op.collective is not None:
            annotation = "nccl:" + {"allreduce": "all_reduce"}.get(op.collective.name, op.collective.name)
            self._gpu_annotation(
                annotation, op.stream, op.start, op.end, self._annotation(annotation, tid, begin - 300, end + 300)
            )
            comm = ", " + self._comm_args(op.collective)
            operator = "record_param_comms"
        self.host.append(
            _COMPLETE
            % (
                "cpu_op",
                self.name(operator),
                p.pid,
                tid,
                self.ts(begin),
                _us(end - begin),
                f'{args}{comm}, "Ev Idx": {self._next_index()}',
            )
        )
        for number in range(op.children):
            self.id += 1
            self.host.append(
                _COMPLETE
                % (
                    "cpu_op",
                    self.name(_CHILDREN[number % len(_CHILDREN)]),
                    p.pid,
                    tid,
                    self.ts(begin + 300 + number * (_CHILD_NS + 100)),
                    _us(_CHILD_NS),
                    f'"External id": {self.id}, "Record function id": 0, "Ev Idx": {self._next_index()}',
                )
            )
        kind, call = _launch(op)
        start = self.ts(launch)
        link = f'"External id": {external}, "cid": 107, "correlation": {correlation}'
        self.runtime.append(_COMPLETE % ("cuda_runtime", call, p.pid, tid, start, _us(_LAUNCH_NS), link))
        self.runtime.append(_FLOW_START % (correlation, p.pid, tid, start))
        on_gpu = self.ts(op.start)
        args = f'"External id": {external}, "device": {p.device}, "stream": {op.stream}'
        args += f', "correlation": {correlation}, "kind": "{kind}"'
        if op.category == "kernel":
            args += ', "grid": [1216, 1, 1], "block": [256, 1, 1]' + comm
        else:
            args += f', "bytes": {op.bytes}, "memory bandwidth (GB/s)": {op.bytes / op.dur:.6f}'
        self.device.append(_FLOW_END % (correlation, p.device, op.stream, on_gpu))
        self.device.append(
            _COMPLETE % (op.category, self.name(op.name), p.device, op.stream, on_gpu, _us(op.dur), args)
        )

    def _comm_args(self, what: Collective) -> str:
        return (
            f'"Collective name": "{what.name}", "In msg nelems": {what.in_elements}, '
            f'"Out msg nelems": {what.out_elements}, "Group size": {self.p.world_size}, "dtype": "{what.dtype}", '
            f'"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": {self.group}, '
            f'"Seq": {what.seq}, "Rank": {self.p.rank}'
        )


def _us(ns: int) -> str:
    """Nanoseconds as the decimal microseconds of a trace."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _lead(op: Op) -> int:
    """How long before the launch the CPU operator begins."""
    return _CPU_LEAD + 300 + op.children * (_CHILD_NS + 100)


def _launch(op: Op) -> tuple[str, str]:
    """The kind of a GPU record and the runtime call behind it (as JSON text)."""
    if op.category == "gpu_memcpy":
        return ("DtoH" if "DtoH" in op.name else "HtoD"), '"hipMemcpyWithStream"'
    if op.category == "gpu_memset":
        return "Device", '"hipMemsetAsync"'
    if op.collective is not None or op.name.startswith("Cijk"):
        return "Dispatch Kernel", '"hipExtModuleLaunchKernel"' if op.collective is None else '"hipExtLaunchKernel"'
    return "Dispatch Kernel", '"hipLaunchKernel"'


def launch_times(step: RankStep) -> list[int]:
    """When the host launches each operation of a step: one after the other, well ahead of the GPU where it can be."""
    times: list[int] = []
    now = step.host_start + _FIRST_LAUNCH
    for op in step.ops:
        now += _lead(op) + 800
        times.append(min(now, op.start - _LAUNCH_TO_START))
        now += _LAUNCH_NS + 6_000
    for number in range(len(times) - 2, -1, -1):  # what comes later on the thread leaves room for what comes before
        room = _lead(step.ops[number + 1]) + _LAUNCH_NS + 2_500
        times[number] = min(times[number], times[number + 1] - room)
    return times
