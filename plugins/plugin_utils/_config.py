# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings: names, types, defaults, units and bounds, in one place.

C(AortaConfig) is the benchmark's configuration (sections named as in CVS's C(aorta_benchmark.yaml)), C(Controls) the
variables that steer one invocation. Models are checked layer by layer, so no field is required and each check looks
at one section alone; what concerns several settings is in the benchmark's C(check).
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import DEFAULT_MAX_TRACE_BYTES
from ansible_collections.aorta.automation.plugins.plugin_utils import _kinds as kinds
from ansible_collections.aorta.automation.plugins.plugin_utils._deps import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._gpu import (
    KNOWN_GPUS,
    compute_units,
    normalise_gpu_model,
)
from ansible_collections.aorta.automation.plugins.plugin_utils._kinds import Wrong, Wrongs
from ansible_collections.aorta.automation.plugins.plugin_utils._results import Results
from ansible_collections.aorta.automation.plugins.plugin_utils._strict_read import Path

# Phases are tags; `config` always runs.
PHASES = ("config", "preflight", "deploy", "run", "gather", "analyze", "validate", "report", "teardown")
HOST_PHASES = frozenset({"preflight", "deploy", "run", "gather"})
BENCHMARK_PHASES = frozenset({"preflight", "deploy", "run"})


def setting(default: Any, description: str, unit: str = "") -> Any:
    """A field with its default, its meaning and its unit (empty where it has none)."""
    return Field(default=default, description=description, json_schema_extra={"unit": unit})


class Section(BaseModel):
    """A map of known settings; unknown ones are refused. Accepts a map written as text as well."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        value = kinds.structure(value)
        if value is None:  # a heading under which every line is a comment
            return {}
        if not isinstance(value, Mapping):
            raise Wrong(value, f"a map with any of {', '.join(cls.model_fields)}")
        return value


# --- kinds of this benchmark ------------------------------------------------------------------------

# Aorta reads these as numbers; a typing error in them would show only on the GPUs.
INTEGER_VARIABLES: dict[str, kinds.Kind] = {
    "NCCL_MAX_NCHANNELS": kinds.integer(1, 256),
    "NCCL_MIN_NCHANNELS": kinds.integer(1, 256),
    "NCCL_MAX_P2P_NCHANNELS": kinds.integer(1, 256),
    "TORCH_NCCL_HIGH_PRIORITY": kinds.integer(0, 1),
    "OMP_NUM_THREADS": kinds.integer(1),
    "RCCL_MSCCL_ENABLE": kinds.integer(0, 1),
    "TENSILE_STREAMK_MAX_CUS": kinds.integer(1),
}

# Usual beginnings of interface names: what NCCL takes as a pattern and Gloo would look up as a name.
_INTERFACE_PREFIXES = frozenset(
    {"bond", "en", "eno", "enp", "ens", "enx", "eth", "hsn", "ib", "rdma", "roce", "team", "vlan", "wlan"}
)
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OVERRIDE_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/-]*(\.[A-Za-z0-9_/-]+)*")


def references_itself(name: str, text: str) -> bool:
    """Whether C(text) holds C($NAME) or C(${NAME}), which a container's environment never expands."""
    return re.search(rf"\$(\{{{re.escape(name)}\}}|{re.escape(name)}(?![A-Za-z0-9_]))", text) is not None


def environment_value(name: str, value: Any) -> int | str:
    """Check one variable for the benchmark's processes; integers for those of C(INTEGER_VARIABLES), else text."""
    if not _VARIABLE_NAME.fullmatch(name):
        raise Wrong(name, "letters, digits and '_', not beginning with a digit", "not a name of a variable")
    if name in INTEGER_VARIABLES:
        return int(INTEGER_VARIABLES[name](value))
    if isinstance(value, bool):
        expected = 'text: quote it ("1", "true", "no", ... as the program reads it)'
        raise Wrong(value, expected, "a boolean where text is meant")
    if isinstance(value, int | float) and math.isfinite(value):
        value = str(value)
    try:
        text = kinds.plain_text(value)
    except TypeError as exc:
        raise Wrong(value, "text on one line or a finite number") from exc
    if name == "GLOO_SOCKET_IFNAME" and (not _INTERFACE.fullmatch(text) or text in _INTERFACE_PREFIXES):
        expected = "the exact name of one interface, e.g. eth0 (Gloo knows no '=', '^', list or prefix as NCCL does)"
        raise Wrong(value, expected, "an interface pattern")
    if references_itself(name, text):
        raise Wrong(value, f"the whole value (nothing expands ${name} inside a container)", "refers to itself")
    return text


