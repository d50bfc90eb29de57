# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""spec.json: what follows from variables, files and hosts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _config, _kinds, _spec
from ansible_collections.aorta.automation.plugins.plugin_utils._config import PHASES
from ansible_collections.aorta.automation.plugins.plugin_utils._deps import BeforeValidator
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import ConfigError, HostVariables

RUN = _spec.phases_of(["all"], [])
CONFIG = ("config",)


def invocation(
    tmp_path: Path, variables: dict[str, Any], hosts: int = 2, phases: tuple[str, ...] = CONFIG, **more: Any
) -> _spec.Invocation:
    given = {"aorta_output_dir": str(tmp_path / "runs"), **variables}
    sources = dict.fromkeys(given, "group")
    views = tuple(
        HostVariables(f"n{rank}", {**given, "ansible_host": f"192.0.2.{rank}"}, sources) for rank in range(hosts)
    )
    here = HostVariables("localhost", given if not hosts else {}, sources)
    return _spec.Invocation(
        benchmark="aorta",
        phases=phases,
        group="aorta",
        hosts=more.get("hosts_given", views),
        here=more.get("here", here),
        search=(tmp_path,),
        now=datetime(2026, 1, 5, 12, 0, 0, tzinfo=UTC),
        token="abc123",
    )


def spec_of(tmp_path: Path, variables: dict[str, Any], **more: Any) -> dict[str, Any]:
    return _spec.prepare(invocation(tmp_path, variables, **more)).spec


def problems_of(tmp_path: Path, variables: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _spec.prepare(invocation(tmp_path, variables, **more))
    return caught.value.problems


def codes(spec: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in spec["warnings"]]


@pytest.mark.parametrize(
    ("run", "skip", "phases"),
    [
        (["all"], [], set(PHASES)),
        (["all"], ["teardown"], set(PHASES) - {"teardown"}),
        (["config"], [], {"config"}),
        (["validate"], [], {"config", "analyze", "validate", "report"}),
        (["report"], [], {"config", "report"}),
        (["run"], [], set(PHASES)),
        (["deploy"], [], {"config", "preflight", "deploy", "teardown"}),
        (["all"], ["config"], set(PHASES)),
        (["something"], [], {"config"}),
    ],
)
def test_phases(run: list[str], skip: list[str], phases: set[str]) -> None:
    found = _spec.phases_of(run, skip)
    assert set(found) == phases
    assert list(found) == [phase for phase in PHASES if phase in phases], "in their order"


def test_content(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"aorta_path": "/srv/aorta"}, phases=RUN)
    assert set(spec) == {
        *("schema_version", "benchmark", "values", "layers", "hosts", "rendezvous", "container_env", "override_argv"),
        *("run_id", "created", "runtime", "run_dir", "trace_dir", "phases", "secrets", "controls", "warnings"),
    }
    assert spec["run_id"] == "20260105T120000Z-abc123"
    assert spec["created"] == "2026-01-05T12:00:00Z"
    assert spec["run_dir"] == str(tmp_path / "runs" / spec["run_id"])
    assert spec["trace_dir"] == spec["run_dir"] + "/traces"
    assert spec["runtime"] == "docker"
    assert spec["layers"]["aorta_path"] == "group"
    assert spec["override_argv"] == []
    assert {
        *("allow_missing_ranks", "keep_on_failure", "replace_foreign", "stream", "unreachable_grace", "publish_dir"),
        *("publish_host", "publish_traces", "keep_host_files", "work_dir", "min_free_gb"),
    } <= set(spec["controls"])
    assert spec["warnings"] == []
    json.dumps(spec, allow_nan=False)


def test_hosts_and_rendezvous(tmp_path: Path) -> None:
    views = tuple(
        HostVariables(name, values, {})
        for name, values in (
            ("b", {"ansible_host": "192.0.2.2", "vpc_ip": "198.51.100.2"}),
            ("a", {"ansible_host": "192.0.2.1"}),
            ("c", {}),
        )
    )
    spec = spec_of(tmp_path, {}, hosts_given=views)
    assert spec["hosts"] == [
        {"name": "b", "node_rank": 0, "address": "198.51.100.2"},
        {"name": "a", "node_rank": 1, "address": "192.0.2.1"},
        {"name": "c", "node_rank": 2, "address": "c"},
    ]
    assert spec["rendezvous"] == {"address": "198.51.100.2", "port": None}
    multi_node = {"aorta_multi_node": {"master_addr": "10.0.0.1", "master_port": "29500"}}
    assert spec_of(tmp_path, multi_node)["rendezvous"] == {"address": "10.0.0.1", "port": 29500}
    assert spec_of(tmp_path, {}, hosts=0)["rendezvous"] == {"address": None, "port": None}


