# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible_collections.aorta.automation.plugins.action import gather_summaries, gather_traces
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces
from ansible_collections.aorta.automation.plugins.modules import gather_summaries as documentation
from ansible_collections.aorta.automation.plugins.modules import trace_summary
from ansible_collections.aorta.automation.plugins.plugin_utils import _manifest
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import healthy


def run(tmp_path: Path, change: Any = lambda reply: None, **args: Any) -> dict[str, Any]:
    """The action on a host that is this machine; C(change) is what becomes of the module's reply on its way."""
    task = SimpleNamespace(
        args={
            "source": str(tmp_path / "source"),
            "work_dir": str(tmp_path / "work"),
            "dest": str(tmp_path / "run" / "summaries"),
            "ranks": [0, 1],
            **args,
        },
        check_mode=False,
        async_val=0,
        action="aorta.automation.gather_summaries",
        diff=False,
        no_log=False,
    )
    parts = {name: mock.MagicMock() for name in ("connection", "loader", "templar", "shared_loader_obj")}
    action = gather_summaries.ActionModule(task=task, play_context=SimpleNamespace(become=False), **parts)
    asked: list[dict[str, Any]] = []

    def execute(module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append(module_args)
        ranks = module_args["ranks"]
        names = [n for n in find_traces(module_args["source"]) if trace_summary.rank_of(n) in (*ranks, None)]
        rule = module_args.get("communication_kernels", "tracelens")
        files = trace_summary.summarise(module_args["source"], module_args["dest"], names, rule, None, None)
        reply = {"files": files, "other_ranks": [], "seconds": 0.1, "reader": "msgspec"}
        change(reply)
        return reply

    def shell(command: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    with (
        mock.patch.object(action, "_execute_module", side_effect=execute),
        mock.patch.object(action, "_shell", side_effect=shell),
    ):
        result = action.run(task_vars={"inventory_hostname": "n0"})
    return {**result, "asked": asked}


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Path:
    for rank in (0, 1):
        healthy(rank, 2).write(tmp_path / "source" / f"rank{rank}" / "t.json")
    (tmp_path / "run").mkdir()
    return tmp_path


def test_summaries_arrive_and_the_manifest_has_them(host: Path) -> None:
    analysis = {"communication_kernels": ["nccl"], "max_trace_bytes": None, "top_kernels": 3}
    result = run(host, analysis=analysis)
    assert (result["problems"], result["changed"]) == ([], True)
    assert result["asked"][0]["communication_kernels"] == ["nccl"]
    assert "top_kernels" not in result["asked"][0] and "max_trace_bytes" not in result["asked"][0]
    assert [entry["file"] for entry in result["summaries"]] == [f"rank{rank}/t.json.summary.json.gz" for rank in (0, 1)]
    assert result["asked"][0]["heartbeat"] == str(host / "heartbeat")
    for entry in result["summaries"]:
        assert (host / "run" / "summaries" / entry["file"]).stat().st_size == entry["bytes"]
        assert (host / "source" / entry["trace"]["file"]).stat().st_size == entry["trace"]["bytes"]
    _manifest.update(host / "run", lambda manifest: _manifest.add_results(manifest, {"n0": result}))
    _manifest.write_nodes(host / "run")
    assert json.loads((host / "run" / "summaries" / "nodes.json").read_text()) == {"0": "n0", "1": "n0"}
    assert not (host / "run" / "traces").exists()
    assert len(_manifest.load(host / "run")["summaries"]) == 2


def test_ranks_of_the_trace_itself_where_the_path_has_none(host: Path) -> None:
    shutil.move(host / "source" / "rank1" / "t.json", host / "source" / "one.json")
    assert [entry["rank"] for entry in run(host)["summaries"]] == [1, 0]


def test_a_missing_rank_is_a_problem_unless_allowed(host: Path) -> None:
    shutil.rmtree(host / "source" / "rank1")
    assert run(host, lambda reply: reply.update(other_ranks=[7]))["problems"] == [
        f"rank 1 left no trace in {host / 'source'} (there are traces of rank 7)"
    ]
    assert run(host, allow_missing=True)["problems"] == []


def test_what_did_not_arrive_whole_is_refused(host: Path) -> None:
    def lie(reply: dict[str, Any]) -> None:
        reply["files"][0]["sha256"] = "0" * 64

    (problem, missing) = run(host, lie)["problems"]
    assert "could not gather rank0/t.json.summary.json.gz" in problem and "SHA-256" in problem
    assert missing.startswith("rank 0 left no trace")
    assert not (host / "run" / "summaries" / "rank0" / "t.json.summary.json.gz").exists()


@pytest.mark.parametrize("name", ["../../x.json", "/etc/x.json", "a\nb.json"])
def test_a_path_that_leads_out_is_refused(host: Path, name: str) -> None:
    result = run(host, lambda reply: reply["files"][0]["trace"].update(name=name), allow_missing=True)
    assert result["problems"] == [f"refused a summary whose path leaves its directory: {name + '.summary.json.gz'!r}"]


def test_a_module_that_failed_fails_the_task(host: Path) -> None:
    result = run(host, lambda reply: reply.update(failed=True, msg="no disk"))
    assert (result["failed"], result["msg"]) == (True, "no disk")


def test_documentation_and_arguments_agree() -> None:
    options = yaml.safe_load(documentation.DOCUMENTATION)["options"]
    assert set(options) == set(gather_summaries.ARGUMENT_SPEC)
    for name, spec in gather_summaries.ARGUMENT_SPEC.items():
        assert options[name]["type"] == spec["type"]
        assert options[name].get("required", False) == spec.get("required", False)
        assert options[name].get("default") == spec.get("default")
    assert issubclass(gather_summaries.ActionModule, gather_traces.ActionModule)


@pytest.mark.parametrize(
    ("rule", "outcome"), [("tracelens", "standard library"), (["("], "no regular expression"), ([1], "list of texts")]
)
def test_the_module_with_the_standard_library_alone(host: Path, rule: Any, outcome: str) -> None:
    """As Ansible runs it, in an interpreter that has neither msgspec nor isal."""
    args = {"source": str(host / "source"), "dest": str(host / "out"), "communication_kernels": rule, "ranks": [1]}
    args["heartbeat"] = str(host / "beat")
    (host / "beat").touch()
    os.utime(host / "beat", (1, 1))
    program = (
        "import json, sys; sys.modules['msgspec'] = sys.modules['isal'] = None\n"
        "from ansible.module_utils import basic\n"
        "from ansible_collections.aorta.automation.plugins.modules import trace_summary\n"
        f"basic._ANSIBLE_ARGS = {json.dumps({'ANSIBLE_MODULE_ARGS': args}).encode()!r}\n"
        "basic._ANSIBLE_PROFILE = 'legacy'\n"
        "trace_summary.main()\n"
    )
    path = os.pathsep.join([str(Path(trace_summary.__file__).parents[5]), *sys.path])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    reply = json.loads(done.stdout)
    if outcome == "standard library":
        assert (reply["reader"], reply["other_ranks"]) == (outcome, [0])
        assert [file["trace"]["rank"] for file in reply["files"]] == [1]
        assert (host / "beat").stat().st_mtime > 1
    else:
        assert reply["failed"] and outcome in reply["msg"]
