# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rig itself: its hosts are separate machines as far as ssh and Docker can tell, and nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import RigError, runc_clamp
from rig.cluster import RUN, Rig
from rig.prepare import CACHE, IMAGE

PLAY = """
- hosts: aorta
  gather_facts: false
  tasks:
    - community.docker.docker_container:
        name: same-name
        image: {image}
        command: [sh, -c, 'echo "hello from $NAME"; cat /dev/kfd; ulimit -s; touch /volume/made; exit 3']
        labels: {{org.example.run: "1"}}
        env: {{NAME: "{{{{ inventory_hostname }}}}"}}
        devices: [/dev/kfd, /dev/dri]
        ulimits: ["memlock:-1:-1", "stack:67108864:67108864"]
        capabilities: [SYS_PTRACE]
        groups: ["{{{{ render_gid }}}}"]
        user: "1234:1234"
        network_mode: host
        ipc_mode: host
        shm_size: 1g
        volumes: ["/data:/volume"]
"""


def remains(number: int) -> list[str]:
    """Everything on this machine that belongs to the rig of this number."""
    found = [str(path) for path in (RUN / str(number), CACHE / "live" / str(number)) if path.exists()]
    found += [
        name for name in os.listdir("/sys/class/net") if name == f"arig{number}" or name.startswith(f"arig{number}n")
    ]
    found += [top for top, _, _ in os.walk("/sys/fs/cgroup") if top.endswith(f"/aorta-rig-{number}")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "\nState:\tZ" in (process / "status").read_text():
                continue
            for file, marks in (
                ("cgroup", [f"/aorta-rig-{number}/"]),
                ("mountinfo", [f"{RUN}/{number}/", f"{CACHE}/live/{number}/"]),
                ("cmdline", [f"{RUN}/{number}/cp/"]),
            ):
                if any(mark in (process / file).read_text(errors="replace") for mark in marks):
                    found.append(f"process {process.name}: {file}")
        except OSError:
            continue
    return found


def port_22(address: str, timeout: float = 1.0) -> str:
    """What a connection to sshd meets: ``answers``, ``refused`` or ``silent`` (no answer within seconds)."""
    try:
        with socket.create_connection((address, 22), timeout=timeout) as connection:
            return "answers" if connection.recv(4) == b"SSH-" else "closed"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"


def test_hosts_answer_ansible_as_both_users(rig: Rig, run_ansible: Callable, tmp_path: Path) -> None:
    for user in ("root", "bench"):
        path = rig.write_inventory(tmp_path / f"{user}.yml", user=user)
        done = run_ansible("ansible", "aorta", "-i", path, "-m", "command", "-a", "id -un")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("| CHANGED") == len(rig.hosts)
        assert done.stdout.splitlines().count(user) == len(rig.hosts)


def test_a_host_is_a_machine_of_its_own(rig: Rig) -> None:
    first, second = rig.hosts[:2]
    assert [host.run("hostname").strip() for host in rig.hosts] == [f"node{i}" for i in range(len(rig.hosts))]
    first.run("touch", "/root/mine", "/tmp/mine", "/etc/mine", "/usr/bin/mine")
    for path in ("/root/mine", "/tmp/mine", "/etc/mine", "/usr/bin/mine"):
        assert first.path(path).exists()
        assert not second.path(path).exists()
        assert not Path(path).exists()
    # nothing of this checkout, of this test's files or of the machine's processes is seen there
    assert not first.path(str(Path(__file__).resolve())).exists()
    assert not first.path(rig.directory).exists()
    assert first.run("ps", "-e", "-o", "comm=").split()[0] == "tini"
    assert str(os.getpid()) not in first.run("ps", "-e", "-o", "pid=").split()
    command = rig.ssh(first, "hostname; ls /dev/kfd /dev/dri/renderD128")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["node0", "/dev/dri/renderD128", "/dev/kfd"], done.stderr


@pytest.mark.parametrize("user", ["root", "bench"])
def test_containers_of_one_name_on_every_host(rig: Rig, run_ansible: Callable, tmp_path: Path, user: str) -> None:
    play = tmp_path / "play.yml"
    play.write_text(PLAY.format(image=IMAGE))
    render = rig.hosts[0].run("stat", "-c", "%g", "/dev/kfd").strip()
    inventory = rig.write_inventory(tmp_path / "inventory.yml", user=user)
    done = run_ansible("ansible-playbook", play, "-i", inventory, "-e", f"render_gid={render}")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        for host in rig.hosts:
            host.run("docker", "wait", "same-name")
            state = json.loads(host.run("docker", "inspect", "same-name"))[0]
            assert state["State"]["ExitCode"] == 3
            assert state["Config"]["Labels"]["org.example.run"] == "1"
            assert {limit["Name"]: limit["Hard"] for limit in state["HostConfig"]["Ulimits"]}["memlock"] == -1
            assert host.run("docker", "logs", "same-name").splitlines() == [f"hello from {host.name}", "65536"]
            assert host.path("/data/made").exists()
            assert host.path("/data/made").stat().st_uid == 1234
        rig.hosts[0].run("docker", "rename", "same-name", "other")
        assert rig.hosts[1].run("docker", "ps", "-a", "--format", "{{.Names}}").split() == ["same-name"]
    finally:
        for host in rig.hosts:
            host.run("sh", "-c", "docker rm -f $(docker ps -aq); rm -f /data/made")


def test_exec_and_privileged_containers_work(rig: Rig) -> None:
    host = rig.hosts[0]
    host.run("docker", "run", "-d", "--name", "box", "--privileged", "--ulimit", "nofile=1048576", IMAGE, "sleep", "99")
    try:
        assert host.run("docker", "exec", "box", "cat", "/proc/1/comm").strip() == "sleep"
    finally:
        host.run("docker", "rm", "-f", "box")


def test_faults(fresh_rig: Rig) -> None:
    rig, (first, second) = fresh_rig, fresh_rig.hosts[:2]

    rig.sshd_stop(first)
    assert port_22(first.address) == "refused"
    rig.sshd_start(first)
    assert port_22(first.address) == "answers"

    rig.link_down(first)
    assert port_22(first.address) == "silent"
    assert port_22(second.address) == "answers"
    rig.link_up(first)
    assert port_22(first.address, timeout=10) == "answers"

    rig.freeze(first)
    assert port_22(first.address) == "silent"
    rig.thaw(first)
    assert port_22(first.address, timeout=10) == "answers"

    probe = "import socket; socket.create_connection(('{}', 22), timeout=2)"
    rig.partition(first, second)
    for host, other in ((first, second), (second, first)):
        with pytest.raises(RigError, match="timed out"):
            host.run("python3", "-c", probe.format(other.address))
        assert port_22(host.address) == "answers"
    rig.heal()
    first.run("python3", "-c", probe.format(second.address))

    rig.slow_link(first, "8mbit")
    began = time.monotonic()
    receive = subprocess.run(rig.ssh(first, "head -c 2000000 /dev/zero"), capture_output=True, check=True)
    assert len(receive.stdout) == 2_000_000
    assert time.monotonic() - began > 1.5  # 16 Mbit
    rig.slow_link(first)

    before = os.statvfs(first.path("/data")).f_bavail
    rig.disk_fill(first, "/data")
    with pytest.raises(RigError, match="No space left"):
        first.run("cp", "/etc/passwd", "/data/file")
    rig.disk_free(first, "/data")
    assert os.statvfs(first.path("/data")).f_bavail >= before - 1
    with pytest.raises(RigError, match="disk of the machine"):
        rig.disk_fill(first, "/var/lib/docker")


def test_engine_faults(fresh_rig: Rig) -> None:
    rig, host = fresh_rig, fresh_rig.hosts[0]
    host.run("docker", "run", "-d", "--name", "box", "--stop-signal", "KILL", IMAGE, "sleep", "99")

    rig.docker_pause(host)
    with pytest.raises(RigError, match="124"):
        host.run("timeout", "1", "docker", "ps")
    rig.docker_resume(host)
    assert "box" in host.run("docker", "ps", "--format", "{{.Names}}").split()

    rig.docker_kill(host)
    with pytest.raises(RigError, match="connect"):
        host.run("docker", "ps")
    assert host.pids_named("sleep")[1:]  # besides the host's own: the container lives on
    rig.docker_start(host)
    host.run("docker", "start", "box")
    rig.docker_stop(host)
    assert len(host.pids_named("sleep")) == 1  # a clean stop ends the containers
    rig.docker_start(host)
    assert host.run("docker", "inspect", "-f", "{{.State.ExitCode}}", "box").strip() == "137"

    with pytest.raises(RigError, match="is running"):
        rig.docker_start(host)


def test_power_off_and_reset(fresh_rig: Rig) -> None:
    rig, host = fresh_rig, fresh_rig.hosts[0]
    host.run("touch", "/root/mine")
    host.run("docker", "run", "-d", "--name", "box", IMAGE, "sleep", "99")
    rig.kill_host(host)
    assert not host.pids()
    assert port_22(host.address) == "silent"
    rig.start(host)
    assert port_22(host.address) == "answers"
    assert host.run("docker", "ps", "-a", "--format", "{{.Names}}").split() == ["box"]  # the store outlives it
    rig.reset(host)
    assert host.run("docker", "ps", "-a", "--format", "{{.Names}}").split() == []
    assert not host.path("/root/mine").exists()
    assert IMAGE in host.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split()


def test_up_refuses_what_is_up(rig: Rig) -> None:
    with pytest.raises(RigError, match="a rig is up in"):
        Rig.up(rig.directory)
    with pytest.raises(RigError, match="in use"):
        Rig.up(Path(rig.directory, "other"), number=rig.number)
    assert all(host.up for host in rig.hosts)


def test_down_leaves_nothing(rig: Rig, make_rig: Callable[..., Rig], run_ansible: Callable, tmp_path: Path) -> None:
    other = make_rig(2)
    number = other.number
    assert number != rig.number
    path = other.write_inventory(tmp_path / "inventory.yml")
    assert run_ansible("ansible", "aorta", "-i", path, "-m", "ping", rig=other).returncode == 0
    other.hosts[0].run("docker", "run", "-d", "--name", "box", IMAGE, "sleep", "99")
    other.freeze("node1")
    kinds = "\n".join(remains(number))
    for kind in ("/run/", "live/", "n0", "aorta-rig-", "cgroup", "mountinfo", "cmdline"):
        assert kind in kinds  # the listing does see a rig

    other.down()
    assert remains(number) == []
    other.down()
    assert remains(rig.number)
    assert all(host.up for host in rig.hosts)


def test_a_dead_owner_s_rig_is_removed_by_the_next_up(rig_machine: None, make_rig: Callable[..., Rig]) -> None:
    with subprocess.Popen(["sleep", "99"]) as owner:
        abandoned = make_rig(1, owner=owner.pid)
        assert not abandoned.dead
        owner.send_signal(signal.SIGKILL)
    assert abandoned.dead
    make_rig(1, number=None if abandoned.number > 100 else 100 + abandoned.number)
    assert remains(abandoned.number) == []


def test_the_runtime_asks_only_for_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runc_clamp.resource, "getrlimit", lambda _: (1024, 8192))
    process = {
        "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": 2**64 - 1, "hard": 2**64 - 1}],
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"]},
        "oomScoreAdj": -1000,
    }
    runc_clamp.clamp(process)
    assert process["rlimits"] == [{"type": "RLIMIT_MEMLOCK", "soft": 8192, "hard": 8192}]
    assert process["capabilities"] == {"bounding": ["CAP_CHOWN"]}
    assert process["oomScoreAdj"] == int(Path("/proc/self/oom_score_adj").read_text())
