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
        "kernels",
        [
            Column("rank (empty: all)", INTEGER, 10),
            Column("category", width=16),
            Column("calls", INTEGER, 10),
            Column("total (ms)", MS),
            Column("mean (ms)", MS),
            Column("share of GPU time", RATIO, 12),
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
    for node, offset in view.results.clock_offsets_us.items():
        yield f"clock of {node} ahead of the first node's", offset, "us"


def _checks(view: View) -> Iterator[Sequence[Any]]:
    for check in view.verdict.checks if view.verdict else ():
        yield (
            check.name,
            check.metric,
            check.status.replace("_", " "),
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


def _kernels(view: View) -> Iterator[Sequence[Any]]:
    for one in view.results.top_kernels if view.results else ():
        yield one.rank, one.category, one.calls, one.total_us / 1000, one.mean_us / 1000, one.share, one.name


def _messages(view: View) -> Iterator[Sequence[Any]]:
    for kind, entries in (("error", view.errors), ("warning", view.warnings)):
        for one in entries:
            yield kind, one.code, one.place, one.message


__all__ = ["CELL_LIMIT", "MAX_ROWS", "clean", "workbook"]
