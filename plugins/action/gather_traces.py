# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the traces of a host to the head node (see the documentation of the module)."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.module_utils import _host
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import rank_of
from ansible_collections.aorta.automation.plugins.plugin_utils import _transfer

PROGRESS_SECONDS = 5
HEARTBEAT_SECONDS = 60


def is_safe(name: str) -> bool:
    """Whether a relative path that a host has sent stays below the directory it is joined to."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and name.isprintable() and "\\" not in name


class Progress:
    """Prints how far the files of one host have come: at each end of a file, and every few seconds."""

    def __init__(self, show: Callable[[str], None], host: str, files: int, total: int) -> None:
        self.show, self.host, self.files, self.total = show, host, files, total
        self.done = self.arrived = 0
        self.started = self.shown = time.monotonic()
        self.parent = os.getppid()

    def __call__(self, count: int) -> None:
        if os.getppid() != self.parent:
            raise _transfer.TransferError("ansible-playbook is gone")  # workers outlive it
        self.arrived += count
        if time.monotonic() - self.shown >= PROGRESS_SECONDS:
            self.say()

    def end_file(self) -> None:
        self.done += 1
        if self.done == self.files or time.monotonic() - self.shown >= 1:
            self.say()

    def say(self) -> None:
        self.shown = time.monotonic()
        rate = self.arrived / 1e6 / max(self.shown - self.started, 1e-3)
        arrived, total = self.arrived / 1e6, self.total / 1e6
        self.show(
            f"[{self.host}] gathered {self.done} of {self.files} files, "
            f"{arrived:.1f} of {total:.1f} MB, {rate:.0f} MB/s"
        )


class ActionModule(ActionBase):
    """Entry point."""

    _supports_check_mode = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "source": {"type": "path", "required": True},
                "pack_dir": {"type": "path", "required": True},
                "dest": {"type": "path", "required": True},
                "ranks": {"type": "list", "elements": "int", "required": True},
                "allow_missing": {"type": "bool", "default": False},
                "grace": {"type": "int", "default": 60},
            }
        )
        host = str(task_vars["inventory_hostname"])
        ranks = [int(rank) for rank in args["ranks"]]
        started = time.monotonic()
        packed = self._execute_module(
            module_name="aorta.automation.trace_pack",
            module_args={"source": args["source"], "dest": args["pack_dir"], "ranks": ranks},
            task_vars=task_vars,
        )
        if packed.get("failed") or packed.get("unreachable"):
            result.update(packed, failed=True)
            return result
        files = packed["files"]
        total, raw = (sum(int(file[key]) for file in files) for key in ("bytes", "raw_bytes"))
        if files:
            self._display.display(
                f"[{host}] packed {len(files)} traces, {raw / 1e6:.1f} MB to {total / 1e6:.1f} MB, "
                f"in {time.monotonic() - started:.1f} s"
            )
        progress = Progress(self._display.display, host, len(files), total)
        traces, problems = [], []
        heartbeat = PurePosixPath(str(args["pack_dir"])).parent / _host.HEARTBEAT_FILE
        heard = 0.0
        for file in files:
            name = str(file["name"])
            if time.monotonic() - heard > HEARTBEAT_SECONDS:  # or the next run takes this one for dead
                heard = time.monotonic()
                with contextlib.suppress(OSError):
                    self._shell(f"touch -c {shlex.quote(str(heartbeat))}")
            if not is_safe(name):
                problems.append(f"refused a trace whose path leaves its directory: {name!r}")
                continue
            size, sha256 = int(file["bytes"]), str(file["sha256"])
            target = Path(str(args["dest"])) / name
            try:
                _transfer.fetch(
                    self._shell,
                    str(file["path"]),
                    target,
                    size,
                    sha256,
                    progress,
                    grace=int(args["grace"]),
                    sudo=bool(self._play_context.become),
                    copy=self._copy(),
                )
            except _transfer.TransferError as exc:
                problems.append(f"could not gather {name}: {exc}")
            except OSError as exc:
                problems.append(f"could not gather {name}: the head node can't write {target}: {exc.strerror or exc}")
            else:
                progress.end_file()
                traces.append({"rank": rank_of(name), "host": host, "file": name, "bytes": size, "sha256": sha256})
        missing = sorted(set(ranks) - {trace["rank"] for trace in traces})
        if missing and not args["allow_missing"]:
            others = packed["other_ranks"]
            note = f" (there are traces of rank {', '.join(map(str, others))})" if others else ""
            problems.append(f"rank {', '.join(map(str, missing))} left no trace in {args['source']}{note}")
        result.update(changed=bool(traces), traces=traces, problems=problems)
        return result

    def _copy(self) -> _transfer.Copy | None:
        """The connection's own way to copy a file, where it streams; it costs less than reading in pieces."""
        name = self._connection.transport
        if self._play_context.become or name not in ("ssh", "local"):
            return None
        if name == "ssh" and self._connection.get_option("ssh_transfer_method") == "smart":
            self._connection.set_option("ssh_transfer_method", "sftp")  # smart ends with one that holds it in memory

        def copy(path: str, part: Path) -> None:
            try:
                self._connection.fetch_file(path, str(part))
            except AnsibleError as exc:
                self._display.vvv(f"{path}: going on in pieces: {exc}")

        return copy

    def _shell(self, command: str) -> tuple[int, bytes, bytes]:
        """Run a shell command on the host. Raises ConnectionError when that is out of reach."""
        try:
            code, out, err = self._connection.exec_command(f"/bin/sh -c {shlex.quote(command)}", sudoable=False)
        except AnsibleConnectionFailure as exc:
            self._connection.reset()
            raise ConnectionError(str(exc)) from exc
        return code, out, err
