# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.aorta.automation.plugins.module_utils import _trace_reader as reader
from ansible_collections.aorta.automation.plugins.module_utils._trace_reader import (
    Collected,
    NotATrace,
    TraceError,
    nanoseconds,
    read_trace,
)
from ansible_collections.aorta.automation.tests.unit.plugins.trace_factory import GEMM, Trace, healthy, microseconds
from hypothesis import given, settings
from hypothesis import strategies as st

BOTH = pytest.mark.parametrize("fast", [True, False], ids=["msgspec", "standard library"])


def state(collected: Collected) -> dict[str, Any]:
    """All that was read, comparable."""
    kept = {key: value for key, value in vars(collected).items() if not key.startswith("_")}
    kept["streams"] = [collected.stream_names[index] for index in collected.streams]
    return kept


def read_text(tmp_path: Path, text: str | bytes, fast: bool, **kwargs: Any) -> Collected:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, fast=fast, **kwargs)


# --- numbers ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1000),
        ("6300000000.000", 6_300_000_000_000),
        ("1767225600000000.123", 1_767_225_600_000_000_123),
        ("0.001", 1),
        ("-0.5", -500),
        ("-1500.000", -1_500_000),
        ("4.0", 4000),
        ("1.5e3", 1_500_000),
        ("1E-3", 1),
        ("12.3456", 12346),
        ("12.3455", 12346),
        ("1e-70", 0),
        ("0.0004", 0),
        ("1e30", None),
        ("9" * 63, None),
        ("9" * 100, None),
        ("1e999999999", None),
        ("", None),
        ('"12.500"', None),
        ("null", None),
        ("[1.500", None),
        ("true", None),
        ("nan", None),
    ],
)
def test_nanoseconds_come_from_the_decimal_text(text: str, expected: int | None) -> None:
    assert nanoseconds(text.encode()) == expected


@given(st.integers(-(10**15), 10**15), st.integers(0, 9), st.integers(-12, 12))
def test_nanoseconds_agree_with_decimal_arithmetic(digits: int, places: int, exponent: int) -> None:
    text = f"{Decimal(digits).scaleb(-places):f}" + (f"e{exponent}" if exponent else "")
    exact = int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_UP))
    assert nanoseconds(text.encode()) == (exact if abs(exact) < 1 << 62 else None)


# --- well-formed input ---


@BOTH
def test_keeps_gpu_events_and_host_side_steps_only(tmp_path: Path, fast: bool) -> None:
    trace = Trace().step(3, 0, 1000).kernel(100, 50).memcpy(200, 10).memset(300, 20)
    trace.event("gpu_user_annotation", "ProfilerStep#3", 5, 17)
    trace.event("gpu_user_annotation", "nccl:all_reduce", 5, 17)
    trace.event("cpu_op", "ProfilerStep#9", 5, 17)
    trace.event("user_annotation", "ProfilerStep#x", 5, 17)
    trace.event("user_annotation", "nccl:all_reduce", 5, 17)
    found = read_trace(trace.write(tmp_path / "t.json"), fast=fast)
    origin = trace.origin
    assert list(found.starts) == [origin + 100, origin + 200, origin + 300]
    assert list(found.ends) == [origin + 150, origin + 210, origin + 320]
    assert found.names == [(reader.KERNEL, GEMM), (reader.MEMCPY, "Memcpy HtoD"), (reader.MEMSET, "Memset (Device)")]
    assert found.steps == {3: (origin, origin + 1000)}
    assert found.events == 9
    assert found.devices == {0: 1}


@BOTH
def test_a_step_seen_by_several_threads_counts_once(tmp_path: Path, fast: bool) -> None:
    trace = Trace().step(3, 10, 900).step(3, 0, 1000).step(3, 0, 500).kernel(0, 1)
    assert read_trace(trace.write(tmp_path / "t.json"), fast=fast).steps == {3: (trace.origin, trace.origin + 1000)}


