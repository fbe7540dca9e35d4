"""Progress: bars on terminals, lines where they are asked for, nothing otherwise."""

import sys
import time

import pytest

from dpbilevel.execution import progress
from dpbilevel.execution.progress import set_display, show_progress


@pytest.mark.parametrize(("display", "spoken"), [("bar", 0), ("none", 0), ("lines", 3)])
def test_lines_are_for_those_who_ask(display, spoken, monkeypatch, capfd):
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    with set_display(display), show_progress("tuning", 4, "steps") as advance:
        for _ in range(4):
            advance(1)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tuning: ")]
    counts = [line for line in lines if " 0 of " not in line]
    assert len(counts) == spoken
    assert all(line.endswith(" s left") for line in counts[1:]), "of the first step nobody knows the pace"


def test_nothing_is_said_within_two_seconds(capfd):
    with set_display("lines"), show_progress("tuning", 4) as advance:
        advance(1)
    assert capfd.readouterr() == ("", "")


def test_a_display_ends_with_its_block(capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with set_display("lines"), set_display("none"), show_progress("tuning", 2) as advance:
        advance(2)
    assert capfd.readouterr() == ("", "")
    assert progress._DISPLAY.get() == "bar"


def wait_for(capfd, text):
    """What was said until ``text`` came; fails after five seconds without it."""
    said, ends = "", time.monotonic() + 5
    while text not in said:
        assert time.monotonic() < ends, f"not said within five seconds: {text}"
        time.sleep(0.01)
        said += capfd.readouterr().err
    return said


def test_something_is_said_within_five_seconds_whatever_is_going_on(capfd):
    """Planning, and then the first step, which is compiled: neither counts anything."""
    with set_display("lines"):
        assert wait_for(capfd, "\n") == "dpbilevel: still at work\n"
        with show_progress("tuning", 200):
            assert wait_for(capfd, "\n") == "tuning: 0 of 200 releases so far\n"


def test_a_silence_is_broken_once(monkeypatch, capfd):
    monkeypatch.setattr(progress, "_INTERVAL", 0.05)
    with set_display("lines"), show_progress("tuning", 200):
        said = wait_for(capfd, "so far\n")
        time.sleep(0.5)
    assert said.count("so far") + capfd.readouterr().err.count("so far") == 1


@pytest.mark.parametrize("compiled", [1, 2], ids=["in the first step", "in the second, after a checkpoint"])
def test_the_first_estimate_leaves_compilation_out(compiled, monkeypatch, capfd):
    """The compiler takes a hundred times as long as a step."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_POLLING", 1000.0)
    with set_display("lines"), show_progress("tuning", 20) as advance:
        for step in range(1, 4):
            clock[0] += 1000.0 if step == compiled else 10.0
            advance(1)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "tuning: 1 of 20 releases"
    assert lines[2] == "tuning: 3 of 20 releases, about 170 s left"


def test_a_closed_stderr_ends_no_run(monkeypatch):
    class Closed:
        def isatty(self):
            return False

        def write(self, text):
            raise ValueError("I/O operation on closed file")

        flush = write

    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    with set_display("lines"), show_progress("tuning", 3) as advance:
        time.sleep(0.3)
        advance(1)
