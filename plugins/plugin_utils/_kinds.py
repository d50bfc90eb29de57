# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Strict conversion of single settings, and the one text that says what each of them expects.

A C(Kind) converts what a person, an AWX survey or C(-e) gave into the plain value of a setting, or raises
C(Wrong). Its C(expected) text serves the error messages and the reference documentation alike.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import BOOLEANS_FALSE, BOOLEANS_TRUE
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import Path, ReadError, read_yaml

SECRET_NAME = re.compile(r"TOKEN(?!IZ|S)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_KEY", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds something that must not be shown."""
    return SECRET_NAME.search(name) is not None


def show(value: Any) -> str:
    """A given value as an error message shows it, cut to a line."""
    if isinstance(value, bool):
        return f"the boolean {'true' if value else 'false'}"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


class Wrong(ValueError):
    """One setting that can't be used; C(at) is its path below the field that is being converted."""

    def __init__(
        self, given: Any, expected: str, problem: str = "not valid", at: Path = (), hidden: bool = False
    ) -> None:
        super().__init__(problem)
        self.given, self.expected, self.problem, self.at, self.hidden = given, expected, problem, at, hidden

    def text(self, name: str) -> str:
        """C(what is wrong, what was given, what is expected), the value left out where C(name) is a secret's."""
        given = "a value that is not shown" if self.hidden or is_secret(name) else show(self.given)
        return f"{self.problem}, given {given}, expected {self.expected}"


class Wrongs(ValueError):
    """Several of them, from a map whose entries are checked one by one."""

    def __init__(self, items: list[Wrong]) -> None:
        super().__init__(f"{len(items)} problems")
        self.items = items


class Kind:
    """A conversion with a name: call it with what was given; raises Wrong or Wrongs."""

    def __init__(self, expected: str, convert: Callable[[Any], Any]) -> None:
        self.expected, self._convert = expected, convert

    def __call__(self, value: Any) -> Any:
        try:
            return self._convert(value)
        except (Wrong, Wrongs):
            raise
        except (TypeError, ValueError) as exc:
            problem = "a boolean where text or a number is meant" if isinstance(value, bool) else "not valid"
            raise Wrong(value, self.expected, problem) from exc

    def or_null(self) -> Kind:
        """The same, or nothing: null, an empty text (a survey's unanswered question) or the text C(null)."""

        def convert(value: Any) -> Any:
            return None if value is None or value in ("", "null") else self(value)

        return Kind(f"{self.expected}, or null", convert)


class FreeMap(Kind):
    """A map whose keys are the user's: layers merge key by key, null removes a key that a lower layer set."""


# --- numbers and switches -----------------------------------------------------------------------


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def _within(number: Any, low: float | None, high: float | None) -> Any:
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError
    return number


def integer(low: int | None = None, high: int | None = None) -> Kind:
    """A whole number; text of decimal digits is converted, a boolean or a fraction is not."""

    def convert(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError
        return int(_within(value, low, high))

    return Kind(f"an integer{_bounds(low, high)}", convert)


def number(low: float | None = None, high: float | None = None) -> Kind:
    """A finite number; decimal text is converted, a boolean is not."""

    def convert(value: Any) -> float:
        if isinstance(value, str) and re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", value.strip()):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TypeError
        return float(_within(value, low, high))

    return Kind(f"a number{_bounds(low, high)}", convert)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in BOOLEANS_TRUE or word in BOOLEANS_FALSE:
            return word in BOOLEANS_TRUE
    raise TypeError


BOOLEAN = Kind("a boolean (true, false, or the text yes, no, on, off, 1, 0)", _boolean)


# --- text ---------------------------------------------------------------------------------------


def plain_text(value: Any) -> str:
    """Text without NUL and line breaks; anything else raises TypeError (never a silent C(str()))."""
    if not isinstance(value, str) or any(sign in value for sign in "\0\r\n"):
        raise TypeError
    return value


def text(pattern: str, expected: str, numbers: bool = False) -> Kind:
    """Text that C(pattern) matches as a whole; with C(numbers) an integer is taken as its digits."""
    compiled = re.compile(pattern)

    def convert(value: Any) -> str:
        if numbers and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not compiled.fullmatch(plain_text(value)):
            raise ValueError
        return str(value)

    return Kind(expected, convert)


def choice(*words: str) -> Kind:
    """One of C(words)."""
    return text("|".join(re.escape(word) for word in words), f"one of {', '.join(words)}")


def _safe_path(value: Any, absolute: bool, root: bool = True) -> str:
    path = plain_text(value)
    if not path or path.startswith("/") is not absolute or ".." in path.split("/"):
        raise ValueError
    if not root and not path.strip("/"):
        raise ValueError
    return "/" + posixpath.normpath(path).lstrip("/") if absolute else posixpath.normpath(path)


ABSOLUTE_PATH = Kind("an absolute path without '..'", lambda value: _safe_path(value, absolute=True))
MOUNT_PATH = Kind(
    "an absolute path without '..', not / itself", lambda value: _safe_path(value, absolute=True, root=False)
)
RELATIVE_PATH = Kind(
    "a relative path that does not leave its directory with '..'", lambda value: _safe_path(value, absolute=False)
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([bkmgtp])(?:i?b)?)?", re.IGNORECASE)


def _size(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _SIZE.fullmatch(plain_text(value).strip())
    if match is None or float(match[1]) <= 0 or ("." in match[1] and not match[2]):
        raise ValueError
    return f"{match[1]}{(match[2] or '').upper()}"


SIZE = Kind("a size above 0 such as 17G (B, K, M, G, T or P, powers of 1024; a bare number is bytes)", _size)

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
IMAGE = text(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
    r"|sha256:[0-9a-f]{64}",
    "an image reference such as registry.example/team/aorta:1.2 or name@sha256:...",
)
CONTAINER_NAME = text("[a-zA-Z0-9][a-zA-Z0-9_.-]+", "a container name: letters, digits, '_', '.', '-', at least two")
HOST_NAME = text(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9a-fA-F:]*:[0-9a-fA-F:.]*", "a host name or an address")
GIT_VERSION = text(r"(?!.*\.\.)[A-Za-z0-9_][\w./@+-]*", "a branch, tag or commit")


def _git_url(value: Any) -> str:
    url = plain_text(value)
    if re.match(r"https?://[^/]*@|[a-z+]+://[^/@]*:[^/]*@", url):
        raise Wrong(
            value,
            "a URL without user or password (use a git credential helper or ssh)",
            "a URL with credentials, which every log would show",
            hidden=True,
        )
    if not re.fullmatch(r"(?:https?|ssh|git|file)://\S+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:\S+|/\S+", url):
        raise ValueError
    return url


GIT_URL = Kind("a git URL (https://, ssh://, git://, file://, user@host:path) or an absolute path", _git_url)


# --- lists and maps -----------------------------------------------------------------------------


def structure(value: Any) -> Any:
    """A map or list that came as text (from a survey or C(-e name='{...}')) read as YAML; else C(value) itself."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            parsed, problems = read_yaml(value)
        except ReadError as exc:
            raise Wrong(value, "a map or list in YAML or JSON", str(exc)) from exc
        if problems:
            raise Wrong(value, "each key once", problems[0])
        return parsed
    return value


def list_of(item: Kind) -> Kind:
    """A list in which every entry is C(item)."""

    def convert(value: Any) -> list[Any]:
        entries = structure(value)
        if not isinstance(entries, list):
            raise TypeError
        converted, wrong = [], []
        for index, entry in enumerate(entries):
            try:
                converted.append(item(entry))
            except Wrong as exc:
                exc.at = (index, *exc.at)
                wrong.append(exc)
        if wrong:
            raise Wrongs(wrong)
        return converted

    return Kind(f"a list, each entry {item.expected}", convert)


def free_map(expected: str, entry: Callable[[str, Any], Any], flatten: bool = False) -> FreeMap:
    """A map converted entry by entry with C(entry(key, value)); null stays null and means "remove".

    With C(flatten) nested maps become dotted keys: C({a: {b: 1}}) is C({"a.b": 1}).
    """

    def convert(value: Any) -> dict[str, Any]:
        entries = {} if value is None else structure(value)
        if not isinstance(entries, Mapping):
            raise Wrong(value, expected)
        converted: dict[str, Any] = {}
        wrong: list[Wrong] = []

        def take(items: Mapping[Any, Any], keys: tuple[str, ...]) -> None:
            for key, item in items.items():
                path = (*keys, key)
                if flatten and isinstance(item, Mapping):
                    take(item, path)
                    continue
                try:
                    if not isinstance(key, str):
                        raise Wrong(key, "a quoted key", "a key that is not text")
                    name = ".".join(path)
                    if name in converted:
                        raise Wrong(item, "each key once", "given twice, dotted and nested")
                    converted[name] = None if item is None else entry(name, item)
                except Wrong as exc:
                    exc.at = (*path, *exc.at)
                    wrong.append(exc)

        take(entries, ())
        if wrong:
            raise Wrongs(wrong)
        return converted

    return FreeMap(expected, convert)


def _words(value: Any) -> list[str]:
    if isinstance(value, str) and not value.strip().startswith("["):
        words = shlex.split(plain_text(value))
    else:
        words = list_of(text(".+", "text"))(value)
    if not words:
        raise ValueError
    return words


COMMAND = Kind('a command: text such as "python3 -m torch.distributed.run", or a list of its words', _words)


__all__ = [
    "ABSOLUTE_PATH",
    "BOOLEAN",
    "COMMAND",
    "CONTAINER_NAME",
    "GIT_URL",
    "GIT_VERSION",
    "HOST_NAME",
    "IMAGE",
    "MOUNT_PATH",
    "RELATIVE_PATH",
    "SECRET_NAME",
    "SIZE",
    "FreeMap",
    "Kind",
    "Wrong",
    "Wrongs",
    "choice",
    "free_map",
    "integer",
    "is_secret",
    "list_of",
    "number",
    "plain_text",
    "show",
    "structure",
    "text",
]
