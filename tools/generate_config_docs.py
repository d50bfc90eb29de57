#!/usr/bin/env python3
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/configuration.md from the models of the settings; with --check, only say whether it is up to date.

Run with the collection importable, from anywhere: PYTHONPATH=collections python tools/generate_config_docs.py
"""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._config import (
    BENCHMARKS,
    INTEGER_VARIABLES,
    AortaConfig,
    Controls,
    ExpectedResults,
    Limit,
    Thresholds,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._gpu import KNOWN_GPUS
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import kind_of, section_of
from ansible_collections.aorta.automation.plugins.plugin_utils._spec import INTERNAL_VARIABLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by tools/generate_config_docs.py from the models in plugins/plugin_utils/_config.py: change those. -->

Everything below is checked before any host is touched, and everything that is wrong is reported in one message:
`where: what is wrong, what was given, what is expected`. `ansible-playbook aorta.yml --tags config` does only that.

## Layers

Later ones win. Maps are merged deeply, so a partial map such as `aorta_docker: {image: x}` keeps the other settings of
its section; lists and single values are replaced.

| layer | in the report | example |
|---|---|---|
| defaults of the model | `model default` | the tables below |
| `env_vars` of a `cluster.json` (for `environment`) | `inventory` | `{"HSA_NO_SCRATCH_RECLAIM": "1"}` |
| the file named by `aorta_config_file` | `config file` | CVS's `aorta_benchmark.yaml`, unchanged |
| variables | `inventory` (group `all`), `group`, `host`, `play`, `extra vars` | `aorta_gpus_per_node: 4` |
| `aorta_set` | `aorta_set` | `-e aorta_set=docker.shm_size=32G` |

`spec.json` (key `layers`) and the report show for every value the layer that set it.

**Variables.** Each top-level setting is an Ansible variable with the prefix `aorta_`: `docker` is `aorta_docker`,
`environment` is `aorta_environment`; names that have the prefix already (`aorta_path`) stay as they are. Ansible's own
precedence picks one value for each variable name, and that value is merged over the layers below: an extra var
`aorta_docker` takes the place of the inventory's `aorta_docker`, it is not merged with it. All hosts of the group must
have the same value. A name that begins with `aorta_` and is not a setting is an error, so that a typing mistake
can't go unnoticed; begin the names of your own variables otherwise. ({internal} are set by the collection itself.)

**`aorta_set`** assigns single settings by their dotted path: text with a shell's quoting, or a list of such texts, or
a map. The value begins after the first `=` and may contain others. Below `environment`, `training_overrides` and
`docker.ulimits`, whose keys are yours, the rest of the path is one key:

```shell
ansible-playbook aorta.yml -i inventories/cluster \\
  -e "aorta_set='training_overrides.training.max_steps=50 environment.NCCL_DEBUG=INFO gpu_model=mi300x'"
```

## Conversion

AWX surveys and `-e name=value` deliver text. Text is converted strictly: `"8"` is an integer, `"yes"` a boolean
(Ansible's own words), `"eight"` an error that names the variable. A boolean is never taken for a number or a text:
YAML reads a bare `no`, `off` or `true` as a boolean, so where text is meant (`environment: {X: "no"}`) quote it.
A map or list may come as text too (a survey's answer `{image: x}` for `aorta_docker`). On a
command line: `-e '{"aorta_docker": {"image": "x"}}'`. Where null is allowed, an empty text is null.
Null for a key below `environment`, `training_overrides` or `docker.ulimits` removes what a lower layer set.
In the configuration file a key that is given twice is an error, and what YAML would change silently stays text (`0777`,
`1_000`, `1.10`, dates).

## Placeholders

As in CVS, `{user-id}` and `{user}` are the user for ssh (`ansible_user`, else who runs Ansible), `{home}` is that
user's home, `{home-mount-dir}` and `{node-dir-name}` come from the `cluster.json` (else `home` and `root`).
What is left, such as `{xx.xx.xx.xx|hostname}` or `<changeme>`, is an error.

## Secrets

Values in `environment` and `training_overrides` whose name contains `TOKEN`, `SECRET`, `PASSWORD`, `PASSWD`,
`CREDENTIAL`, `API_KEY` or `PRIVATE_KEY`, and values that come out of Ansible Vault, are shown as `***` in `spec.json`
and everywhere else. (ansible-core 2.18 recognises vaulted values only where `!vault` stands in the setting itself, not
behind a template.) Prefer `environment`: a training override is part of the command line, which every user of the
host can see.
"""

