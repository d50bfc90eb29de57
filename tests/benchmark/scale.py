# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on many simulated hosts of this machine (process runtime, stand-in with tiny steps).

    python tests/benchmark/scale.py [--hosts 8 64] [--forks 64]

Prints for each number of hosts: seconds, those of each phase, CPU seconds of ansible-playbook and what it waited for,
its peak memory (sum of the proportional set sizes of it and its workers), processes and open files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from measure import Watch  # noqa: E402

STANDIN = ROOT / "playbooks/files/standin"
TINY = {
    "training.max_steps": 3,
    "profiling.wait": 1,
    "profiling.warmup": 1,
    "profiling.active": 1,
    "standin.layers": 1,
    "standin.step_seconds": 0.5,
    "standin.cpu_ops_per_layer": 0,
    "standin.rendezvous_timeout_s": 600,
    "standin.collective_timeout_s": 300,
}


def inventory(folder: Path, hosts: int) -> Path:
    """An inventory of so many hosts of this machine, one rank each."""
    variables: dict[str, Any] = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "aorta_runtime": "process",
        "aorta_path": str(STANDIN),
        "aorta_base_config": "config/demo.json",
        "aorta_gpus_per_node": 1,
        "aorta_timeout_seconds": 1200,
        "aorta_min_free_gb": 0.1,
        "aorta_output_dir": str(folder / "out"),
        "aorta_work_dir": str(folder / "work"),
        "aorta_training_overrides": TINY,
        "aorta_multi_node": {
            "master_addr": "127.0.0.1",
            "torchrun_command": [sys.executable, str(STANDIN / "torchrun")],
        },
        "aorta_expected_results": {"max_avg_iteration_ms": 10000},
    }
    path = folder / "hosts.json"
    names = [f"node{number:03}" for number in range(hosts)]
    path.write_text(json.dumps({"aorta": {"hosts": dict.fromkeys(names), "vars": variables}}))
    return path.rename(path.with_suffix(".yml"))


def run(folder: Path, hosts: int, forks: int) -> tuple[Watch, str]:
    """The whole job; what was measured, and its output."""
    log = folder / "play.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("aorta.yml", "-i", str(inventory(folder, hosts)), "--forks", str(forks)),
            ],
            cwd=ROOT,
            env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        with Watch(process, interval=0.5) as watch:
            watch.wait()
    return watch, log.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--forks", type=int, default=64)
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores for the controller and all hosts (load {os.getloadavg()[0]:.1f} before), "
        f"--forks {options.forks}"
    )
    print("hosts  seconds  CPU s  CPU s/host  memory MB  processes  files  phases")
    for hosts in options.hosts:
        with tempfile.TemporaryDirectory(prefix="aorta-scale-") as name:
            folder = Path(name)
            watch, text = run(folder, hosts, options.forks)
            if watch.process.returncode:
                raise SystemExit(f"{hosts} hosts: exit status {watch.process.returncode}\n{text[-5000:]}")
            manifest = json.loads((folder / "out/latest/manifest.json").read_text())
            phases = ", ".join(f"{phase['name']} {phase['seconds']:.0f} s" for phase in manifest["phases"])
        print(
            f"{hosts:5}  {watch.seconds:7.1f}  {watch.cpu_seconds:5.0f}  {watch.cpu_seconds / hosts:10.2f}"
            f"  {watch.peak_bytes / 1e6:9.0f}  {watch.peak_processes:9}  {watch.peak_files:5}  {phases}",
            flush=True,
        )


if __name__ == "__main__":
    main()
