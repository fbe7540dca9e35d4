"""Confidence intervals of scores that are computed from noisy numbers.

A score t often solves a linear equation a - t b = 0 in released numbers a and b (Fieller 1954): the interval holds
every t for which |a - t b| is at most z of its standard deviations at this t. This is a quadratic inequality in t. It
needs no division by b, whose noise may be as large as b itself; the interval is then the whole range.
"""

import math

from scipy.stats import norm

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import positive

Interval = tuple[float, float]


def z_score(level: float) -> float:
    """The number of standard deviations of a two-sided interval."""
    if not positive("level", level, "it is the probability of the interval (try 0.95)") < 1:
        raise InvalidArgument(f"level={level!r}: must be below 1; it is the probability of the interval (try 0.95)")
    return float(norm.isf((1 - level) / 2))


def solve_quadratic(leading: float, linear: float, constant: float) -> Interval:
    """All t with leading t^2 + linear t + constant <= 0; the whole line if this is not one bounded interval.

    >>> solve_quadratic(1.0, -3.0, 2.0), solve_quadratic(-1.0, 0.0, 2.0)
    ((1.0, 2.0), (-inf, inf))
    """
    if not leading > 0:
        return -math.inf, math.inf
    middle = -linear / (2 * leading)
    half = math.sqrt(max(0.0, middle**2 - constant / leading))
    return middle - half, middle + half


def within(found: Interval, low: float, high: float) -> Interval:
    """The part of an interval between the smallest and the largest possible score."""
    return min(max(found[0], low), high), max(min(found[1], high), low)
