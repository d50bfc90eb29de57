# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(check_thresholds) and C(render_report): arguments, results, check mode, documentation."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.aorta.automation.plugins.action import check_thresholds, render_report
from ansible_collections.aorta.automation.plugins.modules import check_thresholds as check_documentation
from ansible_collections.aorta.automation.plugins.modules import render_report as render_documentation
from ansible_collections.aorta.automation.plugins.plugin_utils import _deps
from ansible_collections.aorta.automation.tests.unit.plugins import run_factory as factory

BOTH = pytest.mark.parametrize("action", [check_thresholds, render_report])


def run(action, check_mode=False, **args):
    name = action.__name__.rpartition(".")[2]
    task = SimpleNamespace(
        args=args,
        check_mode=check_mode,
        async_val=0,
        action=f"aorta.automation.{name}",
        diff=False,
        no_log=False,
        get_search_path=list,
    )
    module = action.ActionModule(
        task=task,
        connection=mock.MagicMock(),
        play_context=mock.MagicMock(),
        loader=mock.MagicMock(path_dwim_relative_stack=mock.MagicMock(side_effect=AnsibleError("not found"))),
        templar=mock.MagicMock(),
        shared_loader_obj=mock.MagicMock(),
    )
    return module.run(task_vars={})


@pytest.fixture
def run_dir(tmp_path):
    limits = [{"metric": "world.num_ranks", "min": 100 + number} for number in range(14)]
    spec = factory.spec(max_avg_iteration_ms=1, limits=limits)
    return factory.write_run(tmp_path / "run", results=factory.results(), spec=spec, manifest=factory.manifest())


def test_the_verdict_is_returned_in_few_lines_and_fails_nothing(run_dir):
    result = run(check_thresholds, run_dir=str(run_dir))
    assert not result.get("failed")
    assert (result["status"], result["num_checks"], result["num_failing"]) == ("failed", 15, 15)
    assert len(result["checks"]) == 10
    assert result["checks"][0].startswith("max_avg_iteration_ms: iteration time 102")
    assert result["checks"][-1] == f"... and 6 more, see {run_dir / 'verdict.json'}"
    assert result["message"].startswith("FAILED: 15 of 15 checks failed\n  max_avg_iteration_ms: iteration time")
    assert result["verdict_path"] == str(run_dir / "verdict.json")
    assert json.loads((run_dir / "verdict.json").read_text())["status"] == "failed"
    json.dumps(result, allow_nan=False)


def test_the_message_of_a_failed_run_is_its_failure_alone(run_dir):
    factory.write_run(run_dir, manifest=factory.manifest(failure=factory.FAILURE))
    result = run(check_thresholds, run_dir=str(run_dir))
    assert result["message"].startswith("ERROR: The run failed in phase run on node1 (rank 5, exit code 137)")
    assert "\n" not in result["message"]
    assert result["num_failing"] == 15


def test_how_it_was_judged_is_a_warning(run_dir):
    spec = factory.spec(min_compute_ratio=0.1, by_gpu_model={"mi210": {"min_compute_ratio": 0.2}})
    factory.write_run(run_dir, spec=spec)
    result = run(check_thresholds, run_dir=str(run_dir))
    assert result["status"] == "passed"
    assert "there are none for mi300x: judged by the general limits" in result["warnings"][0]


def test_the_reports_are_written(run_dir):
    run(check_thresholds, run_dir=str(run_dir))
    result = run(render_report, run_dir=str(run_dir))
    for name, file in (("report", "report.html"), ("workbook", "report.xlsx"), ("junit", "junit.xml")):
        assert result[name] == str(run_dir / file)
        assert (run_dir / file).stat().st_size > 500
    assert result["summary_lines"][0].startswith("aorta: FAILED")
    assert result["stats"]["aorta_report"] == str(run_dir / "report.html")
    assert not list(run_dir.glob(".*"))


@BOTH
def test_check_mode_writes_nothing(run_dir, action):
    before = sorted(run_dir.iterdir())
    result = run(action, check_mode=True, run_dir=str(run_dir))
    assert result["skipped"]
    assert str(run_dir) in result["msg"]
    assert sorted(run_dir.iterdir()) == before


@BOTH
def test_what_can_not_be_done_is_one_message(tmp_path, action):
    with pytest.raises(AnsibleActionFail, match="missing") as caught:
        run(action, run_dir=str(tmp_path / "missing"))
    assert "Traceback" not in str(caught.value)


def test_a_template_that_is_not_there_is_an_error(run_dir):
    with pytest.raises(AnsibleActionFail, match="template"):
        run(render_report, run_dir=str(run_dir), template="nowhere.j2")


@BOTH
def test_missing_packages_are_named(run_dir, action, monkeypatch):
    monkeypatch.setitem(_deps.MISSING, "pydantic>=2.6", ImportError("pydantic"))
    with pytest.raises(AnsibleActionFail, match=r"pip install 'pydantic>=2\.6'"):
        run(action, run_dir=str(run_dir))


@pytest.mark.parametrize(
    ("action", "documentation"), [(check_thresholds, check_documentation), (render_report, render_documentation)]
)
def test_the_documentation_names_every_option(run_dir, action, documentation):
    options = yaml.safe_load(documentation.DOCUMENTATION)["options"]
    assert {name: option["type"] for name, option in options.items()} == {
        name: option["type"] for name, option in action.ARGUMENT_SPEC.items()
    }
    returned = set(yaml.safe_load(documentation.RETURN))
    assert returned == set(run(action, run_dir=str(run_dir))) - {"changed", "warnings"}
