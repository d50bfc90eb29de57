# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a small set of sound traces: C(python make_traces.py FOLDER --ranks N). Standard library only."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent / "plugins"))
    from trace_factory import healthy
else:
    from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import healthy


def make_traces(folder: Path, ranks: int) -> None:
    """One trace a rank below C(folder), each rank arriving 1 us later than the one before it."""
    for rank in range(ranks):
        healthy(rank, ranks, late=rank * 1000).write(folder / f"rank{rank}" / "trace.json")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Write a small set of sound traces.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    make_traces(arguments.folder, arguments.ranks)


if __name__ == "__main__":
    main()
