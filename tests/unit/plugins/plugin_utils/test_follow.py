# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The follower against real processes, started by the real module, through a real shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from ansible_collections.aorta.automation.plugins.modules import process_step
from ansible_collections.aorta.automation.plugins.plugin_utils import _follow


def shell(command):
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def launch(directory, script, timeout=60):
    params = {
        "directory": str(directory),
        "argv": [sys.executable, "-u", "-c", script],
        "environment": {},
        "chdir": None,
        "timeout": timeout,
        "grace": 2,
    }
    state, changed = process_step.start(params)
    assert changed
    return state


def watch(tmp_path, names, timeout=30, grace=5, interrupted=lambda: None, shells=None):
    seen = {name: [] for name in names}
    targets = [_follow.Target(name, (shells or {}).get(name, shell), str(tmp_path / name)) for name in names]
    result = _follow.follow(
        targets,
        "train",
        tmp_path / "logs",
        timeout=timeout,
        grace=grace,
        interval=0.05,
        emit=lambda host, lines: seen[host].extend(lines),
        interrupted=interrupted,
    )
    return result, seen


def test_every_line_arrives_once_and_in_order(tmp_path):
    launch(
        tmp_path / "a", "import time\nfor i in range(20000):\n    print('line', i)\n    i % 4000 or time.sleep(0.05)"
    )
    launch(tmp_path / "b", "print('one')")
    result, seen = watch(tmp_path, ["a", "b"])
    assert seen["a"] == [f"line {i}" for i in range(20000)]
    assert seen["b"] == ["one"]
    assert (tmp_path / "logs" / "a.log").read_text().splitlines() == seen["a"]
    assert result["a"]["exit_code"] == 0
    assert result["a"]["lines"] == 20000


def test_odd_output_is_kept_byte_for_byte(tmp_path):
    launch(tmp_path / "a", "import os\nos.write(1, b'x' * 3000000 + b'\\n\\xff\\xfe bad\\r\\nno newline at the end')")
    _result, seen = watch(tmp_path, ["a"])
    raw = (tmp_path / "logs" / "a.log").read_bytes()
    assert raw == b"x" * 3000000 + b"\n\xff\xfe bad\r\nno newline at the end"
    assert [len(seen["a"][0]), *seen["a"][1:]] == [3000000, "�� bad", "no newline at the end"]


def test_one_fails_all_stop(tmp_path):
    other = launch(tmp_path / "b", "import time\ntime.sleep(60)")
    report = "Root Cause (first observed failure):\\n[0]:\\n  rank      : 5 (local_rank: 1)\\n  exitcode  : 3"
    launch(tmp_path / "a", f"import sys, time\ntime.sleep(0.3)\nprint('{report}')\nsys.exit(3)")
    started = time.monotonic()
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a", "b"])
    assert time.monotonic() - started < 15
    failure = caught.value.failure
    assert (failure.host, failure.exit_code, failure.rank, failure.reason) == ("a", 3, 5, "step_failed")
    assert "failed first on a, rank 5" in failure.message
    assert failure.log_tail[-1] == "  exitcode  : 3"
    with pytest.raises(ProcessLookupError):
        os.kill(other["pid"], 0)


def test_the_rank_that_lost_its_peer_is_not_named_as_the_cause(tmp_path):
    report = "Root Cause (first observed failure):\\n[0]:\\n  rank      : {} (local_rank: 0)"
    lost = "[rank0]: RuntimeError: Connection closed by peer [192.0.2.1]:16615. This is typically caused by a crash"
    script = "import sys, time\ntime.sleep({})\nprint('{}\\n{}')\nsys.exit(1)"
    launch(tmp_path / "a", script.format(0.1, lost, report.format(0)))  # whose clock may be wrong
    launch(tmp_path / "b", script.format(0.15, "[rank2]: RuntimeError: HIP error\\n" + lost, report.format(2)))
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a", "b"])
    assert (caught.value.failure.host, caught.value.failure.rank) == ("b", 2)


def test_the_deadline_stops_the_step(tmp_path):
    state = launch(tmp_path / "a", "import time\nprint('begun')\ntime.sleep(60)")
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a"], timeout=1)
    assert caught.value.failure.reason == "deadline"
    assert "not done after 1 s" in caught.value.failure.message
    with pytest.raises(ProcessLookupError):
        os.kill(state["pid"], 0)


def test_the_deadline_also_lives_on_the_host(tmp_path):
    launch(tmp_path / "a", "import time\ntime.sleep(60)", timeout=1)
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a"], timeout=30)
    assert caught.value.failure.reason == "deadline"
    assert "its deadline had passed (aorta_timeout_seconds)" in caught.value.failure.message


def test_a_host_that_comes_back_within_the_grace_period_loses_nothing(tmp_path):
    launch(tmp_path / "a", "import time\nfor i in range(30):\n    print(i)\n    time.sleep(0.1)")
    away = (time.monotonic() + 0.5, time.monotonic() + 2.5)

    def flaky(command):
        if away[0] < time.monotonic() < away[1]:
            raise OSError("no route to host")
        return shell(command)

    _result, seen = watch(tmp_path, ["a"], grace=10, shells={"a": flaky})
    assert seen["a"] == [str(i) for i in range(30)]


def test_a_host_that_stays_away_is_named(tmp_path):
    launch(tmp_path / "b", "import time\ntime.sleep(60)")

    def gone(command):
        raise OSError("no route to host")

    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a", "b"], grace=1, shells={"a": gone})
    assert caught.value.failure.reason == "unreachable"
    assert "a could not be reached" in caught.value.failure.message
    assert "no route to host" in caught.value.failure.message
    assert json.loads((tmp_path / "b" / "state.json").read_text())["status"] == "exited"


