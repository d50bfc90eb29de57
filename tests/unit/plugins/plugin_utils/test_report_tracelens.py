# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The comparison with TraceLens, and its workbooks, in the reports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _report, _report_html, _report_xlsx
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Comparison, Results
from ansible_collections.aorta.automation.tests.unit.plugins import run_factory as run


def compared(rank: int, metric: str, difference: float) -> dict[str, Any]:
    return Comparison(
        rank=rank,
        metric=metric,
        ours_us=40806.387,
        theirs_us=40806.387 + difference,
        difference_us=difference,
        tolerance_us=6.5,
        agrees=abs(difference) <= 6.5,
    ).model_dump()


def results(*comparison: dict[str, Any], **changes: Any) -> Results:
    data = run.results(ranks=2, nodes=1)
    data["tracelens"] = {
        "version": "0.1",
        "commit": "171dd74721ca1ec45709e5805b68ae1f65e27811",
        "agrees": all(one["agrees"] for one in comparison) if comparison else None,
        "ranks": [
            {"rank": rank, "workbooks": [f"tracelens/rank{rank}_perf_report.xlsx"], "logs": [], "error": None}
            for rank in (0, 1)
        ],
        "collectives": {"workbook": None, "log": None, "error": None},
        "comparison": list(comparison),
        **changes,
    }
    return run.checked(data)


def page(given: Results, files: list[_report.File] | None = None) -> str:
    view = _report.make_view(given, None, {}, {}, files or [])
    return _report_html.render_html(view)


def section(text: str) -> str:
    return text[text.index('id="tracelens"') :].partition("</section>")[0]


def test_the_largest_difference_of_each_length_is_shown() -> None:
    text = section(
        page(
            results(
                compared(0, "total", 0.01),
                compared(1, "total", -0.02),
                compared(0, "idle", 7.0),
                compared(1, "idle", 0),
            )
        )
    )
    assert "TraceLens 0.1" in text and "commit 171dd74721ca)" in text and "2 of 2 ranks" in text
    assert "-0.0200" in text and "+0.0100" not in text
    assert "+7.0000" in text and "differs" in text and "Some lengths differ" in text
    assert "40,806.387" in text and "40,806.367" in text


def test_agreement_and_its_limits_are_said() -> None:
    text = section(page(results(compared(0, "total", 0.0), not_compared=["computation", "exposed_communication"])))
    assert "All lengths agree" in text and "1 of 2 ranks" in text
    assert "computation, exposed communication" in text
    nothing = section(page(results(collectives={"workbook": None, "log": None, "error": "rank 3 is <missing>"})))
    assert "Nothing could be compared" in nothing and "rank 3 is &lt;missing&gt;" in nothing


def test_its_figures_are_named_as_such() -> None:
    given = results(compared(0, "total", 0.0))
    given.engine.name = "tracelens"
    assert "The timelines in this report are TraceLens" in page(given)


def test_without_it_there_is_no_section() -> None:
    assert 'id="tracelens"' not in page(run.checked(run.results(ranks=2, nodes=1)))


def test_its_workbooks_are_linked_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "tracelens").mkdir()
    for name in ("rank10", "rank9_window0", "rank9_window1", "nccl_analysis"):
        (tmp_path / "tracelens" / f"{name}_report.xlsx").touch()
    (tmp_path / "tracelens" / "rank9.log").touch()
    files = _report.list_files(tmp_path)
    assert [(file.name, file.what) for file in files] == [
        ("tracelens/nccl_analysis_report.xlsx", "AMD TraceLens: the collectives of all ranks"),
        ("tracelens/rank9_window0_report.xlsx", "AMD TraceLens: rank 9"),
        ("tracelens/rank9_window1_report.xlsx", "AMD TraceLens: rank 9"),
        ("tracelens/rank10_report.xlsx", "AMD TraceLens: rank 10"),
        ("tracelens/", "AMD TraceLens: all it wrote, with its logs"),
    ]
    text = page(results(), files)
    assert 'href="tracelens/nccl_analysis_report.xlsx"' in text and 'href="tracelens/"' in text


@pytest.mark.parametrize("with_it", [True, False])
def test_the_workbook_has_every_comparison(with_it: bool) -> None:
    given = results(compared(0, "total", 0.25), compared(1, "total", 7)) if with_it else run.checked(run.results(2, 1))
    book = openpyxl.load_workbook(io.BytesIO(_report_xlsx.workbook(_report.make_view(given, None, {}, {}, []))))
    assert ("TraceLens" in book.sheetnames) is with_it
    if with_it:
        rows = list(book["TraceLens"].iter_rows(values_only=True))
        assert rows[1] == (0, "total", 40806.387, 40806.637, 0.25, 6.5, "yes")
        assert rows[2][-1] == "no" and len(rows) == 3
