# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import re
import signal
from pathlib import Path

import pytest
from ansible_collections.aorta.automation.plugins.module_utils import _trace_pool
from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import read_file, read_files
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import compile_rule
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import (
    TraceSet,
    assign_ranks,
    find_traces,
    ranks_in_path,
    read_nodes,
)
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import Trace, healthy

RULE = compile_rule("tracelens")


def assigned(root: Path) -> TraceSet:
    return assign_ranks([read_file(file, RULE) for file in find_traces(root)])


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("rank0/trace_step5.json", (0,)),
        ("rank_1/trace.json", (1,)),
        ("node07_rank-2.trace.json", (2,)),
        ("[rank3].json", (3,)),
        ("rank[4]/x.json", (4,)),
        ("torch_profiler/rank10/trace.json.gz", (10,)),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", (34,)),
        ("Rank_007.json", (7,)),
        ("rank0of16/x.json", (0,)),
        ("rank3/rank0_iter16_18.json", (0, 3)),
        ("rank3/rank3_trace.json", (3,)),
        ("host_77.1767231900000000000.pt.trace.json", ()),
        ("local_rank3/x.json", ()),
        ("node_rank1/rank9.json", (9,)),
        ("frank3.json", ()),
        ("ranking.json", ()),
    ],
)
def test_ranks_in_path(name: str, ranks: tuple[int, ...]) -> None:
    assert ranks_in_path(name) == ranks


def test_find_traces(tmp_path: Path) -> None:
    wanted = [
        "rank0/a.json",
        "rank0/host_1.2.pt.trace.json.gz",
        "torch_profiler/rank2/b.json",
        "torch_profiler/rank10/b.json",
    ]
    others = [
        "nodes.json",
        "rank0/.a.json",
        "rank0/.hidden/a.json",
        "rank0/a.json.tmp",
        "rank0/notes.txt",
        "results.json",
        "spec.json",
        "manifest.json",
        "verdict.json",
        "rank0/a.jsonl",
    ]
    for name in wanted + others:
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (tmp_path / "t" / "rank0" / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "t" / "rank0" / "again.json").symlink_to(tmp_path / "t" / "rank0" / "a.json")
    (tmp_path / "t" / "loop").symlink_to(tmp_path / "t")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank11.json").write_text("{}")
    (tmp_path / "t" / "linked").symlink_to(tmp_path / "elsewhere")
    assert [file.name for file in find_traces(tmp_path / "t")] == [*wanted, "linked/rank11.json"]


def test_a_single_file_is_a_set_of_traces(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "t.json")
    assert [file.name for file in find_traces(path)] == ["t.json"]
    assert find_traces(tmp_path / "absent") == []


