#!/usr/bin/env python3
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record what a real TraceLens makes of the traces in tests/unit/fixtures/tracelens, for the tests that run without it.

Run with a Python that has AMD's TraceLens (from its repository, never from PyPI): python tools/record_tracelens.py
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "tracelens"


def sha256(path: Path) -> str:
    """Of the file's bytes: the name under which the recording is found."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def attempt(call: Callable[[], Any]) -> dict[str, Any]:
    """C({"value": ...}), or what was raised: C({"raised": [class, message]})."""
    try:
        return {"value": call()}
    except Exception as exc:
        return {"raised": [type(exc).__name__, str(exc)]}


def main() -> None:
    """Entry point."""
    # As a file: the collection need not be importable here.
    spec = importlib.util.spec_from_file_location("driver", ROOT / "plugins" / "plugin_utils" / "_tracelens_driver.py")
    if spec is None or spec.loader is None:
        raise SystemExit("plugins/plugin_utils/_tracelens_driver.py is missing")
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    from TraceLens import DataLoader, GPUEventAnalyser
    from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report
    from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch

    output = FIXTURES / "recorded"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    known = driver.probe(True)
    recorded: dict[str, Any] = {
        "version": known["version"],
        "commit": known["commit"],
        "traces": {},
        "collectives": {},
    }

    def metrics(path: Path) -> dict[str, Any]:
        events = DataLoader.load_data(str(path))["traceEvents"]
        for number, event in enumerate(events):
            event["UID"] = number
        analyser = GPUEventAnalyser(events)
        return {
            "metrics": analyser.compute_metrics(),
            "events": {name: len(found) for name, found in analyser.get_gpu_event_lists().items()},
        }

    def report(path: Path, name: str) -> str:
        generate_perf_report_pytorch(
            profile_json_path=str(path), output_xlsx_path=str(output / name), include_unlinked_kernels=True
        )
        return name

    for path in sorted((FIXTURES / "traces").glob("*/rank*/*")):
        label = f"{path.parent.parent.name}_{path.parent.name}"
        recorded["traces"][sha256(path)] = {
            "trace": path.relative_to(FIXTURES).as_posix(),
            "load": attempt(lambda path=path: bool(DataLoader.load_data(str(path)))),
            "timeline": attempt(lambda path=path: metrics(path)),
            "report": attempt(lambda path=path, label=label: report(path, f"{label}_perf_report.xlsx")),
        }
    sound = sorted((FIXTURES / "traces" / "sound").glob("rank*/*"))
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(sound):
            (Path(folder) / f"rank{number}_trace.json.gz").symlink_to(path)
        generate_collective_report(
            trace_glob=f"{folder}/rank*_trace.json*",
            world_size=len(sound),
            output_xlsx_path=str(output / "sound_nccl_analysis_report.xlsx"),
        )
    recorded["collectives"][",".join(map(sha256, sound))] = "sound_nccl_analysis_report.xlsx"
    (output / "recorded.json").write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    main()
