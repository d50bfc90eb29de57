# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real TraceLens over all recorded traces agrees with the native engine, and with what it gave for the reference.

Needs TRACELENS_PATH (a checkout of AMD's repository), and TRACELENS_PYTHON unless this Python has its dependencies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens_driver import METRICS
from ansible_collections.aorta.automation.tests.conformance.shared_data import trace_sets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("TRACELENS_PATH"), reason="TRACELENS_PATH is not set"),
]


@pytest.mark.parametrize(("folder", "golden"), trace_sets())
def test_real_tracelens_agrees(folder: Path, golden: dict[str, Any], tmp_path: Path) -> None:
    options = {"engine": "auto", "tracelens_python": os.environ.get("TRACELENS_PYTHON")}
    (tmp_path / "spec.json").write_text(json.dumps({"trace_dir": str(folder), "values": {"analysis": options}}))
    results = _analysis.run(_analysis.plan(tmp_path), use_cache=False)
    reference = {int(rank): one["tracelens"]["gpu_timeline_all_events_us"] for rank, one in golden["ranks"].items()}
    measured = {rank: one for rank, one in reference.items() if one is not None}
    compared = (
        {} if results.tracelens is None else {(one.rank, one.metric): one for one in results.tracelens.comparison}
    )
    assert {rank for rank, _metric in compared} == set(measured)
    for (rank, metric), one in compared.items():
        assert one.agrees, one
        assert one.theirs_us == pytest.approx(measured[rank][METRICS[metric]], abs=1e-6)
    codes = {note.code for note in results.warnings if note.code.startswith("tracelens")}
    assert "tracelens_disagrees" not in codes and "tracelens_unavailable" not in codes
    if not measured:
        assert results.tracelens is None or codes == {"tracelens_failed"}
    complete = set(measured) == set(range(len(measured))) and not results.world.missing_ranks and len(measured) > 1
    if complete and golden.get("nccl_analyser"):
        assert results.tracelens is not None and results.tracelens.collectives.workbook is not None
