# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a C(cluster.json) of ROCm CVS into hosts and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._kinds import is_secret, show
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import (
    ReadError,
    dotted,
    left_over,
    login_user,
    read_json_text,
    substitute,
    times,
)

# Keys of CVS that say nothing to us: its own container backend and its racks.
_NOT_USED = frozenset({"orchestrator", "container", "racks", "rack_groups"})
_USED = frozenset(
    {
        "username",
        "priv_key_file",
        "password",
        "node_dict",
        "head_node_dict",
        "env_vars",
        "home_mount_dir_name",
        "node_dir_name",
    }
)
_NODE_KEYS = ("vpc_ip", "bmc_ip", "rack_id")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")


class ClusterFileError(ValueError):
    """The file can't be used; the message is one line with all that is wrong."""


@dataclass
class Cluster:
    """Hosts with their variables, in the file's order, and the variables of all of them."""

    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_cluster_file(path: Path) -> Cluster:
    """Read and check a cluster.json. Raises ClusterFileError naming the file and every problem."""
    try:
        data, duplicates = read_json_text(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise ClusterFileError(f"{path}: can't be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise ClusterFileError(f"{path}: not UTF-8 at byte {exc.start}") from exc
    except ReadError as exc:
        raise ClusterFileError(f"{path}: {exc}") from exc

    problems: list[str] = []
    for at, count in duplicates:
        if not any(str(part).startswith("_") for part in at):
            within = dotted(at[:-1]) or "the file"
            problems.append(f"{within}: key {show(at[-1])} is given {times(count)}, expected once")
    cluster = Cluster()
    if isinstance(data, Mapping):
        data = substitute(_without_comments(data), {"{user-id}": login_user()})
        used = {key: value for key, value in data.items() if key not in _NOT_USED}
        problems += [
            f"{dotted(at)}: placeholder left in, given {show(found)}, expected a value in its place"
            for at, found in (*left_over(used), *_templates(used))
        ]
        _read(data, cluster, problems)
    else:
        problems.append(f"not a cluster file, given {show(data)}, expected a map with node_dict")
    if problems:
        raise ClusterFileError(f"{path}: " + "; ".join(dict.fromkeys(problems)))
    cluster.warnings = [f"{path}: {line}" for line in cluster.warnings]
    return cluster


def _templates(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is left of CVS's own template for this file: C({{ username }}), C({% for ... %})."""
    if isinstance(value, str):
        if match := re.search(r"\{[{%#].*", value):
            yield path, match[0]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _templates(key, path)
            yield from _templates(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _templates(item, (*path, index))


def _read(data: Mapping[str, Any], cluster: Cluster, problems: list[str]) -> None:
    for key in data:
        if key not in _USED and key not in _NOT_USED:
            cluster.warnings.append(f"{key} is not a key of a cluster.json that is known here; it is ignored")
    shared: dict[str, str] = {}
    for key, variable in (
        ("username", "ansible_user"),
        ("priv_key_file", "ansible_ssh_private_key_file"),
        ("password", "ansible_password"),
    ):
        if text := _text(data, key, (), problems):
            shared[variable] = text
    nodes = data.get("node_dict")
    if not isinstance(nodes, Mapping) or not nodes:
        problems.append(f"node_dict: not valid, given {show(nodes)}, expected a map with at least one node")
        nodes = {}
    for name, node in nodes.items():
        if "{" in name or "<" in name:
            continue  # a placeholder, reported already
        if not _NAME.fullmatch(name):
            problems.append(f"node_dict: not a host, given {show(name)}, expected a name or an address")
        elif not isinstance(node, Mapping):
            problems.append(f"{dotted(('node_dict', name))}: not valid, given {show(node)}, expected a map with vpc_ip")
        else:
            own = {key: text for key in _NODE_KEYS if (text := _text(node, key, ("node_dict", name), problems))}
            cluster.hosts[name] = {"ansible_host": name, **shared, **own}

    environment = data.get("env_vars")
    if environment is not None and not isinstance(environment, Mapping):
        problems.append(f"env_vars: not valid, given {show(environment)}, expected a map of names to text")
    elif environment:
        checked = {name: _text(environment, name, ("env_vars",), problems, empty=True) for name in environment}
        cluster.variables["aorta_cluster_env"] = {name: text for name, text in checked.items() if text is not None}
    head = data.get("head_node_dict")
    if isinstance(head, Mapping) and (address := _text(head, "mgmt_ip", ("head_node_dict",), problems)):
        cluster.variables["aorta_head_node"] = address
    elif head is not None and not isinstance(head, Mapping):
        problems.append(f"head_node_dict: not valid, given {show(head)}, expected a map with mgmt_ip")
    for key in ("home_mount_dir_name", "node_dir_name"):
        if text := _text(data, key, (), problems):
            cluster.variables[f"aorta_{key}"] = text


def _text(
    data: Mapping[str, Any], key: str, within: tuple[str, ...], problems: list[str], empty: bool = False
) -> str | None:
    """The text at C(key), or None where it is absent, null, C(NA) or (unless C(empty)) empty."""
    value = data.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None:
        return None
    if not isinstance(value, str):
        given = "a value that is not shown" if is_secret(key) else show(value)
        problems.append(f"{dotted((*within, key))}: not text, given {given}, expected quoted text")
        return None
    if not empty and value in ("", "NA"):
        return None
    return value


def _without_comments(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_comments(item) for key, item in value.items() if not key.startswith("_")}
    if isinstance(value, list):
        return [_without_comments(item) for item in value]
    return value


__all__ = ["Cluster", "ClusterFileError", "read_cluster_file"]
