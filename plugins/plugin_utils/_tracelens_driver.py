# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs AMD TraceLens in a process of its own. A plain script, run by path with the Python that has TraceLens.

    python _tracelens_driver.py probe [--import]
    python _tracelens_driver.py rank TRACE [--workbook FILE.xlsx]
    python _tracelens_driver.py collectives FILE.xlsx TRACE_OF_RANK_0 TRACE_OF_RANK_1 ...

Each takes C(--answer FILE) (default: the last line on standard output) for what it found, a JSON object; C(rank) writes
it as soon as the timeline is known and again at the end. Everything TraceLens prints goes where the caller sends it.
Traces end in C(.json) or C(.json.gz). C(rank) without C(--workbook) only loads the trace and computes the timeline.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Ours: TraceLens'. All in microseconds.
METRICS = {
    "total": "total_time",
    "busy": "busy_time",
    "idle": "idle_time",
    "computation": "computation_time",
    "communication": "total_comm_time",
    "exposed_communication": "exposed_comm_time",
    "memcpy": "total_memcpy_time",
    "exposed_memcpy": "exposed_memcpy_time",
}
KNOWN_ATTRIBUTES = ("GPUEventAnalyser", "NcclAnalyser")


def probe(deep: bool) -> dict[str, Any]:
    """Where TraceLens is, its version and commit; C(deep): import it, and see whether it has what AMD's has."""
    answer: dict[str, Any] = {"module": False, "version": None, "commit": None, "location": None, "error": None}
    answer["impostor"] = importlib.util.find_spec("tracelens") is not None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        answer["version"] = importlib.metadata.version("tracelens")
    try:
        spec = importlib.util.find_spec("TraceLens")
        if spec is None:
            return answer
        answer["location"] = str(Path(spec.origin).parent) if spec.origin else None
        if answer["location"]:
            answer["version"], answer["commit"] = _origin(answer["location"], answer["version"])
        answer["module"] = True
        if deep:
            module = importlib.import_module("TraceLens")
            missing = [name for name in KNOWN_ATTRIBUTES if not hasattr(module, name)]
            if missing:
                answer["module"] = False
                answer["error"] = "its module lacks " + ", ".join(missing)
    except Exception as exc:
        answer["module"], answer["error"] = False, _describe(exc)
    return answer


def _origin(location: str, version: str | None) -> tuple[str | None, str | None]:
    """Version and commit of the package at C(location): of a checkout, or of an installed distribution."""
    parent = Path(location).parent
    if (parent / ".git").exists():
        # The checkout belongs to whoever made it; asking for its commit runs nothing in it.
        command = ["git", "-c", "safe.directory=*", "-C", str(parent), "rev-parse", "HEAD"]
        try:
            run = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=10, check=True)
            return None, run.stdout.decode().strip()
        except (OSError, subprocess.SubprocessError):
            return None, None
    try:  # pip notes the commit of what it installed from a repository
        text = importlib.metadata.distribution("tracelens").read_text("direct_url.json")
        commit = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        commit = None
    if commit:
        return version, str(commit)
    # The local part of a version made from a checkout: 0.1.0.dev20261201+g171dd747.
    local = (version or "").partition("+")[2].split(".")[0]
    if local.startswith("g") and all(character in "0123456789abcdef" for character in local[1:]):
        return version, local[1:] or None
    return version, None


def rank(trace: str, workbook: str | None, report: Callable[[dict[str, Any]], None]) -> None:
    """The timeline of all GPU events of a trace, then TraceLens' workbook; C(report) is told what is known so far."""
    answer: dict[str, Any] = {"timeline_us": None, "events": None, "error": None, "workbook_error": None}
    try:
        answer["timeline_us"], answer["events"] = timeline(trace)
    except BaseException as exc:  # its helpers may call sys.exit
        traceback.print_exc()
        answer["error"] = _describe(exc)
    report(answer)
    if workbook is None:
        return
    try:
        _needs_openpyxl()
        from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

        # With the kernels whose launch was not recorded: so its timeline shows what happened on the GPU, as ours does.
        generate_perf_report_pytorch(profile_json_path=trace, output_xlsx_path=workbook, include_unlinked_kernels=True)
    except BaseException as exc:
        traceback.print_exc()
        answer["workbook_error"] = _describe(exc)
    report(answer)


