# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils._cross_rank import (
    MAX_MISMATCHES,
    MAX_UNMATCHED,
    Match,
    clock_offsets,
    describe,
    list_ranks,
    match_collectives,
    mismatch_notes,
    parse_ranks,
    sizes,
    stragglers,
    unmatched_notes,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Note
from hypothesis import given
from hypothesis import strategies as st

EPOCH = 1_767_225_606_300_000_000


def record(start: int, duration: int, **args: Any) -> dict[str, Any]:
    """A labelled collective's record as a summary holds it."""
    ranks = args.pop("ranks", [0, 1])
    kept = {
        "name": "allreduce",
        "group": "0",
        "group_ranks": str(ranks),
        "group_size": len(ranks),
        "dtype": "BFloat16",
        "in_elements": 1000,
        "out_elements": 1000,
        "seq": None,
        "kernel": "ncclDevKernel_Generic",
        "stream": 0,
        "start": EPOCH + start,
        "duration": duration,
    }
    return {**kept, **args}


def matched(records: dict[int, list[dict[str, Any]]], **kwargs: Any) -> tuple[list[Match], list[Note]]:
    return match_collectives(records, kwargs.get("groups", {}), kwargs.get("world", set(records)))


def members(matches: list[Match]) -> list[list[int]]:
    return [sorted(match.records) for match in matches]


# --- matching ---


def test_one_lost_record_shifts_nothing_with_seq() -> None:
    one = [record(t * 100, 50, seq=t) for t in range(5)]
    other = [record(t * 100 + 10, 40, seq=t) for t in range(5) if t != 2]
    matches, notes = matched({0: one, 1: other})
    assert members(matches) == [[0, 1], [0, 1], [0], [0, 1], [0, 1]]
    assert all(describe(match, {}, {}).arrival_skew_us == 0.01 for match in matches if len(match.records) == 2)
    assert notes == []
    (note,) = unmatched_notes(matches, {0, 1})
    assert note.code == "collective_unmatched"
    assert "Seq 2" in note.message and "rank 1" in note.message


def test_groups_of_the_same_name_but_other_ranks_are_apart() -> None:
    low = record(0, 50, seq=1, ranks=[0, 1])
    high = record(0, 50, seq=1, ranks=[2, 3])
    matches, _notes = matched({0: [low], 1: [low], 2: [high], 3: [high]})
    assert members(matches) == [[0, 1], [2, 3]]
    assert [match.group_ranks for match in matches] == [[0, 1], [2, 3]]
    assert unmatched_notes(matches, {0, 1, 2, 3}) == []


def test_several_kernels_of_one_number_are_paired_in_order() -> None:
    kernels = [record(0, 50, seq=1), record(100, 50, seq=1)]
    assert members(matched({0: kernels, 1: kernels})[0]) == [[0, 1], [0, 1]]


def test_without_seq_by_order_of_equal_operations_with_a_note() -> None:
    one = [record(0, 50), record(100, 50, in_elements=7), record(200, 50)]
    other = [record(0, 50), record(200, 50)]
    matches, notes = matched({0: one, 1: other})
    assert members(matches) == [[0, 1], [0], [0, 1]]
    assert [(note.code, note.count) for note in notes] == [("collectives_matched_by_order", 2)]
    assert matched({0: one})[1] == []


def test_amounts_that_may_differ_do_not_part_ranks() -> None:
    matches, _notes = matched(
        {0: [record(0, 50, name="all_to_allv", in_elements=1)], 1: [record(0, 50, name="all_to_allv", in_elements=9)]}
    )
    assert members(matches) == [[0, 1]]


