# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: follow
short_description: Follow a step on all hosts, its output live, until it has ended everywhere
version_added: 0.1.0
description:
  - Runs once, on the controller, for all hosts, with one thread and one connection a host. So it needs no forks,
    and no host waits for another to be followed.
  - Prints the new lines of every host, with the host's name before them, and appends them, byte for byte,
    to C(logs/<host>.log) of the run directory. It reads by position; a dropped connection loses and repeats nothing.
  - When the step fails on one host, it is stopped on the others within seconds, and the message says which host
    (and rank, where the launcher tells it) was first, with the last lines of its log.
  - Enforces the deadline. On an interrupt (Ctrl-C, SIGTERM, a controller that is gone) it stops the step everywhere.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  run_dir:
    description: The run directory.
    type: path
    required: true
  step:
    description: Name of the step, for messages.
    type: str
    required: true
  phase:
    description: Phase that a failure is recorded under.
    type: str
    default: run
  runtime:
    description: How the step runs.
    type: str
    choices: [docker, process]
    required: true
  directories:
    description: The hosts to follow, in the order of their node ranks, with the directory of the step on each.
    type: dict
    required: true
  containers:
    description: Name or id of the step's container on each host. Required with O(runtime=docker).
    type: dict
  timeout:
    description: Deadline of the step in seconds.
    type: int
    required: true
  stream:
    description:
      - What is printed. V(all) lines, none (V(quiet)), or every Nth line when it is a number.
      - The log files always hold everything.
    type: str
    default: all
  unreachable_grace:
    description: Seconds that a host may be out of reach before the run is given up.
    type: int
    default: 60
  interval:
    description: Seconds between two looks at a host. Stretched when there are very many hosts.
    type: float
    default: 0.5
attributes:
  action:
    support: full
    description: Needs no task on the hosts.
  check_mode:
    support: none
    description: Skipped in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Follow the training
  aorta.automation.follow:
    run_dir: "{{ aorta_run.run_dir }}"
    step: train
    runtime: docker
    directories:
      node0: /var/tmp/run/node0/steps/train
      node1: /var/tmp/run/node1/steps/train
    containers:
      node0: aorta-benchmark
      node1: aorta-benchmark
    timeout: 3600
  run_once: true
"""

RETURN = r"""
hosts:
  description: How the step ended, a host each.
  type: dict
  returned: success
  sample: {node0: {exit_code: 0, lines: 120, started: "2026-01-01T12:00:00Z", finished: "2026-01-01T12:10:00Z"}}
seconds:
  description: How long it was followed.
  type: float
  returned: success
lost:
  description: Hosts where the step could not be stopped.
  type: list
  elements: str
  returned: failure
"""
