# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every status of a verdict and of a check, and the lines that people read."""

from __future__ import annotations

import json

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _config, _thresholds, _verdict
from ansible_collections.aorta.automation.plugins.plugin_utils._thresholds import judge
from ansible_collections.aorta.automation.tests.unit.plugins import run_factory as run


def verdict_of(data, manifest=None, *, allow=False, gpu_model="auto", **expected):
    spec = run.spec(**expected)
    spec["controls"]["allow_missing_ranks"] = allow
    spec["values"]["gpu_model"] = gpu_model
    return judge(None if data is None else run.checked(data), spec, manifest)


def statuses(verdict):
    return {check.name: check.status for check in verdict.checks}


def test_the_four_limits_of_cvs_pass_and_name_the_worst_rank():
    verdict = verdict_of(
        run.results(),
        max_avg_iteration_ms=120,
        min_compute_ratio=0.5,
        min_overlap_ratio=0.3,
        max_time_variance_ratio=0.1,
    )
    assert verdict.status == "passed"
    assert verdict.reason == "All 4 checks passed."
    assert set(statuses(verdict).values()) == {"pass"}
    worst = {check.name: (check.worst.rank, check.worst.node) for check in verdict.checks}
    assert worst["max_avg_iteration_ms"] == (5, "node1")
    assert worst["max_time_variance_ratio"] == (5, "node1")
    assert worst["min_compute_ratio"][0] != 5


def test_a_breach_is_one_line_with_numbers_unit_and_limit():
    data = run.results(slow={})
    for rank in data["per_rank"]:
        rank["ratios"]["compute"] = 0.35
        rank["iterations"]["mean_ms"] = 100.0
    data["per_rank"][5]["ratios"]["compute"] = 0.27
    data["per_rank"][3]["iterations"]["mean_ms"] = 131.25
    data["summary"].update(avg_compute_ratio=0.31, avg_iteration_ms=104.4)
    verdict = verdict_of(data, min_compute_ratio=0.5, max_avg_iteration_ms=100)
    assert verdict.status == "failed"
    assert [check.message for check in verdict.failing] == [
        "iteration time 104.4 ms > 100 ms (worst: rank 3 on node0: 131.2 ms)",
        "compute ratio 0.31 < 0.5 (worst: rank 5 on node1: 0.27)",
    ]
    assert verdict.reason.startswith("2 of 2 checks failed: iteration time 104.4 ms > 100 ms")


def test_for_the_variance_the_outlier_is_named_also_when_it_is_the_fast_one():
    data = run.results(slow={2: 0.5})
    check = verdict_of(data, max_time_variance_ratio=0.01).checks[0]
    assert (check.status, check.worst.rank) == ("fail", 2)


def test_no_limits_is_a_pass_that_says_so():
    verdict = verdict_of(run.results())
    assert (verdict.status, verdict.limits, verdict.checks) == ("passed", 0, [])
    assert "no limits are set" in verdict.reason


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (None, "no_data"),
        ("no traces", "no_data"),
        ("damaged", "error"),
    ],
)
def test_without_any_rank(data, status):
    if data is not None:
        code = {"no traces": "no_traces", "damaged": "trace_truncated"}[data]
        data = run.without_rank(run.results(2, 1, slow={}), 0, 1)
        data["errors"] = [{"code": code, "message": f"{code} here"}]
    verdict = verdict_of(data, min_compute_ratio=0.1)
    assert verdict.status == status
    assert statuses(verdict)["min_compute_ratio"] == "not_measured"


def test_missing_ranks_that_nobody_left_a_trace_of_are_no_data():
    data = run.without_rank(run.results(2, 1, slow={}), 0, 1)
    data["errors"] = [{"code": code, "message": code} for code in ("no_traces", "missing_ranks")]
    assert verdict_of(data).status == "no_data"


def test_a_failed_run_is_an_error_whatever_the_figures_say():
    verdict = verdict_of(run.results(), run.manifest(failure=run.FAILURE), max_avg_iteration_ms=1000)
    assert verdict.status == "error"
    assert verdict.reason == (
        "The run failed in phase run on node1 (rank 5, exit code 137): "
        "step train: the container was killed for lack of memory"
    )
    assert statuses(verdict) == {"max_avg_iteration_ms": "pass"}


