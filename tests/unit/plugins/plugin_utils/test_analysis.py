# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis, _tracelens
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results, load_results
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import detect_tracelens
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import healthy


@pytest.fixture(name="runs")
def _runs(tmp_path: Path) -> Path:
    """A run with traces, and its parent folder."""
    for rank in (0, 1):
        healthy(rank, 2).write(tmp_path / "runs" / "one" / "traces" / f"rank{rank}" / "t.json")
    return tmp_path / "runs"


def new_run(runs: Path, name: str, **spec: Any) -> Path:
    (runs / name).mkdir(exist_ok=True)
    (runs / name / "spec.json").write_text(json.dumps({"run_id": name, "benchmark": "aorta", **spec}))
    return runs / name


def analyse(run_dir: Path, trace_dir: Path | None = None, use_cache: bool = True, **kwargs: Any) -> Results:
    _analysis.run(_analysis.plan(run_dir, trace_dir, **kwargs), use_cache)
    return load_results(run_dir / "results.json")


def test_traces_of_the_run_itself_by_default(runs: Path) -> None:
    results = analyse(new_run(runs, "one"))
    assert (results.run_id, results.status, results.reused_from) == ("one", "ok", None)
    assert results.trace_dir == str(runs / "one" / "traces")


def test_trace_dir_from_the_specification_or_the_argument(runs: Path) -> None:
    by_spec = analyse(new_run(runs, "two", trace_dir=str(runs / "one" / "traces")))
    assert by_spec.world.ranks == [0, 1]
    by_argument = analyse(new_run(runs, "three", trace_dir="/nowhere"), runs / "one" / "traces" / "rank1")
    assert by_argument.world.ranks == [1]


def test_options_of_the_specification_count(runs: Path) -> None:
    spec = {"values": {"analysis": {"communication_kernels": ["Cijk"], "top_kernels": 3}}}
    results = analyse(new_run(runs, "one", **spec))
    assert results.analysis["communication_kernels"] == ["Cijk"]
    assert results.per_rank[0].ratios.overlap is not None
    assert results.per_rank[0].kernel_counts is not None and results.per_rank[0].kernel_counts.communication == 2


def test_a_run_without_traces_has_no_data(runs: Path) -> None:
    results = analyse(new_run(runs, "empty"))
    assert [problem.code for problem in results.errors] == ["no_traces"]


@pytest.mark.parametrize("where", ["argument", "specification"])
def test_a_trace_dir_that_does_not_exist_is_refused(runs: Path, where: str) -> None:
    absent = runs / "absent"
    run_dir = new_run(runs, "two", **({"trace_dir": str(absent)} if where == "specification" else {}))
    with pytest.raises(ValueError, match=r"trace_dir: .*absent does not exist"):
        analyse(run_dir, absent if where == "argument" else None)


# --- using figures again ---


