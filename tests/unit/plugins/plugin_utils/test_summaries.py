# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that read their own traces give the results that the controller gets from the traces."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.module_utils import _trace_reader, _trace_summary
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces
from ansible_collections.aorta.automation.plugins.modules import trace_summary
from ansible_collections.aorta.automation.plugins.plugin_utils import _analysis
from ansible_collections.aorta.automation.plugins.plugin_utils._results import load_results
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import traces_of_run
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers import aorta
from ansible_collections.aorta.automation.plugins.plugin_utils.parsers._base import Artifacts
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import Trace, healthy

TREE = Path(__file__).resolve().parents[4] / "playbooks" / "files" / "standin"
sys.path.insert(0, str(TREE / "src"))

from standin import config as configuration  # noqa: E402
from standin import kineto  # noqa: E402
from standin.schedule import Schedule  # noqa: E402

RANKS = 4
# Where and when it was made; all else has to be the same.
PROVENANCE = ("created", "trace_dir")


@pytest.fixture(name="standin", scope="module")
def _standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of the stand-in workload: four ranks on two nodes with clocks apart, two profiler cycles each."""
    root = tmp_path_factory.mktemp("standin") / "traces"
    schedule = Schedule(
        configuration.resolve({"standin": {"layers": 1, "cpu_ops_per_layer": 1, "slow_rank": 2}}), RANKS
    )
    for first in (2, 7):
        window = schedule.window(first, 2)
        for rank in range(RANKS):
            clock = 10**18 + first * 10**9 + rank // 2 * 700_000
            process = kineto.Process(rank, RANKS, rank % 2, 4242, clock, kineto.base_time(10**18))
            path = root / f"rank{rank}" / f"host_{first}.pt.trace.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(kineto.document(process, window[rank], trace_name=path.name), encoding="utf-8")
    (root / "nodes.json").write_text(json.dumps({str(rank): f"node{rank // 2}" for rank in range(RANKS)}))
    return root


@pytest.fixture(name="traces")
def _traces(standin: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    shutil.copytree(standin, tmp_path / "traces")
    return tmp_path / "traces"


def damage_nothing(traces: Path) -> None:
    pass


def miss_a_rank(traces: Path) -> None:
    shutil.rmtree(traces / "rank3")


def truncate(traces: Path) -> None:
    (path,) = (traces / "rank1").glob("*_2.*")
    path.write_bytes(path.read_bytes()[:-200])


def truncate_gzip(traces: Path) -> None:
    for path in (traces / "rank2").iterdir():
        path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
        path.unlink()


def spoil(traces: Path) -> None:
    for path in (traces / "rank0").iterdir():
        text = path.read_bytes()
        place = text.index(b'"ph"', len(text) // 2)
        path.write_bytes(text[:place] + b"ph" + text[place + 4 :])


def duplicate(traces: Path) -> None:
    """Two exporters, one of them compressed."""
    (path,) = (traces / "rank1").glob("*_2.*")
    (traces / "rank1" / "trace_step5.json.gz").write_bytes(gzip.compress(path.read_bytes()))


def contradict(traces: Path) -> None:
    """Other events over the same time, a rank in the wrong folder, files that are no traces."""
    (path,) = (traces / "rank1").glob("*_2.*")
    (traces / "rank1" / "other.json").write_bytes(path.read_bytes().replace(b"Cijk", b"Cjik"))
    shutil.copy(path, traces / "rank3" / "t.json")
    (traces / "rank0" / "settings.json").write_text("{}")
    (traces / "rank0" / "empty.json").write_text("")
    Trace(None, None).kernel(0, 1000).write(traces / "whose.json")


def lose_gpu_events(traces: Path) -> None:
    shutil.rmtree(traces / "rank2")
    Trace(2, RANKS).step(5, 0, 1000).write(traces / "rank2" / "t.json")


def without_metadata(traces: Path) -> None:
    for path in traces.rglob("*.trace.json"):
        path.write_bytes(path.read_bytes().replace(b'"Seq"', b'"Suq"').replace(b'"Collective name"', b'"name of it"'))


def odd_values(traces: Path) -> None:
    """Names and numbers that have to survive the way through the summary's JSON."""
    trace = healthy(1, RANKS)
    trace.kernel(10, 20, 'k\\"\n\u2028é\U0001f600</script>', stream="seven")  # type: ignore[arg-type]
    trace.raw(
        '{"ph": "X", "cat": "kernel", "name": "nccl\\ud800", "ts": 1e300, "dur": 1, "args": {"Seq": 1e400}},'
        '{"ph": "X", "cat": "kernel", "name": "nccl\\ud800", "ts": 6300000900.5, "dur": 0.25,'
        ' "args": {"Seq": 1e400, "Collective name": "x", "In msg nelems": 12345678901234567890123}}'
    )
    shutil.rmtree(traces / "rank1")
    trace.write(traces / "rank1" / "t.json")


