# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the playbooks on a rig in the background, so that a test can break something meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "playbooks/files/standin"
LABEL = "org.aorta.automation"
STEP_BEGUN = "epoch=0 step=1 "  # a line that a rank prints in its second step


class Process:
    """One ansible-playbook, its output kept in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.marked = time.time()
        self.is_marked = False

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float = 90) -> None:
        """Return once the output holds C(text)."""
        until(lambda: text in self.text or self.popen.poll() is not None, timeout, f"{text!r} in {self.text[-3000:]}")
        assert text in self.text, self.text

    def mark(self) -> None:
        """Note the time, at which the test is about to break something."""
        self.marked = time.time()
        self.is_marked = True

    def end(self, timeout: float = 240) -> int:
        """Wait for its end; returns the exit status."""
        try:
            code = self.popen.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout} s:\n{self.text}") from None
        return code

    def signal(self, number: signal.Signals, group: bool = True) -> None:
        (os.killpg if group else os.kill)(self.popen.pid, number)

    def kill(self) -> None:
        """Every process of it at once, as when the controller loses power; Ansible's workers have own sessions."""
        family = [self.popen.pid]
        for pid in family:
            family += children(pid)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()


def children(pid: int) -> list[int]:
    """Pids of the direct children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


class ClusterJob:
    """Starts jobs on a rig, with an output directory of the test's own."""

    def __init__(self, rig: Any, tmp_path: Path) -> None:
        self.rig = rig
        self.tmp_path = tmp_path
        self.output = tmp_path / "out"
        self.processes: list[Process] = []
        self.environment: dict[str, str] = {}
        self.settings: dict[str, Any] = {
            "ansible_user": "bench",
            "aorta_path": "/opt/aorta",
            "aorta_base_config": "config/demo.json",
            "aorta_gpus_per_node": 2,
            "aorta_timeout_seconds": 120,
            "aorta_unreachable_grace": 5,
            "aorta_min_free_gb": 0.01,
            "aorta_docker": {"image": "aorta-standin:local", "shm_size": "64m", "pull": "never"},
            "aorta_multi_node": {"torchrun_command": ["python3", "/mnt/torchrun"]},
        }

    def start(self, *arguments: object, playbook: str = "aorta.yml", **settings: Any) -> Process:
        """Begin a playbook; settings are Ansible variables, a map is merged over the usual one."""
        merged = {**self.settings, "aorta_output_dir": str(self.output)}
        for name, value in settings.items():
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
        variables = self.tmp_path / f"vars{len(self.processes)}.json"
        variables.write_text(json.dumps(merged))
        command = [str(Path(sys.executable).with_name("ansible-playbook")), playbook, "-e", f"@{variables}"]
        environment = os.environ | self.rig.environment() | {"ANSIBLE_NOCOLOR": "1"} | self.environment
        log = self.tmp_path / f"play{len(self.processes)}.log"
        self.processes.append(Process([*command, *map(str, arguments)], environment, log))
        return self.processes[-1]

    def run(self, *arguments: object, timeout: float = 240, **settings: Any) -> Process:
        """The same to its end; C(popen.returncode) is the exit status."""
        process = self.start(*arguments, **settings)
        process.end(timeout)
        return process

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.kill()

    @property
    def run_dir(self) -> Path:
        return (self.output / "latest").resolve()

    def read(self, name: str) -> Any:
        return json.loads((self.run_dir / name).read_text())

    @property
    def failure(self) -> dict[str, Any]:
        failure: dict[str, Any] = self.read("manifest.json")["failure"]
        return failure

    def remains(self) -> dict[str, list[str]]:
        """Containers and files that the hosts still have, those of other makers too."""
        found = {}
        for host in self.rig.hosts:
            containers = host.run("docker", "ps", "-a", "--format", "{{.Names}}").split()
            files = host.run("sh", "-c", "find /var/tmp/aorta-automation-* -mindepth 1 2>/dev/null; true").split()
            found[host.name] = containers + files
        return found

    def running(self) -> dict[str, list[str]]:
        """Command lines of trainings on the hosts, in containers or not, as the machine sees them."""
        found = {}
        for host in self.rig.hosts:
            lines = []
            for pid in host.pids():
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                except OSError:
                    continue
                if "train.py" in line and "torchrun" not in line:
                    lines.append(line)
            found[host.name] = lines
        return found

    def clean(self) -> dict[str, list[str]]:
        return {host.name: [] for host in self.rig.hosts}


def until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait until C(condition) holds; AssertionError naming C(what) when it does not within C(timeout) seconds."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f"not within {timeout} s: {what}"
        time.sleep(0.1)
