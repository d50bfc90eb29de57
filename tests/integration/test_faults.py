# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster that misbehaves: each fault ends within seconds, names one cause, leaves nothing, loses nothing.

Measured from the fault to the end of the phase that it ends, with the stop on all hosts. By design that takes at most
20 s (where a grace period is granted, 10 s more than it); the limit here is wider, for the tests' machine may be busy.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from datetime import datetime

import pytest
from cluster_job import STANDIN, STEP_BEGUN, ClusterJob
from rig.cluster import Rig

SECONDS = 60
LONG = {"training.max_steps": 300}
SHORT = {"training.max_steps": 4}


@pytest.fixture(scope="module")
def two(rig_machine, tmp_path_factory):
    """Two hosts for this file alone, with the benchmark on each."""
    directory = tmp_path_factory.mktemp("faults")
    with Rig.up(directory, 2, owner=os.getpid(), binds=[f"{STANDIN}:/opt/aorta"]) as rig:
        yield rig


@pytest.fixture
def job(two, tmp_path):
    """For tests that break nothing for good."""
    job = ClusterJob(two, tmp_path)
    yield job
    job.close()
    if job.remains() != job.clean():  # of a test that failed: not to be found by the next
        two.reset()


@pytest.fixture
def breaking(job):
    """For tests that break hosts: they are as new after it."""
    yield job
    job.close()
    job.rig.reset()


def ended_badly(job, process, reason, *texts, within=SECONDS):
    """The run failed within seconds for this one cause, which the terminal, the manifest and the report name."""
    assert process.popen.returncode not in (0, None), process.text
    failed = next(phase for phase in job.read("manifest.json")["phases"] if phase["status"] == "failed")
    since = process.marked if process.is_marked else datetime.fromisoformat(failed["started"]).timestamp()
    assert datetime.fromisoformat(failed["finished"]).timestamp() - since < within, process.text
    failure = job.failure
    assert failure["reason"] == reason, failure
    for text in texts:
        assert text in failure["message"], failure
        assert text.split("\n")[0] in process.text
    assert "this is probably a bug" not in process.text
    assert job.read("verdict.json")["status"] == "error"
    report = (job.run_dir / "report.html").read_text()
    assert failure["message"][:40].replace("'", "&#39;") in report
    return failure


def next_run_passes(job):
    """Whatever the fault has left is found and removed by the next run, which works."""
    process = job.run(aorta_training_overrides=SHORT)
    assert process.popen.returncode == 0, process.text
    assert job.remains() == job.clean()


# ------------------------------------------------------------------ before the start


def test_every_host_is_broken_in_its_own_way(make_rig, tmp_path):
    """One message has them all: no ssh, engine stopped, engine hung, no right to use it, read-only and full disks."""
    rig = make_rig(6, binds=[f"{STANDIN}:/opt/aorta"])
    job = ClusterJob(rig, tmp_path)
    rig.sshd_stop("node0")
    rig.docker_stop("node1")
    rig.docker_pause("node2")
    rig.host("node3").run("chmod", "0600", "/run/docker.sock")
    rig.host("node4").run("mount", "-t", "tmpfs", "-o", "ro", "none", "/data")
    rig.disk_fill("node5", "/data", leave=1 << 20)
    try:
        process = job.run(aorta_work_dir="/data/runs", aorta_environment={"NCCL_SOCKET_IFNAME": "bond9"})
        failure = ended_badly(job, process, "host_problem", "6 of 6 hosts have a problem")
        for text in (
            "node0: unreachable: ",
            "node1: no Docker engine: /var/run/docker.sock does not exist",
            "node2: the Docker engine did not answer within 15 s",
            "node3: uid 1234 may not use the Docker engine",
            "node4: /data can't be written by uid 1234",
            "node5: 0.0 GB free in /data",
            "node5: NCCL_SOCKET_IFNAME=bond9 fits no network interface of this host",
        ):
            assert text in failure["message"]
        rig.docker_resume("node2")
        for host in rig.hosts[1:]:
            assert host.run("sh", "-c", "find /data /var/tmp -name '*node*'; true") == ""
    finally:
        job.close()


@pytest.mark.slow
def test_an_image_that_cannot_be_had(job):
    process = job.run(aorta_docker={"image": "127.0.0.1:1/no/such:1", "pull": "missing"})
    ended_badly(
        job, process, "host_problem", "node0: the image 127.0.0.1:1/no/such:1 is not on this host and can't be pulled"
    )
    assert job.remains() == job.clean()


