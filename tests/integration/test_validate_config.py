# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""validate_config inside real Ansible: where variables come from, what is written, what is kept quiet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ansible.parsing.vault
import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = "[aorta]\nn1 ansible_host=192.0.2.1\nn0 ansible_host=192.0.2.2\nn2 ansible_host=192.0.2.3\n"
PLAY = """
- name: Check
  hosts: "{hosts}"
  gather_facts: false
  tags: [always]
{vars}
  tasks:
    - aorta.automation.validate_config:
{arguments}
      run_once: true
      register: outcome
    - ansible.builtin.copy:
        content: "{{{{ outcome | to_json }}}}"
        dest: "{out}"
        mode: "0600"
      delegate_to: localhost
      connection: local
      run_once: true
      check_mode: false
"""


class Play:
    """A playbook in an empty directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("hosts.ini", HOSTS)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(
        self, *arguments: str, hosts: str = "aorta", variables: str = "", task: str = "", inventory: str = "hosts.ini"
    ) -> subprocess.CompletedProcess[str]:
        text = PLAY.format(hosts=hosts, vars=variables, arguments=task, out=self.folder / "outcome.json")
        self.write("play.yml", text)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        environment["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "play.yml", *arguments]
        command += ["-e", f"ansible_python_interpreter={sys.executable}"]
        if inventory:
            command += ["-i", inventory]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def spec(self, *arguments: str, **more: Any) -> dict[str, Any]:
        done = self.run("--tags", "config", *arguments, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(self.outcome()["ansible_facts"]["aorta_run"]["spec"])

    def outcome(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "outcome.json").read_text(encoding="utf-8")))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def test_sources(play: Play) -> None:
    play.write("group_vars/all.yml", "aorta_timeout_seconds: 11\naorta_base_config: a.yaml\naorta_gpu_model: auto\n")
    play.write("group_vars/aorta.yml", "aorta_base_config: b.yaml\naorta_docker: {image: one, pull: always}\n")
    for host in ("n0", "n1", "n2"):
        play.write(f"host_vars/{host}.yml", "aorta_experiment_script: run.sh\n")
    extra = ["-e", '{"aorta_docker": {"image": "two"}}', "-e", "aorta_set=environment.A=1"]
    spec = play.spec(*extra, variables="  vars: {aorta_gpus_per_node: 3}")
    expected = {
        "timeout_seconds": (11, "inventory"),
        "base_config": ("b.yaml", "group"),
        "experiment_script": ("run.sh", "host"),
        "gpus_per_node": (3, "play"),
        "skip_rccl_build": (True, "model default"),
    }
    assert {name: (spec["values"][name], spec["layers"][name]) for name in expected} == expected
    docker = {name: (spec["values"]["docker"][name], spec["layers"][f"docker.{name}"]) for name in ("image", "pull")}
    assert docker == {"image": ("two", "extra vars"), "pull": ("missing", "model default")}, "one value a variable"
    assert (spec["values"]["environment"]["A"], spec["layers"]["environment.A"]) == ("1", "aorta_set")


def test_node_order_and_limit(play: Play) -> None:
    assert [host["name"] for host in play.spec()["hosts"]] == ["n1", "n0", "n2"]
    limited = play.spec("--limit", "n0,n2")
    assert [(host["name"], host["node_rank"]) for host in limited["hosts"]] == [("n0", 0), ("n2", 1)]
    assert limited["rendezvous"]["address"] == "192.0.2.2"
    assert [host["name"] for host in play.spec(hosts="localhost:aorta")["hosts"]] == ["n1", "n0", "n2"]


def test_another_group_by_extra_var(play: Play) -> None:
    play.write("hosts.ini", HOSTS + "[other]\nm0\n")
    assert [host["name"] for host in play.spec("-e", "aorta_hosts_group=other")["hosts"]] == ["m0"]


def test_without_any_inventory(play: Play) -> None:
    spec = play.spec("-e", "aorta_gpus_per_node=2", hosts="localhost", inventory="")
    assert spec["values"]["gpus_per_node"] == 2
    assert spec["hosts"] == [] or spec["hosts"][0]["name"] != "localhost"


def test_templates_and_their_errors(play: Play) -> None:
    play.write("group_vars/aorta.yml", "n: '4'\naorta_gpus_per_node: '{{ n }}'\naorta_base_config: 'c/{{ n }}.yaml'\n")
    spec = play.spec()
    assert (spec["values"]["gpus_per_node"], spec["values"]["base_config"]) == (4, "c/4.yaml")
    play.write("group_vars/aorta.yml", "aorta_gpus_per_node: '{{ nothing_here }}'\naorta_timeout_seconds: 1h\n")
    done = play.run("--tags", "config")
    assert done.returncode != 0
    assert "aorta_gpus_per_node: can't be templated" in done.stdout and "nothing_here" in done.stdout
    assert "aorta_timeout_seconds: not valid" in done.stdout


def test_hosts_that_disagree(play: Play) -> None:
    play.write("host_vars/n0.yml", "aorta_gpus_per_node: 4\n")
    play.write("host_vars/n2.yml", "aorta_gpus_per_node: 8\n")
    done = play.run("--tags", "config")
    assert done.returncode != 0
    assert "aorta_gpus_per_node: hosts disagree, given 4 for n0 and 8 for n2" in done.stdout


def test_an_unknown_variable_anywhere(play: Play) -> None:
    play.write("host_vars/n2.yml", "aorta_gpu_per_node: 4\n")
    done = play.run("--tags", "config")
    assert done.returncode != 0
    assert "aorta_gpu_per_node: unknown variable" in done.stdout and "aorta_gpus_per_node" in done.stdout


def test_check_mode_writes_nothing(play: Play) -> None:
    before = sorted(path.name for path in play.folder.iterdir())
    spec = play.spec("--check")
    assert spec["run_dir"].startswith(str(play.folder / "aorta-runs"))
    assert sorted({path.name for path in play.folder.iterdir()} - {"outcome.json", "play.yml"}) == before
    assert play.outcome()["changed"] is False


def test_run_directory(play: Play) -> None:
    spec = play.spec("-e", '{"aorta_output_dir": "out dir"}', "-e", "aorta_run_id=mine")
    written = json.loads((play.folder / "out dir" / "mine" / "spec.json").read_text(encoding="utf-8"))
    assert written == spec
    assert os.readlink(play.folder / "out dir" / "latest") == "mine"
    assert play.outcome()["changed"] is True


def test_a_run_needs_a_path_and_hosts(play: Play) -> None:
    done = play.run(hosts="localhost", inventory="localhost,")
    assert done.returncode != 0
    assert "aorta_path: not set" in done.stdout and "no host in group 'aorta'" in done.stdout
    done = play.run("--tags", "validate", hosts="localhost", inventory="localhost,")
    assert done.returncode == 0, done.stdout + done.stderr


def test_phases_by_argument(play: Play) -> None:
    spec = play.spec(task="        run_phases: [report, analyze]")
    assert spec["phases"] == ["config", "analyze", "report"]


@pytest.mark.skipif(
    not hasattr(ansible.parsing.vault, "VaultedValue"),
    reason="ansible-core 2.18 does not tell that a template's value came out of a vault",
)
def test_secrets_stay_hidden(play: Play) -> None:
    password = play.write("password", "letmein\n")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    vault = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-vault",
            "encrypt_string",
            "--vault-password-file",
            password,
            "swordfish",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    indented = vault.replace("\n", "\n  ")
    play.write(
        "group_vars/aorta.yml",
        f"from_vault: {indented}\n"
        "aorta_environment: {HF_TOKEN: hunter2, QUIET: '{{ from_vault }}', PLAIN: loud}\n",
    )
    arguments = ["--tags", "config", "--vault-password-file", "password", "-vvv"]
    done = play.run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    spec = play.outcome()["ansible_facts"]["aorta_run"]["spec"]
    assert spec["secrets"] == ["HF_TOKEN", "QUIET"]
    assert spec["container_env"]["PLAIN"] == "loud"
    everything = done.stdout + done.stderr + json.dumps(play.outcome())
    everything += "".join(path.read_text(encoding="utf-8") for path in play.folder.rglob("spec.json"))
    assert "hunter2" not in everything and "swordfish" not in everything
    runs = len(list((play.folder / "aorta-runs").iterdir()))
    done = play.run(*arguments, task="        reveal_secrets: true\n      no_log: true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert play.outcome()["secrets"] == {"HF_TOKEN": "hunter2", "QUIET": "swordfish"}
    assert "ansible_facts" not in play.outcome()
    assert "hunter2" not in done.stdout and "swordfish" not in done.stdout
    assert len(list((play.folder / "aorta-runs").iterdir())) == runs


def test_templates_of_the_project_are_valid_once_filled_in(play: Play) -> None:
    text = (ROOT / "inventories" / "cvs" / "cluster.json").read_text(encoding="utf-8")
    play.write(
        "cluster.json",
        text.replace("{xx.xx.xx.xx|hostname-", "{node-").replace("{node-1}", "n1").replace("{node-2}", "n2"),
    )
    spec = play.spec(
        "-e", f"aorta_config_file={ROOT / 'inventories/cvs/aorta_benchmark.yaml'}", inventory="cluster.json"
    )
    assert [host["name"] for host in spec["hosts"]] == ["n1", "n2"]
    assert spec["layers"]["docker.image"] == "config file"
    assert spec["values"]["aorta_path"].endswith("/aorta") and "{" not in spec["values"]["aorta_path"]
    template = str(ROOT / "inventories" / "cvs" / "cluster.json")
    done = play.run("--tags", "config", hosts="localhost:aorta", inventory=template)
    assert done.returncode != 0
    assert "placeholder left in" in done.stdout + done.stderr


@pytest.mark.parametrize("entry", ["local", "cluster"])
def test_inventories_of_the_project_are_valid(play: Play, entry: str) -> None:
    spec = play.spec("-e", f"aorta_output_dir={play.folder}/runs", inventory=str(ROOT / "inventories" / entry))
    assert len(spec["hosts"]) == 2
