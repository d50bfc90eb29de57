# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on this machine: the real playbook, the process runtime, the stand-in workload."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMITS = {"max_avg_iteration_ms": 400, "min_compute_ratio": 0.4, "max_time_variance_ratio": 0.1}


class Job:
    """Runs ansible-playbook with an output and a work directory of the test's own."""

    def __init__(self, tmp_path: Path) -> None:
        self.output = tmp_path / "out put"  # with a space: paths are quoted everywhere, or this shows it
        self.work = tmp_path / "work"

    def command(self, *arguments, playbook="aorta.yml", inventory="inventories/local", **variables):
        variables = {"aorta_output_dir": str(self.output), "aorta_work_dir": str(self.work), **variables}
        where = ["-i", str(inventory)] if inventory else []
        return [str(BIN / "ansible-playbook"), playbook, *where, "-e", json.dumps(variables), *map(str, arguments)]

    def environment(self, **more):
        return {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **more}

    def __call__(self, *arguments, environment=None, **keywords):
        return subprocess.run(
            self.command(*arguments, **keywords),
            cwd=ROOT,
            env=self.environment(**(environment or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    @property
    def run_dir(self) -> Path:
        return (self.output / "latest").resolve()

    def read(self, name):
        return json.loads((self.run_dir / name).read_text())

    def leftovers(self):
        return sorted(self.work.rglob("*")) if self.work.exists() else []


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One whole run that the tests below look at; traces of it are judged again by some."""
    job = Job(tmp_path_factory.mktemp("done"))
    job.result = job()
    return job


def text_of(result):
    return result.stdout + result.stderr


def test_the_whole_job_passes(done):
    assert done.result.returncode == 0, text_of(done.result)
    assert done.read("verdict.json")["status"] == "passed"
    for name in ("spec.json", "manifest.json", "results.json", "report.html", "report.xlsx", "junit.xml"):
        assert (done.run_dir / name).stat().st_size > 200, name


def test_the_numbers_of_every_rank_are_there(done):
    results = done.read("results.json")
    assert results["status"] == "ok"
    assert results["world"] == {"num_nodes": 2, "num_ranks": 8, "ranks": list(range(8)), "missing_ranks": []}
    assert [rank["node"] for rank in results["per_rank"]] == ["node0"] * 4 + ["node1"] * 4
    assert all(rank["iterations"]["count"] == 6 for rank in results["per_rank"])
    worst = max(results["stragglers"], key=lambda row: row["made_others_wait_us"])
    assert (worst["rank"], worst["node"]) == (5, "node1")


def test_traces_are_gathered_whole(done):
    manifest = done.read("manifest.json")
    assert sorted(trace["rank"] for trace in manifest["traces"]) == list(range(8))
    for trace in manifest["traces"]:
        assert (done.run_dir / "traces" / trace["file"]).stat().st_size == trace["bytes"]
    assert done.read("traces/nodes.json") == {str(rank): f"node{rank // 4}" for rank in range(8)}
    assert {phase["name"] for phase in manifest["phases"]} >= {"preflight", "deploy", "run", "gather"}
    assert manifest["failure"] is None


def test_the_output_is_live_and_kept(done):
    for node, ranks in (("node0", "0123"), ("node1", "4567")):
        log = (done.run_dir / "logs" / f"{node}.log").read_text()
        for rank in ranks:
            assert f"[rank {rank}] epoch=0 step=11" in log
        for line in log.splitlines():
            assert f"[{node}] {line[:400]}" in done.result.stdout


def test_nothing_is_left_on_the_hosts(done):
    assert done.leftovers() == []


def test_the_terminal_ends_with_verdict_and_report(done):
    tail = done.result.stdout[-4000:]
    assert "PASSED" in tail.upper()
    assert "report.html" in tail


def judge(job, trace_dir, *arguments, **variables):
    """The validate phase in a directory of its own, with neither inventory nor Docker's collection."""
    collections = job.output.parent / "collections"
    link = collections / "ansible_collections" / "aorta" / "automation"
    if not link.exists():
        link.parent.mkdir(parents=True)
        link.symlink_to(ROOT)
    started = time.monotonic()
    result = job(
        "--tags",
        "validate",
        *arguments,
        inventory=None,
        aorta_trace_dir=str(trace_dir),
        environment={"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_INVENTORY": "/dev/null"},
        **variables,
    )
    return result, time.monotonic() - started


def test_validate_judges_existing_traces_again(done, job):
    result, _seconds = judge(job, done.run_dir / "traces", aorta_expected_results=LIMITS)
    assert result.returncode == 0, text_of(result)
    assert job.read("verdict.json")["status"] == "passed"
    before, after = done.read("results.json"), job.read("results.json")
    assert after["summary"] == before["summary"]
    assert after["reused_from"] == str(done.run_dir / "results.json")
    assert not (job.run_dir / "traces").exists()


def test_validate_fails_on_a_limit_and_still_reports(done, job):
    result, _seconds = judge(job, done.run_dir / "traces", aorta_expected_results={"max_avg_iteration_ms": 1})
    assert result.returncode != 0
    assert job.read("verdict.json")["status"] == "failed"
    assert (job.run_dir / "report.html").exists()
    assert re.search(r"iteration.*> 1", result.stdout), result.stdout[-3000:]


def test_validate_contacts_no_host(done, job, tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("aorta:\n  hosts:\n    dead:\n      ansible_host: 127.0.0.1\n      ansible_port: 1\n")
    result = job("--tags", "validate", inventory=inventory, aorta_trace_dir=str(done.run_dir / "traces"))
    assert result.returncode == 0, text_of(result)
    assert "unreachable=1" not in result.stdout


def test_validate_without_traces_is_no_pass(job):
    result = job("--tags", "validate", inventory=None, environment={"ANSIBLE_INVENTORY": "/dev/null"})
    assert result.returncode != 0
    assert job.read("verdict.json")["status"] == "no_data"


def test_a_failed_limit_fails_the_run_after_the_report(job):
    result = job("-e", "aorta_set='training_overrides.training.max_steps=6 expected_results.max_avg_iteration_ms=1'")
    assert result.returncode != 0
    assert job.read("verdict.json")["status"] == "failed"
    assert (job.run_dir / "report.html").exists()
    assert job.leftovers() == []


def test_the_reports_are_published_where_they_stay(done, job, tmp_path):
    result, _seconds = judge(
        job, done.run_dir / "traces", aorta_publish_dir=str(tmp_path / "pub lic"), aorta_status="passed"
    )
    assert result.returncode == 0, text_of(result)
    published = tmp_path / "pub lic" / job.run_dir.name
    for name in ("report.html", "report.xlsx", "junit.xml", "results.json", "verdict.json", "spec.json"):
        assert (published / name).read_bytes() == (job.run_dir / name).read_bytes(), name


def test_logs_and_traces_are_published_as_asked(job, tmp_path):
    result = job(
        "-e",
        "aorta_set='training_overrides.training.max_steps=4'",
        aorta_publish_dir=str(tmp_path / "pub"),
        aorta_publish_traces=True,
    )
    assert result.returncode == 0, text_of(result)
    published = tmp_path / "pub" / job.run_dir.name
    assert (published / "logs" / "node1.log").read_bytes() == (job.run_dir / "logs" / "node1.log").read_bytes()
    assert len(list(published.rglob("rank*/*.json.gz"))) == 8


def test_a_rank_that_dies_ends_the_run_within_seconds(job):
    started = time.monotonic()
    result = job("-e", "aorta_set='training_overrides.standin.fail=6:2'")
    assert result.returncode != 0
    assert time.monotonic() - started < 60
    failure = job.read("manifest.json")["failure"]
    assert (failure["phase"], failure["host"], failure["rank"], failure["exit_code"]) == ("run", "node1", 6, 1)
    assert "failed first on node1, rank 6" in result.stdout
    assert job.read("verdict.json")["status"] == "error"
    assert "InjectedFailure" in (job.run_dir / "report.html").read_text()
    assert job.leftovers() == []


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        ("truncate_trace_rank=3", "trace_truncated", "partial"),
        ("no_gpu_events_rank=3", "no_gpu_events", "partial"),
    ],
)
def test_a_damaged_trace_is_no_pass(job, fault, code, status):
    result = job("-e", f"aorta_set='training_overrides.training.max_steps=4 training_overrides.standin.{fault}'")
    assert result.returncode != 0
    results = job.read("results.json")
    assert results["status"] == status
    assert [(error["code"], error["rank"]) for error in results["errors"]] == [(code, 3)]
    assert job.read("verdict.json")["status"] != "passed"


def test_a_rank_without_a_trace_is_named(job):
    fault = "training_overrides.training.max_steps=4 training_overrides.standin.no_trace_rank=2"
    result = job("-e", f"aorta_set='{fault}'")
    assert result.returncode != 0
    assert "node0: rank 2 left no trace" in result.stdout
    result = job("-e", f"aorta_set='{fault}'", aorta_allow_missing_ranks=True, aorta_expected_results={})
    assert result.returncode == 0, text_of(result)
    assert job.read("results.json")["world"]["missing_ranks"] == [2]


def test_the_deadline_ends_a_run_that_hangs(job):
    result = job("-e", "aorta_set='timeout_seconds=6 training_overrides.standin.hang_rank=1'")
    assert result.returncode != 0
    assert job.read("manifest.json")["failure"]["reason"] in ("deadline", "step_failed")
    assert "aorta_timeout_seconds" in result.stdout or "deadline" in result.stdout
    assert job.leftovers() == []


def test_one_fork_is_enough(job):
    result = job("-f", "1", "-e", "aorta_set='training_overrides.training.max_steps=4'")
    assert result.returncode == 0, text_of(result)


@pytest.mark.parametrize("mode", ["torchrun", "script"])
def test_every_override_and_variable_reaches_every_rank(job, mode):
    one_host = ["--limit", "node0"] if mode == "script" else []
    path = f"{BIN}:{ROOT}/playbooks/files/standin:{os.environ['PATH']}"
    result = job(
        *one_host,
        "-e",
        "aorta_set='training_overrides.training.max_steps=4 training_overrides.my.own=a=b environment.NCCL_ALGO=Ring'",
        aorta_keep_host_files=True,
        environment={"PATH": path},
    )
    assert result.returncode == 0, text_of(result)
    records = [json.loads(path.read_text()) for path in job.work.rglob("rank_*_standin.json")]
    assert len(records) == (4 if mode == "script" else 8)
    for record in records:
        assert record["config"]["training"]["max_steps"] == 4
        assert record["config"]["my"]["own"] == "a=b"
        assert record["environment"]["NCCL_ALGO"] == "Ring"
        assert record["environment"]["NCCL_MAX_NCHANNELS"] == "112"
        if mode == "torchrun":
            assert record["argv"].count("--override") == 1
            assert record["environment"]["GLOO_SOCKET_IFNAME"] == "lo"


def test_check_mode_touches_nothing(job):
    result = job("--check")
    assert result.returncode == 0, text_of(result)
    assert not job.output.exists()
    assert not job.work.exists()


def test_tags_config_checks_and_runs_nothing(job):
    result = job("--tags", "config")
    assert result.returncode == 0, text_of(result)
    assert job.read("spec.json")["values"]["gpus_per_node"] == 4
    assert not (job.run_dir / "manifest.json").exists()


def test_bad_input_stops_before_any_host_is_touched(job):
    result = job(aorta_gpus_per_node="eight", aorta_timeout_seconds="1h", aorta_timeout_secs=5)
    assert result.returncode != 0
    for text in ("aorta_gpus_per_node", "eight", "aorta_timeout_seconds", "1h", "aorta_timeout_secs"):
        assert text in result.stdout + result.stderr
    for text in ("Traceback", "pydantic"):
        assert text not in result.stdout + result.stderr
    assert not job.work.exists()


def test_preflight_names_every_problem_of_every_host(job):
    result = job(aorta_base_config="config/none.json", aorta_min_free_gb=10**9)
    assert result.returncode != 0
    assert "2 of 2 hosts have a problem" in result.stdout
    assert result.stdout.count("config/none.json does not exist") >= 2
    assert "wanted for traces" in result.stdout
    assert job.read("verdict.json")["status"] == "error"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(job, number):
    process = subprocess.Popen(
        job.command("-e", "aorta_set='training_overrides.standin.step_seconds=5'"),
        cwd=ROOT,
        env=job.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if "Enabling torch profiler" in line:
            break
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.stdout.read()
    assert process.wait(timeout=60) != 0
    limit = time.monotonic() + 30
    while time.monotonic() < limit and running(job.work):
        time.sleep(0.2)
    assert running(job.work) == []


def running(work):
    """Command lines of processes that work below a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(work) in text:
            found.append(text)
    return [text for text in found if "train.py" in text]


def test_secrets_are_shown_nowhere(job):
    result = job(
        "-vvv",
        "-e",
        "aorta_set='training_overrides.training.max_steps=4'",
        aorta_environment={"HSA_MY_TOKEN": "s3cr3t-value"},
        aorta_keep_host_files=True,
    )
    assert result.returncode == 0, text_of(result)
    record = json.loads(next(job.work.rglob("rank_*_standin.json")).read_text())
    assert record["environment"]["HSA_MY_TOKEN"] == "s3cr3t-value"
    # -e itself is in the -vvv header's command line only where the user has put it; look below that
    assert "s3cr3t-value" not in result.stdout.partition("PLAYBOOK:")[2]
    for path in job.run_dir.rglob("*"):
        if path.is_file() and "traces" not in path.parts:
            assert b"s3cr3t-value" not in path.read_bytes(), path