def on_hosts(traces: Path, summaries: Path, rule: str | list[str] = "tracelens") -> Path:
    """What two hosts with two ranks each make of their traces, in one directory."""
    for ranks in ((0, 1), (2, 3)):
        own = [name for name in find_traces(str(traces)) if trace_summary.rank_of(name) in (*ranks, None)]
        names = [name for name in own if not name.endswith("nodes.json")]
        trace_summary.summarise(str(traces), str(summaries), names, rule, None, None)
    shutil.copy(traces / "nodes.json", summaries)
    return summaries


def figures(trace_dir: Path, **options: Any) -> dict[str, Any]:
    results = aorta.parse(Artifacts(trace_dir, options=options)).model_dump()
    return {key: value for key, value in results.items() if key not in PROVENANCE}


@pytest.mark.parametrize("reader", ["msgspec and isal", "standard library"])
@pytest.mark.parametrize(
    "change",
    [
        *(damage_nothing, miss_a_rank, truncate, truncate_gzip, spoil, duplicate, contradict, lose_gpu_events),
        *(without_metadata, odd_values),
    ],
)
def test_head_and_hosts_agree(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, reader: str
) -> None:
    change(traces)
    wanted = figures(traces)
    if change is damage_nothing:
        assert (wanted["status"], len(wanted["steps"]), len(wanted["collectives"])) == ("ok", 16, 4 * 4)
        assert wanted["clock_offsets_us"]["node1"] == pytest.approx(700, abs=1)
    with monkeypatch.context() as there:
        if reader == "standard library":
            there.setattr(_trace_reader, "msgspec", None)
            there.setattr(_trace_reader, "_zlib", zlib)
        on_hosts(traces, tmp_path / "summaries")
    assert figures(tmp_path / "summaries") == wanted
    size = sum(path.stat().st_size for path in (tmp_path / "summaries").rglob("*.gz"))
    assert size < 20_000 * len(find_traces(str(tmp_path / "summaries")))


@pytest.mark.parametrize("rule", ["extended", ["Cijk", "nccl"]])
def test_the_rule_for_communication_travels(traces: Path, tmp_path: Path, rule: str | list[str]) -> None:
    wanted = figures(traces, communication_kernels=rule)
    on_hosts(traces, tmp_path / "summaries", rule)
    assert figures(tmp_path / "summaries", communication_kernels=rule) == wanted
    with pytest.raises(ValueError, match=r"analysis\.communication_kernels: 'tracelens', but .* was made .* with"):
        figures(tmp_path / "summaries")


def test_equal_traces_give_equal_summaries(traces: Path, tmp_path: Path) -> None:
    for place in ("one", "two"):
        on_hosts(traces, tmp_path / place)
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.gz"))
    assert len(names) == 8
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)


