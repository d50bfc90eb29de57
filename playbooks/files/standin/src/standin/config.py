# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration of the stand-in: a JSON or YAML file, then dotted overrides, read as Aorta's trainer reads them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Config = dict[str, Any]


class ConfigError(Exception):
    """A configuration file or an override that can't be used; the message names it."""


# What holds where the configuration is silent. The sections other than "standin" are Aorta's.
DEFAULTS: Config = {
    "training": {"max_steps": 12, "log_interval": 1, "output_dir": "artifacts", "grad_clip_norm": 1.0},
    "optimizer": {"lr": 2e-4},
    "scheduler": {"warmup_steps": 200, "total_steps": 2000},
    "fsdp": {"forward_prefetch": False, "backward_prefetch": "BACKWARD_PRE"},
    "profiling": {
        "enabled": True,
        "wait": 1,
        "warmup": 1,
        "active": 6,
        "repeat": 1,
        "tensorboard": True,
        "chrome_trace": False,
        "trace_filename": "trace.json",
    },
    "standin": {
        # the run
        "step_seconds": 0.3,  # real time spent in a step
        "rendezvous_timeout_s": 300.0,  # until every rank has joined
        "collective_timeout_s": 60.0,  # until a rank gives up waiting for the others
        # what the traces show
        "seed": 2026,
        "layers": 12,
        "layer_ms": 4.0,  # forward compute of one layer; backward takes twice that
        "layer_params": 201326592,  # parameters of one layer (bfloat16), all-gathered and reduce-scattered
        "bandwidth_gbps": 170.0,  # algorithm bandwidth of a collective, GB/s
        "cpu_ops_per_layer": 8,  # further CPU operators in each layer and direction
        "slow_rank": 5,  # this rank's compute kernels take slow_factor times as long; -1: none
        "slow_factor": 1.12,
        "clock_skew_us_per_node": 0.0,  # node n's clock is n times this ahead of node 0's
        # what else would differ from run to run; null: taken from the process
        "host": None,
        "pid": None,
        "start_time_ns": None,
        "base_time_ns": None,
        # faults, see README.md
        "fail": None,
        "exit_code": None,
        "hang_rank": None,
        "hang_step": 2,
        "truncate_trace_rank": None,
        "no_trace_rank": None,
        "no_gpu_events_rank": None,
    },
}


def load(path: Path) -> Config:
    """Read a configuration file. YAML needs PyYAML unless its content is JSON. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot read the configuration: {exc}") from exc
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path}: the configuration must be .json, .yaml or .yml")
    try:
        loaded = json.loads(text)
    except ValueError as exc:
        if suffix == ".json":
            raise ConfigError(f"{path}: not valid JSON: {exc}") from exc
        loaded = _load_yaml(path, text)
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: the configuration must be a mapping, found {type(loaded).__name__}")
    return loaded


def _load_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as exc:
        raise ConfigError(f"{path}: this YAML file is not JSON, and PyYAML is not installed; use a .json file") from exc
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}: not valid YAML: {exc}") from exc


def apply_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """Return a copy of config with `section.key=value` assignments applied; unknown keys are added, as Aorta does."""
    result = copy.deepcopy(config)
    for item in overrides:
        key, separator, raw = item.partition("=")
        if not separator:
            raise ConfigError(f"--override: expected key=value, found {item!r}")
        *parents, last = key.split(".")
        node = result
        for name in parents:
            child = node.get(name)
            if not isinstance(child, dict):
                child = node[name] = {}
            node = child
        node[last] = coerce(raw)
    return result


def coerce(raw: str) -> Any:
    """Convert the text of an override: true/false, a whole number, a number, `[a,b]` (a list of texts), else text."""
    if raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    for kind in (int, float):
        try:
            return kind(raw)
        except ValueError:
            pass
    if raw.startswith("[") and raw.endswith("]"):
        inner = raw[1:-1].strip()
        return [part.strip() for part in inner.split(",")] if inner else []
    return raw


def resolve(config: Config) -> Config:
    """Complete config with DEFAULTS and check the values that the stand-in computes with. Raises ConfigError."""
    result = copy.deepcopy(DEFAULTS)
    for section, values in config.items():
        if isinstance(values, dict) and isinstance(result.get(section), dict):
            result[section].update(values)
        elif section in DEFAULTS:
            raise ConfigError(f"{section}: expected a mapping, found {values!r}")
        else:
            result[section] = copy.deepcopy(values)
    for section, key, low in (
        ("training", "max_steps", 1),
        ("training", "log_interval", 1),
        ("profiling", "wait", 0),
        ("profiling", "warmup", 0),
        ("profiling", "active", 1),
        ("profiling", "repeat", 0),
        ("standin", "layers", 1),
        ("standin", "layer_params", 1),
        ("standin", "cpu_ops_per_layer", 0),
        ("standin", "slow_rank", -1),
        ("standin", "hang_step", 0),
    ):
        if key == "max_steps" and result[section][key] is None:
            result[section][key] = DEFAULTS[section][key]
        _check(result, section, key, low, whole=True)
    floats: tuple[tuple[str, float | None], ...] = (
        ("step_seconds", 0),
        ("rendezvous_timeout_s", 0),
        ("collective_timeout_s", 0),
        ("layer_ms", 0.1),
        ("bandwidth_gbps", 0.001),
        ("slow_factor", 0.01),
        ("clock_skew_us_per_node", None),
    )
    for key, lowest in floats:
        _check(result, "standin", key, lowest, whole=False)
    code = result["standin"]["exit_code"]
    if code is not None and (isinstance(code, bool) or not isinstance(code, int)):
        raise ConfigError(f"standin.exit_code: expected a whole number, got {code!r}")
    fail_at(result)
    for key in ("hang_rank", "truncate_trace_rank", "no_trace_rank", "no_gpu_events_rank"):
        ranks(result, key)
    return result


def _check(config: Config, section: str, key: str, low: float | None, *, whole: bool) -> None:
    value = config[section][key]
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or (low is not None and not value >= low):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(
            f"{section}.{key}: expected {kind}{'' if low is None else f' of at least {low}'}, got {value!r}"
        )


def ranks(config: Config, key: str) -> frozenset[int]:
    """The ranks named by a fault setting: null, one rank or a list of them."""
    value = config["standin"][key]
    items = [] if value is None else value if isinstance(value, list) else [value]
    try:
        return frozenset(int(item) for item in items)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"standin.{key}: expected a rank or a list of ranks, got {value!r}") from exc


def fail_at(config: Config) -> tuple[int, int] | None:
    """The (rank, step) of `standin.fail`, written `rank:step`; None when unset."""
    value = config["standin"]["fail"]
    if value is None:
        return None
    try:
        rank, step = str(value).split(":")
        return int(rank), int(step)
    except ValueError as exc:
        raise ConfigError(f"standin.fail: expected rank:step, for example 5:3, got {value!r}") from exc
