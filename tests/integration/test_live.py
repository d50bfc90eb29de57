# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of the hosts on the terminal and in logs/<host>.log: soon, whole, once, and not too often for AWX."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import ansible_runner
import pytest
import yaml
from ansible_collections.aorta.automation.plugins.action.follow import printable

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = Path(__file__).resolve().parent / "live_workload"

# They measure times, so they are not among the tests that decide over a change.
pytestmark = pytest.mark.slow


def settings(output, parts, **more):
    return {
        "aorta_base_config": "config/any.json",
        "aorta_gpus_per_node": 1,
        "aorta_timeout_seconds": 120,
        "aorta_min_free_gb": 0.1,
        "aorta_output_dir": str(output),
        "aorta_environment": {"OMP_LIVE": parts},
        **more,
    }


class LiveRun:
    """A run on the rig whose terminal output and log files are watched as they come."""

    def __init__(self, rig, tmp_path, parts):
        self.output = tmp_path / "out"
        variables = settings(
            self.output,
            parts,
            aorta_path="/opt/live",
            aorta_docker={"image": "aorta-standin:local", "shm_size": "64m", "pull": "never"},
            aorta_multi_node={"torchrun_command": ["python3", "/mnt/train.py"]},
        )
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ansible-playbook")), "aorta.yml", "-e", json.dumps(variables)],
            cwd=ROOT,
            env=os.environ | rig.environment() | {"ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.terminal: list[tuple[float, str]] = []
        self.in_log: dict[str, float] = {}
        self.threads = [threading.Thread(target=self._read), threading.Thread(target=self._look)]
        for thread in self.threads:
            thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.terminal.append((time.time(), line.decode("utf-8", "replace").rstrip("\n")))

    def _look(self):
        """When each line of node0's log was seen there."""
        known = 0
        while self.process.poll() is None:
            path = self.output / "latest" / "logs" / "node0.log"
            if path.exists() and path.stat().st_size > known:
                for line in path.read_bytes()[known:].splitlines():
                    self.in_log.setdefault(line.decode("utf-8", "replace"), time.time())
                known = path.stat().st_size
            time.sleep(0.02)

    def wait_for(self, text, timeout=90):
        limit = time.monotonic() + timeout
        while not any(text in line for _time, line in self.terminal):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < limit, self.text
            time.sleep(0.05)

    def end(self, timeout=180):
        self.process.wait(timeout)
        for thread in self.threads:
            thread.join()

    @property
    def text(self):
        return "\n".join(line for _time, line in self.terminal)[-5000:]

    def check(self, host):
        """The log is what was printed, byte for byte; the terminal shows each of its lines once and in order."""
        log = (self.output / "latest" / "logs" / f"{host}.log").read_bytes()
        body, _, told = log.rpartition(b"sha256 ")
        assert hashlib.sha256(body).hexdigest() == told.decode("utf-8", "replace"), self.text
        lines = [line.rstrip(b"\r").decode("utf-8", "replace") for line in log.split(b"\n")]
        shown = [line for _time, line in self.terminal if line.startswith(f"[{host}] ")]
        assert shown == [f"[{host}] {printable(line)}" for line in lines]
        return lines


def drop_sessions(host):
    """End every ssh session of a host; its sshd goes on listening."""
    processes = host.pids_named("sshd")
    for pid in processes:
        if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in processes:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def live_rig(make_rig):
    return make_rig(2, user="bench", binds=[f"{WORKLOAD}:/opt/live"])


def test_lines_are_live_whole_and_once(live_rig, tmp_path):
    # a daemon that keeps next to nothing of what containers print makes no difference
    host = live_rig.host("node1")
    live_rig.docker_stop(host)
    config = host.path("/etc/docker/daemon.json")
    config.write_text(
        json.dumps(
            json.loads(config.read_text())
            | {"log-driver": "json-file", "log-opts": {"max-size": "1k", "max-file": "1"}}
        )
    )
    live_rig.docker_start(host)
    run = LiveRun(live_rig, tmp_path, "stamps:15 odd: slow:200 flood:100000 slow:20")
    try:
        # a connection that drops on one host, an sshd that is away for three seconds on the other
        run.wait_for("[node1] slow 20")
        drop_sessions(live_rig.host("node0"))
        live_rig.sshd_stop("node1")
        time.sleep(3)
        live_rig.sshd_start("node1")
    finally:
        run.end()
    for name in ("node0", "node1"):
        lines = run.check(name)
        assert [line for line in lines if line.startswith("flood")][-1].startswith("flood 99999 ")
        assert len(lines) == 15 + 5 + 200 + 100_000 + 20 + 1
    on_terminal, in_log = [], []
    for arrival, line in run.terminal:
        if line.startswith("[node0] stamp "):
            printed = line.removeprefix("[node0] ")
            on_terminal.append(arrival - float(printed.split()[1]))
            in_log.append(run.in_log[printed] - float(printed.split()[1]))
    assert len(on_terminal) == 15
    print(f"\nmedian seconds: terminal {statistics.median(on_terminal):.2f}, log {statistics.median(in_log):.2f}")
    assert statistics.median(on_terminal) < 1.5
    assert statistics.median(in_log) < 1.5


def test_eight_chatty_hosts_do_not_flood_awx(tmp_path):
    variables = settings(
        tmp_path / "out",
        "chat:8",
        ansible_connection="local",
        ansible_python_interpreter=sys.executable,
        aorta_runtime="process",
        aorta_path=str(WORKLOAD),
        aorta_work_dir=str(tmp_path / "work"),
        aorta_multi_node={"master_addr": "127.0.0.1", "torchrun_command": [sys.executable, str(WORKLOAD / "train.py")]},
    )
    hosts = [f"node{number}" for number in range(8)]
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"aorta": {"hosts": dict.fromkeys(hosts), "vars": variables}}))
    (tmp_path / "runner").mkdir()
    run = ansible_runner.run(
        private_data_dir=str(tmp_path / "runner"),
        project_dir=str(ROOT),
        playbook="aorta.yml",
        inventory=str(inventory),
        envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        quiet=True,
    )
    times, shown = [], {host: [] for host in hosts}
    for event in run.events:
        lines = [line for line in event["stdout"].split("\r\n") if "] chat " in line]
        if event["event"] == "verbose" and lines:
            times.append(event["created"])
            for line in lines:
                shown[line[1:6]].append(line)
    wanted = [f"chat {i} loss=0.693147 lr=0.000200 overlap=1.23ms" for i in range(1600)]
    for host in hosts:
        assert shown[host] == [f"[{host}] {line}" for line in wanted], run.stdout.read()[-3000:]
    seconds = [time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float(text[19:26]) for text in times]
    busiest = max(sum(1 for other in seconds if start <= other < start + 1) for start in seconds)
    print(f"\n{len(times)} events for {8 * 1600} lines, at most {busiest} in a second")
    assert busiest <= 30
