# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gather_traces
short_description: Bring the traces of a host to the head node, complete and verified
version_added: 0.1.0
description:
  - Compresses the traces on the host, transfers each in pieces over the connection of the host, verifies size and
    SHA-256, and only then gives it its name. What is there already and has the right checksum is not transferred
    again; a file of which a part has arrived is gone on with.
  - Takes exactly the ranks that the host has run, so that a shared file system yields each trace once.
  - Prints files, bytes and rate as it goes.
  - Ranks without a trace are returned as C(problems), so that all hosts can be judged together.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  source:
    description: Directory on the host that the benchmark has written its traces to.
    type: path
    required: true
  pack_dir:
    description: Directory on the host for the compressed copies.
    type: path
    required: true
  dest:
    description: Directory on the head node, the C(traces) directory of the run.
    type: path
    required: true
  ranks:
    description: The ranks that this host has run.
    type: list
    elements: int
    required: true
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
- name: Gather the traces of each host
  aorta.automation.gather_traces:
    source: "{{ node_dir }}/output/torch_profiler"
    pack_dir: "{{ node_dir }}/packed"
    dest: "{{ aorta_run.run_dir }}/traces"
    ranks: [0, 1, 2, 3]
  register: gather_result
"""

RETURN = r"""
problems:
  description: Ranks without a trace, transfers that failed.
  type: list
  elements: str
  returned: always
traces:
  description: The traces that are on the head node now.
  type: list
  elements: dict
  returned: always
  contains:
    rank:
      description: Rank, null when the name does not tell it.
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
"""
