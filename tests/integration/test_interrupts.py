# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller that is interrupted, killed, or comes back."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_job import STANDIN, STEP_BEGUN, ClusterJob, until
from rig.cluster import Rig

LONG = {"training.max_steps": 300}
SHORT = {"training.max_steps": 4}
STEPS = 40


@pytest.fixture(scope="module")
def two(rig_machine, tmp_path_factory):
    directory = tmp_path_factory.mktemp("interrupts")
    with Rig.up(directory, 2, owner=os.getpid(), binds=[f"{STANDIN}:/opt/aorta"]) as rig:
        yield rig


@pytest.fixture
def job(two, tmp_path):
    job = ClusterJob(two, tmp_path)
    yield job
    job.close()
    if job.remains() != job.clean():
        two.reset()


def nothing_runs(job, seconds=60):
    until(lambda: job.running() == job.clean(), seconds, "the steps to end on all hosts")


def next_run_passes(job):
    process = job.run(aorta_training_overrides=SHORT)
    assert process.popen.returncode == 0, process.text
    assert job.remains() == job.clean()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_during_the_run_stops_the_steps(job, number):
    """Ctrl-C reaches all processes of the terminal; SIGTERM and SIGKILL only ansible-playbook itself."""
    process = job.start(aorta_training_overrides=LONG)
    process.wait_for(STEP_BEGUN)
    process.mark()
    process.signal(number, group=number == signal.SIGINT)
    assert process.end(60) != 0
    nothing_runs(job)
    until(lambda: job.failure is not None, 30, "the manifest to say why")
    assert job.failure["reason"] == "interrupted"
    next_run_passes(job)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_in_any_other_phase(job, number):
    """No handler of ours runs then; the next run finds what is there, whether it is interrupted or not."""
    for task in (
        "Look at the host",
        "Listen on the rendezvous",
        "Make the directory for the files",
        "Start the step",
        "Bring the traces",
        "Tear down",
        "Analyse the traces",
    ):
        process = job.start(aorta_training_overrides=SHORT)
        process.wait_for(f" : {task}" if task != "Tear down" else task)
        process.signal(number)
        assert process.end(90) != 0, process.text
        assert "going on here" not in process.text
    next_run_passes(job)


@pytest.mark.slow
def test_the_clean_up_removes_what_a_killed_run_has_left(job):
    process = job.start(aorta_training_overrides=LONG)
    process.wait_for(STEP_BEGUN)
    process.kill()
    assert all(job.running().values())
    removal = job.run(playbook="playbooks/teardown.yml")
    assert removal.popen.returncode == 0, removal.text
    nothing_runs(job, 1)
    assert job.remains() == job.clean()


def every_line_once(job):
    for host, ranks in (("node0", (0, 1)), ("node1", (2, 3))):
        log = (job.run_dir / "logs" / f"{host}.log").read_text()
        for rank in ranks:
            for step in range(STEPS):
                assert log.count(f"[rank {rank}] epoch=0 step={step} ") == 1, (host, rank, step)
        assert log.startswith("20") and log.endswith("\n")


def test_a_run_goes_on_under_a_new_controller(job):
    first = job.start(aorta_training_overrides={"training.max_steps": STEPS})
    first.wait_for("step=8 ")
    run_dir = job.run_dir
    first.kill()
    second = job.start(aorta_run_id=run_dir.name, aorta_training_overrides={"training.max_steps": STEPS})
    assert second.end() == 0, second.text
    assert job.run_dir == run_dir
    every_line_once(job)
    manifest = job.read("manifest.json")
    assert manifest["failure"] is None
    assert [phase["name"] for phase in manifest["phases"]].count("run") == 2
    assert job.read("verdict.json")["status"] == "passed"
    assert job.read("results.json")["world"]["ranks"] == [0, 1, 2, 3]
    assert job.remains() == job.clean()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [({}, "passed"), ({"standin.exit_code": 5}, "error")])
def test_the_result_of_a_step_that_has_ended_meanwhile_is_picked_up(job, fault, status):
    overrides = {"training.max_steps": STEPS, **fault}
    first = job.start(aorta_training_overrides=overrides)
    first.wait_for("step=2 ")
    run_dir = job.run_dir
    first.kill()
    nothing_runs(job)
    second = job.run(aorta_run_id=run_dir.name, aorta_training_overrides=overrides)
    assert (second.popen.returncode == 0) == (status == "passed"), second.text
    every_line_once(job)
    assert job.read("verdict.json")["status"] == status
    assert "Start the step container" not in second.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_launch_that_only_some_hosts_have_begun_is_begun_anew(job):
    first = job.start(aorta_training_overrides=LONG)
    first.wait_for(STEP_BEGUN)
    run_dir = job.run_dir
    first.kill()
    job.rig.host("node1").run("docker", "rm", "-f", "aorta-benchmark")
    second = job.run(aorta_run_id=run_dir.name, aorta_training_overrides=SHORT)
    assert second.popen.returncode == 0, second.text
    assert job.remains() == job.clean()


@pytest.mark.slow
def test_a_run_has_one_controller(job):
    first = job.start(aorta_training_overrides=LONG)
    first.wait_for(STEP_BEGUN)
    second = job.run(aorta_run_id=job.run_dir.name, aorta_training_overrides=LONG)
    assert second.popen.returncode != 0
    assert f"is under the control of process {first.popen.pid}" in second.text
    assert first.popen.poll() is None
    assert all(job.running().values())
    first.signal(signal.SIGINT)
    first.end(60)
    nothing_runs(job)
    next_run_passes(job)
