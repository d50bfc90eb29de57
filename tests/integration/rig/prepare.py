# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine needs for a rig, done once: Debian packages, and a Docker store that holds the test image."""

from __future__ import annotations

import fcntl
import functools
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import RigError

CACHE = Path(os.environ.get("AORTA_RIG_CACHE", "/var/cache/aorta-rig"))
IMAGE = "aorta-standin:local"
HERE = Path(__file__).resolve().parent
MAKE_IMAGE = HERE.parents[2] / "playbooks" / "files" / "make_image.py"
# What has to exist, and the package it comes from. Hosts see only the machine's /usr, /etc and /var, hence full paths.
NEEDED = {
    "/usr/sbin/dockerd": "docker.io",
    "/usr/sbin/runc": "runc",
    "/usr/bin/containerd": "containerd",
    "/usr/bin/tini": "tini",
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/ssh": "openssh-client",
    "/usr/sbin/iptables-legacy": "iptables",
    "/usr/bin/rsync": "rsync",
    "/usr/bin/python3": "python3",
    "/usr/lib/python3/dist-packages/requests": "python3-requests",
    "/usr/bin/ps": "procps",
    "/usr/bin/ip": "iproute2",
}
CAPABILITIES = {"NET_ADMIN": 12, "SYS_CHROOT": 18, "SYS_ADMIN": 21, "MKNOD": 27}
SYS_RESOURCE = 24
BENCH = 1234  # uid and gid of the unprivileged user
GROUPS = {"docker": 986, "render": 985, "video": 44}  # numbers for those that the machine does not have


def impossible() -> str | None:
    """One line: why there can be no rig on this machine, prepared or not; None where there can."""
    if sys.platform != "linux":
        return "a rig needs Linux"
    if os.geteuid() != 0:
        return "a rig needs root"
    lacking = [name for name, bit in CAPABILITIES.items() if not _capable(bit)]
    if lacking:
        return "a rig needs the capabilities " + ", ".join(lacking)
    separate = [path for path in ("/usr", "/etc", "/var") if os.path.ismount(path)]
    if separate:
        return f"a rig needs {', '.join(separate)} on the root file system (hosts are overlays of it)"
    if _missing() and not shutil.which("apt-get"):
        return f"a rig needs {', '.join(_missing())}, and there is no apt-get here to install it"
    if _file_system(CACHE) == "overlay":
        return f"a Docker store cannot live on overlayfs: set AORTA_RIG_CACHE to a directory elsewhere than {CACHE}"
    return None


def check(with_image: bool = True) -> str | None:
    """One line: why no rig can be started now; None when one can."""
    reason = impossible()
    if not reason and _missing():
        reason = f"missing: {', '.join(_missing())}; run `rig.py prepare` (it installs Debian packages)"
    if not reason and with_image and not _template().is_dir():
        reason = f"no store with the image {IMAGE} yet; run `rig.py prepare`"
    return reason


def install() -> list[str]:
    """Install the Debian packages that are missing and return their names; RigError with one line otherwise."""
    reason = impossible()
    if reason:
        raise RigError(reason)
    packages = sorted(set(_missing().values()))
    if packages:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with _no_services():
            _call("apt-get", "-q", "update", env=environment)
            _call("apt-get", "-qy", "--no-install-recommends", "install", *packages, env=environment)
    if _missing():
        raise RigError(f"still missing after the installation: {', '.join(_missing())}")
    return packages


def prepare() -> list[str]:
    """Install what is missing and make the template store; returns what was done. RigError with one line otherwise."""
    done = []
    if packages := install():
        done.append("installed " + " ".join(packages))
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _template().is_dir():
            _make_template()
            done.append(f"made the store with {IMAGE}")
    return done


def store(target: Path, with_image: bool) -> None:
    """Make a host's /var/lib/docker: empty, or holding the image, its layers hard-linked to the template's."""
    remove_tree(target)
    target.mkdir(parents=True)
    target.chmod(0o711)
    if with_image:
        template = _template()
        _call("cp", "-a", f"{template}/image", str(target))
        # Docker never writes a layer's files in place, and a removal removes a link.
        _call("cp", "-al", f"{template}/overlay2", str(target))
        for marker in target.glob("overlay2/*/committed"):
            marker.unlink()


