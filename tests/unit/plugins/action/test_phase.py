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


def test_a_container_of_another_run_is_a_problem():
    def result(labels):
        return {"container": {"Config": {"Labels": labels}}}

    own, other = ({"org.aorta.automation.run_id": name} for name in ("r1", "r2"))
    assert problems_of(result(own), "container", "r1") == []
    assert problems_of(result(other), "container", "r1")[0].startswith(
        "run r2 has started a container of the same name"
    )
    assert problems_of(result({}), "container", "r1")[0].startswith("someone else has started")


def run_of(directory, pid, start_time, machine):
    directory.mkdir()
    of = {"machine": machine, "pid": pid, "start_time": start_time}
    _manifest.update(directory, lambda m: m.update(controller=of))


def test_runs_whose_controller_is_gone_are_told_from_those_that_go_on(tmp_path):
    here = _manifest.controller()
    run_of(tmp_path / "alive", here["pid"], here["start_time"], here["machine"])
    run_of(tmp_path / "dead", here["pid"], here["start_time"] - 1, here["machine"])
    run_of(tmp_path / "elsewhere", here["pid"], here["start_time"] - 1, "another machine")
    (tmp_path / "new").mkdir()
    assert _manifest.dead_runs(tmp_path / "new") == ["dead"]


def test_a_run_has_one_controller_and_a_new_attempt_forgets_the_failure(tmp_path):
    here = _manifest.controller()
    _manifest.update(tmp_path, lambda m: _manifest.begin_run(m, {**here, "start_time": 1}))
    _manifest.update(tmp_path, lambda m: _manifest.begin_phase(m, "run"))
    _manifest.update(tmp_path, lambda m: _manifest.set_failure(m, "preflight", "error", "once"))
    manifest = _manifest.update(tmp_path, lambda m: _manifest.begin_run(m, here))  # the former is gone
    assert manifest["failure"] is None
    assert [phase["status"] for phase in manifest["phases"]] == ["interrupted"]
    with pytest.raises(ValueError, match=f"under the control of process {here['pid']}"):
        _manifest.begin_run(manifest, {**here, "pid": 1})
