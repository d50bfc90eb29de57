# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import KERNEL, MEMCPY, MEMSET, TraceError
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import (
    FileSummary,
    Union,
    category_of,
    compile_rule,
    histogram,
    percentile,
    summarise_file,
)
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import GEMM, NCCL, Trace, healthy
from hypothesis import given, settings
from hypothesis import strategies as st

RULE = compile_rule("tracelens")
EXTENDED = compile_rule("extended")


def summary_of(trace: Trace, tmp_path: Path, rule: str | list[str] = "tracelens") -> FileSummary:
    return summarise_file(trace.write(tmp_path / "t.json"), compile_rule(rule))


def codes(summary: FileSummary) -> list[str]:
    return [note[0] for note in summary.notes]


# --- which kernel is what ---


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (MEMCPY, "Memcpy HtoD (Host -> Device)", "memcpy"),
        (MEMCPY, "ncclSomething", "memcpy"),
        (KERNEL, "MEMORY_COPY_HOST_TO_DEVICE", "memcpy"),
        (KERNEL, "MEMORY_COPY_DEVICE_TO_HOST.kd", "memcpy"),
        (KERNEL, "MEMORY_COPY_DEVICE_TO_DEVICE", "memcpy"),
        (KERNEL, "__amd_rocclr_copyBuffer", "memcpy"),
        (KERNEL, "__amd_rocclr_copyBuffer.kd", "memcpy"),
        (KERNEL, "__amd_rocclr_copyBufferRect", "memcpy"),
        (KERNEL, "__amd_rocclr_copyBufferAligned", "memcpy"),
        (KERNEL, "__amd_rocclr_copyBufferRectAligned.kd", "memcpy"),
        (KERNEL, "MEMORY_COPY_HOST_TO_HOST", "computation"),
        (KERNEL, "__amd_rocclr_copyBufferExt", "computation"),
        (KERNEL, "__amd_rocclr_copyImage", "computation"),
        (KERNEL, "__AMD_rocclr_copyBuffer", "computation"),
        (KERNEL, "x__amd_rocclr_copyBuffer", "computation"),
        (KERNEL, "__amd_rocclr_copyBuffer\n", "computation"),
        (KERNEL, "__amd_rocclr_fillBufferAligned.kd", "computation"),
        (MEMSET, "__amd_rocclr_copyBuffer", "computation"),
        (MEMSET, "Memset (Device)", "computation"),
        (MEMSET, "nccl memset", "communication"),
        (KERNEL, NCCL, "communication"),
        (KERNEL, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)", "communication"),
        (KERNEL, "rcclGenericKernel", "communication"),
        (KERNEL, "NCCLX", "communication"),
        (KERNEL, "void vllm::cross_device_reduce_1stage<c10::Half, 8>", "communication"),
        (KERNEL, "", "computation"),
        (KERNEL, GEMM, "computation"),
    ],
)
def test_category_by_tracelens_rule(kind: int, name: str, expected: str) -> None:
    assert category_of(kind, name, RULE) == expected


@pytest.mark.parametrize(
    "name",
    [
        "mscclKernel_Sum_half_Simple",
        "mscclpp::allreduce7",
        "cross_device_all_gather",
        "void aiter::allreduce_fusion_kernel_1stage<8>",
        "quickreduce::allreduce_prototype_twoshot<8>",
        "one_shot_all_reduce_kernel",
        "two_shot_all_reduce_kernel_inplace",
        "multimem_all_reduce_kernel",
        "nvshmemi_transfer_rma",
        "rocshmem_put_kernel",
        "void deep_ep::intranode::dispatch<8>",
        "void dpsk::ep::internode::combine<false>",
    ],
)
def test_what_only_the_extended_rule_takes(name: str) -> None:
    assert category_of(KERNEL, name, RULE) == "computation"
    assert category_of(KERNEL, name, EXTENDED) == "communication"


@pytest.mark.parametrize(
    "name", [GEMM, "triton_poi_fused_all_reduce_wait_0", "my_all_reduce_add", "reduce_kernel<512>"]
)
def test_kernels_that_merely_speak_of_reducing_are_computation(name: str) -> None:
    assert category_of(KERNEL, name, EXTENDED) == "computation"


