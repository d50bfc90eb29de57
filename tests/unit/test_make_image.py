# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The builder of the small image: what is in it, that it runs by itself, and how it gets into an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "playbooks" / "files"
BUILDER = FILES / "make_image.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="images are made on Linux")


def build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BUILDER), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.tar"
    done = build("--output", str(path), "--add", f"{FILES / 'standin'}:/mnt")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def root(archive: Path) -> Path:
    """The image, unpacked."""
    path = archive.parent / "root"
    path.mkdir()
    subprocess.run(["tar", "-xpf", str(archive), "-C", str(path)], check=True)
    (path / "dev" / "null").touch()  # the engine provides devices
    return path


def test_contents(archive: Path) -> None:
    assert archive.stat().st_size < 120_000_000
    with tarfile.open(archive) as image:
        entries = {entry.name: entry for entry in image.getmembers()}
    assert not [name for name in entries if name.startswith("/") or ".." in name.split("/")]
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, 0)}
    assert entries["tmp"].mode == 0o1777
    for name in ("bin", "lib"):
        assert (entries[name].issym(), entries[name].linkname) == (True, f"usr/{name}")
    for tool in (
        "sh",
        "bash",
        "sleep",
        "timeout",
        "cat",
        "tail",
        "head",
        "env",
        "id",
        "ls",
        "mkdir",
        "rm",
        "chown",
        "true",
    ):
        assert entries[f"usr/bin/{tool}"].isreg()
        assert entries[f"usr/bin/{tool}"].mode == 0o755
    assert "usr/bin/python3" in entries
    assert entries["usr/local/bin/torchrun"].mode == 0o755
    assert entries["mnt/scripts/launch_rocm.sh"].mode == 0o755
    parts = {part for name in entries for part in name.split("/")}
    assert not parts & {"__pycache__", "site-packages", "dist-packages", "idlelib"}
    assert not [name for name in entries if name.endswith((".pyc", ".a"))]


def test_the_same_files_give_the_same_archive(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    assert build("--output", str(again), "--add", f"{FILES / 'standin'}:/mnt").returncode == 0
    assert again.read_bytes() == archive.read_bytes()
    assert list(tmp_path.iterdir()) == [again]


def inside(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the unpacked image as its root directory and nothing of this machine's environment."""
    done = subprocess.run(
        ["chroot", str(root), *command],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("chroot is not permitted here")
    return done


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


@needs_root
def test_python_runs_with_all_its_modules(root: Path) -> None:
    code = (
        "import argparse, ctypes, gzip, hashlib, importlib, json, pathlib, pwd, socket, sys, sysconfig\n"
        "libraries = pathlib.Path(sysconfig.get_path('platstdlib')).glob('lib-dynload/*')\n"
        "names = {path.name.partition('.')[0] for path in libraries}\n"
        "[importlib.import_module(name) for name in sorted(names)]\n"
        "user, address = pwd.getpwuid(0).pw_name, socket.gethostbyname('localhost')\n"
        "print(json.dumps([sys.version.split()[0], len(names), user, address]))\n"
    )
    done = inside(root, "python3", "-c", code)
    assert done.returncode == 0, done.stderr
    version, modules, user, address = json.loads(done.stdout)
    assert version == sys.version.split()[0]
    assert modules > 20
    assert (user, address) == ("root", "127.0.0.1")


@needs_root
def test_the_stand_in_runs_in_it(root: Path) -> None:
    settings = "training.output_dir=/tmp/out training.max_steps=4 standin.step_seconds=0 standin.layers=2"
    train = f"train.py --config config/demo.json --override {settings}"
    done = inside(root, "sh", "-c", f"cd /mnt && torchrun --standalone --nproc_per_node 2 {train}")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        (trace,) = (root / "tmp" / "out" / "torch_profiler" / f"rank{rank}").iterdir()
        assert json.loads(trace.read_text())["distributedInfo"]["rank"] == rank


@needs_root
def test_shell_tools_run(root: Path) -> None:
    done = inside(
        root,
        "bash",
        "-c",
        "set -e; mkdir /tmp/a; echo hello | tail -n 1 > /tmp/a/b; timeout 5 cat /tmp/a/b; id -u; rm -r /tmp/a",
    )
    assert (done.returncode, done.stdout) == (0, "hello\n0\n"), done.stderr


# --- into an engine -----------------------------------------------------------------------------------------------


def fake_docker(directory: Path, *, version: str = "echo 27.0", load: str = "cat > $0.tar") -> str:
    path = directory / "docker"
    path.write_text(
        f"#!/bin/sh\ncase $1 in\nversion) {version};;\n"
        f'import) for word in "$@"; do echo "$word"; done > $0.args; {load};;\nesac\n'
    )
    path.chmod(0o755)
    return str(path)


def test_load_imports_the_archive_with_its_settings(archive: Path, tmp_path: Path) -> None:
    docker = fake_docker(tmp_path)
    done = build("--load", "some/tag:1", "--docker", docker, "--add", f"{FILES / 'standin'}:/mnt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("some/tag:1: ")
    assert Path(f"{docker}.tar").read_bytes() == archive.read_bytes()
    words = Path(f"{docker}.args").read_text().splitlines()
    assert words[0] == "import"
    assert words[-2:] == ["-", "some/tag:1"]
    changes = [words[number + 1] for number, word in enumerate(words) if word == "--change"]
    assert "WORKDIR /" in changes
    assert any(change.startswith("ENV PATH=/usr/local/sbin:/usr/local/bin:") for change in changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"version": "echo 'Cannot connect to the Docker daemon' >&2; exit 1"},
            "no container engine answers: Cannot connect",
        ),
        ({"load": "echo 'no space left' >&2; exit 1"}, "import some:tag failed: no space left"),
    ],
)
def test_an_engine_that_refuses_is_one_clear_line(tmp_path: Path, options: dict[str, str], message: str) -> None:
    done = build("--load", "some:tag", "--docker", fake_docker(tmp_path, **options))
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_docker(tmp_path: Path) -> None:
    done = build("--load", "some:tag", "--docker", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot run" in done.stderr


@pytest.mark.parametrize(
    ("item", "code", "message"),
    [
        ("x", 2, "expected SOURCE:PLACE"),
        ("/none:/x", 1, "/none: no such"),
        ("/etc/hostname:../x", 1, "no absolute path"),
    ],
)
def test_additions_are_checked(tmp_path: Path, item: str, code: int, message: str) -> None:
    done = build("--output", str(tmp_path / "a.tar"), "--add", item)
    assert done.returncode == code
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