def test_incomplete_data_are_a_failed_check_that_names_the_rank():
    verdict = verdict_of(run.without_rank(run.results(), 6), min_compute_ratio=0.01)
    assert verdict.status == "failed"
    assert statuses(verdict) == {"data_complete": "fail", "min_compute_ratio": "pass"}
    row = verdict.checks[0]
    assert (row.actual, row.limit, row.worst.rank) == (7, 8, 6)
    assert "7 of 8 ranks are complete" in row.message
    assert "trace_truncated" in row.message
    assert not any(word in row.metric for word in ("compute", "iteration", "overlap", "variance"))


def test_allowed_missing_ranks_are_shown_and_fail_nothing():
    verdict = verdict_of(run.without_rank(run.results(), 6), allow=True, min_compute_ratio=0.01)
    assert verdict.status == "passed"
    assert statuses(verdict) == {"data_complete": "not_applicable", "min_compute_ratio": "pass"}
    assert "excused by aorta_allow_missing_ranks" in verdict.checks[0].message
    assert verdict.reason == "1 check passed (1 not applicable)."


@pytest.mark.parametrize("code", ["no_gpu_events", "rank_conflict", "ambiguous_traces", "multiple_devices", "new_code"])
def test_what_allow_missing_ranks_does_not_excuse(code):
    if code == "no_gpu_events":
        data = run.without_gpu(run.results(), 2)
    else:
        data = run.without_rank(run.results(), 2, code=code)
    verdict = verdict_of(data, allow=True)
    assert verdict.status == "failed"
    assert f"does not excuse {code}" in verdict.checks[0].message
    assert (verdict.checks[0].worst.rank, verdict.checks[0].actual) == (2, 7)


def test_allowing_missing_ranks_does_not_make_a_pass_of_nothing():
    data = run.without_rank(run.results(2, 1, slow={}), 0, 1)
    assert verdict_of(data, allow=True).status == "error"


def test_lost_gpu_records_are_not_measured_and_never_zero():
    data = run.without_gpu(run.results(1, 1, slow={}), 0)
    verdict = verdict_of(data, min_compute_ratio=0.01, max_avg_iteration_ms=1000)
    assert verdict.status == "failed"
    assert statuses(verdict) == {
        "data_complete": "fail",
        "max_avg_iteration_ms": "pass",
        "min_compute_ratio": "not_measured",
    }
    row = verdict.checks[2]
    assert row.actual is None
    assert row.message == "compute ratio: not measured (limit >= 0.01): no rank has GPU events"


def test_with_one_rank_what_compares_ranks_does_not_apply():
    data = run.results(1, 1, slow={})
    data["summary"]["avg_overlap_ratio"] = data["per_rank"][0]["ratios"]["overlap"] = None
    verdict = verdict_of(
        data,
        max_time_variance_ratio=0.1,
        min_overlap_ratio=0.3,
        limits=[{"metric": "per_rank.ratios.overlap", "min": 0.1}, {"metric": "collectives.busbw_gbps", "min": 1}],
    )
    assert verdict.status == "passed"
    assert set(statuses(verdict).values()) == {"not_applicable"}


def test_several_ranks_without_communication_are_suspicious():
    data = run.results()
    for rank in data["per_rank"]:
        rank["ratios"]["overlap"] = None
    data["summary"]["avg_overlap_ratio"] = None
    verdict = verdict_of(data, min_overlap_ratio=0.0)
    assert verdict.status == "failed"
    assert verdict.checks[0].status == "not_measured"
    assert "no communication between 8 ranks was recorded" in verdict.checks[0].message


def test_one_rank_left_of_two_does_not_make_the_variance_inapplicable():
    data = run.without_rank(run.results(2, 1, slow={}), 1)
    verdict = verdict_of(data, allow=True, max_time_variance_ratio=0.1)
    assert verdict.status == "failed"
    assert statuses(verdict)["max_time_variance_ratio"] == "not_measured"


def test_a_limit_for_every_rank_counts_those_beyond_it():
    data = run.results()
    for rank, value in ((1, 0.44), (5, 0.41)):
        data["per_rank"][rank]["ratios"]["compute"] = value
    check = verdict_of(data, limits=[{"metric": "per_rank.ratios.compute", "min": 0.5, "name": "each rank"}]).checks[0]
    assert (check.name, check.status, check.actual, check.worst.rank) == ("each rank", "fail", 0.41, 5)
    assert check.message == "each rank: 2 of 8 ranks < 0.5 (worst: rank 5 on node1: 0.41)"