def _override(key: str, value: Any) -> bool | int | float | str:
    if not _OVERRIDE_KEY.fullmatch(key):
        raise Wrong(key, "a dotted key such as training.max_steps", "not a key of Aorta's configuration")
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        return kinds.plain_text(value)
    except TypeError as exc:
        raise Wrong(value, 'one text, number or boolean (a list as text: "[a,b]")') from exc


def _ulimit(name: str, value: Any) -> int:
    if not re.fullmatch("[a-z]+", name):
        raise Wrong(name, "a limit such as memlock, stack or nofile", "not a name of a limit")
    return int(kinds.integer(-1)(value))


def _gpu(value: Any) -> str:
    text = kinds.plain_text(value)
    model = "auto" if text.lower() == "auto" else normalise_gpu_model(text)
    if model is None:
        raise ValueError
    return model


def _stream(value: Any) -> str | int:
    return str(value) if value in ("all", "quiet") else int(kinds.integer(1)(value))


def _kernel_patterns(value: Any) -> str | list[str]:
    if value in ("tracelens", "extended"):
        return str(value)
    patterns = kinds.structure(value)
    if not isinstance(patterns, list):
        raise TypeError
    return [str(pattern) for pattern in kinds.list_of(_PATTERN)(patterns)]


def _pattern(value: Any) -> str:
    text = kinds.plain_text(value)
    try:
        re.compile(text)
    except re.error as exc:
        raise Wrong(value, _PATTERN.expected, f"not a regular expression ({exc})") from exc
    if not text:
        raise ValueError
    return text


_PATTERN = kinds.Kind("a regular expression that is searched for in the kernel's name, any case", _pattern)
_KIND_NAME = re.compile(r"[a-z][a-z0-9_ -]{0,39}")


def _kernel_category(name: str, value: Any) -> list[str]:
    if not _KIND_NAME.fullmatch(name):
        raise Wrong(name, "a kind such as gemm or sparse: lower case, digits, '_', '-'", "not the name of a kind")
    patterns = kinds.structure(value)
    if not isinstance(patterns, list) or not patterns:
        raise Wrong(value, "a list of regular expressions")
    return [str(pattern) for pattern in kinds.list_of(_PATTERN)(patterns)]


_KERNEL_CATEGORIES = kinds.free_map("a map of kinds to lists of regular expressions", _kernel_category)
_GPU_MODEL = kinds.Kind(f"auto or one of {', '.join(KNOWN_GPUS)}", _gpu)
_COUNT = kinds.integer(1)
_RATIO = kinds.number(0, 1).or_null()
_MILLISECONDS = kinds.number(0).or_null()
_NUMBER = kinds.number().or_null()
_ENVIRONMENT = kinds.free_map("a map of variable names to text", environment_value)
_OVERRIDES = kinds.free_map("a map of dotted keys to values", _override, flatten=True)
_ULIMITS = kinds.free_map("a map of limits to integers, -1 for unlimited", _ulimit)
_GPUS_PER_NODE = kinds.integer(1, 1024)
_SECONDS = kinds.integer(1, 30 * 24 * 3600)
_PORT = kinds.integer(1, 65535).or_null()
_VOLUME = kinds.text(r"/[^:\0]*:/[^:\0]*(:[a-zA-Z,]+)?", "HOST:CONTAINER[:ro], both absolute paths")
_VOLUMES = kinds.list_of(_VOLUME)
_DEVICES = kinds.list_of(kinds.text(r"/dev/[^\s:]+(:/dev/[^\s:]+)?(:[rwm]+)?", "a device such as /dev/kfd"))
_GROUPS = kinds.list_of(kinds.text(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "a numeric gid or a group's name", numbers=True))
_CAPABILITIES = kinds.list_of(kinds.text("[A-Z][A-Z0-9_]*", "a capability such as SYS_PTRACE"))
_SECURITY = kinds.list_of(kinds.text(r"[a-z-]+([=:]\S+)?", "a security option such as seccomp=unconfined"))
_USER = kinds.text(r"[A-Za-z0-9_][\w.-]*(:[A-Za-z0-9_][\w.-]*)?", "uid, uid:gid or user names", numbers=True)
_NETWORK = kinds.text(r"[A-Za-z0-9][\w.-]*(:[\w.-]+)?", "host, bridge, none or the name of a network")
_IPC = kinds.text(r"host|private|shareable|none|container:[\w.-]+", "host, private, shareable, none or container:NAME")
_METRIC = kinds.text(r"[a-z_]+(\.[a-z0-9_]+)*", "a metric of results.json such as summary.avg_idle_ratio")
_LABEL = kinds.text(r"\S.*", "some text").or_null()