def test_an_interrupt_stops_the_step(tmp_path):
    state = launch(tmp_path / "a", "import time\ntime.sleep(60)")
    limit = time.monotonic() + 0.5
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a"], interrupted=lambda: "SIGINT received" if time.monotonic() > limit else None)
    assert caught.value.failure.reason == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(state["pid"], 0)


def test_a_command_that_does_not_exist(tmp_path):
    params = {"directory": str(tmp_path / "a"), "argv": ["/no/such"], "environment": {}, "chdir": None}
    process_step.start({**params, "timeout": 5, "grace": 1})
    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a"])
    assert caught.value.failure.exit_code == 127
    assert "/no/such" in caught.value.failure.log_tail[0]


def test_another_follower_goes_on_at_the_right_byte(tmp_path):
    launch(
        tmp_path / "a",
        "import sys, time\nfor i in range(30):\n    sys.stdout.write(f'line {i}')\n    sys.stdout.flush()\n"
        "    time.sleep(0.05)\n    print(flush=True)",
    )
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("of a step before\n")
    target = _follow.Target("a", shell, str(tmp_path / "a"))
    lines = _follow.queue.Queue()
    first = _follow.HostFollower(target, tmp_path / "logs" / "a.log", "train", 0.01, lines)
    first.start()
    time.sleep(0.6)
    first.stop_asked.set()
    first.join()
    assert 0 < first.line_count < 30
    result, seen = watch(tmp_path, ["a"])
    assert (tmp_path / "logs" / "a.log").read_text() == "of a step before\n" + "".join(f"line {i}\n" for i in range(30))
    assert seen["a"][-1] == "line 29"
    assert result["a"]["lines"] + first.line_count in (30, 31)  # a line that was cut in two is shown once more


def test_a_step_that_was_started_anew_is_read_from_its_beginning(tmp_path):
    for text in ("one", "two"):
        launch(tmp_path / "a", f"print('{text}')")
        _result, seen = watch(tmp_path, ["a"])
        assert seen["a"] == [text]
        for file in (tmp_path / "a").iterdir():
            file.unlink()
    assert (tmp_path / "logs" / "a.log").read_text() == "one\ntwo\n"


def test_a_full_disk_of_the_host_is_named(tmp_path):
    launch(tmp_path / "a", "import sys\nsys.exit(1)")

    def full(command):
        return (0, b"4096", b"") if command.startswith("df ") else shell(command)

    with pytest.raises(_follow.StepFailed) as caught:
        watch(tmp_path, ["a"], shells={"a": full})
    assert f"the disk of {tmp_path / 'a'} is full" in caught.value.failure.message


def test_the_engine_is_not_needed_to_stop_a_container(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    try:
        group = subprocess.run(
            ["cat", f"/proc/{process.pid}/cgroup"], capture_output=True, check=True, text=True
        ).stdout
        target = _follow.Target("a", shell, str(tmp_path), container="no-such-container")
        assert shell(_follow.stop_command(target, process.pid, engine_answers=False))[0] != 0
        assert process.poll() is None  # its cgroup is not the container's
        target.container = group.strip().splitlines()[-1].rpartition(":")[2]
        command = _follow.stop_command(target, process.pid, engine_answers=False)
        threading.Timer(0.1, process.wait).start()
        assert shell(command)[0] == 0
        assert process.wait(timeout=5) == -15
    finally:
        process.kill()


def container(text, code=0):
    target = _follow.Target("a", shell, "/d", container="c")
    return _follow.parse_poll(target, f"{code} {text}\n7\nabc".encode())


def test_the_engines_record_is_read():
    record = {
        "Status": "exited",
        "ExitCode": 137,
        "OOMKilled": True,
        "Error": "",
        "FinishedAt": "t1",
        "StartedAt": "t0",
    }
    state, size, data = container(json.dumps(record))
    assert (state.status, state.exit_code, state.oom, size, data) == ("exited", 137, True, 7, b"abc")
    assert "OOM" in _follow._explain(state)
    state, _size, _data = container(json.dumps({**record, "Status": "running", "OOMKilled": False}))
    assert (state.status, state.exit_code) == ("running", None)


def test_a_removed_container_is_no_unreachable_host():
    state, _size, _data = container("Error: No such container: c", code=1)
    assert state.status == "missing"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [("Cannot connect to the Docker daemon", 1, "Cannot connect"), ("", 124, "did not answer in time")],
)
def test_an_engine_out_of_reach_is_an_unreachable_host(text, code, expected):
    with pytest.raises(OSError, match=expected):
        container(text, code)


def test_hostile_names_stay_inside_the_log_directory():
    assert _follow.safe_name("../../etc/passwd").startswith("_.._etc_passwd-")
    assert "/" not in _follow.safe_name("a/b")
    assert _follow.safe_name("a/b") != _follow.safe_name("a_b") == "a_b"
    assert len(_follow.safe_name("x" * 300)) < 120


def test_hostile_paths_are_no_commands(tmp_path):
    marker = tmp_path / "pwned"
    target = _follow.Target("a", shell, f"{tmp_path}/x'; touch {marker}; '", container=f"c'`touch {marker}`")
    os.makedirs(target.directory)
    for command in (_follow.poll_command(target, 0), _follow.stop_command(target)):
        shell(command)
    assert not marker.exists()
