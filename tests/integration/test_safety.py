# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets stay secret, hostile names stay names, and a container gets no more than it needs."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import ansible_runner
import pytest
from cluster_job import STANDIN, ClusterJob
from rig.cluster import Rig

ROOT = Path(__file__).resolve().parents[2]
SECRET = "s3cr3t-in-no-log"


@pytest.fixture(scope="module")
def two(rig_machine, tmp_path_factory):
    directory = tmp_path_factory.mktemp("safety")
    with Rig.up(directory, 2, owner=os.getpid(), binds=[f"{STANDIN}:/opt/aorta"]) as rig:
        yield rig


@pytest.fixture(scope="module")
def done(two, tmp_path_factory):
    """One run with a secret through ansible-runner; meanwhile command lines and containers are looked at."""
    tmp_path = tmp_path_factory.mktemp("done")
    job = ClusterJob(two, tmp_path)
    seen: dict[str, object] = {"commands": set(), "inspect": None}
    over = threading.Event()

    def look():
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):  # the hosts' processes are among them
                try:
                    seen["commands"].add(path.read_bytes())
                except OSError:
                    continue
            if not seen["inspect"]:
                found = two.exec("node1", "docker", "inspect", "aorta-benchmark").stdout
                seen["inspect"] = next(iter(json.loads(found or "[]")), None)
            time.sleep(0.1)

    (tmp_path / "runner").mkdir()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        run = ansible_runner.run(
            private_data_dir=str(tmp_path / "runner"),
            project_dir=str(ROOT),
            playbook="aorta.yml",
            inventory=two.environment()["ANSIBLE_INVENTORY"],
            envvars={**two.environment(), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            extravars={
                **job.settings,
                "aorta_output_dir": str(job.output),
                "aorta_keep_host_files": True,
                "aorta_training_overrides": {"training.max_steps": 6},
                "aorta_environment": {"HSA_MY_TOKEN": SECRET},
            },
            verbosity=3,
            quiet=True,
        )
    finally:
        over.set()
        thread.join()
    assert run.rc == 0, run.stdout.read()[-4000:]
    seen.update(job=job, runner=tmp_path / "runner", rig=two)
    return seen


def files_with(directory, needle, but=()):
    return [
        path for path in directory.rglob("*") if path.is_file() and path.name not in but and needle in path.read_bytes()
    ]


def test_the_secret_reaches_every_rank_and_no_record(done):
    for host in done["rig"].hosts:
        found = host.run("sh", "-c", "cat /var/tmp/aorta-automation-1234/*/output/rank_*_standin.json")
        assert found.count(f'"HSA_MY_TOKEN": "{SECRET}"') == 2
    # the one file is where the test itself has handed it over
    assert files_with(done["runner"], SECRET.encode(), but=["extravars"]) == []
    assert files_with(done["job"].run_dir, SECRET.encode()) == []
    assert len(list(done["runner"].glob("artifacts/*/job_events/*.json"))) > 50


def test_the_secret_is_on_no_command_line(done):
    commands = done["commands"]
    assert any(b"train.py" in command for command in commands)
    assert [command for command in commands if SECRET.encode() in command] == []


def test_the_container_gets_what_the_documents_say_and_no_more(done):
    inspect = done["inspect"]
    config, host = inspect["Config"], inspect["HostConfig"]
    assert config["User"] == "1234:1234"
    assert host["Privileged"] is False
    assert host["CapAdd"] == ["SYS_PTRACE"]
    # the engine itself adds label=disable to whatever has the IPC namespace of its host
    assert set(host["SecurityOpt"]) - {"label=disable"} == {"seccomp=unconfined"}
    assert sorted(device["PathOnHost"] for device in host["Devices"]) == ["/dev/dri", "/dev/kfd"]
    assert all(group.isdigit() for group in host["GroupAdd"])
    assert sorted((limit["Name"], limit["Hard"]) for limit in host["Ulimits"]) == [("memlock", -1), ("stack", 67108864)]
    assert sorted(bind.split(":")[1] for bind in host["Binds"]) == ["/aorta-run", "/mnt"]
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("host", "host", "", "")
    assert (host["PortBindings"] or {}) == {}
    assert host["RestartPolicy"]["Name"] == "no"


def local(tmp_path, hosts, **settings):
    """The job without containers on this machine, where a name that becomes a command would leave a file."""
    inventory = tmp_path / "hosts.yml"
    names = {name: {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"} for name in hosts}
    inventory.write_text(json.dumps({"aorta": {"hosts": names}}))
    rig = type("NoRig", (), {"environment": lambda self: {}, "hosts": []})()
    job = ClusterJob(rig, tmp_path)
    settings = {
        "aorta_runtime": "process",
        "aorta_multi_node": {"master_addr": "127.0.0.1", "torchrun_command": ["python3", f"{STANDIN}/torchrun"]},
        "aorta_path": str(STANDIN),
        "aorta_gpus_per_node": 1,
        "aorta_training_overrides": {"training.max_steps": 4},
        "aorta_work_dir": str(tmp_path / "work"),
        **settings,
    }
    job.settings.pop("ansible_user")
    job.environment["ANSIBLE_INVENTORY_ENABLED"] = "yaml"
    return job, job.run("-i", inventory, **settings)


def test_hostile_names_of_hosts_and_paths(tmp_path):
    marker = tmp_path / "pwned"
    odd = tmp_path / """it's a "path" $(touch pwned) ; touch pwned"""
    odd.mkdir()
    (odd / "source").symlink_to(STANDIN)
    hosts = [f"../../../up; touch {marker}", f"$(touch {marker})`touch {marker}`' \"x"]
    _job, process = local(tmp_path, hosts, aorta_work_dir=str(odd / "work"), aorta_path=str(odd / "source"))
    assert process.popen.returncode == 0, process.text
    assert not marker.exists()
    assert list(tmp_path.rglob("pwned")) == []
    run_dir = (tmp_path / "out" / "latest").resolve()
    logs = sorted(path.name for path in (run_dir / "logs").iterdir() if not path.name.startswith("."))
    assert len(logs) == 2
    assert json.loads((run_dir / "traces" / "nodes.json").read_text()) == {str(i): name for i, name in enumerate(hosts)}
    assert not (odd / "work").exists()


@pytest.mark.slow
def test_hostile_names_of_traces(two, tmp_path):
    """A link that leads out is not followed, a name that is a command is a name; nothing leaves the run directory."""
    script = (
        'd=/aorta-run/output/torch_profiler/rank0; mkdir -p "$d"; ln -s /etc/passwd "$d/link.json"; '
        'ln -s /etc "$d/etc.json"; exec python3 /mnt/torchrun "$@"'
    )
    job = ClusterJob(two, tmp_path)
    try:
        process = job.run(
            aorta_training_overrides={"training.max_steps": 4},
            aorta_multi_node={"torchrun_command": ["sh", "-c", script, "sh"]},
        )
        assert process.popen.returncode == 0, process.text
        files = [path.relative_to(job.run_dir / "traces").as_posix() for path in (job.run_dir / "traces").rglob("*")]
        assert not any("link" in name or "etc" in name for name in files), files
        assert job.read("manifest.json")["failure"] is None
    finally:
        job.close()
