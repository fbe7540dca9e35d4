"""Scaled axes and hat functions: how a number enters a model as a curve, from its declared range alone.

A hat function is one at its knot, zero at the neighbouring knots, and linear between. The hats of a column are not
negative and sum to one, so that the squared norm of its encoded cells is at most one, as for a plain column.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SCALES = ("linear", "log", "sqrt")
_DECADES = 1000.0  # of a logarithmic axis that starts at zero or below: its range over its unit
_LARGEST = 1e300  # ratio of the ends of a logarithmic axis
_CURVATURE = 4 * (2 * math.pi) ** 4 / 720  # see `intervals`
_FEWEST, _MOST = 4, 32  # intervals
# Weights nearer to 0 or 1 are set to it: rounding to float32 would otherwise let two weights exceed norm one.
_SNAP = 2.0**-20


@dataclass(frozen=True)
class Axis:
    """A declared range, mapped to [0, 1] by a scale; numbers outside are clamped.

    The logarithmic scale is log(1 + (x - low)/unit), which is defined at the low end. The unit is the low end itself if
    that is positive, so that the scale is the logarithm of x; otherwise it is a thousandth of the range.

    >>> Axis(1.0, 100.0, "log").places(np.array([0.0, 1.0, 10.0, 100.0])).tolist()
    [0.0, 0.0, 0.5, 1.0]
    >>> Axis(0.0, 1000.0, "log").places(np.array([0.0, 10.0, 1000.0])).round(2).tolist()
    [0.0, 0.35, 1.0]
    """

    low: float
    high: float
    scale: str = "linear"

    @property
    def _ratio(self) -> float:
        """The length of the range over the unit of the logarithm."""
        return min(self.high / self.low - 1, _LARGEST) if self.low > 0 else _DECADES

    def places(self, numbers: npt.ArrayLike) -> Floats:
        """Finite numbers on the axis."""
        clamped = np.clip(np.asarray(numbers, np.float64), self.low, self.high)
        half = self.high / 2 - self.low / 2  # halves first: the difference of two large bounds may overflow
        part = np.clip((clamped / 2 - self.low / 2) / (half if half > 0 else 1.0), 0.0, 1.0)
        if self.scale == "sqrt":
            return np.sqrt(part)
        if self.scale == "log":
            return np.clip(np.log1p(self._ratio * part) / math.log1p(self._ratio), 0.0, 1.0)
        return part

    def numbers(self, places: npt.ArrayLike) -> Floats:
        """The inverse of `places`."""
        part = np.asarray(places, np.float64)
        if self.scale == "sqrt":
            part = part**2
        elif self.scale == "log":
            part = np.expm1(part * math.log1p(self._ratio)) / self._ratio
        return np.clip(2 * (self.low / 2 * (1 - part) + self.high / 2 * part), self.low, self.high)


@dataclass(frozen=True, eq=False)
class Hats:
    """Hat functions on an axis. Beyond the first and the last knot they are constant.

    Args:
        axis: the range and scale of the column.
        knots: increasing, in units of the column, with different places on the axis.
    """

    axis: Axis
    knots: Floats

    @classmethod
    def even(cls, axis: Axis, knots: int) -> "Hats":
        """Hats with knots at equal distances on the axis, from its low to its high end."""
        return cls(axis, axis.numbers(np.linspace(0.0, 1.0, knots)))

    def write(self, cells: Floats, used: npt.NDArray[np.bool_], out: npt.NDArray[np.float32], scale: Any) -> None:
        """Write the weights of all hats, times ``scale``, into rows of zeros; only cells that are ``used``.

        >>> out = np.zeros((3, 3), np.float32)
        >>> Hats.even(Axis(0, 10), 3).write(np.array([0.0, 4.0, 99.0]), np.full(3, True), out, 1.0)
        >>> out.round(2).tolist()
        [[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]
        """
        knots = self.axis.places(self.knots)
        places = self.axis.places(np.where(used, cells, self.axis.low))
        left = np.clip(np.searchsorted(knots, places, side="right") - 1, 0, len(knots) - 2)
        right = np.clip((places - knots[left]) / (knots[left + 1] - knots[left]), 0.0, 1.0)
        right[right < _SNAP] = 0.0
        right[right > 1 - _SNAP] = 1.0
        rows, size = np.arange(len(cells)), used * np.float64(scale)
        out[rows, left] = (1 - right) * size
        out[rows, left + 1] = right * size


def intervals(rows: int) -> int:
    """The default number of intervals between knots, from the public number of rows n.

    With k intervals on [0, 1], the best piecewise-linear fit of f has squared error ∫f''²/(720 k⁴) (C. de Boor, A
    Practical Guide to Splines, chapter III), and every coefficient adds noise/n. Their sum is least at k⁵ = 4 n
    ∫f''²/(720 noise). The curve assumed is one period of a sine whose variance equals the noise: ∫f''² = (2π)⁴ noise.

    >>> [intervals(rows) for rows in (100, 1000, 32_561, 1_000_000, 10**8)]
    [4, 6, 12, 24, 32]
    """
    return int(min(max(round((_CURVATURE * rows) ** 0.2), _FEWEST), _MOST))
