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
"""

import hashlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.aorta.automation.plugins.module_utils._trace_find import find_traces

PIECE = 1 << 20


def pack(source: str, dest: str, name: str, level: int) -> dict[str, Any]:
    """Compress one file (a compressed one is only read) and describe what is to be transferred."""
    path = os.path.join(os.path.realpath(source), name)
    digest, size = hashlib.sha256(), 0
    raw_bytes = os.path.getsize(path)
    if name.endswith(".gz"):
        with open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(PIECE), b""):
                digest.update(piece)
                size += len(piece)
        return {"name": name, "path": path, "bytes": size, "raw_bytes": raw_bytes, "sha256": digest.hexdigest()}
    target = os.path.join(dest, name + ".gz")
    os.makedirs(os.path.dirname(target), exist_ok=True)
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
    return {"name": name + ".gz", "path": target, "bytes": size, "raw_bytes": raw_bytes, "sha256": digest.hexdigest()}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "level": {"type": "int", "default": 1},
        },
        supports_check_mode=False,
    )
    source, dest, level = (module.params[name] for name in ("source", "dest", "level"))
    try:
        names = find_traces(source)
        os.makedirs(dest, exist_ok=True)
        # zlib and hashlib let go of the interpreter lock, so threads use all cores
        with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1) or 1) as pool:
            files = list(pool.map(lambda name: pack(source, dest, name, level), names))
    except OSError as exc:
        module.fail_json(msg="can't pack the traces: %s" % exc)
    module.exit_json(changed=bool(files), files=files)


if __name__ == "__main__":
    main()
