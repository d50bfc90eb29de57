# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.aorta.automation.plugins.filter.merge_overrides import merge_overrides

BASE = {"training": {"max_steps": 12, "lr": 0.1}, "profiling": {"enabled": True}}


def test_values_are_converted_as_aorta_does():
    merged = merge_overrides(
        BASE,
        ["training.max_steps=50", "training.lr=1e-3", "profiling.enabled=False", "a.b=[x, y]", "a.c=p=q", "a.d=[]"],
    )
    assert merged == {
        "training": {"max_steps": 50, "lr": 0.001},
        "profiling": {"enabled": False},
        "a": {"b": ["x", "y"], "c": "p=q", "d": []},
    }
    assert BASE["training"]["max_steps"] == 12


def test_a_scalar_gives_way_to_a_section():
    assert merge_overrides({"a": 1}, ["a.b=2"]) == {"a": {"b": 2}}


@pytest.mark.parametrize(("config", "overrides"), [("text", []), ({}, ["no_equals_sign"])])
def test_bad_input_is_an_error(config, overrides):
    with pytest.raises(AnsibleFilterError):
        merge_overrides(config, overrides)