# --- the benchmark's configuration ------------------------------------------------------------------


class Docker(Section):
    """The container in which every step runs."""

    image: Annotated[str, BeforeValidator(kinds.IMAGE)] = setting(
        "jeffdaily/pytorch:torchrec-dlrm-complete", "Image with PyTorch for ROCm; its digest is recorded for each host."
    )
    container_name: Annotated[str, BeforeValidator(kinds.CONTAINER_NAME)] = setting(
        "aorta-benchmark",
        "Name of the training container on each host; a foreign container of this name is never touched.",
    )
    shm_size: Annotated[str, BeforeValidator(kinds.SIZE)] = setting(
        "17G", "Size of /dev/shm, through which ranks of one host and data loaders exchange data.", "bytes with suffix"
    )
    network_mode: Annotated[str, BeforeValidator(_NETWORK)] = setting(
        "host", "Docker network; ranks on several hosts reach each other only with host networking or an overlay."
    )
    privileged: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False,
        "Give the container every device and capability. Not needed with the defaults below; CVS's files set it.",
    )
    ipc_mode: Annotated[str, BeforeValidator(_IPC)] = setting(
        "host", "IPC namespace; RCCL's shared-memory and IPC transports need the ranks of a host in the same one."
    )
    user: Annotated[str | None, BeforeValidator(_USER.or_null())] = setting(
        None, "User inside the container. null: uid and gid of the SSH user, so that files written belong to them."
    )
    devices: Annotated[list[str], BeforeValidator(_DEVICES)] = setting(
        ["/dev/kfd", "/dev/dri"], "Devices of the host given to the container: ROCm's compute interface and the GPUs."
    )
    group_add: Annotated[list[str], BeforeValidator(_GROUPS)] = setting(
        [], "Further groups of the container's user. The numeric groups that own the devices are added by themselves."
    )
    cap_add: Annotated[list[str], BeforeValidator(_CAPABILITIES)] = setting(
        ["SYS_PTRACE"],
        "Linux capabilities; SYS_PTRACE lets the ranks of a host read each other's memory.",
    )
    security_opts: Annotated[list[str], BeforeValidator(_SECURITY)] = setting(
        ["seccomp=unconfined"], "Security options; ROCm asks for seccomp=unconfined to bind memory to NUMA nodes."
    )
    ulimits: Annotated[dict[str, int | None], BeforeValidator(_ULIMITS)] = setting(
        {"memlock": -1, "stack": 67108864},
        "Resource limits, soft and hard alike; pinned memory for RDMA needs an unlimited memlock.",
        "as setrlimit: bytes or counts",
    )
    volumes: Annotated[list[str], BeforeValidator(_VOLUMES)] = setting(
        [], "Further mounts, HOST:CONTAINER[:ro]; aorta_path is mounted by itself."
    )
    pull: Annotated[str, BeforeValidator(kinds.choice("missing", "always", "never"))] = setting(
        "missing", "When to pull the image."
    )
    memory: Annotated[str | None, BeforeValidator(kinds.SIZE.or_null())] = setting(
        None, "Memory limit of the container; null: none.", "bytes with suffix"
    )


