# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.aorta.automation.plugins.action.phase import problems_of
from ansible_collections.aorta.automation.plugins.plugin_utils import _manifest


@pytest.mark.parametrize(
    ("result", "expect", "problems"),
    [
        ({"host": {}, "problems": []}, "host", []),
        ({"skipped": True}, "host", []),
        (None, "host", ["gave no result (it left the play earlier)"]),
        ({"unreachable": True, "msg": "no\nroute"}, "host", ["unreachable: no route"]),
        ({"failed": True, "msg": "boom"}, None, ["boom"]),
        (
            {"msg": "no Python", "module_stderr": "sh: python3: not found"},
            "host",
            ["no Python: sh: python3: not found"],
        ),
        ({"problems": [{"message": "m", "remedy": "r"}, "plain"]}, "host", ["m -> r", "plain"]),
        ({}, "host", ["failed without a message"]),
    ],
)
def test_what_a_hosts_result_says(result, expect, problems):
    assert problems_of(result, expect) == problems


def test_the_first_failure_stays(tmp_path):
    _manifest.update(tmp_path, lambda m: _manifest.begin_phase(m, "run"))
    _manifest.update(tmp_path, lambda m: _manifest.set_failure(m, "run", "step_failed", "first", host="a"))
    _manifest.update(tmp_path, lambda m: _manifest.set_failure(m, "gather", "host_problem", "second", host="b"))
    manifest = _manifest.load(tmp_path)
    assert manifest["failure"]["message"] == "first"
    assert manifest["phases"][0]["status"] == "failed"
    assert manifest["phases"][0]["seconds"] >= 0


def test_traces_of_a_repeated_gathering_are_kept_once(tmp_path):
    (tmp_path / "traces").mkdir()
    trace = {"rank": 3, "host": "a", "file": "rank3/t.json.gz", "bytes": 1, "sha256": "0"}
    for _attempt in range(2):
        _manifest.update(tmp_path, lambda m: _manifest.add_results(m, {"a": {"traces": [trace]}}))
    _manifest.write_nodes(tmp_path)
    assert _manifest.load(tmp_path)["traces"] == [trace]
    assert _manifest.read_json(tmp_path / "traces" / "nodes.json") == {"3": "a"}
