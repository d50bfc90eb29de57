# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trace_summary
short_description: Measure the traces that a host holds and write their summaries
version_added: 0.1.0
description:
  - Reads the traces below a directory with the reader that the head node uses, one process a trace, as many at a
    time as there are cores, and writes a summary of each (kilobytes to a few megabytes), from which the head node
    gets the same results as from the trace itself.
  - Needs nothing but Python's standard library; C(msgspec) and C(isal) make it quicker where the host has them.
  - A summary that is there already is kept while its trace is unchanged.
  - A damaged trace fails nothing; its summary says what is wrong, and where.
  - Used by M(aorta.automation.gather_summaries).
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  source:
    description: Directory that the benchmark has written its traces to.
    type: path
    required: true
  dest:
    description: Directory for the summaries. It is made if it is not there.
    type: path
    required: true
  ranks:
    description:
      - Only traces of these ranks are read, and those whose path does not tell a rank. On a shared file system a host
        sees the traces of all. Without it, all are read.
    type: list
    elements: int
  communication_kernels:
    description:
      - Which kernels are communication; V(tracelens), V(extended), or a list of regular expressions that are searched
        for in the kernel's name.
    type: raw
    default: tracelens
  max_trace_bytes:
    description: Traces with more bytes of JSON text are refused. Without it none is.
    type: int
  processes:
    description: How many traces are read at a time. As many as there are cores if not given.
    type: int
  heartbeat:
    description: A file that is touched as long as this goes on, if it exists, so that the run is not taken for dead.
    type: path
attributes:
  check_mode:
    support: none
    description: Does nothing in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Summarise the traces where they are
  aorta.automation.trace_summary:
    source: /var/tmp/aorta-automation-1000/run/node0/output/torch_profiler
    dest: /var/tmp/aorta-automation-1000/run/node0/summaries
"""

RETURN = r"""
files:
  description: The summaries, in the order of the traces' names.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Path relative to O(dest), that of the trace with C(.summary.json.gz) added.
      type: str
    path:
      description: Path on this host.
      type: str
    bytes:
      description: Size of the summary.
      type: int
    sha256:
      description: SHA-256 of the summary, in hex.
      type: str
    trace:
      description:
        - Of the trace itself, its C(name) relative to O(source), C(bytes), C(sha256) in hex, C(rank) as the trace
          says (null when it does not), and C(error), the code of what is wrong with it (null when nothing is).
      type: dict
other_ranks:
  description: Ranks that are not among O(ranks) and have traces here, sorted.
  type: list
  elements: int
  returned: success
reader:
  description: What decoded the traces, C(msgspec) or C(standard library).
  type: str
  returned: success
seconds:
  description: Time that reading and writing took.
  type: float
  returned: success
"""

import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces, rank_of, sha256_of
from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome, TraceFile, read_files
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import msgspec
from ansible_collections.aorta.automation.plugins.module_utils._trace_summary import (
    SUFFIX,
    OtherVersion,
    read_header,
    write_summary,
)
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import compile_rule


def summarise(
    source: str,
    dest: str,
    names: list[str],
    rule: str | list[str],
    max_bytes: int | None,
    processes: int | None,
    heartbeat: str | None = None,
) -> list[dict[str, Any]]:
    """Write a summary of each of the traces C(names) below C(source) and describe it.

    The file C(heartbeat), if it is there, is touched at the start and after each trace.

    Raises OSError; ValueError for a bad rule.
    """
    root = os.path.realpath(source)
    communication = compile_rule(rule)
    files = []
    for name in names:
        path = os.path.join(root, name)
        status = os.stat(path)
        files.append(TraceFile(Path(path), name, (), status.st_size, status.st_mtime_ns))

    def live() -> None:
        if heartbeat is not None and os.path.exists(heartbeat):
            os.utime(heartbeat)

    def write(outcome: Outcome) -> None:
        live()
        target = os.path.join(dest, outcome.file.name + SUFFIX)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_summary(target, outcome, rule)
        outcome.summary = None  # on the disk now: a host with many traces need not hold them all

    os.makedirs(dest, exist_ok=True)
    live()
    unread = [file for file in files if not is_current(os.path.join(dest, file.name + SUFFIX), file, rule)]
    read_files(unread, communication, max_bytes=max_bytes, processes=processes, progress=write)
    return [describe(file, os.path.join(dest, file.name + SUFFIX)) for file in files]


def is_current(path: str, file: TraceFile, rule: str | list[str]) -> bool:
    """Whether an earlier call has left a summary of the same file, read in the same way."""
    try:
        header = read_header(path)
    except (OSError, ValueError, OtherVersion):
        return False
    same = (header.name, header.bytes, header.mtime_ns, header.rule) == (file.name, file.bytes, file.mtime_ns, rule)
    return same and header.error is None


def describe(file: TraceFile, path: str) -> dict[str, Any]:
    """What the controller is told of a summary. Raises OSError."""
    header = read_header(path)
    return {
        "name": file.name + SUFFIX,
        "path": path,
        "bytes": os.path.getsize(path),
        "sha256": sha256_of(path),
        "trace": {
            "name": file.name,
            "bytes": header.bytes,
            "sha256": header.sha256,
            "rank": header.rank,
            "error": header.error[0] if header.error is not None else None,
        },
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "communication_kernels": {"type": "raw", "default": "tracelens"},
            "max_trace_bytes": {"type": "int"},
            "processes": {"type": "int"},
            "ranks": {"type": "list", "elements": "int"},
            "heartbeat": {"type": "path"},
        },
        supports_check_mode=False,
    )
    given = module.params
    rule = given["communication_kernels"]
    if not isinstance(rule, str) and not (isinstance(rule, list) and all(isinstance(one, str) for one in rule)):
        module.fail_json(msg="communication_kernels: neither text nor a list of texts: %r" % (rule,))
    began = time.monotonic()
    names, others = [], set()
    try:
        for name in find_traces(given["source"]):
            rank = rank_of(name)
            if given["ranks"] is None or rank is None or rank in given["ranks"]:
                names.append(name)
            else:
                others.add(rank)
        files = summarise(
            given["source"],
            given["dest"],
            names,
            rule,
            given["max_trace_bytes"],
            given["processes"],
            given["heartbeat"],
        )
    except (OSError, ValueError) as exc:
        module.fail_json(msg="can't summarise the traces: %s" % exc)
    module.exit_json(
        changed=bool(files),
        files=files,
        other_ranks=sorted(others),
        reader="standard library" if msgspec is None else "msgspec",
        seconds=round(time.monotonic() - began, 3),
    )


if __name__ == "__main__":
    main()
