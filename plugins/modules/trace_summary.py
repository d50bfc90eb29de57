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
  - A damaged trace fails nothing; its summary says what is wrong, and where.
  - Used by M(aorta.automation.gather_traces).
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
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces, sha256_of
from ansible_collections.aorta.automation.plugins.module_utils._trace_pool import Outcome, TraceFile, read_files
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import msgspec
from ansible_collections.aorta.automation.plugins.module_utils._trace_summary import SUFFIX, write_summary
from ansible_collections.aorta.automation.plugins.module_utils._trace_timeline import compile_rule


def summarise(
    source: str, dest: str, rule: str | list[str], max_bytes: int | None = None, processes: int | None = None
) -> list[dict[str, Any]]:
    """Write a summary of each trace below C(source) and describe it. Raises OSError; ValueError for a bad rule."""
    root = os.path.realpath(source)
    files = []
    for name in find_traces(source):
        path = os.path.join(root, name)
        status = os.stat(path)
        files.append(TraceFile(Path(path), name, (), status.st_size, status.st_mtime_ns))
    written = {}

    def write(outcome: Outcome) -> None:
        name = outcome.file.name
        target = os.path.join(dest, name + SUFFIX)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_summary(target, outcome, rule)
        written[name] = {
            "name": name + SUFFIX,
            "path": target,
            "bytes": os.path.getsize(target),
            "sha256": sha256_of(target),
            "trace": {
                "name": name,
                "bytes": outcome.file.bytes,
                "sha256": outcome.sha256,
                "rank": outcome.summary.rank if outcome.summary is not None else None,
                "error": outcome.error[0] if outcome.error is not None else None,
            },
        }
        outcome.summary = None  # on the disk now: a host with many traces need not hold them all

    os.makedirs(dest, exist_ok=True)
    read_files(files, compile_rule(rule), max_bytes=max_bytes, processes=processes, progress=write)
    return [written[file.name] for file in files]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "communication_kernels": {"type": "raw", "default": "tracelens"},
            "max_trace_bytes": {"type": "int"},
            "processes": {"type": "int"},
        },
        supports_check_mode=False,
    )
    given = module.params
    rule = given["communication_kernels"]
    if not isinstance(rule, str) and not (isinstance(rule, list) and all(isinstance(one, str) for one in rule)):
        module.fail_json(msg="communication_kernels: neither text nor a list of texts: %r" % (rule,))
    began = time.monotonic()
    try:
        files = summarise(given["source"], given["dest"], rule, given["max_trace_bytes"], given["processes"])
    except (OSError, ValueError) as exc:
        module.fail_json(msg="can't summarise the traces: %s" % exc)
    module.exit_json(
        changed=bool(files),
        files=files,
        reader="standard library" if msgspec is None else "msgspec",
        seconds=round(time.monotonic() - began, 3),
    )


if __name__ == "__main__":
    main()
