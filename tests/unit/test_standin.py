# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in workload: real launchers and ranks on the loopback address, and the traces that they leave."""

from __future__ import annotations

import ast
import collections
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta as engine
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts

TREE = Path(__file__).resolve().parents[2] / "playbooks" / "files" / "standin"
sys.path.insert(0, str(TREE / "src"))

from standin import config as configuration  # noqa: E402
from standin import kineto  # noqa: E402
from standin.schedule import Schedule, analytic, profiled_steps  # noqa: E402
from standin.world import DistError, World  # noqa: E402

MARK = "AORTA_STANDIN_TEST"
QUICK = ["standin.step_seconds=0.02", "standin.layers=3", "training.max_steps=5"]


class Job:
    """Launchers started by one test. All their processes carry a mark in their environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "out"
        self.mark = uuid.uuid4().hex
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        log = self.directory / f"launcher{len(self.launchers)}.log"
        with log.open("w") as stream:
            launcher = subprocess.Popen(
                [sys.executable, *command],
                cwd=TREE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, MARK: self.mark, "AORTA_STANDIN_STOP_GRACE_S": "1.5", **environment},
            )
        self.launchers.append(launcher)
        return launcher

    def node(
        self, number: int, port: int, *overrides: str, nodes: int = 2, ranks: int = 2, flags: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        where = ["--nnodes", str(nodes), "--node_rank", str(number), "--nproc_per_node", str(ranks)]
        where += ["--rdzv_backend", "static", "--master_addr", "127.0.0.1", "--master_port", str(port), *flags]
        settings = ["--override", f"training.output_dir={self.output}", *QUICK, *overrides]
        return self.start("torchrun", *where, "train.py", "--config", "config/demo.json", *settings, NCCL_DEBUG="WARN")

    def run(self, *overrides: str, nodes: int = 2, ranks: int = 2, flags: tuple[str, ...] = ()) -> list[int]:
        port = free_port()
        for number in range(nodes):
            self.node(number, port, *overrides, nodes=nodes, ranks=ranks, flags=flags)
        return self.wait()

    def wait(self, timeout: float = 30) -> list[int]:
        deadline = time.monotonic() + timeout
        return [launcher.wait(max(0.1, deadline - time.monotonic())) for launcher in self.launchers]

    def log(self, number: int = 0) -> str:
        return (self.directory / f"launcher{number}.log").read_text()

    def wait_for(self, text: str, number: int = 0, timeout: float = 20) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.log(number):
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{self.log(number)}"
            time.sleep(0.02)

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def nothing_left(self, within: float = 5) -> bool:
        deadline = time.monotonic() + within
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.processes()

    def record(self, rank: int) -> Any:
        return json.loads((self.output / f"rank_{rank:02d}_standin.json").read_text())

    def traces(self, rank: int) -> list[Path]:
        return sorted((self.output / "torch_profiler" / f"rank{rank}").glob("*"))


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    made.wait()


SKEW_US = 1500
WHOLE = [
    "profiling.active=2",
    "profiling.chrome_trace=true",
    "standin.slow_rank=3",
    f"standin.clock_skew_us_per_node={SKEW_US}",
    "standin.start_time_ns=1796100000123456789",
    "no_such_section.key=kept",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One successful run of two nodes with two ranks each; its files are only read."""
    made = Job(tmp_path_factory.mktemp("standin"))
    assert made.run(*WHOLE) == [0, 0], made.log(0) + made.log(1)
    assert made.nothing_left()
    return made


def small(**standin: Any) -> configuration.Config:
    return configuration.resolve({"standin": {"layers": 3, **standin}})


def strict(path: Path, **options: Any) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse, **options)


# --- a run --------------------------------------------------------------------------------------------------------


def test_every_rank_gets_its_place_the_overrides_and_the_environment(whole: Job) -> None:
    for rank in range(4):
        record = whole.record(rank)
        assert record["rank"] == {
            "rank": rank,
            "world_size": 4,
            "local_rank": rank % 2,
            "local_world_size": 2,
            "node_rank": rank // 2,
            "address": "127.0.0.1",
            "port": record["rank"]["port"],
        }
        assert record["config"]["standin"]["slow_rank"] == 3
        assert record["config"]["profiling"]["chrome_trace"] is True
        assert record["config"]["no_such_section"] == {"key": "kept"}
        assert record["config"]["optimizer"]["betas"] == [0.9, 0.985]
        assert record["argv"][-len(WHOLE) :] == WHOLE
        assert record["environment"]["NCCL_DEBUG"] == "WARN"
        assert record["environment"]["OMP_NUM_THREADS"]
        assert "PATH" not in record["environment"]


