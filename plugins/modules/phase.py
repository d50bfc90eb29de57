# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: phase
short_description: Mark where a phase of a run begins and ends, and judge all hosts at once
version_added: 0.1.0
description:
  - Runs on the controller. Keeps the list of phases, with their times, in C(manifest.json) of the run directory.
  - At the end of a phase it looks at what a task has registered on every host, and fails with ONE message
    that names every host with a problem, and its remedy. So no host is hidden behind the first that failed.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  run_dir:
    description: The run directory.
    type: path
    required: true
  name:
    description: Name of the phase.
    type: str
    required: true
  state:
    description:
      - V(begin) notes the start.
      - V(check) judges O(results) and leaves the phase open.
      - V(end) judges O(results), then notes the end.
      - V(fail) records a failure that was caught elsewhere, unless one is recorded already.
      - V(outcome) only says whether the run has failed by now.
    type: str
    choices: [begin, check, end, fail, outcome]
    required: true
  first:
    description:
      - With O(state=begin), whether this is the first phase of the run. What an earlier attempt at the same run has
        left open is closed then, its failure is forgotten, and the controller is noted.
    type: bool
    default: false
  results:
    description:
      - Name of the variable that a task has registered on each host.
      - A host has a problem when it was unreachable, when the result has failed, or when the result holds C(problems).
    type: str
  hosts:
    description: The hosts to look at.
    type: list
    elements: str
    default: []
  expect:
    description:
      - A key that a good result holds. For tasks whose own failure is silenced (C(failed_when=false)) so that
        all hosts are judged together.
    type: str
  record:
    description:
      - Whether to keep in the manifest what the results hold, that is, facts of the host (C(host)), the image
        (C(image)) and the traces (C(traces)). With traces, C(traces/nodes.json) is written too (rank to host).
    type: bool
    default: false
  message:
    description: With O(state=fail), what happened.
    type: str
attributes:
  check_mode:
    support: none
    description: Skipped in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Judge the preflight of all hosts
  aorta.automation.phase:
    run_dir: "{{ aorta_run.run_dir }}"
    name: preflight
    state: end
    results: preflight_check
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
seconds:
  description: With O(state=end), how long the phase took.
  type: float
  returned: when the phase ended
dead_runs:
  description: Runs beside this one whose controller was a process of this machine that is gone.
  type: list
  elements: str
  returned: with O(first=true)
steps:
  description: Steps of the run that every host has already (C(host.steps) of the results).
  type: list
  elements: str
  returned: when results were judged
failed_run:
  description: Whether a failure is recorded.
  type: bool
  returned: with O(state=outcome)
"""