# A registry of one image whose layer breaks off in the middle each time
BROKEN_REGISTRY = """
import hashlib, http.server, json
layer = "sha256:" + "1" * 64
root = {"type": "layers", "diff_ids": [layer]}
config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": root}).encode()
digest = lambda data: "sha256:" + hashlib.sha256(data).hexdigest()
kind = "application/vnd.docker."
manifest = json.dumps({
    "schemaVersion": 2, "mediaType": kind + "distribution.manifest.v2+json",
    "config": {"mediaType": kind + "container.image.v1+json", "size": len(config), "digest": digest(config)},
    "layers": [{"mediaType": kind + "image.rootfs.diff.tar.gzip", "size": 10**7, "digest": layer}]}).encode()

class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = None
        if "/manifests/" in self.path:
            data, content = manifest, kind + "distribution.manifest.v2+json"
        elif layer in self.path:
            data, content, size = b"x" * 1000, "application/octet-stream", 10**7
        else:
            data, content = (config if "/blobs/" in self.path else b"{}"), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(size or len(data)))
        self.send_header("Docker-Content-Digest", digest(manifest))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
        self.close_connection = True

    do_HEAD = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Registry).serve_forever()
"""


@pytest.mark.slow
def test_a_pull_that_breaks_off(job):
    registries = [
        host.popen(["python3", "-c", BROKEN_REGISTRY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for host in job.rig.hosts
    ]
    try:
        process = job.run(aorta_docker={"image": "127.0.0.1:5000/aorta:1", "pull": "missing"})
    finally:
        for registry in registries:
            registry.kill()
            registry.wait()
    assert "can't be pulled" not in process.text  # the preflight has found it
    assert "[node1] pulling 127.0.0.1:5000/aorta:1, 10 s so far" in process.text
    failure = ended_badly(job, process, "host_problem", "deploy: 2 of 2 hosts have a problem", within=180)
    assert "node1: Error pulling" in failure["message"], failure
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_host_frozen_before_the_start(breaking):
    """With a live connection to it, which plain Ansible would wait on for ever."""
    job = breaking
    assert job.run("--tags", "preflight").popen.returncode == 0
    job.rig.freeze("node1")
    process = job.run()
    job.rig.thaw("node1")
    ended_badly(job, process, "host_problem", "1 of 2 hosts have a problem", "node1: unreachable")
    assert job.remains() == job.clean()
    next_run_passes(job)


@pytest.mark.slow
def test_hosts_that_do_not_reach_each_other(breaking):
    """The controller reaches both, so only a probe from host to host shows it."""
    job = breaking
    job.rig.partition("node0", "node1")
    process = job.run()
    address = job.rig.hosts[0].address
    ended_badly(job, process, "host_problem", f"node1: the rendezvous {address}:", "can't be reached from here")
    assert job.remains() == job.clean()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"master_addr": "127.0.0.1"}, "node1: the rendezvous 127.0.0.1:"),
        ({"master_addr": "192.0.2.7"}, "192.0.2.7"),
        ({"master_port": 22}, "can't listen on the rendezvous address"),
    ],
)
@pytest.mark.slow
def test_a_wrong_rendezvous(job, settings, text):
    process = job.run(aorta_multi_node=settings)
    ended_badly(job, process, "host_problem", text)
    assert job.remains() == job.clean()


# ------------------------------------------------------------------ while it runs


@pytest.mark.parametrize(
    ("fault", "remedy", "cause"),
    [
        pytest.param("link_down", "link_up", "could not be reached", id="cable"),
        pytest.param("freeze", "thaw", "could not be reached", id="frozen", marks=pytest.mark.slow),
        pytest.param(
            "docker_pause", "docker_resume", "did not answer in time", id="engine hangs", marks=pytest.mark.slow
        ),
        pytest.param("docker_kill", "docker_start", "the Docker engine", id="engine dies", marks=pytest.mark.slow),
        pytest.param("kill_host", "start", "could not be reached", id="power", marks=pytest.mark.slow),
    ],
)
def test_a_host_is_lost_mid_run(breaking, fault, remedy, cause):
    job = breaking
    engine = fault.startswith("docker")
    process = job.start(aorta_training_overrides=LONG, aorta_unreachable_grace=15 if engine else 5)
    process.wait_for(STEP_BEGUN)
    process.mark()
    getattr(job.rig, fault)("node1")
    process.end()
    running = job.running()
    assert running["node0"] == []
    if engine:
        assert running["node1"] == []  # ended without the engine
    getattr(job.rig, remedy)("node1")
    failure = ended_badly(job, process, "unreachable", "node1", cause)
    assert failure["host"] == "node1"
    assert "Initialised distributed training" in (job.run_dir / "logs" / "node1.log").read_text()
    assert job.remains()["node0"] == []
    next_run_passes(job)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "remedy"), [("link_down", "link_up"), ("sshd_stop", "sshd_start")])
