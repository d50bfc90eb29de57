# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models: defaults, bounds, strict conversion, GPU models; and the page that is written from them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _config, _gpu, _layers
from ansible_collections.aorta.automation.plugins.plugin_utils._config import AortaConfig, Controls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[4]


def problems(values: dict[str, Any], model: Any = AortaConfig) -> dict[str, str]:
    _usable, found = _layers.check(model, values)
    return {_layers.dotted(path): message for path, message in found}


def value_of(values: dict[str, Any], model: Any = AortaConfig) -> dict[str, Any]:
    usable, found = _layers.check(model, values)
    assert not found
    return usable


def all_fields(model: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, info in model.model_fields.items():
        if section := _layers.section_of(info.annotation):
            found += all_fields(section, (*path, name))
        else:
            found.append(((*path, name), info))
    return found


@pytest.mark.parametrize("model", [AortaConfig, Controls])
def test_defaults_are_valid(model: Any) -> None:
    defaults = model().model_dump()
    assert value_of(defaults, model) == defaults


@pytest.mark.parametrize("model", [AortaConfig, Controls, _config.Limit, _config.Thresholds])
def test_every_field_is_described(model: Any) -> None:
    for path, info in all_fields(model):
        assert info.description and info.description.endswith("."), path
        assert "unit" in info.json_schema_extra, path


def test_names_of_variables_do_not_collide() -> None:
    controls = {f"aorta_{name}" for name in Controls.model_fields}
    assert not controls & set(_config.BENCHMARKS["aorta"].variables())


@pytest.mark.parametrize(
    ("path", "given_value", "expected"),
    [
        ("gpus_per_node", "8", 8),
        ("gpus_per_node", " 8 ", 8),
        ("skip_rccl_build", "yes", True),
        ("skip_rccl_build", "1", True),
        ("skip_rccl_build", "Off", False),
        ("expected_results.min_compute_ratio", "0.5", 0.5),
        ("expected_results.min_compute_ratio", 1, 1.0),
        ("expected_results.max_avg_iteration_ms", "1.5e3", 1500.0),
        ("expected_results.max_avg_iteration_ms", "", None),
        ("expected_results.gpu_model", "AMD Instinct MI300X", "mi300x"),
        ("docker.shm_size", "17g", "17G"),
        ("docker.shm_size", "17 GiB", "17G"),
        ("docker.shm_size", 1024, "1024"),
        ("docker.user", 1000, "1000"),
        ("docker.user", "null", None),
        ("docker.image", "localhost:5000/a/b_c@sha256:" + "0" * 64, "localhost:5000/a/b_c@sha256:" + "0" * 64),
        ("docker.group_add", [44, "render"], ["44", "render"]),
        ("docker.devices", "[/dev/kfd]", ["/dev/kfd"]),
        ("docker", "{privileged: yes}", {"privileged": True}),
        ("docker", None, {}),
        ("aorta_path", "//srv//aorta/", "/srv/aorta"),
        ("aorta_clone_url", "git@github.com:ROCm/aorta.git", "git@github.com:ROCm/aorta.git"),
        (
            "environment",
            {"NCCL_MAX_NCHANNELS": "64", "A": 1, "B": 0.5},
            {"NCCL_MAX_NCHANNELS": 64, "A": "1", "B": "0.5"},
        ),
        ("training_overrides", {"a": {"b.c": {"d": True}}, "e.f": 1}, {"a.b.c.d": True, "e.f": 1}),
        ("multi_node.torchrun_command", "python3 -m 'torch run'", ["python3", "-m", "torch run"]),
        ("multi_node.master_addr", "fe80::1", "fe80::1"),
        ("analysis.communication_kernels", ["nccl", "^my_"], ["nccl", "^my_"]),
        (
            "expected_results.by_gpu_model",
            {"MI300X": {"min_overlap_ratio": 0.1}},
            {"mi300x": {"min_overlap_ratio": 0.1}},
        ),
    ],
)
def test_conversion(path: str, given_value: Any, expected: Any) -> None:
    found: Any = value_of(_layers.nest(AortaConfig, path, given_value))
    for part in path.split("."):
        found = found[part]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("path", "given_value", "mentions"),
    [
        ("gpus_per_node", "eight", '"eight", expected an integer'),
        ("gpus_per_node", True, "boolean"),
        ("gpus_per_node", 8.0, "8.0"),
        ("gpus_per_node", 0, "from 1"),
        ("gpus_per_node", "0x8", '"0x8"'),
        ("gpus_per_node", "1_0", '"1_0"'),
        ("gpus_per_node", "9" * 6000, "integer"),
        ("timeout_seconds", "1h", '"1h"'),
        ("skip_rccl_build", 1, "given 1, expected a boolean"),
        ("skip_rccl_build", "maybe", '"maybe"'),
        ("expected_results.min_compute_ratio", 1.2, "from 0 to 1"),
        ("expected_results.min_overlap_ratio", -0.1, "from 0 to 1"),
        ("expected_results.max_time_variance_ratio", float("nan"), "nan"),
        ("expected_results.max_avg_iteration_ms", float("inf"), "inf"),
        ("expected_results.max_avg_iteration_ms", "nan", '"nan"'),
        ("expected_results.max_avg_iteration_ms", True, "boolean"),
        ("docker.image", "team/UPPER", "image reference"),
        ("docker.image", True, "boolean"),
        ("docker.shm_size", "17X", "17G"),
        ("docker.shm_size", "0", "above 0"),
        ("docker.shm_sise", "17G", "shm_size"),
        ("docker.container_name", "a b", "container name"),
        ("docker.devices", "/dev/kfd", "a list"),
        ("docker.privileged", None, "null"),
        ("docker", 5, "a map with any of image"),
        ("aorta_path", "relative/path", "absolute path"),
        ("aorta_path", "/srv/../etc", "'..'"),
        ("container_mount_path", "/", "not / itself"),
        ("base_config", "../../etc/passwd", "'..'"),
        ("base_config", "/etc/passwd", "relative path"),
        ("experiment_script", "", "relative path"),
        ("rccl.branch", "--upload-pack=x", "a branch"),
        ("rccl.branch", 7.0, "7.0"),
        ("gpu_model", "mi999x", "mi300x"),
        ("environment.X", False, "quote it"),
        ("environment.9X", "a", "not a name"),
        ("environment.X", "a\nb", "one line"),
        ("environment.OMP_NUM_THREADS", "many", "integer"),
        ("environment.PATH", "/opt/bin:$PATH", "refers to itself"),
        ("environment.GLOO_SOCKET_IFNAME", "=eth0", "exact name"),
        ("environment.GLOO_SOCKET_IFNAME", "^lo", "exact name"),
        ("environment.GLOO_SOCKET_IFNAME", "eth0,eth1", "exact name"),
        ("environment.GLOO_SOCKET_IFNAME", "eth", "exact name"),
        ("training_overrides.a b", "1", "dotted key"),
        ("training_overrides.a", [1, 2], "as text"),
        ("training_overrides.a", float("inf"), "inf"),
        ("multi_node.master_port", 70000, "65535"),
        ("multi_node.rdzv_backend", "c10d", "one of static"),
        ("multi_node.torchrun_command", "'", "a command"),
        ("analysis.communication_kernels", ["("], "regular expression"),
        ("analysis.communication_kernels", "nccl", "tracelens, extended"),
        ("analysis.engine", "magic", "auto, native, tracelens"),
    ],
)
def test_refused(path: str, given_value: Any, mentions: str) -> None:
    found = problems(_layers.nest(AortaConfig, path, given_value))
    assert len(found) == 1
    (where,) = found
    assert where.startswith(path.rpartition(".")[0])
    assert mentions in found[where]
    assert found[where].count(", expected ") == 1


