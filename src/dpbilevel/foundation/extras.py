"""Packages that only some people need come as extras; where one is missing, an error names the extra that brings it."""

import contextlib
from collections.abc import Iterator

from dpbilevel.errors import MissingExtra


@contextlib.contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Around a late import: what is not installed becomes a `MissingExtra`.

    >>> with needing("plot", "a picture"):
    ...     import no_such_package
    Traceback (most recent call last):
    dpbilevel.errors.MissingExtra: a picture: needs no_such_package, ...; pip install "dpbilevel[plot]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'{what}: needs {error.name}, which is not installed; pip install "dpbilevel[{extra}]"'
        ) from error