def test_nodes(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == {}
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "nodes.json").write_text('{"0": "a", "10": "b"}')
    assert read_nodes(tmp_path) == read_nodes(tmp_path / "traces") == {0: "a", 10: "b"}
    for damaged in ("[1]", '{"x": "a"}', "{"):
        (tmp_path / "nodes.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"nodes\.json"):
            read_nodes(tmp_path)


# --- reading side by side ---


def test_each_file_has_its_outcome_in_order(tmp_path: Path) -> None:
    healthy(0).write(tmp_path / "rank0" / "t.json")
    (tmp_path / "rank1.json").write_text("")
    (tmp_path / "rank2.json").write_text("{}")
    healthy(3).write(tmp_path / "rank3" / "t.json.gz")
    files = find_traces(tmp_path)
    told: list[str] = []
    outcomes = read_files(files, RULE, progress=lambda outcome: told.append(outcome.file.name))
    assert [outcome.file for outcome in outcomes] == files
    assert sorted(told) == sorted(file.name for file in files)
    assert [outcome.summary is not None for outcome in outcomes] == [True, False, False, True]
    assert [outcome.error[0] if outcome.error else None for outcome in outcomes] == [
        None,
        "trace_empty_file",
        None,
        None,
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", outcome.sha256) for outcome in outcomes)


def test_a_killed_reader_costs_only_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        healthy(rank, 4).write(tmp_path / f"rank{rank}" / "t.json")
    read = _trace_pool.read_file

    def dies(file: _trace_pool.TraceFile, *args: object, **kwargs: object) -> _trace_pool.Outcome:
        if file.name.startswith("rank2"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(file, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(_trace_pool, "read_file", dies)
    outcomes = read_files(find_traces(tmp_path), RULE, processes=2)
    assert [outcome.summary is not None for outcome in outcomes] == [True, True, False, True]
    assert outcomes[2].error is not None
    assert outcomes[2].error[0] == "reader_died" and "signal 9" in outcomes[2].error[1]


def test_a_file_alone_is_hashed_beside_its_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashlib.sha256(healthy().write(tmp_path / "rank0.json").read_bytes()).hexdigest()
    reader = os.getpid()
    hashed_by: list[int] = []
    sha256_of = _trace_pool.sha256_of

    def spied(path: Path) -> str:
        hashed_by.append(os.getpid())
        return sha256_of(path)

    monkeypatch.setattr(_trace_pool, "sha256_of", spied)
    file = find_traces(tmp_path)[0]
    assert _trace_pool.read_file(file, RULE, processes=2).sha256 == expected
    assert hashed_by == []  # it was another process

    def dies(path: Path) -> str:
        if os.getpid() != reader:
            os.kill(os.getpid(), signal.SIGKILL)
        return spied(path)

    monkeypatch.setattr(_trace_pool, "sha256_of", dies)
    outcome = _trace_pool.read_file(file, RULE, processes=2)
    assert (outcome.sha256, outcome.error, hashed_by) == (expected, None, [reader])
    assert _trace_pool.read_file(find_traces(tmp_path)[0], RULE, processes=1).sha256 == expected
    (tmp_path / "rank0.json").unlink()
    gone = _trace_pool.read_file(file, RULE, processes=2)
    assert gone.error is not None and gone.error[0] == "trace_unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "rank0.json")
    path.chmod(0)
    outcome = read_file(find_traces(tmp_path)[0], RULE)
    assert outcome.error is not None and outcome.error[0] == "trace_unreadable"


def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "rank0.json")
    file = find_traces(tmp_path)[0]
    path.unlink()
    outcome = read_file(file, RULE)
    assert outcome.error is not None and outcome.error[0] == "trace_unreadable"


# --- whose is it ---


def test_rank_from_header_or_path(tmp_path: Path) -> None:
    healthy(3, 4).write(tmp_path / "any.json")
    healthy(None, None).write(tmp_path / "rank_1" / "x.json")
    found = assigned(tmp_path)
    assert (sorted(found.ranks), found.world_size, found.errors) == ([1, 3], 4, [])
    assert found.file_ranks == {"any.json": 3, "rank_1/x.json": 1}


def test_the_header_decides_between_ranks_in_the_path(tmp_path: Path) -> None:
    healthy(3, 4).write(tmp_path / "rank3" / "rank0_iter16.json")
    assert sorted(assigned(tmp_path).ranks) == [3]


def test_header_against_path_is_a_conflict(tmp_path: Path) -> None:
    healthy(0, 2).write(tmp_path / "rank0" / "t.json")
    healthy(0, 2, late=5).write(tmp_path / "rank1" / "t.json")
    found = assigned(tmp_path)
    assert sorted(found.ranks) == [0]
    (error,) = found.errors
    assert (error.code, error.rank, error.file) == ("rank_conflict", 1, "rank1/t.json")
    assert "rank 1" in error.message and "rank 0" in error.message


def test_two_ranks_in_the_path_and_none_in_the_header_is_a_conflict(tmp_path: Path) -> None:
    healthy(None, None).write(tmp_path / "rank3" / "rank0.json")
    found = assigned(tmp_path)
    assert ([error.code for error in found.errors], found.unplaced) == (["rank_conflict"], 1)


def test_no_rank_anywhere_is_an_error(tmp_path: Path) -> None:
    healthy(None, 2).write(tmp_path / "host_77.123.pt.trace.json")
    found = assigned(tmp_path)
    assert ([error.code for error in found.errors], found.unplaced, found.ranks) == (["rank_unknown"], 1, {})


def test_traces_of_different_worlds_are_noted(tmp_path: Path) -> None:
    healthy(0, 2).write(tmp_path / "rank0.json")
    healthy(1, 4).write(tmp_path / "rank1.json")
    found = assigned(tmp_path)
    assert (found.world_size, [note.code for note in found.notes]) == (4, ["world_size_conflict"])
    assert "2, 4" in found.notes[0].message


def test_same_data_twice_counts_once(tmp_path: Path) -> None:
    healthy().write(tmp_path / "rank0" / "trace_step7.json")
    healthy().write(tmp_path / "rank0" / "gpu-a_4100.1767231900123456789.pt.trace.json.gz")
    found = assigned(tmp_path)
    assert [file.name for file, _summary in found.ranks[0].files] == ["rank0/trace_step7.json"]
    assert [(note.code, note.rank) for note in found.notes] == [("duplicate_trace", 0)]


def test_windows_one_after_the_other_are_cycles_in_order_of_time(tmp_path: Path) -> None:
    healthy(base=1767225600000000000 + 60 * 10**9).write(tmp_path / "rank0" / "a.json")
    healthy().write(tmp_path / "rank0" / "b.json")
    found = assigned(tmp_path)
    assert [file.name for file, _summary in found.ranks[0].files] == ["rank0/b.json", "rank0/a.json"]
    assert (found.notes, found.errors) == ([], [])


def test_different_data_of_the_same_time_are_ambiguous(tmp_path: Path) -> None:
    healthy().write(tmp_path / "rank0" / "a.json")
    healthy(late=1000).write(tmp_path / "rank0" / "b.json")
    healthy(1, 2).write(tmp_path / "rank1" / "a.json")
    found = assigned(tmp_path)
    assert sorted(found.ranks) == [1]
    (error,) = found.errors
    assert (error.code, error.rank) == ("ambiguous_traces", 0)
    assert "rank0/a.json" in error.message and "rank0/b.json" in error.message


def test_a_damaged_copy_does_not_hide_the_sound_one(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "rank0" / "a.json")
    (tmp_path / "rank0" / "b.json").write_bytes(path.read_bytes()[:-50])
    found = assigned(tmp_path)
    assert (sorted(found.ranks), [error.code for error in found.errors]) == ([0], ["trace_truncated"])


def test_a_file_without_any_data_beside_a_sound_one_is_noted(tmp_path: Path) -> None:
    healthy().write(tmp_path / "rank0" / "a.json")
    Trace().event("cpu_op", "aten::mm", 0, 1).write(tmp_path / "rank0" / "b.json")
    found = assigned(tmp_path)
    assert len(found.ranks[0].files) == 1
    assert [note.code for note in found.notes] == ["trace_without_data"]
