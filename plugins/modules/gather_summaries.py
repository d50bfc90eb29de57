# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gather_summaries
short_description: Have a host read its own traces and bring what it has measured to the head node
version_added: 0.1.0
description:
  - The host reads the traces of the ranks it has run with M(aorta.automation.trace_summary). What it has measured of
    each, kilobytes to a few megabytes, is transferred, verified by size and SHA-256, and only then gets its name.
  - M(aorta.automation.analyze_traces) gets the same results from the summaries as from the traces, so the traces can
    stay where they are.
  - A damaged trace is no problem here; its summary says what is wrong with it, and where.
  - Ranks without a trace are returned as C(problems), so that all hosts can be judged together.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  source:
    description: Directory on the host that the benchmark has written its traces to.
    type: path
    required: true
  work_dir:
    description: Directory on the host for the summaries.
    type: path
    required: true
  dest:
    description: Directory on the head node, the C(summaries) directory of the run.
    type: path
    required: true
  ranks:
    description: The ranks that this host has run.
    type: list
    elements: int
    required: true
  analysis:
    description:
      - The section C(analysis) of the configuration. Of it, C(communication_kernels) and C(max_trace_bytes) decide
        how a trace is read.
    type: dict
    default: {}
  allow_missing:
    description: Whether a rank without a trace is no problem.
    type: bool
    default: false
  grace:
    description: For how many seconds a host that can't be reached any more is tried again.
    type: int
    default: 60
attributes:
  action:
    support: full
    description: Works on both sides.
  check_mode:
    support: none
    description: Skipped in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Read the traces on the hosts and bring the summaries
  aorta.automation.gather_summaries:
    source: "{{ node_dir }}/output/torch_profiler"
    work_dir: "{{ node_dir }}/summaries"
    dest: "{{ aorta_run.run_dir }}/summaries"
    ranks: [0, 1, 2, 3]
  register: gather_summary_result
"""

RETURN = r"""
problems:
  description: Ranks without a trace, transfers that failed.
  type: list
  elements: str
  returned: always
summaries:
  description: The summaries that are on the head node now.
  type: list
  elements: dict
  returned: always
  contains:
    rank:
      description: Rank, null when neither the trace's path nor the trace tells it.
      type: int
    host:
      description: Name of the host in the inventory.
      type: str
    file:
      description: Path relative to O(dest).
      type: str
    bytes:
      description: Size.
      type: int
    sha256:
      description: SHA-256 in hex.
      type: str
    trace:
      description: Path relative to O(source) as C(file), C(bytes) and C(sha256) of the trace on the host.
      type: dict
"""
