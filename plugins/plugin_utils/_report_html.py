# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one HTML page, from Jinja templates that a user may replace one by one."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from ansible_collections.aorta.automation.plugins.plugin_utils import _report
from ansible_collections.aorta.automation.plugins.plugin_utils._report import View
from ansible_collections.aorta.automation.plugins.plugin_utils._report_text import NOT_MEASURED, percent
from ansible_collections.aorta.automation.plugins.plugin_utils._thresholds import number

TEMPLATE = "report.html.j2"
TEMPLATES = Path(__file__).resolve().parents[2] / "roles" / "report" / "templates"
# Control characters have no place in HTML; marks that reverse the order of text can make a name look like another.
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(value: Any) -> Any:
    """Text without what is invisible or reorders its surroundings; anything else as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return _UNWANTED.sub("\ufffd", value)
    return value


def ms(value: float | None, digits: int = 4) -> str:
    """Milliseconds without unit, thousands separated."""
    if value is None:
        return NOT_MEASURED
    decimals = 3 if value == 0 else min(3, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f}"


def size(value: int | None) -> str:
    """Bytes, in units of 1024."""
    if value is None:
        return "unknown size"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value = value / 1024  # type: ignore[assignment]
    return f"{value:.4g} {unit}"


def seconds(value: float | None) -> str:
    """C("2 min 23 s"), C("4.1 s")."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {value % 60:.0f} s"


def short(text: str, most: int = 80) -> str:
    """The beginning of C(text)."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def block(lines: str | Sequence[str], most: int = 400, width: int = 1000) -> str:
    """Text of several lines for C(pre): no control characters but tabs; long lines and long texts are cut."""
    lines = lines.splitlines() if isinstance(lines, str) else [part for line in lines for part in line.splitlines()]
    shown = [short(_printable(line), width) for line in lines[:most]]
    return "\n".join([*shown, *([f"... and {len(lines) - most} more lines"] if len(lines) > most else [])])


def _printable(line: str) -> str:
    return "".join(c if c == "\t" or not unicodedata.category(c).startswith("C") else "\ufffd" for c in line)


def environment(folders: Sequence[Path]) -> jinja2.Environment:
    """Everything is escaped, and a name that the templates do not get is an error."""
    result = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder) for folder in folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (ms, percent, size, seconds, short, number, block)
    result.filters.update({function.__name__: function for function in filters})
    result.globals.update(limits=_report, not_measured=NOT_MEASURED)
    return result


def render_html(view: View, template: Path | None = None) -> str:
    """The page. Beside C(template) (default: the one of role C(report)) and there, its parts are looked for.

    Raises ValueError naming template and line for one that can't be used.
    """
    folders = [TEMPLATES] if template is None else [template.parent, TEMPLATES]
    name = TEMPLATE if template is None else template.name
    try:
        return environment(folders).get_template(name).render(view=view)
    except jinja2.TemplateSyntaxError as exc:
        raise ValueError(f"template {exc.filename or exc.name}, line {exc.lineno}: {exc.message}") from exc
    except jinja2.TemplateError as exc:
        raise ValueError(f"template {template or TEMPLATES / name}: {exc.message}") from exc


__all__ = ["TEMPLATE", "TEMPLATES", "environment", "ms", "render_html", "size"]
