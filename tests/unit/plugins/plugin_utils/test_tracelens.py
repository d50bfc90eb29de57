# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TraceLens beside, or in place of, the native engine.

Without TRACELENS_PATH the tests of the first part run against recordings of a real TraceLens; with TRACELENS_PATH (a
checkout of AMD's repository, and TRACELENS_PYTHON, a Python that has its dependencies) against that one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis, _tracelens, _tracelens_results
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results, Timeline, load_results
from ansible_collections.aorta.automation.plugins.plugin_utils._tracelens import Setup, detect_tracelens, setup_of
from ansible_collections.aorta.automation.tests.unit.plugins import tracelens_replay
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import healthy

TRACES = tracelens_replay.FIXTURES / "traces"
REAL = os.environ.get("TRACELENS_PATH")
REAL_PYTHON = os.environ.get("TRACELENS_PYTHON")
ABSOLUTE = 0.1


class Bench:
    """Run directories beside each other, and the TraceLens they use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.options: dict[str, Any] = {}

    def use(self, path: Path | str | None, python: str | None = None) -> None:
        """What TRACELENS_PATH and analysis.tracelens_python say."""
        if path is None:
            self.monkeypatch.delenv("TRACELENS_PATH", raising=False)
        else:
            self.monkeypatch.setenv("TRACELENS_PATH", str(path))
        self.options["tracelens_python"] = python

    def replay(self, **kwargs: Any) -> Path:
        """Use a new package of recordings."""
        number = len(list(self.folder.glob("lens*")))
        path = tracelens_replay.install(self.folder / f"lens{number}", **kwargs)
        self.use(path)
        return path

    def traces(self, name: str, **ranks: str) -> Path:
        """A directory of traces: rank0="sound" is the trace of that rank in that set."""
        root = self.folder / name / "traces"
        for rank, kind in ranks.items():
            shutil.copytree(TRACES / kind / rank, root / rank)
        return root

    def analyse(self, name: str, engine: str, *, use_cache: bool = True, **options: Any) -> Results:
        """One run of the stage in run directory C(name), on its own traces or those of C(trace_dir)."""
        run_dir = self.folder / name
        run_dir.mkdir(exist_ok=True)
        trace_dir = options.pop("trace_dir", None)
        analysis = {"engine": engine, **self.options, **options}
        spec = {"run_id": name, "benchmark": "aorta", "values": {"analysis": analysis}}
        if trace_dir is not None:
            spec["trace_dir"] = str(trace_dir)
        (run_dir / "spec.json").write_text(json.dumps(spec))
        results = _analysis.run(_analysis.plan(run_dir), use_cache)
        assert load_results(run_dir / "results.json") == results
        assert not list(run_dir.glob(".tracelens*")), "nothing temporary is left"
        return results


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """With the real TraceLens where there is one, else with the recordings."""
    bench = Bench(tmp_path, monkeypatch)
    if REAL:
        bench.use(REAL, REAL_PYTHON)
    else:
        bench.replay()
    return bench


@pytest.fixture(name="fake")
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Without a TraceLens: the test makes one."""
    return Bench(tmp_path, monkeypatch)


def codes(results: Results) -> list[tuple[str, int | None]]:
    """TraceLens' warnings."""
    return [(note.code, note.rank) for note in results.warnings if note.code.startswith("tracelens")]


def metrics(results: Results, rank: int) -> dict[str, float]:
    timeline = results.per_rank[rank].timeline_us
    assert timeline is not None
    return timeline.model_dump()


# --- real or recorded ---


def test_it_is_found_with_version_or_commit() -> None:
    path = REAL or None
    if path is None:
        recorded = json.loads((tracelens_replay.FIXTURES / "recorded" / "recorded.json").read_bytes())
        assert recorded["commit"] and "171dd747".startswith(recorded["commit"][:8])
        return
    found = detect_tracelens(REAL_PYTHON, path=path)
    assert found.found and found.name != "unknown", found.message


def test_auto_measures_natively_and_compares(bench: Bench) -> None:
    bench.traces("one", rank0="sound", rank1="sound")
    results = bench.analyse("one", "auto")
    native = bench.analyse("two", "native", trace_dir=bench.folder / "one" / "traces", use_cache=False)
    assert results.engine.name == "native" and results.per_rank == native.per_rank
    assert results.summary == native.summary and codes(results) == []
    lens = results.tracelens
    assert lens is not None and lens.agrees is True and lens.not_compared == []
    assert [(one.rank, one.metric) for one in lens.comparison] == [
        (rank, metric) for rank in (0, 1) for metric in Timeline.model_fields
    ]
    for one in lens.comparison:
        assert one.ours_us == metrics(native, one.rank)[one.metric]
        assert one.theirs_us == pytest.approx(one.ours_us, abs=ABSOLUTE)
        assert one.difference_us == one.theirs_us - one.ours_us
        assert one.tolerance_us == pytest.approx(1e-4 * metrics(native, one.rank)["total"])
    assert native.tracelens is None and not (bench.folder / "two" / "tracelens").exists()


def test_its_workbooks_lie_in_the_run_directory(bench: Bench) -> None:
    bench.traces("one", rank0="sound", rank1="sound")
    results = bench.analyse("one", "auto")
    lens = results.tracelens
    assert lens is not None
    assert [rank.workbooks for rank in lens.ranks] == [
        ["tracelens/rank0_perf_report.xlsx"],
        ["tracelens/rank1_perf_report.xlsx"],
    ]
    for rank in lens.ranks:
        sheet = openpyxl.load_workbook(bench.folder / "one" / rank.workbooks[0])["gpu_timeline"]
        times = {row[0]: row[1] for row in sheet.iter_rows(min_row=2, values_only=True)}
        # milliseconds; the kernels whose launch was not recorded are in it
        assert times["total_time"] * 1000 == pytest.approx(metrics(results, rank.rank)["total"], abs=ABSOLUTE)
        assert times["total_comm_time"] * 1000 == pytest.approx(
            metrics(results, rank.rank)["communication"], abs=ABSOLUTE
        )
        assert "Building tree" in (bench.folder / "one" / rank.logs[0]).read_text()
    assert lens.collectives.workbook == "tracelens/nccl_analysis_report.xlsx" and lens.collectives.error is None
    workbook = openpyxl.load_workbook(bench.folder / "one" / lens.collectives.workbook)
    assert {"nccl_summary_implicit_sync", "straggler_summary"} <= set(workbook.sheetnames)
    names = sorted(path.name for path in (bench.folder / "one" / "tracelens").iterdir())
    assert names == [
        f"{name}.{suffix}"
        for name, suffix in (
            ("nccl_analysis_report", "log"),
            ("nccl_analysis_report", "xlsx"),
            ("rank0", "log"),
            ("rank0_perf_report", "xlsx"),
            ("rank1", "log"),
            ("rank1_perf_report", "xlsx"),
        )
    ]
    ranks = {row[0] for row in workbook["straggler_summary"].iter_rows(min_row=2, values_only=True)}
    assert ranks == {0, 1}
    assert stat.S_IMODE((bench.folder / "one" / "tracelens").stat().st_mode) & 0o700 == 0o700


def test_engine_tracelens_takes_its_figures(bench: Bench) -> None:
    bench.traces("one", rank0="sound", rank1="sound")
    native = bench.analyse("two", "native", trace_dir=bench.folder / "one" / "traces")
    results = bench.analyse("one", "tracelens")
    lens = results.tracelens
    assert lens is not None and results.status == "ok" and lens.agrees is True
    assert results.engine.name == "tracelens" and results.engine.version != "unknown"
    theirs = {(one.rank, one.metric): one.theirs_us for one in lens.comparison}
    ours = {(one.rank, one.metric): one.ours_us for one in lens.comparison}
    for rank in (0, 1):
        for metric, value in metrics(results, rank).items():
            assert value == theirs[rank, metric]
            assert ours[rank, metric] == metrics(native, rank)[metric]
        row = results.per_rank[rank]
        assert row.ratios.compute == theirs[rank, "computation"] / theirs[rank, "total"]
        assert row.kernel_counts == native.per_rank[rank].kernel_counts
        assert row.iterations == native.per_rank[rank].iterations
    assert results.summary.avg_compute_ratio == pytest.approx(native.summary.avg_compute_ratio)
    assert results.summary.avg_iteration_ms == native.summary.avg_iteration_ms
    assert results.collectives == native.collectives and results.steps == native.steps


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("legacy", "No GPU events found"), ("nonfinite", "JSONDecodeError"), ("no_duration", "KeyError: 'dur'")],
)
def test_what_it_can_not_read_costs_one_rank(bench: Bench, kind: str, reason: str) -> None:
    bench.traces("one", rank0="sound", rank1=kind)
    results = bench.analyse("one", "auto")
    assert codes(results)[0] == ("tracelens_failed", 1)
    note = next(note for note in results.warnings if note.code == "tracelens_failed")
    assert reason in note.message and "tracelens/rank1.log" in note.message
    assert "Traceback" in (bench.folder / "one" / "tracelens" / "rank1.log").read_text()
    assert results.tracelens is not None and {one.rank for one in results.tracelens.comparison} == {0}
    assert results.status == "ok" and results.per_rank[1].timeline_us is not None

    bench.traces("two", rank0="sound", rank1=kind)
    results = bench.analyse("two", "tracelens")
    assert results.status == "partial" and results.engine.name == "tracelens"
    assert [(error.code, error.rank, error.file) for error in results.errors] == [
        ("tracelens_failed", 1, results.per_rank[1].trace)
    ]
    assert reason in results.errors[0].message and "tracelens/rank1.log" in results.errors[0].message
    assert metrics(results, 0)["total"] > 0
    row = results.per_rank[1]
    assert (row.timeline_us, row.kernel_counts, row.ratios.compute) == (None, None, None)


