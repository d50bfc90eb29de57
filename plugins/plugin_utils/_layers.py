# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers of configuration: read, checked one by one, merged, with the source of every value.

A layer is a partial map in the form of the model. Each is checked by itself, so that an error is named after the
place where the user wrote it, also when a later layer would hide it; what can't be used is left out and the rest is
checked further, so that one pass finds all errors.
"""

from __future__ import annotations

import difflib
import shlex
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._deps import BaseModel, ValidationError
from ansible_collections.aorta.automation.plugins.plugin_utils._kinds import (
    FreeMap,
    Kind,
    Wrong,
    Wrongs,
    is_secret,
    show,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import (
    Path,
    ReadError,
    dotted,
    left_over,
    read_json_text,
    read_yaml,
    substitute,
    times,
)

MODEL_DEFAULT = "model default"
CONFIG_FILE = "config file"
EXTRA_VARS = "extra vars"
ASSIGNMENTS = "aorta_set"


class ConfigError(ValueError):
    """The configuration can't be used; C(problems) has one line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__(f"The configuration is not valid ({count}):\n" + "\n".join(f"- {line}" for line in problems))


@dataclass
class Layer:
    """Partial configuration from one place.

    C(source) is what the report calls it, C(locate) turns a path into the name the user knows it by.
    """

    source: str
    values: Any
    locate: Callable[[Path], str]


