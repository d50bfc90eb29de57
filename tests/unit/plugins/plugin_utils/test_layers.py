# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers: reading, merging, provenance, all problems at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _layers, _strict_read
from ansible_collections.aorta.automation.plugins.plugin_utils._config import AortaConfig
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import HostVariables, Layer, dotted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TABLE = {"{user-id}": "bob", "{home}": "/home/bob"}


def layer(source: str, values: Any) -> Layer:
    return Layer(source, values, lambda at: f"{source}: {dotted(at)}")


def config_file(tmp_path: Path, text: str, name: str = "bench.yaml") -> tuple[Layer, list[str]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return _layers.read_config_file(path, TABLE)


def test_later_layers_win_and_maps_are_merged_deeply() -> None:
    resolved, problems = _layers.resolve(
        AortaConfig,
        [
            layer("one", {"docker": {"image": "a", "shm_size": "1G"}, "environment": {"A": "1", "B": "1"}}),
            layer("two", {"docker": {"image": "b", "devices": []}, "environment": {"B": "2", "NCCL_DEBUG": None}}),
        ],
    )
    assert not problems
    assert (resolved.config.docker.image, resolved.config.docker.shm_size) == ("b", "1G")
    assert resolved.config.docker.container_name == "aorta-benchmark"
    assert resolved.config.docker.devices == [], "lists are replaced"
    assert resolved.config.environment["A"] == "1"
    assert resolved.config.environment["B"] == "2"
    assert "NCCL_DEBUG" not in resolved.config.environment, "null removes a key of the user's own"
    layers = resolved.layers()
    assert layers["docker.image"] == layers["docker.devices"] == "two"
    assert layers["docker.shm_size"] == layers["environment.A"] == "one"
    assert layers["docker.container_name"] == layers["environment.OMP_NUM_THREADS"] == "model default"
    assert "environment.NCCL_DEBUG" not in layers


def test_dotted_and_nested_overrides_are_the_same_key() -> None:
    resolved, problems = _layers.resolve(
        AortaConfig,
        [
            layer("one", {"training_overrides": {"training.max_steps": 15, "profiling": {"active": 6}}}),
            layer("two", {"training_overrides": {"training": {"max_steps": 50}}}),
        ],
    )
    assert not problems
    assert resolved.config.training_overrides == {"training.max_steps": 50, "profiling.active": 6}
    assert resolved.layers()["training_overrides.training.max_steps"] == "two"


def test_an_override_given_twice_in_one_layer_is_a_problem() -> None:
    values = {"training_overrides": {"training.max_steps": 1, "training": {"max_steps": 2}}}
    _resolved, problems = _layers.resolve(AortaConfig, [layer("one", values)])
    assert len(problems) == 1 and "training.max_steps" in problems[0] and "twice" in problems[0]


def test_sets_by_gpu_model_get_defaults_and_provenance() -> None:
    values = {"expected_results": {"by_gpu_model": {"MI300X": {"min_compute_ratio": "0.5"}}}}
    resolved, problems = _layers.resolve(AortaConfig, [layer("one", values)])
    assert not problems
    assert resolved.values()["expected_results"]["by_gpu_model"]["mi300x"]["max_avg_iteration_ms"] is None
    layers = resolved.layers()
    assert layers["expected_results.by_gpu_model.mi300x.min_compute_ratio"] == "one"
    assert layers["expected_results.by_gpu_model.mi300x.max_avg_iteration_ms"] == "model default"


def test_all_problems_of_all_layers_at_once_also_where_a_later_layer_hides_them() -> None:
    _resolved, problems = _layers.resolve(
        AortaConfig,
        [
            layer("one", {"gpus_per_node": "eight", "docker": {"shm_sise": "1G", "privileged": "maybe"}, "nope": 1}),
            layer("two", {"gpus_per_node": 4, "environment": {"A": True, "B": "{run_dir}"}}),
            layer("three", {"expected_results": {"by_gpu_model": {"mi999": {}}, "min_compute_ratio": 2}}),
        ],
    )
    named = sorted(line.rpartition(", given ")[0] for line in problems)
    assert named == [
        "one: docker.privileged: not valid",
        "one: docker.shm_sise: unknown setting",
        "one: gpus_per_node: not valid",
        "one: nope: unknown setting",
        "three: expected_results.by_gpu_model.mi999: not a known GPU model",
        "three: expected_results.min_compute_ratio: not valid",
        "two: environment.A: a boolean where text is meant",
        "two: environment.B: placeholder left in",
    ]


def test_secret_values_are_not_repeated() -> None:
    _resolved, problems = _layers.resolve(AortaConfig, [layer("one", {"environment": {"HF_TOKEN": "hunter2\n"}})])
    assert len(problems) == 1 and "HF_TOKEN" in problems[0] and "hunter2" not in problems[0]


SCALARS = st.one_of(st.integers(-9, 9), st.text("ab", max_size=3), st.booleans())
OVERRIDES = st.dictionaries(st.sampled_from(["a", "a.b", "c.d", "e"]), st.one_of(SCALARS, st.none()), max_size=4)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OVERRIDES, max_size=4))
def test_merging_is_assignment_in_order(layers: list[dict[str, Any]]) -> None:
    expected: dict[str, Any] = {}
    source: dict[str, str] = {}
    for index, values in enumerate(layers):
        for key, value in values.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
                source[key] = str(index)
    resolved, problems = _layers.resolve(
        AortaConfig, [layer(str(index), {"training_overrides": values}) for index, values in enumerate(layers)]
    )
    assert not problems
    assert resolved.config.training_overrides == expected
    for key in expected:
        assert resolved.layers()[f"training_overrides.{key}"] == source[key]


