# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reports of every kind of run: what they say, that names stay data, that others can read them."""

from __future__ import annotations

import html.parser
import io
import json
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import openpyxl
import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import (
    _render,
    _report,
    _report_html,
    _report_junit,
    _report_text,
    _report_xlsx,
    _thresholds,
    _verdict,
)
from ansible_collections.aorta.automation.tests.unit.plugins import run_factory as run

LIMITS = {
    "max_avg_iteration_ms": 120,
    "min_compute_ratio": 0.5,
    "min_overlap_ratio": 0.3,
    "max_time_variance_ratio": 0.1,
}
VOID = {"meta", "br", "link", "img", "hr", "input"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "{{ 7 * 7 }}{% raw %}",
    "a\x00b\x07c\x1b[31md\x9f",
    "\u202egnp.exe\u2066",
    "اسم النواة",
    "🦄🧪 kernel",
    "\ud800 lone surrogate",
    "x" * 5000,
    "]]><!-- --><![CDATA[",
    "</style></title><svg onload=alert(1)>",
    "javascript:alert(1)",
]


class Page(html.parser.HTMLParser):
    """Reads a page strictly: everything that is opened is closed, in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = []
        self.ids = []
        self.words = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"an attribute is given twice: {attrs}"
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def values(self, tag, attribute):
        return [attributes[attribute] for name, attributes in self.tags if name == tag and attribute in attributes]


def rendered(tmp_path, results=None, spec=None, manifest=None, judged=True, template=None):
    run_dir = run.write_run(tmp_path / "run", results=results, spec=spec, manifest=manifest)
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "node1.log").write_text("line\n")
    if judged:
        _thresholds.judge_run(run_dir)
    done = _render.render_run(run_dir, template)
    text = done.html.read_text(encoding="utf-8")
    return done, text, Page(text)


CASES = {
    "passed": lambda: (run.results(), run.spec(**LIMITS), run.manifest()),
    "no limits": lambda: (run.results(), run.spec(), None),
    "failed": lambda: (run.results(), run.spec(min_compute_ratio=0.9, min_overlap_ratio=0.9), run.manifest()),
    "error": lambda: (None, run.spec(**LIMITS), run.manifest(failure=run.FAILURE)),
    "no_data": lambda: (None, run.spec(**LIMITS), None),
    "partial": lambda: (run.without_gpu(run.without_rank(run.results(), 6), 2), run.spec(**LIMITS), run.manifest()),
    "all damaged": lambda: (run.without_rank(run.results(2, 1, slow={}), 0, 1), run.spec(**LIMITS), run.manifest()),
    "single rank": lambda: (run.results(1, 1, slow={}), run.spec(**LIMITS), run.manifest()),
    "single step": lambda: (run.results(4, 1, steps=1, slow={}), run.spec(**LIMITS), run.manifest()),
    "no gpu at all": lambda: (run.without_gpu(run.results(2, 1, slow={}), 0, 1), run.spec(**LIMITS), run.manifest()),
    "40 ranks": lambda: (run.results(40, 5, slow={17: 1.2}), run.spec(**LIMITS), run.manifest()),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_run_has_all_its_reports(tmp_path, name):
    done, _text, page = rendered(tmp_path, *CASES[name]())
    status = json.loads((tmp_path / "run" / "verdict.json").read_text())["status"]
    word = _report.UNLIMITED if name == "no limits" else _report.WORDS[status]
    assert page.text.index(word) < page.text.index("Checks")
    assert done.summary_lines[0].startswith(f"aorta: {word} ")
    assert done.stats["aorta_status"] == status
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.values("a", "href") if link.startswith("#")} <= set(page.ids)
    assert "None" not in page.text.replace("None.", "")
    assert "nan" not in page.text.lower().split()
    assert all(len(line) <= 100 or str(tmp_path) in line for line in done.summary_lines)
    assert len(done.summary_lines) <= 20
    book = openpyxl.load_workbook(done.xlsx)
    assert book.sheetnames == [
        "summary",
        "checks",
        "per rank",
        "per step",
        "collectives",
        "collective sizes",
        "stragglers",
        "stragglers by step",
        "outside steps",
        "clocks",
        "kernel kinds",
        "kernels",
        "warnings",
        "configuration",
    ]
    root = ElementTree.parse(done.junit).getroot()
    assert (int(root.get("failures")) + int(root.get("errors")) == 0) == (status == "passed")


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    _done, text, page = rendered(tmp_path, *CASES["passed"]())
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & {tag for tag, _a in page.tags}
    assert not [name for _tag, attributes in page.tags for name in attributes if name.startswith("on")]
    definitions = f'<a class="small" href="{_report.DEFINITIONS}#'
    assert definitions in text
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace(definitions, ""))
    for _tag, attributes in page.tags:
        assert "src" not in attributes
    links = [link for link in page.values("a", "href") if not link.startswith(("#", _report.DEFINITIONS))]
    assert links
    assert all(not link.startswith("/") and ":" not in link for link in links)


def test_the_page_is_accessible(tmp_path):
    _done, _text, page = rendered(tmp_path, *CASES["partial"]())
    assert page.values("html", "lang") == ["en"]
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    tags = [tag for tag, _a in page.tags]
    assert {"header", "main", "footer", "nav", "caption"} <= set(tags)
    assert tags.count("h1") == 1
    images = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("role") == "img"]
    assert images
    assert all(a.get("aria-label") or a.get("aria-labelledby") in page.ids for a in images)


def test_the_page_says_what_failed_and_where(tmp_path):
    _done, _text, page = rendered(tmp_path, *CASES["failed"]())
    head = page.text[: page.text.index("Key figures", 600)]
    assert "2 of 2 checks failed" in head
    assert "Look first at rank 5 on node1" in head
    assert "✕ FAIL" in page.text
    assert "at least 0.9" in page.text


def test_a_failed_run_leads_with_the_failure(tmp_path):
    done, _text, page = rendered(tmp_path, *CASES["error"]())
    assert page.text.index("What failed") < page.text.index("Key figures")
    for words in ("on node1 (rank 5, exit code 137)", "step train: the container was killed", "Killed"):
        assert words in page.text
    assert "logs/node1.log" in page.values("a", "href")
    assert any(line.startswith("log: ") for line in done.summary_lines)


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        (
            [
                "Traceback (most recent call last):",
                '    raise OwnError("x: y")',
                "OwnError: HIP error: lost",
                "later: 1",
            ],
            "OwnError: HIP error: lost",
        ),
        (["[rank 3] torch.MyError: lost", "ChildFailedError:"], "[rank 3] torch.MyError: lost"),
        (["ChildFailedError:", "====", "x FAILED"], None),
        (["step 1", "Memory access fault by GPU node-4"], "Memory access fault by GPU node-4"),
        (["step=3 loss=2.0 error=0"], None),
    ],
)
def test_the_line_of_a_log_that_tells_the_cause(lines, telling):
    manifest = run.manifest(failure={**run.FAILURE, "log_tail": lines})
    view = _report.make_view(None, None, {}, manifest, [])
    assert view.failure.telling == telling
    assert (view.hint is None) == (telling is None)


def test_a_report_without_any_file_says_so(tmp_path):
    done, _text, page = rendered(tmp_path, judged=False)
    assert "NOT JUDGED" in page.text
    assert "There are no figures" in page.text
    assert "There is no record of the configuration" in page.text
    assert done.stats["aorta_status"] == "not_judged"
    assert ElementTree.parse(done.junit).getroot().get("errors") == "1"


def test_a_damaged_file_is_an_error_of_the_report(tmp_path):
    run_dir = run.write_run(tmp_path, spec=run.spec(), manifest=run.manifest(failure=run.FAILURE))
    (run_dir / "results.json").write_text("{")
    done = _render.render_run(run_dir)
    page = Page(done.html.read_text())
    assert "damaged_file" in page.text
    assert "What failed" in page.text


def test_what_was_not_measured_is_said_and_not_drawn(tmp_path):
    _done, _text, page = rendered(tmp_path, *CASES["no gpu at all"]())
    assert "Not measured: no rank has GPU events." in page.text
    _done, text, page = rendered(tmp_path / "other", *CASES["single step"]())
    assert "Not measured: no rank has the times of two steps" in page.text
    assert "Iteration time of each step" not in text


def test_missing_and_lost_ranks_are_rows_of_their_own(tmp_path):
    view = _report.make_view(run.checked(CASES["partial"]()[0]), None, {}, run.manifest(), [])
    assert [(row.rank, row.node, row.remarks) for row in view.worst_first[:2]] == [
        (6, "node1", ["no figures: trace_truncated"]),
        (2, "node0", ["no_gpu_events"]),
    ]


def test_outliers_are_named_in_words(tmp_path):
    view = _report.make_view(run.checked(run.results(slow={5: 1.2})), None, {}, {}, [])
    assert [row.rank for row in view.conspicuous] == [5]
    assert re.fullmatch(
        r"iterations \d+ % and computation \d+ % longer than the median", view.conspicuous[0].remarks[0]
    )
    assert view.conspicuous[0].remarks[1] == "last to arrive in 36 of 48 collectives"
    assert _report.make_view(run.checked(run.results(slow={})), None, {}, {}, []).conspicuous == []


def test_a_slow_node_is_named_as_such():
    view = _report.make_view(
        run.checked(run.results(32, 4, slow={16: 1.2, 17: 1.3, 18: 1.2, 19: 1.2})), None, {}, {}, []
    )
    assert view.hint.startswith("Look first at node2: 4 of its 8 ranks stand out, worst rank 17: iterations 30 %")
    view = _report.make_view(run.checked(run.results(32, 4, slow={2: 1.2, 17: 1.3, 30: 1.2})), None, {}, {}, [])
    assert view.hint.startswith("Look first at rank 17 on node2: iterations 30 %")
    assert view.hint.endswith("(2 more ranks marked below).")


def test_passed_for_want_of_limits_does_not_look_like_passed(tmp_path):
    done, text, page = rendered(tmp_path, *CASES["no limits"]())
    assert done.summary_lines[0].startswith("aorta: COMPLETED, NO LIMITS SET ")
    assert "no limits are set, so nothing was compared" in done.summary_lines[1]
    assert '<header class="banner unlimited">' in text
    assert "PASSED" not in page.text
    assert done.stats["aorta_status"] == "passed"


def test_no_check_of_a_failed_run_looks_met(tmp_path):
    results = run.without_rank(run.results(), 6)
    done, text, page = rendered(tmp_path, results, run.spec(**LIMITS), run.manifest(failure=run.FAILURE))
    assert "✓ pass" not in page.text
    assert page.text.count("not counted") == len(LIMITS)
    assert text.count('<tr class="void">') == len(LIMITS)
    found = [row[2].value for row in openpyxl.load_workbook(done.xlsx)["checks"].iter_rows(min_row=2)]
    assert found == ["fail"] + ["not counted"] * len(LIMITS)


def test_who_made_the_others_wait_and_why(tmp_path):
    done, _text, page = rendered(tmp_path, run.results(64, 8, slow={42: 1.2}), run.spec(**LIMITS), run.manifest())
    sheet = openpyxl.load_workbook(done.xlsx)["stragglers"]
    header, first = (list(row) for row in sheet.iter_rows(max_row=2, values_only=True))
    row = dict(zip(header, first, strict=True))
    assert (row["rank"], row["node"], row["cause"]) == (42, "node5", "compute")
    assert row["made others wait per step (ms)"] == pytest.approx(row["made others wait (ms)"] / 6)
    assert sheet.max_row == 65
    assert "42 node5 36 of 48 (0) 64.30 10.72 64.00 0.310 -0.010 0.000 0.420 compute" in page.text
    assert "and 52 more, all of them in report.xlsx." in page.text


def test_kinds_of_kernels_with_their_spread_over_ranks(tmp_path):
    done, _text, page = rendered(tmp_path, run.results(slow={5: 1.12}), run.spec(**LIMITS), run.manifest())
    assert "gemm 3 800 2,517 50.0 % 310.0 (310.0 to 347.2) +12.0 % rank 5 on node1" in page.text
    sheet = openpyxl.load_workbook(done.xlsx)["kernel kinds"]
    assert sheet.max_row == 1 + 3 * 9


def test_512_ranks_stay_readable(tmp_path):
    results = run.results(512, 64, steps=50, slow={77: 1.12, 300: 1.2})
    _done, text, page = rendered(tmp_path, results, run.spec(max_avg_iteration_ms=90), run.manifest())
    assert len(text.encode()) < 3_000_000
    assert "The 16 worst of 512 ranks" in page.text
    assert "The other 496 ranks" in page.text
    assert text.count("<polyline") == 3
    assert page.text.count("▲ marks") == 1


# --- names are data ---------------------------------------------------------------------------------------------------


def hostile_run():
    """A run in which every name that comes from outside is an attack."""
    results = run.results(len(HOSTILE), 2)
    for rank, name in zip(results["per_rank"], HOSTILE, strict=True):
        rank.update(node=name, gpu=name, trace=name)
    for straggler, name in zip(results["stragglers"], HOSTILE, strict=True):
        straggler["node"] = name
    results["clock_offsets_us"] = dict.fromkeys(HOSTILE, 1.5)
    results["top_kernels"] = [{**results["top_kernels"][0], "name": name} for name in HOSTILE]
    results["collective_sizes"] = [
        {**results["collective_sizes"][0], "name": name, "group": name, "dtype": name} for name in HOSTILE
    ]
    results["kernel_kinds"] = [{**results["kernel_kinds"][0], "kind": name} for name in HOSTILE]
    for row, name in zip(results["straggler_steps"], HOSTILE, strict=False):
        row["node"] = name
    for collective, name in zip(results["collectives"], HOSTILE, strict=False):
        collective.update(name=name, group=name, dtype=name)
    results["warnings"] = [{"code": "events_skipped", "message": name, "file": name} for name in HOSTILE]
    results["errors"] = [{"code": "trace_truncated", "message": name, "rank": 1, "file": name} for name in HOSTILE]
    results.update(status="partial", trace_dir=HOSTILE[0])
    spec = run.spec(limits=[{"metric": "per_rank.ratios.compute", "min": 0.9, "name": HOSTILE[1]}])
    spec["values"]["environment"] = {f"N{at}": name for at, name in enumerate(HOSTILE)}
    spec["container_env"] = dict(spec["values"]["environment"])
    spec["override_argv"] = HOSTILE
    spec["warnings"] = [{"code": name, "message": name} for name in HOSTILE]
    failure = {**run.FAILURE, "host": HOSTILE[0], "message": "\n".join(HOSTILE), "log_tail": HOSTILE}
    manifest = run.manifest(failure=failure)
    manifest["hosts"] = {
        name: {"facts": {name: name}, "image": {"reference": name, "digest": name}} for name in HOSTILE
    }
    return results, spec, manifest


def hostile_view():
    results, spec, manifest = hostile_run()
    text = json.dumps([results, spec, manifest]).replace("\\ud800", "?")
    results, spec, manifest = json.loads(text)
    checked = run.checked(results)
    verdict = _thresholds.judge(checked, spec, manifest)
    files = [_report.File(name, "x", name) for name in HOSTILE]
    return _report.make_view(checked, verdict, spec, manifest, files)


def test_hostile_names_stay_text_in_the_page():
    text = _report_html.render_html(hostile_view())
    page = Page(text)
    for raw in ("<script", "<img", "<svg onload", "<!--", "]]><", "\x1b", "\x00", "\u202e", "\u2066"):
        assert raw not in text
    assert "{{ 7 * 7 }}" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "اسم النواة" in page.text
    assert "🦄🧪 kernel" in page.text
    assert not {"script", "img"} & {tag for tag, _a in page.tags}
    assert not [name for _tag, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "x" * 1001 not in text


def test_hostile_names_stay_text_in_the_workbook():
    data = _report_xlsx.workbook(hostile_view())
    book = openpyxl.load_workbook(io.BytesIO(data))
    found = {}
    for sheet in book:
        for row in sheet.iter_rows():
            for cell in row:
                assert cell.data_type != "f", (sheet.title, cell.coordinate, cell.value)
                if isinstance(cell.value, str) and cell.value[:1] in "=+-@\t\r":
                    found[cell.value] = cell.quotePrefix
    assert set(found) >= {"=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)"}
    assert all(found.values())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if name.endswith(".xml"):
                content = archive.read(name)
                ElementTree.fromstring(content)
                assert b"<f>" not in content


def test_hostile_names_stay_text_in_junit():
    root = ElementTree.fromstring(_report_junit.junit_xml(hostile_view()))
    names = [case.get("name") for case in root.iter("testcase")]
    assert HOSTILE[1] in names
    assert names[:2] == ["run", "data_complete"]


def test_hostile_names_do_not_reach_the_terminal(tmp_path):
    view = hostile_view()
    for line in _report_text.summary_lines(view, tmp_path):
        assert line.isprintable() or line == ""
        assert len(line) <= 100 or str(tmp_path) in line


def test_text_longer_than_a_cell_is_cut():
    assert len(_report_xlsx.clean("y" * 40000)) == _report_xlsx.CELL_LIMIT


def test_more_rows_than_a_sheet_takes_are_counted(monkeypatch):
    monkeypatch.setattr(_report_xlsx, "MAX_ROWS", 10)
    view = _report.make_view(run.checked(run.results()), None, {}, {}, [])
    book = openpyxl.load_workbook(io.BytesIO(_report_xlsx.workbook(view)))
    sheet = book["per step"]
    assert sheet.max_row == 12
    assert sheet.cell(12, 1).value == "38 more rows are left out; results.json has all of them"


def test_the_workbook_is_ready_to_use():
    view = _report.make_view(run.checked(run.results()), None, run.spec(), {}, [])
    book = openpyxl.load_workbook(io.BytesIO(_report_xlsx.workbook(view)))
    sheet = book["per rank"]
    header = [cell.value for cell in sheet[1]]
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref.startswith("A1:")
    row = dict(zip(header, list(sheet[7]), strict=True))
    assert row["rank"].value == 5
    assert row["iteration mean (ms)"].value == pytest.approx(view.ranks[5].mean_ms)
    assert row["iteration mean (ms)"].number_format == "#,##0.000"
    assert row["total (ms)"].value == pytest.approx(view.results.per_rank[5].timeline_us.total / 1000)
    step = [cell.value for cell in book["per step"][2]]
    assert step[:3] == [0, "node0", 5]
    assert step[3] == pytest.approx(view.results.per_rank[0].iterations.durations_ms[0])


# --- configuration ----------------------------------------------------------------------------------------------------


def test_every_value_is_shown_with_the_layer_that_set_it():
    layers = {setting.path: (setting.value, setting.layer) for setting in _report.settings_of(run.spec())}
    assert layers["docker.image"] == ("rocm/pytorch:rocm7.1_ubuntu24.04_py3.12", "extra vars")
    assert layers["docker.privileged"] == ("false", "model default")
    assert layers["training_overrides.training.max_steps"] == ("50", "aorta_set")


def test_secrets_are_hidden_even_if_they_came_this_far(tmp_path):
    spec = run.spec()
    spec["values"]["environment"]["HF_TOKEN"] = spec["container_env"]["HF_TOKEN"] = "hf_very_secret"
    done, text, _page = rendered(tmp_path, run.results(), spec, run.manifest())
    assert "hf_very_secret" not in text
    assert b"hf_very_secret" not in b"".join(
        zipfile.ZipFile(done.xlsx).read(name) for name in zipfile.ZipFile(done.xlsx).namelist()
    )
    assert "hf_very_secret" not in json.dumps(done.stats) + done.junit.read_text()


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_part_of_the_page_can_be_replaced(tmp_path):
    (tmp_path / "mine" / "report").mkdir(parents=True)
    template = tmp_path / "mine" / "report.html.j2"
    template.write_text((_report_html.TEMPLATES / "report.html.j2").read_text())
    (tmp_path / "mine" / "report" / "files.html.j2").write_text("<p>ours {{ view.run_id }}</p>")
    _done, _text, page = rendered(tmp_path, *CASES["passed"](), template=template)
    assert "ours 20261201T101500Z-4f2a" in page.text
    assert "Key figures" in page.text


@pytest.mark.parametrize(
    ("text", "message"), [("{{ view.nothing }}", "has no attribute 'nothing'"), ("\n{% if %}", "line 2: Expected an")]
)
def test_a_template_that_can_not_be_used_is_named(tmp_path, text, message):
    template = tmp_path / "broken.j2"
    template.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.j2") as caught:
        rendered(tmp_path, *CASES["passed"](), template=template)
    assert message in str(caught.value)


# --- other forms ------------------------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_check(tmp_path):
    spec = run.spec(
        min_compute_ratio=0.9, max_time_variance_ratio=0.5, limits=[{"metric": "world.num_ranks", "min": 1, "max": 99}]
    )
    data = run.results(1, 1, slow={})
    done, _text, _page = rendered(tmp_path, data, spec, run.manifest())
    root = ElementTree.parse(done.junit).getroot()
    suite = root.find("testsuite")
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {
        "run": [],
        "data_complete": ["system-out"],
        "min_compute_ratio": ["failure"],
        "max_time_variance_ratio": ["skipped"],
        "world.num_ranks": ["system-out"],
        "world.num_ranks (2)": ["system-out"],
    }
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["6", "1", "0", "1"]
    assert "compute ratio" in suite.find(".//failure").text


def test_the_summary_for_the_terminal():
    results = run.checked(run.results(slow={5: 1.2}))
    verdict = _thresholds.judge(results, run.spec(max_avg_iteration_ms=100, min_compute_ratio=0.9), run.manifest())
    view = _report.make_view(results, verdict, run.spec(), run.manifest(), [])
    assert _report_text.summary_lines(view, Path("/runs/r1")) == [
        "aorta: FAILED   run 20261201T101500Z-4f2a",
        "  2 of 2 checks failed: iteration time 103.3 ms > 100 ms (worst: rank 5 on node1: 120.9 ms)",
        "",
        "  ranks         8 of 8 on 2 nodes, AMD Instinct MI300X",
        "  iteration     103.3 ms         variance   6.9 %",
        "  compute       57.0 %           overlap    40.4 %",
        "  exposed comm  21.6 %           idle       20.3 %",
        "",
        "  FAIL          iteration time 103.3 ms > 100 ms (worst: rank 5 on node1: 120.9 ms)",
        "  FAIL          compute ratio 0.5697 < 0.9 (worst: rank 0 on node0: 0.5529)",
        "",
        "  Look first at rank 5 on node1: iterations 20 % and computation 34 % longer than the median; last",
        "  to arrive in 36 of 48 collectives.",
        "",
        "report: /runs/r1/report.html",
    ]


def test_what_set_stats_gets_is_small_and_plain(tmp_path):
    done, _text, _page = rendered(tmp_path, *CASES["partial"]())
    assert tuple(done.stats) == _verdict.STATS_NAMES
    assert done.stats["aorta_failed_checks"] == ["data_complete"]
    assert done.stats["aorta_results"]["num_ranks"] == 7
    assert done.stats["aorta_results"]["missing_ranks"] == 1
    assert len(json.dumps(done.stats, allow_nan=False)) < 2000


@pytest.mark.parametrize(
    ("values", "around"),
    [([100.0], 100), ([99.0, 136.1], 100), ([0.0, 0.0], 0), ([1e-4, 2e-4], 1e-4), ([5e6, 9e6], 5e6)],
)
def test_axes_hold_their_values(values, around):
    axis = _report.make_axis(values, around)
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert 3 <= len(axis.ticks) <= 12
    assert axis.span > 0
