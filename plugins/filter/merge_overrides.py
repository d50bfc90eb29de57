# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: merge_overrides
short_description: Apply Aorta's dotted overrides to a configuration
version_added: 0.1.0
author:
  - The aorta.automation maintainers (@aorta-automation)
description:
  - Gives the configuration that Aorta's C(train.py) has in the end when it is started with C(--override), so that
    overrides also work through a launch script that only takes a configuration file.
  - Values are converted as Aorta converts them, that is C(true)/C(false), whole numbers, decimal numbers,
    C([a, b]) lists, else text.
positional: _overrides
options:
  _input:
    description: The configuration.
    type: dict
    required: true
  _overrides:
    description: Assignments C(dotted.key=value).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show the effective configuration
  ansible.builtin.debug:
    msg: "{{ {'training': {'max_steps': 12}} | aorta.automation.merge_overrides(['training.max_steps=50']) }}"
"""

RETURN = r"""
_value:
  description: A new configuration; the input is left as it is.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def convert(text: str) -> Any:
    """A value as Aorta's C(utils/config.py) converts the text of an override."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [item.strip() for item in inner.split(",")] if inner else []
    return text


def merge_overrides(config: Any, overrides: list[str]) -> dict[str, Any]:
    """A copy of C(config) with all C(overrides) applied. Raises AnsibleFilterError on what is not an assignment."""
    if not isinstance(config, Mapping):
        raise AnsibleFilterError(f"merge_overrides: the configuration is no mapping but {type(config).__name__}")
    merged = _copy(config)
    for override in map(str, overrides):
        key, equals, text = override.partition("=")
        if not equals:
            raise AnsibleFilterError(f"merge_overrides: {override!r} is no assignment key=value")
        *parents, last = key.split(".")
        target = merged
        for part in parents:
            if not isinstance(target.get(part), dict):
                target[part] = {}
            target = target[part]
        target[last] = convert(text)
    return merged


def _copy(config: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _copy(value) if isinstance(value, Mapping) else value for key, value in config.items()}


class FilterModule:
    """Entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"merge_overrides": merge_overrides}