class Rccl(Section):
    """Building RCCL from source before the run (only with skip_rccl_build: false)."""

    clone_url: Annotated[str, BeforeValidator(kinds.GIT_URL)] = setting(
        "https://github.com/ROCm/rccl", "Repository of RCCL."
    )
    branch: Annotated[str, BeforeValidator(kinds.GIT_VERSION)] = setting("develop", "Branch, tag or commit to build.")
    build_path: Annotated[str, BeforeValidator(kinds.MOUNT_PATH)] = setting(
        "/mnt/rccl", "Directory inside the container for source and build."
    )


class Analysis(Section):
    """How the traces are read."""

    engine: Annotated[str, BeforeValidator(kinds.choice("auto", "native", "tracelens"))] = setting(
        "auto",
        "native: the built-in reader; tracelens: AMD's TraceLens; auto: native for the numbers, and TraceLens' "
        "workbooks where it is installed.",
    )
    tracelens_python: Annotated[str | None, BeforeValidator(kinds.ABSOLUTE_PATH.or_null())] = setting(
        None,
        "The Python on the controller that has AMD's TraceLens; null: Ansible's own. The environment variable "
        "TRACELENS_PATH (a checkout of TraceLens) is put on its path.",
    )
    tracelens_timeout_seconds: Annotated[int, BeforeValidator(kinds.integer(1, 7 * 86400))] = setting(
        1800, "Longest time TraceLens may take for one rank, and for the collectives of all ranks.", "s"
    )
    communication_kernels: Annotated[
        str | list[str],
        BeforeValidator(kinds.Kind("tracelens, extended, or a list of regular expressions", _kernel_patterns)),
    ] = setting(
        "tracelens",
        "Which kernels are communication. tracelens: names with nccl, rccl or cross_device_reduce; extended: also "
        "msccl, quickreduce, one-shot and multimem all-reduce, nvshmem, DeepEP and the like; a list: names in which "
        "one of these regular expressions is found, any case.",
    )
    where: Annotated[str, BeforeValidator(kinds.choice("head", "hosts"))] = setting(
        "head",
        "Where the traces are read. head: on the controller, which needs them there; hosts: each host reads its own "
        "and sends summaries, a thousandth of the size, from which the results are the same.",
    )
    top_kernels: Annotated[int, BeforeValidator(kinds.integer(1, 1000))] = setting(
        20, "How many kernels, by total time, are listed for each rank and overall."
    )
    kernel_categories: Annotated[dict[str, list[str] | None], BeforeValidator(_KERNEL_CATEGORIES)] = setting(
        {},
        "Further patterns by which kernels are grouped, before the built-in ones (docs/metrics.md): a map of kinds "
        "(gemm, attention, ... or new ones) to lists of regular expressions, searched for in the name, any case.",
    )
    max_trace_bytes: Annotated[int, BeforeValidator(kinds.integer(1))] = setting(
        DEFAULT_MAX_TRACE_BYTES,
        "The longest JSON text, unpacked, that one trace may have; more ends in an error of that trace.",
        "bytes",
    )
    trust_mtime: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False,
        "Take traces of unchanged size and time of change for the ones analysed before, without reading them for their "
        "sha256.",
    )
    enable_tracelens: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Accepted from CVS; no effect here (a warning when true): use engine."
    )
    enable_gemm_analysis: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Accepted from CVS; no effect here (a warning when true)."
    )
    tracelens_script: Annotated[str, BeforeValidator(kinds.RELATIVE_PATH)] = setting(
        "scripts/tracelens_single_config/run_tracelens_single_config.sh", "Accepted from CVS; no effect here."
    )
    gemm_script: Annotated[str, BeforeValidator(kinds.RELATIVE_PATH)] = setting(
        "scripts/gemm_analysis/run_tracelens_analysis.sh", "Accepted from CVS; no effect here."
    )
    skip_if_exists: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False,
        "Accepted from CVS; no effect here (a warning when true): results are reused when the traces are unchanged.",
    )


