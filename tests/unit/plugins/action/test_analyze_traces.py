# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.aorta.automation.plugins.action import analyze_traces
from ansible_collections.aorta.automation.plugins.modules import analyze_traces as documentation
from ansible_collections.aorta.automation.plugins.plugin_utils import _deps
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import healthy


def run(check_mode: bool = False, **args: Any) -> dict[str, Any]:
    task = SimpleNamespace(
        args=args,
        check_mode=check_mode,
        async_val=0,
        action="aorta.automation.analyze_traces",
        diff=False,
        no_log=False,
    )
    module = analyze_traces.ActionModule(
        task=task,
        connection=mock.MagicMock(),
        play_context=mock.MagicMock(),
        loader=mock.MagicMock(),
        templar=mock.MagicMock(),
        shared_loader_obj=mock.MagicMock(),
    )
    return module.run(task_vars={})


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path: Path) -> Path:
    for rank in (0, 1):
        healthy(rank, 2).write(tmp_path / "traces" / f"rank{rank}" / "t.json")
    return tmp_path


def test_result(run_dir: Path) -> None:
    result = run(run_dir=str(run_dir))
    assert result["status"] == "ok"
    assert result["results_path"] == str(run_dir / "results.json")
    assert (result["num_ranks"], result["missing_ranks"], result["errors"]) == (2, [], [])
    assert result["summary"]["avg_iteration_ms"] == 1.0
    assert (run_dir / "results.json").exists()


def test_bad_traces_do_not_fail_the_task(run_dir: Path) -> None:
    for rank in range(2, 20):
        (run_dir / "traces" / f"rank{rank}.json").write_text("{")
    result = run(run_dir=str(run_dir), expected_ranks="20")
    assert result["status"] == "partial"
    assert len(result["errors"]) == 10
    assert result["errors"][0].startswith("trace_truncated: rank 2")
    assert "10 more" in result["errors"][-1]  # one says that the traces are of a smaller world
    assert not result.get("failed")


def test_no_traces_are_no_data(tmp_path: Path) -> None:
    assert run(run_dir=str(tmp_path))["status"] == "no_data"


def test_check_mode_reads_and_writes_nothing(run_dir: Path) -> None:
    result = run(check_mode=True, run_dir=str(run_dir / "not yet there"), trace_dir=str(run_dir / "traces"))
    assert result["skipped"] and str(run_dir / "traces") in result["msg"]
    assert sorted(path.name for path in run_dir.iterdir()) == ["traces"]


@pytest.mark.parametrize(
    ("args", "mention"),
    [
        ({"trace_dir": "/no/such/dir"}, "trace_dir: /no/such/dir"),
        ({"run_dir": "/no/such/dir"}, "run_dir: /no/such/dir"),
        ({"expected_ranks": "eight"}, "expected_ranks: 'eight'"),
        ({"expected_ranks": 0}, "expected_ranks: 0"),
        ({"expected_ranks": True}, "expected_ranks: True"),
        ({"expected_ranks": [0, -1]}, "expected_ranks"),
        ({"node_map": {"x": "a"}}, "node_map"),
    ],
)
def test_unusable_arguments_fail_with_one_message(run_dir: Path, args: dict[str, Any], mention: str) -> None:
    with pytest.raises(AnsibleActionFail, match=mention):
        run(**{"run_dir": str(run_dir), **args})


def test_a_damaged_specification_fails_with_its_name(run_dir: Path) -> None:
    (run_dir / "spec.json").write_text("{")
    with pytest.raises(AnsibleActionFail, match=r"spec\.json"):
        run(run_dir=str(run_dir))


def test_without_pydantic_the_message_says_what_to_install(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_deps.MISSING, "pydantic>=2.6", ImportError("x"))
    with pytest.raises(AnsibleActionFail, match=r"pip install 'pydantic>=2\.6'"):
        run(run_dir=str(run_dir))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), ("", None), (2, {0, 1}), ("3", {0, 1, 2}), ([4, "7"], {4, 7}), ([], frozenset())],
)
def test_expected_ranks(value: Any, expected: set[int] | None) -> None:
    assert analyze_traces.expected_ranks_of(value) == expected


def test_progress_of_many_traces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(analyze_traces.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    report = analyze_traces.progress_reporter(lines.append)
    report(4, 4, 10**6, "few")
    assert lines == []
    for done in range(1, 65):
        now[0] += 0.1
        report(done, 64, done * 10**7, f"rank{done}")
    assert 6 <= len(lines) <= 8
    assert "64 of 64 traces read, 640 MB, 100 MB/s" in lines[-1]


def test_documentation_and_arguments_agree() -> None:
    options = yaml.safe_load(documentation.DOCUMENTATION)["options"]
    assert set(options) == set(analyze_traces.ARGUMENT_SPEC)
    for name, spec in analyze_traces.ARGUMENT_SPEC.items():
        assert options[name]["type"] == spec["type"]
        assert options[name].get("required", False) == spec.get("required", False)
        assert options[name].get("default") == spec.get("default")
