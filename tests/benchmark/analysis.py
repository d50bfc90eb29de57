# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speed and memory of the analysis engine against what people use today.

Makes its traces (Kineto's form), then runs engine and baselines in turn, each as a whole process, and prints medians,
ratios and peak memory:

    python tests/benchmark/analysis.py                 30 MB, 300 MB, 8 x 100 MB, gzip; five rounds
    python tests/benchmark/analysis.py --large         also 1.5 GB
    python tests/benchmark/analysis.py --quick         a few MB, one round: does it run, do the figures agree

C(whole) is the way from traces to results.json with every table, sha256 of the traces and imports included;
C(reader) is the part that knows one file, with every table (what runs on a host, and in each child process); C(plain)
the same without msgspec and isal. Baselines: C(json) is json.load and the sums of durations by name (what simple
scripts do), C(orjson) the same, C(validate) is msgspec checking the text without building anything: the practical
floor. With TRACELENS_PATH (a checkout; TRACELENS_PYTHON an interpreter with its requirements) AMD's TraceLens is run
once on the smallest trace. On a machine that others use as well, compare CPU times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PARTS = ("small", "middle", "large", "gzip", "plain", "ranks")
Job = tuple[str, list[Path], int | None]

# --- the traces -------------------------------------------------------------------------------------------------------

KERNELS = [
    "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTLA0_DTVA0_EPS0_FDSI0",
    "Cijk_Alik_Bljk_BBS_BH_MT128x128x64_MI32x32x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTLA0_DTVA0_EPS0_FDSI0",
    "void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<...> > >(...)",
    "attn_fwd",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool>(...)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, "
    "float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float>, float, 4>)",
    "void at::native::(anonymous namespace)::cuComputeGradInput<c10::BFloat16, float>(c10::BFloat16 const*)",
    *(
        f"void at::native::vectorized_elementwise_kernel<{size}, at::native::CUDAFunctor_{op}<c10::BFloat16>, "
        f"std::array<char*, {inputs}ul> >(int, at::native::CUDAFunctor_{op}<c10::BFloat16>, std::array<char*, 3>)"
        for size in (4, 8)
        for op in ("add", "mul", "GeluCUDAKernelImpl", "silu", "copy", "where")
        for inputs in (2, 3)
    ),
]
NCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
FRAMES = ["module.py(1739): _wrapped_call_impl", "module.py(1750): _call_impl", "linear.py(124): forward"]
OPS = ["aten::linear", "aten::addmm", "aten::add_", "aten::mul", "aten::copy_", "autograd::engine::evaluate_function"]
LAUNCH_NS = 30_000
STEP_LAUNCHES = 2000


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _complete(cat: str, name: str, ids: str, start: int, length: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", {ids},\n'
        f'    "ts": {_us(start)}, "dur": {_us(length)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def events(rank: int, world_size: int, random_numbers: random.Random) -> Iterator[str]:
    """Events without end: per launch some Python frames, CPU operators, runtime calls, flows and one kernel."""
    host = '"pid": 200691, "tid": 200691'
    ranks = list(range(world_size))
    number = launch = seq = 0
    now = 7_516_230_579_250_646
    while True:
        if launch % STEP_LAUNCHES == 0:
            args = f'"External id": {launch + 1},"Record function id": 0, "Ev Idx": {number}'
            step = f"ProfilerStep#{launch // STEP_LAUNCHES}"
            yield _complete("user_annotation", step, host, now, STEP_LAUNCHES * LAUNCH_NS, args)
        launch += 1
        for depth in range(6):
            number += 1
            args = f'"Python id": {number},"Python parent id": {number - 1}, "Ev Idx": {number}'
            name = f"torch/nn/modules/{FRAMES[depth % 3]}"
            yield _complete("python_function", name, host, now + depth * 300, 24_000 - depth * 600, args)
        for depth in range(3):
            number += 1
            args = f'"External id": {number},"Record function id": 0, "Ev Idx": {number}'
            if depth == 1:
                args = (
                    f'"External id": {number},"Record function id": 0, "Concrete Inputs": ["", "", "1"], '
                    '"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], '
                    '"Input Strides": [[4096, 1], [4096, 1], []], '
                    f'"Input Dims": [[8192, 4096], [8192, 4096], []], "Ev Idx": {number}'
                )
            yield _complete("cpu_op", OPS[number % len(OPS)], host, now + 2000 + depth * 400, 20_000, args)
        args = f'"cid": 344, "correlation": {2 * launch}'
        yield _complete("cuda_runtime", "hipStreamIsCapturing", host, now + 3000, 829, args)
        args = (
            f'"cid": 214, "correlation": {2 * launch + 1},      "grid": [256, 1, 1],      "block": [512, 1, 1],'
            '      "shared memory": 0'
        )
        yield _complete("cuda_runtime", "hipLaunchKernel", host, now + 4000, 4_500, args)
        flow = f'"ph": "%s", "id": {2 * launch + 1}, %s, "ts": {_us(now + 4000)},\n'
        flow += '    "cat": "ac2g", "name": "ac2g"%s\n  }'
        yield "  {\n    " + flow % ("s", host, "")
        yield "  {\n    " + flow % ("f", '"pid": 0, "tid": 3', ', "bp": "e"')
        if launch % 3 == 0:
            flow = f'"ph": "s", "id": {launch}, {host}, "ts": {_us(now)},\n    "cat": "fwdbwd", "name": "fwdbwd"\n  }}'
            yield "  {\n    " + flow
        args = f'"External id": {number}, "device": 0, "stream": %d, "correlation": {2 * launch + 1}'
        length = random_numbers.randrange(5_000, 29_000)
        if launch % 40 == 0:
            seq += 1
            late = (rank * 37 + seq * 11) % 50 * 100
            elements = 1 << 20 if seq % 2 else 1 << 22
            collective = (
                f'{args % 13}, "Collective name": "allreduce", "In msg nelems": {elements}, '
                f'"Out msg nelems": {elements}, "Group size": {world_size}, "dtype": "BFloat16", '
                '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
                '"Process Group Description": "default_pg", '
                f'"Process Group Ranks": "{ranks}", "Seq": {seq}, "kind": "kernel"'
            )
            yield _complete("kernel", NCCL, '"pid": 0, "tid": 13', now + 9000 + late, 60_000 - late, collective)
        elif launch % 100 == 7:
            copy = f'{args % 0}, "bytes": 4194304, "memory bandwidth (GB/s)": 40.1'
            yield _complete("gpu_memcpy", "CopyHostToDevice", '"pid": 0, "tid": 0', now + 9000, length, copy)
        else:
            kernel = (
                f'{args % 3}, "kind": "Dispatch Kernel", "grid": [256, 1, 1], "block": [512, 1, 1],'
                ' "blocks per SM": 8.421053, "warps per SM": 67.368423'
            )
            name = KERNELS[launch * 7 % len(KERNELS)]
            yield _complete("kernel", name, '"pid": 0, "tid": 3', now + 9000, length, kernel)
        now += LAUNCH_NS


def generate(path: Path, size: int, rank: int = 0, world_size: int = 1) -> None:
    """Write a trace of about C(size) bytes; equal arguments give equal bytes."""
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992}],
        "hip_runtime_version": 60443483,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1751410836000000000,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii", buffering=MIB) as file:
        file.write(json.dumps(header, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        written = 0
        for event in events(rank, world_size, random.Random(7)):
            file.write(event if not written else ",\n" + event)
            written += len(event) + 2
            if written >= size:
                break
        file.write(f'\n  ],\n  "traceName": "{path.name}"\n}}\n')


# --- what is run, each in a process of its own ------------------------------------------------------------------------


def _sums(trace: Any) -> dict[str, float]:
    compute = communication = 0.0
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            if "nccl" in event["name"].lower():
                communication += event["dur"]
            else:
                compute += event["dur"]
    return {"compute": compute, "communication": communication}


def work_json(paths: list[Path], options: Any) -> Any:
    """json.load, and the simplest sums."""
    results = []
    for path in paths:
        with path.open("rb") as file:
            results.append(_sums(json.load(file)))
    return results


def work_orjson(paths: list[Path], options: Any) -> Any:
    """The same by orjson."""
    import orjson

    return [_sums(orjson.loads(path.read_bytes())) for path in paths]


def work_validate(paths: list[Path], options: Any) -> Any:
    """msgspec checks the text; nothing is built."""
    import msgspec

    decoder = msgspec.json.Decoder(type("Nothing", (msgspec.Struct,), {}))
    for path in paths:
        decoder.decode(path.read_bytes())


def work_reader(paths: list[Path], options: Any) -> Any:
    """One file after the other to its summary, with all tables."""
    from ansible_collections.aorta.automation.plugins.module_utils import _trace_timeline

    rule = _trace_timeline.compile_rule("tracelens")
    return [_trace_timeline.summarise_file(path, rule).fingerprint for path in paths]


def work_plain(paths: list[Path], options: Any) -> Any:
    """C(reader) with the standard library alone."""
    sys.modules["msgspec"] = sys.modules["isal"] = None  # type: ignore[assignment]
    return work_reader(paths, options)


def work_whole(paths: list[Path], options: Any) -> Any:
    """From the traces to results.json."""
    from ansible_collections.aorta.automation.plugins.plugin_utils import _results
    from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import _base, aorta

    results = aorta.parse(_base.Artifacts(paths[0], processes=options.processes))
    with tempfile.TemporaryDirectory() as folder:
        _results.save_results(results, Path(folder) / "results.json")
    if results.status != "ok":
        raise SystemExit(f"the engine says {results.status}: {results.errors}")
    timeline = results.per_rank[0].timeline_us
    return timeline.model_dump() if timeline is not None else None


def work_reuse(paths: list[Path], options: Any) -> Any:
    """The analysis stage over an analysed run."""
    from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis

    run_dir = paths[0].parent
    results = _analysis.run(_analysis.plan(run_dir, paths[0]))
    return len(results.per_rank)


def work_tracelens(paths: list[Path], options: Any) -> Any:
    """TraceLens' GPU timeline over all events."""
    sys.path.insert(0, os.environ["TRACELENS_PATH"])
    from TraceLens import GPUEventAnalyser
    from TraceLens.util import DataLoader

    metrics = GPUEventAnalyser(DataLoader.load_data(str(paths[0]))["traceEvents"]).compute_metrics()
    return {name: float(value) for name, value in metrics.items() if name.endswith("_time")}


WORK: dict[str, Callable[[list[Path], Any], Any]] = {
    name.removeprefix("work_"): function for name, function in list(globals().items()) if name.startswith("work_")
}


def work(options: argparse.Namespace) -> None:
    """Run as a child: do it, print what came out and the peak memory in KiB."""
    import resource

    result = WORK[options.work](options.paths, options) if options.work != "nothing" else None
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in times)
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    children = times[1].ru_maxrss
    print(json.dumps({"result": result, "cpu": cpu, "rss_kib": int(own.split()[1]), "child_rss_kib": children}))


def run(kind: str, *paths: Path, processes: int | None = None) -> dict[str, Any]:
    """Time one child from start to end."""
    python = os.environ.get("TRACELENS_PYTHON", sys.executable) if kind == "tracelens" else sys.executable
    command = [python, __file__, "--work", kind, *map(str, paths)]
    if processes is not None:
        command += ["--processes", str(processes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


# --- the comparison ---------------------------------------------------------------------------------------------------


def has(name: str) -> bool:
    """Whether a package is there, without loading it here (memory of this process would count for its children)."""
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


class Benchmark:
    """Runs and prints."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.floor = min(run("nothing")["rss_kib"] for _ in range(3))

    def compare(self, title: str, size: int, jobs: dict[str, Job]) -> dict[str, float]:
        """Run all jobs in turn, C(rounds) times; print a table; give the medians."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
        for _ in range(self.rounds):
            for name, (kind, paths, processes) in jobs.items():
                runs[name].append(run(kind, *paths, processes=processes))
        print(f"\n{title} ({size / 1e6:.0f} MB of JSON, {self.rounds} rounds)")
        print(
            f"  {'':18}{'median s':>9}{'fastest':>9}{'slowest':>9}{'CPU s':>8}{'MB/s':>7}{'MiB':>6}{'MiB, child':>12}"
        )
        medians = {}
        for name, found in runs.items():
            seconds = [one["seconds"] for one in found]
            medians[name] = statistics.median(seconds)
            own = max(one["rss_kib"] for one in found) - self.floor
            child = max(one["child_rss_kib"] for one in found) - self.floor
            cpu = statistics.median(one["cpu"] for one in found)
            shown = f"{child / 1024:.0f}" if child > 0 else "-"
            print(
                f"  {name:18}{medians[name]:9.3f}{min(seconds):9.3f}{max(seconds):9.3f}{cpu:8.3f}"
                f"{size / 1e6 / medians[name]:7.0f}{own / 1024:6.0f}{shown:>12}",
                flush=True,
            )
        self.last = runs
        return medians

    def ratio(self, one: str, other: str) -> str:
        """Median over the rounds of the time of C(one) by that of C(other) in the same round; of CPU time as well."""
        pairs = list(zip(self.last[one], self.last[other], strict=True))
        wall, cpu = (statistics.median(a[key] / b[key] for a, b in pairs) for key in ("seconds", "cpu"))
        return f"{one} / {other}: {wall:.2f} (CPU time {cpu:.2f})"


def check_figures(engine: dict[str, float], sums: dict[str, float]) -> None:
    """No union is longer than the sum; in these traces kernels of one stream never overlap."""
    if engine["communication"] > sums["communication"] + 1 or engine["computation"] > sums["compute"] + 1:
        raise SystemExit(f"figures contradict each other: {engine} {sums}")
    if engine["communication"] <= 0 or engine["computation"] <= 0:
        raise SystemExit(f"nothing measured: {engine}")


def benchmark(options: argparse.Namespace, folder: Path) -> None:
    """The whole comparison, or those parts of it that are asked for."""
    unit = 1_000_000 if options.quick else 100_000_000
    sizes = {"small": unit, "middle": 3 * unit} if options.quick else {"small": 30_000_000, "middle": 300_000_000}
    parts = options.only or [part for part in PARTS if part != "large" or options.large]
    bench = Benchmark(options.rounds)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; bare interpreter {bench.floor / 1024:.0f} MiB")
    print("MiB: peak memory above the bare interpreter; child: the largest reading process, what it shares included")
    baselines = ["json", *(name for name, module in (("orjson", "orjson"), ("validate", "msgspec")) if has(module))]
    if not has("msgspec"):
        print("msgspec is not installed: the reader uses the standard library")
    for name, size in (*sizes.items(), ("large", 1_500_000_000)):
        if name in parts:
            generate(folder / name / "rank0" / "trace.json", size)
            one_trace(bench, name, folder / name, baselines)
            if name == "large":
                shutil.rmtree(folder / name)
    if "gzip" in parts:
        packed(bench, folder, sizes["middle"])
    if "plain" in parts:
        once(bench, folder, sizes["small"])
    if "ranks" in parts:
        ranks(bench, folder / "world", 2 if options.quick else 8, unit)


def one_trace(bench: Benchmark, name: str, folder: Path, baselines: list[str]) -> None:
    """A single trace: engine and reader against the baselines."""
    path = folder / "rank0" / "trace.json"
    size = path.stat().st_size
    names = ["reader", *(one for one in baselines if name != "large" or one == "validate")]
    medians = bench.compare(
        f"one trace, {name}", size, {"whole": ("whole", [folder], None), **{one: (one, [path], None) for one in names}}
    )
    if "json" in names:
        check_figures(bench.last["whole"][0]["result"], bench.last["json"][0]["result"][0])
    for other in names[1:]:
        for ours in ("reader", "whole"):
            print("  " + (bench.ratio(ours, other) if other == "validate" else bench.ratio(other, ours)))
    cpu = {one: statistics.median(found["cpu"] for found in bench.last[one]) for one in ("reader", "whole")}
    print(
        f"  per GB: reader {medians['reader'] / size * 1e9:.2f} s (CPU {cpu['reader'] / size * 1e9:.2f} s),"
        f" whole {medians['whole'] / size * 1e9:.2f} s (CPU {cpu['whole'] / size * 1e9:.2f} s)"
    )


def packed(bench: Benchmark, folder: Path, size: int) -> None:
    """The same trace with gzip and without."""
    path = folder / "middle" / "rank0" / "trace.json"
    zipped = folder / "packed" / "rank0" / "trace.json.gz"
    if not path.exists():
        generate(path, size)
    zipped.parent.mkdir(parents=True)
    with path.open("rb") as source, gzip.open(zipped, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, MIB)
    jobs: dict[str, Job] = {"plain file": ("reader", [path], None), "gzip": ("reader", [zipped], None)}
    bench.compare("the same trace, packed", path.stat().st_size, jobs)
    if bench.last["gzip"][0]["result"] != bench.last["plain file"][0]["result"]:
        raise SystemExit("gzip gives other figures")
    print("  " + bench.ratio("gzip", "plain file"))


def once(bench: Benchmark, folder: Path, size: int) -> None:
    """What takes long, once: the standard library alone, and TraceLens."""
    path = folder / "small" / "rank0" / "trace.json"
    if not path.exists():
        generate(path, size)
    rounds, bench.rounds = bench.rounds, 1
    jobs: dict[str, Job] = {name: (name, [path], None) for name in ("reader", "plain")}
    bench.compare("standard library alone", path.stat().st_size, jobs)
    if bench.last["plain"][0]["result"] != bench.last["reader"][0]["result"]:
        raise SystemExit("the standard library's reader gives other figures")
    print("  " + bench.ratio("plain", "reader"))
    if os.environ.get("TRACELENS_PATH"):
        jobs = {"whole": ("whole", [folder / "small"], None), "tracelens": ("tracelens", [path], None)}
        bench.compare("AMD TraceLens", path.stat().st_size, jobs)
        print("  " + bench.ratio("tracelens", "whole"))
        print(f"  TraceLens: {bench.last['tracelens'][0]['result']}\n  engine: {bench.last['whole'][0]['result']}")
    bench.rounds = rounds


def ranks(bench: Benchmark, folder: Path, number: int, size: int) -> None:
    """Several ranks: all cores and one, and the analysis stage over what has been analysed."""
    world = folder / "traces"
    paths = [world / f"rank{rank}" / "trace.json" for rank in range(number)]
    for rank, path in enumerate(paths):
        generate(path, size, rank, number)
    total = sum(path.stat().st_size for path in paths)
    jobs: dict[str, Job] = {"whole": ("whole", [world], None), "whole, 1 process": ("whole", [world], 1)}
    jobs["json"] = ("json", paths, None)
    bench.compare(f"{number} ranks", total, jobs)
    print("  " + bench.ratio("json", "whole"))
    print("  " + bench.ratio("whole, 1 process", "whole"))
    (folder / "spec.json").write_text(json.dumps({"values": {"analysis": {"engine": "native"}}}))
    run("reuse", world)
    bench.compare(f"the stage over {number} analysed ranks", total, {"sha256": ("reuse", [world], None)})
    analysis = {"engine": "native", "trust_mtime": True}
    (folder / "spec.json").write_text(json.dumps({"values": {"analysis": analysis}}))
    bench.compare("the same with trust_mtime", total, {"trust_mtime": ("reuse", [world], None)})


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few MB, one round")
    parser.add_argument("--large", action="store_true", help="also 1.5 GB")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part (may be given several times)")
    parser.add_argument("--rounds", type=int, help="runs of each (default 5)")
    parser.add_argument("--folder", type=Path, help="where the traces go (default: a temporary directory)")
    parser.add_argument("--generate", type=int, metavar="MB", help="only write rank0..N-1 into --folder (see --ranks)")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--work", choices=[*WORK, "nothing"], help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    if options.generate:
        for rank in range(options.ranks):
            generate(options.folder / f"rank{rank}" / "trace.json", options.generate * 1_000_000, rank, options.ranks)
        return
    options.rounds = options.rounds or (1 if options.quick else 5)
    with tempfile.TemporaryDirectory(prefix="aorta-benchmark-", dir=options.folder) as folder:
        benchmark(options, Path(folder))


if __name__ == "__main__":
    main()
