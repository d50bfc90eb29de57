#!/usr/bin/python
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: validate_config
short_description: Check the whole configuration and open a run directory
version_added: 0.1.0
description:
  - Reads every layer of the configuration (defaults of the model, the file named by the variable C(aorta_config_file),
    the C(aorta_*) variables of the group's hosts, and C(aorta_set)), converts strings strictly, and refuses
    whatever is unknown, contradictory or left unfinished. All problems are reported in one message.
  - When all is well, makes the run directory below C(aorta_output_dir), writes the resolved configuration to
    C(spec.json) in it, points the link C(latest) there, and sets the fact C(aorta_run).
  - Runs on the controller and contacts no host. Use it with C(run_once), before anything else.
  - The settings are described in the collection's C(docs/configuration.md).
options:
  benchmark:
    description: The benchmark whose model the settings are checked by.
    type: str
    choices: [aorta]
    default: aorta
  run_phases:
    description:
      - The phases of this invocation, instead of those which C(--tags) and C(--skip-tags) select.
      - Decides what must be set (C(aorta_path) and at least one host for a run) and where traces are read from.
    type: list
    elements: str
    choices: [config, preflight, deploy, run, gather, analyze, validate, report, teardown]
  reveal_secrets:
    description:
      - Check again, write nothing, and return only the values that C(spec.json) shows as C(***).
      - Set C(no_log) on such a task.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode; everything is checked and returned, nothing is written.
    support: full
  diff_mode:
    description: Shows what changed in diff mode.
    support: none
requirements:
  - pydantic >= 2.6 on the controller
seealso:
  - plugin: aorta.automation.cluster_json
    plugin_type: inventory
author:
  - The aorta.automation maintainers (@aorta-automation)
"""

EXAMPLES = r"""
- name: Check every setting before any host is touched
  aorta.automation.validate_config:
  run_once: true

- name: Get the values that must not be shown
  aorta.automation.validate_config:
    reveal_secrets: true
  register: run_secrets
  run_once: true
  no_log: true
  when: aorta_run.spec.secrets | length > 0
"""

RETURN = r"""
ansible_facts:
  description: The fact that later stages read. Not returned with O(reveal_secrets=true).
  returned: success
  type: dict
  contains:
    aorta_run:
      description: This run.
      type: dict
      contains:
        run_id:
          description: Name of the run directory.
          type: str
          sample: 20260105T120000Z-4f3a21
        run_dir:
          description: Absolute path of the run directory; in check mode, where it would be.
          type: str
          sample: /home/user/aorta-runs/20260105T120000Z-4f3a21
        trace_dir:
          description:
            - Absolute path of the directory from which traces are analysed.
            - That of this run when it gathers traces, else C(aorta_trace_dir), else that of the newest run which
              has traces; null when there is none.
          type: str
          sample: /home/user/aorta-runs/20260105T120000Z-4f3a21/traces
        runtime:
          description: How steps run, V(docker) or V(process).
          type: str
          sample: docker
        phases:
          description: The selected phases, in their order.
          type: list
          elements: str
          sample: [config, analyze, validate, report]
        spec:
          description: The content of C(spec.json), with secrets shown as C(***).
          type: dict
secrets:
  description: Name and value of everything that C(spec.json) shows as C(***).
  returned: O(reveal_secrets=true)
  type: dict
"""
