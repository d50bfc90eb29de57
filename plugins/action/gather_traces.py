# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the traces of a host to the head node (see the documentation of the module)."""

from __future__ import annotations

import re
import time
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.aorta.automation.plugins.plugin_utils._files import sha256_file

RANK_IN_PATH = re.compile(r"rank[ \[_-]?(\d+)", re.IGNORECASE)


def rank_of(name: str) -> int | None:
    """The rank that a trace's relative path tells, from the file name first, then from its folders."""
    for part in reversed(PurePosixPath(name).parts):
        match = RANK_IN_PATH.search(part)
        if match:
            return int(match[1])
    return None


def is_safe(name: str) -> bool:
    """Whether a relative path that a host has sent stays below the directory it is joined to."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and name.isprintable() and "\\" not in name


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
                "retries": {"type": "int", "default": 3},
            }
        )
        host = str(task_vars["inventory_hostname"])
        packed = self._execute_module(
            module_name="aorta.automation.trace_pack",
            module_args={"source": args["source"], "dest": args["pack_dir"]},
            task_vars=task_vars,
        )
        if packed.get("failed"):
            result.update(packed, failed=True)
            return result
        ranks = [int(rank) for rank in args["ranks"]]
        traces, problems = [], []
        for file in packed["files"]:
            name, rank = str(file["name"]), rank_of(str(file["name"]))
            if not is_safe(name):
                problems.append(f"refused a trace whose path leaves its directory: {name!r}")
            elif rank is not None and rank not in ranks:
                problems.append(f"holds a trace of rank {rank}, which it has not run: {name}")
            else:
                trouble = self._fetch(host, file, Path(args["dest"]) / name, int(args["retries"]))
                if trouble:
                    problems.append(trouble)
                else:
                    traces.append(
                        {
                            "rank": rank,
                            "host": host,
                            "file": name,
                            "bytes": int(file["bytes"]),
                            "sha256": str(file["sha256"]),
                        }
                    )
        missing = sorted(set(ranks) - {trace["rank"] for trace in traces})
        if missing and not args["allow_missing"]:
            listed = ", ".join(map(str, missing))
            problems.append(f"rank {listed} left no trace in {args['source']}")
        result.update(changed=bool(traces), traces=traces, problems=problems)
        return result

    def _fetch(self, host: str, file: dict[str, Any], target: Path, retries: int) -> str | None:
        """Transfer one file and verify it. Returns what is wrong, None when it is there and right."""
        size, wanted = int(file["bytes"]), str(file["sha256"])
        if target.is_file() and target.stat().st_size == size and sha256_file(target) == wanted:
            return None
        part = target.with_name(f".{target.name}.part")
        trouble = ""
        for attempt in range(retries + 1):
            started = time.monotonic()
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._connection.fetch_file(str(file["path"]), str(part))
                got = part.stat().st_size
                if got != size:
                    trouble = f"{got} of {size} bytes arrived"
                elif sha256_file(part) != wanted:
                    trouble = "the SHA-256 of what arrived differs"
                else:
                    part.replace(target)
                    seconds = time.monotonic() - started
                    megabytes = size / 1e6
                    rate = megabytes / max(seconds, 1e-3)
                    self._display.display(f"[{host}] gathered {file['name']} {megabytes:.1f} MB, {rate:.0f} MB/s")
                    return None
            except AnsibleConnectionFailure as exc:
                trouble = f"the connection broke off: {exc}"
                time.sleep(min(2**attempt, 10))
                self._connection.reset()
            except (AnsibleError, OSError) as exc:
                trouble = str(exc)
                if isinstance(exc, OSError):
                    break  # the head node's own disk: another try does not help
            finally:
                part.unlink(missing_ok=True)
        return f"could not gather {file['name']}: {' '.join(trouble.split())}"
