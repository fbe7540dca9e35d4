"""How often XLA compiles, whether or not it finds the program on disk."""

import contextlib
from collections.abc import Iterator

import jax.monitoring

_EVENT = "/jax/core/compile/backend_compile_duration"
_COUNTS = [0]


def _listen(event: str, *_: float, **__: str) -> None:
    _COUNTS[0] += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """A list whose only entry is, at the end, the number of compilations inside."""
    number, before = [0], _COUNTS[0]
    yield number
    number[0] = _COUNTS[0] - before
