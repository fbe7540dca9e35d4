"""Progress: bars on terminals, lines where they are asked for, nothing otherwise."""

import sys

import pytest

from dpbilevel import progress
from dpbilevel.progress import counted, displayed


@pytest.mark.parametrize(("display", "spoken"), [("bar", 0), ("none", 0), ("lines", 3)])
def test_lines_are_for_those_who_ask(display, spoken, monkeypatch, capfd):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with displayed(display), counted("tuning", 4, "steps") as advance:
        for _ in range(4):
            advance(1)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == spoken
    assert all(line.startswith("tuning: ") and line.endswith(" s left") for line in lines)


def test_nothing_is_said_within_two_seconds(capfd):
    with displayed("lines"), counted("tuning", 4) as advance:
        advance(1)
    assert capfd.readouterr() == ("", "")


def test_a_display_ends_with_its_block(capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with displayed("lines"), displayed("none"), counted("tuning", 2) as advance:
        advance(2)
    assert capfd.readouterr() == ("", "")
    assert progress._DISPLAY.get() == "bar"
