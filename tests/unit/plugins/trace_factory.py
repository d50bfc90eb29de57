# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small traces in Kineto's form. Times are integer nanoseconds after C(origin) (the file's own clock)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN"
NCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def microseconds(ns: int) -> str:
    """Decimal text as the profiler writes it."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


class Trace:
    """Collects events; C(text()) is the file."""

    def __init__(
        self,
        rank: int | None = 0,
        world_size: int | None = 1,
        *,
        base: int | None = 1767225600000000000,
        origin: int = 6_300_000_000_000,
        device: int = 0,
    ) -> None:
        self.rank, self.world_size, self.base, self.origin, self.device = rank, world_size, base, origin, device
        self.events: list[str] = []
        self.header_extra: dict[str, object] = {}

    def raw(self, text: str) -> Trace:
        """Add an event as text."""
        self.events.append(text)
        return self

    def event(self, cat: str, name: str, start: int, length: int, args: dict[str, object] | None = None) -> Trace:
        """Add a complete event."""
        head = json.dumps({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1})[:-1]
        times = f'"ts": {microseconds(self.origin + start)}, "dur": {microseconds(length)}'
        return self.raw(f'{head},\n    {times},\n    "args": {json.dumps(args or {})}\n  }}')

    def kernel(self, start: int, length: int, name: str = GEMM, stream: int = 3, **args: object) -> Trace:
        """Add a kernel."""
        return self.event("kernel", name, start, length, {"device": self.device, "stream": stream, **args})

    def memcpy(self, start: int, length: int) -> Trace:
        """Add a copy."""
        return self.event("gpu_memcpy", "Memcpy HtoD", start, length, {"device": self.device, "stream": 0})

    def memset(self, start: int, length: int, name: str = "Memset (Device)") -> Trace:
        """Add a memset."""
        return self.event("gpu_memset", name, start, length, {"device": self.device, "stream": 0})

    def step(self, number: int, start: int, length: int) -> Trace:
        """Add a step's host-side window."""
        return self.event("user_annotation", f"ProfilerStep#{number}", start, length)

    def collective(
        self,
        start: int,
        length: int,
        *,
        seq: int | None = 1,
        name: str = "allreduce",
        group: str = "0",
        ranks: list[int] | None = None,
        dtype: str = "BFloat16",
        elements: int = 1024,
        out_elements: int | None = None,
        stream: int = 13,
    ) -> Trace:
        """Add a labelled communication kernel."""
        ranks = list(range(self.world_size or 1)) if ranks is None else ranks
        args: dict[str, object] = {
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": elements if out_elements is None else out_elements,
            "Group size": len(ranks),
            "dtype": dtype,
            "Process Group Name": group,
            "Process Group Ranks": str(ranks),
        }
        if seq is not None:
            args["Seq"] = seq
        return self.kernel(start, length, NCCL, stream, **args)

    def text(self) -> str:
        """The file's content."""
        header: dict[str, object] = {"schemaVersion": 1}
        header["deviceProperties"] = [{"id": self.device, "name": "AMD Instinct MI300X"}]
        if self.rank is not None or self.world_size is not None:
            info = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
            header["distributedInfo"] = {key: value for key, value in info.items() if value is not None}
        header.update(self.header_extra)
        if self.base is not None:
            header["baseTimeNanoseconds"] = self.base
        events = ",\n  ".join(self.events)
        return json.dumps(header)[:-1] + f',\n "traceEvents": [\n  {events}\n  ],\n "traceName": "x.json"\n}}\n'

    def write(self, path: Path) -> Path:
        """Write the file, packed if its name ends in C(.gz)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def healthy(rank: int = 0, world_size: int = 1, *, late: int = 0, **kwargs: object) -> Trace:
    """Two steps of 1 ms: 400 us GEMM, 300 us allreduce of which 100 us are hidden, starting C(late) ns late."""
    trace = Trace(rank, world_size, **kwargs)  # type: ignore[arg-type]
    for step in (0, 1):
        at = step * 1_000_000
        trace.step(step + 5, at, 1_000_000)
        trace.kernel(at + 100_000, 400_000)
        trace.collective(at + 400_000 + late, 300_000 - late, seq=step + 1)
    return trace