def test_overrides_follow_one_flag(tmp_path: Path) -> None:
    overrides = {"training": {"max_steps": 5, "output_dir": "/x"}, "profiling.on": True, "a": "b=c d"}
    spec = spec_of(tmp_path, {"aorta_training_overrides": overrides})
    assert spec["override_argv"] == ["--override", "training.max_steps=5", "profiling.on=true", "a=b=c d"]
    assert codes(spec) == ["override_replaced"]
    assert "training.output_dir" in spec["warnings"][0]["message"]


def test_environment_and_its_layers(tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text("environment: {B: file, C: file}\n", encoding="utf-8")
    spec = spec_of(
        tmp_path,
        {
            "aorta_cluster_env": {"A": "1", "B": "cluster", "NCCL_DEBUG": "WARN", "PATH": "/x:$PATH"},
            "aorta_config_file": "bench.yaml",
            "aorta_environment": {"C": "variable"},
            "aorta_set": "environment.D=set gpu_model=mi300x",
        },
    )
    expected = {"A": "1", "B": "file", "C": "variable", "D": "set", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}
    assert {name: spec["container_env"][name] for name in expected} == expected
    assert spec["container_env"]["TENSILE_STREAMK_MAX_CUS"] == "192"
    assert "PATH" not in spec["container_env"]
    assert codes(spec) == ["environment_not_expanded"]
    layers = spec["layers"]
    found = [layers[f"environment.{name}"] for name in ("A", "B", "C", "D", "OMP_NUM_THREADS")]
    assert found == ["inventory", "config file", "group", "aorta_set", "model default"]


def test_an_interface_pattern_in_the_cluster_file_is_refused_too(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, {"aorta_cluster_env": {"GLOO_SOCKET_IFNAME": "^lo"}})
    assert len(problems) == 1
    assert problems[0].startswith("aorta_cluster_env.GLOO_SOCKET_IFNAME: an interface pattern")


def test_secrets(tmp_path: Path) -> None:
    view = HostVariables(
        "n0",
        {
            "aorta_output_dir": str(tmp_path),
            "aorta_environment": {"HF_TOKEN": "hunter2", "INNOCENT": "swordfish", "TOKENIZERS_PARALLELISM": "false"},
            "aorta_training_overrides": {"wandb.api_key": "correct horse", "data.num_tokens": 5},
        },
        {},
        vaulted=frozenset({("aorta_environment", "INNOCENT")}),
    )
    prepared = _spec.prepare(invocation(tmp_path, {}, hosts_given=(view,)))
    assert prepared.secrets == {"HF_TOKEN": "hunter2", "INNOCENT": "swordfish", "wandb.api_key": "correct horse"}
    assert prepared.spec["secrets"] == ["HF_TOKEN", "INNOCENT", "wandb.api_key"]
    text = json.dumps(prepared.spec)
    for value in prepared.secrets.values():
        assert value not in text
    assert prepared.spec["container_env"]["HF_TOKEN"] == "***"
    assert prepared.spec["override_argv"] == ["--override", "wandb.api_key=***", "data.num_tokens=5"]
    assert prepared.spec["container_env"]["TOKENIZERS_PARALLELISM"] == "false"
    assert codes(prepared.spec) == ["secret_in_override"]


def test_a_vaulted_aorta_set_hides_all_that_it_sets(tmp_path: Path) -> None:
    values = {"aorta_output_dir": str(tmp_path), "aorta_set": "environment.A=hidden"}
    view = HostVariables("n0", values, {}, vaulted=frozenset({("aorta_set",)}))
    prepared = _spec.prepare(invocation(tmp_path, {}, hosts_given=(view,)))
    assert prepared.secrets == {"A": "hidden"}


def test_unknown_variables(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, {"aorta_gpu_per_node": 4, "aorta_run": {}, "aorta_runner_x": 1, "own": 2})
    assert len(problems) == 1
    assert problems[0].startswith("aorta_gpu_per_node: unknown variable, given 4, expected aorta_gpus_per_node")


def test_what_a_run_needs(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, {}, hosts=0, phases=RUN)
    assert [line.split(":")[0] for line in problems] == ["aorta_path", "inventory"]
    assert "preflight, deploy, run" in problems[0]
    assert "no host in group 'aorta'" in problems[1]
    validate = _spec.phases_of(["validate"], [])
    assert spec_of(tmp_path, {}, hosts=0, phases=validate)["phases"] == ["config", "analyze", "validate", "report"]


def test_a_wrong_path_is_not_also_called_missing(tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text("aorta_path: relative\n", encoding="utf-8")
    problems = problems_of(tmp_path, {"aorta_config_file": "bench.yaml"}, phases=RUN)
    assert len(problems) == 1 and problems[0].startswith("bench.yaml: aorta_path: not valid")


def test_findings_are_named_after_where_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text(
        "aorta_auto_clone: true\nexpected_results:\n  limits: [{metric: summary.nonsense, max: 1}]\n", encoding="utf-8"
    )
    problems = problems_of(tmp_path, {"aorta_config_file": "bench.yaml"})
    assert [line.split(", given")[0] for line in problems] == [
        "aorta_clone_url: not set",
        "bench.yaml: expected_results.limits[0].metric: no such metric",
    ]


def test_controls_are_checked_with_the_rest(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path,
        {
            "aorta_runtime": "podman",
            "aorta_run_id": "../x",
            "aorta_stream": "0",
            "aorta_min_free_gb": "lots",
            "aorta_hosts_group": "other",
            "aorta_trace_dir": str(tmp_path / "absent"),
            "aorta_gpus_per_node": "x",
        },
    )
    assert sorted(line.split(":")[0] for line in problems) == [
        *("aorta_gpus_per_node", "aorta_hosts_group", "aorta_min_free_gb", "aorta_run_id", "aorta_runtime"),
        *("aorta_stream", "aorta_trace_dir"),
    ]


@pytest.mark.parametrize("run_id", ["latest", ".x", "a/b", "", "x" * 65, "a b"])
def test_run_id_stays_below_the_output_directory(tmp_path: Path, run_id: str) -> None:
    if run_id == "":
        assert spec_of(tmp_path, {"aorta_run_id": run_id})["run_id"] == "20260105T120000Z-abc123"
    else:
        assert problems_of(tmp_path, {"aorta_run_id": run_id})[0].startswith("aorta_run_id:")


def traces(tmp_path: Path, run_id: str, created: str | None, files: bool = True) -> Path:
    folder = tmp_path / "runs" / run_id / "traces"
    (folder / "rank0").mkdir(parents=True)
    if created:
        (folder.parent / "spec.json").write_text(json.dumps({"created": created}), encoding="utf-8")
    if files:
        (folder / "rank0" / "t.json").write_text("{}", encoding="utf-8")
    return folder


def test_newest_traces(tmp_path: Path) -> None:
    validate = _spec.phases_of(["validate"], [])
    assert spec_of(tmp_path, {}, phases=validate)["trace_dir"] is None
    newest = traces(tmp_path, "a", "2026-01-03T00:00:00Z")
    traces(tmp_path, "b", "2026-01-02T00:00:00Z")
    traces(tmp_path, "c", "2026-01-04T00:00:00Z", files=False)
    assert spec_of(tmp_path, {}, phases=validate)["trace_dir"] == str(newest)
    unnamed = traces(tmp_path, "d", None)
    os.utime(unnamed, (1e9, 1e9))
    assert spec_of(tmp_path, {}, phases=validate)["trace_dir"] == str(newest)
    given = spec_of(tmp_path, {"aorta_trace_dir": str(tmp_path / "runs" / "b")}, phases=validate)
    assert given["trace_dir"] == str(tmp_path / "runs" / "b" / "traces"), "a run directory stands for its traces"
    own = spec_of(tmp_path, {"aorta_run_id": "b"}, phases=validate)
    assert own["trace_dir"] == str(tmp_path / "runs" / "b" / "traces")


def test_summaries_stand_in_for_traces(tmp_path: Path) -> None:
    validate = _spec.phases_of(["validate"], [])
    traces(tmp_path, "a", "2026-01-03T00:00:00Z", files=False)
    newer = traces(tmp_path, "b", "2026-01-04T00:00:00Z", files=False)
    summaries = newer.parent / "summaries"
    summaries.mkdir()
    (summaries / "nodes.json").write_text("{}", encoding="utf-8")
    for variables in ({}, {"aorta_run_id": "b"}, {"aorta_trace_dir": str(newer.parent)}):
        assert spec_of(tmp_path, variables, phases=validate)["trace_dir"] == str(summaries)
    (newer / "rank0" / "t.json").write_text("{}", encoding="utf-8")
    for variables in ({}, {"aorta_run_id": "b"}, {"aorta_trace_dir": str(newer.parent)}):
        assert spec_of(tmp_path, variables, phases=validate)["trace_dir"] == str(newer), "traces tell more"


def test_hosts_that_read_their_own_traces(tmp_path: Path) -> None:
    variables = {"aorta_path": "/srv/aorta", "aorta_analysis": {"where": "hosts"}}
    spec = spec_of(tmp_path, variables, phases=RUN)
    assert spec["trace_dir"] == spec["run_dir"] + "/summaries"
    assert (spec["controls"]["gather_traces"], codes(spec)) == (True, [])
    without = {**variables, "aorta_gather_traces": "no"}
    assert codes(spec_of(tmp_path, without, phases=RUN)) == ["traces_not_kept"]
    assert codes(spec_of(tmp_path, {**without, "aorta_keep_host_files": True}, phases=RUN)) == []
    assert codes(spec_of(tmp_path, without)) == []


def test_traces_that_nobody_would_read(tmp_path: Path) -> None:
    for analysis in ({}, {"where": "head"}):
        (problem,) = problems_of(tmp_path, {"aorta_gather_traces": False, "aorta_analysis": analysis})
        assert problem == (
            "aorta_gather_traces: given false, expected true unless aorta_analysis.where is 'hosts': "
            "nobody would read the traces"
        )
    (problem,) = problems_of(tmp_path, {"aorta_analysis": {"where": "hosts", "engine": "tracelens"}})
    assert problem.startswith("aorta_analysis.where: given 'hosts' with engine 'tracelens', expected 'head'")


def test_a_run_gathers_its_own_traces(tmp_path: Path) -> None:
    variables = {"aorta_path": "/srv/aorta", "aorta_trace_dir": "/elsewhere"}
    spec = spec_of(tmp_path, variables, phases=RUN)
    assert spec["trace_dir"] == spec["run_dir"] + "/traces"
    assert codes(spec) == ["trace_dir_ignored"]


def test_warns_of_switches_without_effect(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"aorta_analysis": {"enable_tracelens": True, "skip_if_exists": "yes"}})
    assert codes(spec) == ["setting_without_effect"] * 2


def test_values_of_the_task_host_count_only_where_the_group_has_none(tmp_path: Path) -> None:
    here = HostVariables("localhost", {"aorta_gpus_per_node": 3, "aorta_timeout_seconds": 7}, {})
    spec = spec_of(tmp_path, {"aorta_gpus_per_node": 4}, here=here)
    assert (spec["values"]["gpus_per_node"], spec["values"]["timeout_seconds"]) == (4, 7)


class OtherConfig(_config.Section):
    """A second benchmark: nothing of Aorta's."""

    size: Annotated[int, BeforeValidator(_kinds.integer(1))] = _config.setting(1, "Size.")


def test_a_second_benchmark_brings_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = _config.Benchmark(
        model=OtherConfig,
        prefix="other_",
        check=lambda config, phases: [],
        environment=lambda config: ({"SIZE": str(config.size)}, []),
        notices=lambda config: [],
    )
    monkeypatch.setitem(_config.BENCHMARKS, "other", other)
    given = invocation(tmp_path, {"other_size": "5", "aorta_set": "", "aorta_cluster_env": {"A": "1"}}, phases=RUN)
    spec = _spec.prepare(replace(given, benchmark="other")).spec
    assert (spec["benchmark"], spec["values"], spec["layers"]) == ("other", {"size": 5}, {"size": "group"})
    assert (spec["container_env"], spec["override_argv"]) == ({"SIZE": "5"}, [])
    given = invocation(tmp_path, {"other_sizes": 5, "aorta_runtime": "x"})
    with pytest.raises(ConfigError) as caught:
        _spec.prepare(replace(given, benchmark="other"))
    assert [line.split(":")[0] for line in caught.value.problems] == ["other_sizes", "aorta_runtime"]


def test_writing(tmp_path: Path) -> None:
    for token in ("one", "two"):
        spec = {**spec_of(tmp_path, {"aorta_run_id": token})}
        _spec.write_run(spec)
        latest = tmp_path / "runs" / "latest"
        assert latest.is_symlink() and os.readlink(latest) == token
        assert json.loads((latest / "spec.json").read_text(encoding="utf-8"))["run_id"] == token
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["latest", "one", "two"]


def test_what_is_in_the_way_of_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="in the way"):
        _spec.write_run(spec_of(tmp_path, {}))
    assert (tmp_path / "runs" / "latest").is_dir()
