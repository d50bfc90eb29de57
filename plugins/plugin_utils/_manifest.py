# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""manifest.json: what happened in a run (versions, hosts, phases, traces, the first failure).

The only file of the run directory that several stages write, one after the other; each write
replaces it whole.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.release import __version__ as ansible_version
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, write_json

SCHEMA_VERSION = 1
LOG_TAIL_LINES = 30
# What a run brings to the head node: lists of the manifest, and directories of the run.
GATHERED = ("traces", "summaries")


def now() -> str:
    """The time as ISO 8601 UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def collection_version() -> str | None:
    """The version in galaxy.yml of a checkout, or in the manifest of an installed collection."""
    root = Path(__file__).resolve().parents[2]
    installed = root / "MANIFEST.json"
    if installed.exists():
        return str(read_json(installed)["collection_info"]["version"])
    found = re.search(r"^version: *(\S+)", (root / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def load(run_dir: str | Path) -> dict[str, Any]:
    """The manifest of C(run_dir), or a new one. Raises ValueError when it is damaged."""
    path = Path(run_dir) / "manifest.json"
    if path.exists():
        manifest: dict[str, Any] = read_json(path)
        return manifest
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": Path(run_dir).name,
        "created": now(),
        "versions": {
            "aorta.automation": collection_version(),
            "ansible_core": ansible_version,
            "python": platform.python_version(),
        },
        "hosts": {},
        "phases": [],
        "traces": [],
        "failure": None,
    }


def update(run_dir: str | Path, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Apply C(change) to the manifest of C(run_dir) and write it. Returns the new manifest."""
    manifest = load(run_dir)
    change(manifest)
    write_json(Path(run_dir) / "manifest.json", manifest)
    return manifest


def controller() -> dict[str, Any]:
    """Which ansible-playbook runs this: its pid and start, and the machine that they are of (null if it can't be told).

    To be called in a worker of Ansible, whose parent is the main process.
    """
    pid = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return {"machine": None, "pid": pid, "start_time": None}
    return {"machine": machine, "pid": pid, "start_time": _host.process_start_time(pid)}


def begin_run(manifest: dict[str, Any], of: dict[str, Any]) -> None:
    """Note the controller C(of) the run; what an earlier attempt at the same run has not ended is closed.

    Raises ValueError while another controller has the run.
    """
    other = manifest.get("controller")
    if other and other != of and other["machine"] == of["machine"] and _lives(other):
        raise ValueError(f"run {manifest['run_id']} is under the control of process {other['pid']} on this machine")
    manifest["controller"] = of
    manifest["failure"] = None
    for phase in manifest["phases"]:
        if phase["status"] == "running":
            phase["status"] = "interrupted"


def _lives(of: Mapping[str, Any]) -> bool:
    return of["machine"] is not None and _host.process_start_time(int(of["pid"])) == of["start_time"]


def dead_runs(run_dir: str | Path) -> list[str]:
    """Runs beside C(run_dir) whose controller was a process of this machine that is gone."""
    here = controller()["machine"]
    found = []
    for path in sorted(Path(run_dir).parent.glob("*/manifest.json"))[-100:] if here else []:
        try:
            of = read_json(path).get("controller") or {}
        except (OSError, ValueError):
            continue
        if of.get("machine") == here and not _lives(of):
            found.append(path.parent.name)
    return found


def begin_phase(manifest: dict[str, Any], name: str) -> None:
    """Note that phase C(name) starts now."""
    manifest["phases"].append({"name": name, "started": now(), "finished": None, "seconds": None, "status": "running"})


def end_phase(manifest: dict[str, Any], name: str, status: str) -> None:
    """Close the last open phase C(name) with C(status) (C(ok) or C(failed))."""
    for phase in reversed(manifest["phases"]):
        if phase["name"] == name and phase["finished"] is None:
            finished = phase["finished"] = now()
            started = datetime.fromisoformat(phase["started"])
            phase["seconds"] = round((datetime.fromisoformat(finished) - started).total_seconds(), 3)
            phase["status"] = status
            return


def add_results(manifest: dict[str, Any], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep facts, image and traces that the hosts' results hold."""
    for name, result in results.items():
        host = manifest["hosts"].setdefault(name, {"facts": {}, "image": None})
        facts, image = result.get("host"), result.get("image")
        if facts:
            host["facts"] = _plain(facts)
        if image:
            digests = image.get("RepoDigests") or [image.get("Id")]
            host["image"] = {"reference": _first(image.get("RepoTags")), "digest": _first(digests)}
        for kind in GATHERED:
            entries = _plain(result.get(kind) or [])
            if entries:
                known = {entry["file"] for entry in entries}
                manifest[kind] = [one for one in manifest.get(kind, []) if one["file"] not in known] + entries


def write_nodes(run_dir: str | Path) -> None:
    """Write nodes.json (rank to host) beside the gathered traces, and beside the summaries, where there are any."""
    manifest = load(run_dir)
    for kind in GATHERED:
        entries = manifest.get(kind, [])
        nodes = {str(entry["rank"]): entry["host"] for entry in entries if entry["rank"] is not None}
        if nodes:
            write_json(Path(run_dir) / kind / "nodes.json", nodes)


def _plain(value: Any) -> Any:
    """Without Ansible's tags, as JSON has it."""
    return json.loads(json.dumps(value))


def _first(values: Any) -> str | None:
    return str(values[0]) if values else None


def set_failure(
    manifest: dict[str, Any],
    phase: str,
    reason: str,
    message: str,
    host: str | None = None,
    rank: int | None = None,
    exit_code: int | None = None,
    log_tail: list[str] | None = None,
) -> None:
    """Record why the run failed. The first failure stays: what follows it is its consequence."""
    end_phase(manifest, phase, "failed")
    if manifest["failure"] is None:
        manifest["failure"] = {
            "phase": phase,
            "host": host,
            "rank": rank,
            "exit_code": exit_code,
            "reason": reason,
            "message": message,
            "log_tail": log_tail or [],
        }
