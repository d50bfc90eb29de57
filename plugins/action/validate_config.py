# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of validate_config: variables in, spec.json and a fact out; no host is contacted."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
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


def misspelt_tags(task_vars: Mapping[str, Any]) -> list[str]:
    """A line for each tag that is almost one of ours. Others are left alone: they may be of a larger playbook."""
    given = [*plain(task_vars.get("ansible_run_tags", [])), *plain(task_vars.get("ansible_skip_tags", []))]
    known = (*PHASES, "all", "always", "never", "tagged", "untagged")
    meant = {tag: get_close_matches(str(tag), known, 1) for tag in given if tag not in known}
    return [f"--tags: {tag}: no phase of ours, did you mean {names[0]}?" for tag, names in meant.items() if names]


def torn_assignments(extra: Mapping[str, Any], benchmark: str) -> list[str]:
    """A line for each extra variable that is the rest of an C(aorta_set) which the shell or Ansible has cut up."""
    sections = BENCHMARKS[benchmark].model.model_fields
    return [
        f"{name}: an extra variable, though it looks like a part of aorta_set. Ansible splits -e at spaces: "
        "keep quotes inside the quotes, -e \"aorta_set='a=1 b=2'\""
        for name in map(str, extra)
        if "." in name and name.partition(".")[0] in sections
    ]


def refuse_ended_run(spec: Mapping[str, Any]) -> None:
    """A run that has its verdict is not run again under its name: its traces would pass for those of the new one."""
    if "run" in spec["phases"] and Path(spec["run_dir"], "verdict.json").exists():
        raise ConfigError(
            [
                f"aorta_run_id: the run {spec['run_id']} has ended and has its verdict ({spec['run_dir']}); "
                "leave aorta_run_id out, or give another"
            ]
        )


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, args = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            require("pydantic")
            problems = [*misspelt_tags(task_vars), *torn_assignments(load_extra_vars(self._loader), args["benchmark"])]
            if problems:
                raise ConfigError(problems)
            prepared = self._prepare(args, task_vars)
            if args["reveal_secrets"]:
                return {**result, "changed": False, "secrets": prepared.secrets}
            refuse_ended_run(prepared.spec)
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
