# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading YAML and JSON that people wrote by hand: nothing is lost or guessed silently.

Duplicate keys are reported instead of keeping the last, numbers that a YAML 1.1 reader would change
(C(0777), C(1_000), C(1.10), dates) stay text, and CVS's placeholders are resolved or reported.
"""

from __future__ import annotations

import getpass
import json
import math
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """C(("a", "b", 0, "c")) as C(a.b[0].c)."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class ReadError(ValueError):
    """The text can't be read at all; the message says where and why, without the file's name."""


# --- YAML ---------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")


class _Loader(yaml.SafeLoader):
    """SafeLoader which leaves as text what it could only turn into a number by changing it."""


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int | str:
    text = str(loader.construct_scalar(node))
    return int(text) if _INTEGER.fullmatch(text) and len(text) < 4000 else text


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float | str:
    text = str(loader.construct_scalar(node))
    try:
        number = float(loader.construct_yaml_float(node))
    except (ValueError, OverflowError):
        return text
    return number if not math.isfinite(number) or repr(number) == text else text


def _construct_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _construct_text)


def _walk(node: yaml.Node, path: Path, problems: list[str], seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*path, index), problems, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "?"
                problems.append(
                    f"{dotted((*path, shown))}: key in line {line} is not text, given {shown}, expected a quoted key"
                )
            elif key.value in lines:
                problems.append(
                    f"{dotted((*path, key.value))}: given twice (duplicate key), "
                    f"in lines {lines[key.value]} and {line}, expected once"
                )
            else:
                lines[key.value] = line
            _walk(value, (*path, str(key.value)), problems, seen)


def read_yaml(text: str) -> tuple[Any, list[str]]:
    """Read one YAML document; returns the value and a line for each duplicate or non-text key.

    Raises ReadError when the text is not YAML, holds several documents or an unknown tag.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError as exc:  # a character that no YAML may hold
        raise ReadError(_yaml_reason(exc)) from exc
    try:
        node = loader.get_single_node()
        problems: list[str] = []
        if node is None:
            return None, problems
        _walk(node, (), problems, set())
        return loader.construct_document(node), problems
    except (yaml.YAMLError, RecursionError) as exc:
        raise ReadError(_yaml_reason(exc)) from exc
    finally:
        loader.dispose()


def _yaml_reason(exc: Exception) -> str:
    mark = getattr(exc, "problem_mark", None)
    if isinstance(exc, RecursionError):
        return "not valid YAML: nested too deeply"
    reason = getattr(exc, "problem", None) or " ".join(str(exc).split())
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"not valid YAML: {where}{reason}"


# --- JSON ---------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """An object as written, before duplicates are lost."""


def _reject_constant(name: str) -> Any:
    raise ReadError(f"not valid JSON: {name} is not a number of JSON")


def read_json_text(text: str) -> tuple[Any, list[tuple[Path, int]]]:
    """Read strict JSON; returns the value and the path of each key that is given more than once, with how often.

    Raises ReadError naming line and column when the text is damaged.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_reject_constant)
        duplicates: list[tuple[Path, int]] = []
        return _build(raw, (), duplicates), duplicates
    except json.JSONDecodeError as exc:
        raise ReadError(f"not valid JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}") from exc
    except RecursionError as exc:
        raise ReadError("not valid JSON: nested too deeply") from exc


def _build(raw: Any, path: Path, duplicates: list[tuple[Path, int]]) -> Any:
    if isinstance(raw, _Pairs):
        counts: dict[str, int] = {}
        built = {}
        for key, value in raw:
            counts[key] = counts.get(key, 0) + 1
            built[key] = _build(value, (*path, key), duplicates)
        duplicates += [((*path, key), count) for key, count in counts.items() if count > 1]
        return built
    if isinstance(raw, list):
        return [_build(item, (*path, index), duplicates) for index, item in enumerate(raw)]
    return raw


def times(count: int) -> str:
    """C(2) as C(twice), C(3) as C(3 times)."""
    return "twice" if count == 2 else f"{count} times"


# --- placeholders of CVS ------------------------------------------------------------------------

# {xx.xx.xx.xx|hostname}, {head-node-ip}, {hostname}, {run_dir}, <changeme>; not ${VAR}, {{ jinja }} or {"json": 1}
_LEFT_OVER = re.compile(
    r"(?<![${])\{(?:[^{}\s\"':,]*\|[^{}\"':,]*|xx\.[^{}\s]*|[A-Za-z]+(?:-[A-Za-z0-9]+)+"
    r"|user|home|hostname|username|ip|run_dir|gpu_type)\}(?!\})|<changeme>",
    re.IGNORECASE,
)


def login_user() -> str:
    """Name of the user who runs this, as CVS finds it: C(USER), C(LOGNAME), C(USERNAME), else the account."""
    for name in ("USER", "LOGNAME", "USERNAME"):
        if value := os.environ.get(name):
            return value
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "root"


def home_of(user: str) -> str:
    """Home directory of C(user): as this machine knows it, else the customary one."""
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return "/root" if user == "root" else f"/home/{user}"


def replacements(user: str, home_mount_dir: str = "home", node_dir: str = "root") -> dict[str, str]:
    """The placeholders which CVS resolves in a test's configuration."""
    return {
        "{user-id}": user,
        "{user}": user,
        "{home}": home_of(user),
        "{home-mount-dir}": home_mount_dir,
        "{node-dir-name}": node_dir,
    }


def substitute(value: Any, table: Mapping[str, str]) -> Any:
    """C(value) with each placeholder in C(table) replaced, in keys and values of any depth."""
    if isinstance(value, str):
        for placeholder, replacement in table.items():
            value = value.replace(placeholder, replacement)
        return value
    if isinstance(value, Mapping):
        return {substitute(key, table): substitute(item, table) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, table) for item in value]
    return value


def left_over(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Path and text of every placeholder that is still in C(value)."""
    if isinstance(value, str):
        for match in _LEFT_OVER.finditer(value):
            yield path, match[0]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            for _path, found in left_over(key):
                yield (*path, key), found
            yield from left_over(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from left_over(item, (*path, index))


__all__ = [
    "Path",
    "ReadError",
    "dotted",
    "home_of",
    "left_over",
    "login_user",
    "read_json_text",
    "read_yaml",
    "replacements",
    "substitute",
    "times",
]
