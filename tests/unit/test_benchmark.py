# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of the engine runs, and what it compares agrees. No time is judged: machines are shared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmark" / "analysis.py"
# The script puts the checkout's link on the path.
LINK = BENCHMARK.parents[2] / "collections" / "ansible_collections"

pytestmark = pytest.mark.skipif(not (BENCHMARK.exists() and LINK.exists()), reason="not a checkout")


def test_quick_benchmark_runs_and_agrees(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for title in (
        "one trace, small",
        "one trace, middle",
        "the same trace, packed",
        "standard library alone",
        "2 ranks",
    ):
        assert title in done.stdout
    rows = re.findall(r"^  (\w[\w ,]*?) +[0-9]+\.[0-9]{3} ", done.stdout, re.MULTILINE)
    assert {"whole", "reader", "json", "plain", "gzip", "sha256", "trust_mtime"} <= set(rows)
    assert list(tmp_path.iterdir()) == []


def test_generated_traces_are_alike_and_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--generate", "1", "--ranks", "2", "--folder"]
    for name in ("one", "two"):
        subprocess.run([*command, str(tmp_path / name)], check=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.json"))
    assert [str(path) for path in files] == ["rank0/trace.json", "rank1/trace.json"]
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