def test_every_rank_logs_every_step_with_time_level_and_rank(whole: Job) -> None:
    for rank in range(4):
        form = (
            rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}} \| INFO \| aorta.standin \| \[rank {rank}\] epoch=0 "
            r"step=(\d+) loss=\d\.\d{5} lr=\d\.\d{6} overlap=\d+\.\d{3}ms compute=\d+\.\d{3}ms$"
        )
        assert re.findall(form, whole.log(rank // 2), re.MULTILINE) == ["0", "1", "2", "3", "4"]
        metrics = [json.loads(line) for line in (whole.output / f"rank_{rank:02d}_metrics.jsonl").open()]
        assert [entry["global_step"] for entry in metrics] == [0, 1, 2, 3, 4]
        assert metrics[0]["profile"]["overlap"]["per_stream_ms"]["compute"] > 0


def test_both_exporters_write_the_same_events(whole: Job) -> None:
    for rank in range(4):
        board, chrome = whole.traces(rank)
        if board.name.startswith("trace"):
            board, chrome = chrome, board
        pid = whole.record(rank)["process"]["pid"]
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}_{pid}\.\d+\.pt\.trace\.json", board.name)
        assert chrome.name == "trace_step5.json"
        assert strict(board)["traceEvents"] == strict(chrome)["traceEvents"]


def test_a_job_waits_for_a_node_that_is_started_late(job: Job) -> None:
    port = free_port()
    job.node(0, port)
    time.sleep(0.8)
    assert job.launchers[0].poll() is None
    assert "step=0" not in job.log(0)
    job.node(1, port)
    assert job.wait() == [0, 0]


def test_a_failing_rank_is_named_and_the_other_node_notices_by_timeout(job: Job) -> None:
    port = free_port()
    settings = ("standin.fail=2:2", "standin.collective_timeout_s=4")
    job.node(0, port, *settings)
    job.node(1, port, *settings)
    assert job.wait() == [1, 1]
    log = job.log(1)
    assert "InjectedFailure: HIP error: an illegal memory access was encountered" in log
    assert re.search(r"^ {2}rank {6}: 2 \(local_rank: 0\)\n {2}exitcode {2}: 1 \(pid: \d+\)$", log, re.MULTILINE)
    noticed = (  # by either rank of that node: the one that is first ends the other
        r"\[Rank [01]\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=3, .* ran for (\d+) milliseconds"
    )
    waited = re.search(noticed, job.log(0))
    assert waited
    assert int(waited[1]) >= 4000
    assert job.nothing_left()


def test_a_rank_can_die_by_a_signal(job: Job) -> None:
    assert job.run("standin.fail=0:1", "standin.exit_code=-9", nodes=1, ranks=1) == [1]
    assert re.search(
        r"exitcode {2}: -9 \(pid: (\d+)\)\n.*\n {2}traceback : Signal 9 \(SIGKILL\) received by PID \1", job.log()
    )


def test_exit_code_without_a_failure_comes_after_the_traces(job: Job) -> None:
    assert job.run("standin.exit_code=7", nodes=1, ranks=1) == [1]
    assert "exitcode  : 7" in job.log()
    assert len(job.traces(0)) == 1


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_launcher(job: Job, by: signal.Signals) -> None:
    launcher = job.node(0, free_port(), "standin.hang_rank=1", nodes=1)
    job.wait_for("[rank 0] epoch=0 step=1")
    assert len(job.processes()) == 3
    launcher.send_signal(by)
    code = launcher.wait(15)
    assert code == (1 if by == signal.SIGTERM else -9)
    assert job.nothing_left()
    if by == signal.SIGTERM:  # the hung rank does not react to SIGTERM
        assert "forcefully exiting via SIGKILL" in job.log()
        assert "got signal: 15" in job.log()


def test_a_stopped_job_keeps_the_steps_it_has_recorded(job: Job) -> None:
    launcher = job.node(0, free_port(), "training.max_steps=1000", "standin.step_seconds=0.05", nodes=1)
    job.wait_for("[rank 1] epoch=0 step=4")
    launcher.terminate()
    assert launcher.wait(10) == 1
    for rank in range(2):
        names = {event["name"] for event in strict(job.traces(rank)[0])["traceEvents"]}
        assert {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"} <= names


def test_faults_of_traces(job: Job) -> None:
    faults = ("standin.truncate_trace_rank=0", "standin.no_trace_rank=1", "standin.no_gpu_events_rank=[2,3]")
    assert job.run(*faults, "training.max_steps=3") == [0, 0]
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(job.traces(0)[0].read_text())
    assert job.traces(1) == []
    for rank in (2, 3):
        categories = {event.get("cat") for event in strict(job.traces(rank)[0])["traceEvents"]}
        assert "cuda_runtime" in categories
        assert not categories & {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}


def test_launch_script_passes_arguments_on_and_knows_its_ranks(job: Job) -> None:
    settings = [f"training.output_dir={job.output}", *QUICK, "profiling.enabled=false"]
    done = subprocess.run(
        ["bash", str(TREE / "scripts" / "launch_rocm.sh"), str(TREE / "config" / "demo.json"), "--override", *settings],
        env={**os.environ, MARK: job.mark, "NPROC": "2"},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        record = job.record(rank)
        assert record["rank"]["world_size"] == 2
        assert record["enable_rocm_metrics"] is True
        assert record["config"]["standin"]["layers"] == 3
        assert record["environment"]["HIP_VISIBLE_DEVICES"] == "0,1"


# --- the command line ---------------------------------------------------------------------------------------------


def test_only_the_last_override_flag_counts(job: Job) -> None:
    first = ["--override", "optimizer.lr=0.5"]
    last = ["--override", f"training.output_dir={job.output}", *QUICK, "profiling.enabled=false"]
    job.start("train.py", "--config", "config/demo.json", *first, *last)
    assert job.wait() == [0], job.log()
    assert job.record(0)["config"]["optimizer"]["lr"] == 0.0002


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "config/none.json"], "config/none.json: cannot read"),
        (["--config", "README.md"], "must be .json, .yaml or .yml"),
        (["--config", "config/demo.json", "--override", "a.b"], "expected key=value, found 'a.b'"),
        (["--config", "config/demo.json", "--override", "training=3"], "training: expected a mapping, found 3"),
        (
            ["--config", "config/demo.json", "--override", "standin.layers=many"],
            "standin.layers: expected a whole number",
        ),
        (["--config", "config/demo.json", "--override", "standin.fail=5"], "standin.fail: expected rank:step"),
        (["--config", "config/demo.json", "--override", "standin.hang_rank=x"], "standin.hang_rank: expected a rank"),
    ],
)
def test_bad_input_is_one_clear_line(job: Job, arguments: list[str], message: str) -> None:
    job.start("train.py", *arguments)
    assert job.wait() == [1]
    assert message in job.log()
    assert len(job.log().splitlines()) == 1


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("[a, b]", ["a", "b"]),
        ("[]", []),
        ("5:3", "5:3"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_override_values(raw: str, value: object) -> None:
    result = configuration.apply_overrides({"section": 1}, [f"section.key={raw}"])
    assert result == {"section": {"key": value}}
    assert type(result["section"]["key"]) is type(value)


def test_yaml_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "a.yaml"
    path.write_text('{"training": {"max_steps": 3}}')
    assert configuration.load(path) == {"training": {"max_steps": 3}}
    path.write_text("training:\n  max_steps: 3\n")
    with pytest.raises(configuration.ConfigError, match=r"a\.yaml: .* PyYAML is not installed"):
        configuration.load(path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no-such-flag"], "unrecognized|required|arguments"),
        (["--nnodes", "1:2"], "--nnodes: expected a fixed number"),
        (["--nnodes", "2", "--node-rank", "2"], "--node_rank: expected 0 … 1, got 2"),
        (["--nproc-per-node", "gpu"], "--nproc_per_node: expected a number"),
        (["--nnodes", "2", "--rdzv-backend", "c10d"], "only knows static"),
        (["--nnodes", "2", "--standalone"], "--standalone is for one node"),
        (["--max-restarts", "3"], "does not restart"),
        (["--tee", "9"], "--tee: expected"),
        (["--rdzv-endpoint", "host:x"], "--rdzv_endpoint: expected HOST:PORT"),
    ],
)
def test_torchrun_refuses_what_it_cannot_do(job: Job, flags: list[str], message: str) -> None:
    job.start("torchrun", *flags, "train.py")
    assert job.wait() == [2]
    assert re.search(message, job.log())


