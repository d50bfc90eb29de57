# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From variables to C(spec.json): what one invocation is going to do, resolved and checked as a whole."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.aorta.automation.plugins.plugin_utils._config import (
    BENCHMARKS,
    HOST_PHASES,
    PHASES,
    Benchmark,
    Controls,
    Notice,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._files import read_json, write_json
from ansible_collections.aorta.automation.plugins.plugin_utils._kinds import Wrong, is_secret
from ansible_collections.aorta.automation.plugins.plugin_utils._layers import (
    ASSIGNMENTS,
    ConfigError,
    HostVariables,
    Layer,
    Resolved,
    agree,
    leaves,
    read_assignments,
    read_config_file,
    resolve,
    unknown,
    variable_layer,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import (
    dotted,
    login_user,
    replacements,
    substitute,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._trace_files import traces_of_run
from ansible_collections.aorta.automation.plugins.plugin_utils._verdict import STATS_NAMES

SCHEMA_VERSION = 1
FILE_NAME = "spec.json"
REDACTED = "***"
CONTROL_PREFIX = "aorta_"

# Variables that the inventory plugin sets.
CLUSTER_ENVIRONMENT = "aorta_cluster_env"
INVENTORY_ERROR = "aorta_inventory_error"
HOME_MOUNT_DIR = "aorta_home_mount_dir_name"
NODE_DIR = "aorta_node_dir_name"

# Names that are not settings and yet begin like one: what the playbooks and the inventory plugin set.
INTERNAL_VARIABLES = (
    "aorta_run",
    "aorta_head_node",
    CLUSTER_ENVIRONMENT,
    INVENTORY_ERROR,
    HOME_MOUNT_DIR,
    NODE_DIR,
    *STATS_NAMES,  # in an AWX workflow they come back as extra variables of the next job
)
INTERNAL_PREFIXES = ("aorta_runner_",)

# A phase's tag brings those before it that it can't do without, and `run` and `validate` go through to the report.
_IMPLIED = {
    "deploy": {"preflight", "teardown"},
    "run": {"preflight", "deploy", "gather", "analyze", "validate", "report", "teardown"},
    "validate": {"analyze", "report"},
}


@dataclass(frozen=True)
class Invocation:
    """What one call of the configuration check is given.

    C(hosts) are those of the group, in its order; C(here) is the host on which the task runs (it may be one of
    them). C(search) are the directories against which a relative configuration file is tried.
    """

    benchmark: str
    phases: tuple[str, ...]
    group: str
    hosts: tuple[HostVariables, ...]
    here: HostVariables
    search: tuple[Path, ...]
    now: datetime
    token: str


@dataclass(frozen=True)
class Prepared:
    """The content of C(spec.json), and the values it does not show."""

    spec: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict)


def phases_of(run_tags: Sequence[str], skip_tags: Sequence[str]) -> tuple[str, ...]:
    """The phases that C(--tags) and C(--skip-tags) select, in their order; C(config) always."""
    wanted = set(run_tags)
    if wanted & {"all", "tagged"} or not wanted:
        chosen = set(PHASES)
    else:
        chosen = wanted & set(PHASES)
        chosen = chosen.union(*(_IMPLIED.get(phase, set()) for phase in chosen))
    chosen = (chosen - set(skip_tags)) | {"config"}
    return tuple(phase for phase in PHASES if phase in chosen)


def prepare(invocation: Invocation) -> Prepared:
    """Read all layers, check everything, and build the content of C(spec.json).

    Raises ConfigError with every problem there is. Reads the configuration file and, to find the newest traces,
    the run directories; writes nothing and contacts no host.
    """
    benchmark = BENCHMARKS[invocation.benchmark]
    phases = frozenset(invocation.phases)
    views = _views(invocation)
    problems = list(dict.fromkeys(problem for view in views for problem in view.problems))
    problems += list(dict.fromkeys(str(v.values[INVENTORY_ERROR]) for v in views if INVENTORY_ERROR in v.values))
    problems += _unknown_variables(benchmark, views)

    controls, found = _resolve_controls(views)
    problems += found
    layers, notices, found = _layers(benchmark, views, controls, invocation)
    problems += found
    resolved, found = resolve(benchmark.model, layers)
    problems += found

    def name_of(path: tuple[str | int, ...]) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in resolved.names:
                return dotted((resolved.names[path[:length]], *path[length:]))
        return dotted((benchmark.variable(str(path[0])), *path[1:]))

    problems += [
        f"{name_of(finding.path)}: {finding.message}"
        for finding in benchmark.check(resolved.config, phases)
        if finding.path not in resolved.rejected
    ]
    if not invocation.hosts and phases & HOST_PHASES:
        named = ", ".join(phase for phase in PHASES if phase in phases & HOST_PHASES)
        problems.append(
            f"inventory: no host in group {invocation.group!r}, given none (-i and --limit considered), "
            f"expected at least one for {named}"
        )
    output_dir = Path(controls.config.output_dir).expanduser().absolute()
    run_id = controls.config.run_id or f"{invocation.now:%Y%m%dT%H%M%SZ}-{invocation.token}"
    on_hosts = getattr(getattr(resolved.config, "analysis", None), "where", "head") == "hosts"
    trace_dir, found, more = _trace_dir(controls.config, output_dir, run_id, phases, on_hosts)
    problems += found
    if not controls.config.gather_traces:
        found, further = _without_traces(controls.config, phases, name_of(("analysis", "where")), on_hosts)
        problems += found
        more += further
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))

    return build_spec(
        invocation.benchmark,
        resolved,
        controls.config,
        hosts=invocation.hosts,
        phases=invocation.phases,
        created=f"{invocation.now:%Y-%m-%dT%H:%M:%SZ}",
        run_id=run_id,
        run_dir=output_dir / run_id,
        trace_dir=trace_dir,
        notices=[*notices, *more],
        vaulted=_vaulted(benchmark, views),
    )