def seed(target: Path, name: str, addresses: Mapping[str, str], keys: Path) -> None:
    """Write the files that make a host out of the machine's root: names, accounts, ssh, the engine's configuration."""
    for directory in ("etc/ssh", "etc/docker", "home/bench", "usr/local/sbin"):
        (target / directory).mkdir(parents=True, exist_ok=True)

    def write(path: str, text: str, mode: int = 0o644) -> None:
        (target / path).write_text(text)
        (target / path).chmod(mode)

    write("etc/hostname", f"{name}\n")
    write("etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{ip} {host}\n" for host, ip in addresses.items()))
    write("etc/resolv.conf", "")
    write("etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
    people = [user for user in pwd.getpwall() if user.pw_uid < 1000 or user.pw_name == "nobody"]
    lines = [f"{u.pw_name}:x:{u.pw_uid}:{u.pw_gid}:{u.pw_gecos}:{u.pw_dir}:{u.pw_shell}\n" for u in people]
    write("etc/passwd", "".join(lines) + f"bench:x:{BENCH}:{BENCH}::/home/bench:/bin/bash\n")
    # "*": no password, and unlike "!" no locked account, which sshd would refuse
    write("etc/shadow", "".join(f"{n}:*:19000:0:99999:7:::\n" for n in [u.pw_name for u in people] + ["bench"]), 0o640)
    groups = {g.gr_name: g.gr_gid for g in grp.getgrall() if g.gr_gid < 1000 or g.gr_name == "nogroup"}
    groups |= {group: group_id(group) for group in GROUPS} | {"bench": BENCH}
    write("etc/group", "".join(f"{n}:x:{gid}:{'bench' if n in GROUPS else ''}\n" for n, gid in groups.items()))
    write("home/bench/.bashrc", "")
    write(
        "etc/ssh/sshd_config",
        "HostKey /etc/ssh/ssh_host_ed25519_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\nUsePAM no\nUseDNS no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        "MaxStartups 100\nMaxSessions 100\nSubsystem sftp internal-sftp\n"
        "SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
    )
    write("etc/ssh/authorized_keys", (keys / "id_ed25519.pub").read_text())
    write("etc/ssh/ssh_host_ed25519_key", (keys / "host_ed25519").read_text(), 0o600)
    daemon = {
        "iptables": False,
        "ip6tables": False,
        "bridge": "none",
        "userland-proxy": False,
        "storage-driver": "overlay2",
        "shutdown-timeout": 3,
    }
    if _docker_major() < 25:  # its default of -500 needs a capability that root may lack
        daemon["oom-score-adjust"] = 0
    if not _capable(SYS_RESOURCE):
        wrapper = "usr/local/sbin/runc-clamp"
        write(wrapper, "#!/usr/bin/python3 -IS\n" + (HERE / "runc_clamp.py").read_text(), 0o755)
        daemon |= {"runtimes": {"clamp": {"path": f"/{wrapper}"}}, "default-runtime": "clamp"}
    write("etc/docker/daemon.json", json.dumps(daemon, indent=1))


def group_id(name: str) -> int:
    """The number that a group has on every host."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return GROUPS[name]


def remove_tree(path: Path) -> None:
    """Remove a directory tree; harmless when it does not exist."""
    _call("rm", "-rf", "--one-file-system", str(path))


# ---------------------------------------------------------------------- inside


def _call(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RigError(f"{' '.join(command)} ended with {done.returncode}: {last}")
    return done.stdout


def _missing() -> dict[str, str]:
    return {path: package for path, package in NEEDED.items() if not Path(path).exists()}


@functools.cache
def _capable(bit: int) -> bool:
    found = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(found and int(found[1], 16) >> bit & 1)


@functools.cache
def _docker_major() -> int:
    found = re.search(r"version (\d+)", _call("/usr/sbin/dockerd", "--version"))
    return int(found[1]) if found else 0


def _file_system(path: Path) -> str:
    while not path.exists():
        path = path.parent
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        if left.split()[2] == wanted:
            return right.split()[0]
    return "unknown"


@contextmanager
def _no_services(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Iterator[None]:
    """Keep package scripts from starting an sshd or an engine on the machine itself."""
    before = (policy.read_bytes(), policy.stat().st_mode) if policy.exists() else None
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
        if before:
            policy.write_bytes(before[0])
            policy.chmod(before[1])


def _template() -> Path:
    """Where the template store of the present image builder is, made or not."""
    return CACHE / "store" / _image_key()


@functools.cache
def _image_key() -> str:
    builder = MAKE_IMAGE.read_bytes() if MAKE_IMAGE.exists() else b"small"
    return hashlib.sha256(builder + os.uname().machine.encode()).hexdigest()[:16]


def _make_template() -> None:
    from .cluster import Rig

    target = _template()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = CACHE / "work"
    remove_tree(work)
    work.mkdir()
    try:
        archive = Path(work, "image.tar")
        if MAKE_IMAGE.exists():
            _call("/usr/bin/python3", str(MAKE_IMAGE), "--output", str(archive))
        else:
            _small_image(archive)
        with Rig.up(Path(work, "rig"), hosts=1, owner=os.getpid(), with_image=False) as rig:
            host = rig.hosts[0]
            with open(archive, "rb") as stream:
                host.run("docker", "import", "-", IMAGE, stdin=stream)
            rig.docker_stop(host)
            fresh = Path(work, "store")
            fresh.mkdir()
            for name in ("image", "overlay2"):
                Path(host.docker, name).rename(fresh / name)
        for older in target.parent.iterdir():
            remove_tree(older)
        fresh.rename(target)
    finally:
        remove_tree(work)


def _small_image(archive: Path) -> None:
    """A root file system of a few programs of this machine with their libraries."""
    programs = ["bash", "sh", "sleep", "cat", "ls", "id", "env", "echo", "mkdir", "touch", "true", "false", "python3"]
    paths = {"/usr/lib/python3.11", "/tmp"}
    for program in programs:
        path = shutil.which(program, path="/usr/bin:/bin")
        if path:
            paths |= {path, *re.findall(r"(/\S+) \(0x", _call("ldd", path))}
    with tempfile.TemporaryDirectory() as root:
        for name in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "tmp", "etc", "proc", "sys", "dev", "root"):
            Path(root, name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            Path(root, name).symlink_to(f"usr/{name}")
        for path in sorted(paths - {"/tmp"}):
            target = Path(root + os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, target)
        _call("tar", "-C", root, "-cf", str(archive), ".")
