# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the reports of a run (see the documentation of the module)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.plugin_utils import _deps, _render, _report_html

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "run_dir": {"type": "path", "required": True},
    "template": {"type": "str"},
}


class ActionModule(ActionBase):
    """Entry point."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _validated, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        run_dir = Path(str(args["run_dir"])).absolute()
        template = self._template(args["template"])
        if self._task.check_mode:
            result.update(skipped=True, msg=f"Would write the reports into {run_dir}")
            return result
        try:
            _deps.require("pydantic", "openpyxl")
            done = _render.render_run(run_dir, template)
        except (ImportError, ValueError, OSError) as exc:
            raise AnsibleActionFail(str(exc)) from None
        result.update(
            changed=True,
            report=str(done.html),
            workbook=str(done.xlsx),
            junit=str(done.junit),
            summary_lines=done.summary_lines,
            stats=done.stats,
        )
        return result

    def _template(self, given: Any) -> Path | None:
        """The user's template: the one named, else one of the default's name in reach of the task; None = our own."""
        if given:
            try:
                return Path(str(self._find_needle("templates", str(given))))
            except AnsibleError:
                message = f"template: {given} is neither in templates/ of the role or play nor an absolute path"
                raise AnsibleActionFail(message) from None
        try:
            found = Path(str(self._find_needle("templates", _report_html.TEMPLATE)))
        except AnsibleError:
            return None
        return found if found.resolve().parent != _report_html.TEMPLATES else None
