# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""More hosts than forks, and many hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmark"))

import scale


def check(folder, hosts, text):
    """Everything of every host has arrived, in the run directory and on the terminal."""
    run_dir = (folder / "out" / "latest").resolve()
    names = [f"node{number:03}" for number in range(hosts)]
    results = json.loads((run_dir / "results.json").read_text())
    assert results["status"] == "ok"
    assert [(rank["rank"], rank["node"]) for rank in results["per_rank"]] == list(enumerate(names))
    assert json.loads((run_dir / "verdict.json").read_text())["status"] == "passed"
    shown = set(text.splitlines())
    for number, name in enumerate(names):
        lines = (run_dir / "logs" / f"{name}.log").read_text().splitlines()
        assert any(f"[rank {number}] epoch=0 step=2" in line for line in lines)
        assert all(f"[{name}] {line}" in shown for line in lines if len(line) < 400)
    assert not (folder / "work").exists()


def test_hosts_that_wait_for_each_other_need_no_forks(tmp_path):
    watch, text = scale.run(tmp_path, hosts=4, forks=1)
    assert watch.process.returncode == 0, text
    check(tmp_path, 4, text)
    # live: every host's first step is printed before any host's last
    steps = [line for line in text.splitlines() if "epoch=0 step=" in line]
    first = max(number for number, line in enumerate(steps) if "step=0 " in line)
    last = min(number for number, line in enumerate(steps) if "step=2 " in line)
    assert first < last, steps


@pytest.mark.slow
def test_sixty_four_hosts(tmp_path):
    watch, text = scale.run(tmp_path, hosts=64, forks=64)
    assert watch.process.returncode == 0, text[-5000:]
    check(tmp_path, 64, text)
    assert watch.peak_files < 512
    print(f"\n{watch.seconds:.0f} s, {watch.peak_bytes / 1e6:.0f} MB, {watch.peak_files} open files")
