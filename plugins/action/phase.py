# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks the phases of a run and judges all hosts of a phase at once (see the documentation of the module)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.plugin_utils import _manifest

OWNER = f"{_host.LABEL}.run_id"


def problems_of(result: Mapping[str, Any] | None, expect: str | None, run_id: str = "") -> list[str]:
    """What one host's registered result says is wrong, one text a problem. A container has to be of run C(run_id)."""
    if result is None:
        return ["gave no result (it left the play earlier)"]
    if result.get("unreachable"):
        return [f"unreachable: {_one_line(result.get('msg'))}"]
    if result.get("skipped"):
        return []
    found = [_problem(item) for item in result.get("problems") or []]
    labels = ((result.get("container") or {}).get("Config") or {}).get("Labels")
    if labels is not None and labels.get(OWNER) != run_id:
        owner = f"run {labels[OWNER]}" if labels.get(OWNER) else "someone else"
        found.append(f"{owner} has started a container of the same name meanwhile; it was left alone")
    if not found and (result.get("failed") or (expect and expect not in result)):
        text = _one_line(result.get("msg"))
        stderr = " ".join(str(result.get("stderr") or result.get("module_stderr") or "").split())[:500]
        found = [f"{text}: {stderr}" if stderr and stderr not in text else text]
    return found


def _problem(item: Any) -> str:
    if isinstance(item, Mapping):
        remedy = item.get("remedy")
        return f"{item.get('message')}{f' -> {remedy}' if remedy else ''}"
    return str(item)


def _one_line(text: Any) -> str:
    return " ".join(str(text or "failed without a message").split())[:500]


class ActionModule(ActionBase):
    """Entry point."""

    _requires_connection = False
    _supports_check_mode = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "run_dir": {"type": "path", "required": True},
                "name": {"type": "str", "required": True},
                "state": {"type": "str", "choices": ["begin", "check", "end", "fail", "outcome"], "required": True},
                "first": {"type": "bool", "default": False},
                "results": {"type": "str"},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "expect": {"type": "str"},
                "record": {"type": "bool", "default": False},
                "message": {"type": "str"},
            }
        )
        run_dir, name = str(args["run_dir"]), str(args["name"])
        try:
            self._act(run_dir, name, args, task_vars, result)
        except OSError as exc:
            raise AnsibleActionFail(f"{name}: the head node can't keep the records of the run: {exc}") from None
        except ValueError as exc:
            raise AnsibleActionFail(f"{name}: {exc}") from None
        return result

    def _act(
        self, run_dir: str, name: str, args: dict[str, Any], task_vars: dict[str, Any], result: dict[str, Any]
    ) -> None:
        if args["state"] == "begin":
            if args["first"]:
                _manifest.update(run_dir, lambda m: _manifest.begin_run(m, _manifest.controller()))
                result["dead_runs"] = _manifest.dead_runs(run_dir)
            _manifest.update(run_dir, lambda m: _manifest.begin_phase(m, name))
            return
        if args["state"] == "fail":
            message = _one_line(args["message"])
            _manifest.update(run_dir, lambda m: _fail_open_phase(m, name, message))
            return
        if args["state"] == "outcome":
            result["failed_run"] = _manifest.load(run_dir)["failure"] is not None
            return
        if args["results"]:
            result["steps"] = self._judge(run_dir, name, args, task_vars)
        if args["state"] == "end":
            manifest = _manifest.update(run_dir, lambda m: _manifest.end_phase(m, name, "ok"))
            result["seconds"] = next((p["seconds"] for p in reversed(manifest["phases"]) if p["name"] == name), None)

    def _judge(self, run_dir: str, name: str, args: dict[str, Any], task_vars: dict[str, Any]) -> list[str]:
        """Fail when any host has a problem; else return the steps of the run that every host has already."""
        hostvars = task_vars["hostvars"]
        found: list[tuple[str, str]] = []
        results: dict[str, Any] = {host: hostvars[host].get(args["results"]) for host in map(str, args["hosts"])}
        for host, host_result in results.items():
            found += [(host, text) for text in problems_of(host_result, args["expect"], Path(run_dir).name)]
        if args["record"]:
            _manifest.update(run_dir, lambda m: _manifest.add_results(m, {h: r or {} for h, r in results.items()}))
            _manifest.write_nodes(run_dir)
        if not found:
            steps = [set(map(str, ((r or {}).get("host") or {}).get("steps") or {})) for r in results.values()]
            return sorted(set.intersection(*steps)) if steps else []
        hosts = list(dict.fromkeys(host for host, _text in found))
        lines = [f"  {host}: {text}" for host, text in found]
        message = f"{name}: {len(hosts)} of {len(args['hosts'])} hosts have a problem:\n" + "\n".join(lines)
        _manifest.update(
            run_dir,
            lambda m: _manifest.set_failure(m, name, "host_problem", message, host=hosts[0]),
        )
        raise AnsibleActionFail(message)


def _fail_open_phase(manifest: dict[str, Any], name: str, message: str) -> None:
    """Record the failure under the phase that was going on, C(name) when none was."""
    running = [phase["name"] for phase in manifest["phases"] if phase["status"] == "running"]
    _manifest.set_failure(manifest, running[-1] if running else name, "error", message)
