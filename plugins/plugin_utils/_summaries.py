# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summaries that hosts have sent in the place of their traces, as if the traces had just been read here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome, TraceFile
from ansible_collections.aorta.automation.plugins.module_utils._trace_summary import (
    SUFFIX,
    Header,
    OtherVersion,
    read_header,
    read_summary,
)
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import FileSummary
from ansible_collections.aorta.automation.plugins.plugin_utils._deps import TypeAdapter, ValidationError
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import files_below, ranks_in_path


def is_summary(file: TraceFile) -> bool:
    """Whether C(file) stands for a trace that is elsewhere."""
    return file.path.name.endswith(SUFFIX)


def find_summaries(root: Path) -> list[TraceFile]:
    """The traces of which there are summaries below C(root), sorted by name. Raises OSError, ValueError.

    Name, size, time and checksum are the trace's; a summary that is damaged stands for itself.
    """
    found = []
    for candidate in files_below(root, (SUFFIX,)):
        try:
            header = read_header(candidate.path)
        except OtherVersion as exc:
            raise ValueError(_outdated(candidate.path, exc)) from None
        except ValueError:
            name = candidate.name.removesuffix(SUFFIX)
            found.append(TraceFile(candidate.path, name, ranks_in_path(name), candidate.bytes, candidate.mtime_ns))
        else:
            found.append(_traced(candidate.path, header))
    return sorted(found, key=lambda file: (file.path_ranks or (0,), file.name))


def _traced(path: Path, header: Header) -> TraceFile:
    return TraceFile(path, header.name, ranks_in_path(header.name), header.bytes, header.mtime_ns, sha256=header.sha256)


def load_outcome(file: TraceFile, rule: str | list[str]) -> Outcome:
    """What the host made of the trace.

    Raises OSError, and ValueError where the summary can't serve: it was made by another version, or with another
    C(rule) for communication kernels. A damaged one is an outcome with an error.
    """
    try:
        header, data = read_summary(file.path)
    except OtherVersion as exc:
        raise ValueError(_outdated(file.path, exc)) from None
    except ValueError as exc:
        return Outcome(file, error=("summary_damaged", f"the summary {file.path.name} can't be used: {exc}", None))
    if header.rule != rule:
        raise ValueError(
            f"analysis.communication_kernels: {rule!r}, but {file.path} was made on its host with {header.rule!r}:"
            " with another rule the traces have to be read again; set what it was made with, or analyse the traces"
        )
    outcome = Outcome(file, error=header.error, sha256=header.sha256)
    if data is not None:
        outcome.summary = _checked(data)
        if outcome.summary is None:
            message = f"the summary {file.path.name} can't be used: its fields are not what they should be"
            outcome.error = ("summary_damaged", message, None)
    return outcome


def _checked(data: dict[str, Any]) -> FileSummary | None:
    try:
        summary: FileSummary = TypeAdapter(FileSummary).validate_python(data)
    except ValidationError:
        return None
    return summary


def _outdated(path: Path, exc: OtherVersion) -> str:
    return (
        f"{path}: written by another version of this collection ({exc}): analyse the traces themselves, or run again"
        " with one version on the controller"
    )
