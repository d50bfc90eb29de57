# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reading the traces on the hosts saves: bytes over the network, time and memory of the head node.

Makes the traces of a cluster and takes both ways with the code that a run takes (packing or summarising on each
host, transfer in pieces, analysis), each part a process of its own, hosts one after the other. Nothing but the ssh
connection is left out. Fails if the two results differ.

    python tests/benchmark/where.py             64 ranks on 8 hosts, 20 MB a trace
    python tests/benchmark/where.py --quick     8 ranks on 2 hosts, 1 MB a trace: does it run
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "collections")]

from analysis import generate  # noqa: E402

WAYS = ("head", "hosts", "hosts, standard library")
PROVENANCE = ("run_id", "created", "trace_dir", "reused_from", "sources")
SAMPLE_SECONDS = 0.02


# --- what runs, each in a process of its own --------------------------------------------------------------------------


def work_host(way: str, source: Path, dest: Path) -> list[dict[str, Any]]:
    """What a host does with its traces; returns what it offers the head node."""
    from ansible_collections.aorta.automation.plugins.module_utils import _trace_reader
    from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces
    from ansible_collections.aorta.automation.plugins.modules import trace_pack, trace_summary

    names = find_traces(str(source))
    if way == "head":
        dest.mkdir(parents=True)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            return list(pool.map(lambda name: trace_pack.pack(str(source), str(dest), name, 1), names))
    if way != "hosts":
        _trace_reader.msgspec = None  # type: ignore[assignment]
        _trace_reader._zlib = zlib
    return trace_summary.summarise(str(source), str(dest), names, "tracelens", None, None)


def work_head(run_dir: Path, folder: str, offers: list[list[dict[str, Any]]]) -> dict[str, float]:
    """What the head node does: bring the files of each host, and analyse."""
    from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis, _transfer

    def shell(command: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    began = time.monotonic()
    nodes = {}
    for host, files in enumerate(offers):
        for file in files:
            target = run_dir / folder / file["name"]
            _transfer.fetch(shell, file["path"], target, file["bytes"], file["sha256"], lambda count: None)
            nodes[file["name"].partition("/")[0].removeprefix("rank")] = f"node{host}"
    (run_dir / folder / "nodes.json").write_text(json.dumps(nodes))
    arrived = time.monotonic()
    _analysis.run(_analysis.plan(run_dir, run_dir / folder), use_cache=False)
    return {"transfer": arrived - began, "analysis": time.monotonic() - arrived}


# --- measuring --------------------------------------------------------------------------------------------------------


def pss(pid: int) -> int:
    """Memory of a process and its children in bytes, what they share counted once."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return own * 1024 + sum(pss(int(child)) for child in children)


def measured(function: Any, *arguments: Any) -> dict[str, Any]:
    """Run a function in a process of its own: its value, wall time, CPU time of all its processes, peak memory."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, arguments))
    peak = [0]
    process.start()
    sender.close()

    def watch() -> None:
        while process.is_alive():
            peak[0] = max(peak[0], pss(process.pid or 0))
            time.sleep(SAMPLE_SECONDS)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result: dict[str, Any] = receiver.recv()
    except EOFError:
        sys.exit(f"{function.__name__} has failed, see above")
    process.join()
    watcher.join()
    return {**result, "peak": peak[0]}


def _child(sender: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    began = time.monotonic()
    value = function(*arguments)
    seconds = time.monotonic() - began
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    sender.send({"value": value, "seconds": seconds, "cpu": cpu})


def same(value: Any) -> Any:
    """Without what differs by definition; a packed trace has .gz after its name."""
    if isinstance(value, dict):
        return {key: same(item) for key, item in value.items() if key not in PROVENANCE}
    if isinstance(value, list):
        return [same(item) for item in value]
    return value.replace(".json.gz", ".json") if isinstance(value, str) else value


def one_way(way: str, folder: Path, hosts: int) -> tuple[dict[str, float], Any]:
    """Take one way from traces to results; returns its figures, and the results."""
    place = folder / way.replace(", ", "-").replace(" ", "-")
    on_hosts = [
        measured(work_host, way, folder / f"host{host}", place / f"host{host}" / "packed") for host in range(hosts)
    ]
    offers = [host["value"] for host in on_hosts]
    run_dir = place / "run"
    run_dir.mkdir()
    head = measured(work_head, run_dir, "traces" if way == "head" else "summaries", offers)
    results = json.loads((run_dir / "results.json").read_text())
    assert results["status"] == "ok", results["errors"]
    figures = {
        "each host: time, s": statistics.median(host["seconds"] for host in on_hosts),
        "each host: CPU time, s": statistics.median(host["cpu"] for host in on_hosts),
        "each host: peak memory, MiB": max(host["peak"] for host in on_hosts) / 2**20,
        "over the network, MB": sum(file["bytes"] for files in offers for file in files) / 1e6,
        "head node: transfer, s": head["value"]["transfer"],
        "head node: analysis, s": head["value"]["analysis"],
        "head node: CPU time, s": head["cpu"],
        "head node: peak memory, MiB": head["peak"] / 2**20,
    }
    return figures, same(results)


def make_traces(folder: Path, ranks: int, hosts: int, size: int) -> int:
    """The traces of each host; returns their size in bytes."""
    places = [(folder / f"host{rank * hosts // ranks}" / f"rank{rank}" / "t.json", rank) for rank in range(ranks)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(generate, [(path, size, rank, ranks) for path, rank in places])
    return sum(path.stat().st_size for path, _rank in places)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=20, help="of a trace")
    parser.add_argument("--quick", action="store_true", help="8 ranks on 2 hosts, 1 MB a trace")
    parser.add_argument("--folder", type=Path, help="where the traces are made (default: a temporary directory)")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.hosts, options.megabytes = 8, 2, 1
    with tempfile.TemporaryDirectory(prefix="aorta-where-", dir=options.folder) as name:
        folder = Path(name)
        size = make_traces(folder, options.ranks, options.hosts, int(options.megabytes * 1e6))
        print(
            f"{options.ranks} ranks on {options.hosts} hosts, {size / 1e6:.0f} MB of traces; "
            f"Python {sys.version.split()[0]}, {os.cpu_count()} cores\n"
        )
        ways = {way: one_way(way, folder, options.hosts) for way in WAYS}
        print("".join([f"{'':28}", *(f"{way:>26}" for way in WAYS)]))
        for row in ways["head"][0]:
            print("".join([f"{row:28}", *(f"{figures[row]:26.2f}" for figures, _results in ways.values())]))
        first = ways["head"][1]
        differing = [way for way, (_figures, results) in ways.items() if results != first]
        if differing:
            sys.exit(f"the results differ: {', '.join(differing)}")
        print("\nThe results are the same.")


if __name__ == "__main__":
    main()
