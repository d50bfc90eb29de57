# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker runtime: runc for a machine whose root lacks CAP_SYS_RESOURCE.

There runc refuses whatever needs that capability (limits above the hard limit, privileged, a negative oom_score_adj).
This asks for what is allowed instead and then becomes runc. ``docker inspect`` still shows what the user asked for.
"""

from __future__ import annotations

import json
import os
import resource
import sys

LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def clamp(process: dict) -> None:
    """Reduce a process object of the OCI runtime specification, in place, to what this process may grant."""
    for limit in process.get("rlimits") or []:
        if limit["type"] in LIMITS:
            hard = resource.getrlimit(LIMITS[limit["type"]])[1]
            if hard != resource.RLIM_INFINITY:
                limit["hard"] = min(limit["hard"], hard)
                limit["soft"] = min(limit["soft"], limit["hard"])
    sets = process.get("capabilities") or {}
    for name, capabilities in sets.items():
        sets[name] = [c for c in capabilities if c != "CAP_SYS_RESOURCE"]
    if "oomScoreAdj" in process:
        with open("/proc/self/oom_score_adj") as stream:
            process["oomScoreAdj"] = max(process["oomScoreAdj"], int(stream.read()))


def patch(path: str, key: str | None) -> None:
    with open(path) as stream:
        document = json.load(stream)
    clamp(document[key] if key else document)
    with open(path, "w") as stream:
        json.dump(document, stream)


def value(arguments: list[str], *names: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument in names:
            return arguments[position + 1]
        for name in names:
            if argument.startswith(name + "="):
                return argument[len(name) + 1 :]
    return None


if __name__ == "__main__":
    if "create" in sys.argv or "run" in sys.argv:
        patch(os.path.join(value(sys.argv, "--bundle", "-b") or ".", "config.json"), "process")
    elif "exec" in sys.argv:
        process_file = value(sys.argv, "--process", "-p")
        if process_file:
            patch(process_file, None)
    os.execvp("runc", ["runc", *sys.argv[1:]])