def test_nothing_that_it_can_read_is_an_error(bench: Bench) -> None:
    bench.traces("one", rank1="legacy")
    results = bench.analyse("one", "tracelens")
    assert results.status == "error" and results.summary.avg_compute_ratio is None
    assert {error.code for error in results.errors} == {"missing_ranks", "tracelens_failed"}


def test_kernels_without_a_recorded_launch_count(bench: Bench) -> None:
    bench.traces("one", rank1="unlinked")
    results = bench.analyse("one", "auto")
    assert results.tracelens is not None and results.tracelens.agrees is True
    sheet = openpyxl.load_workbook(bench.folder / "one" / "tracelens" / "rank1_perf_report.xlsx")["gpu_timeline"]
    times = {row[0]: row[1] for row in sheet.iter_rows(min_row=2, values_only=True)}
    assert times["total_time"] == 1.6


def test_a_missing_rank_leaves_out_the_collectives(bench: Bench) -> None:
    bench.traces("one", rank1="sound")
    results = bench.analyse("one", "auto")
    assert codes(results) == [("tracelens_skipped", None)]
    assert results.tracelens is not None and results.tracelens.agrees is True
    collectives = results.tracelens.collectives
    assert collectives.workbook is None and collectives.log is None
    assert collectives.error is not None and "missing: 0" in collectives.error


