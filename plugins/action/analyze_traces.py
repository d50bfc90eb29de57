# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures a run's traces on the controller (see the documentation of the module)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis, _deps
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results

display = Display()

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "run_dir": {"type": "path", "required": True},
    "trace_dir": {"type": "path"},
    "expected_ranks": {"type": "raw"},
    "node_map": {"type": "dict"},
    "use_cache": {"type": "bool", "default": True},
}
MAX_ERRORS = 10
# Fewer traces than this are done before anyone would read about it.
PROGRESS_FROM = 5
PROGRESS_SECONDS = 1.0


def expected_ranks_of(value: Any) -> frozenset[int] | None:
    """A world size, or a list of ranks, as a set of ranks. Raises ValueError."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, (list, tuple)):
            ranks = [int(str(rank)) for rank in value]
            if min(ranks, default=0) < 0:
                raise ValueError
            return frozenset(ranks)
        if isinstance(value, bool) or int(str(value)) < 1:
            raise ValueError
        return frozenset(range(int(str(value))))
    except ValueError:
        message = f"expected_ranks: {value!r} is neither a number of ranks (1 or more) nor a list of ranks"
        raise ValueError(message) from None


def node_map_of(value: Mapping[Any, Any] | None) -> dict[int, str]:
    """Rank -> host with plain types. Raises ValueError."""
    try:
        return {int(str(rank)): str(node) for rank, node in (value or {}).items()}
    except ValueError as exc:
        raise ValueError(f"node_map: keys must be ranks: {exc}") from None


def progress_reporter(tell: Callable[[str], None]) -> Callable[[int, int, int, str], None]:
    """A callback that says about once a second how far the reading is."""
    began = time.monotonic()
    last = [began]

    def report(done: int, total: int, size: int, name: str) -> None:
        now = time.monotonic()
        if total >= PROGRESS_FROM and (now - last[0] >= PROGRESS_SECONDS or done == total):
            last[0] = now
            rate = size / 1e6 / max(now - began, 1e-3)
            tell(f"[analysis] {done} of {total} traces read, {size / 1e6:.0f} MB, {rate:.0f} MB/s ({name})")

    return report


def result_of(results: Results, path: Path) -> dict[str, Any]:
    """The small part of the results that the task returns."""
    nothing = {problem.code for problem in results.errors} == {"no_traces"}
    errors = [f"{problem.code}: {problem.message}" for problem in results.errors]
    if len(errors) > MAX_ERRORS:
        errors = [*errors[: MAX_ERRORS - 1], f"... and {len(errors) - MAX_ERRORS + 1} more, see {path}"]
    return {
        "status": "no_data" if nothing else results.status,
        "results_path": str(path),
        "num_ranks": results.world.num_ranks,
        "missing_ranks": results.world.missing_ranks,
        "summary": results.summary.model_dump(),
        "warnings_count": len(results.warnings),
        "errors": errors,
        "reused_from": results.reused_from,
    }


class ActionModule(ActionBase):
    """Entry point."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _validated, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        run_dir = Path(str(args["run_dir"])).absolute()
        trace_dir = Path(str(args["trace_dir"])).absolute() if args["trace_dir"] else None
        try:
            _deps.require("pydantic")
            job = _analysis.plan(
                run_dir,
                trace_dir,
                expected_ranks_of(args["expected_ranks"]),
                node_map_of(args["node_map"]),
                progress_reporter(display.display),
                display.display,
            )
            if self._task.check_mode:
                result.update(skipped=True, msg=f"Would analyse the traces in {job.trace_dir} into {job.results_path}")
                return result
            if not run_dir.is_dir():
                raise ValueError(f"run_dir: {run_dir} is not a directory")
            results = _analysis.run(job, use_cache=bool(args["use_cache"]))
        except (ImportError, ValueError, OSError) as exc:
            raise AnsibleActionFail(str(exc)) from None
        result.update(result_of(results, job.results_path), changed=True)
        return result
