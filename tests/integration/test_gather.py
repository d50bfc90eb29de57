# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathering over ssh: whole, each rank once, in bounded memory, and gone on with where it was cut."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmark"))

import gather

FILES = 3
RANDOM = 24_000_000  # bytes of each trace that can't be compressed, so that several pieces are needed


@pytest.fixture(scope="module")
def cluster(rig_machine, tmp_path_factory):
    """Two hosts with three traces each."""
    made = gather.Cluster(tmp_path_factory.mktemp("gather"), 2, FILES, 2_000_000, RANDOM)
    yield made
    made.rig.down()


@pytest.fixture
def fresh(cluster):
    cluster.forget()
    return cluster


def test_every_rank_arrives_once(fresh, tmp_path):
    watch = fresh.ours(tmp_path / "traces")  # checks ranks and SHA-256
    assert watch.peak_bytes < 300e6
    for host in ("node0", "node1"):
        assert any(line.startswith(f"[{host}] packed {FILES} traces") for line in fresh.said), fresh.said
        assert any(f"[{host}] gathered {FILES} of {FILES} files" in line for line in fresh.said), fresh.said


@pytest.fixture
def slow(fresh):
    """The same behind links on which a gathering takes some seconds."""
    for host in fresh.rig.hosts:
        fresh.rig.slow_link(host, "200mbit")
    yield fresh
    for host in fresh.rig.hosts:
        fresh.rig.slow_link(host)


def test_what_a_killed_controller_has_gathered_is_kept(slow, tmp_path):
    fresh = slow
    total = FILES * 2 * RANDOM
    cut = gather.cut_and_resume(fresh, tmp_path / "traces", total)
    assert total * 0.5 <= cut["kept"] < total
    packed = [path.stat().st_mtime for path in fresh.rig.host("node0").path("/data/packed").rglob("*.json.gz")]
    assert len(packed) == FILES
    assert max(packed) < time.time() - cut["seconds"]  # the second attempt has not packed again


def test_a_host_that_goes_away_in_the_middle_costs_nothing(slow, tmp_path):
    fresh = slow
    log = tmp_path / "play.log"
    process = fresh.start_ours(tmp_path / "traces", log)
    while gather.arrived(tmp_path / "traces") < FILES * RANDOM:
        assert process.poll() is None, log.read_text()
        time.sleep(0.005)
    fresh.rig.sshd_stop("node1")
    time.sleep(3)
    fresh.rig.sshd_start("node1")
    assert process.wait(120) == 0, log.read_text()
    fresh.check(tmp_path / "traces")


def test_a_shared_file_system_yields_each_rank_once(fresh, tmp_path):
    for path in list(fresh.traces.glob("node*/rank*")):
        other = "node1" if path.parent.name == "node0" else "node0"
        (fresh.traces / other / path.name).mkdir()
        os.link(next(path.iterdir()), fresh.traces / other / path.name / next(path.iterdir()).name)
    try:
        fresh.ours(tmp_path / "traces")
        for host in fresh.rig.hosts:
            assert len(list(host.path("/data/packed").rglob("*.json.gz"))) == FILES
    finally:
        for path in fresh.traces.glob("node*/rank*"):
            if int(path.name[4:]) // FILES != int(path.parent.name[4:]):
                next(path.iterdir()).unlink()
                path.rmdir()
