# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: process_step
short_description: Start or stop a step as a detached process of the host
version_added: 0.1.0
description:
  - The runtime without a container engine. A step is a process group of its own that outlives the connection,
    with the same contract as a step container, that is, its output, its state and its exit code are on the host.
  - A supervisor process records the end of the step and enforces its deadline also when the controller is gone.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  state:
    description: V(started) launches the step, V(absent) ends what is left of it.
    type: str
    choices: [started, absent]
    default: started
  directory:
    description:
      - With O(state=started), the directory of the step, where C(log) and C(state.json) are written.
      - With O(state=absent), the directory for the files of all runs; the user's own below C(/var/tmp) when not given.
    type: path
  run_id:
    description: With O(state=absent), the run whose steps are ended; all runs when empty.
    type: str
    default: ""
  node_rank:
    description: With O(state=absent), only this node of the run, where simulated nodes share a machine.
    type: str
    default: ""
  remove:
    description:
      - With O(state=absent), whether to remove the files of the steps as well, and the directory for the files of all
        runs when it is empty then.
    type: bool
    default: false
  argv:
    description: The command. Required with O(state=started).
    type: list
    elements: str
  environment:
    description: Variables added to the environment of the connecting user.
    type: dict
    default: {}
  chdir:
    description: Working directory of the command.
    type: path
  timeout:
    description: Deadline in seconds after which the step is ended.
    type: int
    default: 3600
  grace:
    description: Seconds between SIGTERM and SIGKILL.
    type: int
    default: 10
attributes:
  check_mode:
    support: none
    description: Does nothing in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Start the training
  aorta.automation.process_step:
    directory: /var/tmp/aorta-automation-1000/20260101-120000-abcd-node0/steps/train
    argv: [torchrun, --nnodes, "2", train.py]
    timeout: 3600
"""

RETURN = r"""
step:
  description: State of the step.
  type: dict
  returned: success
  contains:
    pid:
      description: Process id, which is the id of the process group too.
      type: int
    status:
      description: V(running), V(exited) or V(absent).
      type: str
    exit_code:
      description: Exit code, minus the signal's number when a signal ended it, null while it runs.
      type: int
left:
  description: Directories that could not be removed, for files in them belong to another user.
  type: list
  elements: str
  returned: with O(state=absent)
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aorta.automation.plugins.module_utils import _host


def write_state(directory: str, state: dict[str, Any]) -> None:
    path = os.path.join(directory, _host.STATE_FILE)
    with open(path + ".tmp", "w") as stream:
        json.dump(state, stream)
    os.replace(path + ".tmp", path)


def read_state(directory: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, _host.STATE_FILE)) as stream:
            state: dict[str, Any] = json.load(stream)
            return state
    except (OSError, ValueError):
        return {"status": "absent"}


def end_group(pid: int, grace: float) -> None:
    """SIGTERM, then SIGKILL after C(grace) seconds, to what is left of a process group."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 2)):
        try:
            os.killpg(pid, number)
        except OSError:
            return
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            try:
                os.killpg(pid, 0)
            except OSError:
                return
            time.sleep(0.05)


def supervise(params: dict[str, Any]) -> None:
    """Start the step, wait for its end or its deadline, write down how it ended. Runs in a process of its own."""
    directory = params["directory"]
    ready = time.time()
    log = os.open(os.path.join(directory, _host.LOG_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    quiet = os.open(os.devnull, os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.dup2(quiet, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.closerange(3, 1024)
            if params["chdir"]:
                os.chdir(params["chdir"])
            environment = dict(os.environ)
            environment.update({name: str(value) for name, value in params["environment"].items()})
            os.execvpe(params["argv"][0], params["argv"], environment)
        except OSError as exc:
            os.write(2, ("aorta.automation: can't start %s: %s\n" % (params["argv"][0], exc)).encode())
        os._exit(127)
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    state = {
        "status": "running",
        "pid": pid,
        "start_time": _host.process_start_time(pid),
        "started": ready,
        "finished": None,
        "exit_code": None,
        "timed_out": False,
    }
    write_state(directory, state)
    deadline = time.monotonic() + params["timeout"]
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            state["timed_out"] = True
            end_group(pid, params["grace"])
            _done, status = os.waitpid(pid, 0)
            break
        time.sleep(0.05)
    end_group(pid, params["grace"])  # what the command itself has left behind
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    state.update(status="exited", exit_code=code, finished=time.time())
    write_state(directory, state)


def start(params: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    directory = params["directory"]
    os.makedirs(directory, exist_ok=True)
    known = read_state(directory)
    if known["status"] != "absent":
        return known, False
    with open(os.path.join(directory, _host.HEARTBEAT_FILE), "w"):
        pass
    if os.fork() == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                supervise(params)
        finally:
            os._exit(0)
    os.wait()
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        state = read_state(directory)
        if state["status"] != "absent":
            return state, True
        time.sleep(0.02)
    return {"status": "absent"}, False


def stop(params: dict[str, Any]) -> tuple[dict[str, Any], bool, list[str]]:
    """End the steps of the nodes that are meant, give up their claim, remove their files where that is asked for.

    Returns the state of the last step, whether anything was changed, and the directories that could not be removed.
    """
    step: dict[str, Any] = {"status": "absent"}
    changed = False
    left = []
    work_dir = params["directory"] or _host.default_work_dir()
    for name in sorted(os.listdir(work_dir)) if os.path.isdir(work_dir) else []:
        run_id = _host.run_id_of(name)
        if not run_id or params["run_id"] not in ("", run_id):
            continue
        if params["node_rank"] and name != _host.node_dir_name(run_id, int(params["node_rank"])):
            continue
        node_dir = os.path.join(work_dir, name)
        for state_file in glob.glob(os.path.join(glob.escape(node_dir), "steps", "*", _host.STATE_FILE)):
            step = read_state(os.path.dirname(state_file))
            if _host.is_alive(step):
                end_group(step["pid"], params["grace"])
                changed = True
        if params["remove"]:
            # other hosts may remove theirs from a shared directory at the same time
            shutil.rmtree(node_dir, ignore_errors=True)
            changed = True
            if os.path.lexists(node_dir):
                left.append(node_dir)
    owner = _host.claimed_by(work_dir)
    if owner and params["run_id"] in ("", owner):
        with contextlib.suppress(OSError):
            os.unlink(_host.claim_path(work_dir))
            changed = True
    if params["remove"] and os.path.isdir(work_dir) and not os.listdir(work_dir):
        with contextlib.suppress(OSError):  # another node of this machine was quicker, or has just begun
            os.rmdir(work_dir)
    return step, changed, left


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "absent"], "default": "started"},
            "directory": {"type": "path"},
            "run_id": {"type": "str", "default": ""},
            "node_rank": {"type": "str", "default": ""},
            "remove": {"type": "bool", "default": False},
            "argv": {"type": "list", "elements": "str"},
            "environment": {"type": "dict", "default": {}},
            "chdir": {"type": "path"},
            "timeout": {"type": "int", "default": 3600},
            "grace": {"type": "int", "default": 10},
        },
        required_if=[("state", "started", ["argv", "directory"])],
        supports_check_mode=False,
    )
    try:
        if module.params["state"] == "absent":
            step, changed, left = stop(module.params)
            module.exit_json(changed=changed, step=step, left=left)
        step, changed = start(module.params)
    except OSError as exc:
        module.fail_json(msg=str(exc))
    if step["status"] == "absent":
        module.fail_json(msg="the step did not start within 10 s in %s" % module.params["directory"])
    module.exit_json(changed=changed, step=step)


if __name__ == "__main__":
    main()
