# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each case of kind C(config) or C(inventory) has the outcome that its C(expected.json) says, through real Ansible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.tests.conformance.shared_data import cases

ROOT = Path(__file__).resolve().parents[2]


def ansible(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an Ansible command in an empty directory, with the checkout's own ansible.cfg."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0", "COLUMNS": "1000"}
    return subprocess.run(
        [str(Path(sys.executable).parent / command), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def inputs(case: Path, expected: dict[str, Any], cwd: Path) -> list[str]:
    """The arguments that hand a case's files to ansible-playbook."""
    given = expected["input"]
    arguments = ["--tags", "config"]
    if "inventory" in given:
        arguments += ["-i", str(case / given["inventory"])]
    else:
        inventory = cwd / "inventory"
        (inventory / "group_vars").mkdir(parents=True)
        # An address that nothing answers: the check must not try it.
        (inventory / "hosts.ini").write_text("[aorta]\nnode0 ansible_host=192.0.2.1\n", encoding="utf-8")
        for name in ("vars", "group_vars"):
            if name in given:
                text = (case / given[name]).read_text(encoding="utf-8")
                (inventory / "group_vars" / "aorta.yml").write_text(text, encoding="utf-8")
        arguments += ["-i", str(inventory / "hosts.ini")]
    if "config_file" in given:
        arguments += ["-e", f"aorta_config_file={case / given['config_file']}"]
    if "extra_vars" in given:
        arguments += ["-e", f"@{case / given['extra_vars']}"]
    return arguments


def at(values: Any, dotted: str) -> Any:
    """Follow a dotted path through maps whose keys may themselves have dots."""
    if dotted in values:
        return values[dotted]
    for cut in (index for index, sign in enumerate(dotted) if sign == "."):
        if dotted[:cut] in values:
            return at(values[dotted[:cut]], dotted[cut + 1 :])
    raise KeyError(dotted)


def complained(output: str, error: dict[str, Any]) -> bool:
    """Whether one line of the output names the setting and mentions all that it has to."""
    wanted = [error["variable"], *error["mentions"]]
    return any(all(any(word in line for word in want.split("|")) for want in wanted) for line in output.splitlines())


def check(case: Path, expected: dict[str, Any], cwd: Path) -> None:
    done = ansible("ansible-playbook", str(ROOT / "aorta.yml"), *inputs(case, expected, cwd), cwd=cwd)
    output = done.stdout + done.stderr
    for text in ["Traceback", *expected.get("never", [])]:
        assert text not in output
    assert "UNREACHABLE" not in output
    specs = list((cwd / "aorta-runs").glob("2*/spec.json"))
    if expected["outcome"] == "invalid":
        assert done.returncode != 0
        assert not specs
        for error in expected["errors"]:
            assert complained(output, error), (error, output)
        for name in expected.get("errors_must_not_name", []):
            assert name not in output
        return
    assert done.returncode == 0, output
    assert len(specs) == 1
    text = specs[0].read_text(encoding="utf-8")
    for hidden in expected.get("never", []):
        assert hidden not in text
    spec = json.loads(text)
    for path, value in expected.get("resolved", {}).items():
        found = at(spec["values"], path)
        assert (found, type(found)) == (value, type(value)), path
    for path in expected.get("resolved_present", []):
        assert at(spec["values"], path) is not None, path
    for path, layer in expected.get("layer", {}).items():
        assert spec["layers"][path] == layer, path
    environment = expected.get("container_env", {}) | expected.get("command_environment", {})
    assert {name: spec["container_env"].get(name) for name in environment} == environment
    for assignment in expected.get("not_in_environment", []):
        name, _equals, value = assignment.partition("=")
        assert spec["container_env"].get(name) != value
    if "override_argv" in expected:
        _flag, *assignments = expected["override_argv"]
        ours = [item for item in assignments if not item.startswith("training.output_dir=")]
        assert spec["override_argv"][0] == "--override"
        assert sorted(spec["override_argv"][1:]) == sorted(ours)
        if ours != assignments:
            assert any("training.output_dir" in warning["message"] for warning in spec["warnings"])
    if "rendezvous_address" in expected:
        assert spec["rendezvous"]["address"] == expected["rendezvous_address"]
    if "hosts" in expected:
        ranks = [(host["name"], host["node_rank"]) for host in spec["hosts"]]
        assert ranks == [(host["name"], host["node_rank"]) for host in expected["hosts"]]


@pytest.mark.parametrize(("case", "expected"), cases("config"))
def test_config(case: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    check(case, expected, tmp_path)


@pytest.mark.parametrize(("case", "expected"), cases("inventory"))
def test_inventory(case: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    check(case, expected, tmp_path)
    done = ansible("ansible-inventory", "-i", str(case / expected["input"]["inventory"]), "--list", cwd=tmp_path)
    output = done.stdout + done.stderr
    if expected["outcome"] == "invalid":
        for error in expected["errors"]:
            assert complained(output, error), (error, output)
        for text in expected.get("never", []):
            assert text not in output
        return
    assert done.returncode == 0, output
    listing = json.loads(done.stdout)
    assert listing[expected["group"]]["hosts"] == [host["name"] for host in expected["hosts"]]
    for host in expected["hosts"]:
        wanted = {name: value for name, value in host.items() if name not in ("name", "node_rank")}
        found = listing["_meta"]["hostvars"][host["name"]]
        assert {name: found.get(name) for name in wanted} == wanted