class Limit(Section):
    """A limit on any number in results.json: at least one of min and max."""

    metric: Annotated[str, BeforeValidator(_METRIC)] = setting(
        "",
        "Path of the number, e.g. summary.avg_idle_ratio; through a list (per_rank.ratios.compute) for every entry.",
    )
    min: Annotated[float | None, BeforeValidator(_NUMBER)] = setting(None, "Smallest good value.", "as the metric")
    max: Annotated[float | None, BeforeValidator(_NUMBER)] = setting(None, "Largest good value.", "as the metric")
    name: Annotated[str | None, BeforeValidator(_LABEL)] = setting(
        None, "How the report calls the check; null: the metric."
    )

    @model_validator(mode="after")
    def _some_limit(self) -> Limit:
        if not self.metric:
            raise Wrong(None, _METRIC.expected, "metric is missing")
        if self.min is None and self.max is None:
            raise Wrong({"metric": self.metric}, "min, max or both", "no limit set")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Wrong(self.min, f"a min of at most max ({self.max})", "min is above max")
        return self


class Thresholds(Section):
    """Limits; what is null or absent is not checked."""

    max_avg_iteration_ms: Annotated[float | None, BeforeValidator(_MILLISECONDS)] = setting(
        None, "Largest mean over ranks of the mean iteration time.", "ms"
    )
    min_compute_ratio: Annotated[float | None, BeforeValidator(_RATIO)] = setting(
        None, "Smallest mean over ranks of computation / total.", "ratio 0..1"
    )
    min_overlap_ratio: Annotated[float | None, BeforeValidator(_RATIO)] = setting(
        None, "Smallest mean over ranks of the share of communication hidden by computation.", "ratio 0..1"
    )
    max_time_variance_ratio: Annotated[float | None, BeforeValidator(_RATIO)] = setting(
        None, "Largest sample standard deviation / mean of the ranks' mean iteration times.", "ratio 0..1"
    )
    limits: list[Limit] = setting(
        [], "Limits on further metrics: a list of maps with metric, min, max, name. See below."
    )


def _by_model(value: Any) -> Any:
    entries = {} if value is None else kinds.structure(value)
    if not isinstance(entries, Mapping):
        raise Wrong(value, f"a map with any of {', '.join(KNOWN_GPUS)}")
    converted: dict[str, Any] = {}
    wrong = []
    for key, item in entries.items():
        model = normalise_gpu_model(key) if isinstance(key, str) else None
        if model is None:
            wrong.append(Wrong(key, f"one of {', '.join(KNOWN_GPUS)}", "not a known GPU model", at=(str(key),)))
        elif model in converted:
            wrong.append(Wrong(key, "each model once", "given twice", at=(str(key),)))
        else:
            converted[model] = item
    if wrong:
        raise Wrongs(wrong)
    return converted


class ExpectedResults(Thresholds):
    """What the results are judged by; empty by default: no limit is invented."""

    gpu_model: Annotated[str, BeforeValidator(_GPU_MODEL)] = setting(
        "auto", "Which set of by_gpu_model applies; auto: the model that the traces or the hosts report."
    )
    by_gpu_model: Annotated[dict[str, Thresholds], BeforeValidator(_by_model)] = setting(
        {}, "Sets of the limits above by GPU model (mi300x: {...}); each replaces the general ones it names."
    )


class MultiNode(Section):
    """Starting ranks on several hosts."""

    master_launch_mode: Annotated[str, BeforeValidator(kinds.choice("auto", "script", "torchrun"))] = setting(
        "auto",
        "script: experiment_script; torchrun: one torchrun on each host; auto: torchrun from two hosts on.",
    )
    master_addr: Annotated[str | None, BeforeValidator(kinds.HOST_NAME.or_null())] = setting(
        None, "Rendezvous address; null: vpc_ip, else ansible_host, else the name of the first host."
    )
    master_port: Annotated[int | None, BeforeValidator(_PORT)] = setting(
        None, "Rendezvous port; null: a free port of the first host."
    )
    torchrun_command: Annotated[list[str], BeforeValidator(kinds.COMMAND)] = setting(
        ["torchrun"], "How to call torchrun inside the container: text or a list of words."
    )
    rdzv_backend: Annotated[str, BeforeValidator(kinds.choice("static"))] = setting(
        "static", "Rendezvous of torchrun. Only static keeps node ranks and the address that were given."
    )


