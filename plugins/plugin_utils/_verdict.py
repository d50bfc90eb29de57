# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model of C(verdict.json): what was demanded, what was found, and what follows."""

from __future__ import annotations

import os
from typing import Literal

from ansible_collections.aorta.automation.plugins.plugin_utils._deps import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, write_json

SCHEMA_VERSION = 1
FILE_NAME = "verdict.json"
DATA_COMPLETE = "data_complete"
# What set_stats publishes. In a workflow these become extra variables of the next job: they are no settings there.
STATS_NAMES = (
    "aorta_status",
    "aorta_reason",
    "aorta_reported_run",
    "aorta_report",
    "aorta_results",
    "aorta_failed_checks",
)

Status = Literal["passed", "failed", "no_data", "error"]
CheckStatus = Literal["pass", "fail", "not_measured", "not_applicable"]


class _Strict(BaseModel):
    """Nothing unknown, no conversion of types, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Worst(_Strict):
    """Where the figure was worst; null what does not apply."""

    rank: int | None
    node: str | None


class Check(_Strict):
    """One demand. C(actual) and C(limit) are in C(unit) (empty for ratios and counts); C(message) is one line.

    C(actual) null = not measured. C(not_measured) does not pass; C(not_applicable) is shown and fails nothing.
    """

    name: str
    metric: str
    actual: float | None
    limit: float | None
    comparison: Literal["<=", ">="] | None
    unit: str
    status: CheckStatus
    worst: Worst | None
    message: str

    @property
    def failing(self) -> bool:
        """Whether this keeps the verdict from C(passed)."""
        return self.status in ("fail", "not_measured")


class Remark(_Strict):
    """What the reader should know of how it was judged."""

    code: str
    message: str


class Verdict(_Strict):
    """The whole of C(verdict.json), schema version 1. C(reason) is one sentence.

    C(limits) counts the limits that were set; with none, C(passed) says only that the data are whole.
    C(gpu_model): whose set of limits was used, null for the general ones.
    """

    schema_version: Literal[1] = 1
    status: Status
    run_id: str | None = None
    created: str
    reason: str
    limits: int
    gpu_model: str | None = None
    checks: list[Check] = Field(default_factory=list)
    warnings: list[Remark] = Field(default_factory=list)

    @property
    def failing(self) -> list[Check]:
        """The checks that keep the verdict from C(passed)."""
        return [check for check in self.checks if check.failing]


def save_verdict(verdict: Verdict, path: str | os.PathLike[str]) -> None:
    """Write C(verdict) to C(path), atomically, as strict JSON."""
    write_json(path, verdict.model_dump(mode="json"))


def load_verdict(path: str | os.PathLike[str]) -> Verdict:
    """Read and check a C(verdict.json). Raises OSError, or ValueError naming the file and what is wrong in it."""
    data = read_json(path)
    try:
        return Verdict.model_validate(data)
    except ValidationError as exc:
        problems = [f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in exc.errors()]
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{path}: not a verdict of this version: {'; '.join(problems[:5])}{more}") from exc


__all__ = [
    "DATA_COMPLETE",
    "FILE_NAME",
    "SCHEMA_VERSION",
    "STATS_NAMES",
    "Check",
    "CheckStatus",
    "Remark",
    "Status",
    "Verdict",
    "Worst",
    "load_verdict",
    "save_verdict",
]
