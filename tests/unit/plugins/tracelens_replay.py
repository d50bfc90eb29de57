# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In the place of AMD's TraceLens: a package of that name that answers with what a real one was recorded to do.

C(install()) writes it into a folder that a child Python gets as TRACELENS_PATH; there this file is the package. The
recordings (tests/unit/fixtures/tracelens/recorded, made by tools/record_tracelens.py) are found by the trace's bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "tracelens"
REPORTING = {
    "generate_perf_report_pytorch": "generate_perf_report_pytorch",
    "generate_multi_rank_collective_report_pytorch": "generate_collective_report",
}


def install(folder: Path, extra: str = "", recorded: dict[str, Any] | None = None, version: str | None = None) -> Path:
    """Write the package into C(folder); C(extra) is code at its end, C(recorded) and C(version) replace what was."""
    known = json.loads((FIXTURES / "recorded" / "recorded.json").read_bytes()) if recorded is None else recorded
    package = folder / "TraceLens"
    (package / "Reporting").mkdir(parents=True)
    for path in (FIXTURES / "recorded").glob("*.xlsx"):
        shutil.copy(path, package)
    (package / "recorded.json").write_text(json.dumps(known))
    (package / "__init__.py").write_text(Path(__file__).read_text(encoding="utf-8") + extra, encoding="utf-8")
    (package / "Reporting" / "__init__.py").write_text("")
    for module, function in REPORTING.items():
        (package / "Reporting" / f"{module}.py").write_text(f"from TraceLens import {function}\n")
    metadata = folder / "TraceLens-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: TraceLens\nVersion: {version or known['version']}\n"
    )
    return folder


# --- what the child sees ----------------------------------------------------------------------------------------------


class Events(list[Any]):
    """The events of a trace, and which trace it was."""

    digest = ""


def recording(digest: str) -> dict[str, Any]:
    """What was recorded for a trace."""
    found = json.loads((Path(__file__).parent / "recorded.json").read_bytes())["traces"].get(digest)
    if found is None:
        raise LookupError(f"nothing was recorded for a trace with sha256 {digest}")
    return dict(found)


def replay(result: dict[str, Any]) -> Any:
    """Return or raise as recorded."""
    if "raised" in result:
        name, message = result["raised"]
        known = {"ValueError": ValueError, "KeyError": KeyError, "TypeError": TypeError}
        if name == "KeyError":
            raise KeyError(message.strip("'"))
        raise known.get(name, type(name, (Exception,), {}))(message)
    return result["value"]


def digest_of(path: str) -> str:
    """The name of a trace's recording."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class DataLoader:
    """Loads a trace."""

    @staticmethod
    def load_data(path: str) -> dict[str, Any]:
        """The whole trace."""
        digest = digest_of(path)
        replay(recording(digest)["load"])
        data = Path(path).read_bytes()
        events = Events(json.loads(gzip.decompress(data) if path.endswith(".gz") else data)["traceEvents"])
        events.digest = digest
        return {"traceEvents": events}


class GPUEventAnalyser:
    """Measures; as the real one, only events that can be told apart."""

    def __init__(self, events: Events) -> None:
        self.events = events
        if len({event["UID"] for event in events}) != len(events):
            raise ValueError("events can't be told apart")

    def compute_metrics(self) -> dict[str, float]:
        """The lengths."""
        return dict(replay(recording(self.events.digest)["timeline"])["metrics"])

    def get_gpu_event_lists(self) -> dict[str, list[None]]:
        """Lists of the right lengths."""
        numbers = replay(recording(self.events.digest)["timeline"])["events"]
        return {name: [None] * number for name, number in numbers.items()}


class NcclAnalyser:
    """Known by its name only."""


def generate_perf_report_pytorch(
    profile_json_path: str, output_xlsx_path: str, include_unlinked_kernels: bool = False
) -> None:
    """The workbook of a rank."""
    if not include_unlinked_kernels:
        raise ValueError("recorded with include_unlinked_kernels only")
    name = replay(recording(digest_of(profile_json_path))["report"])
    print("Building tree with add_python_func=False")
    shutil.copy(Path(__file__).parent / name, output_xlsx_path)
    print(f"DataFrames successfully written to {output_xlsx_path}", file=sys.stderr)


def generate_collective_report(trace_glob: str, world_size: int, output_xlsx_path: str) -> None:
    """The workbook of all ranks, if they were given in their order."""
    folder = Path(os.path.dirname(trace_glob))
    paths = [next(folder.glob(f"rank{rank}_trace.json*")) for rank in range(world_size)]
    found = json.loads((Path(__file__).parent / "recorded.json").read_bytes())["collectives"]
    shutil.copy(Path(__file__).parent / found[",".join(digest_of(str(path)) for path in paths)], output_xlsx_path)
