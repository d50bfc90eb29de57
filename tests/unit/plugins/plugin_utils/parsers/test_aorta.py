# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Note, Results
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts, load_parser
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import GEMM, NCCL, Trace, healthy
from hypothesis import given
from hypothesis import strategies as st


def parsed(root: Path, **kwargs: Any) -> Results:
    return aorta.parse(Artifacts(root, **kwargs))


def codes(results: Results) -> tuple[list[str], list[str]]:
    return [note.code for note in results.warnings], [problem.code for problem in results.errors]


def write_ranks(root: Path, ranks: list[int], world_size: int) -> None:
    for rank in ranks:
        healthy(rank, world_size, late=rank * 1000).write(root / f"rank{rank}" / "trace.json")


def test_healthy_ranks(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0, 1, 2, 3], 4)
    (tmp_path / "nodes.json").write_text('{"0": "a", "1": "a", "2": "b", "3": "b"}')
    results = parsed(tmp_path, run_id="r1")
    assert (results.status, results.run_id, codes(results)) == ("ok", "r1", ([], []))
    assert results.world.model_dump() == {"num_nodes": 2, "num_ranks": 4, "ranks": [0, 1, 2, 3], "missing_ranks": []}
    assert [(row.node, row.local_rank) for row in results.per_rank] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    first = results.per_rank[0]
    assert (first.gpu, first.trace) == ("AMD Instinct MI300X", "rank0/trace.json")
    assert first.timeline_us is not None
    assert first.timeline_us.model_dump() == {
        "total": 1600.0,
        "busy": 1200.0,
        "idle": 400.0,
        "computation": 800.0,
        "communication": 600.0,
        "exposed_communication": 400.0,
        "memcpy": 0.0,
        "exposed_memcpy": 0.0,
    }
    assert first.ratios.overlap == pytest.approx(200 / 600)
    assert [step.step for step in results.steps if step.rank == 1] == [5, 6]
    assert results.steps[0].timeline_us is not None
    assert (results.steps[0].timeline_us.total, results.steps[0].timeline_us.idle) == (1000.0, 400.0)
    assert results.stragglers[0].rank == 3
    assert results.clock_offsets_us == {"a": 0.0, "b": 0.0}
    assert [source.rank for source in results.sources] == [0, 1, 2, 3]
    overall = [kernel for kernel in results.top_kernels if kernel.rank is None]
    assert [(kernel.category, kernel.calls, kernel.total_us) for kernel in overall] == [
        ("computation", 8, 3200.0),
        ("communication", 8, 2388.0),
    ]
    assert sum(kernel.share or 0 for kernel in overall) == pytest.approx(1)


def test_missing_and_damaged_ranks(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0, 2], 4)
    (tmp_path / "rank1").mkdir()
    (tmp_path / "rank1" / "trace.json").write_text("")
    results = parsed(tmp_path)
    assert results.status == "partial"
    assert (results.world.ranks, results.world.missing_ranks) == ([0, 2], [1, 3])
    assert [(problem.code, problem.rank) for problem in results.errors] == [
        ("trace_empty_file", 1),
        ("missing_ranks", None),
    ]
    assert results.errors[1].message.endswith("rank 3") or results.errors[1].message.endswith(": 3")


def test_expected_ranks_win_over_the_header(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0, 1], 4)
    assert parsed(tmp_path, expected_ranks=frozenset({0, 1})).status == "ok"
    results = parsed(tmp_path, expected_ranks=frozenset({0, 1, 7}))
    assert results.world.missing_ranks == [7]


def test_hosts_that_trained_for_themselves_are_found_out(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0, 1], 2)
    results = parsed(tmp_path, expected_ranks=frozenset(range(4)))
    assert results.status == "partial"
    assert codes(results)[1] == ["world_size_mismatch", "missing_ranks"]
    assert "no rank knew of more than 2 ranks, though 4 were to train together" in results.errors[0].message