class AortaConfig(Section):
    """The whole configuration of the Aorta benchmark."""

    aorta_path: Annotated[str | None, BeforeValidator(kinds.MOUNT_PATH.or_null())] = setting(
        None, "Aorta's directory on every host, mounted into the container. Needed for preflight, deploy and run."
    )
    aorta_auto_clone: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Clone aorta_clone_url to aorta_path where that does not exist."
    )
    aorta_clone_url: Annotated[str | None, BeforeValidator(kinds.GIT_URL.or_null())] = setting(
        None, "Repository of Aorta for aorta_auto_clone."
    )
    aorta_clone_version: Annotated[str | None, BeforeValidator(kinds.GIT_VERSION.or_null())] = setting(
        None, "Branch, tag or commit to clone; null: the repository's default branch."
    )
    container_mount_path: Annotated[str, BeforeValidator(kinds.MOUNT_PATH)] = setting(
        "/mnt", "Where the container sees aorta_path."
    )
    base_config: Annotated[str, BeforeValidator(kinds.RELATIVE_PATH)] = setting(
        "config/distributed.yaml", "Aorta's own configuration, relative to aorta_path; it has to switch profiling on."
    )
    docker: Docker = Field(default_factory=Docker)
    rccl: Rccl = Field(default_factory=Rccl)
    environment: Annotated[dict[str, int | str | None], BeforeValidator(_ENVIRONMENT)] = setting(
        {
            "NCCL_MAX_NCHANNELS": 112,
            "NCCL_MAX_P2P_NCHANNELS": 112,
            "NCCL_DEBUG": "VERSION",
            "TORCH_NCCL_HIGH_PRIORITY": 1,
            "OMP_NUM_THREADS": 1,
            "RCCL_MSCCL_ENABLE": 0,
        },
        "Variables of the benchmark's processes, any name; null removes one.",
    )
    training_overrides: Annotated[dict[str, bool | int | float | str | None], BeforeValidator(_OVERRIDES)] = setting(
        {}, "Assignments for Aorta's --override, dotted key: value; nested maps are flattened; null removes one."
    )
    build_script: Annotated[str | None, BeforeValidator(kinds.RELATIVE_PATH.or_null())] = setting(
        None, "Script that builds RCCL, relative to aorta_path; null: the built-in build."
    )
    experiment_script: Annotated[str, BeforeValidator(kinds.RELATIVE_PATH)] = setting(
        "scripts/launch_rocm.sh", "Script that starts the training in script mode, relative to aorta_path."
    )
    gpus_per_node: Annotated[int, BeforeValidator(_GPUS_PER_NODE)] = setting(8, "Ranks on each host, one for each GPU.")
    gpu_model: Annotated[str, BeforeValidator(_GPU_MODEL)] = setting(
        "auto", "GPU model, for TENSILE_STREAMK_MAX_CUS and the choice of limits; auto: read from the hosts."
    )
    timeout_seconds: Annotated[int, BeforeValidator(_SECONDS)] = setting(
        10800, "Longest time one step may take before it is stopped.", "s"
    )
    skip_rccl_build: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        True, "Use the RCCL of the image instead of building one; CVS builds one unless told otherwise."
    )
    analysis: Analysis = Field(default_factory=Analysis)
    expected_results: ExpectedResults = Field(default_factory=ExpectedResults)
    multi_node: MultiNode = Field(default_factory=MultiNode)


# --- one invocation ---------------------------------------------------------------------------------

_RUN_ID = kinds.text(
    r"(?!latest$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "letters, digits, '.', '_' or '-', at most 64, not latest"
)
_ANY_PATH = kinds.text(r"\S.*", "a path")
_GROUP = kinds.text(r"[A-Za-z_][A-Za-z0-9_.-]*", "the name of an inventory group")