@pytest.mark.parametrize("name", ["eth0", "ens1f0np0", "bond0.100", "ib0", "lo", "br-4f3a21", "rdma0", "enp3s0f1"])
def test_gloo_takes_a_name(name: str) -> None:
    assert value_of({"environment": {"GLOO_SOCKET_IFNAME": name}})["environment"] == {"GLOO_SOCKET_IFNAME": name}


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    for url in ("https://ghp_abc123@example.org/x.git", "https://u:hunter2@example.org/x", "ssh://u:hunter2@h/x"):
        found = problems({"aorta_clone_url": url})
        assert "credentials" in found["aorta_clone_url"]
        assert "hunter2" not in found["aorta_clone_url"] and "ghp_" not in found["aorta_clone_url"]


@pytest.mark.parametrize(
    ("limit", "mentions"),
    [
        ({"metric": "summary.avg_idle_ratio"}, "no limit set"),
        ({"max": 1}, "metric is missing"),
        ({"metric": "summary.avg_idle_ratio", "min": 2, "max": 1}, "min is above max"),
        ({"metric": "a b", "max": 1}, "a metric"),
        ({"metric": "summary.avg_idle_ratio", "maximum": 1}, "max (did you mean that?)"),
    ],
)
def test_limits(limit: dict[str, Any], mentions: str) -> None:
    found = problems({"expected_results": {"limits": [limit]}})
    assert len(found) == 1
    (where,) = found
    assert where.startswith("expected_results.limits[0]")
    assert mentions in found[where]