def test_only_what_has_changed_is_read_again(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truncate(traces)
    on_hosts(traces, tmp_path / "summaries")
    read: list[str] = []
    read_files = trace_summary.read_files

    def counting(files: Any, *args: Any, **kwargs: Any) -> Any:
        read.extend(file.name for file in files)
        return read_files(files, *args, **kwargs)

    monkeypatch.setattr(trace_summary, "read_files", counting)
    on_hosts(traces, tmp_path / "summaries")
    assert read == ["rank1/host_2.pt.trace.json"], "a damaged trace may have been made whole meanwhile"
    healthy(3, RANKS).write(traces / "rank3" / "host_2.pt.trace.json")
    on_hosts(traces, tmp_path / "summaries")
    assert read[1:] == ["rank1/host_2.pt.trace.json", "rank3/host_2.pt.trace.json"]
    read.clear()
    on_hosts(traces, tmp_path / "summaries", "extended")
    assert len(read) == 8
    assert figures(tmp_path / "summaries", communication_kernels="extended") == figures(
        traces, communication_kernels="extended"
    )


# --- summaries that can't be used ---


def rewrite(path: Path, change: Any) -> None:
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(lines)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-12]),
        lambda path: path.write_bytes(b"no gzip"),
        lambda path: path.write_bytes(gzip.compress(b"no json")),
        lambda path: path.write_bytes(gzip.compress(b"[" * 100_000)),
        lambda path: path.write_bytes(gzip.compress(b"{}")),
        lambda path: path.write_bytes(gzip.compress(b" " * (1 << 21))),
        lambda path: rewrite(path, lambda lines: lines[0].pop("sha256")),
        lambda path: rewrite(path, lambda lines: lines[0].update(error="x")),
        lambda path: rewrite(path, lambda lines: lines[1].pop("steps")),
        lambda path: rewrite(path, lambda lines: lines[1].update(more=1)),
        lambda path: rewrite(path, lambda lines: lines[1].update(steps="none")),
        lambda path: rewrite(path, lambda lines: lines[1]["collectives"]["rows"].append([99, 1])),
        lambda path: rewrite(path, lambda lines: lines[1].update(collectives=3)),
    ],
)
def test_a_damaged_summary_costs_its_own_rank_only(traces: Path, tmp_path: Path, damage: Any) -> None:
    on_hosts(traces, tmp_path / "summaries")
    damage(tmp_path / "summaries" / "rank1" / "host_7.pt.trace.json.summary.json.gz")
    results = aorta.parse(Artifacts(tmp_path / "summaries"))
    assert results.status == "partial"
    (error,) = results.errors
    assert (error.code, error.rank, error.file) == ("summary_damaged", 1, "rank1/host_7.pt.trace.json")
    assert [rank.iterations.count for rank in results.per_rank if rank.iterations] == [4, 2, 4, 4]


def test_a_summary_that_unpacks_without_end_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy().write(tmp_path / "traces" / "rank0.json")
    (tmp_path / "traces" / "nodes.json").write_text("{}")
    on_hosts(tmp_path / "traces", tmp_path / "summaries")
    monkeypatch.setattr(_trace_summary, "MAX_TEXT", 1000)
    (error,) = aorta.parse(Artifacts(tmp_path / "summaries")).errors
    assert error.code == "summary_damaged" and "more than 1000 bytes" in error.message


def test_summaries_of_another_version_are_refused(traces: Path, tmp_path: Path) -> None:
    summaries = on_hosts(traces, tmp_path / "summaries")
    path = summaries / "rank0" / "host_2.pt.trace.json.summary.json.gz"
    rewrite(path, lambda lines: lines[0].update(version=999))
    with pytest.raises(ValueError, match=r"host_2.*written by another version .*version 999"):
        aorta.parse(Artifacts(summaries))


# --- in a run ---


def test_a_run_with_summaries_alone(traces: Path, tmp_path: Path) -> None:
    """No trace here, and yet the figures, the sources, and using them again."""
    run_dir, later = tmp_path / "runs" / "one", tmp_path / "runs" / "two"
    for folder in (run_dir, later):
        folder.mkdir(parents=True)
    assert traces_of_run(run_dir) is None
    summaries = on_hosts(traces, run_dir / "summaries")
    assert traces_of_run(run_dir) == summaries
    wanted = figures(traces)
    (run_dir / "spec.json").write_text(json.dumps({"run_id": "one"}))
    _analysis.run(_analysis.plan(run_dir))
    results = load_results(run_dir / "results.json")
    assert results.trace_dir == str(summaries)
    assert [source.model_dump() for source in results.sources] == wanted["sources"]
    (later / "spec.json").write_text(json.dumps({"run_id": "two", "trace_dir": str(summaries)}))
    _analysis.run(_analysis.plan(later))
    again = load_results(later / "results.json")
    assert again.reused_from == str(run_dir / "results.json")
    assert again.per_rank == results.per_rank
    (path,) = (traces / "rank0").glob("*_2.*")
    path.write_bytes(path.read_bytes() + b"\n")
    on_hosts(traces, summaries)
    _analysis.run(_analysis.plan(later))
    assert load_results(later / "results.json").reused_from is None


def test_traces_win_over_summaries(traces: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(traces, run_dir / "traces")
    on_hosts(traces, run_dir / "summaries")
    assert traces_of_run(run_dir) == run_dir / "traces"
    assert figures(run_dir)["sources"][0]["file"] == "traces/rank0/host_2.pt.trace.json"
