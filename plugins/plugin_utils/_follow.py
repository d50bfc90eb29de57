# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The follower's core: watches one step on many hosts, through whatever runs a shell command there.

It knows neither Ansible nor ssh: a host is given as a function that runs a command and returns
(exit code, stdout, stderr) or raises OSError when the host can't be reached.
"""

from __future__ import annotations

import hashlib
import json
import queue
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, write_json

Shell = Callable[[str], tuple[int, bytes, bytes]]

PIECE_BYTES = 1 << 20
TAIL_LINES = 200
TAIL_CHARACTERS = 2000  # of a line: what is quoted goes into manifest and report

ENGINE_PATIENCE_SECONDS = 5
# A host that has not answered for this long is not waited for when the step is stopped.
LOST_SECONDS = 5
STOP_SECONDS = 45
FULL_DISK_BYTES = 1_000_000
# torch.distributed.elastic's report: the first failure, then "rank      : 5 (local_rank: 1)"
ROOT_CAUSE = re.compile(r"Root Cause.*?\brank\s*:\s*(\d+)", re.DOTALL)
# What PyTorch, Gloo and RCCL say in a rank whose peer has gone
PEER_GONE = re.compile(r"Connection (closed|reset) by (remote )?peer|ncclRemoteError|remote process exited|Broken pipe")
# For how long a rank that says so waits for the one that was the cause to be known
CAUSE_SECONDS = 5


@dataclass
class Target:
    """One host to follow."""

    name: str
    shell: Shell
    directory: str
    container: str | None = None
    sudo: bool = False


@dataclass
class State:
    """What the runtime says of a step; times are as the runtime gives them."""

    status: str  # running | exited | missing | unknown
    exit_code: int | None = None
    oom: bool = False
    timed_out: bool = False
    error: str = ""
    started: str | None = None
    finished: str | None = None
    pid: int = 0  # of the container's first process, as the host sees it; 0 when there is none


@dataclass
class Failure:
    """The first failure of a step."""

    host: str
    reason: str
    message: str
    exit_code: int | None = None
    rank: int | None = None
    log_tail: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # hosts where the step could not be stopped


class StepFailed(Exception):
    """The step did not end well; the other hosts have been told to stop."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def poll_command(target: Target, offset: int) -> str:
    """A shell command that prints the state, the size of the log, then the log from C(offset) on.

    The state is read before the log: when it says that the step has ended, the log is complete.
    """
    directory = shlex.quote(target.directory)
    if target.container is not None:
        docker = f"{'sudo -n ' if target.sudo else ''}timeout {ENGINE_PATIENCE_SECONDS} docker"
        state = f"{docker} inspect --type container --format '{{{{json .State}}}}' {shlex.quote(target.container)} 2>&1"
    else:
        state = f"cat {_host.STATE_FILE} 2>&1"
    return (
        f"cd {directory} || exit 9; : > {_host.HEARTBEAT_FILE}; "
        f"s=$({state}); printf '%s %s\\n' \"$?\" \"$(printf %s \"$s\" | tr '\\n' ' ')\"; "
        f"if [ -f {_host.LOG_FILE} ]; then wc -c < {_host.LOG_FILE}; "
        f"tail -c +{offset + 1} {_host.LOG_FILE} | head -c {PIECE_BYTES}; else echo 0; fi"
    )


def stop_command(target: Target, pid: int = 0, engine_answers: bool = True) -> str:
    """A shell command that ends the step on its host.

    Where the engine hangs or is gone, the container's first process C(pid) is ended without it, if that is still
    a process of this container (its cgroup says so).
    """
    if target.container is not None:
        sudo = "sudo -n " if target.sudo else ""
        by_engine = f"{sudo}timeout 40 docker stop -t 10 {shlex.quote(target.container)}"
        if not pid:
            return by_engine
        by_pid = (
            f"grep -q {shlex.quote(target.container)} /proc/{pid}/cgroup && {{ {sudo}kill -TERM {pid}; i=0; "
            f"while [ $i -lt 50 ] && [ -d /proc/{pid} ]; do sleep 0.2; i=$((i+1)); done; {sudo}kill -KILL {pid}; "
            f"sleep 0.2; [ ! -d /proc/{pid} ]; }}"
        )
        return f"{by_engine} || {by_pid}" if engine_answers else by_pid
    # the state file names the process group; the supervisor notes the end (dash's kill knows no "--")
    return (
        f"cd {shlex.quote(target.directory)} && "
        f'p=$(sed -n \'s/.*"pid": *\\([0-9][0-9]*\\).*/\\1/p\' {_host.STATE_FILE}) && [ -n "$p" ] && '
        f'kill -TERM "-$p" 2>/dev/null; i=0; while [ $i -lt 50 ] && kill -0 "-$p" 2>/dev/null; '
        f'do sleep 0.2; i=$((i+1)); done; kill -KILL "-$p" 2>/dev/null; true'
    )


