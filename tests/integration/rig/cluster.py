# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rig: N hosts on this machine, each a process tree with namespaces, cgroups, an sshd and a Docker engine of its own.

State is kept in ``/run/aorta-rig/<subnet number>/rig.json``, so any process can find, use and remove a rig.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import RigError
from .prepare import CACHE, check, group_id, remove_tree, seed, store

RUN = Path("/run/aorta-rig")
HERE = Path(__file__).resolve().parent
# Top-level directories of the machine that a host may see; every other one is hidden from it.
VISIBLE = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var"}
HIDDEN_BELOW = ("usr/local", "etc/ssh", "etc/docker", "etc/apt", "var/tmp", "var/cache", "var/log", "var/spool")
CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
_children: list[subprocess.Popen] = []  # of this process; each has to be reaped once it ended


@dataclass
class Host:
    """One host; ``pid`` is its pid 1 as the machine sees it, ``cgroups`` its directory in each hierarchy."""

    name: str
    address: str
    veth: str
    state: str
    docker: str
    cgroups: list[str]
    pid: int = 0

    @property
    def up(self) -> bool:
        """Whether any process of the host exists."""
        return bool(self.pids())

    def pids(self) -> set[int]:
        """All processes of the host, containers included."""
        found: set[int] = set()
        for top in self.cgroups:
            for directory, _, _ in os.walk(top):
                with contextlib.suppress(OSError):
                    found.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
        return found

    def pids_named(self, name: str) -> list[int]:
        """The host's own processes of that command name (those in containers may be among them)."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
        return found

    def path(self, inside: str) -> Path:
        """A path of the host, usable from the machine while the host is up."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def popen(self, command: Sequence[str], **options: object) -> subprocess.Popen:
        """Start a command as root on the host, without ssh; options as for ``subprocess.Popen``."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        return self.spawn([*enter, *command], CLEAN_ENV, **options)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], **options: object) -> subprocess.Popen:
        """Start a command of the machine in the host's cgroups.

        Whatever belongs to a host has to be there, or freezing, accounting and ``down`` would miss it.
        """
        inner = [f"{cgroup}/init" for cgroup in self.cgroups]  # version 2 wants processes in leaves
        targets = [new if Path(new).exists() else old for new, old in zip(inner, self.cgroups, strict=True)]
        join = 'for c in $JOIN; do echo 0 >"$c/cgroup.procs" || exit; done; unset JOIN; exec "$@"'
        shell = ["sh", "-c", join, "sh", *command]
        process = subprocess.Popen(shell, env={**environment, "JOIN": " ".join(targets)}, cwd="/", **options)  # type: ignore[call-overload]
        _children.append(process)
        return process

    def run(self, *command: str, check: bool = True, stdin: object = subprocess.DEVNULL) -> str:
        """Run a command as root on the host, without ssh, and return its output (stdout and stderr together)."""
        with self.popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            output = process.communicate()[0]
        if check and process.returncode:
            raise RigError(f"{self.name}: {shlex.join(command)} ended with {process.returncode}: {output.strip()}")
        return output


@dataclass
class Rig:
    """A running rig; make one with ``Rig.up``, find one with ``Rig.load``."""

    number: int
    directory: str
    user: str
    owner: list[int] | None
    controllers: list[str]
    disk: str = "1g"
    data: str = "256m"
    binds: list[str] = field(default_factory=list)
    starter: list[int] = field(default_factory=lambda: [os.getpid(), _start_time(os.getpid())])
    hosts: list[Host] = field(default_factory=list)

    # ------------------------------------------------------------------ life

    @classmethod
    def up(
        cls,
        directory: str | Path,
        hosts: int = 2,
        *,
        user: str = "root",
        number: int | None = None,
        owner: int | None = None,
        disk: str = "1g",
        data: str = "256m",
        binds: Sequence[str] = (),
        with_image: bool = True,
    ) -> Rig:
        """Start a rig and wait until each host's sshd and Docker engine answer.

        Args:
            directory: receives inventory.yml, cluster.json, env.sh, keys and known_hosts; no white space in it.
            hosts: their number, 1 to 200.
            user: the ssh user of the inventory, ``root`` or ``bench`` (uid 1234, member of docker, render, video).
            number: the network is 10.203.<number>.0/24; the first free one by default.
            owner: a pid; when that process is gone, the next ``up`` of any rig removes this one.
            disk, data: sizes of each host's root file system and of /data, as mount(8) takes them.
            binds: ``SOURCE:TARGET[:rw]`` directories of the machine to be seen on every host, read-only by default.
            with_image: start with ``prepare.IMAGE`` in each engine.

        Raises:
            RigError: with one line, when the machine cannot do it, or a rig is up in that directory.
        """
        directory = Path(directory).resolve()
        reason = check(with_image)
        if reason:
            raise RigError(reason)
        if not 1 <= hosts <= 200:
            raise RigError(f"hosts: 1 to 200, not {hosts}")
        for text in (str(directory), *binds):
            if len(text.split()) != 1:
                raise RigError(f"{text!r}: no white space allowed")
        with _lock():
            for other in cls.all():
                if other.dead:
                    other._remove()
                elif Path(other.directory) == directory:
                    raise RigError(f"a rig is up in {directory}; take it down first")
            for path in RUN.glob("[0-9]*"):
                if not (path / "rig.json").exists():  # whoever reserved it was killed at once
                    remove_tree(path)
            number = _reserve(number)
            rig = cls(
                number=number,
                directory=str(directory),
                user=user,
                owner=[owner, _start_time(owner)] if owner else None,
                controllers=[name for name, _ in _hierarchies()],
                disk=disk,
                data=data,
                binds=list(binds),
            )
            tops = [path / f"aorta-rig-{number}" for _, path in _hierarchies()]
            for index in range(hosts):
                name = f"node{index}"
                rig.hosts.append(
                    Host(
                        name=name,
                        address=f"10.203.{number}.{10 + index}",
                        veth=f"arig{number}n{index}",
                        state=str(rig.state / name),
                        docker=str(CACHE / "live" / str(number) / name),
                        cgroups=[str(top / name) for top in tops],
                    )
                )
            rig._save()
        try:
            rig._network()
            rig._files()
            for host in rig.hosts:
                seed(Path(host.state) / "seed", host.name, {h.name: h.address for h in rig.hosts}, directory)
                store(Path(host.docker), with_image)
            rig.start(*rig.hosts)
            rig._check_bridge()
        except BaseException:
            rig.down()
            raise
        return rig

    @classmethod
    def load(cls, directory: str | Path) -> Rig:
        """The rig that was started with this directory; RigError when none is up there."""
        directory = Path(directory).resolve()
        for rig in cls.all():
            if Path(rig.directory) == directory:
                return rig
        raise RigError(f"no rig is up in {directory}")

    @classmethod
    def all(cls) -> list[Rig]:
        """Every rig of this machine."""
        found = []
        for path in sorted(RUN.glob("*/rig.json")):
            try:
                values = json.loads(path.read_text())
            except FileNotFoundError:  # removed this very moment
                continue
            values["hosts"] = [Host(**host) for host in values["hosts"]]
            found.append(cls(**values))
        return found

    @property
    def dead(self) -> bool:
        """Whether its owner is gone; without an owner, whether all of its hosts are and nobody is starting them."""
        if self.owner:
            return _start_time(self.owner[0]) != self.owner[1]
        return _start_time(self.starter[0]) != self.starter[1] and not any(host.up for host in self.hosts)

    @property
    def state(self) -> Path:
        return RUN / str(self.number)

    @property
    def bridge(self) -> str:
        return f"arig{self.number}"

    @property
    def gateway(self) -> str:
        """The controller's address on the rig's network."""
        return f"10.203.{self.number}.1"

    def host(self, name: str | Host) -> Host:
        if isinstance(name, Host):
            return name
        for host in self.hosts:
            if host.name == name:
                return host
        raise RigError(f"no host {name!r}; there are {', '.join(h.name for h in self.hosts)}")

    def start(self, *names: str | Host, timeout: float = 60) -> None:
        """Boot hosts that are not up (with an empty root, their Docker store kept) and wait until they answer."""
        hosts = [self.host(name) for name in names]
        waiting = [(host, self._spawn(host)) for host in hosts]
        for host, process in waiting:
            assert process.stdin and process.stdout
            text = process.stdout.readline()
            if not text.strip():
                raise RigError(f"{host.name} did not start: {process.communicate()[1] or self._log(host)}")
            host.pid = int(text)
            if self.controllers == ["cgroup2"]:
                _prepare_v2(host)
            # The same hardware address after a reboot, or ARP entries of others would be wrong for half a minute.
            mac = "02:a0:" + ":".join(f"{int(part):02x}" for part in host.address.split("."))
            _ip(f"link add {host.veth} type veth peer name eth0 address {mac} netns {host.pid}")
            _ip(f"link set {host.veth} master {self.bridge} up")
            process.stdin.write("go\n")
            process.stdin.close()
            process.stdout.close()
            assert process.stderr
            process.stderr.close()
        self._save()
        deadline = time.monotonic() + timeout
        for host in hosts:
            for answers in (self._ssh_answers, self._docker_answers):
                while not answers(host):
                    if not host.up:
                        raise RigError(f"{host.name} ended while starting: {self._log(host)}")
                    if time.monotonic() > deadline:
                        raise RigError(f"{host.name}: {answers.__name__[1:]} not within {timeout} s: {self._log(host)}")
                    time.sleep(0.02)

    def exec(self, name: str | Host, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as root on a host, without ssh; the exit status is the caller's to judge."""
        pipe = subprocess.PIPE
        with self.host(name).popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def reset(self, *names: str | Host) -> None:
        """Power-cycle hosts (all by default) with clean disks: no fault, container or file of before is left."""
        hosts = [self.host(name) for name in names] or self.hosts
        self._close_masters()
        for host in hosts:
            self.kill_host(host)
            store(Path(host.docker), True)
        self.start(*hosts)

    def down(self) -> None:
        """Remove everything of the rig except ``directory``; harmless when it is gone already."""
        with _lock():
            self._remove()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def environment(self) -> dict[str, str]:
        """Environment variables for Ansible on the controller."""
        return {
            "AORTA_RIG_DIR": self.directory,
            "ANSIBLE_INVENTORY": f"{self.directory}/inventory.yml",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.state / "cp"),  # a short path: it names unix sockets
            "ANSIBLE_SSH_COMMON_ARGS": self.ssh_options,
        }

    @property
    def ssh_options(self) -> str:
        return f"-o UserKnownHostsFile={self.directory}/known_hosts -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"

    def ssh(self, name: str | Host, *command: str, user: str | None = None) -> list[str]:
        """The argument list of an ssh call, for subprocess; without ControlPersist."""
        where = f"{user or self.user}@{self.host(name).address}"
        key = f"{self.directory}/id_ed25519"
        return ["ssh", "-F", "none", "-i", key, *self.ssh_options.split(), "-o", "BatchMode=yes", where, *command]

    def write_inventory(self, path: str | Path, user: str | None = None, names: Sequence[str] | None = None) -> Path:
        """Write an Ansible inventory of these hosts (all by default) for this ssh user and return its path."""
        lines = ["---", "aorta:", "  hosts:"]
        for host in self.hosts:
            if names is None or host.name in names:
                lines += [f"    {host.name}:", f"      ansible_host: {host.address}", f"      vpc_ip: {host.address}"]
        lines += [
            "  vars:",
            f"    ansible_user: {user or self.user}",
            f"    ansible_ssh_private_key_file: {self.directory}/id_ed25519",
            f"    ansible_ssh_common_args: {self.ssh_options}",
            "    ansible_python_interpreter: /usr/bin/python3",
        ]
        Path(path).write_text("\n".join(lines) + "\n")
        return Path(path)

    # ------------------------------------------------------------------ faults

    def sshd_stop(self, name: str | Host) -> None:
        """Kill the ssh listener and all sessions."""
        host = self.host(name)
        _kill(host.pids_named("sshd"), signal.SIGKILL)
        self._wait(lambda: not host.pids_named("sshd"), f"{host.name}: end of sshd")

    def sshd_start(self, name: str | Host) -> None:
        host = self.host(name)
        host.run("/usr/sbin/sshd", "-E", "/var/log/sshd.log")
        self._wait(lambda: self._ssh_answers(host), f"{host.name}: sshd")

    def link_down(self, name: str | Host) -> None:
        """Unplug the host's cable; connections hang, nothing is refused."""
        _ip(f"link set {self.host(name).veth} down")

    def link_up(self, name: str | Host) -> None:
        _ip(f"link set {self.host(name).veth} up")

    def docker_stop(self, name: str | Host) -> None:
        """Stop the engine cleanly, which ends its containers, and wait for it."""
        host = self.host(name)
        _kill(host.pids_named("dockerd"), signal.SIGTERM)
        self._wait(lambda: not host.pids_named("dockerd"), f"{host.name}: end of dockerd")

    def docker_kill(self, name: str | Host) -> None:
        """Kill the engine; shims and containers stay alive, as they do after a crash."""
        host = self.host(name)
        _kill(host.pids_named("dockerd"), signal.SIGKILL)
        self._wait(lambda: not host.pids_named("dockerd"), f"{host.name}: end of dockerd")

    def docker_start(self, name: str | Host) -> None:
        host = self.host(name)
        if host.pids_named("dockerd"):
            raise RigError(f"{host.name}: the engine is running")
        host.path("/run/docker.pid").unlink(missing_ok=True)
        host.popen(
            ["sh", "-c", "exec dockerd >>/var/log/dockerd.log 2>&1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait(lambda: self._docker_answers(host), f"{host.name}: engine")

    def docker_pause(self, name: str | Host) -> None:
        """Stop the engine's process as a hang does: the socket accepts, nothing answers."""
        _kill(self.host(name).pids_named("dockerd"), signal.SIGSTOP)

    def docker_resume(self, name: str | Host) -> None:
        _kill(self.host(name).pids_named("dockerd"), signal.SIGCONT)

    def freeze(self, name: str | Host) -> None:
        """Stop every process of the host at once; its kernel still acknowledges TCP."""
        _freeze(self.host(name), True)

    def thaw(self, name: str | Host) -> None:
        _freeze(self.host(name), False)

    def partition(self, first: str | Host, second: str | Host) -> None:
        """Drop all packets between two hosts; the controller still reaches both."""
        for host, other in ((self.host(first), self.host(second)), (self.host(second), self.host(first))):
            host.run("iptables-legacy", "-I", "INPUT", "-s", other.address, "-j", "DROP")

    def heal(self) -> None:
        """Undo every partition."""
        for host in self.hosts:
            if host.up:
                host.run("iptables-legacy", "-F", "INPUT")

    def slow_link(self, name: str | Host, rate: str = "") -> None:
        """Limit the host's link, both ways, to a rate of tc(8) such as ``8mbit``; none: full speed again."""
        host = self.host(name)
        for run, device in ((_run, host.veth), (host.run, "eth0")):
            run("tc", "qdisc", "del", "dev", device, "root", check=False)
            if rate:
                run(*f"tc qdisc add dev {device} root tbf rate {rate} burst 32kbit latency 400ms".split())

    def disk_fill(self, name: str | Host, path: str = "/data", leave: int = 0) -> None:
        """Fill the file system that holds this directory of the host, all but ``leave`` bytes."""
        directory = self.host(name).path(path)
        if directory.stat().st_dev == CACHE.stat().st_dev:
            raise RigError(f"{path} lies on a disk of the machine; not filled")
        space = os.statvfs(directory)
        with open(directory / ".rig-fill", "wb") as stream:
            size = space.f_bavail * space.f_frsize - leave
            if size > 0:
                os.posix_fallocate(stream.fileno(), 0, size)

    def disk_free(self, name: str | Host, path: str = "/data") -> None:
        """Undo ``disk_fill``."""
        (self.host(name).path(path) / ".rig-fill").unlink(missing_ok=True)

    def kill_host(self, name: str | Host) -> None:
        """Power off: every process gone at once, the link too. ``start`` boots it again."""
        host = self.host(name)
        _end(host)
        _ip(f"link del {host.veth}", missing_ok=True)

    # ------------------------------------------------------------------ inside

    def _save(self) -> None:
        temporary = self.state / "rig.json.new"
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.rename(self.state / "rig.json")

    def _network(self) -> None:
        _ip(f"link add {self.bridge} type bridge")
        _ip(f"address add {self.gateway}/24 dev {self.bridge}")
        _ip(f"link set {self.bridge} up")

    def _check_bridge(self) -> None:
        """A machine with a firewall for an engine of its own may drop what its bridges forward."""
        first, last = self.hosts[0], self.hosts[-1]
        try:
            first.run("timeout", "5", "bash", "-c", f": </dev/tcp/{last.address}/22")
        except RigError as error:
            hint = "sysctl -w net.bridge.bridge-nf-call-iptables=0 lets bridged packets pass"
            raise RigError(f"the hosts do not reach each other; {hint}") from error

    def _files(self) -> None:
        directory = Path(self.directory)
        directory.mkdir(parents=True, exist_ok=True)
        (self.state / "cp").mkdir()
        for name in ("id_ed25519", "host_ed25519"):
            key = directory / name
            key.unlink(missing_ok=True)
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"aorta-rig-{self.number}", "-f", str(key))
        public = " ".join((directory / "host_ed25519.pub").read_text().split()[:2])
        (directory / "known_hosts").write_text("".join(f"{host.address} {public}\n" for host in self.hosts))
        self.write_inventory(directory / "inventory.yml")
        cluster = {
            "username": self.user,
            "priv_key_file": f"{directory}/id_ed25519",
            "head_node_dict": {"mgmt_ip": self.gateway},
            "env_vars": {},
            "node_dict": {host.address: {"bmc_ip": "NA", "vpc_ip": host.address} for host in self.hosts},
        }
        (directory / "cluster.json").write_text(json.dumps(cluster, indent=2) + "\n")
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment().items()]
        (directory / "env.sh").write_text("\n".join(lines) + "\n")

    def _spawn(self, host: Host) -> subprocess.Popen:
        if host.up:
            raise RigError(f"{host.name} is up")
        for cgroup in map(Path, host.cgroups):
            _make_cgroup(cgroup)
        visible = VISIBLE | {"proc", "sys", "dev", "run"}  # the last four are mounted over
        hidden = [entry for entry in os.listdir("/") if entry not in visible and len(entry.split()) == 1]
        hidden += [path for path in HIDDEN_BELOW if Path("/", path).exists()]
        environment = CLEAN_ENV | {
            "RIG_NAME": host.name,
            "RIG_STATE": host.state,
            "RIG_DOCKER": host.docker,
            "RIG_ADDRESS": host.address,
            "RIG_GATEWAY": self.gateway,
            "RIG_DISK": self.disk,
            "RIG_DATA": self.data,
            "RIG_BINDS": " ".join(self.binds),
            "RIG_HIDE": " ".join(hidden),
            "RIG_RENDER_GID": str(group_id("render")),
            "RIG_VIDEO_GID": str(group_id("video")),
            "RIG_CGROUP": "2" if self.controllers == ["cgroup2"] else "1",
            "RIG_CONTROLLERS": " ".join(self.controllers),
        }
        namespaces = ["--pid", "--net", "--mount", "--uts", "--ipc", "--cgroup", "--propagation", "private"]
        return host.spawn(
            ["unshare", "--fork", *namespaces, "bash", str(HERE / "init.sh")],
            environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _close_masters(self) -> None:
        for path in (self.state / "cp").glob("*"):
            subprocess.run(["ssh", "-F", "none", "-O", "exit", "-S", path, "rig"], capture_output=True, check=False)

    def _remove(self) -> None:
        self._close_masters()
        for host in self.hosts:
            _end(host)
        for host in self.hosts:
            _ip(f"link del {host.veth}", missing_ok=True)
        for cgroup in {str(Path(c).parent) for host in self.hosts for c in host.cgroups}:
            _remove_cgroup(Path(cgroup))
        _ip(f"link del {self.bridge}", missing_ok=True)
        remove_tree(CACHE / "live" / str(self.number))
        remove_tree(self.state)

    @staticmethod
    def _ssh_answers(host: Host) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host.address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    @staticmethod
    def _docker_answers(host: Host) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(host.path("/run/docker.sock")))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        return False

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise RigError(f"{what}: not within {timeout} s")
            time.sleep(0.02)

    def _log(self, host: Host) -> str:
        text = ""
        for path in (Path(host.state, "init.log"), host.path("/var/log/sshd.log"), host.path("/var/log/dockerd.log")):
            with contextlib.suppress(OSError):
                text += "".join(path.read_text(errors="replace").splitlines(True)[-8:])
        return text.strip() or "no log"