GPU_NOTE = """\
`TENSILE_STREAMK_MAX_CUS` is set to the compute units of the GPU less `NCCL_MAX_NCHANNELS` unless you set it: with
`gpu_model: auto` the hosts report the model, and it stays unset where RCCL's channels leave none. Compute units of one
device: {units}.

Integers: {integers}. Any other variable is text. `GLOO_SOCKET_IFNAME` has to be the exact name of one interface:
Gloo does not know the patterns, lists and prefixes that `NCCL_SOCKET_IFNAME` takes.
"""

LIMITS_NOTE = """\
An entry of `limits`:

{table}

`by_gpu_model` holds, for each model ({models}), the same limits:

{more}

```yaml
expected_results:
  max_time_variance_ratio: 0.05
  limits:
    - {{metric: summary.avg_idle_ratio, max: 0.1}}
    - {{metric: per_rank.ratios.compute, min: 0.4, name: every rank computes}}
  by_gpu_model:
    mi300x: {{max_avg_iteration_ms: 900}}
```
"""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def default_of(info: Any) -> str:
    value = info.get_default(call_default_factory=True)
    return f"`{cell(json.dumps(value))}`" if value != "" else "(required)"


def type_of(info: Any) -> str:
    if kind := kind_of(info):
        return cell(kind.expected)
    if typing.get_origin(info.annotation) is list:
        return "a list of maps"
    raise TypeError(f"no description for the type of {info}")


def table(model: Any, prefix: str = "", skip: frozenset[str] = frozenset()) -> str:
    lines = ["| name | expects | default | unit | meaning |", "|---|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if section_of(info.annotation) or name in skip:
            continue
        unit = (info.json_schema_extra or {}).get("unit", "")
        expects = "a map of models to limits" if name == "by_gpu_model" else type_of(info)
        lines.append(
            f"| `{prefix}{name}` | {expects} | {default_of(info)} | {cell(unit)} | {cell(info.description or '')} |"
        )
    return "\n".join(lines)


def page() -> str:
    benchmark = BENCHMARKS["aorta"]
    internal = ", ".join(f"`{name}`" for name in INTERNAL_VARIABLES)
    parts = [INTRODUCTION.replace("{internal}", internal)]
    parts.append("## Settings\n\nIn a configuration file under these names, as variables with the prefix `aorta_`.\n")
    parts.append(f"### General\n\n{table(AortaConfig, skip=frozenset({'environment', 'training_overrides'}))}\n")
    parts.append(f"### environment and training_overrides\n\n{table(AortaConfig, skip=_all_but_maps())}\n")
    units = ", ".join(f"{model} {count}" for model, count in KNOWN_GPUS.items())
    integers = ", ".join(f"`{name}`" for name in INTEGER_VARIABLES)
    parts.append(GPU_NOTE.format(units=units, integers=integers))
    for name, info in AortaConfig.model_fields.items():
        section = section_of(info.annotation)
        if section is None:
            continue
        heading = f"### {name} (variable `{benchmark.variable(name)}`)"
        parts.append(f"{heading}\n\n{(section.__doc__ or '').strip()}\n\n{table(section)}\n")
        if section is ExpectedResults:
            parts.append(LIMITS_NOTE.format(table=table(Limit), models=", ".join(KNOWN_GPUS), more=table(Thresholds)))
    parts.append("## Variables of one invocation\n\nNot part of a configuration file.\n")
    parts.append(
        f"{table(Controls, prefix='aorta_')}\n"
        "| `aorta_set` | assignments, see above | `null` |  | Single settings over all other layers. |\n"
    )
    text = "\n".join(parts)
    return text.replace("|\n\n| `aorta_set`", "|\n| `aorta_set`")


def _all_but_maps() -> frozenset[str]:
    return frozenset(AortaConfig.model_fields) - {"environment", "training_overrides"}


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date: run tools/generate_config_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