def timeline(trace: str) -> tuple[dict[str, float], dict[str, int]]:
    """(lengths in microseconds, number of events a bucket) of all GPU events. Raises what TraceLens raises."""
    from TraceLens import DataLoader, GPUEventAnalyser

    events = DataLoader.load_data(trace)["traceEvents"]
    for number, event in enumerate(events):
        event["UID"] = number  # the analyser tells events apart by it
    analyser = GPUEventAnalyser(events)
    measured = analyser.compute_metrics()
    lists = analyser.get_gpu_event_lists()
    lengths = {ours: float(measured[theirs]) for ours, theirs in METRICS.items()}
    for name, value in lengths.items():
        if not math.isfinite(value):
            raise ValueError(f"{METRICS[name]} is {value!r}")
    return lengths, {key: len(lists[key]) for key in ("computation", "communication", "memcpy")}


def collectives(workbook: str, traces: Sequence[str]) -> dict[str, Any]:
    """TraceLens' workbook of the collectives; C(traces) are those of ranks 0, 1, 2, ..., none missing."""
    answer: dict[str, Any] = {"error": None}
    try:
        _needs_openpyxl()
        from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report

        with tempfile.TemporaryDirectory() as folder:
            for number, trace in enumerate(traces):
                suffix = ".json.gz" if trace.endswith(".gz") else ".json"
                (Path(folder) / f"rank{number}_trace{suffix}").symlink_to(Path(trace).absolute())
            generate_collective_report(
                trace_glob=f"{glob.escape(folder)}/rank*_trace.json*",
                world_size=len(traces),
                output_xlsx_path=workbook,
            )
    except BaseException as exc:
        traceback.print_exc()
        answer["error"] = _describe(exc)
    return answer


def _needs_openpyxl() -> None:
    """Without it TraceLens asks at the terminal whether to install it."""
    if importlib.util.find_spec("openpyxl") is None:
        raise ImportError("openpyxl is missing beside TraceLens: pip install openpyxl")


def _describe(exc: BaseException) -> str:
    """One line; an exit or a question at the terminal says so."""
    if isinstance(exc, SystemExit):
        return f"TraceLens ended itself with exit status {exc.code}"
    if isinstance(exc, EOFError):
        return "TraceLens asked a question at the terminal"
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:300]}" if text else type(exc).__name__


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(answer, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _end_with_parent() -> None:
    """A killed controller must not leave this running."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Entry point."""
    here = Path(__file__).resolve().parent
    # The folder of a script comes first on the path; its files are not for others to import.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != here]
    parser = argparse.ArgumentParser(description="Run AMD TraceLens.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("probe")
    one.add_argument("--import", dest="deep", action="store_true")
    two = commands.add_parser("rank")
    two.add_argument("trace")
    two.add_argument("--workbook")
    three = commands.add_parser("collectives")
    three.add_argument("workbook")
    three.add_argument("traces", nargs="+")
    for command in (one, two, three):
        command.add_argument("--answer")
    arguments = parser.parse_args()
    _end_with_parent()
    answer: dict[str, Any] = {}

    def keep(known: Mapping[str, Any]) -> None:
        answer.update(known)
        if arguments.answer is not None:
            _write(Path(arguments.answer), answer)

    if arguments.command == "probe":
        keep(probe(arguments.deep))
    elif arguments.command == "rank":
        rank(arguments.trace, arguments.workbook, keep)
    else:
        keep(collectives(arguments.workbook, arguments.traces))
    if arguments.answer is None:
        print("\n" + json.dumps(answer, allow_nan=False))


if __name__ == "__main__":
    main()
