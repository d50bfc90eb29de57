# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action's arguments and the module's documentation say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.aorta.automation.plugins.action import validate_config as action
from ansible_collections.aorta.automation.plugins.modules import validate_config as documented
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import ConfigError
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


def test_an_almost_right_tag_is_an_error_and_a_foreign_one_is_not() -> None:
    assert action.misspelt_tags({"ansible_run_tags": ["validte", "run", "webserver"]}) == [
        "--tags: validte: no phase of ours, did you mean validate?"
    ]


def test_the_rest_of_a_torn_aorta_set_is_an_error() -> None:
    found = action.torn_assignments({"environment.NCCL_DEBUG": "INFO", "my.own": 1, "aorta_set": "a=1"}, "aorta")
    assert [line.partition(":")[0] for line in found] == ["environment.NCCL_DEBUG"]


def test_an_ended_run_is_not_run_again(tmp_path: Path) -> None:
    spec = {"phases": ["config", "run"], "run_id": "night", "run_dir": str(tmp_path)}
    action.refuse_ended_run(spec)
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(ConfigError, match="night has ended"):
        action.refuse_ended_run(spec)
    action.refuse_ended_run({**spec, "phases": ["config", "gather"]})