def test_a_list_of_patterns_replaces_the_rule() -> None:
    rule = compile_rule(["my_comm", "^x[0-9]$"])
    assert [category_of(KERNEL, name, rule) for name in ("a_MY_COMM_b", "x7", "x77", NCCL)] == [
        "communication",
        "communication",
        "computation",
        "computation",
    ]


@pytest.mark.parametrize("rule", ["default", "", [], [""], ["("]])
def test_unusable_rules_are_refused(rule: str | list[str]) -> None:
    with pytest.raises(ValueError, match="communication_kernels"):
        compile_rule(rule)


def test_kernels_the_rule_missed_are_named(tmp_path: Path) -> None:
    trace = (
        Trace().step(1, 0, 100).kernel(0, 10, "mscclKernel").kernel(20, 10, "mscclKernel").kernel(40, 10, "nvshmem_x")
    )
    note = next(note for note in summary_of(trace, tmp_path).notes if note[0] == "communication_counted_as_computation")
    assert note[2] == 3 and "mscclKernel" in note[1] and "nvshmem_x" in note[1]
    assert "communication_counted_as_computation" not in codes(summary_of(trace, tmp_path, "extended"))


# --- lengths ---

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=14)


@given(INTERVALS, st.integers(-5, 90), st.integers(0, 60))
def test_union_counts_every_nanosecond_once(intervals: list[tuple[int, int]], start: int, length: int) -> None:
    union = Union((s for s, _l in intervals), (s + n for s, n in intervals))
    covered = {t for s, n in intervals for t in range(s, s + n)}
    assert union.length == len(covered)
    assert union.within(start, start + length) == len(covered & set(range(start, start + length)))
    assert all(end < start for end, start in zip(union.ends, union.starts[1:], strict=False))


EVENT = st.tuples(
    st.sampled_from(["kernel", "comm", "copy", "memset", "copy kernel"]),
    st.integers(0, 300),
    st.integers(0, 80),
    st.integers(0, 3),
)


@settings(deadline=None, max_examples=200)
@given(
    events=st.lists(EVENT, min_size=1, max_size=12),
    steps=st.lists(st.tuples(st.integers(0, 350), st.integers(0, 120)), max_size=4),
    origin=st.sampled_from([1, 6_300_000_000_123, 1_767_225_600_000_000_123]),
)
def test_timeline_and_steps_against_an_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, int, int, int]],
    steps: list[tuple[int, int]],
    origin: int,
) -> None:
    """The oracle marks every nanosecond; the file goes through text and reader, at epoch times too."""
    trace = Trace(origin=origin)
    marks: dict[str, set[int]] = {"C": set(), "M": set(), "P": set()}
    for what, start, length, stream in events:
        bucket = {"comm": "M", "copy": "P", "copy kernel": "P"}.get(what, "C")
        marks[bucket] |= set(range(start, start + length))
        if what == "copy":
            trace.memcpy(start, length)
        elif what == "memset":
            trace.memset(start, length)
        else:
            name = {"kernel": GEMM, "comm": NCCL, "copy kernel": "__amd_rocclr_copyBuffer"}[what]
            trace.kernel(start, length, name, stream)
    for number, (start, length) in enumerate(steps):
        trace.step(number, start, length)
    summary = summary_of(trace, tmp_path_factory.mktemp("oracle"))

    def oracle(total: int, window: set[int]) -> dict[str, int]:
        c, m, p = (marks[key] & window for key in "CMP")
        return {
            "total": total,
            "busy": len(c | m | p),
            "idle": total - len(c | m | p),
            "computation": len(c),
            "communication": len(m),
            "exposed_communication": len(m - c),
            "memcpy": len(p),
            "exposed_memcpy": len(p - (c | m)),
        }

    total = max(s + n for _w, s, n, _x in events) - min(s for _w, s, _n, _x in events)
    assert summary.timeline == oracle(total, set(range(500)))
    found = {step[0]: (step[2], step[3]) for step in summary.steps}
    assert found == {
        number: (length, oracle(length, set(range(start, start + length))))
        for number, (start, length) in enumerate(steps)
    }
    first, last = min(s for _w, s, _n, _x in events), max(s + n for _w, s, n, _x in events)
    within = {t for start, length in steps for t in range(start, start + length)}
    span = set(range(first, last)) - within
    assert summary.outside == (oracle(len(span), set(range(500)) - within) if steps else None)
    assert summary.counts is not None and sum(summary.counts.values()) == len(events) == summary.gpu_events
    assert sum(kernel[3] for kernel in summary.kernels) == sum(length for _w, _s, length, _x in events)
    assert summary.start == trace.origin + (trace.base or 0) + min(s for _w, s, _n, _x in events)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60))