def test_torchrun_runs_as_a_program_of_its_own_and_tees(tmp_path: Path) -> None:
    script = "echo out $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID"
    where = ["--nnodes", "3:3", "--node-rank", "2", "--nproc-per-node", "2", "--rdzv-endpoint", "10.0.0.9:1234"]
    tee = ["--rdzv-id", "id7", "--tee", "0:3,1:1", "--log-dir", str(tmp_path), "--role", "trainer"]
    done = subprocess.run(
        [str(TREE / "torchrun"), *where, *tee, "--no-python", "sh", "-c", f"{script}; echo err >&2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[trainer4]:out 4 0 2 6 10.0.0.9 1234 id7",
        "[trainer5]:out 5 1 2 6 10.0.0.9 1234 id7",
    ]
    assert sorted(done.stderr.splitlines()) == ["[trainer4]:err", "err"]
    assert (tmp_path / "id7" / "attempt_0" / "0" / "stderr.log").read_text() == "err\n"
    assert not (tmp_path / "id7" / "attempt_0" / "1" / "stderr.log").exists()


# --- the rendezvous -----------------------------------------------------------------------------------------------


def world(rank: int, size: int, port: int, **options: Any) -> World:
    options = {"collective_timeout": 5.0, "stopping": lambda: False, **options}
    return World(rank, size, "127.0.0.1", port, **options)


def test_rendezvous_times_out_on_both_sides() -> None:
    port = free_port()
    with pytest.raises(DistError, match=r"timed out after 300ms while trying to connect to \(127\.0\.0\.1, \d+\)"):
        world(1, 2, port).join(0.3, {})
    with pytest.raises(DistError, match="1/2 clients joined"):
        world(0, 2, port).join(0.3, {})


@pytest.mark.parametrize("rank", [0, 1])
def test_rendezvous_ends_when_the_rank_is_told_to_stop(rank: int) -> None:
    with pytest.raises(DistError, match=rf"\[Rank {rank}\] stopped while waiting for"):
        world(rank, 2, free_port(), stopping=lambda: True).join(60, {})


def test_rendezvous_names_a_port_in_use_and_a_foreign_address() -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DistError, match="name: EADDRINUSE"):
            world(0, 2, taken.getsockname()[1]).join(1, {})
    with pytest.raises(DistError, match="no address of rank 0's host"):
        World(0, 2, "192.0.2.1", free_port(), collective_timeout=1, stopping=lambda: False).join(1, {})


