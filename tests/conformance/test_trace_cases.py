# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each case of kind C(traces) has the outcome that its C(expected.json) says, codes and places included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis, _thresholds
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results, load_results
from ansible_collections.aorta.automation.tests.conformance.shared_data import cases

CASES = pytest.mark.parametrize(("case", "expected"), cases("traces"))
RATIO = MILLISECONDS = 1e-6


def analysed(case: Path, tmp_path: Path, spec: dict[str, Any] | None = None) -> Results:
    """The results that the stage writes for the case's traces, read back as strict JSON."""
    traces = tmp_path / "given" / "traces"
    shutil.copytree(case / "traces", traces)
    if (case / "nodes.json").exists():
        shutil.copy(case / "nodes.json", traces)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    if spec is not None:
        (run_dir / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    _analysis.run(_analysis.plan(run_dir, traces), use_cache=False)
    text = (run_dir / "results.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} in results.json"))
    return load_results(run_dir / "results.json")


def same(found: Any, expected: Any, tolerance: float, where: str) -> None:
    """Compare what C(expected) has; numbers within C(tolerance), null only with null."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, value in expected.items():
            same(found[key], value, tolerance, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, tolerance, f"{where}[{index}]")
    elif expected is None or isinstance(expected, (str, bool)):
        assert found == expected, where
    else:
        assert found == pytest.approx(expected, rel=0, abs=tolerance), where


def fits(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Is C(found) the warning or error that is expected?"""
    if found["code"] not in expected["code"].split("|"):
        return False
    if "rank" in expected and found.get("rank") != expected["rank"]:
        return False
    if "file" in expected and not (found.get("file") or "").endswith(expected["file"]):
        return False
    if "count" in expected and found.get("count") != expected["count"]:
        return False
    if "byte" in expected:
        byte = found.get("byte")
        if byte is None or abs(byte - expected["byte"]) > expected.get("byte_tolerance", 0):
            return False
    return all(any(text in found["message"] for text in word.split("|")) for word in expected.get("mentions", []))


def once_each(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assert that each expected entry is there once; returns the others."""
    rest = list(found)
    for entry in expected:
        matching = [one for one in rest if fits(one, entry)]
        assert len(matching) <= 1, f"more than once: {entry} in {found}"
        assert matching or entry.get("optional"), f"missing: {entry} in {found}"
        rest = [one for one in rest if one not in matching]
    return rest


@CASES
def test_outcome(case: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    data = analysed(case, tmp_path).model_dump()
    us = expected.get("tolerance_us", 0.001)
    assert data["status"] in expected["status"].split("|")
    same(data["world"], expected.get("world", {}), 0, "world")
    ranks = {row["rank"]: row for row in data["per_rank"]}
    assert not set(expected.get("absent_ranks", [])) & set(ranks)
    for rank, figures in expected.get("per_rank", {}).items():
        row = ranks[int(rank)]
        for key, value in figures.items():
            same(row[key], value, us if key == "timeline_us" else RATIO, f"rank {rank}.{key}")
    if "world" in expected:
        assert sorted(ranks) == expected["world"]["ranks"]
    same(data["summary"], expected.get("summary", {}), RATIO, "summary")
    for entry in expected.get("collectives", []):
        found = [one for one in data["collectives"] if all(one[k] == entry[k] for k in ("seq", "group") if k in entry)]
        assert len(found) == 1, entry
        same(found[0], entry, us, f"collective {entry}")
    if "straggler" in expected:
        entry = expected["straggler"]
        worst = data["stragglers"][0]
        assert (worst["rank"], worst["times_last"], worst["collectives"]) == (
            entry["rank"],
            entry["arrived_last"],
            entry["of"],
        )
        assert worst["made_others_wait_us"] == pytest.approx(entry["made_others_wait_us"], abs=us)
    if "clock_offset_us" in expected:
        same(data["clock_offsets_us"], expected["clock_offset_us"], us, "clock_offsets_us")
    assert not once_each(data["errors"], expected["errors"])
    if "warnings" in expected:
        rest = once_each(data["warnings"], expected["warnings"])
        assert expected["warnings"] or not rest
    text = json.dumps(data)
    assert not [word for word in expected.get("never", []) if word in text]


def judged(expected: dict[str, Any]) -> bool:
    return "verdict" in expected or "verdict_if_allowed" in expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [parameter for parameter in cases("traces") if parameter.values[1] is None or judged(parameter.values[1])],
)
def test_verdict(case: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    for key, allowed in (("verdict", False), ("verdict_if_allowed", True)):
        if key not in expected:
            continue
        wanted = expected[key]
        limits = wanted.get("limits") or expected.get("verdict", {}).get("limits", {})
        spec = {"values": {"expected_results": limits}, "controls": {"allow_missing_ranks": allowed}}
        analysed(case, tmp_path / key, spec)
        verdict = _thresholds.judge_run(tmp_path / key / "run")
        if "status" in wanted:
            assert verdict.status in wanted["status"].split("|")
        if "status_not" in wanted:
            assert verdict.status not in wanted["status_not"].split("|")
        for entry in wanted.get("checks", []):
            found = [check for check in verdict.checks if entry["metric"] in check.metric]
            assert [check.status for check in found] == [entry["status"]], entry
