# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long it takes until the step's container runs on every host, from nothing, over ssh.

    python tests/benchmark/bring_up.py [--hosts 1 2 4 8] [--delay 5] [--no-baselines]

For each number of hosts with and without an artificial delay of the container runtime on each host (it stands for
pulls and slow starts; the same for all ways): this collection (configuration, preflight, deployment, start, until the
first line of output has arrived), a serial loop and a thread pool over the Docker SDK through ssh (connect, look for
the image, start; no checks). CPU seconds are those of the controller's processes and of all processes of the hosts. In
a run of its own, with two hosts, it counts the ssh sessions that each host's sshd has served, and the module runs.
Needs root (see tests/integration/README.md); the baselines come from PyPI into a throw-away environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INTEGRATION = ROOT / "tests" / "integration"
sys.path[:0] = [str(HERE), str(INTEGRATION)]

from measure import cpu_of_host, cpu_of_tree  # noqa: E402
from rig.cluster import Host, Rig  # noqa: E402
from rig.prepare import install, prepare  # noqa: E402

IMAGE = "aorta-standin:local"
SLOW_RUNC = """#!/bin/sh
case " $* " in *" create "*) [ ! -f /etc/start-delay ] || sleep "$(cat /etc/start-delay)" ;; esac
exec {runtime} "$@"
"""


def slow_down(rig: Rig, host: Host) -> None:
    """Put a wrapper before the host's container runtime that waits as long as /etc/start-delay says."""
    rig.docker_stop(host)
    path = host.path("/etc/docker/daemon.json")
    daemon = json.loads(path.read_text())
    name = daemon.get("default-runtime")
    runtime = daemon["runtimes"][name]["path"] if name else "runc"
    wrapper = host.path("/usr/local/sbin/runc-slow")
    wrapper.write_text(SLOW_RUNC.format(runtime=runtime))
    wrapper.chmod(0o755)
    daemon["runtimes"] = {**daemon.get("runtimes", {}), "slow": {"path": "/usr/local/sbin/runc-slow"}}
    daemon["default-runtime"] = "slow"
    path.write_text(json.dumps(daemon))
    rig.docker_start(host)