def parse_poll(target: Target, output: bytes) -> tuple[State, int, bytes]:
    """State, size of the log and new bytes, from what C(poll_command) printed.

    Raises OSError when the engine does not answer (that is a host out of reach, not a failed step).
    """
    head, _newline, rest = output.partition(b"\n")
    size_text, _newline, data = rest.partition(b"\n")
    code_text, _space, text = head.decode("utf-8", "replace").partition(" ")
    if not code_text.isdigit() or not size_text.strip().isdigit():
        raise OSError(f"unexpected answer {output[:200]!r}")
    size = int(size_text)
    code = int(code_text)
    if target.container is None:
        return (_process_state(text) if code == 0 else State("missing", error=text)), size, data
    if code == 0:
        return _container_state(text), size, data
    if "no such" in text.lower():
        return State("missing", error=text.strip()), size, data
    what = "did not answer in time" if code == 124 else text.strip()
    raise OSError(f"the Docker engine: {what}")


def _process_state(text: str) -> State:
    try:
        record = json.loads(text)
    except ValueError:
        return State("unknown")
    return State(
        status=record["status"],
        exit_code=record["exit_code"],
        timed_out=record["timed_out"],
        started=str(record["started"]),
        finished=str(record["finished"]) if record["finished"] else None,
    )


def _container_state(text: str) -> State:
    record = json.loads(text)
    ended = record["Status"] in ("exited", "dead")
    code = int(record["ExitCode"])
    return State(
        status="exited" if ended else "running",
        exit_code=code if ended else None,
        oom=bool(record.get("OOMKilled")),
        timed_out=ended and code == 124,  # coreutils' timeout, which wraps the command
        error=record.get("Error") or "",
        started=record.get("StartedAt"),
        finished=record.get("FinishedAt") if ended else None,
        pid=int(record.get("Pid") or 0),
    )


def disk_command(target: Target) -> str:
    """A shell command that prints how many bytes are free where the step writes."""
    return f"df -Pk {shlex.quote(target.directory)} | awk 'NR == 2 {{ print $4 * 1024 }}'"


class Position:
    """Where the output of one step begins in the log of its host, so that another follower can go on with it.

    The log itself says how much of the output it holds: a follower that was killed has nothing else to write down.
    C(started) tells one start of the step from another.
    """

    def __init__(self, log_path: Path, step: str) -> None:
        self.log_path = log_path
        self.path = log_path.with_name(f".{log_path.stem}.{step}.json")
        self.started: str | None = None
        self.begin = 0
        try:
            record = read_json(self.path)
            self.started, self.begin = record["started"], record["begin"]
        except FileNotFoundError:
            return

    def at(self, started: str | None) -> int:
        """How many bytes of the output of the step that began at C(started) the log holds."""
        size = self.log_path.stat().st_size
        if self.started is None or started != self.started:
            self.started, self.begin = started, size
            write_json(self.path, {"started": started, "begin": size})
        return size - self.begin

    def last_lines(self) -> tuple[list[bytes], bytes]:
        """The last complete lines of the step that the log holds, and the line begun after them."""
        with self.log_path.open("rb") as stream:
            stream.seek(max(self.begin, stream.seek(0, 2) - PIECE_BYTES))
            *complete, rest = stream.read().split(b"\n")
        return complete[-TAIL_LINES:], rest


class HostFollower(threading.Thread):
    """Polls one host; hands over complete lines and keeps the log file."""

    def __init__(
        self, target: Target, log_path: Path, step: str, interval: float, lines: queue.Queue[tuple[str, list[str]]]
    ):
        super().__init__(name=f"follow {target.name}", daemon=True)
        self.target = target
        self.interval = interval
        self.lines = lines
        self.log_path = log_path
        self.step = step
        self.state = State("unknown")
        self.engine_answers = True
        self.done = threading.Event()
        self.stop_asked = threading.Event()
        self.last_contact = time.monotonic()
        self.trouble = ""
        self.line_count = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self.log_path.open("ab") as log:
                self._follow(log)
        except Exception as exc:  # a thread has no other way to say that the head node's disk is full
            self.error = exc
        finally:
            self.done.set()

    def _follow(self, log: IO[bytes]) -> None:
        position: Position | None = None
        offset, rest = 0, b""
        while not self.stop_asked.is_set():
            try:
                state, size, data = self._poll(offset)
            except OSError as exc:
                self.trouble = " ".join(str(exc).split())
                self.stop_asked.wait(max(1.0, self.interval))
                continue
            self.last_contact, self.trouble = time.monotonic(), ""
            self.engine_answers = True
            if position is None and state.status != "unknown":
                position = Position(self.log_path, self.step)
                offset = position.at(state.started)
                if offset:  # an earlier follower has written that much
                    complete, rest = position.last_lines()
                    self.tail.extend(_text(line)[:TAIL_CHARACTERS] for line in complete)
                    continue
            if data:
                log.write(data)
                log.flush()
                offset += len(data)
                *complete, rest = (rest + data).split(b"\n")
                self._hand_over(complete)
            self.state = state
            if state.status in ("exited", "missing") and offset >= size:
                break
            if offset >= size:
                self.stop_asked.wait(self.interval)
        if rest:
            self._hand_over([rest])

    def _poll(self, offset: int) -> tuple[State, int, bytes]:
        code, out, err = self.target.shell(poll_command(self.target, offset))
        if code != 0:
            raise OSError(err.decode("utf-8", "replace").strip() or f"exit code {code}")
        try:
            return parse_poll(self.target, out)
        except OSError:  # the host itself has answered
            self.engine_answers = False
            raise

    def _hand_over(self, complete: list[bytes]) -> None:
        if complete:
            texts = [_text(line) for line in complete]
            self.line_count += len(texts)
            self.tail.extend(text[:TAIL_CHARACTERS] for text in texts)
            self.lines.put((self.target.name, texts))


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


