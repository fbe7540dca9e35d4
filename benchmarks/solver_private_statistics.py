"""Hypothesis tests on the results of `solver_private.py`, at a family-wise error rate of 5% over all cells of a test.

Whether means decrease with the number of records is decided by a permutation test over seeds of the noise. It is exact
for any distribution; Welch's t test assumes normal means, which eight fractions over several decades do not have. The
other tests are t tests. All p-values are adjusted by Holm's method. Fractions are accurate to about 1e-6 in float32:
smaller spreads are set to that, because otherwise differences in the last bit would be significant.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pieces import Cells
from scipy import stats
from solver_private import DEFAULT, key_of

LEVEL = 0.05
ROUNDING = 1e-6
PERMUTATIONS = (
    20_000  # with up to eight seeds per group all splits are counted; otherwise they are drawn from a fixed seed
)
Shares = Sequence[float]


class Comparison(NamedTuple):
    """Keys of cells with significant results, by test."""

    falls: list[str]  # the mean is smaller with the most records than with the fewest
    falls_if_normal: list[str]  # the same, by Welch's t test
    rises: list[str]
    above: list[str]  # the mean is above F(x0)
    differs: list[str]  # from the same problem in original units
    compared: dict[str, int]  # number of cells of each test


def holm(values: Mapping[str, float], level: float = LEVEL) -> list[str]:
    """The keys of significant p-values, at the given family-wise error rate.

    >>> holm({"a": 0.02, "b": 0.03, "c": 0.9})
    []
    >>> holm({"a": 0.01, "b": 0.02, "c": 0.9})
    ['a', 'b']
    """
    rejected = []
    for rank, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        if value > level / (len(values) - rank):
            break
        rejected.append(name)
    return rejected


def _moments(shares: Shares) -> tuple[float, float, int]:
    return float(np.mean(shares)), max(float(np.std(shares, ddof=1)), ROUNDING), len(shares)


def larger(these: Shares, those: Shares) -> float:
    """The p-value of a larger first mean under equal distributions; over all splits if they can be enumerated."""
    found = stats.permutation_test(
        [np.round(np.asarray(shares) / ROUNDING) for shares in (these, those)],
        lambda a, b, axis: np.mean(a, axis) - np.mean(b, axis),
        vectorized=True,
        alternative="greater",
        n_resamples=PERMUTATIONS,
        rng=0,
    )
    return float(found.pvalue)


def larger_if_normal(these: Shares, those: Shares) -> float:
    """The same by Welch's t test, for comparison."""
    both = (*_moments(these), *_moments(those))
    return float(stats.ttest_ind_from_stats(*both, equal_var=False, alternative="greater").pvalue)


def above_start(shares: Shares) -> float:
    """The p-value of the hypothesis that the mean is not above F(x0)."""
    mean, deviation, number = _moments(shares)
    return float(stats.t.sf((mean - 1) / (deviation / math.sqrt(number)), number - 1))


def different(these: Shares, those: Shares) -> float:
    """The p-value of equal distributions, from means of logarithms, because fractions range over many decades."""
    these, those = (np.log(np.maximum(shares, ROUNDING)) for shares in (these, those))
    return float(stats.ttest_ind_from_stats(*_moments(these), *_moments(those), equal_var=False).pvalue)


def compare(
    cells: Cells, originals: Mapping[str, str], epsilons: Sequence[float], records: Sequence[int]
) -> Comparison:
    """All tests, on the available cells.

    Args:
        originals: the name of each problem -> the name of the same problem in original units.
    """
    falls, normal, rises, above, differs = ({} for _ in range(5))
    for name, original in originals.items():
        for epsilon in epsilons:
            keys = {number: key_of(name, epsilon, number, DEFAULT) for number in records}
            there = {number: cells[key]["left"] for number, key in keys.items() if key in cells}
            for number, shares in there.items():
                above[keys[number]] = above_start(shares)
                plain = key_of(original, epsilon, number, DEFAULT)
                if original != name and plain in cells:
                    differs[keys[number]] = different(shares, cells[plain]["left"])
            few, many = (there.get(number) for number in (min(records), max(records)))
            if few is not None and many is not None:
                change = f"{name} | {epsilon:g}"
                falls[change], rises[change] = larger(few, many), larger(many, few)
                normal[change] = larger_if_normal(few, many)
    compared = {"falls": len(falls), "above": len(above), "differs": len(differs)}
    return Comparison(holm(falls), holm(normal), holm(rises), holm(above), holm(differs), compared)