def test_metrics_are_those_of_the_results() -> None:
    for metric in ("summary.avg_idle_ratio", "per_rank.ratios.compute", "per_rank.timeline_us.idle", "world.num_ranks"):
        assert _config.metric_exists(metric), metric
    for metric in ("summary", "summary.nonsense", "per_rank.node", "avg_idle_ratio", "per_rank"):
        assert not _config.metric_exists(metric), metric


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([path for path, _info in all_fields(AortaConfig)]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=20),
            st.lists(st.text(max_size=5), max_size=2),
            st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
        ),
        max_size=5,
    )
)
def test_whatever_is_given_ends_in_a_value_or_a_clear_line(values: dict[tuple[str, ...], Any]) -> None:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        target = nested
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = value
    usable, found = _layers.check(AortaConfig, nested)
    for path, message in found:
        assert path and "given" in message and "expected" in message
        assert "pydantic" not in message
    again, more = _layers.check(AortaConfig, usable)
    assert not more and again == usable, "what was converted once is left as it is"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325 OAM", "mi325x"),
        ("MI300X_HF", "mi300x"),
        ("mi-355x", "mi355x"),
        ("AMD INSTINCT MI210 (MCM) OAM AC MBA", "mi210"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("mi300", None),
        ("NVIDIA A100", None),
        ("", None),
        ("mi3000x", None),
    ],
)
def test_gpu_model(text: str, model: str | None) -> None:
    assert _gpu.normalise_gpu_model(text) == model


def test_tensile_follows_the_gpu_model() -> None:
    derive = _config.BENCHMARKS["aorta"].environment
    assert derive(AortaConfig(gpu_model="mi300x")) == ({"TENSILE_STREAMK_MAX_CUS": "192"}, [])
    assert derive(AortaConfig(gpu_model="mi355x")) == ({"TENSILE_STREAMK_MAX_CUS": "144"}, [])
    assert derive(AortaConfig()) == ({}, [])
    assert derive(AortaConfig(gpu_model="mi300x", environment={"TENSILE_STREAMK_MAX_CUS": 5})) == ({}, [])
    none, notices = derive(AortaConfig(gpu_model="mi308x", environment={"NCCL_MAX_NCHANNELS": 112}))
    assert none == {} and [notice.code for notice in notices] == ["no_compute_units_left"]


def test_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    script = ROOT / "tools" / "generate_config_docs.py"
    if not script.is_file():
        pytest.skip("the page's generator is not part of the built collection")
    specification = importlib.util.spec_from_file_location("generate_config_docs", script)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.main(["--check"]) == 0, capsys.readouterr().err
    page = module.page()
    for path, _info in [*all_fields(AortaConfig), *all_fields(Controls)]:
        assert f"{path[-1]}`" in page, path
