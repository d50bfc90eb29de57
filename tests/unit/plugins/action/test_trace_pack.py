# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import hashlib
import os
import pathlib

import pytest
from ansible_collections.aorta.automation.plugins.action.gather_traces import is_safe, rank_of
from ansible_collections.aorta.automation.plugins.modules import trace_pack


def test_packing_is_lossless_and_checksummed(tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    (source / "rank0").mkdir(parents=True)
    (source / "rank1").mkdir()
    content = os.urandom(1 << 16) * 40
    (source / "rank0" / "a.pt.trace.json").write_bytes(content)
    (source / "rank1" / "b.pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    (source / "rank1" / ".half.json").write_bytes(b"x")
    (source / "rank1" / "notes.txt").write_bytes(b"x")
    names = trace_pack.find_traces(str(source))
    assert names == ["rank0/a.pt.trace.json", "rank1/b.pt.trace.json.gz"]
    packed = [trace_pack.pack(str(source), str(dest), name, 1) for name in names]
    assert [item["name"] for item in packed] == ["rank0/a.pt.trace.json.gz", "rank1/b.pt.trace.json.gz"]
    for item in packed:
        raw = pathlib.Path(item["path"]).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (item["bytes"], item["sha256"])
    assert gzip.decompress((dest / "rank0" / "a.pt.trace.json.gz").read_bytes()) == content
    assert packed[1]["path"].startswith(str(source))


def test_what_is_packed_is_not_packed_again(tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    source.mkdir()
    (source / "a.json").write_bytes(b"[1]" * 1000)
    first = trace_pack.pack(str(source), str(dest), "a.json", 1)
    written = os.stat(first["path"]).st_mtime_ns, os.stat(first["path"]).st_ino
    assert trace_pack.pack(str(source), str(dest), "a.json", 1) == first
    assert (os.stat(first["path"]).st_mtime_ns, os.stat(first["path"]).st_ino) == written
    (source / "a.json").write_bytes(b"[2]" * 1000)
    again = trace_pack.pack(str(source), str(dest), "a.json", 1)
    assert again["sha256"] != first["sha256"]
    assert gzip.decompress(pathlib.Path(again["path"]).read_bytes()) == b"[2]" * 1000
    os.truncate(again["path"], 10)
    assert trace_pack.pack(str(source), str(dest), "a.json", 1) == again
    assert os.stat(again["path"]).st_size == again["bytes"]


def test_links_that_lead_out_are_left_out(tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "link.json").symlink_to(tmp_path / "secret.json")
    assert trace_pack.find_traces(str(tmp_path / "source")) == []


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3/host_12.345.pt.trace.json.gz", 3),
        ("rank_10/t.json", 10),
        ("torch_profiler/rank-2/t.json", 2),
        ("rank1/rank7.json", 7),
        ("host_77.pt.trace.json", None),
    ],
)
def test_rank_from_the_path(name, rank):
    assert rank_of(name) == rank


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "a\nb", "a\\b", "a/\x1b[2J"])
def test_paths_that_a_host_may_not_send(name):
    assert not is_safe(name)


def test_paths_that_it_may():
    assert is_safe("rank 0/trace (1) ü.json.gz")