FORMS = {
    "compact": lambda data: json.dumps(data, separators=(",", ":")),
    "indented": lambda data: json.dumps(data, indent=3),
    "one line": json.dumps,
    "CRLF": lambda data: json.dumps(data, indent=1).replace("\n", "\r\n"),
    "keys after the events": lambda data: json.dumps({"traceEvents": data["traceEvents"], **data}),
    "root array": lambda data: json.dumps(data["traceEvents"]),
    "BOM": lambda data: "\ufeff" + json.dumps(data),
    "space everywhere": lambda data: " \n" + json.dumps(data, separators=(" ,\n\t", "  :\r\n ")) + "\n\n ",
    "escaped": lambda data: json.dumps(data).replace("Memcpy", "\\u004demcpy"),
    "lists of objects after the events": lambda data: json.dumps({**data, "frames": [{"ph": "X"}, {"ph": "X"}] * 50}),
    "cat behind args": lambda data: json.dumps(
        {"traceEvents": [dict(reversed(event.items())) for event in data["traceEvents"]], "baseTimeNanoseconds": 7}
    ),
}


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [64, 333, 4096])
def test_the_form_of_the_json_makes_no_difference(tmp_path: Path, fast: bool, form: str, chunk: int) -> None:
    trace = healthy().memcpy(5, 7)
    trace.raw('{"name": "process_name", "ph": "M", "ts": 1.000, "pid": 0, "args": {"name": "python"}}')
    trace.kernel(1_500_000, 10, "void f<'},{'>(char)\\\"]}")
    plain = read_text(tmp_path, trace.text(), fast)
    # ts as floats would lose nothing here: origin is small
    found = read_text(tmp_path, FORMS[form](json.loads(trace.text())), fast, chunk=chunk)
    for attribute in ("starts", "ends", "keys", "names", "steps", "collectives", "events", "skipped", "devices"):
        assert getattr(found, attribute) == getattr(plain, attribute), attribute


NASTY = st.sampled_from(
    ["},{", '"},{"', '}, {"ph"', "]", "[", "\\", '\\"', "}\n  ,{", "é", "\u2028", "😀", "nan", "inf", "},\n  {\n", "x"]
)


