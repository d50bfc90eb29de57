# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has a host read its own traces and brings the summaries here (see the documentation of the module)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from ansible_collections.aorta.automation.plugins.action import gather_traces
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import rank_of
from ansible_collections.aorta.automation.plugins.module_utils._trace_summary import SUFFIX
from ansible_collections.aorta.automation.plugins.plugin_utils import _transfer

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "source": {"type": "path", "required": True},
    "work_dir": {"type": "path", "required": True},
    "dest": {"type": "path", "required": True},
    "ranks": {"type": "list", "elements": "int", "required": True},
    "analysis": {"type": "dict", "default": {}},
    "allow_missing": {"type": "bool", "default": False},
    "grace": {"type": "int", "default": 60},
}
# Of the section C(analysis) of the configuration, what decides how a single trace is read.
READING = ("communication_kernels", "max_trace_bytes")


def entry_of(file: dict[str, Any], host: str) -> dict[str, Any]:
    """A summary that a host offers, as the manifest has it. The path tells the rank, else the trace itself."""
    trace = file["trace"]
    name, in_path = str(trace["name"]), rank_of(str(trace["name"]))
    rank = in_path if in_path is not None or trace["rank"] is None else int(trace["rank"])
    return {
        "rank": rank,
        "host": host,
        "file": name + SUFFIX,
        "bytes": int(file["bytes"]),
        "sha256": str(file["sha256"]),
        "trace": {"file": name, "bytes": int(trace["bytes"]), "sha256": str(trace["sha256"])},
    }


class ActionModule(gather_traces.ActionModule):
    """Entry point."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super(gather_traces.ActionModule, self).run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        host = str(task_vars["inventory_hostname"])
        ranks = [int(rank) for rank in args["ranks"]]
        options = {name: args["analysis"][name] for name in READING if args["analysis"].get(name) is not None}
        made = self._execute_module(
            module_name="aorta.automation.trace_summary",
            module_args={
                "source": args["source"],
                "dest": args["work_dir"],
                "ranks": ranks,
                "heartbeat": str(PurePosixPath(str(args["work_dir"])).parent / _host.HEARTBEAT_FILE),
                **options,
            },
            task_vars=task_vars,
        )
        if made.get("failed") or made.get("unreachable"):
            result.update(made, failed=True)
            return result
        files = made["files"]
        if files:
            size = sum(int(file["trace"]["bytes"]) for file in files)
            self._display.display(
                f"[{host}] read {len(files)} traces, {size / 1e6:.1f} MB, in {float(made['seconds']):.1f} s"
                f" ({made['reader']})"
            )
        total = sum(int(file["bytes"]) for file in files)
        progress = gather_traces.Progress(self._display.display, host, len(files), total)
        summaries, problems = [], []
        for file in files:
            entry = entry_of(file, host)
            trouble = self._bring(str(file["path"]), entry, Path(str(args["dest"])), progress, int(args["grace"]))
            if trouble is None:
                summaries.append(entry)
            else:
                problems.append(trouble)
        missing = sorted(set(ranks) - {entry["rank"] for entry in summaries})
        if missing and not args["allow_missing"]:
            others = made["other_ranks"]
            note = f" (there are traces of rank {', '.join(map(str, others))})" if others else ""
            problems.append(f"rank {', '.join(map(str, missing))} left no trace in {args['source']}{note}")
        result.update(changed=bool(summaries), summaries=summaries, problems=problems)
        return result

    def _bring(
        self, path: str, entry: dict[str, Any], dest: Path, progress: gather_traces.Progress, grace: int
    ) -> str | None:
        """Transfer one summary and verify it. Returns what is wrong, None when it is there and right."""
        name = str(entry["file"])
        if not gather_traces.is_safe(name):
            return f"refused a summary whose path leaves its directory: {name!r}"
        target = dest / name
        try:
            _transfer.fetch(
                self._shell,
                path,
                target,
                entry["bytes"],
                entry["sha256"],
                progress,
                grace=grace,
                sudo=bool(self._play_context.become),
            )
        except _transfer.TransferError as exc:
            return f"could not gather {name}: {exc}"
        except OSError as exc:
            return f"could not gather {name}: the head node can't write {target}: {exc.strerror or exc}"
        progress.end_file()
        return None
