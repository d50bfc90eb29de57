# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the follower prints: everything, in order, and not too often."""

from __future__ import annotations

import pytest
from ansible_collections.aorta.automation.plugins.action import follow


class Display:
    def __init__(self):
        self.prints = []

    def display(self, text):
        self.prints.append(text)

    @property
    def lines(self):
        return [line for text in self.prints for line in text.split("\n")]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(follow, "time", clock)
    return clock


def test_a_single_line_is_printed_at_once(clock):
    display = Display()
    printer = follow.Printer(display, "all", ["node0", "node10"])
    printer("node0", ["hello"])
    assert display.prints == ["[node0]  hello"]


def test_no_more_than_thirty_prints_a_second(clock):
    display = Display()
    hosts = [f"node{number}" for number in range(8)]
    printer = follow.Printer(display, "all", hosts)
    wanted = []
    for tick in range(100):  # ten seconds, 100,000 lines
        for host in hosts:
            lines = [f"line {tick} {number} {'x' * (number % 397)}" for number in range(125)]
            printer(host, lines)
            wanted += [f"[{host}] {line}" for line in lines]
        printer.tick()
        clock.now += 0.1
    printer.flush()
    assert display.lines == wanted
    assert len(display.prints) <= 10 * 30


def test_prints_stay_short_while_they_are_few(clock):
    display = Display()
    printer = follow.Printer(display, "all", ["node0"])
    printer("node0", ["first"])
    printer("node0", ["x" * 300] * 10)
    assert display.prints == ["[node0] first"]
    clock.now += follow.PRINT_SECONDS
    printer.tick()
    assert max(map(len, display.prints)) <= follow.PRINT_CHARACTERS + 10
    assert len(display.lines) == 11


def test_every_nth_line_of_each_host(clock):
    display = Display()
    printer = follow.Printer(display, "3", ["a", "b"])
    for start in range(0, 20, 2):
        printer("a", [f"{start}", f"{start + 1}"])
    printer("b", ["0", "1"])
    printer.flush()
    assert display.lines == [f"[a] {number}" for number in range(0, 20, 3)] + ["[b] 0"]


def test_quiet(clock):
    display = Display()
    printer = follow.Printer(display, "quiet", ["a"])
    printer("a", ["x"])
    printer.flush()
    assert display.prints == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("10%\r20%\r30%", "30%"),
        ("\x1b[2Jwiped", "�[2Jwiped"),
        ("a\tb", "a\tb"),
        ("y" * 1_000_000, "y" * 400 + " … (1000000 characters, all in the log file)"),
    ],
)
def test_a_line_can_play_no_tricks(line, shown):
    assert follow.printable(line) == shown
