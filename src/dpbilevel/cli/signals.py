"""Ctrl-C and SIGTERM: noticed at whatever moment they come, and answered with one line and exit code 130.

Python makes an exception of Ctrl-C, wherever the program happens to be. One that lands in a callback of another library
is printed and forgotten, and a run goes on, is charged and finishes. So nothing is raised here. A signal ends the
process there and then, after what `SIGNALS.ending` says is to be done at this moment; or, within a section that must be
whole, such as a charge or the writing of results, right after it. A second signal changes nothing.

Nothing is imported here that the interpreter has not loaded: this comes first, and `signal` itself would load more.
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
    """A section that signals do not cut: one that comes within it is answered at its end.

    Where the section ends with an error, the error goes first: it decides what is to be said.
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
    """What a signal means to this process.

    Attributes:
        ending: does what must be done where the process ends now, and returns what is said then.
        depth: how many sections are open that must be whole.
        pending: whether a signal waits for the end of such a section.
    """

    def __init__(self) -> None:
        self.ending: Callable[[], str] = _nothing_to_do
        self.depth = 0
        self.pending = False
        self._before: dict[int, Any] = {}

    def install(self) -> bool:
        """Take over SIGINT and SIGTERM, unless whoever started the process had it ignore them; False if we had them."""
        took = False
        for number in (_signal.SIGINT, _signal.SIGTERM):
            before = _signal.getsignal(number)
            if before not in (_signal.SIG_IGN, self.receive):
                self._before[number] = before
                _signal.signal(number, self.receive)
                took = True
        return took

    def uninstall(self) -> None:
        """Give the signals back to who had them before."""
        while self._before:
            _signal.signal(*self._before.popitem())
        self.ending, self.pending = _nothing_to_do, False

    def held(self) -> Held:
        """A section that must be whole."""
        return Held(self)

    def receive(self, *_: object) -> None:
        """What happens when a signal comes."""
        self.pending = True
        self.answer()

    def answer(self) -> None:
        """End the process where a signal has come and no section is open; the next one then finds a section open."""
        if self.pending and not self.depth:
            self.depth += 1
            try:
                said = self.ending()
                # Not by print: the signal may have come in the middle of one. A bar may have hidden the cursor.
                clear = "\x1b[?25h\n" if os.isatty(2) else ""
                os.write(2, f"{clear}dpbilevel: interrupted. {said}\n".encode())
            finally:
                # XLA's threads may be in the middle of a round; to take the interpreter down under them crashes.
                os._exit(INTERRUPTED)


SIGNALS = Signals()
