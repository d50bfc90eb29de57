# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files are traces, and whose rank they are."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome, TraceFile
from ansible_collections.aorta.automation.plugins.module_utils._trace_summary import SUFFIX
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import FileSummary
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Note, Problem

NODES_FILE = "nodes.json"
_NO_TRACES = frozenset((NODES_FILE, "results.json", "spec.json", "manifest.json", "verdict.json"))
# rank3, rank_3, rank-3, [rank3], rank[3]; not local_rank3, node_rank3, frank3.
_RANK = re.compile(r"(?<![a-z])(?<!local[_-])(?<!node[_-])(?<!group[_-])rank[\s_\-\[=.]*([0-9]{1,9})", re.IGNORECASE)


@dataclasses.dataclass
class RankTrace:
    """One rank's summaries (several for several profiler windows, in order of time) and what was found on the way."""

    rank: int
    files: list[tuple[TraceFile, FileSummary]]


@dataclasses.dataclass
class TraceSet:
    """All ranks of a directory. C(unplaced) counts traces whose rank could not be told."""

    ranks: dict[int, RankTrace] = dataclasses.field(default_factory=dict)
    world_size: int | None = None
    notes: list[Note] = dataclasses.field(default_factory=list)
    errors: list[Problem] = dataclasses.field(default_factory=list)
    file_ranks: dict[str, int] = dataclasses.field(default_factory=dict)
    unplaced: int = 0


def ranks_in_path(name: str) -> tuple[int, ...]:
    """The ranks a path names, the file's own name first, then its folders from the inside out; each once."""
    found = (int(rank) for part in reversed(Path(name).parts) for rank in _RANK.findall(part))
    return tuple(dict.fromkeys(found))


def find_traces(root: Path) -> list[TraceFile]:
    """All C(.json) and C(.json.gz) files below C(root) (or C(root) itself, a file) that may be traces, sorted by name.

    Links are followed, each file is taken once; hidden and temporary files and those of the run directory are left
    out. Nothing where C(root) does not exist. Raises OSError where it can't be read.
    """
    return [file for file in files_below(root, (".json", ".json.gz")) if not file.name.endswith(SUFFIX)]


def files_below(root: Path, suffixes: tuple[str, ...]) -> list[TraceFile]:
    """All files below C(root) (or C(root) itself) with one of C(suffixes), as C(find_traces) looks for them."""
    if not root.exists():
        return []
    if not root.is_dir():
        return [_candidate(root, root.parent)] if root.name.endswith(suffixes) else []
    found: dict[Path, TraceFile] = {}
    for folder in _folders(root):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = entry.name
                if name.startswith(".") or name in _NO_TRACES or not name.endswith(suffixes):
                    continue
                with contextlib.suppress(FileNotFoundError):  # a dangling link
                    if entry.is_file():
                        candidate = _candidate(Path(entry.path), root)
                        found.setdefault(candidate.path.resolve(), candidate)
    return sorted(found.values(), key=lambda file: (file.path_ranks or (0,), file.name))


def _candidate(path: Path, root: Path) -> TraceFile:
    status = path.stat()
    name = path.relative_to(root).as_posix()
    return TraceFile(path, name, ranks_in_path(name), status.st_size, status.st_mtime_ns)


def _folders(root: Path) -> Iterator[str]:
    seen = set()
    for folder, subfolders, _files in os.walk(root, followlinks=True, onerror=_raise):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield folder


def _raise(error: OSError) -> None:
    raise error


def read_nodes(root: Path) -> dict[int, str]:
    """Rank -> host from C(nodes.json) in the trace directory; empty without one. Raises ValueError if it is damaged."""
    folder = root if root.is_dir() else root.parent
    folders = (folder, folder / "traces", folder / "summaries")
    path = next((one / NODES_FILE for one in folders if (one / NODES_FILE).is_file()), None)
    if path is None:
        return {}
    data = read_json(path)
    try:
        return {int(rank): str(host) for rank, host in data.items()}
    except (AttributeError, ValueError):
        raise ValueError(f'{path}: expected {{"rank": "host", ...}}, got {json.dumps(data)[:80]}') from None


def traces_of_run(run_dir: Path) -> Path | None:
    """What there is to analyse in a run directory: its C(traces/), else C(summaries/); None if neither has a file."""
    folders = (run_dir / "traces", run_dir / "summaries")
    return next((folder for folder in folders if any(names for _root, _folders, names in os.walk(folder))), None)


# --- whose is it ------------------------------------------------------------------------------------------------------


