# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: B905, RUF007 (zip has no "strict", and itertools no "pairwise", before Python 3.10)
"""Reads a trace of the PyTorch profiler (Kineto's JSON) piece by piece, in bounded memory.

C(traceEvents) is never held as a whole: the text is cut between events into pieces of some 256 KiB, and of each piece
only GPU events and C(ProfilerStep) marks are kept. A piece is decoded as C([) + piece + C(]). Because a JSON text has
one reading only, that succeeds just when the cut lay between two events: a guessed cut inside a string or a nested
object fails, and then the exact (slower) scan finds the true one. So guessing is safe for any JSON.

Where cores are idle, regions of a large file are read by processes of their own, by the same argument: the start of a
region is a true border when all before it has been decoded up to exactly there.

Pieces are decoded by msgspec where it is installed and by the standard library otherwise, with the same result.
Times become integer nanoseconds straight from the decimal text; float64 would lose up to 125 ns at epoch times.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import operator
import os
import re
import zlib
from multiprocessing.connection import Connection
from typing import Any, Callable, Iterable, Union

try:
    import msgspec
except ImportError:
    msgspec = None  # type: ignore[assignment]

_zlib: Any = zlib
try:
    from isal import isal_zlib

    _zlib = isal_zlib
except ImportError:
    pass

CHUNK = 256 * 1024
# Packed bytes at a time: what is left of them is copied for each piece that is unpacked.
_PACKED = 32 * 1024
# A region of a file that is worth a process of its own.
_REGION = 16 * 1024 * 1024
# Deflate reaches 1032 to 1; traces stay below 50. Far above that, a file is made to fill the memory or the day.
MAX_RATIO = 400
_BOMB_FROM = 64 * 1024 * 1024
# The longest single event or header value, in bytes: real ones stay below 1 MiB.
MAX_VALUE = 64 * 1024 * 1024
# The longest text of a trace, unless the user says otherwise.
DEFAULT_MAX_TRACE_BYTES = 32 * 1024**3
# Decoders give up near this depth; real events reach 4.
MAX_DEPTH = 1000

# What kind of GPU work a category is. The capitalised ones were written by torch <= 1.9.
KERNEL, MEMCPY, MEMSET = 0, 1, 2
GPU_CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Kernel": KERNEL,
    "Memcpy": MEMCPY,
    "Memset": MEMSET,
}
LEGACY_CATEGORIES = frozenset(("Kernel", "Memcpy", "Memset", "Runtime", "Operator"))
# Host-side only: the same names recur as gpu_user_annotation, with an unrelated duration.
STEP_CATEGORIES = frozenset(("user_annotation", "Operator"))
# Spans of the profiler's own recording.
SPAN_CATEGORY = "Trace"
_HOST_CATEGORIES = frozenset((*STEP_CATEGORIES, SPAN_CATEGORY))
# Categories met in practice that carry nothing we use; others are learned while reading.
_OTHER_CATEGORIES = [
    "cpu_op",
    "python_function",
    "ac2g",
    "async_cpu_to_gpu",
    "cuda_runtime",
    "cuda_driver",
    "fwdbwd",
    "gpu_user_annotation",
    "overhead",
    "cpu_instant_event",
    "Runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    "async_gpu",
    "cuda_sync",
    "xpu_runtime",
]
_MAX_CATEGORIES = 256
# So many complete events without category, and the file may be refused before its end.
_FOREIGN_FROM = 1000

_WANTED_KEYS = frozenset(("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion"))

# Times beyond this (about 146 years in ns) are no times.
_NS_LIMIT = 1 << 62
# A GPU record at ts <= 0 further than this from all others was lost by the profiler, not measured.
_LOST_NS = 3600 * 10**9

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}:\[{\"]+")
_SPACE = re.compile(rb"[ \t\r\n]*")
_NONSTANDARD = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:nan\([a-z]*\)|nan|inf(?:inity)?)(?!["\w])', re.DOTALL | re.IGNORECASE
)
# The same among what lies outside strings, joined by zeros: begins with a set, which the regex engine finds fast.
_BARE = re.compile(rb"[iInN](?<!\w.)(?:[nN][fF]|[aA][nN])(?![\w(\0])", re.DOTALL)
_BARE_LONG = re.compile(rb"[iInN](?<!\w.)(?:nf(?:inity)?|an(?:\([a-z]*\))?)(?![\w\0])", re.DOTALL | re.IGNORECASE)
_LITERAL_START = re.compile(r"(?:t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|-?[0-9.eE+-]*)\Z")
_STEP_NAME = re.compile(r"ProfilerStep#([0-9]{1,18})\Z")
_OPEN, _CLOSE = frozenset(b"{["), frozenset(b"}]")


class TraceError(Exception):
    """A trace that can't be used. C(code) is one of the documented codes, C(byte) the position or None."""

    def __init__(self, code: str, message: str, byte: int | None = None) -> None:
        super().__init__(code, message, byte)
        self.code = code
        self.message = message
        self.byte = byte


# What other programs that write the same JSON format leave in it.
_FOREIGN_KEYS = {
    "otherData": "rocprof or Chrome",
    "metadata": "Chrome or Perfetto",
    "controllerTraceDataKey": "Chrome",
    "systemTraceEvents": "Chrome",
    "tool": "a tool of its own",
}
_FOREIGN_PROCESSES = (
    (re.compile(r"/(?:device|host):"), "JAX or TensorFlow (XLA)"),
    (re.compile(r"(?:CPU|GPU|COPY|HIP|HSA|Markers)[ _]?(?:HIP|HSA|OPS|API|activities|[0-9]*$)"), "rocprof"),
)


class NotATrace(Exception):
    """The file is sound JSON but has no C(traceEvents), and is no list of events either."""


