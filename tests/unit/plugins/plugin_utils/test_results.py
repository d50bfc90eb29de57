# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    Engine,
    Note,
    Problem,
    Results,
    Summary,
    World,
    load_results,
    save_results,
)
from pydantic import ValidationError


def minimal(**kwargs: Any) -> Results:
    return Results(
        status="error",
        created="2026-12-01T00:00:00+00:00",
        engine=Engine(name="native", version="1"),
        world=World(num_nodes=None, num_ranks=0, ranks=[], missing_ranks=[]),
        summary=Summary(**dict.fromkeys(Summary.model_fields)),
        **kwargs,
    )


def test_saved_results_load_again(tmp_path: Path) -> None:
    results = minimal(
        warnings=[Note(code="events_skipped", message="x", rank=0, count=4)],
        errors=[Problem(code="trace_truncated", message="y", rank=1, file="f", byte=0)],
    )
    save_results(results, tmp_path / "results.json")
    assert load_results(tmp_path / "results.json") == results
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["schema_version"] == 1
    assert data["warnings"] == [{"code": "events_skipped", "message": "x", "rank": 0, "count": 4}]
    assert data["errors"][0]["byte"] == 0
    assert data["summary"]["avg_iteration_ms"] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", True])
def test_only_finite_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(ValidationError):
        Summary(**{**dict.fromkeys(Summary.model_fields), "avg_iteration_ms": value})


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"status": "fine"}, "status"),
        ({"extra": 1}, "extra"),
        ({"world": {"num_nodes": 1}}, r"world\.num_ranks"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, change: dict[str, Any], mention: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({**minimal().model_dump(), **change}))
    with pytest.raises(ValueError, match=mention) as caught:
        load_results(path)
    assert str(path) in str(caught.value)


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"status": ')
    with pytest.raises(ValueError, match=r"results\.json"):
        load_results(path)