# ---------------------------------------------------------------------- the machine


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    RUN.mkdir(parents=True, exist_ok=True)
    with open(RUN / ".lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _reserve(number: int | None) -> int:
    """Take a subnet number: its state directory is the claim."""
    routes = _run("ip", "-4", "route")
    for candidate in [number] if number is not None else range(1, 255):
        if f"10.203.{candidate}." in routes or (RUN / str(candidate)).exists():
            continue
        (RUN / str(candidate)).mkdir()
        return candidate
    raise RigError(f"10.203.{'*' if number is None else number}.0/24 is in use by another rig or another network")


def _start_time(pid: int | None) -> int:
    """Start time of a process in clock ticks since boot, so that a reused pid is not mistaken for it; 0: no process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RigError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _ip(arguments: str, missing_ok: bool = False) -> None:
    command = arguments.split()
    # A network namespace dies some time after its last process; a veth of it may vanish at any moment.
    if missing_ok and not Path("/sys/class/net", command[2]).exists():
        return
    _run("ip", *command, check=not missing_ok)


def _kill(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _freeze(host: Host, frozen: bool) -> None:
    for cgroup in map(Path, host.cgroups):
        for file, values, report in (
            ("freezer.state", ("THAWED", "FROZEN"), "freezer.state"),  # v1
            ("cgroup.freeze", ("0", "1"), "cgroup.events"),  # v2
        ):
            if (cgroup / file).exists():
                (cgroup / file).write_text(values[frozen])
                wanted = values[frozen] if file == report else f"frozen {values[frozen]}"
                deadline = time.monotonic() + 10
                while wanted not in (cgroup / report).read_text():
                    if time.monotonic() > deadline:
                        raise RigError(f"{host.name}: not {wanted} within 10 s")
                    time.sleep(0.01)
                return
    raise RigError(f"{host.name}: no freezer here")


def _end(host: Host) -> None:
    """Kill every process of a host, wait until none is left, and remove its cgroups."""
    with contextlib.suppress(RigError, OSError):
        _freeze(host, False)
    deadline = time.monotonic() + 20
    while pids := host.pids():
        _kill(list(pids), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RigError(f"{host.name}: processes {sorted(pids)} do not end")
        time.sleep(0.02)
        _children[:] = [child for child in _children if child.poll() is None]
    for cgroup in host.cgroups:
        _remove_cgroup(Path(cgroup))


def _hierarchies() -> list[tuple[str, Path]]:
    """Controllers and own directory of each cgroup v1 hierarchy, or ``cgroup2`` alone on a v2 machine."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        root, mount_point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup":
            names = [name for name in own if name and set(name.split(",")) <= set(options.split(","))]
        elif kind == "cgroup2" and list(own) == [""]:
            names = [""]
        else:
            continue
        for name in names:
            inner = own[name].removeprefix(root if root != "/" else "")
            found.append((name or "cgroup2", Path(mount_point + "/" + inner.lstrip("/"))))
    if not found:
        raise RigError("no cgroup hierarchy is mounted")
    return sorted(found)


def _make_cgroup(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for directory in (path.parent, path):  # a new cpuset is empty and admits no process
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (directory.parent / file).exists():
                (directory / file).write_text((directory.parent / file).read_text())


def _prepare_v2(host: Host) -> None:
    """Version 2 wants processes in leaves only: make room for the controllers that containers need."""
    top = Path(host.cgroups[0])
    (top / "init").mkdir(exist_ok=True)
    for pid in (top / "cgroup.procs").read_text().split():
        (top / "init" / "cgroup.procs").write_text(pid)
    for directory in (top.parent, top):
        for controller in (directory / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # what is not delegated stays unavailable
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")


def _remove_cgroup(path: Path) -> None:
    deadline = time.monotonic() + 10
    for directory, _, _ in os.walk(path, topdown=False):
        while Path(directory).exists():
            try:
                os.rmdir(directory)
            except OSError as error:  # the last process may still be leaving
                if time.monotonic() > deadline:
                    raise RigError(f"{directory}: {error.strerror}") from error
                time.sleep(0.02)