def test_a_trace_of_unknown_rank_explains_a_missing_one(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0], 2)
    healthy(None, 2).write(tmp_path / "host_1.2.pt.trace.json")
    results = parsed(tmp_path)
    assert codes(results)[1] == ["rank_unknown"]
    assert results.world.missing_ranks == [1]


@pytest.mark.parametrize(("world_size", "warned"), [(1, []), (2, ["collectives_unlabelled"] * 2)])
def test_missing_metadata_matter_only_between_ranks(tmp_path: Path, world_size: int, warned: list[str]) -> None:
    for rank in range(world_size):
        healthy(rank, world_size).kernel(1_900_000, 10, NCCL, 13).write(tmp_path / f"rank{rank}.json")
    assert codes(parsed(tmp_path)) == (warned, [])


def test_no_traces(tmp_path: Path) -> None:
    results = parsed(tmp_path)
    assert (results.status, codes(results)) == ("error", ([], ["no_traces"]))
    assert (results.summary.avg_iteration_ms, results.per_rank) == (None, [])


def test_only_broken_ranks_give_no_figures(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text("{")
    results = parsed(tmp_path)
    assert (results.status, results.world.ranks, results.world.missing_ranks) == ("error", [], [0, 1])


def test_a_rank_without_gpu_events_has_iterations_and_nulls(tmp_path: Path) -> None:
    Trace().step(1, 0, 5_000_000).write(tmp_path / "rank0.json")
    results = parsed(tmp_path)
    (row,) = results.per_rank
    assert (results.status, codes(results)[1]) == ("partial", ["no_gpu_events"])
    assert (row.timeline_us, row.kernel_counts, set(row.ratios.model_dump().values())) == (None, None, {None})
    assert row.iterations is not None and row.iterations.mean_ms == 5.0
    assert results.steps[0].timeline_us is None
    assert results.summary.avg_compute_ratio is None


def test_cycles_add_up(tmp_path: Path) -> None:
    healthy().write(tmp_path / "rank0" / "a.json")
    healthy(base=1767225660000000000, late=50_000).write(tmp_path / "rank0" / "b.json")
    results = parsed(tmp_path)
    row = results.per_rank[0]
    assert codes(results) == ([], [])
    assert row.timeline_us is not None and row.iterations is not None
    assert (row.timeline_us.total, row.timeline_us.communication) == (3200.0, 1100.0)
    assert row.iterations.count == 4
    assert [step.step for step in results.steps] == [5, 6, 5, 6]


def test_files_without_any_trouble_say_so_in_many_forms(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    write_ranks(tmp_path, [0, 1], 2)
    results = parsed(tmp_path)
    assert (results.status, codes(results)) == ("ok", (["not_a_trace"], []))


def test_options(tmp_path: Path) -> None:
    Trace().step(1, 0, 10_000).kernel(0, 10, "my_comm").kernel(20, 10, "a").kernel(40, 5, "b").write(
        tmp_path / "rank0.json"
    )
    results = parsed(tmp_path, options={"communication_kernels": ["my_comm"], "top_kernels": 1, "engine": "auto"})
    assert results.per_rank[0].kernel_counts is not None
    assert results.per_rank[0].kernel_counts.communication == 1
    assert [kernel.name for kernel in results.top_kernels] == ["a", "a"]
    assert [kernel.rank for kernel in results.top_kernels] == [None, 0]
    results = parsed(tmp_path, options={"max_trace_bytes": 100})
    assert codes(results)[1] == ["trace_too_large"]
    with pytest.raises(ValueError, match="communication_kernels"):
        parsed(tmp_path, options={"communication_kernels": "wrong"})


def test_progress_is_told(tmp_path: Path) -> None:
    write_ranks(tmp_path, [0, 1, 2], 3)
    told: list[tuple[int, int, int, str]] = []
    parsed(tmp_path, progress=lambda *args: told.append(args))
    assert [row[:2] for row in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1][2] == sum(path.stat().st_size for path in tmp_path.rglob("*.json"))


def test_names_of_any_kind_stay_strict_json(tmp_path: Path) -> None:
    text = Trace().step(1, 0, 1000).kernel(0, 10, "KERNEL").text()
    for index, name in enumerate(['<script>alert("x")</script>', "=1+1", "\\ud800", "\\u0000", "é😀"]):
        escaped = name if "\\u" in name else json.dumps(name)[1:-1]
        (tmp_path / f"rank{index}.json").write_text(
            text.replace("KERNEL", escaped).replace('"rank": 0', f'"rank": {index}'), encoding="utf-8"
        )
    results = parsed(tmp_path)
    assert results.status == "ok", results.errors
    assert Results.model_validate(json.loads(json.dumps(results.model_dump(), allow_nan=False))) == results


@given(st.lists(st.integers(0, 10**10), max_size=30))
def test_iterations(durations: list[int]) -> None:
    found = aorta.iterations(durations)
    if not durations:
        assert found is None
        return
    assert found is not None
    milliseconds = [duration / 1e6 for duration in durations]
    assert found.durations_ms == milliseconds
    assert found.mean_ms == pytest.approx(statistics.fmean(milliseconds))
    assert found.median_ms == pytest.approx(statistics.median(milliseconds))
    assert (found.min_ms, found.max_ms) == (min(milliseconds), max(milliseconds))
    if len(durations) == 1:
        assert (found.std_ms, found.p95_ms) == (None, milliseconds[0])
    else:
        assert found.std_ms == pytest.approx(statistics.stdev(milliseconds))
        # "inclusive" is the linear interpolation between order statistics
        assert found.p95_ms == pytest.approx(statistics.quantiles(milliseconds, n=20, method="inclusive")[18])


def test_ratios_without_a_denominator_are_undefined() -> None:
    nothing = dict.fromkeys(aorta.TIMELINE_KEYS, 0)
    assert set(aorta.ratios(nothing).model_dump().values()) == {None}
    assert aorta.ratios({**nothing, "total": 10, "idle": 10}).overlap is None
    assert aorta.ratios({**nothing, "total": 10, "idle": 10}).idle == 1.0


def test_a_warning_of_many_ranks_is_said_once() -> None:
    def note(rank: int | None) -> Note:
        return Note(code="events_skipped", message=f"rank {rank}: lost", rank=rank, count=2)

    few = [note(rank) for rank in range(aorta.MANY_RANKS)]
    assert aorta.condense(few) == few
    (one,) = aorta.condense([note(rank) for rank in range(64)])
    assert (one.code, one.rank, one.count) == ("events_skipped", None, 128)
    assert "64 ranks (0-63)" in one.message and "rank 0: lost" in one.message


@pytest.mark.parametrize("name", ["", "none_such", "../aorta", "_base", "Aorta", "os"])
def test_only_parsers_are_loaded(name: str) -> None:
    with pytest.raises(ValueError, match="no parser"):
        load_parser(name)
    assert load_parser("aorta").engine_version() == aorta.VERSION


def slow_on(slow: int, factor: int, calls: int = 6) -> list[Trace]:
    """Four ranks; C(calls) GEMMs each, C(factor) times as long on rank C(slow)."""
    traces = []
    for rank in range(4):
        trace = Trace(rank, 4).step(1, 0, 100_000)
        for index in range(calls):
            trace.kernel(index * 10_000, 1000 * (factor if rank == slow else 1) + rank, GEMM)
        trace.kernel(90_000, 500, "triton_poi_fused_add_0").memcpy(95_000, 100)
        traces.append(trace)
    return traces


def test_a_kernel_that_is_slow_on_one_gpu_is_a_finding(tmp_path: Path) -> None:
    for rank, trace in enumerate(slow_on(2, 4)):
        trace.write(tmp_path / f"rank{rank}" / "t.json")
    results = parsed(tmp_path)
    note = next(note for note in results.warnings if note.code == "kernel_slow_on_one_rank")
    assert (note.rank, note.count) == (2, 6)
    assert "4.0 us a call" in note.message and "1.0 us (median)" in note.message
    gemm = next(row for row in results.top_kernels if row.rank is None and row.kind == "gemm")
    assert (gemm.ranks, gemm.slowest_rank, gemm.slowest_mean_us) == (4, 2, 4.002)
    assert gemm.median_mean_us == statistics.median([1.0, 1.001, 4.002, 1.003])
    # 24 calls: 6 each of 1000, 1001, 1003, 4002 ns; overall percentiles come from histograms.
    assert gemm.p50_us == pytest.approx(1.001, rel=0.008) and gemm.p99_us == pytest.approx(4.002, rel=0.008)
    one = next(row for row in results.top_kernels if row.rank == 2 and row.kind == "gemm")
    assert (one.p50_us, one.p99_us, one.ranks) == (4.002, 4.002, None)


@pytest.mark.parametrize(("slow", "factor", "calls"), [(9, 1, 6), (2, 4, 4)])
def test_equal_or_rare_kernels_are_none(tmp_path: Path, slow: int, factor: int, calls: int) -> None:
    for rank, trace in enumerate(slow_on(slow, factor, calls)):
        trace.write(tmp_path / f"rank{rank}" / "t.json")
    assert "kernel_slow_on_one_rank" not in codes(parsed(tmp_path))[0]


def test_kinds_over_all_ranks(tmp_path: Path) -> None:
    for rank, trace in enumerate(slow_on(2, 4)):
        trace.write(tmp_path / f"rank{rank}" / "t.json")
    results = parsed(tmp_path)
    overall = {row.kind: row for row in results.kernel_kinds if row.rank is None}
    assert set(overall) == {"gemm", "elementwise", "memory"}
    assert (overall["gemm"].names, overall["gemm"].calls, overall["gemm"].slowest_rank) == (1, 24, 2)
    assert (overall["gemm"].min_total_us, overall["gemm"].max_total_us) == (6.0, 6 * 4.002)
    assert sum(row.share or 0 for row in overall.values()) == pytest.approx(1)
    assert sum(row.total_us for row in results.kernel_kinds if row.kind == "gemm" and row.rank is not None) == (
        pytest.approx(overall["gemm"].total_us)
    )
    custom = parsed(tmp_path, options={"kernel_categories": {"mine": ["fused_add"]}})
    assert "mine" in {row.kind for row in custom.kernel_kinds}
    assert {row.kind for row in custom.top_kernels if row.name.startswith("triton")} == {"mine"}


def test_ranks_unlike_their_peers_are_named(tmp_path: Path) -> None:
    for rank in range(4):
        trace = healthy(rank, 4)
        for index in range(40 if rank != 3 else 4):
            trace.kernel(2_000_000 + index * 10_000, 9_000)
        trace.write(tmp_path / f"rank{rank}" / "t.json")
    warnings = {note.code: note for note in parsed(tmp_path).warnings}
    assert warnings["events_differ_from_peers"].rank == 3
    assert "8, 82% below the ranks' median of 44" in warnings["events_differ_from_peers"].message
    assert "busy_differs_from_peers" not in warnings or warnings["busy_differs_from_peers"].rank == 3


def test_work_outside_steps(tmp_path: Path) -> None:
    healthy().kernel(2_500_000, 50_000).write(tmp_path / "rank0.json")
    Trace(rank=1).kernel(0, 10).write(tmp_path / "rank1.json")
    rows = parsed(tmp_path).per_rank
    assert rows[0].outside_steps_us is not None and rows[1].outside_steps_us is None
    assert rows[0].outside_steps_us.model_dump() == {
        "total": 550.0,
        "busy": 50.0,
        "idle": 500.0,
        "computation": 50.0,
        "communication": 0.0,
        "exposed_communication": 0.0,
        "memcpy": 0.0,
        "exposed_memcpy": 0.0,
    }
