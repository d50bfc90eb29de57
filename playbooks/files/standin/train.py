# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point of the stand-in workload: the command line, log lines and files of Aorta's train.py, without PyTorch."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

sys.dont_write_bytecode = True  # the tree may be mounted read-only, or belong to someone else
sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from standin import config as configuration  # noqa: E402
from standin import kineto  # noqa: E402
from standin.config import Config, ConfigError  # noqa: E402
from standin.schedule import Schedule, analytic, measure, profiled_steps  # noqa: E402
from standin.world import DistError, World  # noqa: E402

__all__ = ["analytic", "main"]

log = logging.getLogger("aorta.standin")

# What a record of the environment holds: enough to prove that settings reached a rank, and no secrets.
RECORDED = (
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "TENSILE_",
    "HSA_",
    "TORCH_",
    "OMP_",
    "HIP_",
    "ROCR_",
    "MIOPEN_",
    "AORTA_STANDIN_",
)


class Rank(NamedTuple):
    """This process' place in the job, from the environment that torchrun sets."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    port: int


def rank_from_environment() -> Rank:
    """Read torchrun's variables; without RANK this is a job of one. Raises ConfigError."""
    if "RANK" not in os.environ:
        return Rank(0, 1, 0, 1, 0, "127.0.0.1", 0)

    def number(name: str, default: str | None = None) -> int:
        raw = os.environ.get(name, default)
        if raw is None or not raw.isdigit():
            raise ConfigError(f"environment variable {name}: expected a whole number, got {raw!r}")
        return int(raw)

    rank, world_size = number("RANK"), number("WORLD_SIZE")
    if rank >= world_size:
        raise ConfigError(f"RANK is {rank} but WORLD_SIZE is {world_size}")
    local_rank, local_size = number("LOCAL_RANK", "0"), number("LOCAL_WORLD_SIZE", str(world_size))
    node_rank = number("GROUP_RANK", str(rank // max(1, local_size)))
    if world_size > 1 and not os.environ.get("MASTER_ADDR"):
        raise ConfigError("environment variable MASTER_ADDR is not set")
    port = number("MASTER_PORT", "0" if world_size == 1 else None)
    return Rank(rank, world_size, local_rank, local_size, node_rank, os.environ.get("MASTER_ADDR", ""), port)


class InjectedFailure(RuntimeError):
    """The failure that `standin.fail` asks for."""


class Faults:
    """The failures that a test can ask for; see README.md. All are off by default."""

    def __init__(self, config: Config, rank: int) -> None:
        at = configuration.fail_at(config)
        self.fail_step = at[1] if at is not None and at[0] == rank else None
        code = config["standin"]["exit_code"]
        hangs = rank in configuration.ranks(config, "hang_rank")
        self.hang_step: int | None = config["standin"]["hang_step"] if hangs else None
        self.truncate_trace = rank in configuration.ranks(config, "truncate_trace_rank")
        self.no_trace = rank in configuration.ranks(config, "no_trace_rank")
        self.no_gpu_events = rank in configuration.ranks(config, "no_gpu_events_rank")
        self.fail_code = 1 if code is None else code
        self.end_code = code if code is not None and at is None else 0

    def before(self, step: int) -> None:
        """Fail or hang if this is the step to do so in."""
        if step == self.hang_step:
            for sig in (signal.SIGTERM, signal.SIGINT):
                signal.signal(sig, signal.SIG_IGN)  # a process stuck in a GPU call does not see them either
            log.debug("hanging")
            while True:
                time.sleep(3600)
        if step == self.fail_step:
            raise InjectedFailure("HIP error: an illegal memory access was encountered")


class MetricsLog:
    """`rank_XX_metrics.jsonl`: one record for each step."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._file = (directory / f"rank_{rank:02d}_metrics.jsonl").open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def set_up_logging(level: str, file: Path, rank: int) -> None:
    """Log to standard error and to a file, each line with time, level and rank."""
    form = logging.Formatter(f"%(asctime)s | %(levelname)s | %(name)s | [rank {rank}] %(message)s")
    for handler in (logging.StreamHandler(sys.stderr), logging.FileHandler(str(file), mode="a")):
        handler.setFormatter(form)
        log.addHandler(handler)
    log.setLevel(getattr(logging, str(level).upper(), logging.INFO))


def record_start(directory: Path, me: Rank, config: Config, arguments: argparse.Namespace, pid: int, host: str) -> None:
    """Write `rank_XX_standin.json`: what reached this rank."""
    record = {
        "argv": sys.argv,
        "config_file": arguments.config,
        "enable_rocm_metrics": arguments.enable_rocm_metrics,
        "config": config,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED)},
        "rank": me._asdict(),
        "process": {
            "host": host,
            "pid": pid,
            "parent": os.getppid(),
            "uid": os.getuid(),
            "gid": os.getgid(),
            "groups": sorted(os.getgroups()),
            "cwd": str(Path.cwd()),
            "python": sys.version.split()[0],
            "started_ns": time.time_ns(),
        },
    }
    path = directory / f"rank_{me.rank:02d}_standin.json"
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def learning_rate(config: Config, step: int) -> float:
    """Warm-up, then linear decay."""
    scheduler = config["scheduler"]
    warmup, total = scheduler["warmup_steps"], scheduler["total_steps"]
    if step < warmup:
        return config["optimizer"]["lr"] * (step + 1) / max(1, warmup)
    return config["optimizer"]["lr"] * max(0.0, 1 - min(1.0, (step - warmup) / max(1, total - warmup)))


def train(config: Config, me: Rank, world: World, faults: Faults, output: Path, stopping: threading.Event) -> int:
    """Run the steps; returns how many were done."""
    schedule = Schedule(config, me.world_size)
    metrics = MetricsLog(output, me.rank)
    done = 0
    for step in range(config["training"]["max_steps"]):
        faults.before(step)
        steps, _length = schedule.step(step)
        stopping.wait(config["standin"]["step_seconds"])
        try:
            world.barrier("ALLREDUCE")
        except DistError:
            if not stopping.is_set():
                raise
            break
        timeline = measure([(op.start, op.end, op.kind) for op in steps[me.rank].ops])
        overlap = (timeline["communication"] - timeline["exposed_communication"]) / 1e6
        compute = timeline["computation"] / 1e6
        loss = 0.6931 * math.exp(-0.01 * step) + 0.01 * random.Random(f"{schedule.seed}/{me.rank}/{step}/loss").random()
        rate = learning_rate(config, step)
        metrics.write(
            {
                "rank": me.rank,
                "world_size": me.world_size,
                "epoch": 0,
                "step": step,
                "global_step": step,
                "loss": loss,
                "grad_norm": config["training"]["grad_clip_norm"],
                "lr": rate,
                "profile": {
                    "overlap": {"overlap_ms": {"compute_comm": overlap}, "per_stream_ms": {"compute": compute}}
                },
            }
        )
        if step % config["training"]["log_interval"] == 0:
            log.info(
                "epoch=0 step=%d loss=%.5f lr=%.6f overlap=%.3fms compute=%.3fms", step, loss, rate, overlap, compute
            )
        done += 1
        if stopping.is_set():
            break
    if stopping.is_set():
        log.warning("Stopped after %d steps", done)
    metrics.close()
    return done


def export_traces(
    config: Config, me: Rank, faults: Faults, output: Path, start_ns: int, pid: int, host: str, done: int
) -> None:
    """Write the trace of the profiled steps under the names that torch's two exporters use."""
    profiling = config["profiling"]
    config = {**config, "training": {**config["training"], "max_steps": max(1, done)}}
    first, count = profiled_steps(config)
    if not profiling["enabled"] or faults.no_trace:
        return
    directory = output / "torch_profiler" / f"rank{me.rank}"
    directory.mkdir(parents=True, exist_ok=True)
    if count == 0:
        log.warning("No step was profiled; no trace is written")
        return
    steps = Schedule(config, me.world_size).window(first, count)[me.rank]
    clock = start_ns + round(config["standin"]["clock_skew_us_per_node"] * 1000) * me.node_rank
    base = config["standin"]["base_time_ns"]
    process = kineto.Process(
        me.rank, me.world_size, me.local_rank, pid, clock, kineto.base_time(start_ns) if base is None else base
    )
    names = []
    if profiling["tensorboard"]:
        stamp = time.time_ns() if config["standin"]["start_time_ns"] is None else start_ns + me.rank
        names.append(f"{host}_{pid}.{stamp}.pt.trace.json")
    if profiling["chrome_trace"]:
        stem, dot, extension = str(profiling["trace_filename"]).rpartition(".")
        stem, extension = (stem, extension) if dot else (extension, "json")
        numbered = profiling["repeat"] != 1 or profiling["active"] > 1
        names.append(f"{stem}_step{done}.{extension}" if numbered else f"{stem}.{extension}")
    for name in names:
        text = kineto.document(process, steps, trace_name=str(directory / name), gpu_events=not faults.no_gpu_events)
        if faults.truncate_trace:
            text = text[: len(text) * 3 // 5]
        (directory / name).write_text(text, encoding="utf-8")


def run(arguments: argparse.Namespace) -> int:
    config = configuration.load(Path(arguments.config))
    config = configuration.resolve(configuration.apply_overrides(config, arguments.override or []))
    me = rank_from_environment()
    faults = Faults(config, me.rank)
    standin = config["standin"]
    pid = os.getpid() if standin["pid"] is None else standin["pid"]
    host = standin["host"] or socket.gethostname()
    output = Path(config["training"]["output_dir"])
    output.mkdir(parents=True, exist_ok=True)
    set_up_logging(config.get("logging", {}).get("level", "INFO"), output / f"rank{me.rank}.log", me.rank)
    record_start(output, me, config, arguments, pid, host)

    stopping = threading.Event()

    def stop(signum: int, _frame: Any) -> None:
        stopping.set()
        log.warning("Received signal %d; will stop after current iteration", signum)

    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, stop)

    world = World(
        me.rank,
        me.world_size,
        me.address,
        me.port,
        collective_timeout=standin["collective_timeout_s"],
        stopping=stopping.is_set,
    )
    start_ns = time.time_ns() if standin["start_time_ns"] is None else standin["start_time_ns"]
    try:
        # one clock for the whole job, as synchronised hosts would have
        start_ns = world.join(standin["rendezvous_timeout_s"], {"start_ns": start_ns})["start_ns"]
        log.info(
            "Initialised distributed training | backend=nccl rank=%d world=%d local_rank=%d device=cuda:%d",
            me.rank,
            me.world_size,
            me.local_rank,
            me.local_rank,
        )
        if config["profiling"]["enabled"]:
            log.info(
                "Enabling torch profiler | rank=%d %s",
                me.rank,
                " ".join(f"{key}={config['profiling'][key]}" for key in ("wait", "warmup", "active", "repeat")),
            )
        done = train(config, me, world, faults, output, stopping)
        export_traces(config, me, faults, output, start_ns, pid, host, done)
        if not stopping.is_set():  # the others may be gone already
            world.barrier("BARRIER")
    except InjectedFailure:
        traceback.print_exc()
        return faults.fail_code
    finally:
        world.close()
    return faults.end_code


def main(argv: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(description="Stand-in for Aorta's training benchmark; needs no PyTorch and no GPU")
    parser.add_argument("--config", required=True, help="JSON (or YAML) configuration file")
    parser.add_argument(
        "--override",
        nargs="*",
        metavar="KEY=VALUE",
        help="dotted assignments, all after one flag: a repeated flag replaces",
    )
    parser.add_argument(
        "--enable-rocm-metrics", action="store_true", help="accepted and recorded; there is no GPU to ask"
    )
    arguments = parser.parse_args(argv)
    try:
        code = run(arguments)
    except ConfigError as exc:
        sys.exit(f"train.py: error: {exc}")
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