def test_a_rank_without_the_figure_is_not_measured():
    data = run.results()
    data["per_rank"][3]["iterations"] = None
    check = verdict_of(data, limits=[{"metric": "per_rank.iterations.p95_ms", "max": 1000}]).checks[0]
    assert (check.status, check.worst.rank) == ("not_measured", 3)
    assert "not measured on 1 of 8 ranks: rank 3 on node0" in check.message


def test_the_summary_says_which_ranks_it_leaves_out():
    data = run.results()
    data["per_rank"][3]["iterations"] = None
    check = verdict_of(data, max_avg_iteration_ms=1000).checks[0]
    assert check.status == "pass"
    assert "without a value: rank 3 on node0" in check.message


@pytest.mark.parametrize(
    ("metric", "bound", "where"),
    [
        ("steps.timeline_us.idle", {"max": 1}, "rank 5 on node1, step"),
        ("collectives.arrival_skew_us", {"max": 100}, "last: rank 5 on node1"),
        ("collectives.busbw_gbps", {"min": 1000}, "group 0, Seq"),
        ("stragglers.made_others_wait_us", {"max": 1000}, "rank 5 on node1: 64301 us"),
        ("per_rank.iterations.durations_ms", {"max": 105}, "rank 5 on node1"),
        ("clock_offsets_us.node1", {"max": 5}, "37.25 us > 5 us"),
        ("world.num_ranks", {"min": 16}, "8 < 16"),
        ("top_kernels.share", {"max": 0.3}, "Cijk_"),
    ],
)
def test_any_number_of_the_results_can_be_limited(metric, bound, where):
    check = verdict_of(run.results(), limits=[{"metric": metric, **bound}]).checks[0]
    assert check.status == "fail"
    assert where in check.message
    assert len(check.message) < 300


def test_collectives_without_a_bandwidth_are_left_out():
    data = run.results()
    data["collectives"][0].update(busbw_gbps=None, name="barrier")
    check = verdict_of(data, limits=[{"metric": "collectives.busbw_gbps", "min": 1}]).checks[0]
    assert check.status == "pass"
    assert "23 of 23 collectives" in check.message


def test_min_and_max_of_one_limit_are_two_checks():
    verdict = verdict_of(run.results(), limits=[{"metric": "summary.avg_idle_ratio", "min": 0.5, "max": 0.9}])
    assert [(check.comparison, check.status) for check in verdict.checks] == [(">=", "fail"), ("<=", "pass")]


def test_the_limit_itself_is_met_and_rounding_is_no_breach():
    data = run.results()
    data["summary"]["avg_compute_ratio"] = 0.1 + 0.2
    assert verdict_of(data, limits=[{"metric": "summary.avg_compute_ratio", "max": 0.3}]).status == "passed"
    data["summary"]["avg_compute_ratio"] = 0.3001
    assert verdict_of(data, limits=[{"metric": "summary.avg_compute_ratio", "max": 0.3}]).status == "failed"


def test_numbers_that_differ_look_different():
    data = run.results()
    data["summary"]["avg_iteration_ms"] = 100.0004
    message = verdict_of(data, max_avg_iteration_ms=100).checks[0].message
    assert message.startswith("iteration time 100.0004 ms > 100 ms")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (1234567.0, "1234567"),
        (123456.78, "123457"),
        (0.000012345, "0.00001234"),
        (-3.25, "-3.25"),
    ],
)
def test_numbers_are_written_without_exponents(value, text):
    assert _thresholds.number(value) == text


def test_an_unknown_metric_is_one_error_with_near_names():
    with pytest.raises(ValueError, match=r"expected_results\.limits\.0\.metric: no such metric") as caught:
        verdict_of(run.results(), limits=[{"metric": "summary.avg_idel_ratio", "max": 1}])
    assert "summary.avg_idle_ratio" in str(caught.value)
    with pytest.raises(ValueError, match=r"per_rank\.ratios\.compute"):
        verdict_of(run.results(), limits=[{"metric": "ratios.compute", "max": 1}])


def test_every_listed_metric_exists_for_the_configuration_too():
    names = _thresholds.metric_names()
    assert "per_rank.timeline_us.exposed_communication" in names
    assert all(_config.metric_exists(name) for name in names)


