# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as a workbook: all figures, one sheet a subject, units in the headers.

Names from traces and hosts are data. Text that a spreadsheet would take for a formula is stored as text and marked
as quoted, so that it stays text when a cell is edited or the sheet is exported.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._deps import openpyxl
from ansible_collections.aorta.automation.plugins.plugin_utils._report import View
from ansible_collections.aorta.automation.plugins.plugin_utils._results import (
    KernelCounts,
    Ratios,
    Timeline,
)

CELL_LIMIT = 32767
MAX_ROWS = 50_000
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")
# What OOXML can't hold: control characters but tab and line ends, halves of surrogate pairs, non-characters.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

MS, RATIO, INTEGER, GBPS, TEXT = "#,##0.000", "0.0000", "#,##0", "#,##0.00", "@"
_STATISTICS = ("mean", "median", "std", "min", "max", "p95")


@dataclasses.dataclass(frozen=True)
class Column:
    """Header with unit, number format, width in characters."""

    header: str
    form: str = TEXT
    width: int = 14


@dataclasses.dataclass(frozen=True)
class Sheet:
    """C(rows) yield values in the order of C(columns)."""

    title: str
    columns: Sequence[Column]
    rows: Iterable[Sequence[Any]]


def clean(text: str) -> str:
    """C(text) as a cell can hold it."""
    text = _ILLEGAL.sub("\ufffd", text)
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def workbook(view: View) -> bytes:
    """The bytes of the .xlsx file. Needs openpyxl."""
    book = openpyxl.Workbook(write_only=True)
    for sheet in _sheets(view):
        _write(book, sheet)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _write(book: Any, sheet: Sheet) -> None:
    page = book.create_sheet(sheet.title)
    page.freeze_panes = "A2"
    for number, column in enumerate(sheet.columns, 1):
        page.column_dimensions[openpyxl.utils.get_column_letter(number)].width = column.width
    bold = openpyxl.styles.Font(bold=True)
    fill = openpyxl.styles.PatternFill("solid", fgColor="FFE8EDF2")
    wrap = openpyxl.styles.Alignment(wrap_text=True, vertical="top")
    header = []
    for column in sheet.columns:
        cell = _cell(page, column.header, TEXT)
        cell.font, cell.fill, cell.alignment = bold, fill, wrap
        header.append(cell)
    page.append(header)
    count = 0
    left_out = 0
    for row in sheet.rows:
        if count == MAX_ROWS:
            left_out += 1
            continue
        count += 1
        page.append([_cell(page, value, column.form) for value, column in zip(row, sheet.columns, strict=True)])
    page.auto_filter.ref = f"A1:{openpyxl.utils.get_column_letter(len(sheet.columns))}{count + 1}"
    if left_out:
        page.append([_cell(page, f"{left_out} more rows are left out; results.json has all of them", TEXT)])


def _cell(page: Any, value: Any, form: str) -> Any:
    """A number or a text, never a formula. None stays empty."""
    cell = openpyxl.cell.WriteOnlyCell(page)
    if isinstance(value, str):
        text = clean(value)
        cell.value = text
        cell.data_type = "s"
        if text.startswith(_DANGEROUS):
            cell.quotePrefix = True
    elif value is not None:
        cell.value = value
        cell.number_format = form
    return cell