# --- aorta_set ----------------------------------------------------------------------------------


def test_assignments() -> None:
    layers, problems = _layers.read_assignments(
        AortaConfig,
        "training_overrides.training.max_steps=50 environment.X='a b=c' gpus_per_node=4 gpus_per_node=2 "
        "expected_results.by_gpu_model.mi300x.min_overlap_ratio=0.5 docker.ulimits.nofile=9",
    )
    resolved, more = _layers.resolve(AortaConfig, layers)
    assert not problems and not more
    assert resolved.config.training_overrides == {"training.max_steps": "50"}
    assert resolved.config.environment["X"] == "a b=c"
    assert resolved.config.gpus_per_node == 2, "the last assignment wins"
    assert resolved.config.expected_results.by_gpu_model["mi300x"].min_overlap_ratio == 0.5
    assert resolved.config.docker.ulimits["nofile"] == 9
    assert resolved.layers()["gpus_per_node"] == "aorta_set"


@pytest.mark.parametrize(
    ("given_value", "mentions"),
    [
        ("docker.shm_sise=1G", 'aorta_set: docker.shm_sise: unknown setting, given "1G", expected shm_size'),
        ("aorta_docker.image=x", "aorta_set: aorta_docker: unknown setting"),
        ("gpus_per_node=eight", 'aorta_set: gpus_per_node: not valid, given "eight", expected an integer'),
        ("gpus_per_node.x=1", "aorta_set: gpus_per_node: not valid, given a map"),
        ("gpus_per_node", 'aorta_set: not an assignment, given "gpus_per_node"'),
        ("a='", "aorta_set: not readable (No closing quotation)"),
        (5, "aorta_set: not valid, given 5"),
        (["x"], "aorta_set: not an assignment"),
    ],
)
def test_wrong_assignments(given_value: Any, mentions: str) -> None:
    layers, problems = _layers.read_assignments(AortaConfig, given_value)
    problems += _layers.resolve(AortaConfig, layers)[1]
    assert len(problems) == 1 and mentions in problems[0]


def test_assignments_as_list_or_map() -> None:
    for given_value in (["docker.image=x y"], {"docker.privileged": True}, "", None):
        layers, problems = _layers.read_assignments(AortaConfig, given_value)
        assert not problems
        assert len(layers) == (1 if given_value else 0)


# --- the configuration file ---------------------------------------------------------------------


