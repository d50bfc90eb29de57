# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the variables of a group of hosts out of Ansible, with where each of them was set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleError
from ansible.parsing import vault
from ansible.utils.vars import load_extra_vars
from ansible.vars.plugins import get_vars_from_inventory_sources, get_vars_from_path
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import EXTRA_VARS, HostVariables
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import Path

# Facts of a host that matter besides the variables with the benchmark's prefix.
CONNECTION = ("ansible_host", "ansible_user", "vpc_ip")

# ansible-core 2.18 leaves the text of a template with an undefined variable in place; 2.19 raises an error.
TEMPLATES_STAY = not hasattr(vault, "VaultedValue")


@dataclass(frozen=True)
class Cluster:
    """The hosts of the group in its order, after --limit, and the host on which the task runs."""

    group: str
    hosts: tuple[HostVariables, ...]
    here: HostVariables


def plain(value: Any) -> Any:
    """C(value) without Ansible's tags: plain maps, lists, text, numbers; raises TypeError for other objects."""
    if value is None or isinstance(value, bool):
        return value
    if _is_encrypted(value):
        return str(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):  # an unquoted date in YAML
        return str(value.isoformat())
    raise TypeError(f"a value of type {type(value).__name__}")


def _is_encrypted(value: Any) -> bool:
    """Whether C(value) is the object that ansible-core 2.18 makes of C(!vault); its text is the decrypted one."""
    return bool(getattr(value, "__ENCRYPTED__", False))


def vaulted(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of the texts in C(value) that came out of a vault.

    ansible-core 2.19 and later records it for every text; 2.18 only where C(!vault) stands in the variable itself.
    """
    tag = getattr(vault, "VaultedValue", None)
    if _is_encrypted(value):
        yield path
    elif isinstance(value, str):
        if tag is not None and tag.is_tagged_on(value):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from vaulted(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from vaulted(item, (*path, index))


class _Sources:
    """Answers where a host's variable was set; group and host files are read once."""

    def __init__(self, inventory: Any, loader: Any) -> None:
        self._inventory, self._loader = inventory, loader
        self._extra = set(load_extra_vars(loader))
        self._files: dict[tuple[str, str], Mapping[str, Any]] = {}

    def __call__(self, host_name: str, variable: str) -> str:
        if variable in self._extra:
            return EXTRA_VARS
        host = self._inventory.get_host(host_name)
        if host is None:
            return "play"
        if self._has("host", host, variable):
            return "host"
        groups = host.get_groups()
        if any(self._has("group", group, variable) for group in groups if group.name != "all"):
            return "group"
        everyone = self._inventory.groups.get("all")
        if everyone is not None and self._has("group", everyone, variable):
            return "inventory"
        return "play"

    def _has(self, kind: str, entity: Any, variable: str) -> bool:
        if variable in entity.vars:
            return True
        key = (kind, entity.name)
        if key not in self._files:
            sources = self._inventory._sources  # the only place that knows them
            found = dict(get_vars_from_inventory_sources(self._loader, sources, [entity], "task"))
            found.update(get_vars_from_path(self._loader, self._loader.get_basedir(), [entity], "task"))
            self._files[key] = found
        return variable in self._files[key]


def read_cluster(
    task_vars: Mapping[str, Any], templar: Any, loader: Any, prefixes: Iterable[str], group_variable: str, group: str
) -> Cluster:
    """Read every variable with one of C(prefixes), and those in C(CONNECTION), for the hosts of the group.

    C(group) is the group's name unless the variable C(group_variable) says otherwise. Variables of the play (also
    those given to C(import_playbook)) apply to every host. What can't be templated is kept as a problem of the host.
    """
    hostvars = task_vars["hostvars"]
    inventory = hostvars._inventory  # no public way leads from an action to the limit and the groups
    begin = tuple(prefixes)
    source_of = _Sources(inventory, loader)
    here_name = str(task_vars["inventory_hostname"])
    here_raw = hostvars.raw_get(here_name)
    play = [
        name
        for name in task_vars
        if name.startswith(begin) and (name not in here_raw or not _same(here_raw[name], task_vars[name]))
    ]

    def read(name: str) -> HostVariables:
        view = hostvars[name]
        names = [key for key in view if str(key).startswith(begin) or key in CONNECTION]
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        problems: list[str] = []
        secret: set[Path] = set()
        for key in dict.fromkeys([*names, *play]):
            variable = str(key)
            try:
                value = templar.template(task_vars[key]) if key in play else view[key]
                values[variable] = plain(value)
                if TEMPLATES_STAY and (left := next(_templates(values[variable]), None)):
                    raise AnsibleError(f"undefined variable in {left}")
            except AnsibleError as exc:
                problems.append(f"{variable}: can't be templated ({' '.join(str(exc).split())})")
                values.pop(variable, None)
                continue
            except TypeError as exc:
                problems.append(f"{variable}: not plain data ({exc}), expected maps, lists, text and numbers")
                continue
            sources[variable] = "play" if key in play else source_of(name, variable)
            secret.update((variable, *path) for path in vaulted(value))
        return HostVariables(name, values, sources, tuple(problems), frozenset(secret))

    here = read(here_name)
    group = str(here.values.get(group_variable) or group)
    members = inventory.get_hosts(group, ignore_restrictions=True) if group in inventory.groups else []
    return Cluster(group, tuple(here if host.name == here_name else read(host.name) for host in members), here)


def _templates(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if "{{" in value:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _templates(item)
    elif isinstance(value, list):
        for item in value:
            yield from _templates(item)


def _same(left: Any, right: Any) -> bool:
    return left is right or bool(left == right)


__all__ = ["CONNECTION", "Cluster", "plain", "read_cluster", "vaulted"]
