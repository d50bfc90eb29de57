# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, paths and process facts that the host-side modules and the follower agree on."""

from __future__ import annotations

import glob
import os
import socket
import time
from typing import Any

LABEL = "org.aorta.automation"
STATE_FILE = "state.json"
LOG_FILE = "log"
HEARTBEAT_FILE = "heartbeat"
# A step whose follower has not been heard of for this long has no controller any more.
STALE_AFTER_SECONDS = 90
# Between the steps (pulling an image, gathering traces) signs of life are rarer.
CLAIM_STALE_AFTER_SECONDS = 900


def default_work_dir() -> str:
    """Where the files of runs are on a host, unless the user says otherwise; one directory a user."""
    return "/var/tmp/aorta-automation-%d" % os.getuid()


def node_dir_name(run_id: str, node_rank: int) -> str:
    """Name of the directory that one node of a run has in the work directory."""
    return "%s-node%d" % (run_id, node_rank)


def run_id_of(node_dir: str) -> str:
    """The run that such a name belongs to, empty when it is no such name."""
    run_id, _separator, rank = os.path.basename(node_dir).rpartition("-node")
    return run_id if rank.isdigit() else ""


def process_start_time(pid: int) -> int | None:
    """Start time of process C(pid) in clock ticks since boot, None when there is none.

    Together with the pid it names one process for ever (pids are used again). A zombie counts as gone.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def is_alive(state: dict[str, Any]) -> bool:
    """Whether the process that a step's state file describes still runs."""
    pid = state.get("pid")
    return isinstance(pid, int) and pid > 0 and process_start_time(pid) == state.get("start_time")


def seconds_since(path: str, now: float) -> float | None:
    """Age of a file in seconds, None when it does not exist."""
    try:
        return now - os.stat(path).st_mtime
    except OSError:
        return None


def claim_path(work_dir: str) -> str:
    """The link that says which run has this host; with the host's name, for hosts may share the directory."""
    return os.path.join(work_dir, socket.gethostname() + ".claim")


def claimed_by(work_dir: str) -> str:
    """The run that has this host, empty when none has."""
    try:
        return os.readlink(claim_path(work_dir))
    except OSError:
        return ""


def last_sign_of_life(work_dir: str, run_id: str) -> float | None:
    """Seconds since anything was heard of a run on this host, None when it has no files here."""
    node = os.path.join(glob.escape(os.path.join(work_dir, run_id)) + "-node*")
    found = glob.glob(os.path.join(node, HEARTBEAT_FILE)) + glob.glob(os.path.join(node, "steps", "*", HEARTBEAT_FILE))
    ages = [age for age in (seconds_since(path, time.time()) for path in found) if age is not None]
    return min(ages, default=None)