def test_rendezvous_refuses_a_wrong_world_size_and_survives_probes() -> None:
    port = free_port()
    first = world(0, 2, port)
    answer: dict[str, int] = {}
    thread = threading.Thread(target=lambda: answer.update(first.join(10, {"start_ns": 42})))
    thread.start()
    deadline = time.monotonic() + 5
    while True:  # a port probe: connect, say nothing or nonsense, go
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"GET / HTTP/1.0\r\n\r\n")
            break
        except OSError:
            assert time.monotonic() < deadline
    with pytest.raises(DistError, match="rank 1 was started for world size 3, rank 0 for 2"):
        world(1, 3, port).join(5, {})
    second = world(1, 2, port)
    assert second.join(5, {}) == {"start_ns": 42}
    thread.join(5)
    assert answer == {"start_ns": 42}
    first.close()
    second.close()


# --- the schedule -------------------------------------------------------------------------------------------------


def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in merge(intervals))


def test_a_run_of_eight_ranks_looks_like_a_healthy_one() -> None:
    config = configuration.resolve({})
    last: collections.Counter[int] = collections.Counter()
    for rank in range(8):
        result = analytic(config, rank, 8)
        time_of, total = result["timeline"], result["timeline"]["total"]
        assert all(180e6 < step["duration"] < 250e6 for step in result["steps"])
        assert len(result["steps"]) == 6
        low, high = (0.6, 0.76) if rank != 5 else (0.75, 0.85)  # the slow rank computes longer
        assert low < time_of["computation"] / total < high
        assert 0.5 < 1 - time_of["exposed_communication"] / time_of["communication"] < 0.8
        assert 0 < time_of["idle"] / total < 0.1
        assert time_of["exposed_memcpy"] > 0
        parts = ("computation", "exposed_communication", "exposed_memcpy", "idle")
        assert sum(time_of[part] for part in parts) == total == time_of["busy"] + time_of["idle"]
        last = collections.Counter({number: entry["times_last"] for number, entry in result["stragglers"].items()})
    (slowest, often), (_second, seldom) = last.most_common(2)
    assert slowest == 5
    assert often > 5 * seldom
    assert sum(last.values()) == 6 * 37