def test_config_file(tmp_path: Path) -> None:
    found, problems = config_file(
        tmp_path,
        "_comment: x\naorta_path: '{home}/aorta'\ndocker:\nenvironment:\n  A: 0777\n  B: 1.10\n  C: 2026-01-01\n"
        "  D: 1_000\n  E: 12:30\n  F: 7\nexpected_results:\n  min_compute_ratio: 0.50\n  max_avg_iteration_ms: 1e3\n",
    )
    resolved, more = _layers.resolve(AortaConfig, [found])
    assert not problems and not more
    assert resolved.config.aorta_path == "/home/bob/aorta"
    environment = {name: resolved.config.environment[name] for name in "ABCDEF"}
    assert environment == {"A": "0777", "B": "1.10", "C": "2026-01-01", "D": "1_000", "E": "12:30", "F": "7"}
    assert resolved.config.expected_results.min_compute_ratio == 0.5
    assert resolved.config.expected_results.max_avg_iteration_ms == 1000.0
    assert resolved.layers()["aorta_path"] == "config file"


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("docker:\n  image: a\n  shm_size: 1G\n  image: b\n", "bench.yaml: docker.image: given twice"),
        ("gpus_per_node: 8\ngpus_per_node: 4\n", "lines 1 and 2"),
        ("environment:\n  NO: x\n", "not text, given NO"),
        ("a: [1\n", "not valid YAML: line 2, column 1"),
        ("a: !!python/object:os.system x\n", "not valid YAML: line 1"),
        ("--- 1\n--- 2\n", "not valid YAML"),
        ("- 1\n", "given a list, expected a map"),
        ("aorta_path: <changeme>\n", "bench.yaml: aorta_path: placeholder left in"),
        ("aorta_path: '{xx.xx.xx.xx|hostname}'\n", "placeholder left in"),
        ("docker:\n  shm_sise: 1G\n", "bench.yaml: docker.shm_sise: unknown setting"),
        ("timeout_seconds: .nan\n", "bench.yaml: timeout_seconds: not valid, given nan"),
        ("[" * 2000, "nested too deeply"),
    ],
)
def test_wrong_config_file(tmp_path: Path, text: str, mentions: str) -> None:
    found, problems = config_file(tmp_path, text)
    problems += _layers.resolve(AortaConfig, [found])[1]
    assert len(problems) == 1, problems
    assert mentions in problems[0] and "Traceback" not in problems[0]


def test_json_config_file(tmp_path: Path) -> None:
    found, problems = config_file(tmp_path, json.dumps({"gpus_per_node": 4}), "bench.json")
    assert not problems and found.values == {"gpus_per_node": 4}
    _found, problems = config_file(tmp_path, '{"docker": {"image": "a", "image": "b", "image": "c"}}', "bench.json")
    assert problems == ["bench.json: docker.image: given 3 times (duplicate key), expected once"]
    _found, problems = config_file(tmp_path, '{"a": NaN}', "bench.json")
    assert len(problems) == 1 and "NaN" in problems[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        _found, problems = _layers.read_config_file(path, TABLE)
        assert len(problems) == 1 and str(path) in problems[0] and "can't be read" in problems[0]
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    _found, problems = _layers.read_config_file(tmp_path / "latin.yaml", TABLE)
    assert problems == [f"{tmp_path / 'latin.yaml'}: not UTF-8 at byte 3, expected a file in YAML or JSON"]


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = "docker: &d\n  image: a\nx: &x {image: b}\n"
    found, problems = config_file(tmp_path, text.replace("x: &x {image: b}\n", ""))
    assert not problems and found.values == {"docker": {"image": "a"}}
    value, problems = _strict_read.read_yaml("a: &a {k: 1, l: 2}\nb:\n  <<: *a\n  l: 3\n")
    assert not problems and value["b"] == {"k": 1, "l": 3}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("{xx.xx.xx.xx|hostname}", True),
        ("{head-node-ip}", True),
        ("/x/<CHANGEME>/y", True),
        ("{run_dir}/x", True),
        ("${HOME}", False),
        ('{"a": 1}', False),
        ("{{ jinja }}", False),
        ("%h.{rank}.log", False),
        ("a|b", False),
    ],
)
def test_left_over_placeholders(text: str, left: bool) -> None:
    assert bool(list(_strict_read.left_over({"k": [text]}))) is left


# --- hosts --------------------------------------------------------------------------------------


def test_hosts_must_agree() -> None:
    views = [
        HostVariables("n0", {"aorta_docker": {"image": "a", "memory": "1G"}}, {"aorta_docker": "group"}),
        HostVariables("n1", {}),
        HostVariables("n2", {"aorta_docker": {"image": "b", "memory": "1G"}}, {"aorta_docker": "host"}),
    ]
    value, source, problems = _layers.agree(views[:2], "aorta_docker")
    assert (value, source, problems) == ({"image": "a", "memory": "1G"}, "group", [])
    assert _layers.agree(views, "aorta_nothing") == (None, "", [])
    _value, _source, problems = _layers.agree(views, "aorta_docker")
    assert len(problems) == 1
    for word in ("aorta_docker.image", '"a" for n0', '"b" for n2'):
        assert word in problems[0]


def test_disagreeing_secrets_are_not_shown() -> None:
    views = [HostVariables(name, {"aorta_environment": {"HF_TOKEN": f"s3cret-{name}"}}) for name in ("n0", "n1")]
    _value, _source, problems = _layers.agree(views, "aorta_environment")
    assert len(problems) == 1 and "n0" in problems[0] and "n1" in problems[0] and "s3cret" not in problems[0]
