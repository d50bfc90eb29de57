# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading traces side by side, the same on the head node and on a host.

Each file is read in a process of its own, as many at a time as there are cores (in several where there are fewer files
than cores), so that a damaged file, or one that gets its reader killed, costs nothing but its own figures.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Iterable, cast

from ansible_collections.aorta.automation.plugins.module_utils._trace_find import sha256_of
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import NotATrace, TraceError
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import FileSummary, summarise_file


@dataclasses.dataclass(frozen=True)
class TraceFile:
    """A candidate: C(name) is its path below the trace directory, C(path_ranks) the ranks named in that path.

    C(sha256) is empty until it is known. C(path) leads to the trace, or to its summary where the trace is elsewhere;
    C(bytes) and C(mtime_ns) are the trace's own in either case.
    """

    path: Path
    name: str
    path_ranks: tuple[int, ...]
    bytes: int
    mtime_ns: int
    sha256: str = ""


@dataclasses.dataclass
class Outcome:
    """What became of a file: a summary, an error (code, message, byte), or neither (it is no trace)."""

    file: TraceFile
    summary: FileSummary | None = None
    error: tuple[str, str, int | None] | None = None
    sha256: str = ""


def cores() -> int:
    """How many cores this process may use; fewer than the machine has inside a container or a batch job."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def read_files(
    files: Iterable[TraceFile],
    communication: re.Pattern[str],
    *,
    max_bytes: int | None = None,
    processes: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Summarise the files, C(processes) (default: the number of cores) at a time; outcomes in the order of C(files).

    C(progress) is called after each file. Never raises for a file's sake.
    """
    files = list(files)
    context = multiprocessing.get_context("fork")
    limit = max(1, processes or cores())
    each = max(1, limit // max(1, len(files)))
    outcomes: dict[TraceFile, Outcome] = {}
    # The largest first, so that no core ends up alone with a big one.
    waiting = sorted(files, key=lambda file: file.bytes)
    running: dict[Connection, tuple[Any, TraceFile]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                file = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(sender, file, communication, max_bytes, each))
                process.start()
                sender.close()
                running[receiver] = (process, file)
            for ready in cast("list[Connection]", wait(list(running))):
                process, file = running[ready]
                outcome = _receive(ready, process, file)
                del running[ready]
                outcomes[file] = outcome
                if progress is not None:
                    progress(outcome)
    finally:
        for receiver, (process, _file) in running.items():
            process.kill()
            process.join()
            receiver.close()
    return [outcomes[file] for file in files]


def _receive(receiver: Connection, process: Any, file: TraceFile) -> Outcome:
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join()
        ended = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit status {process.exitcode}"
        outcome = Outcome(file, error=("reader_died", f"the process that read it ended with {ended}", None))
    receiver.close()
    process.join()
    return outcome


def _child(
    sender: Connection, file: TraceFile, communication: re.Pattern[str], max_bytes: int | None, processes: int
) -> None:
    sender.send(read_file(file, communication, max_bytes, processes=processes))
    sender.close()


def _hash(sender: Connection, path: Path) -> None:
    try:
        sender.send((sha256_of(path), None))
    except OSError as exc:
        sender.send(("", exc.strerror or str(exc)))
    sender.close()


def read_file(
    file: TraceFile, communication: re.Pattern[str], max_bytes: int | None = None, *, processes: int = 1
) -> Outcome:
    """Summarise one file in this process. With more C(processes) others read parts of it, and take its sha256.

    Never raises for the file's sake.
    """
    outcome = Outcome(file)
    hashing: tuple[Any, Connection] | None = None
    if processes > 1:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        hashing = (context.Process(target=_hash, args=(sender, file.path)), receiver)
        hashing[0].start()
        sender.close()
    try:
        outcome.summary = summarise_file(file.path, communication, max_bytes=max_bytes, processes=processes)
    except NotATrace:
        pass
    except TraceError as exc:
        outcome.error = (exc.code, exc.message, exc.byte)
    except OSError as exc:
        outcome.error = ("trace_unreadable", f"can't be read: {exc.strerror or exc}", None)
    except MemoryError:
        outcome.error = ("trace_too_large", "out of memory while reading it", None)
    outcome.sha256, problem = _sha256(file.path, hashing)
    if problem is not None:
        outcome.error = outcome.error or ("trace_unreadable", f"can't be read: {problem}", None)
    return outcome


def _sha256(path: Path, hashing: tuple[Any, Connection] | None) -> tuple[str, str | None]:
    """The hash, or what prevents it; from the process that takes it, if there is one and it lives."""
    if hashing is not None:
        process, receiver = hashing
        try:
            found: tuple[str, str | None] = receiver.recv()
            return found
        except EOFError:
            pass  # killed: take it here
        finally:
            receiver.close()
            process.join()
    try:
        return sha256_of(path), None
    except OSError as exc:
        return "", exc.strerror or str(exc)
