# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathers traces from real hosts over ssh, beside ``rsync -z`` of the same files in the same run.

    python tests/benchmark/gather.py [--hosts 2] [--files 8] [--megabytes 200] [--rounds 2]

Prints seconds, throughput in MB of trace text a second, the peak memory of the controller's processes (sum of their
proportional set sizes), and what a gathering that is cut at half costs. Needs root (see tests/integration/README.md).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "integration")]

import analysis  # noqa: E402
from measure import Watch, cpu_of_host  # noqa: E402
from rig.cluster import Rig  # noqa: E402
from rig.prepare import install, prepare  # noqa: E402

PLAY = """
- hosts: aorta
  gather_facts: false
  tasks:
    - aorta.automation.gather_traces:
        source: "/traces/{{ inventory_hostname }}"
        pack_dir: /data/packed
        dest: "{{ dest }}"
        ranks: "{{ range(first, first + files) | list }}"
        grace: 60
      vars:
        files: %(files)d
        first: "{{ groups['aorta'].index(inventory_hostname) * files }}"
      register: gathered
    - ansible.builtin.assert:
        that: gathered.problems == []
        fail_msg: "{{ gathered.problems }}"
"""


class Cluster:
    """Hosts that hold traces, and the two ways to bring those here."""

    def __init__(self, folder: Path, hosts: int, files: int, size: int, random_bytes: int = 0) -> None:
        """C(size) bytes of trace text a file, then C(random_bytes) that can't be compressed."""
        self.folder, self.files = folder, files
        self.said: list[str] = []
        self.traces = folder / "traces"
        first = self.traces / "node0" / "rank0" / "node0_1.1.pt.trace.json"
        analysis.generate(first, size)
        with first.open("ab") as stream:
            stream.write(os.urandom(random_bytes))
        self.bytes = first.stat().st_size * hosts * files
        self.sha256 = hashlib.sha256(first.read_bytes()).hexdigest()
        for rank in range(1, hosts * files):  # equal content: neither way looks at more than one file at a time
            path = self.traces / f"node{rank // files}" / f"rank{rank}" / first.name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(first, path)
        self.play = folder / "play.yml"
        self.play.write_text(PLAY % {"files": files})
        size_each = f"{64 + (size // 2 + random_bytes) * files // 1_000_000}m"
        self.rig = Rig.up(
            folder / "rig", hosts, owner=os.getpid(), user="bench", data=size_each, binds=[f"{self.traces}:/traces"]
        )

    def start_ours(self, dest: Path, log: Path) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("ansible-playbook")), str(self.play), "-e", f"dest={dest}"]
        environment = os.environ | self.rig.environment() | {"ANSIBLE_NOCOLOR": "1"}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ours(self, dest: Path) -> Watch:
        """Pack, transfer, verify; also starts ansible-playbook and logs in."""
        log = self.folder / "ours.log"
        before = sum(map(cpu_of_host, self.rig.hosts))
        with Watch(self.start_ours(dest, log)) as watch:
            watch.wait()
        watch.cpu_seconds += sum(map(cpu_of_host, self.rig.hosts)) - before
        if watch.process.returncode:
            raise SystemExit(f"gather failed:\n{log.read_text()[-4000:]}")
        self.check(dest)
        self.said = [line for line in log.read_text().splitlines() if line.startswith("[node")]
        return watch

    def rsync(self, dest: Path) -> tuple[float, float]:
        """One rsync -z a host, all at the same time; seconds, and CPU seconds of both sides."""
        before = sum(map(cpu_of_host, self.rig.hosts))
        started = time.monotonic()
        processes = []
        for host in self.rig.hosts:
            ssh = " ".join(self.rig.ssh(host)[:-1])
            source = f"bench@{host.address}:/traces/{host.name}/"
            processes.append(subprocess.Popen(["rsync", "-az", "-e", ssh, source, f"{dest}/"]))
        ends = [os.wait4(process.pid, 0) for process in processes]
        seconds = time.monotonic() - started
        if any(status for _pid, status, _usage in ends):
            raise SystemExit("rsync failed")
        cpu = sum(usage.ru_utime + usage.ru_stime for _pid, _status, usage in ends)
        return seconds, cpu + sum(map(cpu_of_host, self.rig.hosts)) - before

    def check(self, dest: Path) -> None:
        """Each rank exactly once, and its content that of the host's file."""
        found = sorted(path.relative_to(dest).parent.name for path in dest.rglob("*.json.gz"))
        wanted = sorted(f"rank{rank}" for rank in range(len(self.rig.hosts) * self.files))
        if found != wanted:
            raise SystemExit(f"expected each of {wanted} once, found {found}")
        for path in dest.rglob("*.json.gz"):
            text = subprocess.run(["gzip", "-dc", str(path)], check=True, stdout=subprocess.PIPE).stdout
            if hashlib.sha256(text).hexdigest() != self.sha256:
                raise SystemExit(f"{path} differs from the host's file")

    def forget(self) -> None:
        """Remove what the hosts have packed."""
        for host in self.rig.hosts:
            host.run("rm", "-rf", "/data/packed")


