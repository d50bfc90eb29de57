# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded traces give the exact reference values; where TraceLens has a figure, ours is the same."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import (
    COMMUNICATION,
    COMPUTATION,
    COPY,
    FileSummary,
    compile_rule,
    summarise_file,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts
from ansible_collections.aorta.automation.tests.conformance.shared_data import SHARED, trace_sets

EXACT_US = 1e-3
NAMES = {
    "total_time": "total",
    "busy_time": "busy",
    "idle_time": "idle",
    "computation_time": "computation",
    "total_comm_time": "communication",
    "exposed_comm_time": "exposed_communication",
    "total_memcpy_time": "memcpy",
    "exposed_memcpy_time": "exposed_memcpy",
}
STEP_NAMES = {
    "computation": "computation",
    "total_comm": "communication",
    "exposed_comm": "exposed_communication",
    "exposed_memcpy": "exposed_memcpy",
    "idle": "idle",
}
RULE = compile_rule("tracelens")
SETS = pytest.mark.parametrize(("folder", "golden"), trace_sets())


def summary_of(folder: Path, reference: dict[str, Any], fast: bool) -> FileSummary:
    return summarise_file(folder / reference["file"], RULE, fast=fast)


@SETS
@pytest.mark.parametrize("fast", [True, False], ids=["msgspec", "standard library"])
def test_timeline_counts_steps(folder: Path, golden: dict[str, Any], fast: bool) -> None:
    for reference in golden["ranks"].values():
        found = summary_of(folder, reference, fast)
        assert found.events == reference["n_events"]
        # Where TraceLens sees only today's categories, the reference has no GPU events; ours reads legacy ones too.
        exact = (reference.get("exact") or {}).get("all_events_us")
        legacy = any(note[0] == "legacy_categories" for note in found.notes)
        if exact is None:
            assert found.timeline is None or legacy
        else:
            assert found.timeline is not None and found.counts is not None
            for theirs, ours in NAMES.items():
                assert found.timeline[ours] / 1000 == pytest.approx(exact[theirs], abs=EXACT_US), theirs
            buckets = {COMPUTATION: 0, COMMUNICATION: 0, COPY: 0, **reference["kernel_counts_by_bucket"]}
            assert found.counts == buckets
            tracelens = reference["tracelens"]["gpu_timeline_all_events_us"]
            tolerance = max(0.1, 1e-4 * tracelens["total_time"])
            for theirs, ours in NAMES.items():
                assert found.timeline[ours] / 1000 == pytest.approx(tracelens[theirs], abs=tolerance), theirs
        steps = {f"ProfilerStep#{number}": (duration, timeline) for number, _start, duration, timeline in found.steps}
        assert {name: duration / 1000 for name, (duration, _timeline) in steps.items()} == {
            step["name"]: pytest.approx(step["dur"], abs=EXACT_US) for step in reference["profiler_steps"]
        }
        for step in (reference.get("exact") or {}).get("per_step_us") or []:
            timeline = steps[step["name"]][1]
            if exact is None and not legacy:
                assert timeline is None  # not measured, which is not the reference's 0
                continue
            for theirs, ours in STEP_NAMES.items():
                assert timeline[ours] / 1000 == pytest.approx(step[theirs], abs=EXACT_US), (step["name"], theirs)


@SETS
def test_both_readers_agree(folder: Path, golden: dict[str, Any]) -> None:
    for reference in golden["ranks"].values():
        assert summary_of(folder, reference, True) == summary_of(folder, reference, False)


def results_of(name: str) -> tuple[Results, dict[str, Any]]:
    for parameter in trace_sets():
        if parameter.id == name:
            folder, golden = parameter.values
            return aorta.parse(Artifacts(folder)), golden
    pytest.skip(f"reference data not found: {SHARED / 'traces' / name} (set AORTA_SHARED)")


