# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds the results against C(expected_results): limits in, C(Verdict) out.

What makes a verdict, first hit wins: the run itself failed (C(manifest.failure)) or no rank could be measured for
damaged traces = C(error); no traces at all = C(no_data); a check that fails or can't be measured = C(failed);
else C(passed).
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import math
import statistics
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ansible_collections.aorta.automation.plugins.plugin_utils import _results, _verdict
from ansible_collections.aorta.automation.plugins.plugin_utils._config import (
    ExpectedResults,
    Limit,
    Thresholds,
    metric_exists,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._deps import BaseModel, ValidationError
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json
from ansible_collections.aorta.automation.plugins.plugin_utils._gpu import normalise_gpu_model
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results
from ansible_collections.aorta.automation.plugins.plugin_utils._verdict import (
    DATA_COMPLETE,
    Check,
    CheckStatus,
    Remark,
    Status,
    Verdict,
    Worst,
)

Comparison = Literal["<=", ">="]

# What aorta_allow_missing_ranks excuses: a rank without a trace, or whose trace can't be read. Not excused are traces
# that contradict each other (rank_conflict, ambiguous_traces, multiple_devices, rank_unknown), nor a rank that did run
# but whose GPU was not recorded (no_gpu_events): there the figures of the ranks that remain may be wrong or half.
EXCUSABLE = frozenset(
    (
        "missing_ranks",
        "trace_truncated",
        "trace_invalid_json",
        "trace_empty_file",
        "trace_unreadable",
        "trace_too_large",
        "reader_died",
    )
)
NO_TRACES = "no_traces"

# CVS's four: setting -> metric, what it is called in a message, direction.
_FOUR: tuple[tuple[str, str, Comparison], ...] = (
    ("max_avg_iteration_ms", "summary.avg_iteration_ms", "<="),
    ("min_compute_ratio", "summary.avg_compute_ratio", ">="),
    ("min_overlap_ratio", "summary.avg_overlap_ratio", ">="),
    ("max_time_variance_ratio", "summary.time_variance_ratio", "<="),
)
# A figure of the summary -> what it is called, and the figure of each rank that it is the mean of.
_SUMMARY = {
    "summary.avg_iteration_ms": ("iteration time", "per_rank.iterations.mean_ms"),
    "summary.avg_compute_ratio": ("compute ratio", "per_rank.ratios.compute"),
    "summary.avg_communication_ratio": ("communication ratio", "per_rank.ratios.communication"),
    "summary.avg_exposed_communication_ratio": (
        "exposed communication ratio",
        "per_rank.ratios.exposed_communication",
    ),
    "summary.avg_overlap_ratio": ("overlap ratio", "per_rank.ratios.overlap"),
    "summary.avg_idle_ratio": ("idle ratio", "per_rank.ratios.idle"),
    "summary.time_variance_ratio": ("time variance ratio", "per_rank.iterations.mean_ms"),
}
_VARIANCE = "summary.time_variance_ratio"
_THINGS = {
    "per_rank": "ranks",
    "stragglers": "ranks",
    "steps": "steps",
    "collectives": "collectives",
    "top_kernels": "kernels",
}
# Needs at least two ranks to mean anything.
_BETWEEN_RANKS = ("summary.time_variance_ratio", "summary.avg_overlap_ratio", "per_rank.ratios.overlap")
_BETWEEN_RANKS_SECTIONS = ("collectives", "stragglers", "clock_offsets_us")


# --- what is demanded -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rule:
    """One limit: C(name) is what the user calls it, C(label) what a message calls the figure."""

    name: str
    metric: str
    comparison: Comparison
    limit: float
    label: str


def expected_of(spec: Mapping[str, Any]) -> ExpectedResults:
    """The section C(expected_results) of a C(spec.json), checked. Raises ValueError naming setting and value."""
    section = (spec.get("values") or {}).get("expected_results") or {}
    try:
        expected = ExpectedResults.model_validate(section)
    except ValidationError as exc:
        lines = [".".join(map(str, ("expected_results", *e["loc"]))) + f": {e['msg']}" for e in exc.errors()]
        raise ValueError("; ".join(lines)) from exc
    sets: dict[str, Thresholds] = {"expected_results": expected}
    sets.update({f"expected_results.by_gpu_model.{name}": one for name, one in expected.by_gpu_model.items()})
    for path, one in sets.items():
        for index, limit in enumerate(one.limits):
            if not metric_exists(limit.metric):
                raise ValueError(f"{path}.limits.{index}.metric: {unknown_metric(limit.metric)}")
    return expected


def unknown_metric(metric: str) -> str:
    """One line that says what is wrong with C(metric), with the most similar ones that exist."""
    names = metric_names()
    last = metric.rpartition(".")[2]
    near = difflib.get_close_matches(metric, names, n=3, cutoff=0.7)
    near += [name for name in names if name.rpartition(".")[2] == last and name not in near]
    near += [name for name in difflib.get_close_matches(metric, names, n=3, cutoff=0.5) if name not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "for example summary.avg_idle_ratio"
    return f"no such metric {metric!r}, expected the path of a number in results.json ({hint})"


def metric_names() -> list[str]:
    """The path of every number of C(results.json)."""
    return sorted(_names(Results, ()))


def _names(annotation: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from _names(field.annotation, (*path, name))
    elif annotation in (int, float):
        yield ".".join(path)
    elif typing.get_origin(annotation) is not dict:
        for part in typing.get_args(annotation):
            yield from _names(part, path)


def rules_of(expected: Thresholds, over: Thresholds | None = None) -> list[Rule]:
    """The limits of C(expected), each replaced by that of C(over) for the same figure, if there is one."""
    rules = []
    for setting, metric, comparison in _FOUR:
        value = getattr(over, setting, None)
        value = getattr(expected, setting) if value is None else value
        if value is not None:
            rules.append(Rule(setting, metric, comparison, value, _SUMMARY[metric][0]))
    limits: list[Limit] = list(expected.limits)
    if over is not None:
        named = {limit.metric for limit in over.limits}
        limits = [limit for limit in limits if limit.metric not in named] + over.limits
    for limit in limits:
        label = limit.name or _SUMMARY.get(limit.metric, (limit.metric,))[0]
        bounds: tuple[tuple[Comparison, float | None], ...] = ((">=", limit.min), ("<=", limit.max))
        for comparison, bound in bounds:
            if bound is not None:
                rules.append(Rule(limit.name or limit.metric, limit.metric, comparison, bound, label))
    return rules


@dataclasses.dataclass
class Choice:
    """Which rules apply: C(model) whose set was used; C(unsettled) why none could be, though nothing else is set."""

    rules: list[Rule]
    model: str | None = None
    remarks: list[Remark] = dataclasses.field(default_factory=list)
    unsettled: str | None = None


def choose_rules(expected: ExpectedResults, benchmark_model: str, results: Results | None) -> Choice:
    """Pick the set by GPU model: C(expected_results.gpu_model), else C(gpu_model), else what the traces name.

    Where the traces name several models, or none, no set fits all ranks: the general values are used and a remark
    says so. If there are no general values, nothing would be checked; then the choice is C(unsettled).
    """
    general = rules_of(expected)
    if not expected.by_gpu_model:
        return Choice(general)
    given = next((model for model in (expected.gpu_model, benchmark_model) if model != "auto"), None)
    names = {rank.gpu or "" for rank in results.per_rank} if results is not None else set()
    models = {given} if given else {normalise_gpu_model(name) for name in names}
    model = next(iter(models)) if len(models) == 1 else None
    if model in expected.by_gpu_model:
        return Choice(rules_of(expected, expected.by_gpu_model[model]), model)
    listed = ", ".join(sorted(name or "(no name)" for name in names)) or "none"
    if model is not None:
        code, text = "no_limits_for_gpu_model", f"there are none for {model}"
    elif len(models) > 1:
        code, text = "mixed_gpu_models", f"the traces name several models ({listed})"
    else:
        code, text = "gpu_model_unknown", f"the traces name no known model ({listed})"
    text = f"expected_results.by_gpu_model has limits for {', '.join(sorted(expected.by_gpu_model))}; {text}"
    advice = "expected_results.gpu_model chooses one"
    if general:
        return Choice(general, remarks=[Remark(code=code, message=f"{text}: judged by the general limits; {advice}")])
    return Choice([], unsettled=f"no limit applies: {text}; {advice}")


# --- what was found ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measured:
    """A figure and whose it is; C(where) is for messages, empty for figures of the whole run."""

    value: float | None
    rank: int | None = None
    node: str | None = None
    where: str = ""

    @property
    def worst(self) -> Worst | None:
        """As the verdict has it."""
        return None if self.rank is None and self.node is None else Worst(rank=self.rank, node=self.node)


def measure(results: Results, metric: str) -> list[Measured]:
    """Every value that the path C(metric) leads to; lists are walked through. None where it was not measured."""
    nodes = {rank.rank: rank.node for rank in results.per_rank}
    section, *path = metric.split(".")
    if section == "clock_offsets_us":
        node = ".".join(path)
        return [Measured(results.clock_offsets_us.get(node), None, node, node)]
    found = []
    for value, entry in _walk(getattr(results, section, None), path, None):
        rank, where = _whose(section, entry, path, nodes)
        found.append(Measured(value, rank, None if rank is None else nodes.get(rank), where))
    return found


def _walk(value: Any, path: Sequence[str], entry: Any) -> Iterator[tuple[float | None, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, path, item if entry is None else entry)
    elif path and isinstance(value, BaseModel):
        yield from _walk(getattr(value, path[0], None), path[1:], entry)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not path:
        yield value, entry
    else:
        yield None, entry


def _whose(section: str, entry: Any, path: Sequence[str], nodes: Mapping[int, str | None]) -> tuple[int | None, str]:
    if section == "collectives":
        label = f"{entry.name or 'collective'}" + (f", group {entry.group}" if entry.group is not None else "")
        label += f", Seq {entry.seq}" if entry.seq is not None else ""
        if path[-1:] == ["arrival_skew_us"] and entry.last_rank is not None:
            return entry.last_rank, f"{label}, last: {rank_name(entry.last_rank, nodes)}"
        return None, label
    rank = getattr(entry, "rank", None)
    if rank is None:
        return None, _short(entry.name) if section == "top_kernels" else ""
    where = rank_name(rank, nodes)
    if section == "steps":
        where += f", step {entry.step}"
    elif section == "top_kernels":
        where += f", {_short(entry.name)}"
    return rank, where


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


def one_line(text: str, most: int = 600) -> str:
    """C(text) as one printable line: names from traces may hold anything."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def rank_name(rank: int, nodes: Mapping[int, str | None]) -> str:
    """C("rank 5 on node1"), without the node where it is not known."""
    node = nodes.get(rank)
    return f"rank {rank}" + (f" on {node}" if node else "")


def unit_of(metric: str) -> str:
    """The unit of a metric; empty for ratios and counts."""
    parts = metric.split(".")
    for suffix, unit in (("_ms", "ms"), ("_us", "us"), ("_gbps", "GB/s"), ("_ns", "ns")):
        if any(part.endswith(suffix) for part in parts):
            return unit
    return "bytes" if parts[-1] == "bytes" else ""


def number(value: float, digits: int = 4) -> str:
    """C(digits) significant digits, no exponent, no trailing zeros beyond two decimals of a fraction."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    decimals = min(15, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def distinct(one: float, other: float) -> tuple[str, str]:
    """Both as text, with so many digits that different values look different."""
    for digits in range(4, 18):
        texts = number(one, digits), number(other, digits)
        if texts[0] != texts[1] or one == other:
            break
    return texts


def meets(value: float, comparison: Comparison, limit: float) -> bool:
    """Whether the limit is met; a difference within 1e-9 of it is rounding, not a breach."""
    if math.isclose(value, limit, rel_tol=1e-9):
        return True
    return value <= limit if comparison == "<=" else value >= limit


# --- the judgement ----------------------------------------------------------------------------------------------------


def judge(results: Results | None, spec: Mapping[str, Any], manifest: Mapping[str, Any] | None = None) -> Verdict:
    """The verdict over C(results) (None: there are none). Raises ValueError for limits that make no sense."""
    values = spec.get("values") or {}
    choice = choose_rules(expected_of(spec), str(values.get("gpu_model") or "auto"), results)
    checks = [check(rule, results) for rule in choice.rules]
    if choice.unsettled:
        checks.append(_gpu_model_check(choice.unsettled))
    excused = bool((spec.get("controls") or {}).get("allow_missing_ranks"))
    completeness = None if results is None else data_complete(results, excused)
    if completeness is not None:
        checks.insert(0, completeness)
    failure = (manifest or {}).get("failure")
    status = _status(results, checks, failure)
    return Verdict(
        status=status,
        run_id=spec.get("run_id"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        reason=one_line(_reason(status, results, checks, failure, len(choice.rules))),
        limits=len(choice.rules),
        gpu_model=choice.model,
        checks=checks,
        warnings=choice.remarks,
    )


def _status(results: Results | None, checks: Sequence[Check], failure: Any) -> Status:
    if failure:
        return "error"
    if results is None or NO_TRACES in {problem.code for problem in results.errors}:
        return "no_data"
    if results.status == "error":
        return "error"
    if not results.per_rank:
        return "no_data"
    return "failed" if any(one.failing for one in checks) else "passed"


def check(rule: Rule, results: Results | None) -> Check:
    """Hold one figure against its limit."""
    found = [] if results is None else measure(results, rule.metric)
    measured = [(one.value, one) for one in found if one.value is not None]
    if results is None or not measured:
        return _unmeasured(rule, results)
    if rule.metric.partition(".")[0] in _THINGS:
        return _check_each(rule, results, found)
    value = measured[0][0]
    if rule.metric not in _SUMMARY:
        one = measured[0][1]
        return _decided(rule, value, _compared(rule, value), one.worst)
    culprit, without = _culprit(rule, results)
    note = "" if not without else f"; without a value: {_some(without, results)}"
    if culprit is None or culprit.value is None:
        return _decided(rule, value, _compared(rule, value) + note, None)
    unit = unit_of(_SUMMARY[rule.metric][1])
    text = f"{_compared(rule, value)} (worst: {culprit.where}: {quantity(culprit.value, unit)}{note})"
    return _decided(rule, value, text, culprit.worst)


def _culprit(rule: Rule, results: Results) -> tuple[Measured | None, list[int]]:
    """The rank that a figure of the summary owes most to, and the ranks that did not take part in it.

    For the variance between ranks that is the rank farthest from the mean; of two, the slower one.
    """
    each = measure(results, _SUMMARY[rule.metric][1])
    without = [one.rank for one in each if one.value is None and one.rank is not None]
    measured = [(one.value, one) for one in each if one.value is not None]
    if not measured:
        return None, without
    if rule.metric == _VARIANCE:
        mean = statistics.fmean(value for value, _one in measured)
        return max(measured, key=lambda pair: (abs(pair[0] - mean), pair[0]))[1], without
    sign = 1 if rule.comparison == "<=" else -1
    return max(measured, key=lambda pair: sign * pair[0])[1], without


def _check_each(rule: Rule, results: Results, found: Sequence[Measured]) -> Check:
    """A figure that many have: each is held against the limit; the row shows the worst.

    A rank without the figure is not measured. Steps, collectives and kernels without it are left out: a barrier has
    no bandwidth, and ranks whose steps have no timeline are reported as incomplete data.
    """
    section = rule.metric.partition(".")[0]
    sign = 1 if rule.comparison == "<=" else -1
    measured = [(one.value, one) for one in found if one.value is not None]
    value, worst = max(measured, key=lambda pair: sign * pair[0])
    beyond = [one for number_, one in measured if not meets(number_, rule.comparison, rule.limit)]
    things = _THINGS[section]
    if section == "per_rank":  # a rank may have several values, such as the durations of its steps
        count, total = len({one.rank for one in beyond}), len(results.per_rank)
        without = sorted({one.rank for one in results.per_rank} - {one.rank for _v, one in measured})
    else:
        count, total, without = len(beyond), len(measured), []
    unit = unit_of(rule.metric)
    at = f"worst: {worst.where}: {quantity(value, unit)}" if worst.where else f"worst: {quantity(value, unit)}"
    limit = quantity(rule.limit, unit)
    if beyond:
        sense = ">" if rule.comparison == "<=" else "<"
        return _decided(rule, value, f"{rule.label}: {count} of {total} {things} {sense} {limit} ({at})", worst.worst)
    if without:
        message = (
            f"{rule.label}: not measured on {len(without)} of {total} ranks: {_some(without, results)}"
            f" (limit {rule.comparison} {limit})"
        )
        nodes = {one.rank: one.node for one in results.per_rank}
        first = Worst(rank=without[0], node=nodes.get(without[0]))
        return _row(rule, None, "not_measured", first, message)
    text = f"{rule.label}: {total} of {total} {things} {rule.comparison} {limit} ({at})"
    return _decided(rule, value, text, worst.worst)


def _some(ranks: Sequence[int], results: Results, most: int = 8) -> str:
    nodes = {one.rank: one.node for one in results.per_rank}
    shown = ", ".join(rank_name(rank, nodes) for rank in ranks[:most])
    return shown + (f" and {len(ranks) - most} more" if len(ranks) > most else "")


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """A number with its unit."""
    return number(value, digits) + (f" {unit}" if unit else "")


def _compared(rule: Rule, value: float) -> str:
    unit = unit_of(rule.metric)
    actual, limit = (text + (f" {unit}" if unit else "") for text in distinct(value, rule.limit))
    sense: str = rule.comparison
    if not meets(value, rule.comparison, rule.limit):
        sense = ">" if rule.comparison == "<=" else "<"
    return f"{rule.label} {actual} {sense} {limit}"


def _decided(rule: Rule, value: float, message: str, worst: Worst | None) -> Check:
    status: CheckStatus = "pass" if meets(value, rule.comparison, rule.limit) else "fail"
    return _row(rule, value, status, worst, message)


def _row(rule: Rule, value: float | None, status: CheckStatus, worst: Worst | None, message: str) -> Check:
    return Check(
        name=rule.name,
        metric=rule.metric,
        actual=None if value is None else float(value),
        limit=float(rule.limit),
        comparison=rule.comparison,
        unit=unit_of(rule.metric),
        status=status,
        worst=worst,
        message=one_line(message),
    )


def _unmeasured(rule: Rule, results: Results | None) -> Check:
    limit = f"(limit {rule.comparison} {quantity(rule.limit, unit_of(rule.metric))})"
    between = rule.metric in _BETWEEN_RANKS or rule.metric.partition(".")[0] in _BETWEEN_RANKS_SECTIONS
    if results is not None and between and world_size(results) == 1:
        message = f"{rule.label}: does not apply to one rank {limit}"
        return _row(rule, None, "not_applicable", None, message)
    return _row(rule, None, "not_measured", None, f"{rule.label}: not measured {limit}: {_why(rule, results)}")


def _why(rule: Rule, results: Results | None) -> str:
    if results is None or not results.per_rank:
        return "there are no results"
    if rule.metric == _VARIANCE:
        timed = sum(rank.iterations is not None for rank in results.per_rank)
        return f"it takes the iteration times of two ranks; of {world_size(results)} ranks {timed} have one"
    if "iteration" in rule.metric:
        return "no trace has a ProfilerStep"
    if all(rank.timeline_us is None for rank in results.per_rank):
        return "no rank has GPU events"
    if rule.metric in _BETWEEN_RANKS:
        return f"no communication between {world_size(results)} ranks was recorded, which is suspicious"
    return "the results do not have it"


def world_size(results: Results) -> int:
    """Ranks with results and those that should have some."""
    return len(set(results.world.ranks) | set(results.world.missing_ranks))


def _gpu_model_check(message: str) -> Check:
    return Check(
        name="gpu_model",
        metric="per_rank.gpu",
        actual=None,
        limit=None,
        comparison=None,
        unit="",
        status="not_measured",
        worst=None,
        message=one_line(message),
    )


def data_complete(results: Results, allow_missing: bool) -> Check | None:
    """The row that says which ranks lack data; None when none does.

    With C(allow_missing), ranks that are missing or whose trace is damaged are excused (see C(EXCUSABLE)).
    """
    missing = set(results.world.missing_ranks)
    if results.status == "ok" and not missing and not results.errors:
        return None
    if not results.per_rank and NO_TRACES in {problem.code for problem in results.errors}:
        return None
    damaged = {problem.rank for problem in results.errors if problem.rank is not None}
    expected = set(results.world.ranks) | missing
    whole = sorted(expected - missing - damaged)
    serious = [problem for problem in results.errors if problem.code not in EXCUSABLE]
    nodes = {rank.rank: rank.node for rank in results.per_rank}
    parts = [f"{len(whole)} of {len(expected)} ranks are complete"]
    if missing:
        parts.append(f"without figures: {_some(sorted(missing), results)}")
    first = (serious or results.errors)[:1]
    if first:
        more = f" (and {len(results.errors) - 1} more errors)" if len(results.errors) > 1 else ""
        parts.append(f"{first[0].code}: {first[0].message}{more}")
    excused = allow_missing and not serious and bool(results.per_rank)
    if excused:
        parts.append("excused by aorta_allow_missing_ranks")
    elif allow_missing and serious:
        parts.append(f"aorta_allow_missing_ranks does not excuse {serious[0].code}")
    lacking = sorted((expected - set(whole)) | damaged)
    if first and first[0].rank is not None:
        lacking = [first[0].rank]
    return Check(
        name=DATA_COMPLETE,
        metric="world.num_ranks",
        actual=float(len(whole)),
        limit=float(len(expected)),
        comparison=">=",
        unit="",
        status="not_applicable" if excused else "fail",
        worst=Worst(rank=lacking[0], node=nodes.get(lacking[0])) if lacking else None,
        message=one_line("; ".join(parts)),
    )


def _reason(status: Status, results: Results | None, checks: Sequence[Check], failure: Any, limits: int) -> str:
    if failure:
        return failure_line(failure)
    if status == "no_data":
        where = "" if results is None or results.trace_dir is None else f" in {results.trace_dir}"
        return f"There was nothing to judge: no traces{where}."
    if status == "error":
        first = results.errors[0].message if results is not None and results.errors else "the analysis gave no figures"
        return f"No rank could be measured: {first}"
    failing = [one for one in checks if one.failing]
    if failing:
        return f"{len(failing)} of {len(checks)} checks failed: {failing[0].message}"
    aside = sum(one.status == "not_applicable" for one in checks)
    note = f" ({aside} not applicable)" if aside else ""
    ranks = 0 if results is None else len(results.per_rank)
    if not limits:
        return f"The data of {ranks} ranks can be used; no limits are set, so nothing was compared{note}."
    passed = sum(one.status == "pass" for one in checks)
    return f"{'All ' if passed > 1 else ''}{passed} check{'s' if passed != 1 else ''} passed{note}."


def failure_line(failure: Mapping[str, Any]) -> str:
    """One sentence: in which phase, on which host and rank, with what exit code, and why."""
    where = []
    if failure.get("host"):
        where.append(f"on {failure['host']}")
    details = []
    if failure.get("rank") is not None:
        details.append(f"rank {failure['rank']}")
    if failure.get("exit_code") is not None:
        details.append(f"exit code {failure['exit_code']}")
    text = " ".join([f"The run failed in phase {failure.get('phase') or 'unknown'}", *where])
    if details:
        text += f" ({', '.join(details)})"
    return f"{text}: {failure.get('message') or failure.get('reason') or 'no reason was recorded'}"


# --- files ------------------------------------------------------------------------------------------------------------


def read_inputs(run_dir: Path) -> tuple[Results | None, dict[str, Any], dict[str, Any] | None]:
    """C(results.json) (None if absent), C(spec.json), C(manifest.json) (None if absent) of a run directory.

    Raises ValueError naming the file for one that is damaged, or for a missing C(spec.json): without it no limit is
    known, and nothing may pass for that.
    """
    results_path, spec_path = run_dir / _results.FILE_NAME, run_dir / "spec.json"
    if not spec_path.is_file():
        raise ValueError(f"{spec_path}: there is no such file; it holds the limits (written by validate_config)")
    spec = read_json(spec_path)
    manifest_path = run_dir / "manifest.json"
    manifest = read_json(manifest_path) if manifest_path.is_file() else None
    for path, value in ((spec_path, spec), (manifest_path, manifest)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{path}: an object expected")
    results = _results.load_results(results_path) if results_path.is_file() else None
    return results, spec, manifest


def judge_run(run_dir: Path) -> Verdict:
    """Judge the run in C(run_dir) and write C(verdict.json) there. Raises ValueError, OSError."""
    verdict = judge(*read_inputs(run_dir))
    _verdict.save_verdict(verdict, run_dir / _verdict.FILE_NAME)
    return verdict


__all__ = [
    "EXCUSABLE",
    "Choice",
    "Measured",
    "Rule",
    "check",
    "choose_rules",
    "data_complete",
    "distinct",
    "expected_of",
    "failure_line",
    "judge",
    "judge_run",
    "measure",
    "meets",
    "metric_names",
    "number",
    "one_line",
    "quantity",
    "rank_name",
    "read_inputs",
    "rules_of",
    "unit_of",
    "unknown_metric",
    "world_size",
]