@pytest.fixture(name="count")
def _count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often traces were read."""
    calls: list[int] = []
    parse = aorta.parse
    monkeypatch.setattr(aorta, "parse", lambda artifacts: (calls.append(1), parse(artifacts))[1])
    return calls


def test_unchanged_traces_are_not_read_again(runs: Path, count: list[int]) -> None:
    first = analyse(new_run(runs, "one"))
    again = analyse(runs / "one")
    assert again == first
    beside = analyse(new_run(runs, "two", trace_dir=str(runs / "one" / "traces")))
    assert (beside.reused_from, beside.run_id) == (str(runs / "one" / "results.json"), "two")
    assert beside.per_rank == first.per_rank
    assert len(count) == 1


def test_results_of_a_neighbouring_run_are_used(tmp_path: Path, count: list[int]) -> None:
    """The traces lie elsewhere; the run before this one has analysed them."""
    healthy().write(tmp_path / "traces" / "rank0" / "t.json")
    (tmp_path / "runs").mkdir()
    for name in ("one", "two"):
        analyse(new_run(tmp_path / "runs", name, trace_dir=str(tmp_path / "traces")))
    assert len(count) == 1


@pytest.mark.parametrize("change", ["content", "file", "options", "ranks", "nodes", "version", "damage", "forbidden"])
def test_any_change_reads_afresh(runs: Path, count: list[int], change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    analyse(new_run(runs, "one"))
    traces = runs / "one" / "traces"
    kwargs: dict[str, Any] = {}
    spec: dict[str, Any] = {"trace_dir": str(traces)}
    if change == "content":
        path = traces / "rank0" / "t.json"
        path.write_bytes(path.read_bytes().replace(b"x.json", b"y.json"))
    elif change == "file":
        (traces / "more.json").write_text("{}")
    elif change == "options":
        spec["values"] = {"analysis": {"communication_kernels": "extended"}}
    elif change == "ranks":
        kwargs["expected_ranks"] = frozenset({0, 1, 2})
    elif change == "nodes":
        (traces / "nodes.json").write_text('{"0": "a"}')
    elif change == "version":
        monkeypatch.setattr(aorta, "VERSION", "other")
    elif change == "damage":
        (runs / "one" / "results.json").write_text("{")
    elif change == "forbidden":
        kwargs["use_cache"] = False
    assert analyse(new_run(runs, "two", **spec), **kwargs).reused_from is None
    assert len(count) == 2


def test_time_of_change_is_trusted_where_allowed(runs: Path, count: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(runs, "one", values={"analysis": {"trust_mtime": True}})
    trace = healthy().write(run_dir / "traces" / "rank0.json")
    analyse(run_dir)
    monkeypatch.setattr(_analysis, "sha256_file", lambda path: pytest.fail("read"))
    assert analyse(run_dir).status == "ok" and len(count) == 1
    status = trace.stat()
    os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(pytest.fail.Exception, match="read"):
        analyse(run_dir)
    monkeypatch.undo()
    new_run(runs, "one", values={"analysis": {}})
    analyse(run_dir)


def test_passing_trouble_is_tried_again(runs: Path, count: list[int]) -> None:
    analyse(new_run(runs, "one"))
    path = runs / "one" / "results.json"
    data = json.loads(path.read_text())
    data["errors"] = [{"code": "reader_died", "message": "x"}]
    path.write_text(json.dumps(data))
    assert analyse(runs / "one").errors == []
    assert len(count) == 2


# --- TraceLens ---


def interpreter_with(tmp_path: Path, **files: str) -> str:
    """A Python that sees the given modules (and nothing else of this environment)."""
    for name, text in files.items():
        path = tmp_path / "site" / f"{name.replace('__', '/')}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path / "site"}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_tracelens_is_found_by_module_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "site" / "TraceLens-1.2.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "TraceLens-1.2.dist-info" / "METADATA").write_text("Name: TraceLens\nVersion: 1.2\n")
    (tmp_path / "site" / "TraceLens.py").write_text("print('hello')\nclass GPUEventAnalyser: pass\nNcclAnalyser = 1\n")
    found = detect_tracelens(interpreter_with(tmp_path))
    assert (found.found, found.version) == (True, "1.2")


def test_the_impostor_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "site" / "tracelens-9.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "tracelens-9.0.dist-info" / "METADATA").write_text("Name: tracelens\nVersion: 9.0\n")
    (tmp_path / "site" / "tracelens.py").write_text("")
    found = detect_tracelens(interpreter_with(tmp_path))
    assert not found.found
    assert "9.0" in found.message and "pip uninstall tracelens" in found.message and "AMD-AGI" in found.message
    assert "\n" not in found.message


def test_absent_broken_and_stuck_tracelens(tmp_path: Path) -> None:
    python = interpreter_with(tmp_path)
    assert "not installed" in detect_tracelens(python).message
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "TraceLens.py").write_text("import no_such_dependency")
    assert "broken" in detect_tracelens(python).message
    (tmp_path / "site" / "TraceLens.py").write_text("import time; time.sleep(60)")
    assert "did not answer" in detect_tracelens(python, timeout=0.5).message
    assert "could not be looked for" in detect_tracelens(str(tmp_path / "none")).message


def test_engine_tracelens_is_refused_with_the_reason(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = _tracelens.TraceLens(False, None, "TraceLens is not installed: do this")
    monkeypatch.setattr(_analysis, "detect_tracelens", lambda *_args, **_kwargs: reason)
    with pytest.raises(ValueError, match="not installed: do this"):
        analyse(new_run(runs, "one", values={"analysis": {"engine": "tracelens"}}))
    for engine in ("auto", "native"):
        assert analyse(new_run(runs, "one", values={"analysis": {"engine": engine}})).engine.name == "native"
