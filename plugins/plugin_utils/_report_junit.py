# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as JUnit XML: a test case for the run, one for the data, one for each check."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from ansible_collections.aorta.automation.plugins.plugin_utils._report import View
from ansible_collections.aorta.automation.plugins.plugin_utils._verdict import DATA_COMPLETE, Check

# Everything that XML 1.0 has no place for, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: object) -> str:
    """C(text) without characters that XML forbids."""
    return _ILLEGAL.sub("\ufffd", str(text))


def junit_xml(view: View) -> bytes:
    """The whole document, UTF-8."""
    suite = ElementTree.Element("testsuite", name=clean(view.benchmark))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run_id", view.run_id), ("status", view.status or "not_judged"), ("reason", view.reason)):
        ElementTree.SubElement(properties, "property", name=name, value=clean(value))
    seconds = sum(phase.get("seconds") or 0 for phase in view.phases)
    counts: Counter[str] = Counter()
    _add(suite, counts, "run", f"{seconds:.3f}", *_run_outcome(view))
    checks = list(view.verdict.checks) if view.verdict is not None else []
    _add(suite, counts, DATA_COMPLETE, "0", *_data_outcome(view, checks))
    used: Counter[str] = Counter()
    for check in checks:
        if check.name == DATA_COMPLETE:
            continue
        used[check.name] += 1
        number = f" ({used[check.name]})" if used[check.name] > 1 else ""
        _add(suite, counts, f"{check.name}{number}", "0", *_check_outcome(check))
    for name in ("tests", "failure", "error", "skipped"):
        suite.set(name if name in ("tests", "skipped") else f"{name}s", str(counts[name]))
    suite.set("time", f"{seconds:.3f}")
    if view.created:
        suite.set("timestamp", clean(view.created).removesuffix("Z"))
    root = ElementTree.Element("testsuites", {k: suite.attrib[k] for k in ("tests", "failures", "errors", "time")})
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add(
    suite: ElementTree.Element,
    counts: Counter[str],
    name: str,
    seconds: str,
    kind: str,
    type_: str,
    text: str,
    output: str = "",
) -> None:
    """Append a test case; C(kind) is the element that says it did not pass, empty if it did."""
    case = ElementTree.SubElement(suite, "testcase", classname="aorta.automation", name=clean(name), time=seconds)
    counts["tests"] += 1
    if kind:
        counts[kind] += 1
        element = ElementTree.SubElement(case, kind, message=clean(text))
        if kind != "skipped":
            element.set("type", type_)
            element.text = clean(text)
    elif text:
        ElementTree.SubElement(case, "system-out").text = clean(text)
    if output:
        ElementTree.SubElement(case, "system-out").text = clean(output)


def _run_outcome(view: View) -> tuple[str, str, str, str]:
    if view.failure is not None:
        return "error", clean(view.failure.reason or "failure"), view.failure.line, "\n".join(view.failure.log_tail)
    if view.verdict is None:
        return "error", "not_judged", view.reason, ""
    return "", "", "", ""


def _data_outcome(view: View, checks: list[Check]) -> tuple[str, str, str]:
    row = next((check for check in checks if check.name == DATA_COMPLETE), None)
    if row is not None:
        return _check_outcome(row)
    if view.num_measured:
        return "", "", f"{view.num_measured} ranks measured"
    return "failure", "no_data", view.reason if view.status == "no_data" else "there are no figures of any rank"


def _check_outcome(check: Check) -> tuple[str, str, str]:
    kind = {"pass": "", "fail": "failure", "not_measured": "failure", "not_applicable": "skipped"}[check.status]
    return kind, check.status, check.message


__all__ = ["clean", "junit_xml"]
