"""How far a run has come: a bar on terminals, plain lines where the command line asks for them, nothing otherwise.

Rounds are counted, which are public. Time is that of the machine; what records hold changes neither.
"""

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal

Advance = Callable[[int], None]
Display = Literal["bar", "lines", "none"]

_DISPLAY: contextvars.ContextVar[Display] = contextvars.ContextVar("display", default="bar")
_PATIENCE = 2.0  # seconds between two lines, and before the first


@contextlib.contextmanager
def displayed(display: Display) -> Iterator[None]:
    """Choose, for all runs within: "bar" (on terminals only), "lines" (bars on terminals, lines elsewhere), "none"."""
    token = _DISPLAY.set(display)
    try:
        yield
    finally:
        _DISPLAY.reset(token)


@contextlib.contextmanager
def counted(title: str, total: int, unit: str = "rounds") -> Iterator[Advance]:
    """Count up to a total, on stderr.

    >>> with displayed("none"), counted("tuning", 20) as advance:
    ...     advance(5)
    """
    display = _DISPLAY.get()
    if display == "none":
        yield lambda done: None
    elif not sys.stderr.isatty():
        yield _lines(title, total, unit) if display == "lines" else lambda done: None
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


def _lines(title: str, total: int, unit: str) -> Advance:
    began = said = time.monotonic()
    finished = 0

    def advance(done: int) -> None:
        nonlocal said, finished
        finished += done
        now = time.monotonic()
        if now - said >= _PATIENCE and 0 < finished < total:
            said = now
            left = (now - began) * (total - finished) / finished
            print(f"{title}: {finished:,} of {total:,} {unit}, about {left:.0f} s left", file=sys.stderr, flush=True)

    return advance