def _sheets(view: View) -> Iterator[Sheet]:
    yield Sheet("summary", [Column("what", width=34), Column("value", RATIO, 60), Column("unit")], _summary(view))
    yield Sheet(
        "checks",
        [
            Column("check", width=30),
            Column("metric", width=36),
            Column("result", width=15),
            Column("found", "General"),
            Column("comparison", width=12),
            Column("limit", "General"),
            Column("unit", width=8),
            Column("worst rank", INTEGER, 10),
            Column("worst node", width=20),
            Column("message", width=90),
        ],
        _checks(view),
    )
    yield Sheet(
        "per rank",
        [
            Column("rank", INTEGER, 7),
            Column("node", width=20),
            Column("local rank", INTEGER, 8),
            Column("GPU", width=24),
            Column("iterations", INTEGER, 10),
            *(Column(f"iteration {name} (ms)", MS) for name in _STATISTICS),
            *(Column(f"{name.replace('_', ' ')} (ms)", MS) for name in Timeline.model_fields),
            *(
                Column(f"{name} ratio", RATIO, 12)
                for name in ("compute", "communication", "exposed", "overlap", "idle")
            ),
            *(Column(f"{name} kernels", INTEGER, 13) for name in KernelCounts.model_fields),
            Column("times last", INTEGER, 9),
            Column("waited (ms)", MS),
            Column("made others wait (ms)", MS),
            Column("remarks", width=60),
            Column("trace", width=50),
        ],
        _ranks(view),
    )
    yield Sheet(
        "per step",
        [
            Column("rank", INTEGER, 7),
            Column("node", width=20),
            Column("step", INTEGER, 7),
            Column("iteration (ms)", MS),
            *(Column(f"{name.replace('_', ' ')} (ms)", MS) for name in Timeline.model_fields),
        ],
        _steps(view),
    )
    yield Sheet(
        "collectives",
        [
            Column("group", width=16),
            Column("sequence number", INTEGER, 10),
            Column("operation", width=26),
            Column("type", width=12),
            Column("size (bytes)", INTEGER),
            Column("ranks", INTEGER, 8),
            Column("missing ranks", INTEGER, 8),
            Column("shortest duration (ms)", MS),
            Column("arrival skew (ms)", MS),
            Column("end skew (ms)", MS),
            Column("first rank", INTEGER, 8),
            Column("last rank", INTEGER, 8),
            Column("algorithm bandwidth (GB/s)", GBPS),
            Column("bus bandwidth (GB/s)", GBPS),
        ],
        _collectives(view),
    )
    yield Sheet(
        "collective sizes",
        [
            Column("operation", width=26),
            Column("group", width=16),
            Column("group size", INTEGER, 8),
            Column("type", width=12),
            Column("size (bytes)", INTEGER),
            Column("count", INTEGER, 10),
            *(Column(f"{name} duration (ms)", MS) for name in ("shortest", "median", "longest")),
            *(Column(f"{name} arrival skew (ms)", MS) for name in ("median", "largest")),
            Column("median algorithm bandwidth (GB/s)", GBPS),
            *(Column(f"{name} bus bandwidth (GB/s)", GBPS) for name in ("smallest", "median", "largest")),
        ],
        _collective_sizes(view),
    )
    yield Sheet(
        "stragglers",
        [
            Column("rank", INTEGER, 7),
            Column("node", width=20),
            Column("collectives", INTEGER, 11),
            Column("times last", INTEGER, 9),
            Column("times first", INTEGER, 9),
            Column("waited (ms)", MS),
            Column("made others wait (ms)", MS),
            Column("made others wait per step (ms)", MS),
            *(Column(f"late by {name} (ms)", MS) for name in ("compute", "host", "network", "unexplained")),
            Column("cause", width=10),
            Column("which figure shows it", width=90),
        ],
        _stragglers(view),
    )
    yield Sheet(
        "stragglers by step",
        [
            Column("step", INTEGER, 7),
            Column("rank", INTEGER, 7),
            Column("node", width=20),
            Column("times last", INTEGER, 9),
            Column("made others wait (ms)", MS),
        ],
        (
            (one.step, one.rank, one.node, one.times_last, one.made_others_wait_us / 1000)
            for one in view.straggler_steps
        ),
    )
    yield Sheet(
        "outside steps",
        [
            Column("rank", INTEGER, 7),
            Column("node", width=20),
            *(Column(f"{name.replace('_', ' ')} (ms)", MS) for name in Timeline.model_fields),
            Column("busy, share of the rank's", RATIO),
        ],
        ((row.rank, row.node, *_timeline(row.timeline), row.share) for row in view.outside),
    )
    yield Sheet(
        "clocks",
        [
            Column("node", width=20),
            Column("ahead of the first node's (us)", "0.000", 16),
            Column("spread (us)", "0.000"),
        ],
        ((node, offset, view.results.clock_spreads_us.get(node)) for node, offset in view.clocks if view.results),
    )
    yield Sheet(
        "kernel kinds",
        [
            Column("rank (empty: all)", INTEGER, 10),
            Column("kind", width=18),
            Column("names", INTEGER, 8),
            Column("calls", INTEGER, 10),
            Column("total (ms)", MS),
            Column("mean (ms)", MS),
            Column("share of GPU time", RATIO, 12),
            *(Column(f"{name} total of a rank (ms)", MS) for name in ("smallest", "median", "largest")),
            Column("rank with the largest", INTEGER, 10),
        ],
        _kernel_kinds(view),
    )
    yield Sheet(
        "kernels",
        [
            Column("rank (empty: all)", INTEGER, 10),
            Column("category", width=16),
            Column("kind", width=16),
            Column("calls", INTEGER, 10),
            Column("total (ms)", MS),
            *(Column(f"{name} (ms)", MS) for name in ("mean", "p50", "p99")),
            Column("share of GPU time", RATIO, 12),
            Column("ranks", INTEGER, 8),
            Column("rank with the largest mean", INTEGER, 10),
            Column("its mean (ms)", MS),
            Column("median of the ranks' means (ms)", MS),
            Column("kernel", width=110),
        ],
        _kernels(view),
    )
    if view.results is not None and view.results.tracelens is not None:
        yield Sheet(
            "TraceLens",
            [
                Column("rank", INTEGER, 7),
                Column("length", width=24),
                Column("here (us)", "0.0000"),
                Column("TraceLens (us)", "0.0000"),
                Column("difference (us)", "0.0000"),
                Column("tolerance (us)", "0.0000"),
                Column("agrees", width=9),
            ],
            (
                (
                    one.rank,
                    one.metric.replace("_", " "),
                    one.ours_us,
                    one.theirs_us,
                    one.difference_us,
                    one.tolerance_us,
                    "yes" if one.agrees else "no",
                )
                for one in view.results.tracelens.comparison
            ),
        )
    yield Sheet(
        "warnings",
        [Column("kind", width=10), Column("code", width=28), Column("where", width=40), Column("message", width=110)],
        _messages(view),
    )
    yield Sheet(
        "configuration",
        [Column("setting", width=50), Column("value", width=70), Column("set by", width=18)],
        ((setting.path, setting.value, setting.layer) for setting in view.settings),
    )