@settings(deadline=None, max_examples=150)
@given(
    names=st.lists(st.lists(NASTY, max_size=6).map("".join), min_size=1, max_size=12),
    nested=st.lists(st.lists(st.dictionaries(NASTY, st.integers() | NASTY, max_size=2), max_size=3), max_size=12),
    chunk=st.integers(16, 400),
    indent=st.sampled_from([None, 0, 2]),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : "), (",\n  ", ": ")]),
    asciify=st.booleans(),
)
def test_cuts_at_adversarial_places(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    nested: list[Any],
    chunk: int,
    indent: int | None,
    separators: tuple[str, str],
    asciify: bool,
) -> None:
    """Whatever strings and nested objects look like the border of events, both readers see exactly the events."""
    events: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        args: dict[str, Any] = {"device": 0, "stream": index % 2}
        if index < len(nested):
            args["list"] = nested[index]
        category = ("kernel", "cpu_op", "gpu_memcpy", "odd category", None)[index % 5]
        event = {"ph": "X", "cat": category, "name": name, "ts": 1000 + index, "dur": 1, "args": args}
        events.append({key: value for key, value in event.items() if value is not None})
    data = {"a": nested, "traceEvents": events, "z": names}
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=asciify)
    path = tmp_path_factory.mktemp("cuts") / "t.json"
    path.write_text(text, encoding="utf-8")
    kinds = {"kernel": 0, "gpu_memcpy": 1}
    wanted = [(kinds[e["cat"]], e["name"], e["ts"] * 1000) for e in events if e.get("cat") in kinds]
    found = [read_trace(path, fast=fast, chunk=chunk) for fast in (True, False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_REGION", 1)
        found += [read_trace(path, fast=fast, chunk=chunk, processes=3) for fast in (True, False)]
    for one in found:
        rows = [(*one.names[key], start) for key, start in zip(one.keys, one.starts, strict=True)]
        assert rows == wanted
        assert one.events == len(events)
        assert one.bytes == len(text.encode())
    assert state(found[0]) == state(found[1]) == state(found[2]) == state(found[3])


@BOTH
def test_gzip_whatever_the_name_several_members_and_padding(tmp_path: Path, fast: bool) -> None:
    text = healthy().text().encode()
    plain = read_text(tmp_path, text, fast)
    for name, data in {
        "a.json.gz": gzip.compress(text),
        "b.json": gzip.compress(text),
        "c.json.gz": text,
        "d.json.gz": gzip.compress(text[:500]) + gzip.compress(b"") + gzip.compress(text[500:]) + b"\0" * 100,
    }.items():
        (tmp_path / name).write_bytes(data)
        assert state(read_trace(tmp_path / name, fast=fast, chunk=300)) == state(plain), name


@BOTH
def test_legacy_categories(tmp_path: Path, fast: bool) -> None:
    trace = Trace()
    trace.event("Kernel", GEMM, 0, 10, {"device": 0, "stream": 7}).event("Memcpy", "Memcpy HtoD", 20, 5)
    trace.event("Memset", "Memset", 30, 5).event("Runtime", "cudaLaunchKernel", 0, 1)
    trace.event("Operator", "aten::mm", 0, 1).event("Operator", "ProfilerStep#4", 0, 100)
    found = read_trace(trace.write(tmp_path / "t.json"), fast=fast)
    assert [kind for kind, _name in found.names] == [reader.KERNEL, reader.MEMCPY, reader.MEMSET]
    assert list(found.steps) == [4]
    assert found.legacy


@BOTH
def test_the_modern_categories_are_not_legacy(tmp_path: Path, fast: bool) -> None:
    assert not read_trace(healthy().write(tmp_path / "t.json"), fast=fast).legacy


# --- odd records ---


@BOTH
@pytest.mark.parametrize(
    ("times", "skipped"),
    [
        ('"ts": 0.000, "dur": 0.000', True),
        ('"ts": 0, "dur": 5', True),
        ('"ts": -5, "dur": 5', True),
        ('"ts": 6300000000.000, "dur": -1500.000', True),
        ('"ts": 6300000000.000', True),
        ('"dur": 5.000', True),
        ('"ts": 6300000000.000, "dur": nan', True),
        ('"ts": -inf, "dur": 1', True),
        ('"ts": "6300000000.000", "dur": 5', True),
        ('"ts": 6300000000.000, "dur": null', True),
        ('"ts": 6300000000.000, "dur": [5]', True),
        ('"ts": 6300000000.000, "dur": 18446744073709550.116', True),
        ('"ts": 6300000000.000, "dur": 1e400', True),
        ('"ts": 6300000000.000, "dur": ' + "9" * 5000, True),
        ('"ts": 6300000000.000, "dur": 0.000', False),
        ('"ts": 6.3e9, "dur": 5E-1', False),
    ],
)
def test_records_without_usable_times_are_skipped_and_counted(
    tmp_path: Path, fast: bool, times: str, skipped: bool
) -> None:
    trace = (
        Trace().kernel(100, 50).raw(f'{{"ph": "X", "cat": "kernel", "name": "odd", {times}, "args": {{"device": 0}}}}')
    )
    found = read_trace(trace.write(tmp_path / "t.json"), fast=fast)
    assert (found.skipped, len(found.starts)) == ((1, 1) if skipped else (0, 2))


@BOTH
def test_a_trace_that_counts_from_zero_loses_nothing(tmp_path: Path, fast: bool) -> None:
    trace = Trace(origin=0, base=None).kernel(0, 50).kernel(100, 50).kernel(-20, 10)
    found = read_trace(trace.write(tmp_path / "t.json"), fast=fast)
    assert (sorted(found.starts), found.skipped) == ([-20, 0, 100], 0)


@BOTH
@pytest.mark.parametrize(
    "event",
    [
        '{"cat": "kernel", "ts": 1.5, "dur": 1}',
        '{"cat": "kernel", "name": null, "ts": 1.5, "dur": 1, "args": null}',
        '{"cat": "kernel", "name": 7, "ts": 1.5, "dur": 1, "args": [1]}',
        '{"cat": "kernel", "name": {"a": "b"}, "ts": 1.5, "dur": 1, "args": "x"}',
    ],
)
def test_a_kernel_of_odd_form_is_nameless_but_counts(tmp_path: Path, fast: bool, event: str) -> None:
    found = read_text(tmp_path, f'{{"traceEvents": [{event}, 5, null, "x", []]}}', fast)
    assert (list(found.starts), found.names) == ([1500], [(reader.KERNEL, "")])


@BOTH
@pytest.mark.parametrize("token", ["nan", "-nan", "NaN", "inf", "-inf", "Infinity", "-Infinity", "INF", "nan(ind)"])
def test_nonstandard_numbers_are_read_and_noted(tmp_path: Path, fast: bool, token: str) -> None:
    text = Trace().kernel(1, 2, "a nan, inf: 'Infinity' [inf]").kernel(3, 4, occupancy=123456).text()
    assert not read_text(tmp_path, text, fast).nonstandard
    found = read_text(tmp_path, text.replace("123456", token), fast, chunk=64)
    assert found.nonstandard
    assert found.names == [(reader.KERNEL, "a nan, inf: 'Infinity' [inf]"), (reader.KERNEL, GEMM)]


@BOTH
def test_raw_control_characters_are_read_and_noted(tmp_path: Path, fast: bool) -> None:
    found = read_text(tmp_path, Trace().kernel(1, 2, "a_b").text().replace("a_b", "a\tb"), fast)
    assert (found.names, found.nonstandard) == ([(reader.KERNEL, "a\tb")], True)


@BOTH
@pytest.mark.parametrize("place", ["name", "cpu", "header", "tail"])
def test_bytes_that_are_no_utf8_are_replaced_and_noted(tmp_path: Path, fast: bool, place: str) -> None:
    trace = Trace().kernel(1, 2, "k_name").event("cpu_op", "k_cpu", 1, 2)
    trace.header_extra["x"] = "k_header"
    data = trace.text().replace("x.json", "k_tail").encode().replace(f"k_{place}".encode(), b"\xff\xfe")
    found = read_text(tmp_path, data, fast)
    assert found.encoding_replaced
    assert found.names == [(reader.KERNEL, "\ufffd\ufffd" if place == "name" else "k_name")]


@BOTH
def test_lone_surrogates_do_not_reach_names(tmp_path: Path, fast: bool) -> None:
    found = read_text(tmp_path, Trace().kernel(1, 2, "a_b").text().replace("a_b", "a\\ud800b"), fast)
    assert found.names == [(reader.KERNEL, "a?b")]
    found.names[0][1].encode()


@BOTH
def test_large_numbers_do_not_stop_the_reader(tmp_path: Path, fast: bool) -> None:
    found = read_text(tmp_path, Trace().kernel(1, 2, big=0).text().replace('"big": 0', '"big": ' + "7" * 100_000), fast)
    assert len(found.starts) == 1


# --- damage ---


@BOTH
def test_a_text_that_ends_early_is_truncated_wherever_it_ends(tmp_path: Path, fast: bool) -> None:
    text = healthy().text()
    for cut in range(1, len(text.rstrip()), 11):
        with pytest.raises(TraceError) as caught:
            read_text(tmp_path, text[:cut], fast, chunk=256)
        assert (caught.value.code, caught.value.byte) == ("trace_truncated", cut), text[max(0, cut - 40) : cut]


@BOTH
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("chunk", [64, reader.CHUNK])
def test_other_damage_is_named_with_its_place(tmp_path: Path, fast: bool, where: float, chunk: int) -> None:
    text = healthy().text()
    place = text.index('"ts": ', int(where * (text.rindex('"ts"') - 10)))
    broken = text[:place] + "?" + text[place + 1 :]
    with pytest.raises(TraceError) as caught:
        read_text(tmp_path, broken, fast, chunk=chunk)
    assert caught.value.code == "trace_invalid_json"
    assert caught.value.byte is not None and abs(caught.value.byte - place) <= 2


@BOTH
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "trace_empty_file"),
        ("  \n", "trace_empty_file"),
        ("\ufeff", "trace_empty_file"),
        ("hello", "trace_invalid_json"),
        ("\0\0\0\0", "trace_invalid_json"),
        ('{"traceEvents": [{"a": 1},]}', "trace_invalid_json"),
        ('{"traceEvents": [{"a": 1} {"b": 2}]}', "trace_invalid_json"),
        ('{"traceEvents": [,{"a": 1}]}', "trace_invalid_json"),
        ('{"traceEvents": [{"a": 1}]} {}', "trace_invalid_json"),
        ('{"traceEvents": [{"a": 1}]]', "trace_invalid_json"),
        ('{"traceEvents": [{"a": 1]]', "trace_invalid_json"),
        ('{"traceEvents": [}', "trace_invalid_json"),
        ('{"a" 1}', "trace_invalid_json"),
        ('{"a": }', "trace_invalid_json"),
        ("{,}", "trace_invalid_json"),
        ('{"a": 01}', "trace_invalid_json"),
        ('{"a": tru}', "trace_invalid_json"),
        ('{"traceEvents": [{"a": "\\q"}]}', "trace_invalid_json"),
        ('{"traceEvents": [' + "[" * 100_000 + "]" * 100_000 + "]}", "trace_invalid_json"),
        ('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "trace_invalid_json"),
        ('{"traceEvents": [' + '{"a":' * 100_000, "trace_"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_not_json_is_one_error(tmp_path: Path, fast: bool, text: str, code: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_text(tmp_path, text, fast)
    assert caught.value.code.startswith(code)


@BOTH
@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1, 2]", '[{"a": 1}]', '{"a": [1]}', '{"traceEvents": null}', '{"x": {"traceEvents": [{}]}}']
)
def test_json_without_events_is_not_a_trace(tmp_path: Path, fast: bool, text: str) -> None:
    with pytest.raises(NotATrace):
        read_text(tmp_path, text, fast)


@BOTH
def test_damaged_gzip(tmp_path: Path, fast: bool) -> None:
    packed = gzip.compress(healthy().text().encode())
    path = tmp_path / "t.json.gz"
    for cut in (3, 20, len(packed) // 2, len(packed) - 4):
        path.write_bytes(packed[:cut])
        with pytest.raises(TraceError) as caught:
            read_trace(path, fast=fast)
        assert (caught.value.code, caught.value.byte) == ("trace_truncated", cut)
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises(TraceError) as caught:
        read_trace(path, fast=fast)
    assert caught.value.code == "trace_invalid_json"
    path.write_bytes(packed + b"rubbish")
    with pytest.raises(TraceError, match="gzip"):
        read_trace(path, fast=fast)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(TraceError, match="empty"):
        read_trace(path, fast=fast)


@BOTH
def test_more_text_than_allowed_is_refused(tmp_path: Path, fast: bool) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000))
    with pytest.raises(TraceError, match="max_trace_bytes") as caught:
        read_trace(path, fast=fast, max_bytes=1_000_000)
    assert caught.value.code == "trace_too_large"


@BOTH
def test_an_endless_value_ends_in_an_error(tmp_path: Path, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_VALUE", 1 << 20)
    for head in ('{"x": "', '{"traceEvents": [{"name": "'):
        with pytest.raises(TraceError) as caught:
            read_text(tmp_path, head + "y" * 8_000_000 + '"', fast)
        assert caught.value.code == "trace_too_large"


@BOTH
@pytest.mark.parametrize("tail", ["", "]" * 100_000 + '}, "traceEvents": []}'])
@pytest.mark.parametrize("head", ['{"x": ', '{"traceEvents": [{"args": '])
def test_deep_nesting_ends_in_an_error(tmp_path: Path, fast: bool, head: str, tail: str) -> None:
    with pytest.raises(TraceError, match="nested too deeply") as caught:
        read_text(tmp_path, head + "[" * 100_000 + tail, fast)
    assert caught.value.code == "trace_invalid_json"


@BOTH
@pytest.mark.parametrize("key", ["ts", "stream", "Seq", "baseTimeNanoseconds", "rank"])
def test_a_number_of_a_million_digits_is_no_figure(tmp_path: Path, fast: bool, key: str) -> None:
    trace = healthy().kernel(5_000_000, 7, stream=424242)
    text = trace.text().replace('"rank": 0', '"rank": 424242')
    digits = "7" * 1_000_000
    if key == "ts":
        text = text.replace(microseconds(trace.origin + 5_000_000), digits)
    elif key in ("stream", "rank"):
        text = text.replace(f'"{key}": 424242', f'"{key}": {digits}')
    else:
        text = re.sub(rf'"{key}": [0-9]+', f'"{key}": {digits}', text, count=1)
    found = read_text(tmp_path, text, fast)
    assert (len(found.starts), found.skipped) == ((4, 1) if key == "ts" else (5, 0))
    assert all(record["seq"] is None or record["seq"] < 10 for record in found.collectives.values())


@BOTH
def test_a_file_made_to_unpack_without_end_is_refused(
    tmp_path: Path, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_BOMB_FROM", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 40_000_000))
    with pytest.raises(TraceError, match="400 times its size") as caught:
        read_trace(path, fast=fast)
    assert caught.value.code == "trace_too_large"


JAX = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]
ROCPROF = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "CPU HIP API"}}]
EVENT = {"ph": "X", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2, "name": "k"}


@BOTH
@pytest.mark.parametrize(
    ("head", "events", "program"),
    [
        ({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}, JAX, "JAX"),
        ({}, ROCPROF, "rocprof"),
        ({"metadata": {}}, [], "Chrome or Perfetto"),
        ({"otherData": {}}, [], "rocprof or Chrome"),
    ],
)
def test_other_profilers_are_refused_by_name(
    tmp_path: Path, fast: bool, head: dict[str, Any], events: list[Any], program: str
) -> None:
    text = json.dumps({**head, "traceEvents": [*events, EVENT]})
    with pytest.raises(TraceError, match=f"written by {program}") as caught:
        read_text(tmp_path, text, fast)
    assert caught.value.code == "not_pytorch"
    # Long before the end of a large one.
    text = json.dumps({**head, "traceEvents": [*events, *[EVENT] * 5000]})[:-2000]
    with pytest.raises(TraceError, match=f"written by {program}"):
        read_text(tmp_path, text, fast, chunk=1000)


@BOTH
def test_what_pytorch_itself_leaves_without_category_is_no_other_profiler(tmp_path: Path, fast: bool) -> None:
    trace = healthy()
    for event in (*JAX, EVENT):
        trace.raw(json.dumps(event))
    assert len(read_text(tmp_path, trace.text(), fast).starts) == 4


