# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/metrics.md says what the code does: its worked example, its list of codes, the sections that are linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import NCCL, Trace

ROOT = Path(aorta.__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "metrics.md"
SOURCES = [
    *ROOT.glob("plugins/module_utils/_trace_*.py"),
    *ROOT.glob("plugins/plugin_utils/_trace_files.py"),
    *ROOT.glob("plugins/plugin_utils/_cross_rank.py"),
    *ROOT.glob("plugins/plugin_utils/_tracelens_results.py"),
    *ROOT.glob("plugins/plugin_utils/_analysis.py"),
    *ROOT.glob("plugins/plugin_utils/parsers/aorta.py"),
]


def test_worked_example(tmp_path: Path) -> None:
    us = 1000
    trace = Trace().step(7, 0, 1000 * us)
    trace.memcpy(50 * us, 50 * us).memcpy(720 * us, 80 * us)
    trace.kernel(100 * us, 400 * us).kernel(650 * us, 100 * us, "add").kernel(850 * us, 100 * us)
    trace.kernel(400 * us, 300 * us, NCCL, 13)
    trace.write(tmp_path / "rank0.json")
    results = aorta.parse(Artifacts(tmp_path))
    row = results.per_rank[0]
    assert row.timeline_us is not None and row.iterations is not None and results.steps[0].timeline_us is not None
    figures = {
        "total": 900.0,
        "busy": 850.0,
        "idle": 50.0,
        "computation": 600.0,
        "communication": 300.0,
        "exposed_communication": 150.0,
        "memcpy": 130.0,
        "exposed_memcpy": 100.0,
    }
    assert row.timeline_us.model_dump() == figures
    assert row.ratios.overlap == 0.5
    assert results.steps[0].timeline_us.model_dump() == {**figures, "total": 1000.0, "idle": 150.0}
    assert row.iterations.mean_ms == 1.0


@pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the built collection")
def test_every_code_is_documented() -> None:
    codes: set[str] = set()
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        codes |= set(re.findall(r'code="([a-z_]+)"', text))
        codes |= set(re.findall(r'TraceError\(\s*"([a-z_]+)"', text))
        codes |= {
            code
            for pattern in (r'error ?= ?(?:outcome\.error or )?\("([a-z_]+)"', r'(?:note|append)\(\["([a-z_]+)"')
            for code in re.findall(pattern, text)
        }
    page = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", page[page.index("## Codes") :]))
    assert len(codes) > 25
    assert codes - documented == set()


@pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the built collection")
def test_the_report_links_to_sections_that_exist() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    templates = ROOT.glob("roles/report/templates/report/*.j2")
    linked = {name for path in templates for name in re.findall(r"m\.defined\('([^']+)'\)", path.read_text("utf-8"))}
    assert linked and linked <= anchors
