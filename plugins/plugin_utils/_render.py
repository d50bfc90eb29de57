# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last stage: all forms of the report from one view, into the run directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._files import write_atomic
from ansible_collections.aorta.automation.plugins.plugin_utils._report import build_view
from ansible_collections.aorta.automation.plugins.plugin_utils._report_html import render_html
from ansible_collections.aorta.automation.plugins.plugin_utils._report_junit import junit_xml
from ansible_collections.aorta.automation.plugins.plugin_utils._report_text import stats_of, summary_lines
from ansible_collections.aorta.automation.plugins.plugin_utils._report_xlsx import workbook

HTML, XLSX, JUNIT, SUMMARY = "report.html", "report.xlsx", "junit.xml", "summary.txt"


@dataclasses.dataclass(frozen=True)
class Rendered:
    """What was written, and what to tell."""

    html: Path
    xlsx: Path
    junit: Path
    summary_lines: list[str]
    stats: dict[str, Any]


def render_run(run_dir: Path, template: Path | None = None) -> Rendered:
    """Write the reports of the run in C(run_dir). Raises OSError, or ValueError for a template that can't be used."""
    view = build_view(run_dir, (HTML, XLSX, JUNIT))
    html = render_html(view, template)
    write_atomic(run_dir / JUNIT, junit_xml(view))
    write_atomic(run_dir / XLSX, workbook(view))
    write_atomic(run_dir / HTML, html)
    lines = summary_lines(view, run_dir)
    write_atomic(run_dir / SUMMARY, "\n".join(lines) + "\n")
    return Rendered(run_dir / HTML, run_dir / XLSX, run_dir / JUNIT, lines, stats_of(view, run_dir))
