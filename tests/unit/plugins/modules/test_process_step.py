# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the process runtime: real processes."""

from __future__ import annotations

import os
import sys
import time

import pytest
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.modules import process_step


def start(work, node, script, timeout=60, run_id="r1"):
    directory = str(work / _host.node_dir_name(run_id, node) / "steps" / "train")
    params = {"directory": directory, "argv": [sys.executable, "-c", script], "environment": {"X": "1"}}
    return directory, process_step.start({**params, "chdir": None, "timeout": timeout, "grace": 2})[0]


def stop(work, run_id="", node_rank="", remove=True):
    params = {"directory": str(work), "run_id": run_id, "node_rank": node_rank, "remove": remove, "grace": 2}
    return process_step.stop(params)


def end_of(directory):
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        state = process_step.read_state(directory)
        if state["status"] == "exited":
            return state
        time.sleep(0.05)
    raise AssertionError(f"still {state}")


def gone(pid):
    return _host.process_start_time(pid) is None


def test_the_end_of_a_step_is_written_down(tmp_path):
    directory, _state = start(tmp_path, 0, "import os, sys; print(os.environ['X']); sys.exit(7)")
    state = end_of(directory)
    assert (state["exit_code"], state["timed_out"]) == (7, False)
    assert state["finished"] >= state["started"]
    with open(os.path.join(directory, "log")) as log:
        assert log.read() == "1\n"


def test_a_step_is_started_once(tmp_path):
    _directory, first = start(tmp_path, 0, "import time; time.sleep(30)")
    _directory, second = start(tmp_path, 0, "raise SystemExit('started twice')")
    assert second["pid"] == first["pid"]
    stop(tmp_path)


def test_a_signal_is_a_negative_exit_code(tmp_path):
    directory, _state = start(tmp_path, 0, "import os; os.kill(os.getpid(), 9)")
    assert end_of(directory)["exit_code"] == -9


def test_the_deadline_ends_children_too(tmp_path):
    script = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    directory, state = start(tmp_path, 0, script, timeout=1)
    ended = end_of(directory)
    assert ended["timed_out"]
    with open(os.path.join(directory, "log")) as log:
        child = int(log.read())
    assert gone(state["pid"])
    assert gone(child)


def test_stopping_takes_only_the_run_and_the_node_that_are_meant(tmp_path):
    work = tmp_path / "work"
    states = {
        key: start(work, key[1], "import time; time.sleep(60)", run_id=key[0])[1]
        for key in [("r1", 0), ("r1", 1), ("r2", 0)]
    }
    stop(work, run_id="r1", node_rank="0")
    assert [gone(state["pid"]) for state in states.values()] == [True, False, False]
    stop(work, run_id="r1")
    assert [gone(state["pid"]) for state in states.values()] == [True, True, False]
    assert [path.name for path in work.iterdir()] == ["r2-node0"]
    stop(work)
    assert gone(states["r2", 0]["pid"])
    assert not work.exists()


def test_what_is_not_ours_is_left(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "x-node1y").mkdir()
    stop(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "x-node1y"]


def test_a_reused_pid_is_not_ours(tmp_path):
    directory = tmp_path / "r1-node0" / "steps" / "train"
    directory.mkdir(parents=True)
    process_step.write_state(str(directory), {"status": "running", "pid": os.getpid(), "start_time": 1})
    assert not _host.is_alive(process_step.read_state(str(directory)))
    stop(tmp_path)  # would end this test


@pytest.mark.parametrize(
    ("name", "run_id"), [("a-node3", "a"), ("a-node1-node2", "a-node1"), ("a", ""), ("a-nodex", "")]
)
def test_the_run_of_a_directory(name, run_id):
    assert _host.run_id_of(name) == run_id
