# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pulls an image and says that it is still at it (see the documentation of the module)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ansible.plugins.action import ActionBase


@contextmanager
def telling(show: Callable[[str], None], text: str, every: float) -> Iterator[None]:
    """While the body runs, show C(text) and the seconds so far, each C(every) seconds."""
    started, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(every):
            show(f"{text}, {time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class ActionModule(ActionBase):
    """Entry point."""

    _supports_check_mode = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "name": {"type": "str", "required": True},
                "always": {"type": "bool", "default": False},
                "every": {"type": "float", "default": 10},
            }
        )
        name = str(args["name"])
        text = f"[{task_vars['inventory_hostname']}] pulling {name}"
        with telling(self._display.display, text, float(args["every"])):
            done = self._execute_module(
                module_name="community.docker.docker_image_pull",
                module_args={"name": name, "pull": "always" if args["always"] else "not_present"},
                task_vars=task_vars,
            )
        result.update(done)
        return result
