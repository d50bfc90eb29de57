# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model of C(results.json): the single home of its names, types and units.

Names ending in C(_us) are microseconds, C(_ms) milliseconds, C(_gbps) 10^9 bytes a second; ratios lie in 0..1.
C(None) means "not measured" or "undefined", never zero. Definitions are in C(docs/metrics.md).
"""

from __future__ import annotations

import os
from typing import Any, Literal

from ansible_collections.aorta.automation.plugins.plugin_utils._deps import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, write_json

SCHEMA_VERSION = 1
FILE_NAME = "results.json"


class _Strict(BaseModel):
    """Nothing unknown, no conversion of types, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Engine(_Strict):
    """Who measured."""

    name: Literal["native", "tracelens"]
    version: str


class World(_Strict):
    """The ranks: C(ranks) are those with results, ascending; C(missing_ranks) those expected but without."""

    num_nodes: int | None
    num_ranks: int
    ranks: list[int]
    missing_ranks: list[int]


class Timeline(_Strict):
    """Where the time of a window went: lengths of unions of intervals, in microseconds."""

    total: float
    busy: float
    idle: float
    computation: float
    communication: float
    exposed_communication: float
    memcpy: float
    exposed_memcpy: float


class Ratios(_Strict):
    """Shares of C(total); C(overlap) is the share of communication hidden by computation."""

    compute: float | None
    communication: float | None
    exposed_communication: float | None
    overlap: float | None
    idle: float | None


class Iterations(_Strict):
    """Statistics of the host-side ProfilerStep windows; C(std_ms) is the sample deviation, null for one step."""

    count: int
    mean_ms: float
    median_ms: float
    std_ms: float | None
    min_ms: float
    max_ms: float
    p95_ms: float
    durations_ms: list[float]


class KernelCounts(_Strict):
    """Number of GPU events in each bucket."""

    computation: int
    communication: int
    memcpy: int


class RankResult(_Strict):
    """What one rank's trace says; C(trace) is the file's path below the trace directory (the first of several).

    C(outside_steps_us): the part of the timeline outside all ProfilerStep windows, null without steps.
    """

    rank: int
    node: str | None
    local_rank: int | None
    gpu: str | None
    trace: str | None
    timeline_us: Timeline | None
    ratios: Ratios
    iterations: Iterations | None
    kernel_counts: KernelCounts | None
    outside_steps_us: Timeline | None = None


class Summary(_Strict):
    """Means over the ranks that have the figure; C(time_variance_ratio) is sample std / mean of mean iterations."""

    avg_iteration_ms: float | None
    avg_compute_ratio: float | None
    avg_communication_ratio: float | None
    avg_exposed_communication_ratio: float | None
    avg_overlap_ratio: float | None
    avg_idle_ratio: float | None
    time_variance_ratio: float | None


class Step(_Strict):
    """The timeline of one ProfilerStep window of one rank; null where the rank has no GPU events."""

    rank: int
    step: int
    timeline_us: Timeline | None


class Collective(_Strict):
    """One collective over the ranks that recorded it, on one common clock.

    C(ranks) recorded it, C(missing_ranks) should have and did not. C(bytes) is the full message
    (output for all-gather, input for all others). Skews need two ranks, bandwidths a known size and class.
    """

    group: str | None
    group_ranks: list[int] | None
    seq: int | None
    name: str | None
    dtype: str | None
    in_elements: int | None
    out_elements: int | None
    bytes: int | None
    ranks: list[int]
    missing_ranks: list[int]
    min_duration_us: float
    arrival_skew_us: float | None
    end_skew_us: float | None
    first_rank: int | None
    last_rank: int | None
    algbw_gbps: float | None
    busbw_gbps: float | None


class CollectiveSize(_Strict):
    """All collectives of one operation, process group, type and size that at least two ranks recorded.

    Bandwidths are of the single collectives; C(duration_us) their shortest kernels.
    """

    name: str | None
    group: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None
    count: int
    min_duration_us: float
    median_duration_us: float
    max_duration_us: float
    median_arrival_skew_us: float | None
    max_arrival_skew_us: float | None
    median_algbw_gbps: float | None
    min_busbw_gbps: float | None
    median_busbw_gbps: float | None
    max_busbw_gbps: float | None


class Straggler(_Strict):
    """A rank's part in C(collectives) matched collectives (those with at least two ranks).

    The C(late_..._us) add up to C(made_others_wait_us) and say what it is made of; C(cause) is the largest of them.
    """

    rank: int
    node: str | None
    collectives: int
    times_last: int
    times_first: int
    wait_us: float
    made_others_wait_us: float
    late_compute_us: float | None = None
    late_host_us: float | None = None
    late_network_us: float | None = None
    late_unexplained_us: float | None = None
    cause: Literal["compute", "host", "network"] | None = None
    cause_message: str | None = None


class StragglerStep(_Strict):
    """What a rank made the others wait within one of its steps."""

    step: int
    rank: int
    node: str | None
    times_last: int
    made_others_wait_us: float