def build_spec(
    benchmark_name: str,
    resolved: Resolved,
    controls: Controls,
    *,
    hosts: Sequence[HostVariables],
    phases: Sequence[str],
    created: str,
    run_id: str,
    run_dir: Path,
    trace_dir: Path | None,
    notices: Sequence[Notice] = (),
    vaulted: frozenset[tuple[str | int, ...]] = frozenset(),
) -> Prepared:
    """The content of C(spec.json) for a valid configuration.

    C(vaulted) are the paths in the configuration that hold secrets besides those whose names say so.
    """
    benchmark = BENCHMARKS[benchmark_name]
    config = resolved.config
    values = copy.deepcopy(resolved.values())
    secrets: dict[str, str] = {}
    warnings = [*notices, *benchmark.notices(config)]

    def secret(section: str, key: str) -> bool:
        path = (section, key)
        return is_secret(key) or any(path[: len(prefix)] == prefix for prefix in vaulted)

    derived, more = benchmark.environment(config)
    warnings += more
    environment = {name: str(value) for name, value in {**derived, **values.get("environment", {})}.items()}
    for name, text in environment.items():
        if secret("environment", name):
            secrets[name] = text
            environment[name] = values["environment"][name] = REDACTED

    assignments = []
    for key, value in values.get("training_overrides", {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key == benchmark.owned_override:
            message = f"training_overrides.{key} is replaced: each run has its own directory for traces"
            warnings.append(Notice("override_replaced", message))
            continue
        if secret("training_overrides", key):
            secrets[key] = text
            values["training_overrides"][key] = text = REDACTED
            message = f"training_overrides.{key} will be seen in the host's process list; use environment instead"
            warnings.append(Notice("secret_in_override", message))
        assignments.append(f"{key}={text}")

    multi_node = values.get("multi_node", {})
    address = multi_node.get("master_addr") or (_address(hosts[0]) if hosts else None)
    spec = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": benchmark_name,
        "run_id": run_id,
        "created": created,
        "runtime": controls.runtime,
        "run_dir": str(run_dir),
        "trace_dir": str(trace_dir) if trace_dir else None,
        "phases": list(phases),
        "values": values,
        "layers": resolved.layers(),
        "hosts": [{"name": host.name, "node_rank": rank, "address": _address(host)} for rank, host in enumerate(hosts)],
        "rendezvous": {"address": address, "port": multi_node.get("master_port")},
        "container_env": environment,
        "override_argv": ["--override", *assignments] if assignments else [],
        "secrets": sorted(secrets),
        "controls": {
            name: value
            for name, value in controls.model_dump().items()
            if name not in ("output_dir", "run_id", "trace_dir", "runtime")
        },
        "warnings": [asdict(notice) for notice in dict.fromkeys(warnings)],
    }
    return Prepared(spec, secrets)


def write_run(spec: Mapping[str, Any]) -> None:
    """Make the run directory, write C(spec.json) into it and point C(latest) beside it there. Raises OSError."""
    run_dir = Path(spec["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / FILE_NAME, spec)
    latest = run_dir.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        raise FileExistsError(f"{latest} is in the way: it is not a link to a run directory")
    temporary = run_dir.parent / f".latest.{run_dir.name}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(run_dir.name)
    temporary.replace(latest)


def newest_traces(output_dir: Path) -> Path | None:
    """What there is to analyse of the newest run below C(output_dir) that has traces or summaries.

    Newest by its spec, else by its time.
    """
    best: tuple[str, Path] | None = None
    for run_dir in output_dir.glob("*/"):
        traces = None if run_dir.is_symlink() else traces_of_run(run_dir)
        if traces is None:
            continue
        try:
            created = str(read_json(run_dir / FILE_NAME)["created"])
        except (OSError, ValueError, KeyError, TypeError):
            created = f"{datetime.fromtimestamp(traces.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
        if best is None or (created, traces) > best:
            best = (created, traces)
    return best[1] if best else None


# --- parts of prepare -------------------------------------------------------------------------------


def _views(invocation: Invocation) -> tuple[HostVariables, ...]:
    """Whose variables count: the group's hosts. The host on which the task runs adds what none of them has."""
    here = invocation.here
    if not invocation.hosts:
        return (here,)
    if any(host.name == here.name for host in invocation.hosts):
        return invocation.hosts
    shared = {name for host in invocation.hosts for name in host.values}
    rest = {name: value for name, value in here.values.items() if name not in shared}
    return (*invocation.hosts, HostVariables(here.name, rest, here.sources, here.problems, here.vaulted))


def known_variables() -> dict[str, str]:
    """Every Ansible variable that is a setting, with the benchmark or C(controls) it belongs to."""
    known = {f"{CONTROL_PREFIX}{name}": "controls" for name in Controls.model_fields}
    known[ASSIGNMENTS] = "controls"
    for name, benchmark in BENCHMARKS.items():
        known.update(dict.fromkeys(benchmark.variables(), name))
    return known


def prefixes(benchmark: Benchmark) -> tuple[str, ...]:
    """How the names of all variables begin that are read for C(benchmark)."""
    return tuple(dict.fromkeys((CONTROL_PREFIX, benchmark.prefix)))


def _unknown_variables(benchmark: Benchmark, views: Iterable[HostVariables]) -> list[str]:
    known = known_variables()
    strange: dict[str, Any] = {}
    for view in views:
        for name, value in view.values.items():
            internal = name in INTERNAL_VARIABLES or name.startswith(INTERNAL_PREFIXES)
            if name.startswith(prefixes(benchmark)) and name not in known and not internal:
                strange.setdefault(name, value)
    return [
        f"{name}: {unknown(name, value, known, 'variable')}; begin the names of your own variables otherwise"
        for name, value in strange.items()
    ]


def _resolve_controls(views: Sequence[HostVariables]) -> tuple[Resolved, list[str]]:
    layers, problems = [], []
    for name in Controls.model_fields:
        variable = f"{CONTROL_PREFIX}{name}"
        if any(variable in view.values for view in views):
            value, source, found = agree(views, variable)
            problems += found
            layers.append(variable_layer(variable, name, value, source))
    controls, found = resolve(Controls, layers)
    if controls.sources.get(("hosts_group",)) in ("inventory", "group", "host"):
        found.append(
            f"{CONTROL_PREFIX}hosts_group: set in the inventory, given {controls.config.hosts_group!r}, "
            "expected it with -e or from the play: it is needed before the inventory's variables are read"
        )
    return controls, [*problems, *found]


def _layers(
    benchmark: Benchmark, views: Sequence[HostVariables], controls: Resolved, invocation: Invocation
) -> tuple[list[Layer], list[Notice], list[str]]:
    layers: list[Layer] = []
    problems: list[str] = []
    environment, notices, found = _cluster_environment(views)
    problems += found
    if environment and "environment" in benchmark.model.model_fields:
        layers.append(
            Layer("inventory", {"environment": environment}, lambda at: dotted((CLUSTER_ENVIRONMENT, *at[1:])))
        )

    first = views[0].values
    user = str(first.get("ansible_user") or login_user())
    table = replacements(user, str(first.get(HOME_MOUNT_DIR) or "home"), str(first.get(NODE_DIR) or "root"))
    if controls.config.config_file is not None:
        path = _find(Path(controls.config.config_file).expanduser(), invocation.search)
        layer, found = read_config_file(path, table)
        layers.append(layer)
        problems += found

    for variable, field_name in benchmark.variables().items():
        if any(variable in view.values for view in views):
            value, source, found = agree(views, variable)
            problems += found
            layers.append(variable_layer(variable, field_name, substitute(value, table), source))

    given, _source, found = agree(views, ASSIGNMENTS)
    problems += found
    assignments, found = read_assignments(benchmark.model, given)
    return [*layers, *assignments], notices, [*problems, *found]


def _find(path: Path, search: Iterable[Path]) -> Path:
    if not path.is_absolute():
        for directory in search:
            if (directory / path).is_file():
                return directory / path
    return path


def _cluster_environment(views: Sequence[HostVariables]) -> tuple[dict[str, Any], list[Notice], list[str]]:
    """env_vars of a cluster.json, less what a shell would have to expand: CVS exports them in one, Docker does not."""
    value, _source, problems = agree(views, CLUSTER_ENVIRONMENT)
    if not isinstance(value, Mapping):
        if value is not None:
            problems.append(f"{CLUSTER_ENVIRONMENT}: {Wrong(value, 'a map of variable names to text').text('')}")
        return {}, [], problems
    kept: dict[str, Any] = {}
    notices = []
    for name, text in value.items():
        if isinstance(text, str) and re.search(r"\$\{?[A-Za-z_]", text):
            message = (
                f"{name} of the cluster's env_vars is not passed on: it refers to a variable, which nothing expands "
                f"for a container; set aorta_environment.{name} to its whole value"
            )
            notices.append(Notice("environment_not_expanded", message))
        else:
            kept[name] = text
    return kept, notices, problems


def _without_traces(
    controls: Controls, phases: frozenset[str], where: str, on_hosts: bool
) -> tuple[list[str], list[Notice]]:
    """What follows from not gathering the traces; C(where) is the name of the setting that makes it possible."""
    name = f"{CONTROL_PREFIX}gather_traces"
    if not on_hosts:
        return [f"{name}: given false, expected true unless {where} is 'hosts': nobody would read the traces"], []
    if phases & {"run", "gather"} and not controls.keep_host_files:
        message = (
            f"{name} is false: the traces are removed from the hosts with all other files of the run; "
            f"set {CONTROL_PREFIX}keep_host_files to keep them there"
        )
        return [], [Notice("traces_not_kept", message)]
    return [], []


def _trace_dir(
    controls: Controls, output_dir: Path, run_id: str, phases: frozenset[str], on_hosts: bool
) -> tuple[Path | None, list[str], list[Notice]]:
    """Where this invocation reads traces: its own when it gathers them, else the given ones, else the newest.

    Summaries that hosts have made take the place of traces: of its own where they do (C(on_hosts)), of earlier runs
    where there is nothing else.
    """
    own = output_dir / run_id
    given = controls.trace_dir
    if phases & {"run", "gather"}:
        message = f"{CONTROL_PREFIX}trace_dir ({given}) is not used: this run gathers its own traces"
        gathered = own / ("summaries" if on_hosts else "traces")
        return gathered, [], [Notice("trace_dir_ignored", message)] if given else []
    if given is not None:
        path = Path(given).expanduser().absolute()
        if (path / FILE_NAME).is_file():
            path = traces_of_run(path) or (path / "traces" if (path / "traces").is_dir() else path)
        if not path.is_dir():
            name = f"{CONTROL_PREFIX}trace_dir"
            return None, [f"{name}: {Wrong(given, 'a directory with traces', 'no such directory').text(name)}"], []
        return path.resolve(), [], []
    return traces_of_run(own) or newest_traces(output_dir), [], []


def _vaulted(benchmark: Benchmark, views: Iterable[HostVariables]) -> frozenset[tuple[str | int, ...]]:
    fields = benchmark.variables()
    found: set[tuple[str | int, ...]] = set()
    for view in views:
        for variable, *rest in view.vaulted:
            if variable == CLUSTER_ENVIRONMENT:
                found.add(("environment", *rest))
            elif variable == ASSIGNMENTS and isinstance(view.values.get(ASSIGNMENTS), str | list | dict):
                layers, _problems = read_assignments(benchmark.model, view.values[ASSIGNMENTS])
                found.update(path for layer in layers for path, _value in leaves(layer.values))
            elif variable in fields:
                found.add((fields[str(variable)], *rest))
    return frozenset(found)


def _address(host: HostVariables) -> str:
    return str(host.values.get("vpc_ip") or host.values.get("ansible_host") or host.name)


__all__ = [
    "CLUSTER_ENVIRONMENT",
    "FILE_NAME",
    "HOME_MOUNT_DIR",
    "INTERNAL_PREFIXES",
    "INTERNAL_VARIABLES",
    "INVENTORY_ERROR",
    "NODE_DIR",
    "REDACTED",
    "SCHEMA_VERSION",
    "Invocation",
    "Prepared",
    "build_spec",
    "known_variables",
    "newest_traces",
    "phases_of",
    "prefixes",
    "prepare",
    "write_run",
]