def test_a_host_comes_back_in_time(breaking, fault, remedy):
    job = breaking
    process = job.start(aorta_training_overrides={"training.max_steps": 40}, aorta_unreachable_grace=60)
    process.wait_for(STEP_BEGUN)
    getattr(job.rig, fault)("node1")
    time.sleep(6)
    getattr(job.rig, remedy)("node1")
    assert process.end() == 0, process.text
    log = (job.run_dir / "logs" / "node1.log").read_text()
    for rank in (2, 3):
        for step in range(40):
            assert log.count(f"[rank {rank}] epoch=0 step={step} ") == 1
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_the_engine_is_stopped_mid_run(breaking):
    job = breaking
    process = job.start(aorta_training_overrides=LONG)
    process.wait_for(STEP_BEGUN)
    process.mark()
    job.rig.docker_stop("node1")
    process.end()
    ended_badly(job, process, "unreachable", "node1", "the Docker engine")
    job.rig.docker_start("node1")
    assert job.running() == job.clean()
    next_run_passes(job)


def test_one_rank_of_eight_fails_while_the_others_wait(job):
    process = job.start(aorta_gpus_per_node=4, aorta_training_overrides={**LONG, "standin.fail": "6:3"})
    process.wait_for(STEP_BEGUN)
    process.mark()
    process.end()
    failure = ended_badly(job, process, "step_failed", "train: failed first on node1, rank 6: exit code 1")
    assert (failure["host"], failure["rank"], failure["exit_code"]) == ("node1", 6, 1)
    assert any("illegal memory access" in line for line in failure["log_tail"])
    assert job.remains() == job.clean()
    assert job.running() == job.clean()


@pytest.mark.parametrize(
    ("command", "settings", "text"),
    [
        pytest.param(
            ["no-such-command"], {}, "exit code 127 (command not found)", id="no such command", marks=pytest.mark.slow
        ),
        pytest.param(
            ["python3", "-c", "x = 'x' * 10**9"], {"memory": "64m"}, "killed for lack of memory (OOM)", id="memory"
        ),
        pytest.param(["sh", "-c", "exit 3"], {}, "exit code 3", id="exits", marks=pytest.mark.slow),
    ],
)
def test_the_container_ends_at_once(job, command, settings, text):
    process = job.start(aorta_multi_node={"torchrun_command": command}, aorta_docker=settings)
    process.wait_for("Follow the step")
    process.mark()
    process.end()
    ended_badly(job, process, "step_failed", "train: failed first on node", text)
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_the_deadline_passes(job):
    process = job.start(aorta_training_overrides=LONG, aorta_timeout_seconds=6)
    process.wait_for("Follow the step")
    process.mark()
    process.end()
    ended_badly(job, process, "deadline", "aorta_timeout_seconds")
    assert job.remains() == job.clean()


# ------------------------------------------------------------------ others on the same hosts


def test_a_second_run_on_the_same_hosts_is_refused(job):
    first = job.start(aorta_training_overrides=LONG)
    first.wait_for(STEP_BEGUN)
    run_id = job.run_dir.name
    second = job.run(playbook="playbooks/aorta.yml", aorta_output_dir=str(job.output) + "2")
    assert second.popen.returncode != 0
    for host in ("node0", "node1"):
        assert f"{host}: run {run_id} is going on here (container aorta-benchmark)" in second.text
    assert first.popen.poll() is None
    assert all(job.running().values())
    first.kill()
    removal = job.run(playbook="playbooks/teardown.yml", aorta_run_id=run_id)
    assert removal.popen.returncode == 0, removal.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_two_runs_that_begin_together(job):
    """Neither destroys what the other has: at most one goes on, and no container is left."""
    first = job.start(aorta_training_overrides=SHORT)
    second = job.start(aorta_training_overrides=SHORT, aorta_output_dir=str(job.output) + "2")
    codes = [process.end() for process in (first, second)]
    assert 0 not in codes or codes.count(0) == 1 or "going on here" not in first.text + second.text
    for process, code in zip((first, second), codes, strict=True):
        assert code == 0 or "run 2" in process.text, process.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_leftover_of_a_dead_run_is_removed(job):
    for name in ("aorta-benchmark", "another"):
        job.rig.host("node1").run(
            *["docker", "run", "-d", "--name", name, "--label", "org.aorta.automation.run_id=dead"],
            *["aorta-standin:local", "sleep", "600"],
        )
    job.rig.host("node0").run("docker", "run", "-d", "--name", "foreign", "aorta-standin:local", "sleep", "600")
    try:
        process = job.run(aorta_training_overrides=SHORT)
        assert process.popen.returncode == 0, process.text
        assert job.remains() == {"node0": ["foreign"], "node1": []}
    finally:
        job.rig.host("node0").run("docker", "rm", "-f", "foreign")


# ------------------------------------------------------------------ disks and files


