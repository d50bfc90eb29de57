# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trace_pack
short_description: Compress the traces that a host holds and give their checksums
version_added: 0.1.0
description:
  - Finds the traces below a directory, compresses those that are not compressed yet (in parallel, with bounded
    memory), and returns size and SHA-256 of each file that is to be transferred.
  - What an earlier call has packed is not packed again while the trace is unchanged.
  - Used by M(aorta.automation.gather_traces).
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  source:
    description: Directory that the benchmark has written its traces to.
    type: path
    required: true
  dest:
    description: Directory for the compressed copies.
    type: path
    required: true
  ranks:
    description:
      - Only traces of these ranks are packed, and those whose path does not tell a rank. On a shared file system a host
        sees the traces of all. Without it, all are packed.
    type: list
    elements: int
  level:
    description: Level of gzip. The default is the quickest; higher levels seldom pay on a fast network.
    type: int
    default: 1
attributes:
  check_mode:
    support: none
    description: Does nothing in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Pack the traces
  aorta.automation.trace_pack:
    source: /var/tmp/aorta-automation-1000/run/node0/output/torch_profiler
    dest: /var/tmp/aorta-automation-1000/run/node0/packed
"""

RETURN = r"""
files:
  description: The files to transfer, in the order of their names.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Path relative to O(source), with C(.gz) added where the file was compressed here.
      type: str
    path:
      description: Path on this host.
      type: str
    bytes:
      description: Size of the file to transfer.
      type: int
    raw_bytes:
      description: Size of the file that the benchmark has written.
      type: int
    sha256:
      description: SHA-256 of the file to transfer, in hex.
      type: str
other_ranks:
  description: Ranks that are not among O(ranks) and have traces here, sorted.
  type: list
  elements: int
  returned: success
"""

import hashlib
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces, rank_of, sha256_of

PIECE = 1 << 20


def pack(source: str, dest: str, name: str, level: int) -> dict[str, Any]:
    """Compress one file (a compressed one is only read) and describe what is to be transferred."""
    path = os.path.join(os.path.realpath(source), name)
    status = os.stat(path)
    record_path = os.path.join(dest, name + ".packed")
    trace = [path, status.st_size, status.st_mtime_ns]
    try:
        with open(record_path) as stream:
            record = json.load(stream)
        if record["trace"] == trace and os.path.getsize(record["file"]["path"]) == record["file"]["bytes"]:
            packed: dict[str, Any] = record["file"]
            return packed
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not packed yet, or not to the end
    os.makedirs(os.path.dirname(record_path), exist_ok=True)
    if name.endswith(".gz"):
        packed = {"name": name, "path": path, "bytes": status.st_size, "sha256": sha256_of(path)}
    else:
        target = os.path.join(dest, name + ".gz")
        size, sha256 = compress(path, target, level)
        packed = {"name": name + ".gz", "path": target, "bytes": size, "sha256": sha256}
    packed["raw_bytes"] = status.st_size
    with open(record_path + ".tmp", "w") as stream:
        json.dump({"trace": trace, "file": packed}, stream)
    os.replace(record_path + ".tmp", record_path)
    return packed


def compress(path: str, target: str, level: int) -> tuple[int, str]:
    """Write C(path) gzipped to C(target), whole or not at all. Returns its size and its SHA-256 in hex."""
    digest, size = hashlib.sha256(), 0
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)  # 31: gzip's header and trailer, without name and time
    with open(path, "rb") as stream, open(target + ".tmp", "wb") as out:
        for piece in iter(lambda: stream.read(PIECE), b""):
            packed = packer.compress(piece)
            digest.update(packed)
            size += out.write(packed)
        packed = packer.flush()
        digest.update(packed)
        size += out.write(packed)
    os.chmod(target + ".tmp", 0o644)
    os.replace(target + ".tmp", target)
    return size, digest.hexdigest()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "ranks": {"type": "list", "elements": "int"},
            "level": {"type": "int", "default": 1},
        },
        supports_check_mode=False,
    )
    source, dest, ranks, level = (module.params[name] for name in ("source", "dest", "ranks", "level"))
    names, others = [], set()
    try:
        for name in find_traces(source):
            rank = rank_of(name)
            if ranks is None or rank is None or rank in ranks:
                names.append(name)
            else:
                others.add(rank)
        os.makedirs(dest, exist_ok=True)
        # zlib and hashlib let go of the interpreter lock, so threads use all cores
        with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1) or 1) as pool:
            files = list(pool.map(lambda name: pack(source, dest, name, level), names))
    except OSError as exc:
        module.fail_json(msg="can't pack the traces: %s" % exc)
    module.exit_json(changed=bool(files), files=files, other_ranks=sorted(others))


if __name__ == "__main__":
    main()
