# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures that give integration tests a cluster of real hosts on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from rig import RigError  # noqa: E402
from rig.cluster import Rig  # noqa: E402
from rig.prepare import install, prepare  # noqa: E402

RunAnsible = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def rig_machine() -> None:
    """Skip, saying why, where there can be no rig; install what one needs otherwise."""
    try:
        install()
    except RigError as error:
        pytest.skip(f"no rig of real hosts: {error}")
    prepare()


@pytest.fixture(scope="session")
def rig(rig_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig of $AORTA_RIG_HOSTS hosts (2) for the whole session; with $AORTA_RIG_DIR the one that is up there."""
    if os.environ.get("AORTA_RIG_DIR"):
        yield Rig.load(os.environ["AORTA_RIG_DIR"])
        return
    hosts = int(os.environ.get("AORTA_RIG_HOSTS", "2"))
    with Rig.up(tmp_path_factory.mktemp("rig"), hosts, owner=os.getpid()) as made:
        yield made


@pytest.fixture
def fresh_rig(rig: Rig) -> Iterator[Rig]:
    """The session's rig, power-cycled with clean disks after the test: for tests that break hosts."""
    yield rig
    rig.reset()


@pytest.fixture
def make_rig(rig_machine: None, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """``make_rig(hosts, **options of Rig.up)``: rigs of the test's own, removed after it."""
    made: list[Rig] = []

    def make(hosts: int, **options: object) -> Rig:
        options = {"owner": os.getpid(), **options}
        made.append(Rig.up(tmp_path / f"rig{len(made)}", hosts, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.down()


@pytest.fixture(scope="session")
def inventory(rig: Rig) -> Path:
    """The inventory file of the session's rig."""
    return Path(rig.directory, "inventory.yml")


@pytest.fixture(scope="session")
def run_ansible(rig: Rig) -> RunAnsible:
    """``run_ansible("ansible-playbook", "x.yml", timeout=…, rig=…)``: a command of this Python's ansible, run in the
    checkout with the rig's environment variables and inventory; the exit status is the caller's to judge."""

    def run(program: str, *arguments: object, timeout: float = 120, rig: Rig = rig, **env: str) -> object:
        command = [str(Path(sys.executable).with_name(program)), *map(str, arguments)]
        environment = os.environ | rig.environment() | {"ANSIBLE_NOCOLOR": "1"} | env
        return subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run  # type: ignore[return-value]
