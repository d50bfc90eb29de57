# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows a step on all hosts from one worker (see the documentation of the module)."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.plugin_utils import _follow, _manifest

# AWX shows about the first KiB of an event, and drops from its live view what comes faster than 30 a second
PRINT_CHARACTERS = 1000
PRINT_SECONDS = 0.5
PRINTS_A_TIME = 7  # a second can hold three times, and the last print of all
LINE_CHARACTERS = 400
ALIVE = "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"


class Printer:
    """Prints lines with the host before them as C(stream) says: at once after a pause, then what has come together.

    A print is one event of AWX, so there are at most C(PRINTS_A_TIME) of them every C(PRINT_SECONDS); when more comes
    than fits into so many of C(PRINT_CHARACTERS), they are longer.
    """

    def __init__(self, display: Any, stream: str, hosts: list[str]) -> None:
        self.display = display
        self.every = 0 if stream == "quiet" else 1 if stream == "all" else int(stream)
        self.width = max(map(len, hosts))
        self.seen: dict[str, int] = {}
        self.waiting: list[str] = []
        self.printed = 0.0

    def __call__(self, host: str, lines: list[str]) -> None:
        first = self.seen.get(host, 0)
        self.seen[host] = first + len(lines)
        if self.every:
            start = -first % self.every
            head = f"[{host}]{' ' * (self.width - len(host))} "
            self.waiting += [head + printable(line) for line in lines[start :: self.every]]
            self.tick()

    def tick(self) -> None:
        """Print what waits, if the last print is long enough ago."""
        if self.waiting and time.monotonic() - self.printed >= PRINT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Print what waits."""
        # no print is shorter than its size less one line
        size = max(
            PRINT_CHARACTERS, sum(map(len, self.waiting)) // PRINTS_A_TIME + max(map(len, self.waiting), default=0)
        )
        block: list[str] = []
        room = size
        for text in self.waiting:
            if block and len(text) > room:
                self.display.display("\n".join(block))
                block, room = [], size
            block.append(text)
            room -= len(text)
        if block:
            self.display.display("\n".join(block))
        self.waiting = []
        self.printed = time.monotonic()


def printable(line: str) -> str:
    """A line without what could play tricks with a terminal; a very long one is cut, with a note."""
    line = line.rpartition("\r")[2]  # progress bars redraw their line
    if len(line) <= LINE_CHARACTERS and line.isprintable():
        return line
    text = "".join(c if c.isprintable() or c == "\t" else "�" for c in line[:LINE_CHARACTERS])
    return text if len(line) <= LINE_CHARACTERS else f"{text} … ({len(line)} characters, all in the log file)"


class ActionModule(ActionBase):
    """Entry point."""

    _requires_connection = False
    _supports_check_mode = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "run_dir": {"type": "path", "required": True},
                "step": {"type": "str", "required": True},
                "phase": {"type": "str", "default": "run"},
                "runtime": {"type": "str", "choices": ["docker", "process"], "required": True},
                "directories": {"type": "dict", "required": True},
                "containers": {"type": "dict"},
                "timeout": {"type": "int", "required": True},
                "stream": {"type": "str", "default": "all"},
                "unreachable_grace": {"type": "int", "default": 60},
                "interval": {"type": "float", "default": 0.5},
            },
            required_if=[("runtime", "docker", ["containers"])],
        )
        containers = args["containers"] if args["runtime"] == "docker" else {}
        targets = [
            self._target(str(host), str(directory), containers.get(host), task_vars)
            for host, directory in args["directories"].items()
        ]
        if not targets:
            raise AnsibleActionFail("follow: no hosts were given")
        run_dir, step, started = Path(str(args["run_dir"])), str(args["step"]), time.monotonic()
        printer = Printer(self._display, str(args["stream"]), [t.name for t in targets])
        stop = _Interrupt()
        try:
            hosts = _follow.follow(
                targets,
                step,
                run_dir / "logs",
                timeout=int(args["timeout"]),
                grace=int(args["unreachable_grace"]),
                interval=float(args["interval"]),
                emit=printer,
                interrupted=stop.reason,
                tick=printer.tick,
            )
        except _follow.StepFailed as exc:
            failure = exc.failure
            try:
                _record(run_dir, str(args["phase"]), failure)
            except OSError as error:  # the failure itself matters more
                failure.message += f"; the head node can't keep the records of the run: {error}"
            shown = "\n".join(f"  | {printable(line)}" for line in _follow.excerpt(failure.log_tail, 12))
            log = run_dir / "logs" / f"{_follow.safe_name(failure.host)}.log"
            result.update(failed=True, msg=f"{failure.message}\n{shown}\n  (the whole log: {log})", lost=failure.lost)
            return result
        finally:
            printer.flush()
            stop.restore()
        result.update(hosts=hosts, seconds=round(time.monotonic() - started, 1))
        return result

    def _target(self, host: str, directory: str, container: str | None, task_vars: Mapping[str, Any]) -> _follow.Target:
        """A connection of its own to one host, made the way the task executor makes it."""
        variables = task_vars["hostvars"][host]
        name = str(variables.get("ansible_connection", "ssh"))
        if name == "smart":
            name = "ssh"
        play_context = self._play_context.copy()
        play_context.remote_addr = str(variables.get("ansible_host", host))
        connection = self._shared_loader_obj.connection_loader.get(name, play_context, task_uuid=self._task._uuid)
        if connection is None:
            raise AnsibleActionFail(f"{host}: there is no connection plugin {name}")
        wanted = C.config.get_plugin_vars("connection", connection._load_name)
        options = {key: variables[key] for key in wanted if key in variables}
        if name.rpartition(".")[2] == "ssh":
            # A host that freezes must not hold the follower for ever, whatever ansible.cfg is in force.
            extra = str(options.get("ansible_ssh_extra_args", ""))
            extra = extra if "ServerAlive" in extra else f"{extra} {ALIVE}".strip()
            options["ansible_ssh_extra_args"] = extra
            options["ansible_ssh_retries"] = 0  # the follower itself tries again, and knows for how long
        connection.set_options(var_options=options)

        def shell(command: str) -> tuple[int, bytes, bytes]:
            try:
                code, out, err = connection.exec_command(f"/bin/sh -c {shlex.quote(command)}", sudoable=False)
            except AnsibleConnectionFailure as exc:
                raise OSError(str(exc)) from exc
            except AnsibleError as exc:
                raise OSError(str(exc)) from exc
            return code, out, err

        sudo = boolean(variables.get("ansible_become", False), strict=False) or bool(self._task.become)
        return _follow.Target(host, shell, directory, None if container is None else str(container), sudo)


def _record(run_dir: Path, phase: str, failure: _follow.Failure) -> None:
    """Note the failure in the manifest. Raises OSError."""

    def change(manifest: dict[str, Any]) -> None:
        _manifest.set_failure(
            manifest,
            phase,
            failure.reason,
            failure.message,
            host=failure.host,
            rank=failure.rank,
            exit_code=failure.exit_code,
            log_tail=_follow.excerpt(failure.log_tail, _manifest.LOG_TAIL_LINES),
        )

    _manifest.update(run_dir, change)


class _Interrupt:
    """Notices that the run has to stop: a signal, or a main process that is gone."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signal: int | None = None
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, _frame: Any) -> None:
        self._signal = number

    def reason(self) -> str | None:
        if self._signal is not None:
            return f"{signal.Signals(self._signal).name} received"
        if os.getppid() != self._parent:
            return "ansible-playbook is gone"
        return None

    def restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
