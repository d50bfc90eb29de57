# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds AMD's TraceLens, and tells it from the unrelated project of that name on PyPI."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

INSTALL = "install AMD's from https://github.com/AMD-AGI/TraceLens (the PyPI project 'tracelens' is another one)"
_PROBE = r"""
import importlib, importlib.metadata, importlib.util, json
impostor = importlib.util.find_spec("tracelens") is not None
answer = {"module": False, "version": None, "impostor": impostor, "error": None}
try:
    module = importlib.import_module("TraceLens")
    answer["module"] = all(hasattr(module, name) for name in ("GPUEventAnalyser", "NcclAnalyser"))
except Exception as exc:
    answer["error"] = None if getattr(exc, "name", None) == "TraceLens" else f"{type(exc).__name__}: {exc}"
try:
    answer["version"] = importlib.metadata.version("tracelens")
except importlib.metadata.PackageNotFoundError:
    pass
print("\n" + json.dumps(answer))
"""


@dataclasses.dataclass(frozen=True)
class TraceLens:
    """C(found): AMD's TraceLens can be imported. C(message): one line, what there is or what to do."""

    found: bool
    version: str | None
    message: str


def detect_tracelens(python: str | None = None, timeout: float = 60.0) -> TraceLens:
    """Look for module C(TraceLens) with its known attributes, in a child process (its import can prompt and exit).

    C(python) defaults to this interpreter. Never raises for what it finds.
    """
    command = [python or sys.executable, "-c", _PROBE]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
        answer = json.loads(run.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return TraceLens(False, None, f"TraceLens did not answer within {timeout:g} s ({command[0]})")
    except (OSError, ValueError) as exc:
        return TraceLens(False, None, f"TraceLens could not be looked for with {command[0]}: {exc}")
    version = answer["version"]
    if answer["module"]:
        return TraceLens(True, version, f"TraceLens {version or 'of unknown version'}")
    if answer["error"]:
        return TraceLens(False, version, f"TraceLens is installed but broken: {answer['error']}")
    if answer["impostor"] or version is not None:
        what = f"the installed package 'tracelens' {version or ''}".rstrip()
        return TraceLens(False, version, f"{what} is not AMD's TraceLens: pip uninstall tracelens, then {INSTALL}")
    return TraceLens(False, None, f"TraceLens is not installed: {INSTALL}")