def test_kernels_without_metadata_by_order_if_nothing_contradicts() -> None:
    def bare(start: int, kernel: str, stream: int = 0) -> dict[str, Any]:
        return {"kernel": kernel, "stream": stream, "start": EPOCH + start, "duration": 10}

    reduce, send = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)", "ncclKernel_SendRecv(ncclWork)"
    both = [bare(0, send), bare(50, reduce)]
    matches, _notes = matched({0: both, 1: both})
    assert [(match.name, sorted(match.records)) for match in matches] == [("sendrecv", [0, 1]), ("allreduce", [0, 1])]
    assert all(match.synchronising for match in matches)
    assert matched({0: both, 1: both[:1]})[0] == []
    assert matched({0: both, 1: [bare(0, send, 0), bare(50, reduce, 1)]})[0] == []
    assert matched({0: both})[0] == []


def test_members_from_header_or_world_where_the_kernel_shortens_them() -> None:
    short = record(0, 50, group_ranks="[0, 1, ...]", group_size=4, seq=1)
    groups = {"0": [0, 1, 2, 3]}
    assert matched({0: [short]}, groups=groups, world={0, 1})[0][0].expected == {0, 1, 2, 3}
    assert matched({0: [short]}, world={0, 1, 2, 3})[0][0].expected == {0, 1, 2, 3}
    assert matched({0: [short]}, world={0, 1})[0][0].expected == {0}


def test_point_to_point_needs_no_other_rank() -> None:
    matches, _notes = matched({0: [record(0, 50, name="send", seq=1, ranks=[0, 1, 2])]}, world={0, 1, 2})
    assert unmatched_notes(matches, {0, 1, 2}) == []


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("[0, 1]", [0, 1]), ("[0, 1, ...]", None), (None, None), ("", None), ("[[0]]", None), ("3", None)],
)
def test_parse_ranks(text: str | None, ranks: list[int] | None) -> None:
    assert parse_ranks(text) == ranks


def test_collectives_of_a_lost_rank_are_one_note() -> None:
    kernels = [record(t * 100, 50, seq=t) for t in range(50)]
    notes = unmatched_notes(matched({0: kernels}, world={0, 1})[0], {0})
    assert [(note.code, note.count) for note in notes] == [("collective_unmatched", 50)]
    assert "rank 1" in notes[0].message


def test_many_unmatched_collectives_end_in_a_count() -> None:
    kernels = [record(t * 100, 50, seq=t) for t in range(MAX_UNMATCHED + 5)]
    notes = unmatched_notes(matched({0: kernels, 1: []})[0], {0, 1})
    assert len(notes) == MAX_UNMATCHED + 1
    assert notes[-1].count == 5


def test_list_ranks() -> None:
    assert list_ranks([3], "rank ", "ranks ") == "rank 3"
    assert list_ranks([4, 1], "rank ", "ranks ") == "ranks 1, 4"
    assert list_ranks([*range(1, 64), 70]) == "1-63, 70"


# --- figures ---


@pytest.mark.parametrize(
    ("name", "elements", "out", "size", "factor"),
    [
        ("allreduce", 1000, 1000, 2000, 2 * 3 / 4),
        ("_allgather_base", 1000, 4000, 8000, 3 / 4),
        ("_reduce_scatter_base", 4000, 1000, 8000, 3 / 4),
        ("all_to_all", 1000, 1000, 2000, 3 / 4),
    ],
)
def test_sizes_and_bandwidths_of_nccl_tests(name: str, elements: int, out: int, size: int, factor: float) -> None:
    """2000 bytes in the shortest 40 ns are 50 GB/s."""
    ranks = [0, 1, 2, 3]
    args = {"name": name, "in_elements": elements, "out_elements": out, "ranks": ranks, "seq": 9}
    kernels = {rank: [record(rank * 10, 70 - rank * 10, **args)] for rank in ranks}
    row = describe(matched(kernels)[0][0], {}, {})
    assert (row.bytes, row.min_duration_us, row.seq) == (size, 0.04, 9)
    assert row.algbw_gbps == pytest.approx(size / 40)
    assert row.busbw_gbps == pytest.approx(size / 40 * factor)
    assert (row.arrival_skew_us, row.end_skew_us, row.first_rank, row.last_rank) == (0.03, 0.0, 0, 3)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "Float8_e4m3fn"}, {"name": "broadcast"}, {"in_elements": None}, {"dtype": None}, {"name": None}],
)
def test_no_bandwidth_where_size_or_meaning_is_unknown(change: dict[str, Any]) -> None:
    row = describe(matched({0: [record(0, 50, seq=1, **change)], 1: [record(0, 50, seq=1, **change)]})[0][0], {}, {})
    assert (row.algbw_gbps, row.busbw_gbps) == (None, None)