def test_the_disk_of_a_host_is_full_when_traces_are_written(breaking):
    job = breaking
    process = job.start(aorta_work_dir="/data/runs", aorta_training_overrides={"training.max_steps": 20})
    process.wait_for(STEP_BEGUN)
    process.mark()
    job.rig.disk_fill("node1", "/data")
    process.end()
    failure = ended_badly(job, process, "step_failed", "node1", "the disk of /data/runs", "is full")
    assert failure["host"] == "node1"
    job.rig.disk_free("node1", "/data")
    assert job.running() == job.clean()
    for host in job.rig.hosts:
        assert host.run("docker", "ps", "-aq") == ""


@pytest.mark.slow
def test_the_disk_of_the_head_node_is_full_when_traces_arrive(job, tmp_path):
    with small_disk(tmp_path / "small", "1m") as job.output:
        process = job.start(aorta_training_overrides={"training.max_steps": 20})
        process.wait_for(STEP_BEGUN)
        space = os.statvfs(job.output)
        fill = job.output / "fill"
        with open(fill, "wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, max(1, space.f_bavail * space.f_frsize - 150_000))
        process.end()
        assert process.popen.returncode != 0
        assert "No space left on device" in process.text, process.text
        assert "Unexpected" not in process.text, process.text
        assert job.remains() == job.clean()


@contextlib.contextmanager
def small_disk(path, size):
    """A file system of its own for a while."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow
def test_no_trace_although_every_rank_ended_well(job):
    process = job.run(aorta_training_overrides={**SHORT, "standin.no_trace_rank": 3})
    ended_badly(job, process, "host_problem", "node1: rank 3 left no trace in ")
    assert job.remains() == job.clean()
    assert job.read("traces/nodes.json") == {"0": "node0", "1": "node0", "2": "node1"}


@pytest.mark.slow
def test_a_trace_that_was_not_written_to_its_end(job):
    process = job.run(aorta_training_overrides={**SHORT, "standin.truncate_trace_rank": 2})
    assert process.popen.returncode != 0
    assert [error["code"] for error in job.read("results.json")["errors"]] == ["trace_truncated"]
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_output_that_belongs_to_root(job):
    process = job.run(aorta_training_overrides=SHORT, aorta_docker={"user": "0:0"})
    assert process.popen.returncode == 0, process.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_directory_that_all_hosts_share(make_rig, tmp_path):
    """Every host sees the files of all; each rank's trace is taken once, from the host that ran it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    rig = make_rig(2, binds=[f"{STANDIN}:/opt/aorta", f"{shared}:/shared:rw"])
    job = ClusterJob(rig, tmp_path)
    try:
        process = job.run(aorta_training_overrides=SHORT, aorta_work_dir="/shared/runs")
        assert process.popen.returncode == 0, process.text
        assert sorted(trace["rank"] for trace in job.read("manifest.json")["traces"]) == [0, 1, 2, 3]
        assert job.read("traces/nodes.json") == {"0": "node0", "1": "node0", "2": "node1", "3": "node1"}
        assert list(shared.iterdir()) == []
    finally:
        job.close()


# ------------------------------------------------------------------ what is kept


@pytest.mark.slow
def test_a_failed_run_is_kept_for_inspection_when_asked(job):
    process = job.run(aorta_keep_on_failure=True, aorta_training_overrides={**LONG, "standin.fail": "2:2"})
    ended_badly(job, process, "step_failed", "node1, rank 2")
    run_id = job.run_dir.name
    for host in job.rig.hosts:
        assert host.run("docker", "ps", "-a", "--format", "{{.Names}}").split() == ["aorta-benchmark"]
        assert f"Kept for inspection on {host.name}" in process.text
    assert f"playbooks/teardown.yml -e aorta_run_id={run_id}" in process.text
    removal = job.run(playbook="playbooks/teardown.yml", aorta_run_id=run_id)
    assert removal.popen.returncode == 0, removal.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_run_that_passes_keeps_nothing(job):
    process = job.run(aorta_keep_on_failure=True, aorta_training_overrides=SHORT)
    assert process.popen.returncode == 0, process.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_gathering_alone_takes_what_a_run_has_left(job):
    process = job.start(aorta_keep_host_files=True, aorta_training_overrides=SHORT)
    assert process.end() == 0, process.text
    run_id = job.run_dir.name
    for path in (job.run_dir / "traces").rglob("*.gz"):
        path.unlink()
    again = job.run("--tags", "gather,analyze,validate", aorta_run_id=run_id)
    assert again.popen.returncode == 0, again.text
    assert len(list((job.run_dir / "traces").rglob("*.gz"))) == 4
    nameless = job.run("--tags", "gather")
    assert nameless.popen.returncode != 0
    assert "name it with -e aorta_run_id=" in nameless.text
    assert job.run(playbook="playbooks/teardown.yml").popen.returncode == 0
    assert job.remains() == job.clean()
