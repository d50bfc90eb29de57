# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of validate_config: variables in, spec.json and a fact out; no host is contacted."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.plugin_utils._config import BENCHMARKS, PHASES
from ansible_collections.aorta.automation.plugins.plugin_utils._deps import require
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import ConfigError
from ansible_collections.aorta.automation.plugins.plugin_utils._spec import (
    CONTROL_PREFIX,
    Invocation,
    Prepared,
    phases_of,
    prefixes,
    prepare,
    write_run,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._variables import plain, read_cluster

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "benchmark": {"type": "str", "default": "aorta", "choices": sorted(BENCHMARKS)},
    "run_phases": {"type": "list", "elements": "str", "choices": list(PHASES)},
    "reveal_secrets": {"type": "bool", "default": False, "no_log": False},
}


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            require("pydantic")
            prepared = self._prepare(args, task_vars)
            if args["reveal_secrets"]:
                return {**result, "changed": False, "secrets": prepared.secrets}
            if not self._task.check_mode:
                write_run(prepared.spec)
        except ConfigError as exc:
            raise AnsibleActionFail(str(exc)) from None
        except ImportError as exc:
            raise AnsibleActionFail(str(exc)) from None
        except OSError as exc:
            raise AnsibleActionFail(f"aorta_output_dir: the run directory can't be written: {exc}") from None
        spec = prepared.spec
        run = {key: spec[key] for key in ("run_id", "run_dir", "trace_dir", "runtime", "phases")}
        run["spec"] = spec
        result.update(changed=not self._task.check_mode, ansible_facts={"aorta_run": run})
        if spec["warnings"]:
            result["warnings"] = [notice["message"] for notice in spec["warnings"]]
        return result

    def _prepare(self, args: dict[str, Any], task_vars: dict[str, Any]) -> Prepared:
        benchmark = BENCHMARKS[args["benchmark"]]
        cluster = read_cluster(
            task_vars,
            self._templar,
            self._loader,
            prefixes(benchmark),
            group_variable=f"{CONTROL_PREFIX}hosts_group",
            group="aorta",
        )
        phases = phases_of(
            plain(task_vars.get("ansible_run_tags", ["all"])), plain(task_vars.get("ansible_skip_tags", []))
        )
        if args["run_phases"] is not None:
            chosen = {"config", *args["run_phases"]}
            phases = tuple(phase for phase in PHASES if phase in chosen)
        directories = [Path.cwd()]
        directories += [Path(str(task_vars[key])) for key in ("playbook_dir", "inventory_dir") if task_vars.get(key)]
        return prepare(
            Invocation(
                benchmark=args["benchmark"],
                phases=phases,
                group=cluster.group,
                hosts=cluster.hosts,
                here=cluster.here,
                search=tuple(directories),
                now=datetime.now(UTC),
                token=secrets.token_hex(3),
            )
        )
