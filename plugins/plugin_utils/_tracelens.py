# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds AMD's TraceLens (and tells it from the unrelated project of that name on PyPI), and runs it.

It never runs in this process: its helpers print, ask at the terminal and exit. Each rank, and the collectives of all
ranks, get a child (C(_tracelens_driver.py)) with a time limit, no terminal, an own home and an own log.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("_tracelens_driver.py")
FOLDER = "tracelens"
COLLECTIVES = "nccl_analysis_report"
TIMEOUT_SECONDS = 1800.0
INSTALL = "install AMD's from https://github.com/AMD-AGI/TraceLens (the PyPI project 'tracelens' is another one)"
# All that a child inherits: TraceLens needs no credentials of the controller.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "TZ")


@dataclasses.dataclass(frozen=True)
class Setup:
    """Which Python has TraceLens, a checkout to put on its path, and how long one child may take (seconds)."""

    python: str = sys.executable
    path: str | None = None
    timeout: float = TIMEOUT_SECONDS

    @property
    def chosen(self) -> bool:
        """Whether someone has said where TraceLens is."""
        return self.path is not None or self.python != sys.executable


@dataclasses.dataclass(frozen=True)
class TraceLens:
    """C(found): AMD's TraceLens can be used. C(message): one line, what there is or what to do.

    C(conspicuous): it is not found, but something is there that calls itself so, or is broken.
    """

    found: bool
    version: str | None
    message: str
    commit: str | None = None
    conspicuous: bool = False

    @property
    def name(self) -> str:
        """Version and commit as far as they are known, C(unknown) without either."""
        commit = self.commit[:12] if self.commit and self.commit[:7] not in (self.version or "") else None
        return " ".join(part for part in (self.version, commit and f"commit {commit}") if part) or "unknown"


@dataclasses.dataclass
class FileOutcome:
    """What TraceLens made of one trace: lengths in microseconds, events a bucket; names are below the folder."""

    log: str
    timeline: dict[str, float] | None = None
    events: dict[str, int] | None = None
    workbook: str | None = None
    error: str | None = None
    workbook_error: str | None = None


@dataclasses.dataclass
class Outcome:
    """What TraceLens made of all ranks: the files of each in the order given; C(collectives) None: not asked for."""

    ranks: dict[int, list[FileOutcome]]
    collectives: FileOutcome | None


