# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real hosts read their own traces, with the system's Python alone: the results are those of the controller."""

from __future__ import annotations

import os

import pytest
from cluster_job import STANDIN, ClusterJob
from rig.cluster import Rig

# Where and when it was made.
PROVENANCE = ("run_id", "created", "trace_dir", "reused_from", "sources")
# A run knows which ranks it has started; who judges traces later takes their word for it.
ASKED = "expected_ranks"


@pytest.fixture(scope="module")
def two(rig_machine, tmp_path_factory):
    """Two hosts for this file alone, with the benchmark on each."""
    directory = tmp_path_factory.mktemp("hosts")
    with Rig.up(directory, 2, owner=os.getpid(), binds=[f"{STANDIN}:/opt/aorta"]) as rig:
        yield rig


@pytest.fixture
def job(two, tmp_path):
    job = ClusterJob(two, tmp_path)
    job.settings["aorta_training_overrides"] = {"training.max_steps": 5}
    job.settings["aorta_analysis"] = {"where": "hosts", "engine": "native"}
    yield job
    job.close()


def figures(results):
    """Results without what differs by definition; a gathered trace is compressed, so its name has .gz after it."""

    def same(value):
        if isinstance(value, dict):
            return {key: same(item) for key, item in value.items() if key != ASKED}
        if isinstance(value, list):
            return [same(item) for item in value]
        return value.replace(".json.gz", ".json") if isinstance(value, str) else value

    return same({key: value for key, value in results.items() if key not in PROVENANCE})


def test_head_and_hosts_agree_over_ssh(job):
    """One rank's trace is damaged: that, too, is the same, to the byte."""
    process = job.run(aorta_training_overrides={"standin.truncate_trace_rank": 3})
    assert process.popen.returncode != 0, process.text
    for host in ("node0", "node1"):
        assert f"[{host}] read 2 traces, " in process.text
    assert process.text.count("s (standard library)") == 2, "the hosts' Python has no msgspec"
    run_dir, by_hosts = job.run_dir, job.read("results.json")
    assert by_hosts["trace_dir"] == str(run_dir / "summaries")
    assert by_hosts["world"]["ranks"] == [0, 1, 2]
    (error,) = by_hosts["errors"]
    assert (error["code"], error["rank"]) == ("trace_truncated", 3)
    assert error["byte"] == next(source["bytes"] for source in by_hosts["sources"] if source["rank"] == 3)
    manifest = job.read("manifest.json")
    assert [len(manifest[kind]) for kind in ("traces", "summaries")] == [4, 4]
    sent = {kind: sum(entry["bytes"] for entry in manifest[kind]) for kind in ("traces", "summaries")}
    assert sent["summaries"] < sent["traces"] / 4, sent
    assert job.remains() == job.clean()

    again = job.run("--tags", "validate", aorta_trace_dir=str(run_dir), aorta_analysis={"where": "head"})
    by_head = job.read("results.json")
    assert again.popen.returncode != 0, again.text
    assert by_head["trace_dir"] == str(run_dir / "traces")
    assert by_head["reused_from"] is None
    assert figures(by_head) == figures(by_hosts)


def test_traces_that_stay_on_the_hosts(job):
    process = job.run(aorta_gather_traces=False, aorta_keep_host_files=True)
    assert process.popen.returncode == 0, process.text
    run_dir, results = job.run_dir, job.read("results.json")
    assert not (run_dir / "traces").exists()
    assert (results["status"], results["world"]["ranks"]) == ("ok", [0, 1, 2, 3])
    assert [rank["node"] for rank in results["per_rank"]] == ["node0", "node0", "node1", "node1"]
    kept = {}
    for host in job.rig.hosts:
        lines = host.run("sh", "-c", "find /var/tmp/aorta-automation-* -name '*.trace.json' -exec sha256sum {} +")
        kept.update(reversed(line.split(maxsplit=1)) for line in lines.splitlines())
    assert {source["sha256"] for source in results["sources"]} == set(kept.values())
    assert len(kept) == 4

    again = job.run("--tags", "validate")
    assert again.popen.returncode == 0, again.text
    later = job.read("results.json")
    assert later["trace_dir"] == str(run_dir / "summaries")
    assert figures(later) == figures(results)

    job.run(playbook="playbooks/teardown.yml")
    assert job.remains() == job.clean()