@pytest.mark.parametrize("bad", [{"min_compute_ratio": float("nan")}, {"min_compute_ratio": 1.5}, {"min_compute": 1}])
def test_limits_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"expected_results\.min_compute"):
        verdict_of(run.results(), **bad)


# --- by GPU model -----------------------------------------------------------------------------------------------------

SETS = {"mi300x": {"min_compute_ratio": 0.9}, "mi325x": {"min_compute_ratio": 0.1}}


def test_the_model_of_the_traces_picks_the_set():
    verdict = verdict_of(run.results(), min_compute_ratio=0.2, max_avg_iteration_ms=500, by_gpu_model=SETS)
    assert (verdict.gpu_model, verdict.status) == ("mi300x", "failed")
    assert {check.name: check.limit for check in verdict.checks} == {
        "min_compute_ratio": 0.9,
        "max_avg_iteration_ms": 500,
    }


def test_a_set_replaces_general_limits_of_the_same_metric_only():
    sets = {"mi300x": {"limits": [{"metric": "summary.avg_idle_ratio", "max": 0.4}]}}
    general = [{"metric": "summary.avg_idle_ratio", "max": 0.1}, {"metric": "world.num_ranks", "min": 8}]
    verdict = verdict_of(run.results(), limits=general, by_gpu_model=sets)
    assert {check.metric: check.limit for check in verdict.checks} == {
        "summary.avg_idle_ratio": 0.4,
        "world.num_ranks": 8,
    }


@pytest.mark.parametrize("where", ["expected_results", "benchmark"])
def test_a_named_model_wins_over_the_traces(where):
    given = {"gpu_model": "mi325x"} if where == "benchmark" else {}
    expected = {"by_gpu_model": SETS} | ({} if given else {"gpu_model": "mi325x"})
    verdict = verdict_of(run.results(), **given, **expected)
    assert (verdict.gpu_model, verdict.status) == ("mi325x", "passed")


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        (["AMD Instinct MI300X", "AMD Instinct MI250X"], "mixed_gpu_models"),
        (["AMD Instinct MI300X", None], "mixed_gpu_models"),
        ([None], "gpu_model_unknown"),
        (["gfx942"], "gpu_model_unknown"),
        (["AMD Instinct MI210"], "no_limits_for_gpu_model"),
    ],
)
def test_where_no_set_fits(gpus, code):
    data = run.results()
    for rank in data["per_rank"]:
        rank["gpu"] = gpus[rank["rank"] % len(gpus)]
    verdict = verdict_of(data, min_compute_ratio=0.2, by_gpu_model=SETS)
    assert [remark.code for remark in verdict.warnings] == [code]
    assert (verdict.status, verdict.checks[0].limit) == ("passed", 0.2)
    without_general = verdict_of(data, by_gpu_model=SETS)
    assert without_general.status == "failed"
    assert statuses(without_general) == {"gpu_model": "not_measured"}


# --- files ------------------------------------------------------------------------------------------------------------


def test_hostile_names_give_one_printable_line():
    data = run.results()
    data["per_rank"][5]["node"] = "evil\n\x1b[31m<b>node\u202e"
    message = verdict_of(data, max_avg_iteration_ms=1).checks[0].message
    assert message.isprintable()


def test_the_verdict_is_written_and_read_again(tmp_path):
    run.write_run(tmp_path, results=run.results(), spec=run.spec(min_compute_ratio=0.9), manifest=run.manifest())
    verdict = _thresholds.judge_run(tmp_path)
    assert _verdict.load_verdict(tmp_path / "verdict.json") == verdict
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert data["schema_version"] == 1
    assert set(data["checks"][0]) >= {"name", "metric", "actual", "limit", "comparison", "status", "worst", "message"}


def test_without_limits_to_read_nothing_passes(tmp_path):
    run.write_run(tmp_path, results=run.results())
    with pytest.raises(ValueError, match=r"spec\.json: there is no such file"):
        _thresholds.judge_run(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    run.write_run(tmp_path, spec=run.spec())
    (tmp_path / "results.json").write_text('{"schema_version": 1')
    with pytest.raises(ValueError, match=r"results\.json: not valid JSON at byte"):
        _thresholds.judge_run(tmp_path)
