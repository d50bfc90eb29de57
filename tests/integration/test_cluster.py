# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on real hosts: ssh, a Docker engine on each, step containers, traces brought back."""

from __future__ import annotations

import json
import threading
import time

import pytest
import yaml


@pytest.fixture(scope="module")
def aorta_tree(rig, run_ansible):
    """The stand-in on every host, owned by the unprivileged user, as a checkout of Aorta would be."""
    result = run_ansible(
        "ansible",
        "aorta",
        "-m",
        "ansible.builtin.copy",
        "-a",
        "src=playbooks/files/standin/ dest=/opt/aorta/ mode=preserve",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return "/opt/aorta"


def play(run_ansible, tmp_path, tree, *arguments, playbook="aorta.yml", **variables):
    settings = {
        "ansible_user": "bench",
        "aorta_path": tree,
        "aorta_base_config": "config/demo.json",
        "aorta_gpus_per_node": 2,
        "aorta_timeout_seconds": 120,
        "aorta_min_free_gb": 0.1,
        "aorta_output_dir": str(tmp_path / "out"),
        "aorta_docker": {"image": "aorta-standin:local", "shm_size": "64m", "pull": "never"},
        "aorta_multi_node": {"torchrun_command": ["python3", "/mnt/torchrun"]},
        "aorta_training_overrides": {"training.max_steps": 6},
        "aorta_expected_results": {"max_avg_iteration_ms": 400, "min_compute_ratio": 0.4},
        **variables,
    }
    return run_ansible("ansible-playbook", playbook, "-e", json.dumps(settings), *arguments, timeout=240)


def latest(tmp_path, name):
    return json.loads((tmp_path / "out" / "latest" / name).read_text())


def remains(rig):
    """What a run could have left on the hosts: containers and files."""
    found = {}
    for host in rig.hosts:
        containers = host.run("docker", "ps", "-aq").split()
        files = host.run("sh", "-c", "ls -d /var/tmp/aorta-automation-* 2>/dev/null; true").split()
        found[host.name] = containers + files
    return found


def test_two_hosts_over_ssh(rig, run_ansible, aorta_tree, tmp_path):
    seen = {host.name: set() for host in rig.hosts}
    stop = threading.Event()

    def look():
        while not stop.is_set():
            for host in rig.hosts:
                names = host.run("docker", "ps", "--format", "{{.Names}} {{.Labels}}")
                seen[host.name].update(line.split()[0] for line in names.splitlines() if "org.aorta.automation" in line)
            time.sleep(0.3)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        result = play(run_ansible, tmp_path, aorta_tree)
    finally:
        stop.set()
        thread.join()
    assert result.returncode == 0, result.stdout + result.stderr
    assert seen == {"node0": {"aorta-benchmark"}, "node1": {"aorta-benchmark"}}
    assert latest(tmp_path, "verdict.json")["status"] == "passed"
    assert latest(tmp_path, "results.json")["world"]["ranks"] == [0, 1, 2, 3]
    assert latest(tmp_path, "traces/nodes.json") == {"0": "node0", "1": "node0", "2": "node1", "3": "node1"}
    for host in ("node0", "node1"):
        facts = latest(tmp_path, "manifest.json")["hosts"][host]["facts"]
        assert facts["uid"] == 1234
        assert facts["engine"]
        assert facts["image_digest"].startswith("sha256:")
        assert f"[{host}] " in result.stdout
    assert remains(rig) == {"node0": [], "node1": []}


def test_a_failing_limit_over_ssh(rig, run_ansible, aorta_tree, tmp_path):
    result = play(run_ansible, tmp_path, aorta_tree, aorta_expected_results={"max_avg_iteration_ms": 1})
    assert result.returncode != 0
    assert latest(tmp_path, "verdict.json")["status"] == "failed"
    assert (tmp_path / "out" / "latest" / "report.html").stat().st_size > 1000
    assert remains(rig) == {"node0": [], "node1": []}


def test_a_cluster_json_and_a_config_file_as_they_are(rig, run_ansible, aorta_tree, tmp_path):
    config = tmp_path / "aorta_benchmark.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "aorta_path": aorta_tree,
                "base_config": "config/demo.json",
                "docker": {"image": "aorta-standin:local", "shm_size": "64M", "privileged": True},
                "training_overrides": {"training.max_steps": 4},
                "gpus_per_node": 1,
                "skip_rccl_build": True,
                "expected_results": {"max_avg_iteration_ms": 400},
            }
        )
    )
    result = run_ansible(
        "ansible-playbook",
        "aorta.yml",
        "-i",
        rig.directory + "/cluster.json",
        "-e",
        json.dumps(
            {
                "aorta_config_file": str(config),
                "aorta_min_free_gb": 0.1,
                "aorta_output_dir": str(tmp_path / "out"),
                "aorta_multi_node": {"torchrun_command": ["python3", "/mnt/torchrun"]},
                "ansible_python_interpreter": "/usr/bin/python3",
            }
        ),
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    spec = latest(tmp_path, "spec.json")
    assert spec["layers"]["docker.privileged"] == "config file"
    assert [host["address"] for host in spec["hosts"]] == [host.address for host in rig.hosts]
    assert remains(rig) == {"node0": [], "node1": []}


def test_a_foreign_container_is_left_alone(rig, run_ansible, aorta_tree, tmp_path):
    rig.host("node1").run("docker", "run", "-d", "--name", "aorta-benchmark", "aorta-standin:local", "sleep", "600")
    try:
        result = play(run_ansible, tmp_path, aorta_tree)
        assert result.returncode != 0
        assert "node1: a container named aorta-benchmark exists that is not ours" in result.stdout
        assert latest(tmp_path, "verdict.json")["status"] == "error"
        names = rig.host("node1").run("docker", "ps", "--format", "{{.Names}}").split()
        assert names == ["aorta-benchmark"]
    finally:
        rig.host("node1").run("docker", "rm", "-f", "aorta-benchmark")


def test_preflight_reports_all_hosts_at_once(rig, run_ansible, aorta_tree, tmp_path):
    result = play(run_ansible, tmp_path, aorta_tree, aorta_docker={"image": "no/such:image", "pull": "never"})
    assert result.returncode != 0
    for host in ("node0", "node1"):
        assert f"{host}: the image no/such:image is not on this host" in result.stdout


def test_teardown_removes_what_a_killed_run_has_left(rig, run_ansible, aorta_tree, tmp_path):
    rig.host("node0").run(
        *["docker", "run", "-d", "--name", "aorta-benchmark", "--label", "org.aorta.automation.run_id=dead"],
        *["aorta-standin:local", "sleep", "600"],
    )
    result = play(run_ansible, tmp_path, aorta_tree, playbook="playbooks/teardown.yml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert remains(rig) == {"node0": [], "node1": []}