class Kernel(_Strict):
    """GPU time by name; C(rank) null = over all ranks. C(share) is of the sum of all GPU events' durations.

    The last four are for all ranks only: how many have it, and which has the largest mean beside the ranks' median.
    """

    rank: int | None
    name: str
    category: Literal["computation", "communication", "memcpy"]
    calls: int
    total_us: float
    mean_us: float
    share: float | None
    kind: str = "other"
    p50_us: float | None = None
    p99_us: float | None = None
    ranks: int | None = None
    slowest_rank: int | None = None
    slowest_mean_us: float | None = None
    median_mean_us: float | None = None


class KernelKind(_Strict):
    """GPU time by kind (gemm, attention, ...); C(rank) null = over all ranks, with the spread of the ranks' totals."""

    rank: int | None
    kind: str
    names: int
    calls: int
    total_us: float
    mean_us: float
    share: float | None
    slowest_rank: int | None = None
    max_total_us: float | None = None
    median_total_us: float | None = None
    min_total_us: float | None = None


class Note(_Strict):
    """A warning: C(code) is a contract, C(message) is for people."""

    code: str
    message: str
    rank: int | None = None
    file: str | None = None
    count: int | None = None


class Problem(_Strict):
    """An error; C(byte) is the position in the uncompressed text (in the file for damaged compression)."""

    code: str
    message: str
    rank: int | None = None
    file: str | None = None
    byte: int | None = None


class Source(_Strict):
    """A file that was read, so that an unchanged set need not be read again.

    C(counted): its events are part of the rank's figures (false for what holds the same data once more).
    """

    rank: int | None
    file: str
    bytes: int
    sha256: str
    mtime_ns: int
    counted: bool = True


class Comparison(_Strict):
    """A length of a rank's timeline, as measured here and by TraceLens; C(difference_us) = theirs - ours."""

    rank: int
    metric: str
    ours_us: float
    theirs_us: float
    difference_us: float
    tolerance_us: float
    agrees: bool


class TraceLensRank(_Strict):
    """What TraceLens made of one rank; files are named from the run directory. C(error) is null if all went well."""

    rank: int
    workbooks: list[str]
    logs: list[str]
    error: str | None


class TraceLensCollectives(_Strict):
    """TraceLens' workbook of the collectives of all ranks; C(error) says why there is none."""

    workbook: str | None
    log: str | None
    error: str | None


class TraceLensRun(_Strict):
    """AMD TraceLens over the same traces. C(agrees) is null where nothing could be compared.

    C(not_compared) names the figures that the rule for communication kernels in force makes differ by definition.
    """

    version: str | None
    commit: str | None
    agrees: bool | None
    ranks: list[TraceLensRank]
    collectives: TraceLensCollectives
    comparison: list[Comparison]
    not_compared: list[str] = Field(default_factory=list)


class Results(_Strict):
    """The whole of C(results.json), schema version 1."""

    schema_version: Literal[1] = 1
    status: Literal["ok", "partial", "error"]
    run_id: str | None = None
    created: str
    engine: Engine
    world: World
    per_rank: list[RankResult] = Field(default_factory=list)
    summary: Summary
    steps: list[Step] = Field(default_factory=list)
    collectives: list[Collective] = Field(default_factory=list)
    collective_sizes: list[CollectiveSize] = Field(default_factory=list)
    stragglers: list[Straggler] = Field(default_factory=list)
    straggler_steps: list[StragglerStep] = Field(default_factory=list)
    clock_offsets_us: dict[str, float] = Field(default_factory=dict)
    clock_spreads_us: dict[str, float] = Field(default_factory=dict)
    top_kernels: list[Kernel] = Field(default_factory=list)
    kernel_kinds: list[KernelKind] = Field(default_factory=list)
    warnings: list[Note] = Field(default_factory=list)
    errors: list[Problem] = Field(default_factory=list)
    trace_dir: str | None = None
    sources: list[Source] = Field(default_factory=list)
    tracelens: TraceLensRun | None = None
    analysis: dict[str, Any] = Field(default_factory=dict)
    reused_from: str | None = None


def save_results(results: Results, path: str | os.PathLike[str]) -> None:
    """Write C(results) to C(path), atomically, as strict JSON; keys of notes that do not apply are left out."""
    data = results.model_dump(mode="json")
    for key in ("warnings", "errors"):
        data[key] = [{name: value for name, value in entry.items() if value is not None} for entry in data[key]]
    write_json(path, data)


def load_results(path: str | os.PathLike[str]) -> Results:
    """Read and check a C(results.json). Raises OSError, or ValueError naming the file and what is wrong in it."""
    data = read_json(path)
    try:
        return Results.model_validate(data)
    except ValidationError as exc:
        problems = [f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in exc.errors()]
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{path}: not a results file of this version: {'; '.join(problems[:5])}{more}") from exc


__all__ = [
    "FILE_NAME",
    "SCHEMA_VERSION",
    "Collective",
    "CollectiveSize",
    "Comparison",
    "Engine",
    "Iterations",
    "Kernel",
    "KernelCounts",
    "KernelKind",
    "Note",
    "Problem",
    "RankResult",
    "Ratios",
    "Results",
    "Source",
    "Step",
    "Straggler",
    "StragglerStep",
    "Summary",
    "Timeline",
    "TraceLensCollectives",
    "TraceLensRank",
    "TraceLensRun",
    "World",
    "load_results",
    "save_results",
]
