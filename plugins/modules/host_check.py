# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_check
short_description: Check that a host can run a benchmark step, and say what to do where it can't
version_added: 0.1.0
description:
  - Looks at everything that a step needs on its host and returns all problems at once, each with a remedy.
  - Changes nothing, except that with O(claim) a host without problems is claimed for the run.
  - Needs only Python's standard library, so that it can report that C(requests) is missing.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  node_rank:
    description: Rank of the host among the hosts of the run.
    type: int
    default: 0
  claim:
    description:
      - Whether to claim the host for the run when nothing is wrong. Another run that has a valid claim is a problem;
        the claim of one that is over is taken over.
    type: bool
    default: false
  dead_runs:
    description: Runs that are known to be over, whatever signs of life they have left.
    type: list
    elements: str
    default: []
  socket_interfaces:
    description:
      - Variables that choose network interfaces, such as C(NCCL_SOCKET_IFNAME) and C(GLOO_SOCKET_IFNAME), with their
        values. An interface that this host lacks is a problem.
    type: dict
    default: {}
  runtime:
    description: How steps run. V(process) needs no container engine.
    type: str
    choices: [docker, process]
    required: true
  run_id:
    description: The run that is to start. What carries it is not in the way.
    type: str
    required: true
  work_dir:
    description: Directory for the files of steps. A directory of the user below C(/var/tmp) when not given.
    type: path
  min_free_gb:
    description: Free space that O(work_dir) must have, in GB (10⁹ bytes).
    type: float
    default: 0
  benchmark_path:
    description: Directory of the benchmark's source.
    type: path
  required_files:
    description: Files that must exist below O(benchmark_path).
    type: list
    elements: str
    default: []
  will_clone:
    description: Whether a later phase clones O(benchmark_path), so that it may be absent now.
    type: bool
    default: false
  image:
    description: Image of the step container.
    type: str
  pull:
    description: When the image is pulled.
    type: str
    choices: [missing, always, never]
    default: missing
  container_names:
    description: Names of the step containers that are going to be made.
    type: list
    elements: str
    default: []
  replace_foreign:
    description: Whether a container of such a name that is not ours may be replaced.
    type: bool
    default: false
  devices:
    description: Device files or directories that the container gets.
    type: list
    elements: str
    default: []
  rendezvous_address:
    description: Address where the ranks meet; the network interface that leads there is returned.
    type: str
  engine_timeout:
    description: Seconds that the container engine may take to answer.
    type: int
    default: 15
attributes:
  check_mode:
    support: full
    description: Looks as always, and claims nothing.
  diff_mode:
    support: none
    description: Changes nothing.
"""

EXAMPLES = r"""
- name: Look at the host
  aorta.automation.host_check:
    runtime: docker
    run_id: 20260101-120000-abcd
    image: registry.example/aorta:1
    devices: [/dev/kfd, /dev/dri]
    min_free_gb: 10
  register: preflight_check
"""

RETURN = r"""
problems:
  description: What is wrong, with a remedy for each.
  type: list
  elements: dict
  returned: always
  contains:
    check:
      description: What was checked.
      type: str
    message:
      description: What is wrong.
      type: str
    remedy:
      description: What to do.
      type: str
host:
  description: Facts about the host that later phases use.
  type: dict
  returned: always
  contains:
    uid:
      description: Numeric user id of the connecting user.
      type: int
    gid:
      description: Numeric group id of the connecting user.
      type: int
    work_dir:
      description: Directory for the files of steps.
      type: str
    device_gids:
      description: Numeric groups that own the devices.
      type: list
      elements: int
    interface:
      description: Network interface that leads to the rendezvous address, null if none does.
      type: str
    compute_units:
      description: Compute units of the first GPU, from the kernel's topology; null without a GPU.
      type: int
    gpus:
      description: Number of GPUs that the kernel driver shows.
      type: int
    kernel:
      description: Kernel release.
      type: str
    engine:
      description: Version of the container engine, null without one.
      type: str
    image_present:
      description: Whether the image is on the host.
      type: bool
    image_digest:
      description: Digest of the image, its id where it has no digest.
      type: str
    free_bytes:
      description: Free space for traces.
      type: int
    leftovers:
      description: Runs of ours that are over and have left containers, processes or files here.
      type: list
      elements: str
    steps:
      description: Steps of this very run that exist here already, with the id of the container (empty without one).
      type: dict
    claimed:
      description: Whether the host is claimed for the run.
      type: bool
