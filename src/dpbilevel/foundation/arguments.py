"""Checks of public arguments, with messages of the form ``name=value: rule; why (remedy)``."""

import contextlib
import math
import numbers
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpbilevel.errors import DPBilevelError, InvalidArgument


def positive(name: str, value: Any, why: str, *, infinite: bool = False) -> float:
    """Return ``value`` as a float, or raise unless it is a real number above zero."""
    number = _real(name, value, why)
    if not number > 0 or (math.isinf(number) and not infinite):
        rule = "must be > 0" if infinite else "must be a finite number > 0"
        raise InvalidArgument(f"{name}={value!r}: {rule}; {why}")
    return number


def non_negative(name: str, value: Any, why: str) -> float:
    """Return ``value`` as a float, or raise unless it is a finite real number >= 0."""
    number = _real(name, value, why)
    if not 0 <= number < math.inf:
        raise InvalidArgument(f"{name}={value!r}: must be a finite number >= 0; {why}")
    return number


def count(name: str, value: Any, why: str) -> int:
    """Return ``value`` as an int, or raise unless it is a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InvalidArgument(f"{name}={value!r}: must be a whole number >= 1; {why}")
    if int(value) > sys.float_info.max:
        raise InvalidArgument(f"{name}: must be a number that fits float64; {why}")
    return int(value)


def one_of(name: str, value: Any, choices: tuple[str, ...], why: str) -> str:
    """Return ``value``, or raise unless it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name}={value!r}: must be one of {', '.join(map(repr, choices))}; {why}")
    return value


def printable(name: str, value: Any, why: str, *, longest: int = 200) -> str:
    """Return ``value``, or raise unless it is one line of printable text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > longest:
        raise InvalidArgument(f"{name}={value!r:.60}: must be one line of text of at most {longest} characters; {why}")
    return value


@contextlib.contextmanager
def in_the_form_of(name: str, example: str) -> Iterator[None]:
    """Turn any error while reading foreign content into one typed error that names an example of the right form."""
    try:
        yield
    except DPBilevelError:
        raise
    except Exception as error:
        raise InvalidArgument(f"{name}: must hold what {example} holds, in the same form") from error


def _real(name: str, value: Any, why: str) -> float:
    # bool is a number in Python, but clip_norm=True is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidArgument(f"{name}={value!r}: must be a real number; {why}")
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidArgument(f"{name}: must be a number that fits float64; {why}") from error
    if math.isnan(number):
        raise InvalidArgument(f"{name}={value!r}: must be a real number; {why}")
    return number