def nanoseconds(text: bytes) -> int | None:
    """Microseconds in decimal text as integer nanoseconds; None unless C(text) is a finite JSON number of sane size.

    Digits beyond the nanosecond are rounded half up. No float64 is involved.
    """
    if text[-4:-3] == b"." and len(text) < 24:
        try:
            value = int(text[:-4] + text[-3:])
            return value if -_NS_LIMIT < value < _NS_LIMIT else None
        except ValueError:
            pass  # an exponent, or no number at all
    if not text or len(text) > 64 or text[:1] not in b"-0123456789":
        return None
    mantissa, _e, exponent = text.lower().partition(b"e")
    whole, _dot, fraction = mantissa.partition(b".")
    try:
        power = int(exponent or b"0") + 3 - len(fraction)
        value = int(whole + fraction)
    except ValueError:
        return None
    if not -64 <= power <= 32:
        return 0 if value == 0 or power < 0 else None
    if power >= 0:
        value *= 10**power
    else:
        unit = 10**-power
        value = (abs(value) * 2 + unit) // (2 * unit) * (-1 if text[:1] == b"-" else 1)
    return value if -_NS_LIMIT < value < _NS_LIMIT else None


class _Number(str):
    """A JSON number as its text, so that the standard decoder neither rounds it nor refuses many digits."""


def _reject_constant(text: str) -> None:
    raise ValueError(text)


