# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A long pull tells that it goes on; a short one says nothing."""

from __future__ import annotations

import time

import pytest
from ansible_collections.aorta.automation.plugins.action.image_pull import telling


def test_a_long_pull_tells_that_it_goes_on():
    said = []
    with telling(said.append, "[node0] pulling x:1", 0.05):
        time.sleep(0.3)
    assert 2 <= len(said) <= 6
    assert said[0] == "[node0] pulling x:1, 0 s so far"
    time.sleep(0.1)
    assert len(said) <= 6


def test_a_short_pull_says_nothing():
    said = []
    with telling(said.append, "x", 5):
        pass
    assert said == []


def test_what_goes_wrong_is_not_hidden():
    with pytest.raises(OSError, match="gone"), telling(print, "x", 5):
        raise OSError("gone")