def arrived(dest: Path) -> int:
    """Bytes of trace files below a directory, parts included."""
    found = 0
    for path in dest.rglob("*"):
        if path.is_file():
            found += path.stat().st_size
    return found


def cut_and_resume(cluster: Cluster, dest: Path, total: int) -> dict[str, Any]:
    """Kill the controller once half of the bytes are here, start again, and count what the second one transfers."""
    process = cluster.start_ours(dest, cluster.folder / "cut.log")
    while arrived(dest) < total / 2:
        if process.poll() is not None:
            raise SystemExit("the gathering ended before it was cut")
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = -1
    while kept != arrived(dest):  # its workers outlive it until they notice
        kept = arrived(dest)
        time.sleep(0.5)
    before = {path.name + path.parent.name: path.stat().st_ino for path in dest.rglob("*.json.gz")}
    seconds = cluster.ours(dest).seconds
    after = {path.name + path.parent.name: path.stat().st_ino for path in dest.rglob("*.json.gz")}
    if any(after[name] != inode for name, inode in before.items()):
        raise SystemExit("a file that was complete has been written again")
    parts = [path.name for path in dest.rglob(".*") if path.is_file()]
    if parts:
        raise SystemExit(f"parts were left: {parts}")
    return {"kept": kept, "again": total - kept, "seconds": seconds, "complete": len(before)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--files", type=int, default=8, help="on each host")
    parser.add_argument("--megabytes", type=int, default=200, help="of each file")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    install()
    prepare()
    folder = Path(tempfile.mkdtemp(prefix="aorta-gather-"))
    cluster = None
    try:
        cluster = Cluster(folder, options.hosts, options.files, options.megabytes * 1_000_000)
        print(
            f"{options.hosts} hosts x {options.files} traces of {options.megabytes} MB over ssh, "
            f"{os.cpu_count()} cores for all hosts and the controller; rounds alternate"
        )
        rows: list[dict[str, float]] = []
        for number in range(options.rounds):
            cluster.forget()
            dest = folder / f"ours{number}"
            watch = cluster.ours(dest)
            total = arrived(dest)
            shutil.rmtree(dest)
            dest = folder / f"rsync{number}"
            dest.mkdir()
            rsync, rsync_cpu = cluster.rsync(dest)
            shutil.rmtree(dest)
            rows.append(
                {
                    "ours": watch.seconds,
                    "rsync": rsync,
                    "ours_cpu": watch.cpu_seconds,
                    "rsync_cpu": rsync_cpu,
                    "memory": watch.peak_bytes,
                }
            )
            print(
                f"  round {number + 1}: ours {watch.seconds:.1f} s (CPU {watch.cpu_seconds:.1f} s), "
                f"rsync -z {rsync:.1f} s (CPU {rsync_cpu:.1f} s), load {os.getloadavg()[0]:.1f}"
            )
            print("".join(f"    {line}\n" for line in cluster.said), end="")
        ours, rsync, ours_cpu, rsync_cpu = (
            statistics.median(row[key] for row in rows) for key in ("ours", "rsync", "ours_cpu", "rsync_cpu")
        )
        memory = max(row["memory"] for row in rows)
        megabytes = cluster.bytes / 1e6
        cluster.forget()
        cut = cut_and_resume(cluster, folder / "cut", total)
        figures = {
            "ours_seconds": ours,
            "rsync_seconds": rsync,
            "ratio": rsync / ours,
            "ours_cpu_seconds": ours_cpu,
            "rsync_cpu_seconds": rsync_cpu,
            "controller_peak_mb": memory / 1e6,
            "transferred_mb": total / 1e6,
            "cut": cut,
        }
        print(f"{'':24} {'seconds':>8} {'CPU s':>8} {'MB/s of traces':>15}")
        print(
            f"{'gather_traces':24} {ours:8.1f} {ours_cpu:8.1f} {megabytes / ours:15.0f}   "
            f"packed to {total / 1e6:.0f} MB, verified"
        )
        print(f"{'rsync -z':24} {rsync:8.1f} {rsync_cpu:8.1f} {megabytes / rsync:15.0f}")
        print(f"throughput: {rsync / ours:.2f} x rsync -z; controller memory at most {memory / 1e6:.0f} MB")
        print(
            f"cut at 50 %: {cut['kept'] / 1e6:.1f} MB kept ({cut['complete']} files whole), "
            f"{cut['again'] / 1e6:.1f} MB transferred by the second attempt, which took {cut['seconds']:.1f} s"
        )
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
    finally:
        if cluster is not None:
            cluster.rig.down()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