"""

import contextlib
import fcntl
import glob
import http.client
import json
import os
import platform
import socket
import stat
import struct
import time
from typing import Any
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aorta.automation.plugins.module_utils import _host

SIOCGIFADDR = 0x8915
STEP_STALE = _host.STALE_AFTER_SECONDS


class EngineConnection(http.client.HTTPConnection):
    """HTTP to the Docker engine over its Unix socket."""

    def __init__(self, path: str, timeout: int) -> None:
        super().__init__("localhost", timeout=timeout)
        self.socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.socket_path)


class Check:
    """Collects facts and problems of one host."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.problems: list[dict[str, str]] = []
        self.host: dict[str, Any] = {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "work_dir": params["work_dir"] or _host.default_work_dir(),
            "device_gids": [],
            "interface": None,
            "compute_units": None,
            "gpus": 0,
            "kernel": platform.release(),
            "python": platform.python_version(),
            "engine": None,
            "image_present": False,
            "image_digest": None,
            "free_bytes": None,
            "leftovers": [],
            "steps": {},
            "claimed": False,
        }

    def problem(self, check: str, message: str, remedy: str) -> None:
        self.problems.append({"check": check, "message": message, "remedy": remedy})

    def all(self) -> None:
        self.disk()
        self.benchmark()
        self.gpus()
        self.interface()
        self.socket_interfaces()
        self.processes()
        if self.params["runtime"] == "docker":
            self.devices()
            self.requests()
            self.engine()
        if self.host["steps"]:  # its own traces may be what fills the disk
            self.problems = [problem for problem in self.problems if problem["check"] != "disk"]
        self.claim()

    def disk(self) -> None:
        path = self.host["work_dir"]
        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        if not os.access(path, os.W_OK | os.X_OK):
            self.problem(
                "work_dir",
                "%s can't be written by uid %d" % (path, os.getuid()),
                "give the user the right, or set aorta_work_dir to a local directory that it may write",
            )
            return
        space = os.statvfs(path)
        self.host["free_bytes"] = space.f_bavail * space.f_frsize
        wanted = int(self.params["min_free_gb"] * 1e9)
        if self.host["free_bytes"] < wanted:
            self.problem(
                "disk",
                "%.1f GB free in %s, %.1f GB wanted for traces" % (self.host["free_bytes"] / 1e9, path, wanted / 1e9),
                "free some space, or set aorta_work_dir or aorta_min_free_gb",
            )

    def benchmark(self) -> None:
        path = self.params["benchmark_path"]
        if not path or (self.params["will_clone"] and not os.path.exists(path)):
            return
        if not os.path.isdir(path):
            self.problem(
                "benchmark_path",
                "%s is not a directory on this host" % path,
                "put the benchmark there, set aorta_path, or set aorta_auto_clone and aorta_clone_url",
            )
            return
        for name in self.params["required_files"]:
            full = name if os.path.isabs(name) else os.path.join(path, name)
            if not os.path.isfile(full):
                self.problem("benchmark_file", "%s does not exist" % full, "check the path, or update the checkout")

    def gpus(self) -> None:
        """GPUs as the KFD driver lists them: a node with SIMDs is a GPU (Linux amdkfd sysfs topology)."""
        for path in sorted(glob.glob("/sys/class/kfd/kfd/topology/nodes/*/properties")):
            try:
                with open(path) as stream:
                    values = dict(line.split() for line in stream if len(line.split()) == 2)
                simds, per_unit = int(values.get("simd_count", 0)), int(values.get("simd_per_cu", 0))
            except (OSError, ValueError):
                continue
            if simds and per_unit:
                self.host["gpus"] += 1
                self.host["compute_units"] = self.host["compute_units"] or simds // per_unit

    def interface(self) -> None:
        address = self.params["rendezvous_address"]
        if not address:
            return
        try:
            family, _kind, _proto, _name, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                local = probe.getsockname()[0]
        except OSError as exc:
            self.problem(
                "rendezvous",
                "no route to the rendezvous address %s: %s" % (address, exc),
                "set aorta_multi_node.master_addr (or vpc_ip of the first host) to an address all hosts reach",
            )
            return
        if family != socket.AF_INET:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _index, name in socket.if_nameindex():
                try:
                    request = struct.pack("256s", name[:15].encode())
                    found = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
                except OSError:
                    continue
                if found == local:
                    self.host["interface"] = name
                    return

    def socket_interfaces(self) -> None:
        present = [name for _index, name in socket.if_nameindex()]
        for variable, pattern in self.params["socket_interfaces"].items():
            if not any_matches(str(pattern), present, exact=variable.startswith("GLOO")):
                self.problem(
                    "interface",
                    "%s=%s fits no network interface of this host (%s)" % (variable, pattern, ", ".join(present)),
                    "correct it in aorta_environment, or leave it out: it follows from the rendezvous address",
                )

    def devices(self) -> None:
        gids: set[int] = set()
        for path in self.params["devices"]:
            source = path.split(":")[0]
            if not os.path.exists(source):
                self.problem(
                    "device",
                    "%s does not exist" % source,
                    "load the amdgpu driver, or list the devices of this host in aorta_docker.devices",
                )
                continue
            files = sorted(glob.glob(os.path.join(source, "renderD*"))) if os.path.isdir(source) else [source]
            if not files:
                self.problem("device", "%s holds no renderD* node" % source, "load the amdgpu driver")
            gids.update(os.stat(item).st_gid for item in files if stat.S_ISCHR(os.stat(item).st_mode))
        self.host["device_gids"] = sorted(gids)

    def requests(self) -> None:
        try:
            import requests  # noqa: F401
        except ImportError as exc:
            self.problem(
                "requests",
                "Python on this host lacks requests (%s), which the Docker modules need" % exc,
                "install python3-requests, or set ansible_python_interpreter to a Python that has it",
            )

    def call(self, path: str) -> tuple[int, Any]:
        connection = EngineConnection(self.socket_path(), self.params["engine_timeout"])
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(body.decode("utf-8", "replace") or "null")

    @staticmethod
    def socket_path() -> str:
        host = os.environ.get("DOCKER_HOST", "")
        return host[len("unix://") :] if host.startswith("unix://") else "/var/run/docker.sock"

    def engine(self) -> None:
        where = self.socket_path()
        try:
            _status, version = self.call("/version")
        except FileNotFoundError:
            self.problem("engine", "no Docker engine: %s does not exist" % where, "install and start Docker")
            return
        except PermissionError:
            self.problem(
                "engine",
                "uid %d may not use the Docker engine at %s" % (os.getuid(), where),
                "add the user to the group docker and log in anew, or use become",
            )
            return
        except socket.timeout:
            self.problem(
                "engine",
                "the Docker engine did not answer within %d s" % self.params["engine_timeout"],
                "look at it with `systemctl status docker` and `journalctl -u docker`; restart it",
            )
            return
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.problem("engine", "the Docker engine at %s does not answer: %s" % (where, exc), "start Docker")
            return
        self.host["engine"] = version.get("Version")
        try:
            self.image()
            self.containers()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.problem("engine", "the Docker engine broke off: %s" % exc, "look at its log")

    def image(self) -> None:
        name = self.params["image"]
        if not name:
            return
        status, found = self.call("/images/%s/json" % quote(name, safe=""))
        if status == 200:
            self.host["image_present"] = True
            self.host["image_digest"] = (found.get("RepoDigests") or [found.get("Id")])[0]
            return
        if self.params["pull"] == "never":
            self.problem(
                "image", "the image %s is not on this host" % name, "load it, or set aorta_docker.pull: missing"
            )
            return
        status, answer = self.call("/distribution/%s/json" % quote(name, safe=""))
        if status not in (200, 401):  # 401: the registry answers; the pull itself has the credentials
            self.problem(
                "image",
                "the image %s is not on this host and can't be pulled: %s" % (name, (answer or {}).get("message")),
                "check aorta_docker.image, the registry, and `docker login` on the host",
            )

    def containers(self) -> None:
        _status, found = self.call("/containers/json?all=1")
        for item in found:
            names = [name.lstrip("/") for name in item.get("Names") or []]
            labels = item.get("Labels") or {}
            owner = labels.get(_host.LABEL + ".run_id")
            wanted = [name for name in names if name in self.params["container_names"]]
            if owner is None:
                if wanted and not self.params["replace_foreign"]:
                    self.problem(
                        "container",
                        "a container named %s exists that is not ours (image %s, %s)"
                        % (wanted[0], item.get("Image"), item.get("Status")),
                        "remove or rename it, set aorta_docker.container_name, or set aorta_replace_foreign: true",
                    )
            elif owner == self.params["run_id"]:
                if labels.get(_host.LABEL + ".node_rank") == str(self.params["node_rank"]):
                    self.host["steps"][labels.get(_host.LABEL + ".step")] = item["Id"]
            elif item.get("State") in ("running", "paused"):
                age = _host.seconds_since(labels.get(_host.LABEL + ".heartbeat", ""), time.time())
                self.other_run(owner, "container %s" % ", ".join(names), age is not None and age <= STEP_STALE)
            else:
                self.other_run(owner, "container %s" % ", ".join(names), self.has_claim(owner))

    def processes(self) -> None:
        """Steps of the process runtime that other runs have left or still run."""
        if self.params["runtime"] != "process":
            return
        own = _host.node_dir_name(self.params["run_id"], self.params["node_rank"])
        for path in glob.glob(os.path.join(glob.escape(self.host["work_dir"]), "*", "steps", "*", _host.STATE_FILE)):
            node_dir, step = path.split(os.sep)[-4], path.split(os.sep)[-2]
            try:
                with open(path) as stream:
                    state = json.load(stream)
            except (OSError, ValueError):
                continue
            owner = _host.run_id_of(node_dir)
            if node_dir == own:
                self.host["steps"][step] = ""
            elif owner and owner != self.params["run_id"] and _host.is_alive(state):
                age = _host.seconds_since(os.path.join(os.path.dirname(path), _host.HEARTBEAT_FILE), time.time())
                self.other_run(owner, "process %d" % state["pid"], age is not None and age <= STEP_STALE)

    def other_run(self, owner: str, what: str, alive: bool) -> None:
        """Note another run of ours: in the way while it goes on, a leftover when it is over."""
        if not alive or owner in self.params["dead_runs"]:
            if owner not in self.host["leftovers"]:
                self.host["leftovers"].append(owner)
            return
        self.problem(
            "busy",
            "run %s is going on here (%s)" % (owner, what),
            "wait for it, or stop it with playbooks/teardown.yml -e aorta_run_id=%s" % owner,
        )

    def has_claim(self, owner: str) -> bool:
        """Whether a run has this host and was heard of lately."""
        if _host.claimed_by(self.host["work_dir"]) != owner:
            return False
        age = _host.last_sign_of_life(self.host["work_dir"], owner)
        return age is not None and age <= _host.CLAIM_STALE_AFTER_SECONDS

    def claim(self) -> None:
        """Take the host for this run, where it is free and nothing is wrong."""
        work_dir, run_id = self.host["work_dir"], self.params["run_id"]
        owner = _host.claimed_by(work_dir)
        if owner and owner != run_id and not any(problem["check"] == "busy" for problem in self.problems):
            self.other_run(owner, "it has claimed the host", self.has_claim(owner))
        if self.problems or not self.params["claim"]:
            return
        path = _host.claim_path(work_dir)
        node_dir = os.path.join(work_dir, _host.node_dir_name(run_id, self.params["node_rank"]))
        os.makedirs(node_dir, exist_ok=True)
        with open(os.path.join(node_dir, _host.HEARTBEAT_FILE), "w"):
            pass
        if owner and owner != run_id:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        try:
            os.symlink(run_id, path)
        except FileExistsError:
            owner = _host.claimed_by(work_dir)
            if owner != run_id:
                self.other_run(owner, "it has claimed the host this very moment", True)
                return
        self.host["claimed"] = True