class Controls(Section):
    """Variables of one invocation; each is set as aorta_<name>."""

    output_dir: Annotated[str, BeforeValidator(_ANY_PATH)] = setting(
        "aorta-runs", "Directory on the controller that receives a directory for each run; relative to where you are."
    )
    run_id: Annotated[str | None, BeforeValidator(_RUN_ID.or_null())] = setting(
        None, "Name of this run's directory; null: UTC time and a random part. The id of an earlier run continues it."
    )
    trace_dir: Annotated[str | None, BeforeValidator(_ANY_PATH.or_null())] = setting(
        None, "Traces (or a run directory) to analyse without a run; null: those of the newest run that has some."
    )
    config_file: Annotated[str | None, BeforeValidator(_ANY_PATH.or_null())] = setting(
        None, "Configuration file in YAML or JSON with the sections of this page, such as CVS's aorta_benchmark.yaml."
    )
    runtime: Annotated[str, BeforeValidator(kinds.choice("docker", "process"))] = setting(
        "docker", "docker: every step is a container; process: a detached process of the host, for trying out."
    )
    hosts_group: Annotated[str, BeforeValidator(_GROUP)] = setting(
        "aorta", "Inventory group of the hosts; its order is the node rank."
    )
    stream: Annotated[str | int, BeforeValidator(kinds.Kind("all, quiet, or N for every Nth line", _stream))] = setting(
        "all", "Which lines of the benchmark's output reach the terminal; the log files get all."
    )
    unreachable_grace: Annotated[int, BeforeValidator(kinds.integer(0, 86400))] = setting(
        60, "How long a host may be unreachable during the run before all are stopped.", "s"
    )
    allow_missing_ranks: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Judge the ranks that have traces although some are missing or damaged."
    )
    keep_on_failure: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Leave the containers of a failed run on the hosts for inspection."
    )
    replace_foreign: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Remove a container of the same name that this collection did not start."
    )
    gather_traces: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        True, "Bring the traces to the controller; false only with where: hosts in aorta_analysis."
    )
    keep_host_files: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Leave the traces in the hosts' work directories when the run is torn down."
    )
    work_dir: Annotated[str | None, BeforeValidator(kinds.MOUNT_PATH.or_null())] = setting(
        None, "Work directory on the hosts; null: /var/tmp/aorta-automation-<uid>."
    )
    min_free_gb: Annotated[float, BeforeValidator(kinds.number(0))] = setting(
        5.0, "Free space that preflight asks of each host's work directory.", "GB"
    )
    publish_dir: Annotated[str | None, BeforeValidator(kinds.MOUNT_PATH.or_null())] = setting(
        None, "Directory on publish_host that receives a copy of the run directory; null: none."
    )
    publish_host: Annotated[str | None, BeforeValidator(kinds.HOST_NAME.or_null())] = setting(
        None, "Inventory host for publish_dir; null: the controller."
    )
    publish_traces: Annotated[bool, BeforeValidator(kinds.BOOLEAN)] = setting(
        False, "Copy the traces to publish_dir as well."
    )


# --- what concerns several settings -----------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A problem that only the whole configuration shows: C(path) of the setting to name, and the rest of the line."""

    path: Path
    message: str


@dataclass(frozen=True)
class Notice:
    """A warning: C(code) for programs, C(message) for people."""

    code: str
    message: str


def metric_exists(path: str) -> bool:
    """Whether C(path) leads to a number of C(results.json); lists are walked through."""
    annotation: Any = Results
    for part in path.split("."):
        options = [option for option in _parts(annotation) if _step(option, part) is not None]
        if not options:
            return False
        annotation = _step(options[0], part)
    return any(option in (int, float) for option in _parts(annotation))