class Bench:
    """A rig and the ways to start a container on some of its hosts."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.rig = Rig.up(
            folder / "rig",
            hosts,
            owner=os.getpid(),
            user="bench",
            binds=[f"{INTEGRATION / 'live_workload'}:/opt/live"],
        )
        for host in self.rig.hosts:
            slow_down(self.rig, host)
        self.python: Path | None = None

    def delay(self, seconds: float) -> None:
        for host in self.rig.hosts:
            path = host.path("/etc/start-delay")
            if seconds:
                path.write_text(f"{seconds}\n")
            else:
                path.unlink(missing_ok=True)

    def close_masters(self) -> None:
        """End every ssh session, so that each run has to log in."""
        for host in self.rig.hosts:
            self.rig.sshd_stop(host)
            self.rig.sshd_start(host)

    def ours(self, count: int, *arguments: str) -> tuple[dict[str, float], str]:
        """Seconds and CPU seconds until all containers have printed their line, and the output of the whole run."""
        self.close_masters()
        names = [host.name for host in self.rig.hosts[:count]]
        inventory = self.rig.write_inventory(self.folder / "hosts.yml", names=names)
        variables = {
            "aorta_path": "/opt/live",
            "aorta_base_config": "config/any.json",
            "aorta_gpus_per_node": 1,
            "aorta_timeout_seconds": 120,
            "aorta_min_free_gb": 0.1,
            "aorta_output_dir": str(self.folder / "out"),
            "aorta_environment": {"OMP_LIVE": "slow:1"},
            "aorta_docker": {"image": IMAGE, "shm_size": "64m", "pull": "never"},
            "aorta_multi_node": {
                "master_launch_mode": "torchrun",
                "torchrun_command": ["python3", "/mnt/train.py"],
            },
        }
        before = [cpu_of_host(host) for host in self.rig.hosts[:count]]
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "aorta.yml", "-i", str(inventory)]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, "-e", json.dumps(variables), *arguments],
            cwd=ROOT,
            env=os.environ | self.rig.environment() | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_INVENTORY": str(inventory)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        missing, text, found = set(names), [], {}
        assert process.stdout
        for line in process.stdout:
            text.append(line)
            match = re.match(r"\[(node\d+)\] +slow 0", line)
            if match:
                missing.discard(match[1])
                if not missing and not found:
                    cpu = cpu_of_tree(process.pid) + sum(map(cpu_of_host, self.rig.hosts[:count])) - sum(before)
                    found = {"seconds": time.monotonic() - started, "cpu_seconds": cpu}
        process.wait()
        if not found:
            raise SystemExit("".join(text)[-5000:])
        return found, "".join(text)

    def baseline(self, count: int, threads: bool) -> dict[str, float]:
        """The same through the Docker SDK."""
        home = self.folder / "home"
        if self.python is None:
            venv.create(self.folder / "venv", with_pip=True)
            self.python = self.folder / "venv" / "bin" / "python"
            subprocess.run([self.python, "-m", "pip", "install", "-q", "docker", "paramiko"], check=True)
            (home / ".ssh").mkdir(parents=True)
            shutil.copy(f"{self.rig.directory}/known_hosts", home / ".ssh" / "known_hosts")
            (home / ".ssh" / "config").write_text(f"Host *\n  IdentityFile {self.rig.directory}/id_ed25519\n")
        job = {
            "hosts": [host.address for host in self.rig.hosts[:count]],
            "user": "bench",
            "image": IMAGE,
            "command": ["/bin/sh", "-c", "echo slow 0"],
            "volumes": {"/opt/live": {"bind": "/mnt", "mode": "ro"}},
            "threads": threads,
        }
        before = sum(map(cpu_of_host, self.rig.hosts[:count]))
        done = subprocess.run(
            [self.python, str(HERE / "docker_baseline.py")],
            check=True,
            input=json.dumps(job) + "\n",
            env={**os.environ, "HOME": str(home)},
            stdout=subprocess.PIPE,
            text=True,
        )
        figures: dict[str, float] = json.loads(done.stdout)
        figures["cpu_seconds"] += sum(map(cpu_of_host, self.rig.hosts[:count])) - before
        return figures

    def count(self) -> dict[str, Any]:
        """Logins and sessions of one host during a whole run, and the modules that ran on it."""
        host = self.rig.hosts[0]
        config = host.path("/etc/ssh/sshd_config")
        config.write_text(config.read_text() + "\nLogLevel VERBOSE\n")
        self.rig.sshd_stop(host)
        self.rig.sshd_start(host)
        log = host.path("/var/log/sshd.log")
        known = len(log.read_text())
        _figures, text = self.ours(2, "-vvv")
        said = log.read_text()[known:]
        modules: Counter[str] = Counter()
        for task in re.split(r"^TASK \[", text, flags=re.MULTILINE)[1:]:
            ran = set(re.findall(r"Using module file \S*/(\w+)\.py", task))
            if f"<{host.address}>" in task:
                modules.update(ran)
        return {
            "logins": said.count("Accepted publickey"),
            "sessions": said.count("Starting session:"),
            "modules": dict(sorted(modules.items())),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--delay", type=float, default=5)
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    install()
    prepare()
    folder = Path(tempfile.mkdtemp(prefix="aorta-bring-up-"))
    bench = None
    rows = []
    try:
        bench = Bench(folder, max(*options.hosts, 2))
        counts = bench.count()
        runs = sum(counts["modules"].values())
        print(f"{os.cpu_count()} cores for the controller and all hosts, load {os.getloadavg()[0]:.1f}")
        print(
            f"a whole run, each host: {counts['logins']} ssh logins, {counts['sessions']} sessions, {runs} module runs:"
        )
        print("  " + ", ".join(f"{name} {number}" for name, number in counts["modules"].items()))
        ways = ["ours"] + ([] if options.no_baselines else ["serial", "threads"])
        print(f"{'hosts':>5} {'delay':>6}  " + "  ".join(f"{way:>8} s  {'CPU s/host':>10}" for way in ways))
        for delay in (options.delay, 0):
            bench.delay(delay)
            for hosts in options.hosts:
                row: dict[str, Any] = {"hosts": hosts, "delay": delay}
                for way in ways:
                    row[way] = bench.ours(hosts)[0] if way == "ours" else bench.baseline(hosts, way == "threads")
                rows.append(row)
                cells = [f"{row[way]['seconds']:>10.1f}  {row[way]['cpu_seconds'] / hosts:>10.2f}" for way in ways]
                print(f"{hosts:>5} {delay:>6g}  " + "  ".join(cells), flush=True)
        delayed = {row["hosts"]: row["ours"]["seconds"] for row in rows if row["delay"]}
        if len(delayed) > 1:
            first, last = min(delayed), max(delayed)
            print(f"with the delay, {last} hosts take {delayed[last] / delayed[first]:.2f} x the time of {first}")
        if options.json:
            options.json.write_text(json.dumps({"counts": counts, "rows": rows}, indent=1) + "\n")
    finally:
        if bench is not None:
            bench.rig.down()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
