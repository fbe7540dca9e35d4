"""Everything that a call tells: its error with all that hangs on it, warnings, logs and what it prints."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

NUMBER, WORD = 987654.25, "Zanzibar"
SECRETS = ("987654", "9.87654", "9.8765", "9.877e", WORD, WORD.lower())


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its causes and its contexts, also those that a traceback would not print, and errors of groups."""
    waiting, seen = [error], set()
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]


def reported(function: Callable[[], Any]) -> tuple[str, BaseException | None]:
    """All text that leaves a call, and its error."""
    error: BaseException | None = None
    printed, logged = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            try:
                function()
            except (Exception, SystemExit) as raised:
                error = raised
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
    texts = [printed.getvalue(), logged.getvalue(), *(f"{w.message} {w.message!r}" for w in warned)]
    texts += [f"{link} {link!r} {link.args!r} {getattr(link, '__notes__', '')}" for link in chain(error)]
    return "\n".join(texts), error


def check_tells_nothing(function: Callable[[], Any]) -> BaseException | None:
    """Nothing that leaves a call has the private number or the private word in it. Returns its error."""
    text, error = reported(function)
    for secret in SECRETS:
        assert secret not in text, "a private value is shown"
    return error