@pytest.mark.parametrize(
    ("name", "straggler", "last"), [("derived-mi300x-8rank", 5, (6, 6)), ("dlrm-v100-8rank", 7, (5, 8))]
)
def test_stragglers_are_those_of_tracelens(name: str, straggler: int, last: tuple[int, int]) -> None:
    """Both have one file clock, so TraceLens' comparison of raw timestamps is right there."""
    results, golden = results_of(name)
    assert results.status == "ok"
    worst = results.stragglers[0]
    assert (worst.rank, worst.times_last, worst.collectives) == (straggler, *last)
    theirs = {golden["nccl_analyser"]["actual_ranks"][row["rank"]]: row for row in straggler_rows(golden)}
    for row in results.stragglers:
        assert row.times_last == theirs[row.rank]["times_arrived_last"]
        assert row.times_first == theirs[row.rank]["times_arrived_first"]
        assert row.collectives == theirs[row.rank]["num_collectives"]
        # TraceLens rounds to 0.1 us and adds in float64
        assert row.wait_us == pytest.approx(theirs[row.rank]["total_wait_time_us"], abs=0.06)


def straggler_rows(golden: dict[str, Any]) -> list[dict[str, Any]]:
    return golden["nccl_analyser"]["straggler"]["records"]


def test_collectives_are_those_of_tracelens() -> None:
    """Latency, skew, size and bandwidth (there in GiB/s, here in GB/s) of labelled collectives of 8 ranks."""
    results, golden = results_of("derived-mi300x-8rank")
    reduces = [one for one in results.collectives if one.name == "allreduce"]
    rows = golden["nccl_analyser"]["implicit_sync"]["records"]
    assert len(reduces) == len(rows) == 6
    by_latency = sorted(rows, key=lambda row: row["comm_latency"])
    for ours, theirs in zip(sorted(reduces, key=lambda one: one.min_duration_us), by_latency, strict=True):
        assert ours.ranks == list(range(8)) and ours.missing_ranks == []
        assert ours.min_duration_us == pytest.approx(theirs["comm_latency"], abs=1e-3)
        assert ours.arrival_skew_us == pytest.approx(theirs["skew in start time"], abs=0.01)
        assert ours.end_skew_us == pytest.approx(theirs["skew in end time"], abs=0.01)
        assert ours.bytes is not None
        assert ours.bytes / 2**20 == pytest.approx(theirs["Full msg size (MB)"])
        assert ours.algbw_gbps == pytest.approx(theirs["algo bw (GB/s)"] * 2**30 / 1e9, rel=1e-6)
        assert ours.busbw_gbps == pytest.approx(theirs["bus bw (GB/s)"] * 2**30 / 1e9, rel=1e-6)
        assert ours.last_rank == 5


def test_iterations_come_from_host_steps() -> None:
    """The same names on the GPU's side last some 17 us there."""
    results, golden = results_of("resnet-mi300x-rank0of8")
    durations = [step["dur"] / 1000 for step in golden["ranks"]["0"]["profiler_steps"]]
    iterations = results.per_rank[0].iterations
    assert iterations is not None
    assert iterations.mean_ms == pytest.approx(statistics.fmean(durations), abs=1e-6)
    assert iterations.count == 3


@pytest.mark.parametrize(
    ("name", "status", "ranks", "errors"),
    [
        ("cpu-only-gloo-rank34of300", "partial", [34], {"no_gpu_events", "missing_ranks"}),
        ("rank-missing-a100", "partial", [0], {"no_gpu_events"}),
        ("legacy-cats-v100", "ok", [0], set()),
        ("ddp-resnet18-mi300x", "ok", [0], set()),
        ("sglang-decode-mi300x", "ok", [0], set()),
        ("rank0of16-a100", "partial", [0], {"missing_ranks"}),
    ],
)
def test_odd_sets(name: str, status: str, ranks: list[int], errors: set[str]) -> None:
    results, _golden = results_of(name)
    assert (results.status, results.world.ranks) == (status, ranks)
    assert {problem.code for problem in results.errors} == errors


def test_deepep_kernels_are_reported_as_uncounted_and_counted_when_asked() -> None:
    results, _golden = results_of("deepseek-h800-rank0of64")
    assert results.summary.avg_communication_ratio == 0.0
    assert results.summary.avg_overlap_ratio is None
    assert "communication_counted_as_computation" in {note.code for note in results.warnings}
    extended = aorta.parse(Artifacts(Path(results.trace_dir or ""), {"communication_kernels": "extended"}))
    assert extended.per_rank[0].kernel_counts is not None
    assert extended.per_rank[0].kernel_counts.communication >= 32
