"""Progress of a run: a bar on terminals, plain lines where the command line requests them, nothing otherwise.

How often releases are used is public. Neither it nor the time of a use depends on the values of records.
"""

import contextlib
import contextvars
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

Advance = Callable[[int], None]
Display = Literal["bar", "lines", "none"]

_DISPLAY: contextvars.ContextVar[Display] = contextvars.ContextVar("display", default="bar")
_INTERVAL = 2.0  # seconds between two lines, and before the first
_POLLING = 0.1  # seconds between two checks of the clock
_AT_WORK = "dpbilevel: still at work"


class _LinePrinter:
    """Lines on stderr, and one line for a long step without output: planning, or compilation before the first round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._printed = time.monotonic()
        self._pending: str | None = _AT_WORK
        # A thread, because XLA's compilation blocks the main one; a daemon, so that it does not outlive the run.
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def expect(self, line: str) -> None:
        """Set the line to print once if nothing else is printed for a while."""
        with self._lock:
            self._pending = line

    def write(self, line: str) -> None:
        """Print a line, unless another was printed less than `_INTERVAL` ago."""
        with self._lock:
            if time.monotonic() - self._printed >= _INTERVAL:
                self._print(line)

    def end(self) -> None:
        """Stop printing."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_POLLING):
            with self._lock:
                if self._pending is not None and time.monotonic() - self._printed >= _INTERVAL:
                    self._print(self._pending)

    def _print(self, line: str) -> None:
        self._printed, self._pending = time.monotonic(), None
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed; the run continues without it
            print(line, file=sys.stderr, flush=True)


_PRINTER: contextvars.ContextVar[_LinePrinter | None] = contextvars.ContextVar("printer", default=None)


@contextlib.contextmanager
def set_display(display: Display) -> Iterator[None]:
    """Set the display of all runs inside: "bar" (on terminals), "lines" (bars on terminals, else lines) or "none"."""
    printer = _LinePrinter() if display == "lines" and not sys.stderr.isatty() else None
    tokens = _DISPLAY.set(display), _PRINTER.set(printer)
    try:
        yield
    finally:
        _DISPLAY.reset(tokens[0])
        _PRINTER.reset(tokens[1])
        if printer is not None:
            printer.end()


@contextlib.contextmanager
def show_progress(title: str, total: int, unit: str = "releases") -> Iterator[Advance]:
    """Show progress up to a total on stderr; the returned function adds to the count.

    >>> with set_display("none"), show_progress("tuning", 20) as advance:
    ...     advance(5)
    """
    printer = _PRINTER.get()
    if printer is not None:
        printer.expect(f"{title}: 0 of {total:,} {unit} so far")
        try:
            yield _lines(printer, title, total, unit)
        finally:
            printer.expect(_AT_WORK)
    elif _DISPLAY.get() == "none" or not sys.stderr.isatty():
        yield lambda done: None
    else:
        with _bar(title, total) as advance:
            yield advance


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Advance]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # rich is optional
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _lines(printer: _LinePrinter, title: str, total: int, unit: str) -> Advance:
    last, finished = time.monotonic(), 0
    paces: list[float] = []

    def advance(done: int) -> None:
        nonlocal last, finished
        if done == 0:
            return
        now = time.monotonic()
        if finished:  # the time of the first ones includes their compilation
            paces.append((now - last) / done)
        last, finished = now, finished + done
        if finished >= total:
            return
        # The lower median is robust against a step whose time includes another compilation.
        left = f", about {statistics.median_low(paces) * (total - finished):.0f} s left" if paces else ""
        printer.write(f"{title}: {finished:,} of {total:,} {unit}{left}")

    return advance