def test_ranks_agree_on_their_collectives() -> None:
    schedule = Schedule(small(slow_rank=2), 4)
    per_rank = [
        [(op.collective, op.start, op.end) for step in steps for op in step.ops if op.collective is not None]
        for steps in schedule.window(3, 2)
    ]
    assert [what.seq for what, _start, _end in per_rank[0]] == list(range(31, 51))
    for entries in zip(*per_rank, strict=True):
        assert len({what for what, _start, _end in entries}) == 1
        starts, ends = [entry[1] for entry in entries], [entry[2] for entry in entries]
        assert max(ends) - min(ends) <= 1_500
        what = entries[0][0]
        transfer = 30_000 if what.name == "allreduce" else 20_000 + round(what.bytes / 170)
        assert transfer <= min(ends) - max(starts) <= transfer + 1_500
    names = collections.Counter(what.name for what, _start, _end in per_rank[0])
    assert names == {"_allgather_base": 12, "_reduce_scatter_base": 6, "allreduce": 2}


def test_everything_follows_from_seed_rank_and_step() -> None:
    one, other = Schedule(small(), 3).window(2, 3), Schedule(small(), 3).window(2, 3)
    assert one == other
    assert Schedule(small(seed=7), 3).window(2, 3) != one
    alone, _length = Schedule(small(), 3).step(2)
    assert [steps[0] for steps in one] == alone
    steps = one[1]
    assert [step.step for step in steps] == [2, 3, 4]
    for earlier, later in itertools.pairwise(steps):
        assert later.host_start - earlier.host_end == 15_000
    process = kineto.Process(1, 3, 1, 77, 10**18, kineto.base_time(10**18))
    assert kineto.document(process, steps, trace_name="t") == kineto.document(process, steps, trace_name="t")


def test_prefetching_hides_communication() -> None:
    def exposed(**fsdp: Any) -> int:
        config = configuration.resolve({"fsdp": fsdp, "standin": {"slow_rank": -1}})
        return int(analytic(config, 0, 4)["timeline"]["exposed_communication"])

    neither = exposed(forward_prefetch=False, backward_prefetch="none")
    backward = exposed(forward_prefetch=False, backward_prefetch="BACKWARD_PRE")
    assert exposed(forward_prefetch=True, backward_prefetch="BACKWARD_PRE") < backward < neither


def test_a_world_of_one_does_not_communicate() -> None:
    result = analytic(small(slow_rank=0), 0, 1)
    assert result["timeline"]["communication"] == 0
    assert result["kernel_counts"]["communication"] == 0
    assert result["collectives"] == []


