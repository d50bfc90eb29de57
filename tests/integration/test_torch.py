# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real PyTorch: torchrun on two hosts, gloo between them, traces of torch.profiler. `make test-torch` installs it."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TORCH = Path(os.environ.get("AORTA_TORCH_DIR", "/var/cache/aorta-torch"))
# The small image has few libraries; it is made of this machine's files, so this machine's fit.
LIBRARIES = f"/usr/lib/{platform.machine()}-linux-gnu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TORCH / "torch").is_dir(), reason=f"no PyTorch in {TORCH}: make test-torch installs it"),
]


@pytest.fixture(scope="module")
def torch_rig(rig_machine, tmp_path_factory):
    from rig.cluster import Rig

    binds = [f"{TORCH}:/opt/torch", f"{HERE / 'torch_workload'}:/opt/workload"]
    with Rig.up(tmp_path_factory.mktemp("torch-rig"), 2, owner=os.getpid(), user="bench", binds=binds) as rig:
        yield rig


@pytest.fixture
def train(torch_rig, run_ansible, tmp_path):
    """Runs the main job with real torchrun; returns the result, and what it took in seconds."""

    def run(**overrides):
        settings = {
            "aorta_path": "/opt/workload",
            "aorta_base_config": "config/tiny.json",
            "aorta_gpus_per_node": 2,
            "aorta_timeout_seconds": 120,
            "aorta_min_free_gb": 0.1,
            "aorta_output_dir": str(tmp_path / "out"),
            "aorta_docker": {
                "image": "aorta-standin:local",
                "shm_size": "64m",
                "pull": "never",
                "volumes": ["/opt/torch:/opt/torch:ro", f"{LIBRARIES}:{LIBRARIES}:ro"],
            },
            "aorta_environment": {"PYTHONPATH": "/opt/torch", "OMP_NUM_THREADS": "1", "NCCL_MAX_NCHANNELS": "28"},
            "aorta_multi_node": {"torchrun_command": ["python3", "-m", "torch.distributed.run"]},
            "aorta_training_overrides": {"training.max_steps": 5, **overrides},
        }
        started = time.monotonic()
        result = run_ansible("ansible-playbook", "aorta.yml", "-e", json.dumps(settings), timeout=240, rig=torch_rig)
        return result, time.monotonic() - started

    run.read = lambda name: json.loads((tmp_path / "out" / "latest" / name).read_text())
    run.logs = lambda: {path.stem: path.read_text() for path in (tmp_path / "out" / "latest" / "logs").iterdir()}
    return run


def records(logs):
    """What each rank has printed of itself, by rank."""
    found = {}
    for host, text in logs.items():
        for line in text.splitlines():
            if line.startswith("record "):
                record = json.loads(line.removeprefix("record "))
                found[record["rank"]] = {**record, "log": host}
    return found


def test_torchrun_on_two_hosts(train, torch_rig):
    result, _seconds = train()
    said = result.stdout + result.stderr
    assert train.read("manifest.json")["failure"] is None, said

    # what PyTorch itself says of ranks, hosts, addresses and settings
    ranks = records(train.logs())
    assert {rank: record["host"] for rank, record in ranks.items()} == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    address = torch_rig.host("node0").address
    for rank, record in ranks.items():
        environment = record["environment"]
        assert record["log"] == record["host"]
        assert record["world_size"] == 4
        assert environment["MASTER_ADDR"] == address
        assert (environment["GROUP_RANK"], environment["LOCAL_RANK"]) == (str(rank // 2), str(rank % 2))
        assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
        assert environment["NCCL_MAX_NCHANNELS"] == "28"
        assert record["config"]["training"]["max_steps"] == 5
        assert f"rank {rank} step=4" in train.logs()[record["host"]]
    assert train.read("traces/nodes.json") == {str(rank): record["host"] for rank, record in ranks.items()}

    # a profiler without GPUs records no GPU events: that is said for each rank, and passes nothing
    results = train.read("results.json")
    assert results["world"]["ranks"] == [0, 1, 2, 3]
    assert sorted((e["rank"], e["code"]) for e in results["errors"]) == [(r, "no_gpu_events") for r in range(4)]
    assert all(rank["timeline_us"] is None for rank in results["per_rank"])
    assert train.read("verdict.json")["status"] not in ("passed", "no_data")
    assert result.returncode != 0
    wanted = re.compile(r"0 of 4 ranks are complete; no_gpu_events: rank 0: .*no GPU event among \d+ events.*3 more")
    assert any(wanted.search(line) for line in said.splitlines()), said


def test_a_rank_that_fails_under_torchrun(train):
    result, seconds = train(**{"test.fail_rank": 3})
    assert result.returncode != 0
    failure = train.read("manifest.json")["failure"]
    assert (failure["host"], failure["rank"], failure["exit_code"]) == ("node1", 3, 1), failure
    assert any("the failure that was asked for" in line for line in failure["log_tail"]), failure["log_tail"]
    assert seconds < 90
