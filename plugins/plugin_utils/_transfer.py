# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings one file of a host here, at one go or in pieces, through whatever runs a shell command there.

A piece is what one command prints, so memory is bounded and nothing but a shell is needed on the host. What has
arrived is kept under a name that holds the checksum of the whole: a later attempt goes on where this one broke off.
"""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.aorta.automation.plugins.plugin_utils._files import sha256_file

Shell = Callable[[str], tuple[int, bytes, bytes]]
Copy = Callable[[str, Path], None]

PIECE_BYTES = 4 << 20


class TransferError(Exception):
    """The file could not be brought here; the text says why."""


def part_path(target: Path, sha256: str) -> Path:
    """Where the part of C(target) that has arrived is kept."""
    return target.with_name(f".{target.name}.{sha256[:16]}.part")


def read_command(path: str, offset: int, sudo: bool = False) -> str:
    """A shell command that prints up to PIECE_BYTES bytes of C(path) from byte C(offset) on."""
    return f"{'sudo -n ' if sudo else ''}tail -c +{offset + 1} {shlex.quote(path)} | head -c {PIECE_BYTES}"


def fetch(
    shell: Shell,
    path: str,
    target: Path,
    size: int,
    sha256: str,
    progress: Callable[[int], None],
    grace: float = 60,
    sudo: bool = False,
    copy: Copy | None = None,
) -> int:
    """Make C(target) a copy of the host's C(path), which has C(size) bytes and this SHA-256 (hex).

    C(shell) raises ConnectionError when the host can't be reached; that is tried again until nothing has arrived
    for C(grace) seconds. C(progress(n)) is called with the bytes of each piece, those of an earlier attempt included.
    C(copy(path, part)) brings what it can of a file of which nothing is here yet; what it leaves out comes in pieces.
    Returns how many bytes were transferred, 0 when the file was there already. Raises TransferError; OSError when it
    can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target, sha256)
    digest = hashlib.sha256()
    with part.open("a+b") as stream:
        # The worker of a controller that was killed may still be at it; it notices after its piece, or ends the file
        fcntl.flock(stream, fcntl.LOCK_EX)
        if target.is_file() and target.stat().st_size == size and sha256_file(target) == sha256:
            part.unlink(missing_ok=True)
            progress(size)
            return 0
        begun = stream.seek(0, 2)
        if copy is not None and not begun and size > PIECE_BYTES:
            progress(0)  # may say that nobody waits for the file any more
            copy(path, part)
        stream.seek(0)
        for piece in iter(lambda: stream.read(PIECE_BYTES), b""):
            digest.update(piece)
        offset = stream.tell()
        progress(offset)
        last_arrival = time.monotonic()
        delay = 1.0
        while offset < size:
            try:
                _code, piece, errors = shell(read_command(path, offset, sudo))
            except ConnectionError as exc:
                if time.monotonic() - last_arrival > grace:
                    reason = " ".join(str(exc).split())
                    raise TransferError(
                        f"{offset} of {size} bytes have arrived, then nothing for {grace:g} s: {reason}"
                    ) from exc
                time.sleep(delay)
                delay = min(delay * 2, 10)
                continue
            if not piece:
                raise TransferError(_text(errors) or f"it ends after {offset} of {size} bytes")
            stream.write(piece)
            digest.update(piece)
            offset += len(piece)
            progress(len(piece))
            last_arrival, delay = time.monotonic(), 1.0
    if offset != size or digest.hexdigest() != sha256:
        part.unlink()
        raise TransferError(f"the SHA-256 of the {offset} bytes that arrived is not that of the {size} bytes there")
    part.replace(target)
    return size - begun


def _text(errors: bytes) -> str:
    return " ".join(errors.decode("utf-8", "replace").split())[:300]
