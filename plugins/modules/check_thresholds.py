# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: check_thresholds
short_description: Judge the results of a run by its limits
version_added: 0.1.0
description:
  - Runs on the controller. Holds C(results.json) of the run directory against the limits in C(spec.json)
    (C(expected_results)) and writes C(verdict.json).
  - The task itself does not fail when a limit is not met, so that the report can be written and published first. Make
    RV(status) the condition of one last task.
  - A limit on a figure of the summary is checked once. A limit on a figure that many have, such as
    C(per_rank.ratios.compute), C(steps.timeline_us.idle) or C(collectives.busbw_gbps), must be met by each of them.
    Every check names the rank, and its node, where the figure is worst.
  - A limit that can't be checked has not been met. With one rank, what compares ranks (time variance, overlap,
    collectives) does not apply, unless the traces have it all the same.
  - Limits by GPU model take the place of the general ones of the same figure. The model is
    C(expected_results.gpu_model), else C(gpu_model), else the one that all traces name. Where the traces name several
    models or none, the general limits are used, with a warning; if there are no general limits, the check C(gpu_model)
    says that nothing could be compared, and the verdict is V(failed).
  - Incomplete data are a failed check C(data_complete). With C(aorta_allow_missing_ranks) ranks are excused that left
    no trace or whose trace can't be read. Not excused are ranks that ran but whose GPU was not recorded
    (C(no_gpu_events)), and traces that contradict each other (C(rank_conflict), C(rank_unknown),
    C(ambiguous_traces), C(multiple_devices)).
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  run_dir:
    description: The run directory. It must hold C(spec.json); C(results.json) and C(manifest.json) may be absent.
    type: path
    required: true
attributes:
  check_mode:
    support: partial
    description: Judges nothing and writes nothing; says what would be judged.
  diff_mode:
    support: none
    description: A verdict is not shown as a difference.
"""

EXAMPLES = r"""
- name: Judge the results
  aorta.automation.check_thresholds:
    run_dir: "{{ aorta_run.run_dir }}"
  register: verdict

- name: Write the reports, whatever the verdict
  aorta.automation.render_report:
    run_dir: "{{ aorta_run.run_dir }}"

- name: Pass only when everything has been met
  ansible.builtin.assert:
    that: verdict.status == 'passed'
    fail_msg: "{{ verdict.message }}"
"""

RETURN = r"""
status:
  description:
    - V(passed) when the data are whole and every limit is met.
    - V(failed) when a limit is not met or can't be checked, or data are missing.
    - V(no_data) when there was nothing to judge.
    - V(error) when the run itself failed, or no rank could be measured.
  type: str
  returned: always, except in check mode
message:
  description: The verdict with its reason, or, if it is V(failed), with one line for each failed check (ten at most).
  type: str
  returned: always, except in check mode
checks:
  description: One line for each failed check, ten at most.
  type: list
  elements: str
  returned: always, except in check mode
num_checks:
  description: Number of checks.
  type: int
  returned: always, except in check mode
num_failing:
  description: Number of checks that keep the verdict from V(passed).
  type: int
  returned: always, except in check mode
verdict_path:
  description: The file with the whole verdict.
  type: str
  returned: always, except in check mode
"""
