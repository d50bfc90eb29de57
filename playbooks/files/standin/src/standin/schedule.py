# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the GPUs of the stand-in would have done: training steps, on every rank, in integer nanoseconds.

The pattern is FSDP's. Forward: a layer's parameters are all-gathered, then its kernels run. Backward: the next layer's
all-gather is prefetched, the layer's kernels run, its gradients are reduce-scattered. Then gradient norm, all-reduce,
clipping and optimizer. A collective starts on each rank when that rank arrives, and ends on all of them at nearly the
same time: at the last arrival plus the transfer time. Ranks that wait for others thus show longer kernels.

Everything follows from (seed, rank, step). A step's origin is the end of the previous step's gradient-norm all-reduce,
so that each step can be computed alone. Times of a step are relative to its origin.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from .config import Config

COMPUTE_STREAM = 3
AUX_STREAM = 4
COMM_STREAM = 13

_HOST_GAP = 5_000_000  # the host's share at the start of a step: data loader, Python
_HOST_TAIL = 400_000  # after the last GPU operation: synchronise, write metrics
_STEP_GAP = 15_000  # between two ProfilerSteps
_LAUNCH_GAP = 1_500
_NORM_GATHER_NS = 30_000  # a collective of one element: latency only
_COLLECTIVE_LATENCY_NS = 20_000


class Kernel(NamedTuple):
    """One kind of kernel: its name, the operator that launches it, its share of the layer's (or phase's) time."""

    name: str
    operator: str
    share: float


_GEMM = (
    "Cijk_%s_BBS_BH_Bias_HAS_SAV_UserArgs_MT%s_MI16x16x1_SN_LDSB1_AFC1_GRVWA8_GRVWB8_GSUAMB_GLS0_ISA942_IU1_K1_SK3"
    "_WG32_8_1"
)
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::%s, std::array<char*, %dul> >"
    "(int, at::native::%s, std::array<char*, %dul>)"
)


def _elementwise(functor: str, arrays: int) -> str:
    return _ELEMENTWISE % (functor, arrays, functor, arrays)


_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
    "(int, float, c10::BFloat16 const*)"
)
_NORM_BACKWARD = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<c10::BFloat16, float>(c10::BFloat16 const*)"
)
_APPLY = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<%d>, at::native::(anonymous namespace)::%s >"
)
_ADD = _elementwise("CUDAFunctor_add<c10::BFloat16>", 3)

FORWARD = (
    Kernel(_NORM, "aten::native_layer_norm", 0.03),
    Kernel(_GEMM % ("Alik_Bljk", "256x256x64"), "aten::addmm", 0.24),
    Kernel("attn_fwd.kd", "aten::_scaled_dot_product_flash_attention", 0.18),
    Kernel(_GEMM % ("Alik_Bljk", "256x128x64"), "aten::addmm", 0.09),
    Kernel(_ADD, "aten::add", 0.03),
    Kernel(_NORM, "aten::native_layer_norm", 0.03),
    Kernel(_GEMM % ("Alik_Bljk", "256x224x64"), "aten::addmm", 0.19),
    Kernel(_elementwise("GeluCUDAKernelImpl<c10::BFloat16>", 2), "aten::gelu", 0.05),
    Kernel(_GEMM % ("Alik_Bljk", "128x256x64"), "aten::addmm", 0.13),
    Kernel(_ADD, "aten::add", 0.03),
)
BACKWARD = (
    Kernel(_GEMM % ("Ailk_Bljk", "256x224x64"), "aten::mm", 0.12),
    Kernel(_GEMM % ("Ailk_Bjlk", "256x256x32"), "aten::mm", 0.12),
    Kernel(_elementwise("GeluBackwardCUDAKernelImpl<c10::BFloat16>", 3), "aten::gelu_backward", 0.03),
    Kernel(_GEMM % ("Ailk_Bljk", "256x128x64"), "aten::mm", 0.10),
    Kernel(_GEMM % ("Ailk_Bjlk", "256x128x32"), "aten::mm", 0.10),
    Kernel(_NORM_BACKWARD, "aten::native_layer_norm_backward", 0.03),
    Kernel(_ADD, "aten::add_", 0.02),
    Kernel(_GEMM % ("Ailk_Bljk", "128x256x64"), "aten::mm", 0.05),
    Kernel(_GEMM % ("Ailk_Bjlk", "128x256x32"), "aten::mm", 0.05),
    Kernel("attn_bwd.kd", "aten::_scaled_dot_product_flash_attention_backward", 0.22),
    Kernel(_GEMM % ("Ailk_Bljk", "256x256x64"), "aten::mm", 0.07),
    Kernel(_GEMM % ("Ailk_Bjlk", "256x256x32"), "aten::mm", 0.06),
    Kernel(_NORM_BACKWARD, "aten::native_layer_norm_backward", 0.03),
)
EMBEDDING = (
    Kernel(
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>", "aten::embedding", 0.6
    ),
    Kernel(_ADD, "aten::add", 0.4),
)
LOSS = (
    Kernel(_GEMM % ("Alik_Bljk", "64x32x64"), "aten::addmm", 0.5),
    Kernel(_elementwise("binary_cross_entropy_kernel<float>", 4), "aten::binary_cross_entropy_with_logits", 0.3),
    Kernel(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps> >", "aten::mean", 0.2
    ),
)
NORM = (Kernel(_APPLY % (1, "LpNormFunctor<float, NormType::L2>"), "aten::_foreach_norm", 1.0),)
CLIP = (Kernel(_APPLY % (1, "BinaryOpListAlphaFunctor<float, 1, 1, 0>"), "aten::_foreach_mul_", 1.0),)
OPTIMIZER = tuple(
    Kernel(_APPLY % (4, "FusedAdamMathFunctor<float, 4>"), "aten::_fused_adamw_", 0.125) for _part in range(8)
)

