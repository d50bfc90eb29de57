# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: analyze_traces
short_description: Measure PyTorch profiler traces of all ranks
version_added: 0.1.0
description:
  - Reads the traces of a run on the controller, in bounded memory and one process a core, and writes
    C(results.json) into the run directory. For each rank and each step it says where the GPU's time went
    (computation, communication, exposed communication, copies, idle), how long the iterations took, and
    over all ranks which collectives ran, who arrived last, and how far the clocks of the hosts are apart.
  - The definitions are those of AMD TraceLens' GPU timeline, in integer nanoseconds; see C(docs/metrics.md).
  - With C(aorta_analysis.engine) V(auto) or V(tracelens), AMD's TraceLens runs in child processes where it is
    installed. Its workbooks are written to C(tracelens/) in the run directory, and its timelines are compared with,
    or take the place of, those of the built-in engine. The environment variable C(TRACELENS_PATH), a checkout of
    TraceLens, is put on the path of these children.
  - A trace that is damaged, missing or contradicts itself does not fail the task. It becomes an entry of C(errors) in
    C(results.json), and the other ranks are measured all the same. Judging is M(aorta.automation.check_thresholds)'s
    part.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  run_dir:
    description:
      - The run directory, which must exist. C(results.json) is written here.
      - From its C(spec.json), if there is one, come the options of the analysis (C(values.analysis)) and C(trace_dir).
    type: path
    required: true
  trace_dir:
    description:
      - Where the traces are, in any layout, as C(.json) or C(.json.gz). Their rank is taken from C(distributedInfo)
        in the file, else from the path (for example C(rank3/)).
      - By default C(trace_dir) of C(spec.json), else C(traces/) in the run directory.
    type: path
  expected_ranks:
    description:
      - The world size, or the list of ranks that should be there. Those without figures are reported as missing.
      - By default the world size that the traces themselves name.
    type: raw
  node_map:
    description:
      - Which host each rank ran on. Adds to, and wins over, C(nodes.json) in the trace directory.
    type: dict
  use_cache:
    description:
      - Whether figures of an earlier analysis may be taken over when they were made from the very same files (by
        SHA-256) with the same options. Earlier results are looked for in the run directory, beside the traces and in
        the newest run directories beside this one.
    type: bool
    default: true
attributes:
  check_mode:
    support: partial
    description: Reads no trace and writes nothing; says what would be analysed.
  diff_mode:
    support: none
    description: Results are not shown as a difference.
"""

EXAMPLES = r"""
- name: Measure what a run has gathered
  aorta.automation.analyze_traces:
    run_dir: "{{ aorta_run.run_dir }}"
  register: analysis

- name: Measure traces from elsewhere, of which there should be 16
  aorta.automation.analyze_traces:
    run_dir: /srv/aorta-runs/check
    trace_dir: /srv/traces/2026-11-30
    expected_ranks: 16
"""

RETURN = r"""
status:
  description:
    - V(ok) when every rank was measured, V(partial) when some figures are missing, V(error) when there are none,
      V(no_data) when there was no trace at all.
  type: str
  returned: always, except in check mode
results_path:
  description: The C(results.json) that was written.
  type: str
  returned: always, except in check mode
num_ranks:
  description: Number of ranks with figures.
  type: int
  returned: always, except in check mode
missing_ranks:
  description: Ranks that were expected but have no figures.
  type: list
  elements: int
  returned: always, except in check mode
summary:
  description: The means over the ranks; V(null) where nothing was measured. Times in milliseconds, ratios 0 to 1.
  type: dict
  returned: always, except in check mode
  sample:
    avg_iteration_ms: 102.4
    avg_compute_ratio: 0.81
    avg_communication_ratio: 0.35
    avg_exposed_communication_ratio: 0.12
    avg_overlap_ratio: 0.66
    avg_idle_ratio: 0.05
    time_variance_ratio: 0.01
warnings_count:
  description: Number of warnings in C(results.json).
  type: int
  returned: always, except in check mode
errors:
  description: What is wrong with the traces, one line each, at most ten.
  type: list
  elements: str
  returned: always, except in check mode
reused_from:
  description: The earlier C(results.json) whose figures were taken over, or V(null).
  type: str
  returned: always, except in check mode
"""
