# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time and memory of a process and all its descendants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> set[int]:
    """A process and its descendants (children that left it for pid 1 are not found)."""
    found, waiting = set(), [pid]
    while waiting:
        one = waiting.pop()
        found.add(one)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, Path(task, "children").read_text().split())
    return found


def memory(pid: int) -> int:
    """Proportional set size in bytes: pages that processes share are counted once in the sum over them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process, its living descendants, and the children that they have waited for."""
    found = 0.0
    for one in tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += sum(map(int, fields[11:15])) / TICKS
    return found


def cpu_of_host(host: Any) -> float:
    """CPU seconds of all processes that a host of the rig has had."""
    for top in map(Path, host.cgroups):
        if (top / "cpuacct.usage").exists():
            return int((top / "cpuacct.usage").read_text()) / 1e9
        if (top / "cpu.stat").exists() and "usage_usec" in (top / "cpu.stat").read_text():
            return int((top / "cpu.stat").read_text().split()[1]) / 1e6
    return 0.0


class Watch:
    """Looks at a process every C(interval) seconds until its end.

    ``seconds``; ``cpu_seconds`` of the process and all it has waited for; ``peak_bytes`` (sum of the proportional set
    sizes of the tree), ``peak_processes``, ``peak_files`` (open descriptors of the process itself).
    """

    def __init__(self, process: subprocess.Popen[bytes], interval: float = 0.1) -> None:
        self.process, self.interval = process, interval
        self.started = time.monotonic()
        self.seconds = self.cpu_seconds = 0.0
        self.peak_bytes = self.peak_processes = self.peak_files = 0
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _look(self) -> None:
        while Path(f"/proc/{self.process.pid}").exists() and not self.seconds:
            processes = tree(self.process.pid)
            self.peak_bytes = max(self.peak_bytes, sum(map(memory, processes)))
            self.peak_processes = max(self.peak_processes, len(processes))
            with contextlib.suppress(OSError):
                self.peak_files = max(self.peak_files, len(list(Path(f"/proc/{self.process.pid}/fd").iterdir())))
            time.sleep(self.interval)

    def wait(self) -> int:
        _pid, status, usage = os.wait4(self.process.pid, 0)
        self.seconds = time.monotonic() - self.started
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode
