"""Ctrl-C and SIGTERM: end the process at any moment, with one line of output and exit code 130.

Python raises an exception for Ctrl-C, wherever the program is. If it is raised in a callback of another library, it is
printed and ignored, and the run continues, is charged and finishes. Therefore nothing is raised here. A signal ends the
process immediately, after calling `SIGNALS.ending`, which cleans up; or, within a protected section, such as a charge
or the writing of results, right after it. A second signal has no effect.

This module only imports what the interpreter has already loaded: it runs first, and `signal` itself would load more.
"""

import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED = 130
NOTHING_SPENT = "Nothing was spent."

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _nothing_to_do() -> str:
    return NOTHING_SPENT


class Held:
    """A protected section: a signal that arrives within it is handled at its end.

    If the section ends with an error, the error is handled first, because it determines the message.
    """

    def __init__(self, signals: "Signals") -> None:
        self._signals = signals

    def __enter__(self) -> None:
        self._signals.depth += 1

    def __exit__(self, kind: object, *_: object) -> None:
        self._signals.depth -= 1
        if kind is None:
            self._signals.answer()


class Signals:
    """The signal handlers of this process.

    Attributes:
        ending: cleans up before the process ends, and returns the message to print.
        depth: number of open protected sections.
        pending: whether a signal is waiting for the end of a protected section.
    """

    def __init__(self) -> None:
        self.ending: Callable[[], str] = _nothing_to_do
        self.depth = 0
        self.pending = False
        self._before: dict[int, Any] = {}

    def install(self) -> bool:
        """Install handlers for SIGINT and SIGTERM, unless they are ignored; returns False if already installed."""
        took = False
        for number in (_signal.SIGINT, _signal.SIGTERM):
            before = _signal.getsignal(number)
            if before not in (_signal.SIG_IGN, self.receive):
                self._before[number] = before
                _signal.signal(number, self.receive)
                took = True
        return took

    def uninstall(self) -> None:
        """Restore the previous handlers."""
        while self._before:
            _signal.signal(*self._before.popitem())
        self.ending, self.pending = _nothing_to_do, False

    def held(self) -> Held:
        """A protected section."""
        return Held(self)

    def receive(self, *_: object) -> None:
        """Handle a signal."""
        self.pending = True
        self.answer()

    def answer(self) -> None:
        """End the process if a signal is pending and no section is open; further signals are then ignored."""
        if self.pending and not self.depth:
            self.depth += 1
            try:
                message = self.ending()
                # Not print: the signal may have interrupted a print. A progress bar may have hidden the cursor.
                clear = "\x1b[?25h\n" if os.isatty(2) else ""
                os.write(2, f"{clear}dpbilevel: interrupted. {message}\n".encode())
            finally:
                # XLA's threads may still be running; a normal exit of the interpreter would crash.
                os._exit(INTERRUPTED)


SIGNALS = Signals()
