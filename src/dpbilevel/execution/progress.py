"""How far a run has come: a bar on terminals, plain lines where the command line asks for them, nothing otherwise.

Rounds are counted, which are public. Time is that of the machine; what records hold changes neither.
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
_PATIENCE = 2.0  # seconds between two lines, and before the first
_BLINK = 0.1  # seconds between two looks at the clock
_AT_WORK = "dpbilevel: still at work"


class _Voice:
    """Lines on stderr, and one for whatever takes long without a word: planning, or the compiler before round one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._said = time.monotonic()
        self._pending: str | None = _AT_WORK
        # A thread, because nothing else runs while XLA compiles; a daemon, so that it outlives no run.
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def expect(self, line: str) -> None:
        """What to say, once, when nothing else is said for a while."""
        with self._lock:
            self._pending = line

    def say(self, line: str) -> None:
        """Say it, unless something was said a moment ago."""
        with self._lock:
            if time.monotonic() - self._said >= _PATIENCE:
                self._print(line)

    def end(self) -> None:
        """Say nothing any more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_BLINK):
            with self._lock:
                if self._pending is not None and time.monotonic() - self._said >= _PATIENCE:
                    self._print(self._pending)

    def _print(self, line: str) -> None:
        self._said, self._pending = time.monotonic(), None
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, and a run goes on without it
            print(line, file=sys.stderr, flush=True)


_VOICE: contextvars.ContextVar[_Voice | None] = contextvars.ContextVar("voice", default=None)


@contextlib.contextmanager
def displayed(display: Display) -> Iterator[None]:
    """Choose, for all runs within: "bar" (on terminals only), "lines" (bars on terminals, lines elsewhere), "none"."""
    voice = _Voice() if display == "lines" and not sys.stderr.isatty() else None
    tokens = _DISPLAY.set(display), _VOICE.set(voice)
    try:
        yield
    finally:
        _DISPLAY.reset(tokens[0])
        _VOICE.reset(tokens[1])
        if voice is not None:
            voice.end()


@contextlib.contextmanager
def counted(title: str, total: int, unit: str = "rounds") -> Iterator[Advance]:
    """Count up to a total, on stderr.

    >>> with displayed("none"), counted("tuning", 20) as advance:
    ...     advance(5)
    """
    voice = _VOICE.get()
    if voice is not None:
        voice.expect(f"{title}: 0 of {total:,} {unit} so far")
        try:
            yield _lines(voice, title, total, unit)
        finally:
            voice.expect(_AT_WORK)
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
    except ImportError:  # a machine with JAX and the accounting packages alone
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _lines(voice: _Voice, title: str, total: int, unit: str) -> Advance:
    last, finished = time.monotonic(), 0
    paces: list[float] = []

    def advance(done: int) -> None:
        nonlocal last, finished
        if done == 0:
            return
        now = time.monotonic()
        if finished:  # what comes first is compiled first, which the rest is not
            paces.append((now - last) / done)
        last, finished = now, finished + done
        if finished >= total:
            return
        # The lower median: one step in which something was compiled does not count as the pace of all.
        left = f", about {statistics.median_low(paces) * (total - finished):.0f} s left" if paces else ""
        voice.say(f"{title}: {finished:,} of {total:,} {unit}{left}")

    return advance
