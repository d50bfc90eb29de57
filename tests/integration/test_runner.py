# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The play through ansible-runner, the engine of AWX: variables arrive as strings, the summary as artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import ansible_runner

ROOT = Path(__file__).resolve().parents[2]


def test_runner_with_survey_strings(tmp_path):
    (tmp_path / "runner").mkdir()
    run = ansible_runner.run(
        private_data_dir=str(tmp_path / "runner"),
        project_dir=str(ROOT),
        playbook="aorta.yml",
        inventory=str(ROOT / "inventories" / "local"),
        envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        extravars={
            "aorta_output_dir": str(tmp_path / "out"),
            "aorta_work_dir": str(tmp_path / "work"),
            "aorta_timeout_seconds": "120",
            "aorta_gpus_per_node": "2",
            "aorta_keep_on_failure": "no",
            "aorta_training_overrides": {"training.max_steps": "4"},
            "aorta_expected_results": {"max_avg_iteration_ms": "400", "min_compute_ratio": "0.1"},
        },
        quiet=True,
    )
    assert (run.status, run.rc) == ("successful", 0), run.stdout.read()[-4000:]
    events = list(run.events)
    stats = [e["event_data"]["artifact_data"] for e in events if e["event_data"].get("artifact_data")][-1]
    assert stats["aorta_status"] == "passed"
    verdict = json.loads((tmp_path / "out" / "latest" / "verdict.json").read_text())
    assert verdict["status"] == "passed"
    assert Path(stats["aorta_report"]).is_file()
    live = [e["stdout"] for e in events if e["event"] == "verbose" and "[node1]" in e["stdout"]]
    assert any("step=3" in text for text in live)
    assert max(map(len, live)) <= 2048
