# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes what a run leaves behind: results, specification and manifest with plausible, repeatable figures."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._files import write_json
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results

GPU = "AMD Instinct MI300X"
GEMM = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1"
    "_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTLA0_DTLB0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8"
)
KERNELS = (
    (GEMM, "computation", 0.31),
    ("ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)", "communication", 0.22),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)", "computation", 0.11),
    ("attn_fwd.kd", "computation", 0.09),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4> >", "computation", 0.06),
    ("Memcpy HtoD (Host -> Device)", "memcpy", 0.02),
    ("__amd_rocclr_copyBuffer", "memcpy", 0.01),
)


def ratios(timeline: dict[str, float]) -> dict[str, float | None]:
    total, communication = timeline["total"], timeline["communication"]
    exposed = timeline["exposed_communication"]
    return {
        "compute": timeline["computation"] / total,
        "communication": communication / total,
        "exposed_communication": exposed / total,
        "overlap": (communication - exposed) / communication if communication else None,
        "idle": timeline["idle"] / total,
    }


def timeline(total: float, compute: float, exposed: float, memcpy: float, hidden: float) -> dict[str, float]:
    """From shares of C(total) microseconds."""
    values = {
        "computation": compute * total,
        "communication": (exposed + hidden) * total,
        "exposed_communication": exposed * total,
        "memcpy": 1.5 * memcpy * total,
        "exposed_memcpy": memcpy * total,
    }
    values["busy"] = values["computation"] + values["exposed_communication"] + values["exposed_memcpy"]
    values["total"], values["idle"] = total, total - values["busy"]
    return values


def _rank(rank: int, per_node: int, steps: int, slow: float, rng: random.Random) -> dict[str, Any]:
    durations = [slow * (100 + rng.gauss(0, 1.2) + 3 * math.exp(-step)) for step in range(steps)]
    spread = rng.uniform(-0.008, 0.008)
    compute, exposed, memcpy = (0.63, 0.09, 0.01) if slow > 1.05 else (0.56 + spread, 0.235 - spread, 0.012)
    ordered = sorted(durations)
    line = timeline(sum(durations) * 1000, compute, exposed, memcpy, 0.14)
    return {
        "rank": rank,
        "node": f"node{rank // per_node}",
        "local_rank": rank % per_node,
        "gpu": GPU,
        "trace": f"rank{rank}/trace_step{steps}.json.gz",
        "timeline_us": line,
        "ratios": ratios(line),
        "iterations": {
            "count": steps,
            "mean_ms": statistics.fmean(durations),
            "median_ms": statistics.median(durations),
            "std_ms": statistics.stdev(durations) if steps > 1 else None,
            "min_ms": ordered[0],
            "max_ms": ordered[-1],
            "p95_ms": ordered[round(0.95 * (steps - 1))],
            "durations_ms": durations,
        },
        "kernel_counts": {"computation": 212 * steps, "communication": 48 * steps, "memcpy": 6 * steps},
        "outside_steps_us": timeline(2000.0, 0.3 + rank / 1000, 0.1, 0.01, 0.05),
    }


def summarise(per_rank: list[dict[str, Any]]) -> dict[str, float | None]:
    def mean(values: Any) -> float | None:
        present = [value for value in values if value is not None]
        return statistics.fmean(present) if present else None

    means = [rank["iterations"]["mean_ms"] for rank in per_rank if rank["iterations"]]
    names = ("compute", "communication", "exposed_communication", "overlap", "idle")
    summary = {f"avg_{name}_ratio": mean(rank["ratios"][name] for rank in per_rank) for name in names}
    summary["avg_iteration_ms"] = mean(means)
    summary["time_variance_ratio"] = statistics.stdev(means) / statistics.fmean(means) if len(means) > 1 else None
    return summary