def follow(
    targets: list[Target],
    step: str,
    log_dir: Path,
    timeout: float,
    grace: float,
    interval: float,
    emit: Callable[[str, list[str]], None],
    interrupted: Callable[[], str | None],
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """Follow C(step) on all C(targets) until it has ended on each.

    C(emit(host, lines)) is called in this thread, in the order of arrival, C(tick()) several times a second.
    C(interrupted()) returns why the run has to stop, or None. C(timeout), C(grace) and C(interval) are in seconds.
    Returns how the step ended, a host each. Raises StepFailed; then the step has been stopped on all hosts.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    lines: queue.Queue[tuple[str, list[str]]] = queue.Queue()
    interval = max(interval, 0.02 * len(targets))
    followers = [HostFollower(t, log_dir / f"{safe_name(t.name)}.log", step, interval, lines) for t in targets]
    for follower in followers:
        follower.start()
    deadline = time.monotonic() + timeout
    failure: Failure | None = None
    while failure is None and not all(f.done.is_set() for f in followers):
        _drain(lines, emit, wait=0.1)
        tick()
        failure = _look(followers, step, deadline, timeout, grace, interrupted())
    if failure is None:
        failure = _first_failed(followers, step)
    elif failure.reason == "step_failed":
        # another host may have failed earlier and just not been looked at
        limit = time.monotonic() + 2 * interval
        while time.monotonic() < limit + (CAUSE_SECONDS if _is_consequence(failure.log_tail) else 0):
            time.sleep(0.1)
            failure = _first_failed(followers, step) or failure
    if failure is not None:
        if failure.reason == "step_failed":
            failure.message += _full_disk(next(t for t in targets if t.name == failure.host))
        failure.lost = _stop_all(followers)
        if failure.lost:
            failure.message += (
                f"; the step could not be stopped on {', '.join(failure.lost)}: its own deadline ends it, "
                "the next run there or playbooks/teardown.yml removes it"
            )
    _drain(lines, emit, wait=0)
    if failure is not None:
        raise StepFailed(failure)
    return {
        f.target.name: {
            "exit_code": f.state.exit_code,
            "lines": f.line_count,
            "started": f.state.started,
            "finished": f.state.finished,
        }
        for f in followers
    }


def safe_name(host: str) -> str:
    """A host's name as a file name; what had to be replaced in it is made up for by a hash, so that none meet."""
    name = re.sub(r"[^\w.@-]", "_", host).lstrip(".")[:100]
    return name if name == host else f"{name}-{hashlib.sha256(host.encode()).hexdigest()[:8]}"


def _drain(lines: queue.Queue[tuple[str, list[str]]], emit: Callable[[str, list[str]], None], wait: float) -> None:
    """Emit what has arrived; lines of one host that come together are emitted together."""
    try:
        item = lines.get(timeout=wait) if wait else lines.get_nowait()
        while True:
            emit(*item)
            item = lines.get_nowait()
    except queue.Empty:
        return


def _look(
    followers: list[HostFollower], step: str, deadline: float, timeout: float, grace: float, interrupt: str | None
) -> Failure | None:
    """What has gone wrong by now, None if nothing has."""
    if interrupt:
        return Failure(followers[0].target.name, "interrupted", f"{step}: stopped on all hosts: {interrupt}")
    failed = _first_failed(followers, step)
    if failed:
        return failed
    now = time.monotonic()
    for follower in followers:
        silent = now - follower.last_contact
        if not follower.done.is_set() and silent > grace:
            why = follower.trouble or "no answer"
            message = f"{step}: {follower.target.name} could not be reached for {silent:.0f} s: {why}"
            return Failure(follower.target.name, "unreachable", message, log_tail=list(follower.tail))
    if now > deadline:
        running = [f.target.name for f in followers if not f.done.is_set()]
        message = f"{step}: not done after {timeout:.0f} s (aorta_timeout_seconds) on {', '.join(running)}"
        first = next(f for f in followers if f.target.name == running[0])
        return Failure(running[0], "deadline", message, log_tail=list(first.tail))
    return None


def _first_failed(followers: list[HostFollower], step: str) -> Failure | None:
    """The host whose step failed first, by the runtimes' own records of the end."""
    found = []
    for follower in followers:
        if not follower.done.is_set():
            continue
        if follower.error is not None:
            message = f"{step}: the log of {follower.target.name} can't be kept: {follower.error}"
            return Failure(follower.target.name, "head_node", message)
        state = follower.state
        if state.status == "missing" or state.exit_code != 0 or state.oom:
            found.append((_is_consequence(follower.tail), state.finished or "", follower))
    if not found:
        return None
    _consequence, _finished, follower = min(found, key=lambda item: item[:2])
    state, host = follower.state, follower.target.name
    tail = list(follower.tail)
    match = ROOT_CAUSE.search("\n".join(tail))
    rank = int(match[1]) if match else None
    who = f"{host}, rank {rank}" if rank is not None else host
    message = f"{step}: failed first on {who}: {_explain(state)}"
    reason = "deadline" if state.timed_out else "step_failed"
    return Failure(host, reason, message, exit_code=state.exit_code, rank=rank, log_tail=tail)


def _is_consequence(tail: Iterable[str]) -> bool:
    """Whether the rank that failed first on a host says that it had lost another rank.

    Those ends follow the cause within milliseconds, and the clocks of hosts differ by more.
    """
    text = "\n".join(tail)
    match = ROOT_CAUSE.search(text)
    said = re.findall(rf"^\[rank{match[1]}\]: (.*)", text, re.MULTILINE) if match else []
    return bool(said and PEER_GONE.search(said[-1]))


def excerpt(tail: list[str], count: int) -> list[str]:
    """The C(count) lines that tell most of a failure: from the first traceback on, else the last ones."""
    start = next((i for i, line in enumerate(tail) if "Traceback (most recent call last)" in line), len(tail) - count)
    start = max(0, min(start, len(tail) - count))
    return tail[start : start + count]


def _explain(state: State) -> str:
    if state.status == "missing":
        return f"its container or process is gone ({state.error or 'removed by someone'})"
    if state.oom:
        return f"exit code {state.exit_code}, killed for lack of memory (OOM)"
    if state.timed_out:
        return f"exit code {state.exit_code}, for its deadline had passed (aorta_timeout_seconds)"
    text = f"exit code {state.exit_code}"
    if state.exit_code == 127:
        text += " (command not found)"
    elif state.exit_code is not None and state.exit_code > 128:
        text += f" (signal {state.exit_code - 128})"
    elif state.exit_code is not None and state.exit_code < 0:
        text += f" (signal {-state.exit_code})"
    return f"{text}: {state.error}" if state.error else text


def _full_disk(target: Target) -> str:
    """A remark for a failed step whose host has no space left: the step could not say so in its log."""
    try:
        code, out, _err = target.shell(disk_command(target))
        full = code == 0 and int(out) < FULL_DISK_BYTES
    except (OSError, ValueError):
        return ""
    return f"; the disk of {target.directory} is full" if full else ""


def _stop_all(followers: list[HostFollower]) -> list[str]:
    """Stop the step on every host where it may still run, on all at the same time, and read what it still prints.

    Returns the hosts where that was not possible.
    """
    lost = {follower.target.name for follower in followers if not follower.done.is_set()}

    def stop(follower: HostFollower) -> None:
        try:
            command = stop_command(follower.target, follower.state.pid, follower.engine_answers)
            code, _out, _err = follower.target.shell(command)
        except OSError:
            return  # out of reach
        if code == 0:
            lost.discard(follower.target.name)

    now = time.monotonic()
    begun = []
    for follower in followers:
        if follower.done.is_set():
            continue
        silent = follower.engine_answers and now - follower.last_contact > LOST_SECONDS
        thread = threading.Thread(target=stop, args=(follower,), daemon=True)
        thread.start()
        begun.append((follower, thread, now + (LOST_SECONDS if silent else STOP_SECONDS)))
    for _follower, thread, limit in begun:
        thread.join(timeout=max(0, limit - time.monotonic()))
    limit = time.monotonic() + 3
    for follower, thread, _limit in begun:
        if not thread.is_alive() and follower.engine_answers:
            follower.done.wait(timeout=max(0, limit - time.monotonic()))
    for follower in followers:
        follower.stop_asked.set()
    return sorted(lost)