RCCL_KERNEL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


class Collective(NamedTuple):
    """A collective as RCCL's kernel describes it. seq counts the collectives of the process group from 1."""

    seq: int
    name: str
    in_elements: int
    out_elements: int
    dtype: str
    bytes: int  # the full message


class Op(NamedTuple):
    """One GPU operation of a rank: start and dur in ns. category is Kineto's: kernel, gpu_memcpy or gpu_memset."""

    start: int
    dur: int
    category: str
    stream: int
    name: str
    operator: str  # the CPU operator that launches it
    backward: bool  # launched by the autograd thread
    children: int  # further CPU operators inside that operator
    bytes: int  # copied or set; 0 for kernels
    collective: Collective | None

    @property
    def end(self) -> int:
        return self.start + self.dur

    @property
    def kind(self) -> str:
        """computation, communication or memcpy."""
        if self.collective is not None:
            return "communication"
        return "memcpy" if self.category == "gpu_memcpy" else "computation"


class RankStep(NamedTuple):
    """A step of one rank: the host's window (ProfilerStep) and the GPU operations, in order of their start."""

    step: int
    host_start: int
    host_end: int
    ops: tuple[Op, ...]


class Schedule:
    """The steps of all ranks of a run. config must be resolved (config.resolve)."""

    def __init__(self, config: Config, world_size: int) -> None:
        standin = config["standin"]
        self.world_size = world_size
        self.seed = standin["seed"]
        self.layers: int = standin["layers"]
        self.layer_ns = round(standin["layer_ms"] * 1e6)
        self.shard = -(-standin["layer_params"] // world_size)
        self.bandwidth = float(standin["bandwidth_gbps"])  # GB/s = bytes/ns
        self.children: int = standin["cpu_ops_per_layer"]
        self.slow_rank: int = standin["slow_rank"]
        self.slow_factor = float(standin["slow_factor"])
        self.forward_prefetch = bool(config["fsdp"]["forward_prefetch"])
        self.backward_prefetch = str(config["fsdp"]["backward_prefetch"]).upper() == "BACKWARD_PRE"
        self.collectives_per_step = 0 if world_size == 1 else 3 * self.layers + 1
        self._tails: dict[tuple[int, int], tuple[list[Op], int]] = {}

    def scale(self, rank: int) -> float:
        """How much longer this rank's compute kernels take than nominal."""
        own = 1 + 0.006 * (self._rng(rank, -1, "rank").random() - 0.5)
        return own * self.slow_factor if rank == self.slow_rank and self.world_size > 1 else own

    def _rng(self, rank: int, step: int, part: str) -> random.Random:
        return random.Random(f"{self.seed}/{rank}/{step}/{part}")

    def window(self, first: int, count: int) -> list[list[RankStep]]:
        """Steps first … first+count-1, for each rank; times in ns after the origin of step `first`."""
        result: list[list[RankStep]] = [[] for _rank in range(self.world_size)]
        origin = 0
        for index in range(first, first + count):
            steps, length = self.step(index)
            for rank, step in enumerate(steps):
                result[rank].append(
                    RankStep(
                        index,
                        step.host_start + origin,
                        step.host_end + origin,
                        tuple(op._replace(start=op.start + origin) for op in step.ops),
                    )
                )
            origin += length
        return result

    def step(self, index: int) -> tuple[list[RankStep], int]:
        """One step on each rank, and the distance in ns from its origin to the next step's."""
        run = _StepRun(self, index)
        run.forward()
        run.backward()
        length = run.gradient_norm()
        steps = []
        for rank in range(self.world_size):
            tail, tail_end = self.tail(rank, index)
            ops = run.ops[rank] + [op._replace(start=op.start + length) for op in tail]
            ops.sort(key=lambda op: (op.start, op.stream))
            steps.append(RankStep(index, run.host_start[rank], length + tail_end, tuple(ops)))
        for rank in range(self.world_size):
            self._tails.pop((rank, index - 1), None)
        return steps, length

    def tail(self, rank: int, index: int) -> tuple[list[Op], int]:
        """The end of a step, after the gradient-norm all-reduce: clipping, optimizer, reading the loss.

        Returns the operations and the end of the host's window, in ns after the all-reduce.
        """
        key = (rank, index)
        if key not in self._tails:
            rng = self._rng(rank, index, "tail")
            ops: list[Op] = []
            now = self.all_reduce_jitter(rank, index)
            for table, base in ((CLIP, 300_000), (OPTIMIZER, 6_000_000)):
                now = self.run_kernels(ops, rng, rank, table, base, now, stream=AUX_STREAM)
            copy = 4_200 + int(rng.random() * 800)
            now += 2_000
            ops.append(
                Op(
                    now,
                    copy,
                    "gpu_memcpy",
                    AUX_STREAM,
                    "Memcpy DtoH (Device -> Host)",
                    "aten::_local_scalar_dense",
                    False,
                    0,
                    4,
                    None,
                )
            )
            self._tails[key] = ops, now + copy + _HOST_TAIL + int(rng.random() * 100_000)
        return self._tails[key]

    def all_reduce_jitter(self, rank: int, index: int) -> int:
        """How much later than nominal (ns) the gradient-norm all-reduce of a step ends on this rank."""
        return int(self._rng(rank, index, "norm").random() * 1_500) if self.world_size > 1 else 0

    def run_kernels(
        self,
        ops: list[Op],
        rng: random.Random,
        rank: int,
        table: Sequence[Kernel],
        base_ns: int,
        now: int,
        *,
        stream: int = COMPUTE_STREAM,
        backward: bool = False,
        children: int = 0,
    ) -> int:
        """Append a table's kernels, one after the other from `now`; returns the end of the last."""
        scaled = base_ns * self.scale(rank)
        for number, kernel in enumerate(table):
            now += 1_200 + int(rng.random() * 1_600)
            dur = int(scaled * kernel.share * (0.985 + 0.03 * rng.random()))
            inside = children // len(table) + (number < children % len(table))
            ops.append(Op(now, dur, "kernel", stream, kernel.name, kernel.operator, backward, inside, 0, None))
            now += dur
        return now


class _StepRun:
    """The simulation of one step up to its gradient-norm all-reduce."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        self.s = schedule
        self.index = index
        world = range(schedule.world_size)
        self.ranks = world
        self.rng = [schedule._rng(rank, index, "step") for rank in world]
        self.host_start = [schedule.tail(rank, index - 1)[1] + _STEP_GAP for rank in world]
        self.ops: list[list[Op]] = [[] for _rank in world]
        self.compute = list(self.host_start)  # when the compute stream is free
        self.comm = list(self.host_start)  # when the communication stream is free
        self.seq = index * schedule.collectives_per_step
        for rank in world:
            self._prologue(rank)

    def _prologue(self, rank: int) -> None:
        """Zeroed gradients, and the batch on its way to the device on the auxiliary stream."""
        rng, ops = self.rng[rank], self.ops[rank]
        now = self.host_start[rank] + _HOST_GAP + int(rng.random() * 400_000)
        for number, size in enumerate((25_165_824, 25_165_824, 1_048_576)):
            start = now if number == 0 else ops[-1].end + 3_000
            dur = 4_000 + int(size / 55 * (0.97 + 0.06 * rng.random()))
            ops.append(
                Op(
                    start,
                    dur,
                    "gpu_memcpy",
                    AUX_STREAM,
                    "Memcpy HtoD (Host -> Device)",
                    "aten::copy_",
                    False,
                    0,
                    size,
                    None,
                )
            )
        ready = ops[-1].end
        ops.append(
            Op(
                now + 60_000,
                18_000,
                "gpu_memset",
                COMPUTE_STREAM,
                "Memset (Device)",
                "aten::zero_",
                False,
                0,
                67_108_864,
                None,
            )
        )
        self.comm[rank] = now + 700_000  # the root unit is unsharded while the batch is still under way
        self.compute[rank] = max(ready, ops[-1].end)

    def collective(self, name: str, shard: int, dtype: str, ready: Sequence[int]) -> list[int]:
        """Run a collective that each rank may begin at ready[rank]; returns its end on each rank."""
        s = self.s
        if s.world_size == 1:
            return list(ready)
        self.seq += 1
        full = shard * s.world_size
        if name == "allreduce":
            size, counts, transfer = shard * 4, (shard, shard), _NORM_GATHER_NS
        else:
            size = full * 2
            counts = (shard, full) if name == "_allgather_base" else (full, shard)
            transfer = _COLLECTIVE_LATENCY_NS + round(size / s.bandwidth)
        what = Collective(self.seq, name, counts[0], counts[1], dtype, size)
        starts = [
            max(ready[rank], self.comm[rank]) + _LAUNCH_GAP + int(self.rng[rank].random() * 2_500)
            for rank in self.ranks
        ]
        done = max(starts) + transfer
        for rank in self.ranks:
            late = (
                s.all_reduce_jitter(rank, self.index) if name == "allreduce" else int(self.rng[rank].random() * 1_500)
            )
            end = done + late
            backward = name == "_reduce_scatter_base"
            self.ops[rank].append(
                Op(
                    starts[rank],
                    end - starts[rank],
                    "kernel",
                    COMM_STREAM,
                    RCCL_KERNEL,
                    "c10d::" + name,
                    backward,
                    0,
                    0,
                    what,
                )
            )
            self.comm[rank] = end
        self.done = done
        return [self.comm[rank] for rank in self.ranks]

    def kernels(
        self,
        table: Sequence[Kernel],
        base_ns: int,
        *,
        after: Sequence[int] | None = None,
        layer: bool = False,
        backward: bool = False,
    ) -> list[int]:
        """Run kernels on each rank's compute stream, not before `after`; returns when each rank began."""
        began = []
        for rank in self.ranks:
            now = self.compute[rank] if after is None else max(self.compute[rank], after[rank])
            began.append(now)
            self.compute[rank] = self.s.run_kernels(
                self.ops[rank],
                self.rng[rank],
                rank,
                table,
                base_ns,
                now,
                backward=backward,
                children=self.s.children if layer else 0,
            )
        return began

    def forward(self) -> None:
        s = self.s
        self.kernels(EMBEDDING, 700_000)
        gathered = self.collective("_allgather_base", s.shard, "BFloat16", self.host_start)
        for layer in range(s.layers):
            began = self.kernels(FORWARD, s.layer_ns, after=gathered, layer=True)
            if layer + 1 < s.layers:
                ready = began if s.forward_prefetch else self.compute
                gathered = self.collective("_allgather_base", s.shard, "BFloat16", ready)
        self.kernels(LOSS, 500_000)

    def backward(self) -> None:
        s = self.s
        gathered = self.collective("_allgather_base", s.shard, "BFloat16", self.compute)
        for layer in reversed(range(s.layers)):
            began = self.kernels(BACKWARD, 2 * s.layer_ns, after=gathered, layer=True, backward=True)
            if layer and s.backward_prefetch:
                gathered = self.collective("_allgather_base", s.shard, "BFloat16", began)
            reduced = self.collective("_reduce_scatter_base", s.shard, "BFloat16", self.compute)
            if layer and not s.backward_prefetch:
                gathered = self.collective("_allgather_base", s.shard, "BFloat16", self.compute)
        self.compute = list(map(max, self.compute, reduced))

    def gradient_norm(self) -> int:
        """Norm of the gradients over all ranks; returns its nominal end, the next step's origin."""
        for rank in self.ranks:
            self.compute[rank] = self.s.run_kernels(
                self.ops[rank], self.rng[rank], rank, NORM, 900_000, self.compute[rank], stream=AUX_STREAM
            )
        self.collective("allreduce", 1, "Float", self.compute)
        return self.done if self.s.world_size > 1 else self.compute[0]


# --- what an analysis of the traces has to find -------------------------------------------------------------------


def profiled_steps(config: Config) -> tuple[int, int]:
    """(first step, number of steps) in the trace: the last cycle of torch's profiler schedule that recorded any."""
    profiling = config["profiling"]
    steps = config["training"]["max_steps"]
    skip = profiling["wait"] + profiling["warmup"]
    cycle = skip + profiling["active"]
    cycles = max(0, -(-(steps - skip) // cycle))
    if profiling["repeat"]:
        cycles = min(cycles, profiling["repeat"])
    if not profiling["enabled"] or cycles == 0:
        return 0, 0
    first = (cycles - 1) * cycle + skip
    return first, min(profiling["active"], steps - first)


def measure(intervals: Sequence[tuple[int, int, str]]) -> dict[str, int]:
    """The GPU timeline of (start, end, kind) intervals, ns: counts what runs on each stretch between two boundaries."""
    if not intervals:
        raise ValueError("no intervals")
    changes: dict[int, dict[str, int]] = {}
    for start, end, kind in intervals:
        changes.setdefault(start, {}).setdefault(kind, 0)
        changes.setdefault(end, {}).setdefault(kind, 0)
        changes[start][kind] += 1
        changes[end][kind] -= 1
    points = sorted(changes)
    running = {"computation": 0, "communication": 0, "memcpy": 0}
    result = dict.fromkeys(
        ("total", "busy", "idle", "computation", "communication", "exposed_communication", "memcpy", "exposed_memcpy"),
        0,
    )
    result["total"] = points[-1] - points[0]
    for number, point in enumerate(points[:-1]):
        for kind, change in changes[point].items():
            running[kind] += change
        length = points[number + 1] - point
        computes, communicates, copies = (running[kind] > 0 for kind in ("computation", "communication", "memcpy"))
        result["busy" if computes or communicates or copies else "idle"] += length
        result["computation"] += length * computes
        result["communication"] += length * communicates
        result["exposed_communication"] += length * (communicates and not computes)
        result["memcpy"] += length * copies
        result["exposed_memcpy"] += length * (copies and not computes and not communicates)
    return result


def analytic(config: Config, rank: int, world_size: int) -> dict[str, Any]:
    """What an analysis of this rank's trace has to find, in integer ns, without writing or reading a trace.

    config must be resolved. Keys: `timeline` (total, busy, idle, computation, communication, exposed_communication,
    memcpy, exposed_memcpy), `kernel_counts`, `steps` (step, duration, timeline clipped to the host's window, or None),
    `collectives` (seq, name, bytes, start and end of each rank), `stragglers` (for each rank times_last, wait,
    made_others_wait; only collectives of more than one rank). Clock skew changes none of them.
    """
    first, count = profiled_steps(config)
    window = Schedule(config, world_size).window(first, count)
    mine = window[rank]
    intervals = [(op.start, op.end, op.kind) for step in mine for op in step.ops]
    counts = {"computation": 0, "communication": 0, "memcpy": 0}
    for _start, _end, kind in intervals:
        counts[kind] += 1
    steps = []
    for step in mine:
        clipped = [
            (max(start, step.host_start), min(end, step.host_end), kind)
            for start, end, kind in intervals
            if start < step.host_end and end > step.host_start
        ]
        steps.append(
            {
                "step": step.step,
                "duration": step.host_end - step.host_start,
                "timeline": measure(clipped) if clipped else None,
            }
        )
    collectives: dict[int, dict[str, Any]] = {}
    for number, rank_steps in enumerate(window):
        for op in (op for step in rank_steps for op in step.ops):
            if op.collective is not None:
                entry = collectives.setdefault(
                    op.collective.seq,
                    {
                        "seq": op.collective.seq,
                        "name": op.collective.name,
                        "bytes": op.collective.bytes,
                        "start": {},
                        "end": {},
                    },
                )
                entry["start"][number] = op.start
                entry["end"][number] = op.end
    stragglers = {number: {"times_last": 0, "wait": 0, "made_others_wait": 0} for number in range(world_size)}
    for entry in collectives.values():
        order = sorted(entry["start"], key=lambda number: entry["start"][number])
        last = entry["start"][order[-1]]
        for number, start in entry["start"].items():
            stragglers[number]["wait"] += last - start
        stragglers[order[-1]]["times_last"] += 1
        stragglers[order[-1]]["made_others_wait"] += last - entry["start"][order[-2]]
    return {
        "timeline": measure(intervals) if intervals else None,
        "kernel_counts": counts,
        "steps": steps,
        "collectives": [collectives[seq] for seq in sorted(collectives)],
        "stragglers": stragglers,
    }
