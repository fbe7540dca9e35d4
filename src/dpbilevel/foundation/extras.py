"""Optional dependencies: if a package is missing, the error names the extra that installs it."""

import contextlib
from collections.abc import Iterator

from dpbilevel.errors import MissingExtra


@contextlib.contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import of an optional dependency into a `MissingExtra`.

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