def test_another_rule_for_communication_is_not_compared(bench: Bench) -> None:
    bench.traces("one", rank0="sound", rank1="sound")
    results = bench.analyse("one", "auto", communication_kernels=["nothing is called so"])
    assert results.tracelens is not None and results.tracelens.agrees is True and codes(results) == []
    assert results.tracelens.not_compared == ["computation", "communication", "exposed_communication"]
    compared = {one.metric for one in results.tracelens.comparison}
    assert compared == {"total", "busy", "idle", "memcpy", "exposed_memcpy"}


# --- used again ---


@pytest.fixture(name="count")
def _count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often TraceLens was run."""
    calls: list[int] = []
    run = _tracelens_results.run_tracelens

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return run(*args, **kwargs)

    monkeypatch.setattr(_tracelens_results, "run_tracelens", counted)
    return calls


@pytest.mark.parametrize("engine", ["auto", "tracelens"])
def test_unchanged_traces_are_not_given_to_it_again(fake: Bench, count: list[int], engine: str) -> None:
    fake.replay()
    traces = fake.traces("one", rank0="sound", rank1="sound")
    first = fake.analyse("one", engine)
    assert fake.analyse("one", engine) == first
    second = fake.analyse("two", engine, trace_dir=traces)
    assert (second.tracelens, second.per_rank, second.engine) == (first.tracelens, first.per_rank, first.engine)
    assert len(count) == 1
    for path in (fake.folder / "one" / "tracelens").iterdir():
        assert (fake.folder / "two" / "tracelens" / path.name).read_bytes() == path.read_bytes()
    # An analysis that lost its files, another version, another engine: again.
    shutil.rmtree(fake.folder / "one" / "tracelens")
    shutil.rmtree(fake.folder / "two" / "tracelens")
    fake.analyse("two", engine, trace_dir=traces)
    assert len(count) == 2
    fake.replay(version="9.9")
    third = fake.analyse("two", engine, trace_dir=traces)
    assert len(count) == 3 and third.tracelens is not None and third.tracelens.version == "9.9"
    other = {"auto": "tracelens", "tracelens": "auto"}[engine]
    assert fake.analyse("two", other, trace_dir=traces).engine.name == {"auto": "native"}.get(other, other)
    assert len(count) == 4


def test_native_forgets_it(fake: Bench, count: list[int]) -> None:
    fake.replay()
    fake.traces("one", rank1="sound")
    assert codes(fake.analyse("one", "auto")) == [("tracelens_skipped", None)]
    results = fake.analyse("one", "native")
    assert results.tracelens is None and codes(results) == []
    assert not (fake.folder / "one" / "tracelens").exists()


def test_what_went_wrong_is_tried_again(fake: Bench, count: list[int]) -> None:
    fake.replay()
    fake.traces("one", rank0="sound", rank1="legacy")
    for _turn in range(2):
        results = fake.analyse("one", "auto")
        assert [code for code, _rank in codes(results)].count("tracelens_failed") >= 1
    assert len(count) == 2
    assert len(codes(results)) == len(set(codes(results))), "no warning twice"


# --- numbers that differ ---


def test_a_disagreement_is_a_warning_with_the_numbers(fake: Bench) -> None:
    recorded = json.loads((tracelens_replay.FIXTURES / "recorded" / "recorded.json").read_bytes())
    for one in recorded["traces"].values():
        if one["trace"] == "traces/sound/rank1/trace.json.gz":
            one["timeline"]["value"]["metrics"]["computation_time"] += 50.0
            one["timeline"]["value"]["metrics"]["idle_time"] += 6.0  # within the tolerance of 6.56 us
    fake.replay(recorded=recorded)
    fake.traces("one", rank0="sound", rank1="sound")
    results = fake.analyse("one", "auto")
    assert codes(results) == [("tracelens_disagrees", 1)]
    note = results.warnings[-1]
    ours = metrics(results, 1)["computation"]
    assert f"computation {ours + 50:.3f} us, here {ours:.3f} us" in note.message and note.count == 1
    assert results.tracelens is not None and results.tracelens.agrees is False
    wrong = [(one.rank, one.metric) for one in results.tracelens.comparison if not one.agrees]
    assert wrong == [(1, "computation")]
    assert results.status == "ok" and results.engine.name == "native"


def test_the_tolerance_is_absolute_for_short_traces() -> None:
    ours = Timeline(
        total=100, busy=100, idle=0, computation=100, communication=0, exposed_communication=0, memcpy=0,
        exposed_memcpy=0,
    )  # fmt: skip
    for difference, agrees in ((0.09, True), (0.11, False), (-0.11, False)):
        theirs = ours.model_copy(update={"busy": 100 + difference})
        rows = {one.metric: one for one in _tracelens_results.compare(0, ours, theirs)}
        assert rows["busy"].agrees is agrees and rows["busy"].tolerance_us == 0.1 and rows["total"].agrees


def test_profiler_windows_of_a_rank_add_up(fake: Bench) -> None:
    """Two windows are two files; the data of a third are those of the first, and count once."""
    fake.replay(extra=MEASURE_ALL)
    root = fake.folder / "one" / "traces" / "rank0"
    healthy(0, 1).write(root / "a.json")
    healthy(0, 1).write(root / "copy_of_a.json")
    healthy(0, 1, origin=6_400_000_000_000).write(root / "b.json")
    results = fake.analyse("one", "auto")
    assert metrics(results, 0)["total"] == 2 * 1600.0
    lens = results.tracelens
    assert lens is not None and lens.agrees is True
    assert lens.ranks[0].workbooks == [f"tracelens/rank0_window{window}_perf_report.xlsx" for window in (0, 1)]


# --- everything that can go wrong ---

MEASURE_ALL = """
class GPUEventAnalyser:
    '''Any trace of healthy() measures this.'''
    def __init__(self, events):
        pass
    def compute_metrics(self):
        return {"computation_time": 800.0, "exposed_comm_time": 400.0, "exposed_memcpy_time": 0.0, "busy_time": 1200.0,
                "idle_time": 400.0, "total_time": 1600.0, "total_comm_time": 600.0, "total_memcpy_time": 0.0}
    def get_gpu_event_lists(self):
        return {"computation": [0, 0], "communication": [0, 0], "memcpy": []}
