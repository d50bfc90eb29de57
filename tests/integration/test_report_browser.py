# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page in a real browser: it shows what matters, runs and loads nothing, and fits a phone."""

from __future__ import annotations

import html
import http.server
import re
import shutil
import struct
import subprocess
import threading
import zlib
from pathlib import Path

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils import _render, _thresholds
from ansible_collections.aorta.automation.tests.unit.plugins import run_factory as factory

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt install chromium)")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture
def browse(tmp_path):
    """Run the browser with a profile of its own."""

    def call(*arguments):
        profile = tmp_path / "profile"
        command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.decode()

    return call


@pytest.fixture
def page(tmp_path):
    """A report of a failed run."""
    spec = factory.spec(min_compute_ratio=0.9, max_time_variance_ratio=0.5)
    factory.write_run(tmp_path / "run", results=factory.results(), spec=spec, manifest=factory.manifest())
    _thresholds.judge_run(tmp_path / "run")
    return _render.render_run(tmp_path / "run").html


def probe(page: Path, script: str) -> Path:
    """A copy of the page with a script of ours, whose answer becomes the page's title."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text)
    copy = page.with_name("probe.html")
    copy.write_text(text.replace("</body>", f"<script>document.title = ({script})()</script></body>"), encoding="utf-8")
    return copy


def title(dom: str) -> str:
    found = re.search(r"<title>(.*?)</title>", dom, re.S)
    assert found
    return html.unescape(found[1])


def pixels(path: Path) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Width, height and the colours of the first pixel of each row of a PNG as the browser writes it."""
    data = path.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) in ((8, 2), (8, 6))
    size = 3 if kind == 2 else 4
    packed, at = b"", 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(packed)
    row = width * size + 1
    before = bytearray(width * size)
    colours = []
    for number in range(height):
        method, line = raw[number * row], bytearray(raw[number * row + 1 : (number + 1) * row])
        for column in range(size):  # the first pixel has no left neighbour
            if method in (2, 4):
                line[column] = (line[column] + before[column]) & 255
            elif method == 3:
                line[column] = (line[column] + before[column] // 2) & 255
        colours.append((line[0], line[1], line[2]))
        before = line
    return width, height, colours


def test_the_page_shows_what_matters_first(browse, page):
    script = """() => [...document.querySelectorAll('h1, .reason, .hint, #checks .badge, #ranks svg.chart')]
        .map(e => Math.round(e.getBoundingClientRect().top) + ' ' + e.textContent.trim().slice(0, 20)).join('|')"""
    entries = title(browse("--dump-dom", probe(page, script).as_uri())).split("|")
    places = {text: int(top) for top, text in (entry.split(" ", 1) for entry in reversed(entries))}
    assert places["FAILED"] < 60
    assert places["1 of 2 checks failed"] < 120
    assert places["Look first at rank 5"] < 160
    assert places["✕ FAIL"] < 500


def test_nothing_is_loaded_and_nothing_runs(browse, page):
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            data = page.read_bytes() if self.path == "/report.html" else b""
            self.send_response(200 if data else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        # A script that got into the page would not run either
        text = page.read_text(encoding="utf-8").replace("</main>", "<script>document.title='ran'</script></main>")
        page.write_text(text, encoding="utf-8")
        dom = browse("--dump-dom", f"http://127.0.0.1:{server.server_port}/report.html")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert title(dom).startswith("FAILED")
    assert set(asked) - {"/favicon.ico"} == {"/report.html"}


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window(browse, page, width):
    # Headless windows have a least width of 500, so a frame stands for the phone.
    frame = page.with_name("frame.html")
    script = """() => [document.documentElement.scrollWidth, innerWidth,
        ...[...document.querySelectorAll('table')].map(e => e.parentElement.className)].join()"""
    inner = probe(page, script)
    frame.write_text(
        f"<iframe id=f src='{inner.name}' style='width:{width}px;height:800px;border:0'></iframe>"
        "<title></title><script>f.onload = () => document.title = f.contentDocument.title</script>",
        encoding="utf-8",
    )
    options = ("--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom")
    answer = title(browse(*options, frame.as_uri())).split(",")
    needed, given = map(int, answer[:2])
    assert given == width
    assert needed <= given
    assert set(answer[2:]) == {"scroll"}


def test_light_and_dark(browse, page, tmp_path):
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    browse("--window-size=900,1200", f"--screenshot={light}", page.as_uri())
    text = page.read_text(encoding="utf-8")
    assert text.count("@media (prefers-color-scheme: dark)") == 1
    other = page.with_name("dark.html")
    other.write_text(text.replace("@media (prefers-color-scheme: dark)", "@media all"), encoding="utf-8")
    browse("--window-size=900,1200", f"--screenshot={dark}", other.as_uri())
    for path, bright in ((light, True), (dark, False)):
        width, height, colours = pixels(path)
        assert (width, height) == (900, 1200)
        assert (sum(colours[-1]) > 600) == bright, colours[-1]


def test_a_large_page_opens(browse, tmp_path):
    results = factory.results(512, 64, steps=20, slow={77: 1.2})
    factory.write_run(tmp_path / "run", results=results, spec=factory.spec(max_avg_iteration_ms=1))
    _thresholds.judge_run(tmp_path / "run")
    path = _render.render_run(tmp_path / "run").html
    count = "() => document.querySelectorAll('#ranks tbody tr').length"
    answer = title(browse("--dump-dom", probe(path, count).as_uri()))
    assert int(answer) >= 512
