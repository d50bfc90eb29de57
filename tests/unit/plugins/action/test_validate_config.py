# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action's arguments and the module's documentation say the same."""

from __future__ import annotations

from typing import Any

import yaml
from ansible_collections.aorta.automation.plugins.action import validate_config as action
from ansible_collections.aorta.automation.plugins.modules import validate_config as documented
from ansible_collections.aorta.automation.plugins.plugin_utils._variables import plain


def test_documentation_has_the_arguments() -> None:
    options = yaml.safe_load(documented.DOCUMENTATION)["options"]
    assert set(options) == set(action.ARGUMENT_SPEC)
    for name, spec in action.ARGUMENT_SPEC.items():
        for key in ("type", "default", "choices", "elements"):
            assert options[name].get(key) == spec.get(key), (name, key)


def test_plain_takes_tags_off() -> None:
    class Text(str):
        pass

    class Number(int):
        pass

    given: Any = {Text("a"): [Text("b"), Number(1), 1.5, None, True]}
    found = plain(given)
    assert found == {"a": ["b", 1, 1.5, None, True]}
    assert [type(item) for item in found["a"]] == [str, int, float, type(None), bool]
    assert next(iter(found)).__class__ is str