def generate_perf_report_pytorch(profile_json_path, output_xlsx_path, include_unlinked_kernels=False):
    Path(output_xlsx_path).write_text("a workbook")
def generate_collective_report(trace_glob, world_size, output_xlsx_path):
    Path(output_xlsx_path).write_text("a workbook")
class DataLoader:
    @staticmethod
    def load_data(path):
        return {"traceEvents": [{"path": path}]}
"""


def misbehave(code: str, where: str = "compute_metrics") -> str:
    """In rank 1 only."""
    body = "\n".join(f"            {line}" for line in code.splitlines())
    if where == "compute_metrics":
        return f"""
_good = GPUEventAnalyser
class GPUEventAnalyser(_good):
    def __init__(self, events):
        super().__init__(events)
        self.events = events
    def compute_metrics(self):
        if "/rank1/" in self.events[0]["path"]:
{body}
        return super().compute_metrics()
"""
    return f"""
_report = generate_perf_report_pytorch
def generate_perf_report_pytorch(profile_json_path, output_xlsx_path, include_unlinked_kernels=False):
        if "/rank1/" in profile_json_path:
{body}
        _report(profile_json_path, output_xlsx_path)
"""


def two_ranks(fake: Bench, name: str = "one") -> None:
    for rank in (0, 1):
        healthy(rank, 2).write(fake.folder / name / "traces" / f"rank{rank}" / "t.json")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import time; time.sleep(600)", "stopped after 4 s (analysis.tracelens_timeout_seconds)"),
        ("os.kill(os.getpid(), 9)", "ended by signal 9 (SIGKILL)"),
        ("os._exit(7)", "ended with exit status 7"),
        ("sys.exit(1)", "TraceLens ended itself with exit status 1"),
        ("input('Do you want to install?')", "TraceLens asked a question at the terminal"),
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("return {**super().compute_metrics(), 'total_time': float('nan')}", "ValueError: total_time is nan"),
        ("return {}", "KeyError"),
        ("raise RuntimeError('first\\n  second')", "RuntimeError: first second"),
        ("raise MemoryError", "MemoryError"),
    ],
)
def test_whatever_happens_in_it_costs_one_rank(fake: Bench, code: str, reason: str) -> None:
    fake.replay(extra=MEASURE_ALL + misbehave(code))
    two_ranks(fake)
    results = fake.analyse("one", "auto", tracelens_timeout_seconds=4 if "sleep" in code else 60)
    assert codes(results) == [("tracelens_failed", 1)] and results.status == "ok"
    note = results.warnings[-1]
    assert reason in note.message and note.message.endswith("(tracelens/rank1.log)")
    assert (fake.folder / "one" / "tracelens" / "rank1.log").is_file()
    assert results.tracelens is not None and results.tracelens.agrees is True
    assert {one.rank for one in results.tracelens.comparison} == {0}
    assert results.tracelens.collectives.error is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import time; time.sleep(600)", "stopped after 4 s"),
        ("Path(output_xlsx_path).write_text('half'); raise KeyError('Input dims')", "KeyError: 'Input dims'"),
        ("return", "it wrote no workbook"),
    ],
)
def test_a_failed_workbook_leaves_the_comparison(fake: Bench, code: str, reason: str) -> None:
    fake.replay(extra=MEASURE_ALL + misbehave(code, "report"))
    two_ranks(fake)
    for engine in ("auto",) if "sleep" in code else ("auto", "tracelens"):
        results = fake.analyse("one", engine, tracelens_timeout_seconds=4 if "sleep" in code else 60)
        assert codes(results) == [("tracelens_failed", 1)] and results.errors == []
        assert reason in results.warnings[-1].message and "no workbook" in results.warnings[-1].message
        assert results.tracelens is not None
        assert {one.rank for one in results.tracelens.comparison} == {0, 1}
        assert [rank.workbooks for rank in results.tracelens.ranks][1] == []
        assert not (fake.folder / "one" / "tracelens" / "rank1_perf_report.xlsx").exists()


def test_a_failed_workbook_of_collectives_is_one_warning(fake: Bench) -> None:
    fake.replay(extra=MEASURE_ALL + "\ndef generate_collective_report(**kwargs):\n    raise ValueError('mismatch')\n")
    two_ranks(fake)
    results = fake.analyse("one", "auto")
    assert codes(results) == [("tracelens_failed", None)]
    assert "ValueError: mismatch (tracelens/nccl_analysis_report.log)" in results.warnings[-1].message
    assert results.tracelens is not None and results.tracelens.collectives.workbook is None


def test_the_child_has_an_own_home_and_no_secrets(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "hunter2")
    here = Path.cwd()
    fake.replay(
        extra=MEASURE_ALL
        + "\nprint(json.dumps({'home': os.environ['HOME'], 'cwd': os.getcwd(), 'stdin': os.readlink('/proc/self/fd/0'),"
        " 'token': os.environ.get('SOME_API_TOKEN'), 'path': sys.path}))\nopen('litter', 'w').close()\n"
    )
    two_ranks(fake)
    fake.analyse("one", "auto")
    log = (fake.folder / "one" / "tracelens" / "rank0.log").read_text().splitlines()
    seen = json.loads(next(line for line in log if line.startswith("{")))
    assert seen["home"] == seen["cwd"] and Path(seen["home"]) not in (Path.home(), here)
    assert not Path(seen["home"]).exists() and not (here / "litter").exists()
    assert (seen["stdin"], seen["token"]) == ("/dev/null", None)
    assert not any(folder.endswith("plugin_utils") for folder in seen["path"])


def test_an_interrupt_ends_the_children_and_leaves_nothing(fake: Bench) -> None:
    code = "import time\nPath(__file__).with_name('pid').write_text(str(os.getpid()))\ntime.sleep(600)"
    path = fake.replay(extra=MEASURE_ALL + misbehave(code))
    two_ranks(fake)
    (fake.folder / "one" / "tracelens").mkdir()
    (fake.folder / "one" / "tracelens" / "earlier").write_text("kept")

    def interrupt(_text: str) -> None:
        until((path / "TraceLens" / "pid").exists)
        raise KeyboardInterrupt

    files = {rank: [fake.folder / "one" / "traces" / f"rank{rank}" / "t.json"] for rank in (0, 1)}
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _tracelens.run_tracelens(files, fake.folder / "one", Setup(path=str(path)), processes=2, tell=interrupt)
    assert time.monotonic() - began < 60
    pid = int((path / "TraceLens" / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert sorted(entry.name for entry in (fake.folder / "one").iterdir()) == ["tracelens", "traces"]
    assert (fake.folder / "one" / "tracelens" / "earlier").read_text() == "kept"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    lens = tracelens_replay.install(tmp_path / "lens", extra="\nimport time\ntime.sleep(600)\n")
    command = f'"{sys.executable}" "{_tracelens.DRIVER}" rank x.json --answer "{tmp_path}/a" & echo $!; wait'
    parent = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(lens)},
        start_new_session=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(1)
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    until(lambda: not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text())


def test_traces_that_are_elsewhere_are_left_out(fake: Bench) -> None:
    path = fake.replay(extra=MEASURE_ALL)
    two_ranks(fake)
    results = fake.analyse("one", "native")
    shutil.rmtree(fake.folder / "one" / "traces" / "rank1")
    found = detect_tracelens(path=str(path))
    arguments = (results, found, Setup(path=str(path)), fake.folder / "one", fake.folder / "one" / "traces")
    _tracelens_results.run_beside(*arguments, replace=False)
    assert codes(results) == [("tracelens_skipped", None)] and results.tracelens is None
    with pytest.raises(OSError, match=r"1 traces are not on this machine.*rank1"):
        _tracelens_results.run_beside(*arguments, replace=True)


# --- absent, broken, another ---


def test_without_it_auto_is_native_in_silence(fake: Bench) -> None:
    fake.use(None)
    two_ranks(fake)
    results = fake.analyse("one", "auto")
    assert results.tracelens is None and codes(results) == [] and results.engine.name == "native"


def impostor(folder: Path) -> Path:
    """What C(pip install tracelens) brings: the name in lower case, and a distribution of the same name."""
    (folder / "tracelens").mkdir(parents=True)
    (folder / "tracelens" / "__init__.py").write_text("class Agent: pass\n")
    (folder / "tracelens-3.1.4.dist-info").mkdir()
    (folder / "tracelens-3.1.4.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tracelens\nVersion: 3.1.4\n"
    )
    return folder


def test_the_impostor_is_one_line_with_the_remedy(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.use(None)
    monkeypatch.setenv("PYTHONPATH", str(impostor(fake.folder / "site")))
    two_ranks(fake)
    with pytest.raises(ValueError) as caught:
        fake.analyse("one", "tracelens")
    text = str(caught.value)
    assert "\n" not in text and "'tracelens' 3.1.4 is not AMD's TraceLens" in text
    assert "pip uninstall tracelens" in text and "https://github.com/AMD-AGI/TraceLens" in text
    results = fake.analyse("one", "auto")
    assert codes(results) == [("tracelens_unavailable", None)] and results.status == "ok"
    assert "pip uninstall tracelens" in results.warnings[-1].message


def test_a_broken_installation_is_one_line(fake: Bench) -> None:
    fake.replay(extra="\nimport no_such_dependency\n")
    two_ranks(fake)
    results = fake.analyse("one", "auto")
    assert codes(results) == [("tracelens_unavailable", None)]
    assert "broken: ModuleNotFoundError: No module named 'no_such_dependency'" in results.warnings[-1].message
    with pytest.raises(ValueError, match="broken: ModuleNotFoundError"):
        fake.analyse("one", "tracelens")


def test_a_module_without_what_amds_has_is_not_amds(fake: Bench) -> None:
    fake.replay(extra="\ndel NcclAnalyser\n")
    two_ranks(fake)
    with pytest.raises(ValueError, match="its module lacks NcclAnalyser"):
        fake.analyse("one", "tracelens")


@pytest.mark.parametrize(("path", "python"), [("/nowhere", None), (None, "/no/python")])
def test_a_wrong_place_is_said(fake: Bench, path: str | None, python: str | None) -> None:
    fake.use(path, python)
    two_ranks(fake)
    results = fake.analyse("one", "auto")
    assert codes(results) == [("tracelens_unavailable", None)]
    assert (path or python or "") in results.warnings[-1].message
    with pytest.raises(ValueError, match=str(path or python)):
        fake.analyse("one", "tracelens")


def test_setup_from_options_and_environment() -> None:
    assert setup_of({}, {}) == Setup(sys.executable, None, 1800.0) and not setup_of({}, {}).chosen
    setup = setup_of(
        {"tracelens_python": "/venv/bin/python", "tracelens_timeout_seconds": 60}, {"TRACELENS_PATH": "/x"}
    )
    assert setup == Setup("/venv/bin/python", "/x", 60.0) and setup.chosen


def test_the_commit_of_a_checkout_is_known(tmp_path: Path) -> None:
    lens = tracelens_replay.install(tmp_path / "lens")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-C", str(lens), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    found = detect_tracelens(path=str(lens))
    assert (found.found, found.version, found.commit) == (True, None, commit)
    assert found.name == f"commit {commit[:12]}"


def test_driver_without_answer_file_prints_json(tmp_path: Path) -> None:
    """The form in which benchmarks call it: load a trace and compute its timeline, nothing else."""
    lens = tracelens_replay.install(tmp_path / "lens")
    run = subprocess.run(
        [sys.executable, str(_tracelens.DRIVER), "rank", str(TRACES / "sound" / "rank0" / "trace.json.gz")],
        env={**os.environ, "PYTHONPATH": str(lens)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(run.stdout.splitlines()[-1])
    assert answer["error"] is None and answer["timeline_us"]["total"] == pytest.approx(65348.473, abs=ABSOLUTE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lens"]
