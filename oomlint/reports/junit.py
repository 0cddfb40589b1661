"""JUnit's XML, which most CI systems draw as test results; valid by Jenkins' `junit-10.xsd`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as xml

from oomlint.reports.entry import Entry, entries, path_notes
from oomlint.reports.report import Report

# What XML 1.0 can neither hold nor escape.
UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> Iterator[str]:
    found = list(entries(report))
    top = xml.Element("testsuites", {"name": "oomlint", **counts(found)})
    for path, group in groupby(found, key=lambda entry: entry.path):
        inside = list(group)
        suite = xml.SubElement(top, "testsuite", suite_of(speakable(str(path)), inside))
        for entry in inside:
            add_case(suite, entry, report)
    if not found:
        suite = xml.SubElement(top, "testsuite", suite_of("oomlint", found))
        xml.SubElement(suite, "testcase", {"name": "No errors found", "classname": "oomlint"})
    xml.indent(top, "    ")
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield xml.tostring(top, encoding="unicode")


def suite_of(name: str, found: list[Entry]) -> dict[str, str]:
    return {"name": name, **counts(found), "skipped": "0", "package": "org.oomlint"}


def counts(found: list[Entry]) -> dict[str, str]:
    """A run without findings is one test that passed."""
    errors = sum(entry.is_problem for entry in found)
    return {
        "tests": str(len(found) or 1),
        "failures": str(len(found) - errors),
        "errors": str(errors),
    }


def add_case(suite: xml.Element, entry: Entry, report: Report) -> None:
    attributes = {
        "name": f"org.oomlint.{entry.code}",
        "classname": speakable(str(without_suffix(entry.path))),
    }
    case = xml.SubElement(suite, "testcase", attributes)
    kind = "error" if entry.is_problem else "failure"
    said = xml.SubElement(case, kind, {"type": entry.code, "message": speakable(entry.message)})
    first = f"line {entry.row}, col {entry.column}, {entry.message}"
    said.text = speakable("\n".join([first, *path_notes(entry, report)]))


def without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in (".py", ".pyi") else path


def speakable(text: str) -> str:
    return UNSPEAKABLE.sub("\ufffd", text)