def assign_ranks(outcomes: Iterable[Outcome]) -> TraceSet:
    """Give each file its rank, and each rank its files: the same data once, several profiler windows in order.

    The rank is the one in C(distributedInfo), which must not contradict the path; without it, the path's.
    """
    result = TraceSet()
    by_rank: dict[int, list[tuple[TraceFile, FileSummary]]] = defaultdict(list)
    for outcome in outcomes:
        file = outcome.file
        if outcome.error is not None:
            code, message, byte = outcome.error
            rank = file.path_ranks[0] if file.path_ranks else None
            where = "" if rank is None else f"rank {rank}: "
            at = "" if byte is None else f" (byte {byte})"
            result.errors.append(
                Problem(code=code, message=f"{where}{file.name}: {message}{at}", rank=rank, file=file.name, byte=byte)
            )
        elif outcome.summary is None:
            message = f"{file.name}: JSON without traceEvents, ignored"
            result.notes.append(Note(code="not_a_trace", message=message, file=file.name))
        else:
            rank = _rank_of(file, outcome.summary, result)
            if rank is None:
                result.unplaced += 1
            else:
                by_rank[rank].append((file, outcome.summary))
    for rank, files in sorted(by_rank.items()):
        _settle(rank, files, result)
    sizes = {summary.world_size for trace in by_rank.values() for _file, summary in trace if summary.world_size}
    result.world_size = max(sizes, default=None)
    if len(sizes) > 1:
        message = f"the traces name different world sizes ({', '.join(map(str, sorted(sizes)))}): are they of one run?"
        result.notes.append(Note(code="world_size_conflict", message=message))
    for problem in result.errors:
        if problem.file is not None and problem.rank is not None:
            result.file_ranks[problem.file] = problem.rank
    return result


def _rank_of(file: TraceFile, summary: FileSummary, result: TraceSet) -> int | None:
    named = file.path_ranks
    if summary.rank is not None:
        if not named or summary.rank in named:
            return summary.rank
        message = f"{file.name}: the path says rank {named[0]}, distributedInfo in the file says rank {summary.rank}"
        result.errors.append(Problem(code="rank_conflict", message=message, rank=named[0], file=file.name))
        return None
    if len(named) == 1:
        return named[0]
    if named:
        listed = " and ".join(f"rank {rank}" for rank in named)
        message = f"{file.name}: the path says {listed}, and the file has no rank in distributedInfo"
        result.errors.append(Problem(code="rank_conflict", message=message, file=file.name))
    else:
        message = (
            f"{file.name}: whose trace is it? The file has no rank in distributedInfo and its path names none;"
            " put it into a folder such as rank0/"
        )
        result.errors.append(Problem(code="rank_unknown", message=message, file=file.name))
    return None


def _span(summary: FileSummary) -> tuple[int, int] | None:
    """From the first to the last thing measured, absolute ns."""
    starts = [step[1] for step in summary.steps]
    ends = [step[1] + step[2] for step in summary.steps]
    if summary.start is not None and summary.end is not None:
        starts.append(summary.start)
        ends.append(summary.end)
    return (min(starts), max(ends)) if starts else None


def _settle(rank: int, files: list[tuple[TraceFile, FileSummary]], result: TraceSet) -> None:
    kept: dict[str, tuple[TraceFile, FileSummary]] = {}
    for file, summary in sorted(files, key=lambda pair: (len(pair[0].name), pair[0].name)):
        result.file_ranks[file.name] = rank
        first = kept.setdefault(summary.fingerprint, (file, summary))[0]
        if first is not file:
            message = f"rank {rank}: {file.name} holds the same events as {first.name}; counted once"
            result.notes.append(Note(code="duplicate_trace", message=message, rank=rank, file=file.name))
    windows = []
    for file, summary in kept.values():
        span = _span(summary)
        if span is not None:
            windows.append((span, file, summary))
        elif len(kept) > 1:
            message = f"rank {rank}: {file.name} holds neither GPU events nor steps; ignored"
            result.notes.append(Note(code="trace_without_data", message=message, rank=rank, file=file.name))
    if not windows:
        result.ranks[rank] = RankTrace(rank, list(kept.values())[:1])
        return
    windows.sort(key=lambda window: (window[0], window[1].name))
    for (early, one, _s), (late, other, _t) in itertools.pairwise(windows):
        if late[0] < early[1]:
            message = (
                f"rank {rank}: {one.name} and {other.name} cover the same time with different events;"
                " keep the one that is to count"
            )
            result.errors.append(Problem(code="ambiguous_traces", message=message, rank=rank, file=other.name))
            return
    result.ranks[rank] = RankTrace(rank, [(file, summary) for _span, file, summary in windows])
