# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the results of a run (see the documentation of the module)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.plugin_utils import _deps, _thresholds, _verdict

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {"run_dir": {"type": "path", "required": True}}
MAX_LINES = 10


def result_of(verdict: _verdict.Verdict, path: Path) -> dict[str, Any]:
    """The small part of the verdict that the task returns."""
    lines = [f"{check.name}: {check.message}" for check in verdict.failing]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"... and {len(lines) - MAX_LINES + 1} more, see {path}"]
    if verdict.status == "failed":
        head, below = f"{len(verdict.failing)} of {len(verdict.checks)} checks failed", lines
    else:  # what could not be checked is only a consequence
        head, below = verdict.reason, []
    return {
        "status": verdict.status,
        "verdict_path": str(path),
        "message": "\n".join([f"{verdict.status.upper()}: {head}", *(f"  {line}" for line in below)]),
        "checks": lines,
        "num_checks": len(verdict.checks),
        "num_failing": len(verdict.failing),
    }


class ActionModule(ActionBase):
    """Entry point."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _validated, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        run_dir = Path(str(args["run_dir"])).absolute()
        if self._task.check_mode:
            result.update(skipped=True, msg=f"Would judge the results in {run_dir}")
            return result
        try:
            _deps.require("pydantic")
            verdict = _thresholds.judge_run(run_dir)
        except (ImportError, ValueError, OSError) as exc:
            raise AnsibleActionFail(str(exc)) from None
        result.update(result_of(verdict, run_dir / _verdict.FILE_NAME), changed=True)
        for remark in verdict.warnings:
            result.setdefault("warnings", []).append(remark.message)
        return result
