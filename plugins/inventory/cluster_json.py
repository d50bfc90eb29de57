# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_json
short_description: Hosts from a cluster.json of ROCm CVS
version_added: 0.1.0
author:
  - The aorta.automation maintainers (@aorta-automation)
description:
  - Reads the C(cluster.json) that ROCm's Cluster Validation Suite uses, unchanged, so that C(-i cluster.json) works.
  - A file with the suffix C(.json) and a key C(node_dict) is taken for one, whatever its name.
  - The hosts of C(node_dict) form the group C(aorta); their order in the file is the node rank.
  - Each host gets C(ansible_host), C(ansible_user) and C(ansible_ssh_private_key_file) from its key, C(username) and
    C(priv_key_file), and C(vpc_ip), C(bmc_ip) and C(rack_id) where they are given (C(NA) counts as not given).
  - C(env_vars) becomes the group's variable C(aorta_cluster_env), which the benchmark's processes get; settings in
    C(aorta_environment) go before it. C(head_node_dict) becomes C(aorta_head_node).
  - Keys that begin with C(_) are comments at every level. C({user-id}) is the user who runs Ansible. Other
    placeholders and keys that are given twice are errors, all of them in one message.
  - The private key's file need not exist when the inventory is read.
notes:
  - Must be enabled, before the plugin P(ansible.builtin.yaml#inventory), which would accept the file and find no host
    in it.
  - Ansible tries the next plugin when one fails. So that a broken file can't pass as an empty inventory, the error is
    also left in the variable C(aorta_inventory_error), which M(aorta.automation.validate_config) reports.
"""

EXAMPLES = r"""
# ansible.cfg
# [inventory]
# enable_plugins = aorta.automation.cluster_json, host_list, script, auto, yaml, ini, toml
#
# cluster.json, used as: ansible-playbook aorta.automation.aorta -i cluster.json
{
  "username": "{user-id}",
  "priv_key_file": "/home/{user-id}/.ssh/id_ed25519",
  "head_node_dict": {"mgmt_ip": "192.0.2.11"},
  "env_vars": {},
  "node_dict": {
    "192.0.2.11": {"bmc_ip": "NA", "vpc_ip": "198.51.100.11"},
    "192.0.2.12": {"bmc_ip": "NA", "vpc_ip": "198.51.100.12"}
  }
}
"""

import json
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseFileInventoryPlugin
from ansible_collections.aorta.automation.plugins.plugin_utils._cluster import ClusterFileError, read_cluster_file

GROUP = "aorta"


class InventoryModule(BaseFileInventoryPlugin):
    NAME = "aorta.automation.cluster_json"

    # As for every inventory file: the text is the user's own. (Templates in it are refused all the same.)
    trusted_by_default = True

    def verify_file(self, path: str) -> bool:
        if not super().verify_file(path) or Path(path).suffix.lower() != ".json":
            return False
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        if not re.search(r'"node_dict"\s*:', text):
            return False
        try:
            data = json.loads(text)
        except ValueError:
            return True  # damaged, but meant for us: parse() says where
        return isinstance(data, dict) and "node_dict" in data

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        try:
            cluster = read_cluster_file(Path(path))
        except ClusterFileError as exc:
            message = str(exc)
            inventory.set_variable("all", "aorta_inventory_error", message)
            self.display.error(message, wrap_text=False)
            raise AnsibleParserError(message) from None
        for message in cluster.warnings:
            self.display.warning(message)
        inventory.add_group(GROUP)
        for name, value in cluster.variables.items():
            inventory.set_variable(GROUP, name, value)
        for host, variables in cluster.hosts.items():
            inventory.add_host(host, group=GROUP)
            for name, value in variables.items():
                inventory.set_variable(host, name, value)
