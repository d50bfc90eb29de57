# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers through a real shell that breaks off at chosen places."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _transfer

SIZE = 3 * _transfer.PIECE_BYTES + 12345


class Host:
    """A shell that counts what it hands over, and is out of reach in the calls of C(away)."""

    def __init__(self, away=()):
        self.away, self.calls, self.sent = set(away), 0, 0

    def __call__(self, command):
        self.calls += 1
        if self.calls - 1 in self.away:
            raise ConnectionError("Connection refused")
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
        self.sent += len(done.stdout)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "it's a trace.json.gz"
    path.write_bytes(os.urandom(SIZE))
    return path


def fetch(host, source, target, **options):
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    arrived = []
    count = _transfer.fetch(host, str(source), target, source.stat().st_size, digest, arrived.append, **options)
    assert sum(arrived) == source.stat().st_size
    return count


def test_a_file_arrives_whole_and_only_once(tmp_path, source):
    host, target = Host(), tmp_path / "head" / "rank0" / "t.json.gz"
    assert fetch(host, source, target) == SIZE
    assert target.read_bytes() == source.read_bytes()
    assert fetch(host, source, target) == 0
    assert (host.calls, host.sent) == (4, SIZE)
    assert [path.name for path in target.parent.iterdir()] == ["t.json.gz"]


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_what_a_copy_leaves_out_comes_in_pieces(tmp_path, source, share):
    host, count = Host(), int(SIZE * share)
    copies = []

    def copy(path, part):
        copies.append(path)
        part.write_bytes(source.read_bytes()[:count])

    assert fetch(host, source, tmp_path / "t", copy=copy) == SIZE
    assert (tmp_path / "t").read_bytes() == source.read_bytes()
    assert (copies, host.sent) == ([str(source)], SIZE - count)


def test_nothing_is_copied_for_nobody(tmp_path, source):
    def progress(_count):
        raise _transfer.TransferError("gone")

    copies = []
    with pytest.raises(_transfer.TransferError, match="gone"):
        _transfer.fetch(
            Host(), str(source), tmp_path / "t", SIZE, "0" * 64, progress, copy=lambda *names: copies.append(names)
        )
    assert copies == []


def test_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    assert fetch(Host(), tmp_path / "empty", tmp_path / "copy") == 0
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_dropped_connection_costs_nothing_that_has_arrived(tmp_path, source):
    host = Host(away={1, 3})
    assert fetch(host, source, tmp_path / "t") == SIZE
    assert host.sent == SIZE
    assert (tmp_path / "t").read_bytes() == source.read_bytes()


def test_a_later_attempt_goes_on_where_the_first_ended(tmp_path, source):
    first = Host(away=range(2, 100))
    started = time.monotonic()
    with pytest.raises(_transfer.TransferError, match=rf"{2 * _transfer.PIECE_BYTES} of {SIZE} bytes.*refused"):
        fetch(first, source, tmp_path / "t", grace=1)
    assert time.monotonic() - started < 10
    assert not (tmp_path / "t").exists()
    second = Host()
    assert fetch(second, source, tmp_path / "t") == second.sent == SIZE - first.sent
    assert (tmp_path / "t").read_bytes() == source.read_bytes()


def test_a_damaged_part_is_not_gone_on_with(tmp_path, source):
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    part = _transfer.part_path(tmp_path / "t", digest)
    part.write_bytes(b"\0" * 1000)
    with pytest.raises(_transfer.TransferError, match="SHA-256"):
        fetch(Host(), source, tmp_path / "t")
    assert not part.exists()
    assert fetch(Host(), source, tmp_path / "t") == SIZE


def test_what_the_host_says_is_told(tmp_path, source):
    with pytest.raises(_transfer.TransferError, match="No such file"):
        _transfer.fetch(Host(), str(tmp_path / "gone"), tmp_path / "t", 5, "0" * 64, lambda _count: None)


def test_a_file_that_has_shrunk(tmp_path, source):
    with pytest.raises(_transfer.TransferError, match=f"ends after {SIZE} of {SIZE + 1} bytes"):
        _transfer.fetch(Host(), str(source), tmp_path / "t", SIZE + 1, "0" * 64, lambda _count: None)
