"""Reading ahead: while one item of an iterator is used, a thread makes the next."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


def reading_ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, of which two exist at a time; an error in making one is raised where it would be used.

    >>> list(reading_ahead(2 * number for number in range(3)))
    [0, 2, 4]
    """
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, source, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, source, _END)
            yield item