def _summary(view: View) -> Iterator[Sequence[Any]]:
    yield "verdict", view.word, ""
    yield "reason", view.reason, ""
    if view.hint:
        yield "where to look", view.hint, ""
    yield "run", view.run_id, ""
    yield "benchmark", view.benchmark, ""
    yield "created (UTC)", view.created or "not recorded", ""
    yield "GPU", ", ".join(view.gpus) or "not recorded", ""
    yield "nodes", len(view.nodes) or None, ""
    yield "ranks measured", view.num_measured, ""
    yield "ranks expected", view.world_size, ""
    if view.results is None:
        yield "figures", "there are no results", ""
        return
    for name, value in view.results.summary.model_dump().items():
        unit = "ms" if name.endswith("_ms") else "ratio"
        label = name.removeprefix("avg_").removesuffix("_ms").replace("_", " ")
        yield label, "not measured" if value is None else value, unit


def _checks(view: View) -> Iterator[Sequence[Any]]:
    for check in view.verdict.checks if view.verdict else ():
        yield (
            check.name,
            check.metric,
            view.result_of(check).replace("_", " "),
            check.actual,
            check.comparison,
            check.limit,
            check.unit,
            None if check.worst is None else check.worst.rank,
            None if check.worst is None else check.worst.node,
            check.message,
        )


