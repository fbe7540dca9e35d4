"""Quantiles of absolute errors, from a released histogram with public bins.

**Interval.** The number of records is public, so that the noisy counts are shifted to add up to it. The number of
errors below the k-th edge then has a noise variance of sigma^2 k (K - k)/K, with K the number of cells. For a quantile
q, each edge is tested: is the fraction of errors below it at least q? Edges are tested from the left until a test
cannot reject, and the last rejected edge is the lower end; in the same way from the right for the upper end. The
quantile is outside only if the test of the first edge beyond it is wrong, which is one test on each side: no correction
for many edges is needed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from dpbilevel.evaluation.cells import UNIT, bin_of, count_noise, counts, one_cell
from dpbilevel.evaluation.intervals import Interval, z_score
from dpbilevel.evaluation.means import Floats, Tree

LEVELS = {"50%": 0.5, "75%": 0.75, "90%": 0.9, "95%": 0.95}
_PER_DECADE, _DECADES = 10, 3


@dataclass(frozen=True)
class ErrorQuantiles:
    """Quantiles of the absolute error.

    Args:
        edges: public edges of the bins, from 0; one more bin holds errors beyond the last edge.
    """

    edges: tuple[float, ...]

    name: ClassVar[str] = "error_quantiles"
    meaning: ClassVar[str] = "this fraction of absolute errors is smaller"
    largest: ClassVar[float] = math.inf
    unit: ClassVar[float] = UNIT

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an answer."""
        return (len(self.edges),)

    def contribution(self, record: jax.Array) -> jax.Array:
        """One cell for each bin, the last for errors beyond all edges."""
        return one_cell(record, len(self.edges))

    def placed(self, errors: Floats) -> npt.NDArray[np.integer[Any]]:
        """The cell of each squared error; one that is not finite is beyond all edges."""
        with np.errstate(all="ignore"):
            sizes = np.sqrt(np.where(np.isnan(errors), np.inf, errors))
        return bin_of(sizes, np.array([*self.edges, np.inf]))

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """The histogram, and the noise of every count."""
        return {
            "edges": np.asarray(self.edges),
            "records": counts(answer, number),
            "noise": count_noise(noise, number),
        }

    def value(self, answer: Tree, number: int) -> dict[str, float]:
        """The quantiles; infinite if one is beyond the last edge."""
        released = self.detail(answer, 0.0, number)
        return {name: _quantile(released, number, level) for name, level in LEVELS.items()}

    def standard_error(self, answer: Tree, noise: float, number: int) -> dict[str, float]:
        """The noise of a fraction, divided by the density of errors at the quantile: half the move of the quantile
        when the fraction moves by one standard deviation to either side."""
        released = self.detail(answer, noise, number)
        spread = released["noise"] * math.sqrt(len(self.edges)) / 2 / number
        found = {}
        for name, level in LEVELS.items():
            low, high = (_quantile(released, number, min(max(level + side * spread, 0.0), 1.0)) for side in (-1, 1))
            found[name] = (high - low) / 2 if math.isfinite(high) else math.inf
        return found


def quantile_interval(released: Mapping[str, Any], quantile: str, number: int, level: float) -> Interval:
    """A confidence interval for a quantile of the population, which covers noise, sampling and bins."""
    wanted, z, edges = LEVELS[quantile], z_score(level), released["edges"]
    below = _below(released, number)[:-1]  # at every edge but zero
    place, cells = np.arange(1, len(edges)), len(edges)
    noise = released["noise"] ** 2 * place * (cells - place) / cells
    half = z * np.sqrt(noise + number * wanted * (1 - wanted))
    smaller = below + half < number * wanted
    larger = below - half > number * wanted
    low = len(smaller) if smaller.all() else int(np.argmin(smaller))
    last = len(larger) if larger.all() else int(np.argmin(larger[::-1]))
    return float(edges[low]), float(edges[len(edges) - last]) if last else math.inf


def default_edges(low: float, high: float) -> tuple[float, ...]:
    """Ten bins per factor of ten, from a thousandth of the target's range to the range: an error is known to 26%.

    >>> edges = default_edges(0.0, 100.0)
    >>> len(edges), edges[0], round(edges[1], 3), round(edges[2], 3), edges[-1]
    (32, 0.0, 0.1, 0.126, 100.0)
    """
    powers = np.linspace(-_DECADES, 0, _DECADES * _PER_DECADE + 1)
    return (0.0, *((high - low) * 10.0**powers).tolist())


def _below(released: Mapping[str, Any], number: int) -> Floats:
    """Released numbers of errors below every edge but zero, and the number of records."""
    found = released["records"]
    return np.cumsum(found + (number - found.sum()) / len(found))


def _quantile(released: Mapping[str, Any], number: int, level: float) -> float:
    below = np.concatenate([[0.0], _below(released, number)])
    growing = np.clip(isotonic_regression(below).x, 0, number)
    edges = np.array([*released["edges"], np.inf])
    after = min(int(np.searchsorted(growing, level * number, side="left")), len(edges) - 1)
    if after == 0:
        return 0.0
    if math.isinf(edges[after]):
        return math.inf
    start, end = growing[after - 1], growing[after]
    share = (level * number - start) / (end - start) if end > start else 1.0
    return float(edges[after - 1] + share * (edges[after] - edges[after - 1]))
