# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as a few lines for the terminal, and as a small dictionary for whoever started the job."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._report import View
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Summary
from ansible_collections.aorta.automation.plugins.plugin_utils._thresholds import number, one_line

NOT_MEASURED = "not measured"
WIDTH = 100
MAX_LINES = 20
MAX_CHECKS = 6
MAX_NAMES = 20
_SHORT = {"fail": "FAIL", "not_measured": "NOT MEASURED"}


def percent(value: float | None) -> str:
    """A share of 1 as C("56.1 %"); small ones keep two digits."""
    if value is None:
        return NOT_MEASURED
    return f"{number(100 * value, 2)} %" if 0 < abs(value) < 0.001 else f"{100 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    """C("104.4 ms"), C("not measured") for None."""
    return NOT_MEASURED if value is None else f"{value:.4g} ms" if value < 1e4 else f"{value:.0f} ms"


def summary_lines(view: View, run_dir: Path) -> list[str]:
    """At most 20 lines of at most 100 columns: verdict, reason, figures, failed checks, where the report is."""
    lines = [f"{view.benchmark}: {view.word}   run {view.run_id}", *_wrapped(view.reason, 3)]
    if view.results is not None and view.results.per_rank:
        lines += ["", *_figures(view, view.results.summary)]
    # Where nothing could be measured, every check would say so.
    checks = view.verdict.failing if view.verdict and view.status == "failed" else []
    if len(checks) > 1:
        lines += ["", *(_cut(check.message, f"{_SHORT[check.status]:<14}") for check in checks[:MAX_CHECKS])]
        if len(checks) > MAX_CHECKS:
            lines.append(f"  and {len(checks) - MAX_CHECKS} more")
    if view.hint:
        lines += ["", *_wrapped(view.hint, 2)]
    elif view.failure is not None and view.failure.log_tail:
        last = [line for line in view.failure.log_tail if line.strip()][-3:]
        lines += ["", *(_cut(line, "| ") for line in last)]
    reports = [("report", run_dir / "report.html")]
    if view.failure is not None and view.failure.log is not None:
        reports.append(("log", run_dir / view.failure.log.name))
    # A path is worth more whole than short.
    tail = ["", *(f"{name}: {path}" for name, path in reports)]
    return [*lines[: MAX_LINES - len(tail)], *tail]


def _figures(view: View, summary: Summary) -> list[str]:
    ranks = f"{view.num_measured} of {view.world_size}"
    nodes = f" on {len(view.nodes)} node{'s' if len(view.nodes) > 1 else ''}" if view.nodes else ""
    gpus = f", {', '.join(view.gpus)}" if view.gpus else ""
    pairs = (
        ("iteration", milliseconds(summary.avg_iteration_ms), "variance", percent(summary.time_variance_ratio)),
        ("compute", percent(summary.avg_compute_ratio), "overlap", percent(summary.avg_overlap_ratio)),
        ("exposed comm", percent(summary.avg_exposed_communication_ratio), "idle", percent(summary.avg_idle_ratio)),
    )
    return [
        _cut(f"{ranks}{nodes}{gpus}", f"{'ranks':<14}"),
        *(f"  {name:<13} {value:<16} {other:<10} {text}" for name, value, other, text in pairs),
    ]


def _cut(text: str, label: str = "") -> str:
    line = f"  {label}{one_line(text)}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _wrapped(text: str, most: int) -> list[str]:
    lines = textwrap.wrap(one_line(text), WIDTH - 2, max_lines=most, placeholder=" ...", break_on_hyphens=False)
    return [f"  {line}" for line in lines]


def stats_of(view: View, run_dir: Path) -> dict[str, Any]:
    """What C(set_stats) publishes: small, flat, without anything secret.

    The names must not be those of settings: in a workflow they become extra variables of the next job.
    """
    summary = view.results.summary.model_dump() if view.results is not None else {}
    failing = [check.name for check in view.verdict.failing] if view.verdict is not None else []
    return {
        "aorta_status": view.status or "not_judged",
        "aorta_reason": one_line(view.reason),
        "aorta_reported_run": view.run_id,
        "aorta_report": str(run_dir / "report.html"),
        "aorta_results": {
            **summary,
            "num_ranks": view.num_measured,
            "missing_ranks": view.world_size - view.num_measured,
        },
        "aorta_failed_checks": failing[:MAX_NAMES],
    }


__all__ = ["NOT_MEASURED", "milliseconds", "percent", "stats_of", "summary_lines"]