# Like a bare number in JSON, one with a payload ends before the next; what is no JSON anyway may be mended either way
PIECES = st.sampled_from(
    ["inf", "nan", "-inf", "-nan", "Infinity", "NaN", "nan(ind), ", "INF", "infra", "a", "\\", ", ", ":", "1", "{", "}"]
)


@given(st.lists(st.tuples(st.booleans(), st.lists(PIECES, max_size=6).map("".join)), max_size=12))
def test_repairing_is_the_same_with_and_without_looking_at_each_string(parts: list[tuple[bool, str]]) -> None:
    text = " ".join(f'"{part}"' if quoted else part.replace("\\", "") for quoted, part in parts).encode()
    slow = reader._NONSTANDARD.sub(
        lambda match: match.group() if match.group()[:1] == b'"' else b'""'.ljust(len(match.group())), text
    )
    assert reader.repair(text) == slow


def test_without_msgspec_the_standard_library_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = healthy().write(tmp_path / "t.json")
    expected = state(read_trace(path, fast=True))
    monkeypatch.setattr(reader, "msgspec", None)
    assert state(read_trace(path)) == expected
    with pytest.raises(ImportError):
        read_trace(path, fast=True)


def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path) -> None:
    import gc

    assert gc.isenabled()
    with pytest.raises(TraceError):
        read_text(tmp_path, "?", True)
    assert gc.isenabled()


