# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: B905 (zip has no "strict" before Python 3.10)
"""The summary of a trace as a file: what a host sends in the place of the trace.

A gzip file of one or two lines of JSON. The first says which trace it is of, how it was read and what was wrong with
it; the second holds the fields of C(FileSummary) and is missing where the trace could not be summarised. Collectives
take most of the room, so what is the same for many of them is written once.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import tempfile
import zlib
from typing import Any, Sequence

from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import SUMMARY_VERSION, FileSummary

FORMAT = "aorta.automation trace summary 1"
SUFFIX = ".summary.json.gz"
# Larger than any real one (a million collectives); more is a file that unpacks without end.
MAX_TEXT = 1 << 29
_MAX_HEADER = 1 << 20
_FIELDS = frozenset(field.name for field in dataclasses.fields(FileSummary))
# Numbers of a collective that recur; all its other numbers differ from one to the next.
_RECURRING = frozenset(("group_size", "in_elements", "out_elements", "stream"))


class OtherVersion(Exception):
    """The summary was written by a version of the reader whose summaries mean something else."""


@dataclasses.dataclass(frozen=True)
class Header:
    """The first line. C(rule) as for C(compile_rule); C(name) of the trace is its path below the trace directory.

    C(rank) is what the trace itself says, C(error) is (code, message, byte or None).
    """

    name: str
    bytes: int
    mtime_ns: int
    sha256: str
    rank: int | None
    rule: str | list[str]
    error: tuple[str, str, int | None] | None


def write_summary(path: str | os.PathLike[str], outcome: Outcome, rule: str | Sequence[str]) -> None:
    """Write what was read of one trace to C(path), atomically; equal input gives equal bytes. Raises OSError."""
    file = outcome.file
    header = {
        "format": FORMAT,
        "version": SUMMARY_VERSION,
        "name": file.name,
        "bytes": file.bytes,
        "mtime_ns": file.mtime_ns,
        "sha256": outcome.sha256,
        "rank": None if outcome.summary is None else outcome.summary.rank,
        "communication_kernels": rule if isinstance(rule, str) else list(rule),
        "error": outcome.error,
    }
    lines = [json.dumps(header, allow_nan=False)]
    if outcome.summary is not None:
        lines.append(json.dumps(_packed(outcome.summary), allow_nan=False, separators=(",", ":")))
    data = gzip.compress("\n".join(lines).encode("ascii"), 6, mtime=0)
    handle, temporary = tempfile.mkstemp(prefix=".summary.", suffix=".tmp", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the first line only. Raises OSError, OtherVersion, and ValueError for a damaged file."""
    return _header(_unzipped(path, _MAX_HEADER, line=True))


def read_summary(path: str | os.PathLike[str]) -> tuple[Header, dict[str, Any] | None]:
    """The header, and the fields for C(FileSummary) if the trace could be read.

    Raises OSError, OtherVersion, and ValueError for a damaged file.
    """
    first, _newline, second = _unzipped(path, MAX_TEXT).partition(b"\n")
    header = _header(first)
    return header, _unpacked(_decoded(second)) if second else None


def _unzipped(path: str | os.PathLike[str], limit: int, *, line: bool = False) -> bytes:
    """The text of the file, or only its first C(line), if it is no longer than C(limit)."""
    with open(path, "rb") as stream:
        try:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                text = unpacked.readline(limit + 1) if line else unpacked.read(limit + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise ValueError("the gzip data are damaged: %s" % exc) from None
    if len(text) > limit:
        raise ValueError("it unpacks to more than %d bytes" % limit)
    return text


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError("not valid JSON: %s" % exc) from None


def _header(line: bytes) -> Header:
    data = _decoded(line)
    if not isinstance(data, dict) or not str(data.get("format", "")).startswith(FORMAT.rpartition(" ")[0]):
        raise ValueError("not a summary of a trace")
    if (data["format"], data.get("version")) != (FORMAT, SUMMARY_VERSION):
        raise OtherVersion("%s, version %s" % (data["format"], data.get("version")))
    kinds: dict[str, Any] = {
        "name": str,
        "bytes": int,
        "mtime_ns": int,
        "sha256": str,
        "communication_kernels": (str, list),
    }
    wrong = [key for key, kind in kinds.items() if not isinstance(data.get(key), kind)]
    error = data.get("error")
    if error is not None and not (isinstance(error, list) and list(map(type, error[:2])) == [str, str]):
        wrong.append("error")
    if wrong:
        raise ValueError("its first line does not say %s" % ", ".join(wrong))
    return Header(
        name=data["name"],
        bytes=data["bytes"],
        mtime_ns=data["mtime_ns"],
        sha256=data["sha256"],
        rank=data.get("rank") if isinstance(data.get("rank"), int) else None,
        rule=data["communication_kernels"],
        error=None if error is None else (error[0], error[1], error[2] if len(error) > 2 else None),
    )


def _packed(summary: FileSummary) -> dict[str, Any]:
    """The fields as JSON has them, collectives as [kind, values of what varies], starts as differences."""
    data = {name: getattr(summary, name) for name in sorted(_FIELDS)}
    kinds: dict[str, int] = {}
    rows = []
    before = 0
    for record in summary.collectives:
        varying = [key for key, value in record.items() if isinstance(value, int) and key not in _RECURRING]
        kind = json.dumps([{key: value for key, value in record.items() if key not in varying}, varying])
        row = [kinds.setdefault(kind, len(kinds)), *(record[name] for name in varying)]
        if "start" in varying:
            place = varying.index("start") + 1
            row[place], before = row[place] - before, row[place]
        rows.append(row)
    data["collectives"] = {"kinds": [json.loads(kind) for kind in kinds], "rows": rows}
    return data


def _unpacked(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != _FIELDS:
        raise ValueError("its second line is not the summary of a trace")
    collectives = []
    before = 0
    try:
        kinds = [(dict(constant), list(varying)) for constant, varying in data["collectives"]["kinds"]]
        for number, *values in data["collectives"]["rows"]:
            constant, varying = kinds[number]
            record = {**constant, **dict(zip(varying, values))}
            if "start" in varying:
                before += record["start"]
                record["start"] = before
            collectives.append(record)
    except (TypeError, ValueError, KeyError, IndexError):
        raise ValueError("its list of collectives is damaged") from None
    return {**data, "collectives": collectives}