def test_one_rank_alone_has_no_skew_and_no_bandwidth() -> None:
    row = describe(matched({0: [record(0, 50, seq=1)]}, world={0, 1})[0][0], {}, {})
    assert (row.arrival_skew_us, row.end_skew_us, row.first_rank, row.last_rank, row.algbw_gbps) == (None,) * 5
    assert (row.ranks, row.missing_ranks) == ([0], [1])


def test_ties() -> None:
    starts = {0: 0, 1: 0, 2: 9, 3: 9}
    kernels = {rank: [record(start, 50, seq=1, ranks=[0, 1, 2, 3])] for rank, start in starts.items()}
    matches, _notes = matched(kernels)
    row = describe(matches[0], {}, {})
    assert (row.first_rank, row.last_rank) == (1, 2)
    worst = stragglers(matches, {}, {})[0][0]
    assert (worst.rank, worst.times_last, worst.made_others_wait_us) == (2, 1, 0.0)
    together = matched({0: [record(0, 50, seq=1)], 1: [record(0, 50, seq=1)]})[0]
    assert describe(together[0], {}, {}).last_rank is None
    assert [row.times_last + row.times_first for row in stragglers(together, {}, {})[0]] == [0, 0]


def test_stragglers_worked_example() -> None:
    """Rank 2 comes 40 then 90 after rank 0, with rank 1 at 10 and 50; a broadcast does not count."""
    ranks = [0, 1, 2]
    arrive = {0: (0, 1000), 1: (10, 1050), 2: (40, 1090)}
    kernels = {
        rank: [record(start, 100, seq=n, ranks=ranks) for n, start in enumerate(starts)]
        + [record(5000 - rank * 100, 10, seq=9, name="broadcast", ranks=ranks)]
        for rank, starts in arrive.items()
    }
    rows = {row.rank: row for row in stragglers(matched(kernels)[0], {0: "a", 2: "b"}, {})[0]}
    assert [(r, rows[r].times_last, rows[r].times_first, rows[r].collectives) for r in ranks] == [
        (0, 0, 2, 2),
        (1, 0, 0, 2),
        (2, 2, 0, 2),
    ]
    assert [rows[r].wait_us for r in ranks] == [0.13, 0.07, 0.0]
    assert [rows[r].made_others_wait_us for r in ranks] == [0.0, 0.0, 0.07]
    assert [rows[r].node for r in ranks] == ["a", None, "b"]


def chain(*parts: tuple[int, int, int, int]) -> list[dict[str, Any]]:
    """Collectives one after the other: (time since the one before, computation within, duration, seq)."""
    records, now = [], 0
    for gap, computed, duration, seq in parts:
        now += gap
        known = {} if not records else {"gap": gap, "computed": computed}
        records.append(record(now, duration, seq=seq, **known))
        now += duration
    return records


@pytest.mark.parametrize(
    ("cause", "slow", "parts"),
    [
        ("compute", [(1700, 1600)], (700, 0, 0)),
        ("host", [(1700, 900)], (0, 700, 0)),
        ("host", [(1700, 1150)], (250, 450, 0)),
    ],
)
def test_what_a_straggler_is_late_by(cause: str, slow: list[tuple[int, int]], parts: tuple[int, int, int]) -> None:
    """The usual rank has 1000 ns between collectives, 900 of them computation."""
    (gap, computed) = slow[0]
    kernels = {
        0: chain((0, 0, 500, 1), (1000, 900, 300 + gap - 1000, 2)),
        1: chain((0, 0, 500, 1), (gap, computed, 300, 2)),
    }
    worst = stragglers(matched(kernels)[0], {}, {})[0][0]
    assert (worst.rank, worst.cause, worst.made_others_wait_us) == (1, cause, 0.7)
    found = (worst.late_compute_us, worst.late_host_us, worst.late_network_us)
    assert found == tuple(part / 1000 for part in parts)
    assert worst.cause_message is not None and f"late_{cause}_us" in worst.cause_message


