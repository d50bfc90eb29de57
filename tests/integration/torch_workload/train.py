# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small distributed training with PyTorch on CPUs (gloo), started as Aorta's train.py is: for tests on real hosts.

Each rank prints one line "record {...}" with what reached it, and writes a trace of torch.profiler to
``training.output_dir/torch_profiler/rank<R>/``.
"""

import argparse
import json
import os
import socket
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")  # no NumPy here

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler  # noqa: E402


def configuration() -> dict:
    """The file of --config with the assignments of --override."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--override", nargs="*", default=[])
    arguments = parser.parse_args()
    config = json.loads(Path(arguments.config).read_text())
    for item in arguments.override:
        name, _, value = item.partition("=")
        *path, last = name.split(".")
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[last] = int(value) if value.lstrip("-").isdigit() else value
    return config


def main() -> None:
    config = configuration()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    record = {
        "rank": rank,
        "world_size": world_size,
        "host": socket.gethostname(),
        "config": config,
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("NCCL_", "GLOO_", "MASTER_", "LOCAL_", "GROUP_", "TENSILE_", "OMP_"))
        },
    }
    sys.stdout.write(f"record {json.dumps(record)}\n")  # at once: both ranks of a host share the output
    sys.stdout.flush()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    profiling = config["profiling"]
    directory = Path(config["training"]["output_dir"], "torch_profiler", f"rank{rank}")
    plan = schedule(**{name: profiling[name] for name in ("wait", "warmup", "active", "repeat")})
    handler = tensorboard_trace_handler(str(directory))
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as profiler:
        for step in range(config["training"]["max_steps"]):
            if (rank, step) == (config["test"]["fail_rank"], config["test"]["fail_step"]):
                raise RuntimeError("the failure that was asked for")
            loss = model(torch.randn(16, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
            sys.stdout.write(f"rank {rank} step={step} loss={loss.item():.4f}\n")
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
