"""Tests on the results of `survey.py`: no cell in which the default costs, and warnings where they are due.

A cell is a problem at one epsilon. Within a repetition, default and search have the same rows, split and noise seed. If
a search makes no difference, the two losses of a repetition can be exchanged. So the p-value of a difference is the
fraction of all exchanges that give at least the observed one: all 2^n of them, or 2^16 from a fixed seed where there
are more. All p-values of a test are adjusted by Holm's method, for a family-wise error rate of 5%.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from pieces import Cells
from solver_private_statistics import holm
from survey import BASELINE, CONSTANT, DEFAULT, SEARCHED, key_of

MOST_EXCHANGES = 16  # as a power of two
WORST = 0.1  # fraction of runs
WORST_MARGIN, CONSTANT_MARGIN, CLEARLY = 1.02, 1.01, 0.95  # factors on losses
Losses = np.ndarray
Statistic = Callable[[Losses, Losses], Losses]


@dataclass
class Cell:
    """A problem at one epsilon: losses of all repetitions by method, and whether each was warned about."""

    losses: dict[str, Losses]
    warned: np.ndarray


@dataclass
class Comparison:
    """Results over all cells."""

    cells: dict[str, Cell]
    worse: list[str] = field(default_factory=list)  # mean loss of the default above that of a search
    better: list[str] = field(default_factory=list)
    worse_tail: list[str] = field(default_factory=list)  # worst tenth more than 2% above that of a search
    baseline_better: list[str] = field(default_factory=list)  # than the default
    baseline_worse: list[str] = field(default_factory=list)
    unwarned: float = 0.0  # fraction of runs more than 1% worse than the constant, of those without a warning
    worse_than_constant: float = 0.0  # the same of all runs
    false_alarms: float = 0.0  # fraction of runs with a warning, of those clearly better than the constant
    tail: float = 0.0  # largest ratio of worst tenths, default over search

    @property
    def met(self) -> bool:
        """Whether all targets are met."""
        return not self.worse and not self.worse_tail and self.unwarned <= 0.01 and self.false_alarms <= 0.1


def gathered(cells: Cells, names: list[str], epsilons: list[float]) -> dict[str, Cell]:
    """Cells by "problem | epsilon", of all repetitions that there are."""
    found = {}
    for name in names:
        for epsilon in epsilons:
            prefix = key_of(name, epsilon, 0)[:-1]
            mine = [cells[key] for key in sorted(cells) if key.startswith(prefix) and key[len(prefix) :].isdigit()]
            if mine:
                methods = [method for method in mine[0] if method not in ("warned", "seconds", "commit")]
                losses = {method: np.array([run[method] for run in mine]) for method in methods}
                found[f"{name} | {epsilon:g}"] = Cell(losses, np.array([run["warned"] for run in mine]))
    return found


def worst_tenth(losses: Losses) -> Losses:
    """The mean of the largest tenth along the last axis, at least one."""
    number = max(1, round(WORST * losses.shape[-1]))
    return np.sort(losses, axis=-1)[..., -number:].mean(axis=-1)


def mean_difference(these: Losses, those: Losses) -> Losses:
    """The difference of means along the last axis."""
    return (these - those).mean(axis=-1)


def tail_difference(these: Losses, those: Losses) -> Losses:
    """The difference of worst tenths along the last axis."""
    return worst_tenth(these) - worst_tenth(those)


def exchange_test(these: Losses, those: Losses, statistic: Statistic) -> float:
    """The p-value of a statistic that is large if the first losses are, over exchanges within repetitions.

    >>> exchange_test(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0]), mean_difference)
    0.125
    """
    number = len(these)
    if number <= MOST_EXCHANGES:
        exchanged = (np.arange(2**number)[:, None] >> np.arange(number)) % 2 == 1
    else:
        exchanged = np.random.default_rng(0).random((2**MOST_EXCHANGES, number)) < 0.5
        exchanged[0] = False  # the observed one
    found = statistic(np.where(exchanged, those, these), np.where(exchanged, these, those))
    return float(np.mean(found >= found[0] - 1e-12 * abs(found[0])))


def compare(cells: dict[str, Cell]) -> Comparison:
    """All tests."""
    made = Comparison(cells)
    pairs = {key: (cell.losses[DEFAULT], cell.losses[SEARCHED]) for key, cell in cells.items()}
    made.worse = holm({key: exchange_test(a, b, mean_difference) for key, (a, b) in pairs.items()})
    made.better = holm({key: exchange_test(b, a, mean_difference) for key, (a, b) in pairs.items()})
    allowed = {key: (a, WORST_MARGIN * b) for key, (a, b) in pairs.items()}
    made.worse_tail = holm({key: exchange_test(a, b, tail_difference) for key, (a, b) in allowed.items()})
    baselines = {key: (c.losses[DEFAULT], c.losses[BASELINE]) for key, c in cells.items() if BASELINE in c.losses}
    made.baseline_better = holm({key: exchange_test(a, b, mean_difference) for key, (a, b) in baselines.items()})
    made.baseline_worse = holm({key: exchange_test(b, a, mean_difference) for key, (a, b) in baselines.items()})
    default, constant = (np.concatenate([c.losses[name] for c in cells.values()]) for name in (DEFAULT, CONSTANT))
    warned = np.concatenate([cell.warned for cell in cells.values()])
    worse, clear = default > CONSTANT_MARGIN * constant, default < CLEARLY * constant
    made.worse_than_constant = float(worse.mean())
    made.unwarned = float((worse & ~warned).mean())
    made.false_alarms = float(warned[clear].mean()) if clear.any() else 0.0
    made.tail = max(float(worst_tenth(a) / worst_tenth(b)) for a, b in pairs.values())
    return made
