# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: render_report
short_description: Write the reports of a run
version_added: 0.1.0
description:
  - Runs on the controller. Writes C(report.html), C(report.xlsx) and C(junit.xml) into the run directory, from the
    files that the earlier stages have left there (C(spec.json), C(manifest.json), C(results.json), C(verdict.json)).
  - Each of these files may be absent or damaged. The report shows what there is and says what there is not, so that
    also a run that failed has its report. Then the report leads with what failed first, on which host and rank, and
    the last lines of its log.
  - The page is one file without scripts and without anything from a network. Names from traces and hosts are escaped
    in it, and never formulas in the workbook.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  run_dir:
    description: The run directory, which must exist.
    type: path
    required: true
  template:
    description:
      - Jinja template of the page, looked for as M(ansible.builtin.template) looks for its own. Parts that it includes
        and that are not beside it are those of the collection.
      - By default C(report.html.j2), which is that of the role C(report) or of the collection.
    type: str
attributes:
  check_mode:
    support: partial
    description: Writes nothing; says what would be written.
  diff_mode:
    support: none
    description: Reports are not shown as a difference.
"""

EXAMPLES = r"""
- name: Write the reports
  aorta.automation.render_report:
    run_dir: "{{ aorta_run.run_dir }}"
  register: reports

- name: Say how it went
  ansible.builtin.debug:
    msg: "{{ reports.summary_lines }}"

- name: Hand the verdict to whoever started the job
  ansible.builtin.set_stats:
    data: "{{ reports.stats }}"
    per_host: false

- name: Write the page from a template of our own
  aorta.automation.render_report:
    run_dir: "{{ aorta_run.run_dir }}"
    template: our_report.html.j2
"""

RETURN = r"""
report:
  description: Path of the page.
  type: str
  returned: always, except in check mode
workbook:
  description: Path of the workbook.
  type: str
  returned: always, except in check mode
junit:
  description: Path of the JUnit file.
  type: str
  returned: always, except in check mode
summary_lines:
  description: The report in at most 20 lines of text, for the terminal.
  type: list
  elements: str
  returned: always, except in check mode
stats:
  description: For M(ansible.builtin.set_stats), small and without secrets.
  type: dict
  returned: always, except in check mode
  contains:
    aorta_status:
      description: The verdict, V(passed), V(failed), V(no_data), V(error), or V(not_judged) without a verdict.
      type: str
    aorta_reason:
      description: The verdict's reason in one sentence.
      type: str
    aorta_reported_run:
      description: Name of the run.
      type: str
    aorta_report:
      description: Path of the page.
      type: str
    aorta_results:
      description: The summary's figures, the number of ranks measured (C(num_ranks)) and missing (C(missing_ranks)).
      type: dict
    aorta_failed_checks:
      description: Names of the checks that did not pass, 20 at most.
      type: list
      elements: str
"""