def setup_of(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Setup:
    """From the section C(analysis) of the configuration and the environment variable TRACELENS_PATH."""
    python, timeout = options.get("tracelens_python"), options.get("tracelens_timeout_seconds")
    path = (os.environ if environ is None else environ).get("TRACELENS_PATH")
    return Setup(
        python=str(python) if python else sys.executable,
        path=str(Path(path).expanduser().absolute()) if path else None,
        timeout=TIMEOUT_SECONDS if timeout is None else float(timeout),
    )


def detect_tracelens(
    python: str | None = None, timeout: float = 60.0, *, path: str | None = None, deep: bool = True
) -> TraceLens:
    """Look for module C(TraceLens) in a child process (its import can prompt and exit). Never raises for what it finds.

    C(python) defaults to this interpreter; C(path) is a checkout. C(deep): import it and look for its known
    attributes, which takes a second; otherwise only where it is, its version and commit.
    """
    command = [python or sys.executable, str(DRIVER), "probe", *(["--import"] if deep else [])]
    if path is not None and not (Path(path) / "TraceLens" / "__init__.py").is_file():
        message = f"TRACELENS_PATH: {path} is no checkout of TraceLens (it has no TraceLens/__init__.py)"
        return TraceLens(False, None, message, conspicuous=True)
    try:
        with tempfile.TemporaryDirectory(prefix="aorta-tracelens.") as scratch:
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                check=False,
                env=_environment(path, scratch),
                cwd=scratch,
            )
        answer = json.loads(run.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return TraceLens(False, None, f"TraceLens did not answer within {timeout:g} s ({command[0]})", conspicuous=True)
    except (OSError, ValueError) as exc:
        message = f"TraceLens could not be looked for with {command[0]}: {exc}"
        return TraceLens(False, None, message, conspicuous=True)
    version, commit = answer["version"], answer["commit"]
    if answer["error"]:
        message = f"TraceLens ({answer['location'] or 'of unknown place'}) is installed but broken: {answer['error']}"
        return TraceLens(False, version, message, conspicuous=True)
    if answer["module"]:
        found = TraceLens(True, version, "", commit)
        return dataclasses.replace(found, message=f"TraceLens {found.name}")
    if answer["impostor"] or version is not None:
        what = f"the installed package 'tracelens' {version or ''}".rstrip()
        message = f"{what} is not AMD's TraceLens: pip uninstall tracelens, then {INSTALL}"
        return TraceLens(False, version, message, conspicuous=True)
    return TraceLens(False, None, f"TraceLens is not installed: {INSTALL}")


# --- running ----------------------------------------------------------------------------------------------------------


def run_tracelens(
    ranks: Mapping[int, Sequence[Path]],
    run_dir: Path,
    setup: Setup,
    *,
    collectives: bool = False,
    processes: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Run TraceLens over the traces of each rank, C(processes) (default: the number of cores) at a time.

    Its workbooks and logs become the folder C(tracelens) of C(run_dir), in place of what it held, when all
    is done. C(collectives): also the workbook over all ranks, which must be 0, 1, 2 ... with one trace each, for
    TraceLens takes a rank's number from its place in the list. Raises OSError where C(run_dir) can't be written;
    what goes wrong in TraceLens is in the outcome.
    """
    staged = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=run_dir))
    children = _Children(setup, staged)
    try:
        with concurrent.futures.ThreadPoolExecutor(max(1, processes or os.cpu_count() or 1)) as pool:
            try:
                whole = None
                if collectives:
                    # First, for it takes longest.
                    whole = pool.submit(children.collectives, [ranks[rank][0] for rank in sorted(ranks)])
                jobs = {
                    pool.submit(children.rank, _label(rank, number, len(files)), file): (rank, number)
                    for rank, files in sorted(ranks.items())
                    for number, file in enumerate(files)
                }
                for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
                    job.result()
                    if tell is not None:
                        tell(f"[analysis] TraceLens: {done} of {len(jobs)} traces (rank {jobs[job][0]})")
                outcomes: dict[int, list[FileOutcome]] = {rank: [] for rank in sorted(ranks)}
                for job, (rank, _number) in sorted(jobs.items(), key=lambda item: item[1]):
                    outcomes[rank].append(job.result())
                outcome = Outcome(outcomes, None if whole is None else whole.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                children.kill()
                raise
        staged.chmod(0o777 & ~_umask())
        publish(staged, run_dir / FOLDER)
        return outcome
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def publish(staged: Path, target: Path) -> None:
    """Put the folder C(staged) in the place of C(target), both in one file system. Raises OSError."""
    old = None
    if target.exists():
        old = staged.with_name(f"{staged.name}.old")
        target.rename(old)
    staged.rename(target)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _label(rank: int, number: int, files: int) -> str:
    return f"rank{rank}" if files == 1 else f"rank{rank}_window{number}"


class _Children:
    """Starts children in a scratch directory each, and ends them."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup, self.folder = setup, folder
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def rank(self, label: str, trace: Path) -> FileOutcome:
        """The timeline and the workbook of one trace."""
        workbook = self.folder / f"{label}_perf_report.xlsx"
        answer = self.folder / f".{label}.json"
        outcome = FileOutcome(log=f"{label}.log")
        wrong = self._run(
            outcome.log, "rank", str(trace.absolute()), "--workbook", str(workbook), "--answer", str(answer)
        )
        known = _read(answer)
        if known is None:
            outcome.error = wrong or "it left no answer"
        else:
            outcome.timeline, outcome.events = known["timeline_us"], known["events"]
            outcome.error, outcome.workbook_error = known["error"], known["workbook_error"] or wrong
        answer.unlink(missing_ok=True)
        self._keep(outcome, workbook)
        return outcome

    def collectives(self, traces: Sequence[Path]) -> FileOutcome:
        """The workbook of all ranks."""
        workbook, answer = self.folder / f"{COLLECTIVES}.xlsx", self.folder / f".{COLLECTIVES}.json"
        outcome = FileOutcome(log=f"{COLLECTIVES}.log")
        paths = [str(trace.absolute()) for trace in traces]
        wrong = self._run(outcome.log, "collectives", str(workbook), *paths, "--answer", str(answer))
        known = _read(answer)
        outcome.workbook_error = (wrong or "it left no answer") if known is None else known["error"] or wrong
        answer.unlink(missing_ok=True)
        self._keep(outcome, workbook)
        return outcome

    def _keep(self, outcome: FileOutcome, workbook: Path) -> None:
        if outcome.workbook_error is None and outcome.error is None and not workbook.is_file():
            outcome.workbook_error = "it wrote no workbook"
        if outcome.workbook_error is None and workbook.is_file():
            outcome.workbook = workbook.name
        else:
            workbook.unlink(missing_ok=True)

    def _run(self, log: str, *arguments: str) -> str | None:
        """Run the driver; returns in a few words what went wrong, None if it ended by itself with status 0."""
        command = [self.setup.python, str(DRIVER), *arguments]
        with (
            tempfile.TemporaryDirectory(prefix="aorta-tracelens.") as scratch,
            (self.folder / log).open("wb") as stream,
        ):
            try:
                with self._lock:
                    if self._stopped:
                        return "stopped"
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        env=_environment(self.setup.path, scratch),
                        cwd=scratch,
                        start_new_session=True,
                    )
                    self._running.add(process)
            except OSError as exc:
                return f"could not be started: {exc}"
            try:
                status = process.wait(self.setup.timeout)
            except subprocess.TimeoutExpired:
                _kill(process)
                return f"stopped after {self.setup.timeout:g} s (analysis.tracelens_timeout_seconds)"
            finally:
                with self._lock:
                    self._running.discard(process)
        if status < 0:
            return f"ended by signal {-status} ({signal.Signals(-status).name})"
        return f"ended with exit status {status}" if status else None

    def kill(self) -> None:
        """End all that run, start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        answer = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _environment(path: str | None, scratch: str) -> dict[str, str]:
    """Little is inherited. An own home, so that nothing is left in, or depends on, the user's."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, environment.get("PYTHONPATH"))))
    base = os.environ.get("PYTHONUSERBASE") or str(Path("~/.local").expanduser())
    return {
        **environment,
        "HOME": scratch,
        "TMPDIR": scratch,
        "MPLBACKEND": "Agg",
        "PYTHONUSERBASE": base,  # else what the user installed for himself would be sought in the new home
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # One core a child: there is one child a core.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
