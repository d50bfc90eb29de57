# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims of hosts, leftovers, interfaces: what preflight finds on a host, with real files."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.modules import host_check, process_step


def check(work, run_id, **params):
    one = host_check.Check(
        {
            "runtime": "process",
            "run_id": run_id,
            "node_rank": 0,
            "claim": True,
            "dead_runs": [],
            "socket_interfaces": {},
            "work_dir": str(work),
            "min_free_gb": 0,
            "benchmark_path": None,
            "will_clone": False,
            "required_files": [],
            "rendezvous_address": None,
            **params,
        }
    )
    one.all()
    return one


def give_up(work, run_id):
    process_step.stop({"directory": str(work), "run_id": run_id, "node_rank": "", "remove": True, "grace": 1})


def age(work, run_id, seconds):
    old = time.time() - seconds
    for path in work.glob(f"{run_id}-node*/heartbeat"):
        os.utime(path, (old, old))


def test_a_second_run_is_refused_until_the_first_gives_up(tmp_path):
    work = tmp_path / "a work dir"
    assert check(work, "r1").host["claimed"]
    assert check(work, "r1", node_rank=1).host["claimed"]  # a simulated node of the same run
    second = check(work, "r2")
    assert [problem["check"] for problem in second.problems] == ["busy"]
    assert "run r1 is going on here" in second.problems[0]["message"]
    assert not second.host["claimed"]
    give_up(work, "r1")
    assert not work.exists()
    assert check(work, "r2").host["claimed"]


@pytest.mark.parametrize("how", ["old", "dead"])
def test_the_claim_of_a_run_that_is_over_is_taken_over(tmp_path, how):
    assert check(tmp_path, "r1").host["claimed"]
    if how == "old":
        age(tmp_path, "r1", _host.CLAIM_STALE_AFTER_SECONDS + 5)
    second = check(tmp_path, "r2", dead_runs=["r1"] if how == "dead" else [])
    assert second.problems == []
    assert second.host["leftovers"] == ["r1"]
    assert _host.claimed_by(str(tmp_path)) == "r2"
    give_up(tmp_path, "r1")  # what deploy does with leftovers: the claim of the new run stays
    assert _host.claimed_by(str(tmp_path)) == "r2"


def test_the_clean_up_of_all_runs_takes_no_claim_for_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(_host.socket, "gethostname", lambda: "x-node0")
    work = tmp_path / "work"
    assert check(work, "r1").host["claimed"]
    params = {"directory": str(work), "run_id": "", "node_rank": "", "remove": True, "grace": 1}
    _step, changed, left = process_step.stop(params)
    assert (changed, left) == (True, [])
    assert not work.exists()


def test_nothing_is_claimed_where_something_is_wrong(tmp_path):
    one = check(tmp_path / "work", "r1", benchmark_path="/no/such")
    assert [problem["check"] for problem in one.problems] == ["benchmark_path"]
    assert not (tmp_path / "work").exists()


def test_own_steps_are_found_again(tmp_path):
    directory = tmp_path / "r1-node0" / "steps" / "train"
    directory.mkdir(parents=True)
    process_step.write_state(str(directory), {"status": "exited", "pid": 1, "start_time": 0})
    assert check(tmp_path, "r1").host["steps"] == {"train": ""}
    assert check(tmp_path, "r1", node_rank=1).host["steps"] == {}


@pytest.mark.parametrize(
    ("pattern", "exact", "fits"),
    [
        ("eth0", True, True),
        ("eth", True, False),
        ("eth", False, True),
        ("ib,eth", False, True),
        ("=eth", False, False),
        ("=eth0", False, True),
        ("^docker,lo", False, True),
        ("^eth,lo", False, False),
        ("ib0", False, False),
    ],
)
def test_interfaces_are_chosen_as_nccl_and_gloo_do(pattern, exact, fits):
    assert host_check.any_matches(pattern, ["lo", "eth0"], exact) is fits