def outcome(path: Path, fast: bool, chunk: int, processes: int = 1) -> Any:
    try:
        return state(read_trace(path, fast=fast, chunk=chunk, processes=processes))
    except NotATrace:
        return "not a trace"
    except TraceError as exc:
        return exc.code, exc.byte


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_has_the_same_outcome_with_and_without_msgspec(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes are lost, doubled or changed anywhere; text that is still JSON is read, all else is one error."""
    text = bytearray(healthy().memcpy(5, 7).text().encode())
    for _fault in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 40))
        text[at : at + length] = data.draw(
            st.sampled_from(
                [b"", b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"nan", b"\xff", b"1", b"\n", b"\0", b"},{"]
            )
        )
    path = tmp_path_factory.mktemp("damage") / "t.json"
    path.write_bytes(text)
    small = data.draw(st.integers(16, 300))
    results = [outcome(path, fast, chunk) for fast in (True, False) for chunk in (small, reader.CHUNK)]
    assert results[0] == results[2]
    assert results[1] == results[3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_REGION", 1)
        results.append(outcome(path, True, small, processes=3))
    # The places of the cuts may move the reported place of a second fault, not the verdict.
    assert isinstance(results[0], tuple) == isinstance(results[1], tuple) == isinstance(results[4], tuple)
    assert isinstance(results[0], tuple) or results[0] == results[4]
    try:
        sound = isinstance(json.loads(text), (dict, list))
    except (ValueError, RecursionError):
        sound = False
    if sound:
        assert not isinstance(results[0], tuple)


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Regions of files, however small, that were read by other processes: start, stop, and whether that was of use."""
    told: list[tuple[int, int, bool]] = []
    result = reader._Region.result

    def tell(self: Any) -> Any:
        found = result(self)
        told.append((self.start, self.stop, found is not None))
        return found

    monkeypatch.setattr(reader._Region, "result", tell)
    monkeypatch.setattr(reader, "_REGION", 1)
    return told


def long_trace() -> Trace:
    trace = healthy()
    for place in range(400):
        trace.kernel(100 + place, 1 + place % 7, name=f"kernel {place % 11}", stream=place % 3)
    return trace


@BOTH
def test_regions_are_read_side_by_side(tmp_path: Path, fast: bool, regions: list[tuple[int, int, bool]]) -> None:
    text = long_trace().text()
    alone = read_text(tmp_path, text, fast, chunk=2000)
    assert state(read_text(tmp_path, text, fast, chunk=2000, processes=4)) == state(alone)
    assert [useful for _start, _stop, useful in regions] == [True] * 3
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(regions))
    assert 0 < regions[0][0] < regions[-1][1] < len(text)