def _ms(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _timeline(timeline: Any) -> list[float | None]:
    return [None if timeline is None else getattr(timeline, name) / 1000 for name in Timeline.model_fields]


def _ranks(view: View) -> Iterator[Sequence[Any]]:
    for row in view.ranks:
        one = row.result
        iterations = None if one is None else one.iterations
        counts = None if one is None else one.kernel_counts
        yield (
            row.rank,
            row.node,
            row.local_rank,
            None if one is None else one.gpu,
            None if iterations is None else iterations.count,
            *(None if iterations is None else getattr(iterations, f"{name}_ms") for name in _STATISTICS),
            *_timeline(None if one is None else one.timeline_us),
            *(None if one is None else getattr(one.ratios, name) for name in Ratios.model_fields),
            *(None if counts is None else getattr(counts, name) for name in KernelCounts.model_fields),
            None if row.straggler is None else row.straggler.times_last,
            None if row.straggler is None else row.straggler.wait_us / 1000,
            row.made_others_wait_ms,
            "; ".join(row.remarks),
            None if one is None else one.trace,
        )


def _steps(view: View) -> Iterator[Sequence[Any]]:
    if view.results is None:
        return
    nodes = {row.rank: row.node for row in view.ranks}
    durations = {
        row.rank: iter(row.iterations.durations_ms) for row in view.results.per_rank if row.iterations is not None
    }
    for step in view.results.steps:
        length = next(durations.get(step.rank, iter(())), None)
        yield step.rank, nodes.get(step.rank), step.step, length, *_timeline(step.timeline_us)


def _collectives(view: View) -> Iterator[Sequence[Any]]:
    for one in view.results.collectives if view.results else ():
        yield (
            one.group,
            one.seq,
            one.name,
            one.dtype,
            one.bytes,
            len(one.ranks),
            len(one.missing_ranks),
            one.min_duration_us / 1000,
            _ms(one.arrival_skew_us),
            _ms(one.end_skew_us),
            one.first_rank,
            one.last_rank,
            one.algbw_gbps,
            one.busbw_gbps,
        )


def _collective_sizes(view: View) -> Iterator[Sequence[Any]]:
    for one in view.sizes:
        yield (
            one.name,
            one.group,
            one.group_size,
            one.dtype,
            one.bytes,
            one.count,
            one.min_duration_us / 1000,
            one.median_duration_us / 1000,
            one.max_duration_us / 1000,
            _ms(one.median_arrival_skew_us),
            _ms(one.max_arrival_skew_us),
            one.median_algbw_gbps,
            one.min_busbw_gbps,
            one.median_busbw_gbps,
            one.max_busbw_gbps,
        )


def _stragglers(view: View) -> Iterator[Sequence[Any]]:
    for row in view.stragglers:
        one = row.one
        yield (
            one.rank,
            one.node,
            one.collectives,
            one.times_last,
            one.times_first,
            one.wait_us / 1000,
            one.made_others_wait_us / 1000,
            row.per_step_ms,
            *(late for _name, late in row.parts),
            one.cause,
            one.cause_message,
        )


def _kernel_kinds(view: View) -> Iterator[Sequence[Any]]:
    for one in view.results.kernel_kinds if view.results else ():
        yield (
            one.rank,
            one.kind,
            one.names,
            one.calls,
            one.total_us / 1000,
            one.mean_us / 1000,
            one.share,
            _ms(one.min_total_us),
            _ms(one.median_total_us),
            _ms(one.max_total_us),
            one.slowest_rank,
        )


def _kernels(view: View) -> Iterator[Sequence[Any]]:
    for one in view.results.top_kernels if view.results else ():
        yield (
            one.rank,
            one.category,
            one.kind,
            one.calls,
            one.total_us / 1000,
            one.mean_us / 1000,
            _ms(one.p50_us),
            _ms(one.p99_us),
            one.share,
            one.ranks,
            one.slowest_rank,
            _ms(one.slowest_mean_us),
            _ms(one.median_mean_us),
            one.name,
        )


def _messages(view: View) -> Iterator[Sequence[Any]]:
    for kind, entries in (("error", view.errors), ("warning", view.warnings)):
        for one in entries:
            yield kind, one.code, one.place, one.message


__all__ = ["CELL_LIMIT", "MAX_ROWS", "clean", "workbook"]