def test_percentiles_and_histogram(durations: list[int]) -> None:
    ordered = sorted(durations)
    for share in (0.5, 0.99, 1.0):
        value = percentile(ordered, share)
        assert sum(one <= value for one in ordered) >= share * len(ordered)
        assert sum(one < value for one in ordered) < share * len(ordered)
    pairs = histogram(ordered)
    spread = [value for value, calls in zip(pairs[::2], pairs[1::2], strict=True) for _call in range(calls)]
    assert len(spread) == len(ordered)
    assert all(abs(one - other) <= other / 128 for one, other in zip(spread, ordered, strict=True))
    assert [one for one in spread if one < 128] == [one for one in ordered if one < 128]


def test_kernels_and_the_time_between_collectives(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(100):
        trace.kernel(index * 1000, 100 + index, "k")
    trace.collective(200_000, 5000).kernel(206_000, 3000).collective(210_000, 100).collective(210_050, 100, stream=9)
    summary = summary_of(trace, tmp_path)
    row = next(row for row in summary.kernels if row[0] == "k")
    assert row[1:6] == ["computation", 100, 14950, 149, 198]
    assert [(record["gap"], record["computed"]) for record in summary.collectives] == [
        (None, None),
        (5000, 3000),
        (-50, 0),
    ]


def test_more_streams_than_a_few(tmp_path: Path) -> None:
    trace = Trace()
    for stream in range(50):
        trace.kernel(stream, 10_000, stream=stream)
    trace.kernel(5_000, 10_000, stream=49)
    assert {note[0]: note[2] for note in summary_of(trace, tmp_path).notes}["stream_overlap"] == 1


def test_epoch_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Near 1.7e15 us, float64 has steps of 0.25 us; the text has not."""
    trace = Trace(origin=1_767_225_600_000_000_000, base=None)
    for index in range(100):
        trace.kernel(index * 1001, 1)
    summary = summary_of(trace, tmp_path)
    assert summary.timeline is not None
    assert (summary.timeline["busy"], summary.timeline["total"]) == (100, 99 * 1001 + 1)


# --- the rest of a summary ---


def test_header(tmp_path: Path) -> None:
    trace = healthy(rank=3, world_size=8, device=2)
    trace.header_extra["deviceProperties"] = [{"id": 1, "name": "other"}, {"id": 2, "name": "AMD Instinct MI300X"}]
    summary = summary_of(trace, tmp_path)
    assert (summary.rank, summary.world_size, summary.gpu) == (3, 8, "AMD Instinct MI300X")


@pytest.mark.parametrize(
    "info", [None, 7, [], {"rank": "x"}, {"rank": -1}, {"rank": None, "world_size": 0}, {"rank": 1.5}, {"rank": True}]
)
def test_odd_headers_say_nothing(tmp_path: Path, info: object) -> None:
    trace = healthy(rank=None, world_size=None)
    trace.header_extra.update(distributedInfo=info, deviceProperties={"a": 1}, baseTimeNanoseconds="x")
    summary = summary_of(trace, tmp_path)
    assert (summary.rank, summary.world_size, summary.gpu) == (None, None, None)
    assert summary.timeline is not None


def test_kernels_of_two_devices_are_refused(tmp_path: Path) -> None:
    trace = Trace().kernel(0, 10)
    trace.device = 1
    trace.kernel(5, 10).kernel(20, 10)
    with pytest.raises(TraceError, match=r"devices 0 \(1 kernels\), 1 \(2 kernels\)") as caught:
        summary_of(trace, tmp_path)
    assert caught.value.code == "multiple_devices"


def test_no_gpu_events_give_no_zeros(tmp_path: Path) -> None:
    summary = summary_of(Trace().step(1, 0, 100).event("cpu_op", "aten::mm", 0, 10), tmp_path)
    assert (summary.timeline, summary.counts, summary.gpu_events) == (None, None, 0)
    assert summary.steps[0][2:] == [100, None]


def test_a_sound_trace_has_no_findings(tmp_path: Path) -> None:
    assert summary_of(healthy(), tmp_path).notes == []


def test_findings(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(0, 10_000).kernel(5_000, 10_000)  # overlap by 5 us on one stream
    trace.kernel(20_000, 10_000, stream=1).kernel(25_000, 10_000, stream=2)  # two streams may
    trace.kernel(40_000, 5_000).kernel(44_900, 5_000)  # clock jitter of 0.1 us
    summary = summary_of(trace, tmp_path)
    assert {note[0]: note[2] for note in summary.notes} == {"no_profiler_steps": None, "stream_overlap": 1}
    trace.step(1, 0, 30_000).step(2, 100_000, 10_000)
    summary = summary_of(trace, tmp_path)
    assert {note[0]: note[2] for note in summary.notes} == {
        "stream_overlap": 1,
        "steps_without_gpu_events": 1,
        "gpu_events_outside_steps": 2,
    }


def test_a_merged_trace_of_several_ranks_is_refused(tmp_path: Path) -> None:
    trace = healthy()
    for number, event in enumerate(trace.events):
        trace.events[number] = event.replace('"pid": 1', f'"pid": "[TP{number % 2:02}] 0"')
    with pytest.raises(TraceError, match=r"several ranks merged .* give the file of each rank") as caught:
        summary_of(trace, tmp_path)
    assert caught.value.code == "multiple_devices"


def test_events_longer_than_the_trace(tmp_path: Path) -> None:
    trace = healthy().event("Trace", "PyTorch Profiler (0)", 0, 2_000_000)
    assert summary_of(trace, tmp_path).notes == []
    trace.kernel(900_000, 2_000_001, "endless", stream=9)
    assert {note[0]: note[2] for note in summary_of(trace, tmp_path).notes}["duration_beyond_trace"] == 1


def test_work_long_before_the_first_step(tmp_path: Path) -> None:
    trace = healthy().kernel(-900_000, 10_000)
    assert "gpu_work_before_steps" not in codes(summary_of(trace, tmp_path))
    trace.kernel(-1_500_000, 10_000).kernel(-1_400_000, 10_000)
    note = next(note for note in summary_of(trace, tmp_path).notes if note[0] == "gpu_work_before_steps")
    assert note[2] == 2 and "1.500 ms before" in note[1]


def test_kernels_without_metadata_are_noted(tmp_path: Path) -> None:
    trace = healthy().kernel(900_000, 10, NCCL, 13)
    notes = summary_of(trace, tmp_path).notes
    assert [note[0] for note in notes] == ["collectives_unlabelled"]
    assert notes[0][2] == 1


def test_fingerprint_tells_data_not_bytes(tmp_path: Path) -> None:
    one = summary_of(healthy(), tmp_path)
    other = healthy()
    other.events.reverse()
    other.header_extra["anything"] = "else"
    moved = healthy(base=1767225600000000000 - 5000, origin=6_300_000_005_000)
    assert summary_of(other, tmp_path).fingerprint == one.fingerprint
    assert summary_of(moved, tmp_path).fingerprint == one.fingerprint
    for different in (healthy(late=1), healthy(origin=6_300_000_000_001), healthy().step(9, 0, 1)):
        assert summary_of(different, tmp_path).fingerprint != one.fingerprint