@dataclass
class Resolved:
    """The merged, valid configuration.

    C(sources) has the layer of every leaf that was set, C(names) what its user calls it, both by path;
    C(rejected) are the paths of what was left out as wrong.
    """

    config: Any
    sources: dict[Path, str]
    names: dict[Path, str]
    rejected: set[Path]

    def layers(self) -> dict[str, str]:
        """Dotted path → source, for every leaf."""
        return {dotted(path): self.sources.get(path, MODEL_DEFAULT) for path, _value in leaves(self.values())}

    def values(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return dict(self.config.model_dump())


def leaves(values: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Path and value of everything below C(values) that is not itself a map with entries."""
    if isinstance(values, Mapping) and (values or not path):
        for key, item in values.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, values


# --- the model's shape --------------------------------------------------------------------------


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def kind_of(info: Any) -> Kind | None:
    """The conversion of a field (as in C(model_fields)), if it has one."""
    for entry in info.metadata:
        if isinstance(found := getattr(entry, "func", None), Kind):
            return found
    return None


def free_maps(model: Any, path: Path = ()) -> set[Path]:
    """Paths of the maps whose keys are the user's."""
    found: set[Path] = set()
    for name, info in model.model_fields.items():
        if section := section_of(info.annotation):
            found |= free_maps(section, (*path, name))
        elif isinstance(kind_of(info), FreeMap):
            found.add((*path, name))
    return found


def nest(model: Any, key: str, value: Any) -> dict[str, Any]:
    """C(a.b.c) and a value as C({a: {b: {c: value}}}); below a map of the user's own keys the rest is one key."""
    name, _dot, rest = key.partition(".")
    info = model.model_fields.get(name)
    if not rest:
        return {name: value}
    if info is None:
        return {name: value}
    if section := section_of(info.annotation):
        return {name: nest(section, rest, value)}
    if isinstance(kind_of(info), FreeMap):
        return {name: {rest: value}}
    entry, _dot, below = rest.partition(".")
    arguments = typing.get_args(info.annotation)
    if below and typing.get_origin(info.annotation) is dict and (section := section_of(arguments[1])):
        return {name: {entry: nest(section, below, value)}}
    return {name: {rest: value}}


# --- checking one layer -------------------------------------------------------------------------


def check(model: Any, values: Any) -> tuple[dict[str, Any], list[tuple[Path, str]]]:
    """Convert a partial map by C(model); returns what is usable, and path and message of each problem."""
    problems: list[tuple[Path, str]] = []
    while True:
        try:
            return model.model_validate(values).model_dump(exclude_unset=True), problems
        except ValidationError as exc:
            found = [problem for error in exc.errors(include_url=False) for problem in _problems(model, error)]
        problems += found
        rest = _without(values, [path for path, _message in found])
        if rest == values:
            # The conversion renamed keys on the way to the problem: leave the whole top-level setting out.
            whole = {path[0] for path, _message in found if path}
            rest = {key: item for key, item in values.items() if key not in whole} if whole else {}
        values = rest


def _problems(model: Any, error: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    path: Path = tuple(error["loc"])
    reason = error.get("ctx", {}).get("error")
    name = str(path[-1]) if path else ""
    if isinstance(reason, Wrongs):
        for item in reason.items:
            below = str(item.at[-1]) if item.at else name
            yield (*path, *item.at), item.text(below)
    elif isinstance(reason, Wrong):
        yield (*path, *reason.at), reason.text(name)
    elif error["type"] == "extra_forbidden":
        yield path, unknown(name, error["input"], _siblings(model, path[:-1]))
    elif error["type"] == "list_type":
        yield path, Wrong(error["input"], "a list").text(name)
    elif error["type"] == "dict_type":
        yield path, Wrong(error["input"], "a map").text(name)
    else:
        yield path, Wrong(error["input"], "another type of value").text(name)


def unknown(name: str, given: Any, known: Iterable[str], what: str = "setting") -> str:
    """C(unknown setting, given ..., expected ...), with the most similar known name."""
    close = suggest(name, known)
    expected = f"{close} (did you mean that?)" if close else f"one of {', '.join(sorted(known))}"
    return Wrong(given, expected, f"unknown {what}").text(name)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like C(name), if any is much like it."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _siblings(model: Any, path: Path) -> list[str]:
    annotation: Any = model
    for part in path:
        if section := section_of(annotation):
            annotation = section.model_fields[str(part)].annotation
        else:
            annotation = typing.get_args(annotation)[-1]
    section = section_of(annotation)
    return list(section.model_fields) if section else []


def _without(values: Any, paths: Iterable[Path]) -> dict[str, Any]:
    """The map C(values) less what is at C(paths).

    A list or text on the way is left out as a whole: without one entry it would be another list.
    """

    def cut(node: Any, path: Path) -> Any:
        if not isinstance(node, Mapping) or not path:
            return None
        if path[0] not in node:
            return node
        inner = cut(node[path[0]], path[1:])
        rest = {key: item for key, item in node.items() if key != path[0]}
        return rest if inner is None else {**rest, path[0]: inner}

    for path in paths:
        values = cut(values, path)
        if values is None:
            return {}
    return dict(values)


# --- merging ------------------------------------------------------------------------------------


def resolve(model: Any, layers: Iterable[Layer]) -> tuple[Resolved, list[str]]:
    """Merge C(layers) (later ones win) over the defaults of C(model); returns the result and all problems.

    The result is whole also when there are problems: it lacks what was wrong.
    """
    free = free_maps(model)
    merged: dict[str, Any] = model().model_dump()
    sources: dict[Path, str] = {}
    names: dict[Path, str] = {}
    problems: list[str] = []
    rejected: set[Path] = set()
    for layer in layers:
        values = layer.values
        for path, found in left_over(values):
            message = Wrong(found, "a value in its place", "placeholder left in").text(found)
            problems.append(f"{layer.locate(path)}: {message}")
            values = _without(values, [path])
            rejected.add(path)
        usable, wrong = check(model, values)
        problems += [f"{layer.locate(path)}: {message}" for path, message in wrong]
        rejected.update(path for path, _message in wrong)
        for path in _merge(merged, usable, free):
            for table, entry in ((sources, layer.source), (names, layer.locate(path))):
                for stale in [known for known in table if known[: len(path)] == path]:
                    del table[stale]
                table[path] = entry
    return Resolved(model.model_validate(merged), sources, names, rejected), problems


def _merge(base: dict[str, Any], over: Mapping[str, Any], free: set[Path], path: Path = ()) -> Iterator[Path]:
    """Merge C(over) into C(base); yields the path of every leaf that it set."""
    for key, value in over.items():
        here = (*path, key)
        if value is None and path in free:
            base.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            yield from _merge(base[key], value, free, here)
        else:
            base[key] = value
            yield here


# --- where layers come from ---------------------------------------------------------------------


def read_config_file(path: FilePath, table: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """Read a configuration file in YAML or JSON and resolve its placeholders by C(table).

    Keys that begin with C(_) are comments, as everywhere in CVS. Returns the layer (empty when the file can't be
    read) and the problems found.
    """

    def locate(at: Path) -> str:
        return f"{path.name}: {dotted(at)}" if at else str(path)

    empty = Layer(CONFIG_FILE, {}, locate)
    problems: list[str] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            value, duplicates = read_json_text(text)
            problems += [
                f"{locate(at)}: given {times(count)} (duplicate key), expected once" for at, count in duplicates
            ]
        else:
            value, repeated = read_yaml(text)
            problems += [f"{path.name}: {line}" for line in repeated]
    except OSError as exc:
        return empty, [f"{path}: can't be read ({exc.strerror}), expected a file in YAML or JSON"]
    except UnicodeDecodeError as exc:
        return empty, [f"{path}: not UTF-8 at byte {exc.start}, expected a file in YAML or JSON"]
    except ReadError as exc:
        return empty, [f"{path}: {exc}"]
    if value is None:
        return empty, problems
    if not isinstance(value, Mapping):
        return empty, [*problems, f"{path}: not a configuration, given {show(value)}, expected a map of settings"]
    if problems:
        # What a duplicate key was meant to say is unknown: further complaints about the file would be guesses.
        return empty, problems
    return Layer(CONFIG_FILE, substitute(_without_comments(value), table), locate), problems


def _without_comments(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_comments(item)
            for key, item in value.items()
            if not (isinstance(key, str) and key.startswith("_"))
        }
    return value


def read_assignments(model: Any, given: Any, name: str = ASSIGNMENTS) -> tuple[list[Layer], list[str]]:
    """Read C(aorta_set): text C("a.b=1 c=2") with a shell's quoting, a list of such assignments, or a map.

    Each assignment becomes a layer of its own, so that the last for a path wins.
    """
    expected = "assignments such as docker.image=NAME training_overrides.training.max_steps=50"
    if given is None:
        return [], []
    if isinstance(given, str):
        try:
            given = shlex.split(given)
        except ValueError as exc:
            wrong = Wrong(given, expected, f"not readable ({exc})", hidden=is_secret(given))
            return [], [f"{name}: {wrong.text(name)}"]
    pairs: list[tuple[Any, Any]] = []
    problems = []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list):
        for entry in given:
            path, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
            if not equals or not path.strip():
                wrong = Wrong(entry, expected, "not an assignment", hidden=is_secret(str(entry)))
                problems.append(f"{name}: {wrong.text(name)}")
            else:
                pairs.append((path.strip(), value))
    else:
        problems.append(f"{name}: {Wrong(given, expected).text(name)}")
    layers = [
        Layer(ASSIGNMENTS, nest(model, str(path), value), lambda at: f"{name}: {dotted(at)}") for path, value in pairs
    ]
    return layers, problems


@dataclass(frozen=True)
class HostVariables:
    """The variables of one host as far as they matter here, already templated and plain.

    C(sources) says for each where it was set: C(inventory), C(group), C(host), C(play) or C(extra vars).
    C(problems) are those met while templating, C(vaulted) the paths of values that came out of a vault.
    """

    name: str
    values: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    vaulted: frozenset[Path] = frozenset()


def agree(views: Iterable[HostVariables], name: str) -> tuple[Any, str, list[str]]:
    """The value of a variable over all hosts that have it, its source, and a problem if they differ."""
    first: HostVariables | None = None
    for view in views:
        if name not in view.values:
            continue
        if first is None:
            first = view
        elif view.values[name] != first.values[name]:
            left, right = _difference(first.values[name], view.values[name], (name,))
            values = (
                f"different values (not shown) for {first.name} and {view.name}"
                if is_secret(left[0])
                else f"{show(left[1])} for {first.name} and {show(right[1])} for {view.name}"
            )
            problem = f"{left[0]}: hosts disagree, given {values}, expected one value for all of the group"
            return first.values[name], first.sources.get(name, "inventory"), [problem]
    if first is None:
        return None, "", []
    return first.values[name], first.sources.get(name, "inventory"), []


def _difference(left: Any, right: Any, path: Path) -> tuple[tuple[str, Any], tuple[str, Any]]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in [*left, *right]:
            if left.get(key) != right.get(key):
                return _difference(left.get(key), right.get(key), (*path, key))
    return (dotted(path), left), (dotted(path), right)


def variable_layer(name: str, field_name: str, value: Any, source: str) -> Layer:
    """A layer with one Ansible variable's value for one top-level field."""
    return Layer(source, {field_name: value}, lambda at: dotted((name, *at[1:])))


__all__ = [
    "ASSIGNMENTS",
    "CONFIG_FILE",
    "EXTRA_VARS",
    "MODEL_DEFAULT",
    "ConfigError",
    "HostVariables",
    "Layer",
    "Resolved",
    "agree",
    "check",
    "free_maps",
    "kind_of",
    "leaves",
    "nest",
    "read_assignments",
    "read_config_file",
    "resolve",
    "section_of",
    "suggest",
    "unknown",
    "variable_layer",
]