def test_a_collective_that_ends_late_on_one_rank_is_the_network() -> None:
    kernels = {
        0: chain((0, 0, 500, 1), (1000, 900, 900, 2)),
        1: chain((0, 0, 1100, 1), (1000, 900, 300, 2)),
    }
    worst = stragglers(matched(kernels)[0], {}, {})[0][0]
    assert (worst.rank, worst.cause, worst.late_network_us) == (1, "network", 0.6)


def test_lateness_without_a_common_past_is_not_explained() -> None:
    kernels = {0: chain((0, 0, 500, 1)), 1: chain((70, 0, 430, 1))}
    worst = stragglers(matched(kernels)[0], {}, {})[0][0]
    assert (worst.late_unexplained_us, worst.cause, worst.cause_message) == (0.07, None, None)


NS = st.integers(0, 2000)


@given(
    st.lists(st.lists(st.tuples(NS, NS, NS), min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from([0, 5_000]),
)
def test_the_parts_add_up_to_the_cost(rounds: list[list[tuple[int, int, int]]], ahead: int) -> None:
    """Whatever the times, with a clock that is ahead or not: each nanosecond of cost is in one part."""
    kernels = {
        rank: chain(*((row[rank][0], min(row[rank][:2]), row[rank][2], seq) for seq, row in enumerate(rounds)))
        for rank in range(3)
    }
    for one in kernels[2]:
        one["start"] += ahead
    nodes, offsets = {0: "a", 1: "a", 2: "b"}, {"a": 0, "b": ahead}
    steps = {rank: [[7, EPOCH - 10, 30_000, None]] for rank in range(3)}
    rows, per_step = stragglers(matched(kernels)[0], nodes, offsets, steps)
    for row in rows:
        parts = (row.late_compute_us, row.late_host_us, row.late_network_us, row.late_unexplained_us)
        assert sum(part or 0 for part in parts) == pytest.approx(row.made_others_wait_us)
    assert sum(row.made_others_wait_us for row in per_step) == pytest.approx(sum(r.made_others_wait_us for r in rows))
    assert {row.step for row in per_step} <= {7}


def test_cost_by_step_goes_to_the_step_of_the_late_rank() -> None:
    kernels = {0: [record(t, 300, seq=t) for t in (0, 1000)], 1: [record(t + 90, 210, seq=t) for t in (0, 1000)]}
    steps = {1: [[3, EPOCH, 500, None], [4, EPOCH + 500, 500, None], [5, EPOCH + 1000, 90, None]]}
    per_step = stragglers(matched(kernels)[0], {1: "b"}, {}, steps)[1]
    assert [row.model_dump() for row in per_step] == [
        {"step": 3, "rank": 1, "node": "b", "times_last": 1, "made_others_wait_us": 0.09}
    ]


# --- sizes ---


def test_collectives_by_size() -> None:
    kernels = {
        rank: [
            record(t * 1000, duration - rank * 10, seq=t, in_elements=elements)
            for t, (duration, elements) in enumerate([(100, 500), (300, 1000), (110, 500), (400, 1000), (900, 1000)])
        ]
        for rank in (0, 1)
    }
    rows = sizes([describe(match, {}, {}) for match in matched(kernels)[0]])
    assert [(row.bytes, row.count, row.group_size) for row in rows] == [(2000, 3, 2), (1000, 2, 2)]
    large = rows[0]
    assert (large.min_duration_us, large.median_duration_us, large.max_duration_us) == (0.29, 0.39, 0.89)
    assert large.median_algbw_gbps == large.median_busbw_gbps == 2000 / 390
    assert (large.min_busbw_gbps, large.max_busbw_gbps) == (2000 / 890, 2000 / 290)
    alone = matched({0: [record(0, 5)]})[0]
    assert sizes([describe(match, {}, {}) for match in alone]) == []


def test_ranks_that_disagree_on_a_size_are_named() -> None:
    count = MAX_MISMATCHES + 3
    kernels = {rank: [record(t, 5, seq=t, in_elements=7 + (rank == 1)) for t in range(count)] for rank in (0, 1, 2)}
    matches, _notes = matched(kernels, world={0, 1, 2})
    notes = mismatch_notes(matches)
    assert [note.code for note in notes] == ["collective_mismatch"] * (MAX_MISMATCHES + 1)
    assert "ranks 0, 2: BFloat16, 7 in, 1000 out; rank 1: BFloat16, 8 in" in notes[0].message
    assert notes[-1].count == 3
    ragged = {rank: [record(0, 5, seq=1, name="all_to_allv", in_elements=rank)] for rank in (0, 1)}
    assert mismatch_notes(matched(ragged)[0]) == []


# --- clocks ---


def on_two_nodes(offset: int, count: int = 9) -> dict[int, list[dict[str, Any]]]:
    """Ranks 0, 1 on one host, 2, 3 on another whose clock is ahead; rank 3 arrives 200 ns late; one odd sample."""
    ranks = [0, 1, 2, 3]
    kernels: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks}
    for n in range(count):
        for rank in ranks:
            start = n * 1000 + (200 if rank == 3 else 0)
            odd = 300_000 if n == 4 and rank > 1 else 0
            ahead = offset if rank > 1 else 0
            kernels[rank].append(record(start + ahead, 500 - start % 1000 + odd, seq=n, ranks=ranks))
    return kernels


NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.mark.parametrize("offset", [2_500_123, -7_000_000_001, 0, 5])
def test_offset_of_the_other_clock(offset: int) -> None:
    matches, _notes = matched(on_two_nodes(offset))
    offsets, spreads, notes = clock_offsets(matches, NODES)
    assert offsets == {"a": 0, "b": offset}
    assert spreads == {"b": 0}
    assert [note.code for note in notes] == (["clock_offset"] if abs(offset) >= 10_000 else [])
    if notes:
        assert "b" in notes[0].message and f"{abs(offset) / 1000:.3f}" in notes[0].message
        assert ("ahead" if offset > 0 else "behind") in notes[0].message
    rows = [describe(match, NODES, offsets) for match in matches]
    assert {(row.arrival_skew_us, row.last_rank) for row in rows} == {(0.2, 3)}


@pytest.mark.parametrize("nodes", [{}, dict.fromkeys(range(4), "a"), {0: "a"}])
def test_one_host_or_unknown_hosts_need_no_offset(nodes: dict[int, str]) -> None:
    matches, _notes = matched(on_two_nodes(2_500_000))
    assert clock_offsets(matches, nodes) == ({}, {}, [])


def test_offsets_over_a_third_host_and_none_at_all() -> None:
    ab = {"ranks": [0, 1], "seq": 1, "group": "ab"}
    bc = {"ranks": [1, 2], "seq": 1, "group": "bc"}
    kernels = {
        0: [record(0, 100, **ab)],
        1: [record(1000, 100, **ab), record(5000, 100, **bc)],
        2: [record(5000 + 30_000, 100, **bc)],
        3: [record(0, 100, ranks=[3], seq=1, group="d")],
    }
    offsets, spreads, notes = clock_offsets(matched(kernels)[0], {0: "a", 1: "b", 2: "c", 3: "d"})
    assert offsets == {"a": 0, "b": 1000, "c": 31_000}
    assert spreads == {"b": 0, "c": 0}
    assert [note.code for note in notes] == ["clock_offset", "clock_offset_unknown"]
    assert "d" in notes[1].message