@BOTH
@pytest.mark.parametrize("where", [0.1, 0.4, 0.6, 0.999])
def test_damage_in_a_region_is_found_where_it_is(
    tmp_path: Path, fast: bool, where: float, regions: list[tuple[int, int, bool]]
) -> None:
    text = long_trace().text()
    at = text.index('"dur"', int(len(text) * where) - 300)
    for fault, code in (('"dur"!', "trace_invalid_json"), ("", "trace_truncated")):
        with pytest.raises(TraceError) as alone:
            read_text(tmp_path, text[:at] + fault + (text[at + 5 :] if fault else ""), fast, chunk=2000)
        with pytest.raises(TraceError) as split:
            read_text(tmp_path, text[:at] + fault + (text[at + 5 :] if fault else ""), fast, chunk=2000, processes=4)
        assert (split.value.code, split.value.message, split.value.byte) == (code, *alone.value.args[1:])


def test_a_region_whose_process_dies_is_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regions: list[tuple[int, int, bool]]
) -> None:
    monkeypatch.setattr(reader._Region, "_read", lambda self, sender, parser: os._exit(9))
    text = long_trace().text()
    alone = read_text(tmp_path, text, True, chunk=2000)
    assert state(read_text(tmp_path, text, True, chunk=2000, processes=3)) == state(alone)
    assert [useful for _start, _stop, useful in regions] == [False]