@pytest.mark.parametrize("wait", [0, 1, 3])
@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("repeat", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 4, 5, 8, 13])
def test_profiled_steps_are_those_of_the_last_cycle_that_recorded(
    wait: int, warmup: int, repeat: int, steps: int
) -> None:
    active = 3
    profiling = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
    config = configuration.resolve({"training": {"max_steps": steps}, "profiling": profiling})
    cycle = wait + warmup + active
    recorded = [  # torch.profiler.schedule: a step is recorded when it lies in the last part of a cycle
        step for step in range(steps) if step % cycle >= wait + warmup and (not repeat or step // cycle < repeat)
    ]
    newest = [step for step in recorded if step // cycle == recorded[-1] // cycle]
    first, count = profiled_steps(config)
    assert list(range(first, first + count)) == newest


# --- the traces ---------------------------------------------------------------------------------------------------

GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


def nanoseconds(text: str) -> int:
    whole, point, rest = text.partition(".")
    assert point
    assert len(rest) == 3
    return int(whole) * 1000 + int(rest)


def times(path: Path) -> Any:
    """A trace whose numbers with a point are texts, so that nothing is lost."""
    return strict(path, parse_float=str)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_trace_has_the_form_of_kineto(whole: Job, rank: int) -> None:
    trace = times(whole.traces(rank)[0])
    assert trace["schemaVersion"] == 1
    assert {device["name"] for device in trace["deviceProperties"]} == {"AMD Instinct MI300X (simulated)"}
    assert trace["displayTimeUnit"] == "ms"
    assert trace["baseTimeNanoseconds"] == kineto.base_time(1796100000123456789)
    assert "not measured" in trace["generator"]
    info = trace["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"], info["pg_count"]) == ("nccl", rank, 4, 1)
    assert info["pg_config"][0]["ranks"] == [0, 1, 2, 3]

    events = trace["traceEvents"]
    by_category = collections.defaultdict(list)
    for event in events:
        by_category[event.get("cat", event["ph"])].append(event)
    pid = whole.record(rank)["process"]["pid"]
    assert {event["name"] for event in by_category["M"]} >= {"process_name", "process_labels", "thread_name"}
    assert [event["name"] for event in by_category["i"]][-1] == "Record Window End"
    steps = [event["name"] for event in by_category["user_annotation"] if event["name"].startswith("ProfilerStep")]
    assert steps == ["ProfilerStep#2", "ProfilerStep#3"]
    copies = [event for event in by_category["gpu_user_annotation"] if event["name"].startswith("ProfilerStep")]
    assert len(copies) == 2
    assert {event["pid"] for event in by_category["cpu_op"]} == {pid}

    operators = {event["args"]["External id"]: event for event in by_category["cpu_op"]}
    runtime = {event["args"]["correlation"]: event for event in by_category["cuda_runtime"]}
    starts = {event["id"]: event for event in by_category["ac2g"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in by_category["ac2g"] if event["ph"] == "f"}
    gpu = [event for event in events if event.get("cat") in GPU]
    assert len(runtime) == len(starts) == len(ends) == len(gpu)
    for event in gpu:
        args = event["args"]
        launch = runtime[args["correlation"]]
        operator = operators[args["External id"]]
        assert (event["pid"], event["tid"]) == (args["device"], args["stream"]) == (rank % 2, event["tid"])
        assert starts[args["correlation"]]["ts"] == launch["ts"]
        assert (ends[args["correlation"]]["ts"], ends[args["correlation"]]["tid"]) == (event["ts"], event["tid"])
        assert launch["args"]["External id"] == args["External id"]
        assert nanoseconds(operator["ts"]) <= nanoseconds(launch["ts"]) < nanoseconds(event["ts"])
    communication = [event for event in gpu if event["name"].startswith("ncclDevKernel_Generic(")]
    assert len(communication) == 2 * 10
    for event in communication:
        args = event["args"]
        assert (args["Group size"], args["Process Group Name"]) == (4, "0")
        assert args["Process Group Ranks"] == "[0, 1, 2, 3]"
        full = max(args["In msg nelems"], args["Out msg nelems"])
        assert full == 1 or min(args["In msg nelems"], args["Out msg nelems"]) * 4 == full
    assert [event["args"]["Seq"] for event in communication] == list(range(21, 41))


def test_events_of_a_thread_or_stream_do_not_cross(whole: Job) -> None:
    trace = times(whole.traces(1)[0])
    lanes = collections.defaultdict(list)
    windows = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "Trace":
            start = nanoseconds(event["ts"])
            span = (start, start + nanoseconds(event["dur"]))
            kind = "annotation" if event["cat"] == "gpu_user_annotation" else ""
            lanes[event["pid"], event["tid"], kind].append(span)
            if event["name"].startswith("ProfilerStep") and not kind:
                windows.append(span)
    assert len(lanes) == 2 + 3 + 3
    for (pid, _tid, kind), spans in lanes.items():
        open_ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or (end <= open_ends[-1] and (kind or pid > 7)), "crosses, or overlaps on a stream"
            open_ends.append(end)
    inside = [span for spans in lanes.values() for span in spans]
    assert all(any(first <= start and end <= last for first, last in windows) for start, end in inside)


def test_timeline_of_the_trace_is_the_analytic_one(whole: Job) -> None:
    for rank in range(4):
        config = whole.record(rank)["config"]
        expected = analytic(config, rank, 4)["timeline"]
        kinds: dict[str, list[tuple[int, int]]] = {"computation": [], "communication": [], "memcpy": []}
        for event in times(whole.traces(rank)[0])["traceEvents"]:
            if event.get("cat") in GPU:
                start = nanoseconds(event["ts"])
                kind = "communication" if "nccl" in event["name"] else "computation"
                kind = "memcpy" if event["cat"] == "gpu_memcpy" else kind
                kinds[kind].append((start, start + nanoseconds(event["dur"])))
        compute, comm, copies = (kinds[kind] for kind in ("computation", "communication", "memcpy"))
        everything = compute + comm + copies
        total = max(end for _start, end in everything) - min(start for start, _end in everything)
        assert expected == {
            "total": total,
            "busy": length(everything),
            "idle": total - length(everything),
            "computation": length(compute),
            "communication": length(comm),
            "exposed_communication": length(compute + comm) - length(compute),
            "memcpy": length(copies),
            "exposed_memcpy": length(everything) - length(compute + comm),
        }


def test_the_engine_finds_what_was_planted(whole: Job) -> None:
    nodes = {rank: f"node{rank // 2}" for rank in range(4)}
    found = engine.parse(
        Artifacts(trace_dir=whole.output / "torch_profiler", expected_ranks=frozenset(range(4)), nodes=nodes)
    )
    assert found.status == "ok"
    assert found.errors == []
    assert {note.code for note in found.warnings} == {"clock_offset", "duplicate_trace"}
    assert found.clock_offsets_us["node0"] == 0
    assert found.clock_offsets_us["node1"] == pytest.approx(SKEW_US, abs=2)
    planted = analytic(whole.record(0)["config"], 0, 4)
    assert [entry.seq for entry in found.collectives] == [entry["seq"] for entry in planted["collectives"]]
    for result in found.per_rank:
        expected = analytic(whole.record(result.rank)["config"], result.rank, 4)
        measured = result.timeline_us.model_dump()
        assert {name: round(value * 1000) for name, value in measured.items()} == expected["timeline"]
        assert result.iterations.durations_ms == [step["duration"] / 1e6 for step in expected["steps"]]
        assert result.kernel_counts.model_dump() == expected["kernel_counts"]
    worst = max(found.stragglers, key=lambda straggler: straggler.times_last)
    assert worst.rank == 3
    assert worst.made_others_wait_us * 1000 == pytest.approx(planted["stragglers"][3]["made_others_wait"], rel=0.01)


def test_the_default_trace_is_of_moderate_size_and_quickly_made() -> None:
    config = configuration.resolve({})
    started = time.process_time()
    steps = Schedule(config, 8).window(*profiled_steps(config))[0]
    process = kineto.Process(0, 8, 0, 4242, 10**18, kineto.base_time(10**18))
    text = kineto.document(process, steps, trace_name="t.json")
    assert time.process_time() - started < 5
    assert 1e6 < len(text) < 3e6


def test_the_default_launches_lie_in_their_step_and_before_the_gpu() -> None:
    config = configuration.resolve({"standin": {"cpu_ops_per_layer": 40}})
    for step in Schedule(config, 2).window(2, 2)[1]:
        launches = kineto.launch_times(step)
        assert launches == sorted(launches)
        assert launches[0] > step.host_start + 100_000
        assert all(launch < op.start for launch, op in zip(launches, step.ops, strict=True))


def test_long_lists_of_ranks_are_shortened_as_by_pytorch() -> None:
    assert kineto.group_ranks(30) == str(list(range(30)))
    assert kineto.group_ranks(64) == f"[{', '.join(map(str, range(29)))}, ..., 63]"


def test_the_tree_needs_python_3_9_and_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"standin", "yaml", ""}
    for path in (TREE / "torchrun", *TREE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if not node.level else []
            assert {name.split(".")[0] for name in names} <= allowed