def _plain(value: Any) -> Any:
    """An argument's value as int, float or str, the same from both decoders; None for anything else."""
    if isinstance(value, _Number):
        value = int(value) if len(value) < 20 and value.lstrip("-").isdigit() else float(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else float(value)
    return clean(value) if isinstance(value, str) else None


def clean(text: str) -> str:
    """C(text) without lone surrogates, which no UTF-8 file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def repair(text: bytes) -> bytes:
    """Replace bare C(inf), C(nan), C(Infinity) outside strings by an empty string of the same length.

    Positions stay; and where the number was a time, the event has none, so it is skipped and counted.
    """
    if b"\\" not in text:
        mended = _repair_simple(text)
        if mended is not None:
            return mended

    def replace(match: re.Match[bytes]) -> bytes:
        found = match.group()
        return found if found[:1] == b'"' else b'""'.ljust(len(found))

    return _NONSTANDARD.sub(replace, text)


def _repair_simple(text: bytes) -> bytes | None:
    """The same without looking at each string: every second part between quotes is outside. None if that fails."""
    parts = text.split(b'"')
    if len(parts) % 2 == 0:
        return None  # a string is open
    outside = parts[::2]
    # Outside strings there are few letters; all parts at once, with a mark that no JSON holds there.
    joined = b"\0".join(outside)
    if joined.count(b"\0") != len(outside) - 1:
        return None

    mended = _BARE.sub(b'"" ', joined)
    if b"(" in mended or b"nfin" in mended.lower():
        mended = _BARE_LONG.sub(lambda match: b'""'.ljust(len(match.group())), mended)
    parts[::2] = mended.replace(b'-""', b'"" ').split(b"\0")
    return b'"'.join(parts)


# --- events -----------------------------------------------------------------------------------------------------------

_COLLECTIVE_ARGS = {
    "name": "Collective name",
    "group": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "group_size": "Group size",
    "dtype": "dtype",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "seq": "Seq",
}


# Wanted events in the order of the file, as runs of one category.
Batches = list[tuple[str, list[Any]]]


class _Args:
    """The arguments of a GPU event that matter, as the standard decoder gives them."""

    __slots__ = ("device", "stream", *_COLLECTIVE_ARGS)

    def __init__(self, args: Any) -> None:
        get: Callable[[str], Any] = args.get if isinstance(args, dict) else lambda key: None
        self.device = _plain(get("device"))
        self.stream = _plain(get("stream"))
        for attribute, key in _COLLECTIVE_ARGS.items():
            setattr(self, attribute, get(key))


_NO_ARGS = _Args(None)


class _Event:
    """A GPU event or a step mark, as the standard decoder gives it."""

    __slots__ = ("args", "dur", "name", "pid", "ts")

    def __init__(self, event: dict[str, Any]) -> None:
        self.pid = _plain(event.get("pid"))
        name = event.get("name")
        self.name = name if isinstance(name, str) and not isinstance(name, _Number) else ""
        self.ts = self._text(event.get("ts"))
        self.dur = self._text(event.get("dur"))
        self.args = _Args(event.get("args"))

    @staticmethod
    def _text(value: Any) -> bytes:
        return value.encode("ascii", "replace") if isinstance(value, _Number) else b""


class _StandardDecoder:
    """Decodes a piece with the json module; gives the number of events and those that are wanted."""

    def __init__(self) -> None:
        self.categories: set[str] = set()
        self.processes: set[str] = set()
        self.complete = 0

    def join(self, other: _StandardDecoder) -> None:
        """Add what was learnt from a later region."""
        self.complete += other.complete
        self.categories |= other.categories
        self.processes |= other.processes

    def decode(self, text: bytes | memoryview, strict: bool = True) -> tuple[int, Batches]:
        events = json.loads(
            str(text, "utf-8"),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_reject_constant,
            strict=strict,
        )
        wanted: Batches = []
        last = None
        for event in events:
            if isinstance(event, dict):
                category = event.get("cat")
                if isinstance(category, str):
                    if category in GPU_CATEGORIES or category in _HOST_CATEGORIES:
                        if category != last:
                            last = str(category)
                            wanted.append((last, []))
                        wanted[-1][1].append(_Event(event))
                    elif len(self.categories) < _MAX_CATEGORIES:
                        self.categories.add(str(category))
                elif category is None:
                    self._uncategorised(event)
        return len(events), wanted

    def _uncategorised(self, event: dict[str, Any]) -> None:
        """PyTorch's own events without category only name processes and threads; other profilers' are all so."""
        if event.get("ph") == "X":
            self.complete += 1
        elif event.get("name") == "process_name" and len(self.processes) < _MAX_CATEGORIES:
            args = event.get("args")
            name = args.get("name") if isinstance(args, dict) else None
            if isinstance(name, str):
                self.processes.add(str(name))


class _FastDecoder:
    """Decodes a piece with msgspec into a union of structs, told apart by their category.

    Categories without interest are structs without fields, so their content is checked but never built. Whatever does
    not fit (an event without category, arguments of odd types) raises, and the standard decoder takes that piece.
    """

    def __init__(self) -> None:
        raw = msgspec.Raw(b"")
        args = msgspec.defstruct(
            "Args",
            [("device", Any, None), ("stream", Any, None), *((name, Any, None) for name in _COLLECTIVE_ARGS)],
            rename=_COLLECTIVE_ARGS,
            frozen=True,
            gc=False,
        )
        times = [("name", str, ""), ("ts", msgspec.Raw, raw), ("dur", msgspec.Raw, raw)]
        gpu = [*times, ("pid", Any, None), ("args", args, args())]
        self.wanted = {}
        for category in (*GPU_CATEGORIES, *_HOST_CATEGORIES):
            self.wanted[self._struct(category, gpu if category in GPU_CATEGORIES else times)] = category
        self.others: dict[str, Any] = {}
        self.learn(_OTHER_CATEGORIES)

    @staticmethod
    def _struct(category: str, fields: list[Any]) -> Any:
        return msgspec.defstruct("Event", fields, tag_field="cat", tag=category, gc=False)

    def learn(self, categories: Iterable[str]) -> None:
        """Accept further categories whose events are ignored."""
        new = [name for name in categories if name not in self.others][: _MAX_CATEGORIES - len(self.others)]
        if not new:
            return
        self.others.update((name, self._struct(name, [])) for name in new)
        union: Any = Union[(*self.wanted, *self.others.values())]  # "|" needs Python 3.10
        self.decoder = msgspec.json.Decoder(list[union])

    def decode(self, text: bytes | memoryview) -> tuple[int, Batches]:
        events = self.decoder.decode(text)
        # No bytecode for the many events without interest.
        wanted = itertools.compress(events, map(self.wanted.__contains__, map(type, events)))
        return len(events), [(self.wanted[kind], list(found)) for kind, found in itertools.groupby(wanted, type)]


_NAME_OF, _TS_OF, _DUR_OF, _ARGS_OF, _PID_OF = map(operator.attrgetter, ("name", "ts", "dur", "args", "pid"))
_DEVICE_OF, _STREAM_OF = map(operator.attrgetter, ("device", "stream"))
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_integers: Any = msgspec and msgspec.json.Decoder(list[int]).decode  # "list[int]" is no type before Python 3.9
_MAX_PROCESSES = _MAX_SPANS = 64


def _times(events: list[Any], field: Callable[[Any], Any]) -> list[int] | None:
    """C(nanoseconds) of a field of all events at once; None unless each has the usual form, with three decimals."""
    joined = b",".join(map(field, events))
    commas = len(events) - 1
    form = joined.translate(_ZEROS)
    if not (form.endswith(b".000") and form.count(b".000,") == form.count(b",") == form.count(b".") - 1 == commas):
        return None
    digits = joined.replace(b".", b"")
    try:
        values = _integers(b"[%b]" % digits) if _integers else list(map(int, digits.split(b",")))
    except ValueError:  # msgspec's errors are such; it takes no leading zeros
        try:
            values = list(map(int, digits.split(b",")))
        except ValueError:
            return None
    return values if max(values) < _NS_LIMIT else None


class _Kept:
    """A GPU event whose text has gone."""

    __slots__ = ("args", "name", "pid")

    def __init__(self, event: Any) -> None:
        self.name, self.args, self.pid = event.name, event.args, event.pid


class Collected:
    """What a trace holds of GPU work and steps.

    Columns, one row a GPU event: C(starts), C(ends) (ns, the file's own clock), C(keys) (index into C(names)),
    C(streams) (index into C(stream_names)). C(names) are (kind, name); C(collectives) maps a row to the arguments of
    a kernel that carries collective metadata. C(processes): (device, pid) of the kernels. C(steps): number ->
    (start, end). C(spans): (start, end) of what the profiler says it recorded.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.keys: list[int] = []
        self.streams: list[int] = []
        self.names: list[tuple[int, str]] = []
        self.stream_names: list[Any] = []
        self.collectives: dict[int, dict[str, Any]] = {}
        self.devices: dict[Any, int] = {}
        self.processes: set[tuple[Any, Any]] = set()
        self.steps: dict[int, tuple[int, int]] = {}
        self.spans: list[tuple[int, int]] = []
        self.header: dict[str, Any] = {}
        self.events = 0
        self.skipped = 0
        self.legacy = False
        self.nonstandard = False
        self.encoding_replaced = False
        self.bytes = 0
        self.lost: list[tuple[str, _Kept, int, int]] = []
        self._key_index: dict[int, dict[str, int]] = {kind: {} for kind in GPU_CATEGORIES.values()}
        self._stream_index: dict[Any, int] = {}

    def take(self, events: Batches) -> None:
        """Add decoded events."""
        for category, found in events:
            if category in _HOST_CATEGORIES:
                for event in found:
                    start, length = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
                    if start is not None and length is not None and length >= 0:
                        self._take_host(category, event.name, start, length)
                continue
            starts, lengths = _times(found, _TS_OF), _times(found, _DUR_OF)
            if starts is not None and lengths is not None and min(starts) > 0 and min(lengths) >= 0:
                self._take_all(category, found, starts, lengths)
                continue
            for event in found:
                self._take_one(category, event)

    def join(self, other: Collected) -> None:
        """Add what was read of a later region of the same file."""
        row = len(self.starts)
        self.collectives.update((row + place, args) for place, args in other.collectives.items())
        keys = [self._key_of(kind, name) for kind, name in other.names]
        streams = [self._stream_of(stream) for stream in other.stream_names]
        self.starts.extend(other.starts)
        self.ends.extend(other.ends)
        self.keys.extend(map(keys.__getitem__, other.keys))
        self.streams.extend(map(streams.__getitem__, other.streams))
        for device, number in other.devices.items():
            self.devices[device] = self.devices.get(device, 0) + number
        for process in other.processes:
            if len(self.processes) < _MAX_PROCESSES:
                self.processes.add(process)
        for number, window in other.steps.items():
            self._take_step(number, window)
        self.spans.extend(other.spans[: _MAX_SPANS - len(self.spans)])
        self.events += other.events
        self.skipped += other.skipped
        self.legacy |= other.legacy
        self.nonstandard |= other.nonstandard
        self.encoding_replaced |= other.encoding_replaced
        self.lost += other.lost

    def _take_one(self, category: str, event: Any) -> None:
        start, length = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        if start is None or length is None or length < 0 or (start == 0 and length == 0):
            self.legacy = self.legacy or category in LEGACY_CATEGORIES
            self.skipped += 1
        elif start <= 0:
            # Its times are views of a buffer that is used again.
            self.lost.append((category, _Kept(event), start, length))
        else:
            self._take_all(category, [event], [start], [length])

    def finish(self) -> None:
        """Decide about records at or before time zero: lost ones are far from all others."""
        for category, event, start, length in self.lost:
            if self.starts and self.starts[0] - start > _LOST_NS:
                self.skipped += 1
            else:
                self._take_all(category, [event], [start], [length])
        self.lost = []

    def _take_host(self, category: str, name: str, start: int, length: int) -> None:
        if category == SPAN_CATEGORY:
            if length > 0 and len(self.spans) < _MAX_SPANS:
                self.spans.append((start, start + length))
            return
        match = _STEP_NAME.match(name) if name.startswith("ProfilerStep#") else None
        if match is None:
            return
        self.legacy = self.legacy or category in LEGACY_CATEGORIES
        self._take_step(int(match.group(1)), (start, start + length))

    def _take_step(self, number: int, window: tuple[int, int]) -> None:
        # Several threads may record the same step; the widest view of it counts, and it counts once.
        known = self.steps.get(number)
        if known is None or (window[0], -window[1]) < (known[0], -known[1]):
            self.steps[number] = window

    def _take_all(self, category: str, events: list[Any], starts: list[int], lengths: list[int]) -> None:
        """Add GPU events with sound times (ns). Column by column, so that little runs as bytecode for each event."""
        kind = GPU_CATEGORIES[category]
        self.legacy = self.legacy or category in LEGACY_CATEGORIES
        names = list(map(_NAME_OF, events))
        index = self._key_index[kind]
        keys = list(map(index.get, names))
        if None in keys:
            keys = [self._key_of(kind, name) for name in names]
        args = list(map(_ARGS_OF, events))
        stream_names = list(map(_STREAM_OF, args))
        try:
            streams = list(map(self._stream_index.get, stream_names))
        except TypeError:  # a list or map
            streams = [None]
        if None in streams:
            streams = [self._stream_of(stream) for stream in stream_names]
        if kind == KERNEL:
            self._take_devices(list(map(_DEVICE_OF, args)), list(map(_PID_OF, events)))
            row = len(self.starts)
            for place, found in enumerate(args):
                if found.name is not None or found.group is not None:
                    self.collectives[row + place] = collective_args(found)
        self.starts.extend(starts)
        self.ends.extend(map(operator.add, starts, lengths))
        self.keys.extend(keys)  # type: ignore[arg-type]
        self.streams.extend(streams)  # type: ignore[arg-type]

    def _take_devices(self, devices: list[Any], processes: list[Any]) -> None:
        number = 1
        # Nearly always all are the same.
        if devices.count(devices[0]) == processes.count(processes[0]) == len(devices):
            number, devices, processes = len(devices), devices[:1], processes[:1]
        for given, process in zip(devices, processes):
            device = given if isinstance(given, int) else _plain(given)
            self.devices[device] = self.devices.get(device, 0) + number
            if len(self.processes) < _MAX_PROCESSES:
                self.processes.add((device, process if isinstance(process, int) else _plain(process)))

    def _key_of(self, kind: int, name: str) -> int:
        index = self._key_index[kind]
        key = index.get(name)
        if key is None:
            key = index[name] = len(self.names)
            self.names.append((kind, clean(name)))
        return key

    def _stream_of(self, stream: Any) -> int:
        if not isinstance(stream, int):
            stream = _plain(stream)
        index = self._stream_index.get(stream)
        if index is None:
            index = self._stream_index[stream] = len(self.stream_names)
            self.stream_names.append(stream)
        return index


def collective_args(args: Any) -> dict[str, Any]:
    """The metadata that PyTorch writes on a collective's kernel, in plain types."""
    record = {name: _plain(getattr(args, name)) for name in _COLLECTIVE_ARGS}
    ranks = args.group_ranks
    if isinstance(ranks, list):
        record["group_ranks"] = json.dumps([_plain(rank) for rank in ranks])
    for name in ("name", "group", "dtype", "group_ranks"):
        if record[name] is not None:
            record[name] = str(record[name])
    for name in ("seq", "group_size", "in_elements", "out_elements"):
        if not isinstance(record[name], int):
            record[name] = None
    return record


# --- text -------------------------------------------------------------------------------------------------------------


class _Source:
    """Bytes of a file, unzipped when they are gzip (whatever the name says)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close())
        self._size = os.fstat(self._file.fileno()).st_size
        self._member: Any = None
        self._unpacked = 0
        self._pending = b""
        self._ended = False
        magic = self._file.read(2)
        self._file.seek(0)
        self.zipped = magic == b"\x1f\x8b"
        if self.zipped:
            self._member = _zlib.decompressobj(wbits=31)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def again(self) -> _Source:
        """The same file, opened once more."""
        return _Source(self._path)

    def seek(self, offset: int) -> None:
        """Go on at C(offset) of a file that is not packed."""
        self._file.seek(offset)

    def cuts(self, offset: int, number: int, separators: Iterable[bytes], chunk: int) -> list[int]:
        """Commas that seem to part events: they cut what follows C(offset) into C(number) like regions and a tail."""
        size = (self._size - offset) // number
        cuts: list[int] = []
        for place in (*range(offset + size, offset + size * number, size), self._size - chunk):
            text = os.pread(self._file.fileno(), chunk, place)
            found = [text.index(separator) + separator.index(b",") for separator in separators if separator in text]
            if found and place + min(found) > max(cuts, default=offset):
                cuts.append(place + min(found))
        return cuts

    def rest(self, offset: int) -> int:
        """Bytes of text from C(offset) on; 0 for a packed file, which can be read from its start only."""
        return 0 if self.zipped else self._size - offset

    def readinto(self, view: memoryview) -> int:
        """Fill C(view) from its start; 0 at the end. Raises TraceError for damaged compression."""
        if not self.zipped:
            return self._file.readinto(view) or 0
        while not self._ended:
            if not self._pending:
                self._pending = self._file.read(_PACKED)
            if self._member is None:
                # Zeros after the last member are padding; further members follow it directly.
                self._pending = self._pending.lstrip(b"\0")
                if not self._pending:
                    self._ended = self._file.tell() >= self._size
                    continue
                self._member = _zlib.decompressobj(wbits=31)
            elif not self._pending:
                raise TraceError("trace_truncated", "truncated: the gzip data end early", self._size)
            try:
                data = self._member.decompress(self._pending, len(view))
            except Exception as exc:  # zlib.error, isal's own error
                position = self._file.tell() - len(self._pending)
                raise TraceError("trace_invalid_json", f"the gzip data are damaged ({exc})", position) from exc
            self._pending = self._member.unconsumed_tail
            if self._member.eof:
                self._pending = self._member.unused_data
                self._member = None
            if data:
                self._unpacked += len(data)
                if self._unpacked > _BOMB_FROM and self._unpacked > MAX_RATIO * self._file.tell():
                    raise TraceError(
                        "trace_too_large",
                        f"it unpacks to more than {MAX_RATIO} times its size, no trace does",
                        self._file.tell(),
                    )
                view[: len(data)] = data
                return len(data)
        return 0


class _Window:
    """The part of the text that is in memory: C(buffer[pos:end]) is unread; C(base) is the offset of C(buffer[0])."""

    def __init__(self, source: _Source, chunk: int, max_bytes: int | None) -> None:
        self.source = source
        self.max_bytes = max_bytes
        self.buffer = bytearray(2 * chunk + 1)
        self.pos = self.end = 1  # one byte before the text, where a piece gets its bracket
        self.base = -1
        self.chunk = chunk
        self.eof = False
        # Where in the text a region ends that is read on its own; whether to go on behind it if it does not fit.
        self.limit: int | None = None
        self.bound = False

    @property
    def at_limit(self) -> bool:
        """Whether all up to the limit is in the buffer."""
        return self.limit is not None and self.base + self.end >= self.limit

    def seek(self, offset: int) -> None:
        """Go on at C(offset) of the text, without limit."""
        self.source.seek(offset)
        self.base, self.pos, self.end = offset - 1, 1, 1
        self.limit = None

    @property
    def offset(self) -> int:
        """Offset of C(pos) in the text."""
        return self.base + self.pos

    def fill(self) -> bool:
        """Read some more; False at the end of the text. Positions in the buffer change."""
        if self.eof:
            return False
        if self.at_limit:
            if self.bound:
                return False
            self.limit = None
        buffer = self.buffer
        if len(buffer) - self.end < self.chunk:
            if self.pos > self.chunk:
                start = self.pos - 1
                self.base += start
                buffer[: self.end - start] = memoryview(buffer)[start : self.end].tobytes()
                self.end -= start
                self.pos = 1
            elif len(buffer) > MAX_VALUE:
                raise TraceError(
                    "trace_too_large",
                    f"one value is longer than {MAX_VALUE // 2**20} MiB, no trace has such",
                    self.offset,
                )
            else:
                buffer.extend(bytes(len(buffer)))
        # A value that fills the window is looked through from its start each time: let it grow by half, not by pieces.
        wanted = max(self.chunk, (self.end - self.pos) // 2)
        if self.limit is not None:
            wanted = min(wanted, self.limit - self.base - self.end)
        with memoryview(buffer) as view:
            count = self.source.readinto(view[self.end : min(len(buffer), self.end + wanted)])
        self.end += count
        self.eof = count == 0
        if self.max_bytes is not None and self.base + self.end > self.max_bytes:
            raise TraceError(
                "trace_too_large",
                f"more than {self.max_bytes} bytes of JSON text (limit: aorta_analysis.max_trace_bytes)",
                self.max_bytes,
            )
        return count > 0

    def peek(self) -> int | None:
        """Skip white space; the next byte, or None at the end of the text."""
        while True:
            self.pos = _end_of_space(self.buffer, self.pos, self.end)
            if self.pos < self.end:
                return self.buffer[self.pos]
            if not self.fill():
                return None


def _container_end(buffer: bytearray, pos: int, end: int) -> int:
    """Where the object or array that starts at C(pos) ends; -1 if not before C(end). Raises RecursionError."""
    depth = 0
    for match in _TOKEN.finditer(buffer, pos, end):
        byte = buffer[match.start()]
        if byte in _OPEN:
            depth += 1
            if depth > MAX_DEPTH:
                raise RecursionError
        elif byte in _CLOSE:
            depth -= 1
            if depth == 0:
                return match.end()
        elif match.end() - match.start() == 1:
            return -1  # a string that is still open
    return -1


class _Parser:
    """Walks the text: keys of the outer object one by one, the events in pieces."""

    def __init__(self, window: _Window, collected: Collected, fast: bool, processes: int = 1) -> None:
        self.window = window
        self.collected = collected
        self.standard = _StandardDecoder()
        self.fast = _FastDecoder() if fast else None
        self.separators: list[bytes] = []
        self.keys: set[str] = set()
        self.found = False
        self.processes = processes
        self.regions: list[_Region] = []

    def parse(self) -> None:
        """Read the whole text. Raises TraceError, NotATrace."""
        window = self.window
        while window.end - window.pos < 3 and window.fill():
            pass
        if window.buffer.startswith(b"\xef\xbb\xbf", window.pos):
            window.pos += 3
        first = window.peek()
        if first is None:
            raise TraceError("trace_empty_file", "the file is empty", 0)
        if first == 0x5B:  # [
            self.found = True
            self._events()
        elif first == 0x7B:  # {
            self._object()
        else:
            raise TraceError("trace_invalid_json", "not JSON: neither { nor [ at the start", window.offset)
        if window.peek() is not None:
            raise TraceError("trace_invalid_json", "text follows after the end of the JSON value", window.offset)
        self.collected.bytes = window.offset
        self.collected.finish()
        self._refuse_foreign()
        # A bare list is a trace only if something in it shows so: many other files are lists.
        if not self.found or (first == 0x5B and not self.collected.starts and not self.collected.steps):
            raise NotATrace

    def _refuse_foreign(self) -> None:
        """Raise TraceError for the trace of another profiler, as far as what has been read shows one."""
        collected, standard = self.collected, self.standard
        if collected.starts or collected.steps or collected.spans or not standard.complete:
            return
        if {"schemaVersion", "deviceProperties", "distributedInfo"} & set(collected.header):
            return
        for pattern, program in _FOREIGN_PROCESSES:
            name = next((name for name in sorted(standard.processes) if pattern.match(name)), None)
            if name is not None:
                raise TraceError(
                    "not_pytorch",
                    f"written by {program}, not by PyTorch's profiler (a process is named {clean(name)[:60]!r}):"
                    " only torch.profiler traces are read",
                )
        found = [program for key, program in _FOREIGN_KEYS.items() if key in self.keys]
        if found:
            raise TraceError(
                "not_pytorch",
                f"looks written by {found[0]}, not by PyTorch's profiler: only torch.profiler traces are read",
            )

    def _truncated(self) -> TraceError:
        size = self.window.base + self.window.end
        return TraceError("trace_truncated", f"truncated: the JSON text ends early, after {size} bytes", size)

    def _expect(self, wanted: bytes) -> None:
        window = self.window
        byte = window.peek()
        if byte is None:
            raise self._truncated()
        if byte not in wanted:
            found = bytes((byte,)).decode("latin-1")
            expected = " or ".join(repr(chr(one)) for one in wanted)
            raise TraceError("trace_invalid_json", f"{expected} expected, found {found!r}", window.offset)
        window.pos += 1

    def _object(self) -> None:
        window = self.window
        window.pos += 1
        if window.peek() == 0x7D:
            window.pos += 1
            return
        while True:
            if window.peek() not in (None, 0x22):
                raise TraceError("trace_invalid_json", "a key in double quotes expected", window.offset)
            key = self._value()
            self._expect(b":")
            if key == "traceEvents" and window.peek() == 0x5B:
                self.found = True
                self._events()
            else:
                value = self._value()
                if len(self.keys) < _MAX_CATEGORIES:
                    self.keys.add(str(key)[:80])
                if key in _WANTED_KEYS:
                    self.collected.header[key] = value
            self._expect(b",}")
            if window.buffer[window.pos - 1] == 0x7D:
                return

    def _value(self) -> Any:
        """Decode one value of the outer object (numbers as _Number)."""
        window = self.window
        while True:
            byte = window.peek()
            if byte is None:
                raise self._truncated()
            if byte in _OPEN:
                try:
                    stop = _container_end(window.buffer, window.pos, window.end)
                except RecursionError:
                    raise TraceError("trace_invalid_json", "nested too deeply", window.offset) from None
            else:
                pattern = _TOKEN if byte == 0x22 else _SCALAR
                match = pattern.match(window.buffer, window.pos, window.end)
                if match is None:
                    raise TraceError("trace_invalid_json", "a value expected", window.offset)
                stop = match.end()
                if (stop == window.end and not window.eof) or (byte == 0x22 and stop - window.pos == 1):
                    stop = -1  # it may go on
            if stop >= 0:
                break
            if not window.fill():
                raise self._diagnose_end(b"")
        text = self._utf8(bytes(window.buffer[window.pos : stop]))
        value = self._tolerant(text, self._decode_value, 0)
        window.pos = stop
        return value

    @staticmethod
    def _decode_value(text: bytes, strict: bool) -> Any:
        return json.loads(
            str(text, "utf-8"),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_reject_constant,
            strict=strict,
        )

    def _utf8(self, text: bytes) -> bytes:
        """C(text) as valid UTF-8; notes when it had to be changed."""
        if not text.isascii():
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                self.collected.encoding_replaced = True
                return text.decode("utf-8", "replace").encode("utf-8")
        return text

    def _tolerant(self, text: bytes, decode: Callable[[bytes, bool], Any], shift: int) -> Any:
        """Decode exactly delimited text: as it is, else with non-standard numbers replaced, else with raw controls.

        C(shift) is how many bytes of C(text) were put before it. Raises TraceError with the place of the fault.
        """
        try:
            return decode(text, True)
        except (ValueError, RecursionError):
            pass
        mended = repair(text)
        try:
            value = decode(mended, True)
        except (ValueError, RecursionError):
            try:
                value = decode(mended, False)
            except RecursionError:
                raise TraceError("trace_invalid_json", "nested too deeply", self.window.offset) from None
            except json.JSONDecodeError as exc:
                place = self.window.offset - shift + len(exc.doc[: exc.pos].encode("utf-8", "replace"))
                raise TraceError("trace_invalid_json", f"not valid JSON: {exc.msg}", place) from None
            except ValueError as exc:
                raise TraceError("trace_invalid_json", f"not valid JSON: {exc}", self.window.offset) from None
        self.collected.nonstandard = True
        return value

    def _diagnose_end(self, prefix: bytes) -> TraceError:
        """The text ended inside a value that starts at the window's position: cut off, or broken before?"""
        window = self.window
        text = str(prefix + repair(bytes(window.buffer[window.pos : window.end])), "utf-8", "replace")
        try:
            json.JSONDecoder(strict=False).raw_decode(text)
        except json.JSONDecodeError as exc:
            rest = text[exc.pos :]
            open_string = exc.msg.startswith("Unterminated string")
            in_escape = "scape" in exc.msg and len(rest) < 8
            if not (open_string or in_escape or not rest.strip() or _LITERAL_START.match(rest.rstrip())):
                place = window.offset - len(prefix) + len(text[: exc.pos].encode("utf-8", "replace"))
                return TraceError("trace_invalid_json", f"not valid JSON: {exc.msg}", place)
        except RecursionError:
            return TraceError("trace_invalid_json", "nested too deeply", window.offset)
        except ValueError:
            pass  # a number of thousands of digits: sound as far as it goes
        return self._truncated()

    # --- the events ---

    def _events(self) -> None:
        window = self.window
        window.pos += 1
        if window.peek() == 0x5D:  # ]
            window.pos += 1
            return
        self._pieces()

    def _pieces(self) -> bool:
        """Read events from the window's position to the end of the array; False when a bound region has ended."""
        window = self.window
        while True:
            if window.at_limit and self._close():
                if window.bound:
                    return False
                self._join()
            elif not self._guess():
                if self._exact():
                    return True
                self._expect(b",]")
                if window.buffer[window.pos - 1] == 0x5D:
                    return True
                if window.peek() == 0x5D:
                    raise TraceError("trace_invalid_json", "an event expected after the comma", window.offset)
                if self.processes > 1:
                    self._split()
            if self.standard.complete > _FOREIGN_FROM:
                self._refuse_foreign()
            while window.end - window.pos < window.chunk and not window.at_limit and window.fill():
                pass

    def _split(self) -> None:
        """Have other processes read regions of a large file: all but the first and what follows the last."""
        window = self.window
        number = min(self.processes, window.source.rest(window.base + window.end) // _REGION)
        self.processes = 1
        if number < 2:
            return
        cuts = window.source.cuts(window.base + window.end, number, self.separators, window.chunk)
        for start, stop in zip(cuts, cuts[1:]):
            self.regions.append(_Region(self, start + 1, stop))
        if self.regions:
            window.limit = cuts[0]

    def region(self) -> None:
        """Read a region whose limit is set. Raises TraceError or _WrongCut if it is not just a number of events."""
        self.window.bound = True
        while self.window.end - self.window.pos < self.window.chunk and self.window.fill():
            pass
        if self._pieces() or self.collected.lost:
            raise _WrongCut

    def _close(self) -> bool:
        """Take all up to the limit as the last events before it; False, and no limit any more, if they are not."""
        window = self.window
        try:
            with memoryview(b"[%b]" % bytes(window.buffer[window.pos : window.end])) as piece:
                self._take(piece)
        except _WrongCut:
            if window.bound:
                raise
            window.limit = None
            return False
        window.pos = window.end
        return True

    def _join(self) -> None:
        """Add the regions that others have read, as far as each follows the one before, and go on behind the last."""
        limit = self.window.limit or 0
        for region in self.regions:
            found = region.result() if region.start == limit + 1 else None
            if found is None:
                break
            collected, standard = found
            self.collected.join(collected)
            self.standard.join(standard)
            limit = region.stop
        self.window.seek(limit + 1)

    def _guess(self) -> bool:
        """Cut at the last place that looks like the border of two events; False if there is none or it is wrong."""
        window = self.window
        buffer = window.buffer
        best, comma = -1, -1
        for separator in self.separators:
            found = buffer.rfind(separator, window.pos, window.end)
            if found > best:
                best, comma = found, found + separator.index(b",")
        if best < 0:
            return False
        start = window.pos - 1
        before = buffer[start]
        buffer[start], buffer[comma] = 0x5B, 0x5D
        try:
            with memoryview(buffer) as view, view[start : comma + 1] as piece:
                self._take(piece)
        except _WrongCut:
            buffer[start], buffer[comma] = before, 0x2C
            return False
        window.pos = comma + 1
        return True

    def _take(self, piece: memoryview) -> None:
        """Decode a guessed piece; raises _WrongCut if it is none, or needs the tolerant way."""
        text: bytes | memoryview = piece
        if not bytes(piece).isascii():
            text = self._utf8_or_wrong(bytes(piece))
        events: Batches
        if self.fast is not None:
            try:
                count, events = self.fast.decode(text)
            except msgspec.ValidationError:
                count, events = self._decode_standard(text)
                self.fast.learn(self.standard.categories)
            except (msgspec.DecodeError, RecursionError):
                if not self.collected.nonstandard:
                    raise _WrongCut from None
                # This file has such numbers: most likely the cut was right.
                try:
                    count, events = self.fast.decode(repair(bytes(text)))
                except (msgspec.DecodeError, RecursionError):
                    raise _WrongCut from None
        else:
            count, events = self._decode_standard(text)
        self.collected.events += count
        self.collected.take(events)

    @staticmethod
    def _utf8_or_wrong(text: bytes) -> bytes:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            raise _WrongCut from None
        return text

    def _decode_standard(self, text: bytes | memoryview) -> tuple[int, Batches]:
        try:
            return self.standard.decode(text)
        except (ValueError, RecursionError):
            raise _WrongCut from None

    def _exact(self) -> bool:
        """Find the true borders in the window, decode up to the last one; True when the array has ended."""
        window = self.window
        while True:
            last, closed = self._borders()
            if closed >= 0 or last >= 0:
                break
            if not window.fill():
                raise self._diagnose_end(b"[")
        stop = closed if closed >= 0 else last
        text = b"[" + self._utf8(bytes(window.buffer[window.pos : stop])) + b"]"
        count, events = self._tolerant(text, self._decode_exact, 1)
        self.collected.events += count
        self.collected.take(events)
        window.pos = stop + 1 if closed >= 0 else stop
        return closed >= 0

    def _decode_exact(self, text: bytes, strict: bool) -> tuple[int, Batches]:
        if self.fast is not None:
            try:
                return self.fast.decode(text)
            except (msgspec.DecodeError, RecursionError):
                pass
        result = self.standard.decode(text, strict)
        if self.fast is not None and self.standard.categories:
            self.fast.learn(self.standard.categories)
        return result

    def _borders(self) -> tuple[int, int]:
        """(end of the last whole event, position of the array's closing bracket), -1 where there is none.

        Also learns how the border of two events looks in this file.
        """
        window = self.window
        buffer = window.buffer
        depth, last, previous = 0, -1, -1
        for match in _TOKEN.finditer(buffer, window.pos, window.end):
            at = match.start()
            byte = buffer[at]
            if byte in _OPEN:
                if depth == 0 and previous >= 0:
                    self._learn(previous, at)
                depth += 1
                if depth > MAX_DEPTH:
                    raise TraceError("trace_invalid_json", "nested too deeply", window.base + at)
            elif byte in _CLOSE:
                depth -= 1
                if depth == 0:
                    previous = at
                    last = match.end()
                elif depth < 0:
                    if byte != 0x5D:
                        raise TraceError("trace_invalid_json", "'}' where an event or ']' belongs", window.base + at)
                    return last, at
            elif match.end() - at == 1:
                break
        return last, -1

    def _learn(self, close: int, start: int) -> None:
        """Remember the bytes from the end of an event to the first key of the next."""
        buffer = self.window.buffer
        key = _TOKEN.match(buffer, _end_of_space(buffer, start + 1, self.window.end), self.window.end)
        if key is None or key.end() - close > 256 or len(self.separators) >= 8:
            return
        separator = bytes(buffer[close : key.end()])
        if separator.count(b",") == 1 and separator not in self.separators:
            self.separators.append(separator)


class _Region:
    """A part of the file, from C(start) up to the comma at C(stop), that a process of its own reads."""

    def __init__(self, parser: _Parser, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=self._read, args=(sender, parser))
        self._process.start()
        sender.close()

    def _read(self, sender: Connection, parser: _Parser) -> None:
        window = parser.window
        part = _Parser(
            _Window(window.source.again(), window.chunk, window.max_bytes), Collected(), parser.fast is not None
        )
        part.separators = parser.separators
        part.window.seek(self.start)
        part.window.limit = self.stop
        try:
            part.region()
            sender.send((part.collected, part.standard))
        except (TraceError, _WrongCut, OSError, MemoryError):
            sender.send(None)  # who reads it from its true start sees what is wrong

    def result(self) -> tuple[Collected, _StandardDecoder] | None:
        """What was read; None if the region could not be."""
        try:
            found: tuple[Collected, _StandardDecoder] | None = self._receiver.recv()
            return found
        except EOFError:  # killed
            return None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._receiver.close()


class _WrongCut(Exception):
    """A piece is not a whole number of events in standard JSON."""


def _end_of_space(buffer: bytearray, pos: int, end: int) -> int:
    match = _SPACE.match(buffer, pos, end)
    return match.end() if match else pos


def read_trace(
    path: str | os.PathLike[str],
    *,
    fast: bool | None = None,
    chunk: int = CHUNK,
    max_bytes: int | None = None,
    processes: int = 1,
) -> Collected:
    """Read the GPU events and steps of one trace file (JSON or gzip).

    C(fast) None takes msgspec where it is installed; True demands it; False never uses it (same result, slower).
    C(chunk) is the size of the pieces in bytes, C(max_bytes) the largest text accepted. C(processes): how many may read
    a large file side by side (same result, sooner). Raises OSError,
    TraceError with the position in the unpacked text (in the file where gzip itself is damaged), NotATrace.
    """
    use_fast = msgspec is not None if fast is None else fast
    if use_fast and msgspec is None:
        raise ImportError("msgspec is not installed")
    collected = Collected()
    source = _Source(path)
    collecting = gc.isenabled()
    # Millions of short-lived objects without cycles: the collector would only walk over them.
    gc.disable()
    parser = _Parser(_Window(source, chunk, max_bytes), collected, use_fast, processes)
    try:
        parser.parse()
    finally:
        for region in parser.regions:
            region.close()
        if collecting:
            gc.enable()
        source.close()
    return collected
