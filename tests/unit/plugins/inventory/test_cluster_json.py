# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CVS's cluster.json as an inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleParserError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible_collections.aorta.automation.plugins.inventory.cluster_json import InventoryModule
from ansible_collections.aorta.automation.plugins.plugin_utils._cluster import ClusterFileError, read_cluster_file

NODE = {"bmc_ip": "NA", "vpc_ip": "198.51.100.1"}
MINIMAL: dict[str, Any] = {"username": "bob", "priv_key_file": "/k", "node_dict": {"n1": NODE}}


def cluster_file(tmp_path: Path, data: Any, name: str = "cluster.json") -> Path:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_hosts_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "alice")
    data = {
        "_comment": {"node_dict": {"no": {}}},
        "username": "{user-id}",
        "priv_key_file": "/home/{user-id}/.ssh/id",
        "head_node_dict": {"mgmt_ip": "n10", "_why": "x"},
        "env_vars": {"A": "1", "B": 2, "EMPTY": "", "_note": "x"},
        "home_mount_dir_name": "shared",
        "orchestrator": "container",
        "container": {"image": "{xx.xx|anything}"},
        "node_dict": {
            "n10": {"bmc_ip": "192.0.2.9", "vpc_ip": "198.51.100.1", "rack_id": "r1"},
            "n9": {"bmc_ip": "NA", "vpc_ip": "NA", "_note": {"a": 1}},
        },
    }
    cluster = read_cluster_file(cluster_file(tmp_path, data))
    shared = {"ansible_user": "alice", "ansible_ssh_private_key_file": "/home/alice/.ssh/id"}
    assert cluster.hosts == {
        "n10": {"ansible_host": "n10", **shared, "vpc_ip": "198.51.100.1", "bmc_ip": "192.0.2.9", "rack_id": "r1"},
        "n9": {"ansible_host": "n9", **shared},
    }
    assert list(cluster.hosts) == ["n10", "n9"]
    assert cluster.variables == {
        "aorta_cluster_env": {"A": "1", "B": "2", "EMPTY": ""},
        "aorta_head_node": "n10",
        "aorta_home_mount_dir_name": "shared",
    }
    assert cluster.warnings == []


def test_unknown_keys_are_a_warning(tmp_path: Path) -> None:
    cluster = read_cluster_file(cluster_file(tmp_path, {**MINIMAL, "nodes": 1}))
    assert len(cluster.warnings) == 1 and "nodes" in cluster.warnings[0]


@pytest.mark.parametrize(
    ("data", "mentions"),
    [
        ('{"node_dict": {"a": {}, "a": {}, "a": {}}}', ['node_dict: key "a" is given 3 times']),
        ('{"node_dict": {"a": {"vpc_ip": "1", "vpc_ip": "2"}}}', ['node_dict.a: key "vpc_ip" is given twice']),
        ('{"node_dict": {"a": {}}, "env_vars": {}, "env_vars": {}}', ['the file: key "env_vars" is given twice']),
        ("{", ["not valid JSON: line 1, column 2"]),
        ("[]", ["given a list, expected a map with node_dict"]),
        ({"node_dict": {}}, ["node_dict: not valid"]),
        ({"node_dict": {"a": "b"}}, ["node_dict.a: not valid"]),
        ({"node_dict": {"a b": {}}}, ['node_dict: not a host, given "a b"']),
        ({**MINIMAL, "username": True}, ["username: not text"]),
        ({**MINIMAL, "env_vars": []}, ["env_vars: not valid"]),
        (
            {**MINIMAL, "env_vars": {"HF_TOKEN": ["hunter2"]}},
            ["env_vars.HF_TOKEN: not text, given a value that is not"],
        ),
        ({**MINIMAL, "username": "<changeme>"}, ["username: placeholder left in"]),
        ({**MINIMAL, "username": "{{ username }}"}, ["username: placeholder left in"]),
        (
            {"username": "{name|id}", "node_dict": {"{xx.xx.xx.xx|hostname}": {"vpc_ip": "{xx.xx.xx.xx|hostname}"}}},
            [
                "username: placeholder left in",
                "node_dict.{xx.xx.xx.xx|hostname}: placeholder left in",
                "node_dict.{xx.xx.xx.xx|hostname}.vpc_ip: placeholder left in",
            ],
        ),
    ],
)
def test_refused_in_one_line(tmp_path: Path, data: Any, mentions: list[str]) -> None:
    path = cluster_file(tmp_path, data)
    with pytest.raises(ClusterFileError) as caught:
        read_cluster_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert message.count("; ") == len(mentions) - 1
    for words in mentions:
        assert words in message


def test_comments_may_repeat(tmp_path: Path) -> None:
    text = '{"_c": 1, "_c": 2, "node_dict": {"a": {"_n": 1, "_n": 2}}, "_x": {"k": 1, "k": 2}}'
    assert list(read_cluster_file(cluster_file(tmp_path, text)).hosts) == ["a"]


@pytest.mark.parametrize(
    ("name", "text", "ours"),
    [
        ("cluster.json", '{"node_dict": {}}', True),
        ("any name.JSON", '{ "x": 1, "node_dict" : {', True),
        ("hosts.json", '{"all": {"hosts": {"node_dict": 1}}', True),
        ("hosts.json", '{"all": {"hosts": {"node_dict": 1}}}', False),
        ("hosts.json", '{"all": {"hosts": {"a": null}}}', False),
        ("cluster.yml", '{"node_dict": {}}', False),
    ],
)
def test_which_files_are_taken(tmp_path: Path, name: str, text: str, ours: bool) -> None:
    assert InventoryModule().verify_file(str(cluster_file(tmp_path, text, name))) is ours


def test_a_broken_file_leaves_its_error_in_the_inventory(tmp_path: Path) -> None:
    """Ansible goes on to the next plugin, which may accept the file: the check of the configuration must know."""
    inventory = InventoryManager(loader=DataLoader(), sources=[])._inventory
    plugin = InventoryModule()
    path = cluster_file(tmp_path, {"node_dict": {}})
    with pytest.raises(AnsibleParserError, match="node_dict"):
        plugin.parse(inventory, DataLoader(), str(path))
    assert "node_dict" in inventory.groups["all"].vars["aorta_inventory_error"]


def test_group_keeps_the_order(tmp_path: Path) -> None:
    names = ["n10", "n2", "n1"]
    inventory = InventoryManager(loader=DataLoader(), sources=[])._inventory
    InventoryModule().parse(
        inventory, DataLoader(), str(cluster_file(tmp_path, {**MINIMAL, "node_dict": dict.fromkeys(names, NODE)}))
    )
    assert [host.name for host in inventory.groups["aorta"].hosts] == names
    assert inventory.hosts["n2"].vars["vpc_ip"] == "198.51.100.1"