def _parts(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [part for option in typing.get_args(annotation) for part in _parts(option)]
    if origin is Annotated or origin is list:
        return _parts(typing.get_args(annotation)[0])
    return [annotation]


def _step(annotation: Any, part: str) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(part)
        return field.annotation if field else None
    return typing.get_args(annotation)[1] if typing.get_origin(annotation) is dict else None


def _check_aorta(config: Any, phases: frozenset[str]) -> list[Finding]:
    findings = []
    needing = [phase for phase in PHASES if phase in phases & BENCHMARK_PHASES]
    if config.aorta_path is None and needing:
        message = f"not set, given nothing, expected Aorta's directory on the hosts (for {', '.join(needing)})"
        findings.append(Finding(("aorta_path",), message))
    if config.aorta_auto_clone and config.aorta_clone_url is None:
        message = "not set, given nothing, expected a git URL because aorta_auto_clone is on"
        findings.append(Finding(("aorta_clone_url",), message))
    if config.analysis.where == "hosts" and config.analysis.engine == "tracelens":
        message = "given 'hosts' with engine 'tracelens', expected 'head': TraceLens runs on the controller"
        findings.append(Finding(("analysis", "where"), message))
    sets: list[tuple[Path, Any]] = [(("expected_results",), config.expected_results)]
    sets += [
        (("expected_results", "by_gpu_model", model), entry)
        for model, entry in config.expected_results.by_gpu_model.items()
    ]
    for path, entry in sets:
        for index, limit in enumerate(entry.limits):
            if not metric_exists(limit.metric):
                message = f"no such metric, given {kinds.show(limit.metric)}, expected a number of results.json"
                findings.append(Finding((*path, "limits", index, "metric"), message))
    return findings


def _aorta_environment(config: Any) -> tuple[dict[str, str], list[Notice]]:
    channels, name = config.environment.get("NCCL_MAX_NCHANNELS"), "TENSILE_STREAMK_MAX_CUS"
    units = compute_units(config.gpu_model)
    if name in config.environment or units is None or channels is None:
        return {}, []
    if channels >= units:
        message = (
            f"{name} is left unset: NCCL_MAX_NCHANNELS ({channels}) leaves none of the {units} compute units "
            f"of {config.gpu_model} for matrix kernels"
        )
        return {}, [Notice("no_compute_units_left", message)]
    return {name: str(units - channels)}, []


def _aorta_notices(config: Any) -> list[Notice]:
    remedies = {
        "enable_tracelens": "set analysis.engine to tracelens or auto",
        "enable_gemm_analysis": "run Aorta's own script on the traces",
        "skip_if_exists": "results are reused by themselves when the traces are unchanged",
    }
    return [
        Notice("setting_without_effect", f"analysis.{name}: true has no effect here; {remedy}")
        for name, remedy in remedies.items()
        if getattr(config.analysis, name)
    ]


@dataclass(frozen=True)
class Benchmark:
    """What the shared phases need to know of a benchmark's configuration.

    C(prefix) begins the names of its Ansible variables. C(check) finds what single settings can't show,
    C(environment) gives variables that follow from others (never over the user's own), C(notices) gives warnings.
    C(owned_override) is the override that the product sets itself. A model may have the maps C(environment) and
    C(training_overrides), and C(multi_node.master_addr) and C(multi_node.master_port); all of them are optional.
    """

    model: Any
    prefix: str
    check: Callable[[Any, frozenset[str]], list[Finding]]
    environment: Callable[[Any], tuple[dict[str, str], list[Notice]]]
    notices: Callable[[Any], list[Notice]]
    owned_override: str | None = None

    def variable(self, field: str) -> str:
        """Name of the Ansible variable for a top-level field."""
        return field if field.startswith(self.prefix) else f"{self.prefix}{field}"

    def variables(self) -> dict[str, str]:
        """Ansible variable → top-level field."""
        return {self.variable(field): field for field in self.model.model_fields}


BENCHMARKS: dict[str, Benchmark] = {
    "aorta": Benchmark(
        model=AortaConfig,
        prefix="aorta_",
        check=_check_aorta,
        environment=_aorta_environment,
        notices=_aorta_notices,
        owned_override="training.output_dir",
    ),
}

__all__ = [
    "BENCHMARKS",
    "HOST_PHASES",
    "KNOWN_GPUS",
    "PHASES",
    "AortaConfig",
    "Benchmark",
    "Controls",
    "Finding",
    "Notice",
    "Section",
    "environment_value",
    "metric_exists",
    "normalise_gpu_model",
    "references_itself",
]
