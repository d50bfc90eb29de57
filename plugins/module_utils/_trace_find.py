# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which traces a host hands over, packed or summarised."""

from __future__ import annotations

import hashlib
import os
import re

SUFFIXES = (".json", ".json.gz")
RANK_IN_PATH = re.compile(r"rank[ \[_-]?(\d+)", re.IGNORECASE)
_PIECE = 1 << 20


def find_traces(source: str) -> list[str]:
    """Relative paths of the traces below C(source), sorted; links that lead out of it are left out."""
    root = os.path.realpath(source)
    found = []
    for directory, _names, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            inside = os.path.realpath(path).startswith(root + os.sep)
            if name.endswith(SUFFIXES) and not name.startswith(".") and inside:
                found.append(os.path.relpath(path, root))
    return sorted(found)


def rank_of(name: str) -> int | None:
    """The rank that a trace's relative path tells, from the file name first, then from its folders."""
    for part in reversed(name.split("/")):
        match = RANK_IN_PATH.search(part)
        if match:
            return int(match.group(1))
    return None


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file's bytes, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(_PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()
