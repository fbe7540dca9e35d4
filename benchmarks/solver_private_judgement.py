"""What the numbers of `solver_private.py` show, at a family-wise error rate of 5% over all cells of a question.

Whether means fall with records is a permutation test over seeds of the noise: it is exact whatever the distribution,
where Welch's t asks for normal means, which eight shares over several decades do not have. The other questions are t
tests. All are adjusted by Holm's method. Shares are known to about 1e-6 in float32: spreads below that count as so
much, or a last bit would be significant.
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
PERMUTATIONS = 20_000  # more than eight seeds a side have, whose splits are all counted; drawn from a fixed seed beyond
Shares = Sequence[float]


class Judgement(NamedTuple):
    """Keys of cells, by what they show."""

    falls: list[str]  # the mean is smaller with the most records than with the fewest
    falls_if_normal: list[str]  # the same, by Welch's t test
    rises: list[str]
    above: list[str]  # the mean is above F(x0)
    differs: list[str]  # from its twin in plain units
    compared: dict[str, int]  # how many cells each question has


def holm(values: Mapping[str, float], level: float = LEVEL) -> list[str]:
    """Whose p-values are significant, all together at the given level.

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
    """The p-value of a larger first mean, if both have the same distribution; all splits where they can be counted."""
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
    """The p-value against: the mean is not above F(x0)."""
    mean, deviation, number = _moments(shares)
    return float(stats.t.sf((mean - 1) / (deviation / math.sqrt(number)), number - 1))


def different(these: Shares, those: Shares) -> float:
    """The p-value against: equal distributions, by the means of logarithms, since shares lie over many decades."""
    these, those = (np.log(np.maximum(shares, ROUNDING)) for shares in (these, those))
    return float(stats.ttest_ind_from_stats(*_moments(these), *_moments(those), equal_var=False).pvalue)


def judged(cells: Cells, twins: Mapping[str, str], epsilons: Sequence[float], records: Sequence[int]) -> Judgement:
    """All questions, on the cells that are there.

    Args:
        twins: the name of each problem -> that of its twin in plain units, itself where it is plain.
    """
    falls, normal, rises, above, differs = ({} for _ in range(5))
    for name, twin in twins.items():
        for epsilon in epsilons:
            keys = {number: key_of(name, epsilon, number, DEFAULT) for number in records}
            there = {number: cells[key]["left"] for number, key in keys.items() if key in cells}
            for number, shares in there.items():
                above[keys[number]] = above_start(shares)
                plain = key_of(twin, epsilon, number, DEFAULT)
                if twin != name and plain in cells:
                    differs[keys[number]] = different(shares, cells[plain]["left"])
            few, many = (there.get(number) for number in (min(records), max(records)))
            if few is not None and many is not None:
                change = f"{name} | {epsilon:g}"
                falls[change], rises[change] = larger(few, many), larger(many, few)
                normal[change] = larger_if_normal(few, many)
    compared = {"falls": len(falls), "above": len(above), "differs": len(differs)}
    return Judgement(holm(falls), holm(normal), holm(rises), holm(above), holm(differs), compared)