def any_matches(pattern: str, present: list[str], exact: bool) -> bool:
    """Whether an interface fits: Gloo wants one name; NCCL takes a list of prefixes, C(=) exact names, C(^) all but."""
    if exact:
        return pattern in present
    invert, names = pattern.startswith("^"), pattern.lstrip("^")
    equal, names = names.startswith("="), names.lstrip("=")
    for name in present:
        if invert and name == "lo":
            continue
        hit = any(name == item if equal else name.startswith(item) for item in filter(None, names.split(",")))
        if hit != invert:
            return True
    return False


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": ["docker", "process"], "required": True},
            "run_id": {"type": "str", "required": True},
            "node_rank": {"type": "int", "default": 0},
            "claim": {"type": "bool", "default": False},
            "dead_runs": {"type": "list", "elements": "str", "default": []},
            "socket_interfaces": {"type": "dict", "default": {}},
            "work_dir": {"type": "path"},
            "min_free_gb": {"type": "float", "default": 0},
            "benchmark_path": {"type": "path"},
            "required_files": {"type": "list", "elements": "str", "default": []},
            "will_clone": {"type": "bool", "default": False},
            "image": {"type": "str"},
            "pull": {"type": "str", "choices": ["missing", "always", "never"], "default": "missing"},
            "container_names": {"type": "list", "elements": "str", "default": []},
            "replace_foreign": {"type": "bool", "default": False},
            "devices": {"type": "list", "elements": "str", "default": []},
            "rendezvous_address": {"type": "str"},
            "engine_timeout": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.params["claim"] = False
    check = Check(module.params)
    try:
        check.all()
    except OSError as exc:
        module.fail_json(msg="can't look at the host: %s" % exc)
    module.exit_json(changed=check.host["claimed"], problems=check.problems, host=check.host)


if __name__ == "__main__":
    main()