def results(ranks: int = 8, nodes: int = 2, steps: int = 6, slow: dict[int, float] | None = None) -> dict[str, Any]:
    """A whole and healthy C(results.json); C(slow): rank -> how many times as long its steps take."""
    rng = random.Random(7)
    slow = {5: 1.12} if slow is None else slow
    per_node = max(1, ranks // nodes)
    per_rank = [_rank(rank, per_node, steps, slow.get(rank, 1.0), rng) for rank in range(ranks)]
    data: dict[str, Any] = {
        "schema_version": 1,
        "status": "ok",
        "run_id": "20261201T101500Z-4f2a",
        "created": "2026-12-01T10:18:22+00:00",
        "engine": {"name": "native", "version": "1"},
        "world": {"num_nodes": nodes, "num_ranks": ranks, "ranks": list(range(ranks)), "missing_ranks": []},
        "per_rank": per_rank,
        "summary": summarise(per_rank),
        "steps": [
            {
                "rank": rank["rank"],
                "step": 5 + number,
                "timeline_us": timeline(length * 1000, 0.56, 0.23, 0.01, 0.14),
            }
            for rank in per_rank
            for number, length in enumerate(rank["iterations"]["durations_ms"])
        ],
        "collectives": [],
        "stragglers": [],
        "clock_offsets_us": {f"node{node}": 37.25 * node for node in range(nodes)} if nodes > 1 else {},
        "clock_spreads_us": {f"node{node}": 0.25 for node in range(1, nodes)},
        "top_kernels": [
            {
                "rank": rank,
                "name": name,
                "category": category,
                "calls": 24 * steps,
                "total_us": share * 1e6,
                "mean_us": share * 1e6 / 24 / steps,
                "share": share,
                "p50_us": share * 1e6 / 24 / steps,
                "p99_us": share * 2e6 / 24 / steps,
                **(
                    {
                        "ranks": ranks,
                        "slowest_rank": ranks - 1,
                        "slowest_mean_us": share * 1.5e6 / 24 / steps,
                        "median_mean_us": share * 1e6 / 24 / steps,
                    }
                    if rank is None
                    else {}
                ),
            }
            for rank in [None, *range(ranks)]
            for name, category, share in KERNELS
        ],
        "kernel_kinds": _kinds(ranks, slow),
        "warnings": [],
        "errors": [],
        "trace_dir": "/runs/20261201T101500Z-4f2a/traces",
        "sources": [],
    }
    if ranks > 1:
        data["collectives"] = _collectives(ranks, steps, slow, rng)
        data["stragglers"] = [_straggler(rank, 8 * steps, slow) for rank in per_rank]
        data["stragglers"].sort(key=lambda row: (-row["made_others_wait_us"], row["rank"]))
        data["straggler_steps"] = [
            {
                "step": 5 + step,
                "rank": row["rank"],
                "node": row["node"],
                "times_last": row["times_last"] // steps,
                "made_others_wait_us": row["made_others_wait_us"] / steps,
            }
            for row in data["stragglers"]
            for step in range(steps)
        ]
        data["collective_sizes"] = [
            {
                "name": name,
                "group": "0",
                "group_size": ranks,
                "dtype": "BFloat16",
                "bytes": size,
                "count": 2 * steps,
                "min_duration_us": 20.0,
                "median_duration_us": 21.0,
                "max_duration_us": 25.0,
                "median_arrival_skew_us": 30.0,
                "max_arrival_skew_us": 12000.0,
                "median_algbw_gbps": 170.0,
                "min_busbw_gbps": 250.0,
                "median_busbw_gbps": 300.0,
                "max_busbw_gbps": 310.0,
            }
            for name in ("allreduce", "_allgather_base")
            for size in (2**23, 2**26)
        ]
    return data


def _kinds(ranks: int, slow: dict[int, float]) -> list[dict[str, Any]]:
    rows = []
    for kind, total in (("gemm", 310e3), ("communication", 220e3), ("attention", 90e3)):
        totals = {rank: total * slow.get(rank, 1.0) for rank in range(ranks)}
        slowest = max(totals, key=lambda rank: totals[rank])
        spread = {
            "slowest_rank": slowest,
            "max_total_us": totals[slowest],
            "median_total_us": statistics.median(totals.values()),
            "min_total_us": min(totals.values()),
        }
        for rank, time in [(None, sum(totals.values())), *totals.items()]:
            calls = 100 * (ranks if rank is None else 1)
            row = {"rank": rank, "kind": kind, "names": 3, "calls": calls, "total_us": time, "mean_us": time / calls}
            rows.append({**row, "share": total / 620e3, **(spread if rank is None else {})})
    return rows


def _collectives(ranks: int, steps: int, slow: dict[int, float], rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    last = max(slow, key=lambda rank: slow[rank]) if slow else ranks - 1
    kinds = (("allreduce", 2 * (ranks - 1) / ranks, 2**25), ("_allgather_base", (ranks - 1) / ranks, 2**22))
    for number in range(4 * steps):
        name, factor, elements = kinds[number % 2]
        skew = 9000.0 + rng.uniform(0, 3000) if number % 4 == 0 else rng.uniform(5, 60)
        duration = elements * 2 / 310e3 * rng.uniform(1, 1.15)
        algorithm = elements * 2 / duration / 1000
        rows.append(
            {
                "group": "0",
                "group_ranks": list(range(ranks)) if ranks <= 16 else None,
                "seq": number,
                "name": name,
                "dtype": "BFloat16",
                "in_elements": elements,
                "out_elements": elements,
                "bytes": elements * 2,
                "ranks": list(range(ranks)),
                "missing_ranks": [],
                "min_duration_us": duration,
                "arrival_skew_us": skew,
                "end_skew_us": 1.5,
                "first_rank": 0,
                "last_rank": last,
                "algbw_gbps": algorithm,
                "busbw_gbps": algorithm * factor,
            }
        )
    return rows


def _straggler(rank: dict[str, Any], collectives: int, slow: dict[int, float]) -> dict[str, Any]:
    late = slow.get(rank["rank"], 1.0) > 1.05
    return {
        "rank": rank["rank"],
        "node": rank["node"],
        "collectives": collectives,
        "times_last": collectives * 3 // 4 if late else 1,
        "times_first": 0 if late else 3,
        "wait_us": 420.5 if late else 61234.25 + rank["rank"],
        "made_others_wait_us": 64300.75 if late else 31.5,
        "late_compute_us": 64000.5 if late else 31.5,
        "late_host_us": 310.25 if late else 0.0,
        "late_network_us": -10.0 if late else 0.0,
        "late_unexplained_us": 0.0,
        "cause": "compute" if late else None,
        "cause_message": "late_compute_us 64000.5 of 64300.8 us: its GPU computed longer" if late else None,
    }


def spec(**expected: Any) -> dict[str, Any]:
    """A C(spec.json); C(expected): the section C(expected_results)."""
    return {
        "schema_version": 1,
        "benchmark": "aorta",
        "run_id": "20261201T101500Z-4f2a",
        "created": "2026-12-01T10:15:00Z",
        "runtime": "docker",
        "run_dir": "/runs/20261201T101500Z-4f2a",
        "trace_dir": None,
        "phases": ["config", "preflight", "deploy", "run", "gather", "analyze", "validate", "report", "teardown"],
        "values": {
            "aorta_path": "/home/bench/aorta",
            "base_config": "config/distributed.yaml",
            "docker": {"image": "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12", "privileged": False, "shm_size": "17G"},
            "environment": {"NCCL_MAX_NCHANNELS": "112", "HF_TOKEN": "***"},
            "training_overrides": {"training.max_steps": 50},
            "gpus_per_node": 8,
            "gpu_model": "auto",
            "expected_results": expected,
        },
        "layers": {
            "aorta_path": "group",
            "base_config": "model default",
            "docker.image": "extra vars",
            "docker.privileged": "model default",
            "docker.shm_size": "config file",
            "environment.NCCL_MAX_NCHANNELS": "config file",
            "environment.HF_TOKEN": "extra vars",
            "training_overrides.training.max_steps": "aorta_set",
            "gpus_per_node": "model default",
            "gpu_model": "model default",
            **{f"expected_results.{name}": "group" for name in expected},
        },
        "hosts": [{"name": f"node{node}", "node_rank": node, "address": f"192.0.2.{10 + node}"} for node in range(2)],
        "rendezvous": {"address": "192.0.2.10", "port": 29500},
        "container_env": {"NCCL_MAX_NCHANNELS": "112", "HF_TOKEN": "***"},
        "override_argv": ["--override", "training.max_steps=50"],
        "secrets": ["aorta_environment.HF_TOKEN"],
        "controls": {"allow_missing_ranks": False},
        "warnings": [],
    }


def manifest(**changes: Any) -> dict[str, Any]:
    """A C(manifest.json) of a run that went well."""
    names = (("preflight", 4.1), ("deploy", 21.7), ("run", 143.2), ("gather", 9.8))
    return {
        "schema_version": 1,
        "run_id": "20261201T101500Z-4f2a",
        "created": "2026-12-01T10:15:01.000Z",
        "versions": {"ansible_core": "2.19.14", "python": "3.12.8"},
        "hosts": {
            f"node{node}": {
                "facts": {"kernel": "6.8.0-49-generic", "gpus": 8, "compute_units": 304, "engine": "28.0.1"},
                "image": {"reference": "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12", "digest": f"sha256:{'ab12' * 16}"},
            }
            for node in range(2)
        },
        "phases": [
            {"name": name, "started": "2026-12-01T10:15:01.000Z", "finished": None, "seconds": seconds, "status": "ok"}
            for name, seconds in names
        ],
        "traces": [
            {"rank": rank, "host": f"node{rank // 4}", "file": f"rank{rank}/t.json.gz", "bytes": 8123456, "sha256": "0"}
            for rank in range(8)
        ],
        "failure": None,
        **changes,
    }


FAILURE = {
    "phase": "run",
    "host": "node1",
    "rank": 5,
    "exit_code": 137,
    "reason": "oom",
    "message": "step train: the container was killed for lack of memory",
    "log_tail": [f"[rank 5] step={step} loss=2.3" for step in range(20)] + ["Killed"],
}


def without_gpu(data: dict[str, Any], *ranks: int) -> dict[str, Any]:
    """Take the GPU's figures from C(ranks), as when the profiler lost its records."""
    for rank in data["per_rank"]:
        if rank["rank"] in ranks:
            rank.update(timeline_us=None, ratios=dict.fromkeys(rank["ratios"]), kernel_counts=None)
            message = f"rank {rank['rank']}: {rank['trace']}: no GPU event among 900 events"
            data["errors"].append(
                {"code": "no_gpu_events", "message": message, "rank": rank["rank"], "file": rank["trace"]}
            )
    data.update(status="partial", summary=summarise(data["per_rank"]))
    return data


def without_rank(data: dict[str, Any], *ranks: int, code: str = "trace_truncated") -> dict[str, Any]:
    """Take C(ranks) away; their traces are damaged."""
    data["per_rank"] = [rank for rank in data["per_rank"] if rank["rank"] not in ranks]
    for section in ("steps", "stragglers", "straggler_steps", "top_kernels", "kernel_kinds"):
        data[section] = [row for row in data[section] if row["rank"] not in ranks]
    world = data["world"]
    world["ranks"] = [rank for rank in world["ranks"] if rank not in ranks]
    world["missing_ranks"] = sorted({*world["missing_ranks"], *ranks})
    world["num_ranks"] = len(world["ranks"])
    for rank in ranks:
        file = f"rank{rank}/trace.json"
        message = f"rank {rank}: {file}: the JSON text ends early, after 4154 bytes (byte 4154)"
        data["errors"].append({"code": code, "message": message, "rank": rank, "file": file, "byte": 4154})
    data.update(status="partial" if data["per_rank"] else "error", summary=summarise(data["per_rank"]))
    return data


def write_run(run_dir: Path, **files: Any) -> Path:
    """Write C(results), C(spec), C(manifest), C(verdict) as JSON files into C(run_dir)."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        if value is not None:
            write_json(run_dir / f"{name}.json", value)
    return run_dir


def checked(data: dict[str, Any]) -> Results:
    """C(data) as the model that the stages work with."""
    return Results.model_validate(data)
