"""Accuracy by declared group, with the number of records of each group.

Every record is in one cell: its group, and whether the prediction is correct. Groups are of private size, so that their
accuracy is a ratio of two noisy counts; its interval is wide where a group is small.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.evaluation.cells import UNIT, count_noise, counts, one_cell
from dpbilevel.evaluation.intervals import Interval, solve_quadratic, within, z_score
from dpbilevel.evaluation.means import Tree


@dataclass(frozen=True)
class GroupAccuracy:
    """The accuracy of every group.

    Args:
        names: declared names of the groups; records of other groups count nowhere.
    """

    names: tuple[str, ...]

    name: ClassVar[str] = "group_accuracy"
    meaning: ClassVar[str] = "fraction of correct predictions in the group"
    largest: ClassVar[float] = 1.0
    unit: ClassVar[float] = UNIT

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an answer."""
        return (2 * len(self.names),)

    def contribution(self, record: jax.Array) -> jax.Array:
        """Two cells for each group: correct and wrong predictions."""
        return one_cell(record, 2 * len(self.names))

    def placed(self, group: npt.NDArray[np.integer[Any]], right: npt.NDArray[np.bool_]) -> npt.NDArray[np.integer[Any]]:
        """The cell of each record; -1 for records of no declared group."""
        place = np.where(right, group, group + len(self.names))
        return np.where(group >= 0, place, -1).astype(np.int32)

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """Correct and wrong predictions by group, and the noise of every count."""
        found = counts(answer, number)
        return {
            "names": self.names,
            "right": found[: len(self.names)],
            "wrong": found[len(self.names) :],
            "noise": count_noise(noise, number),
        }

    def value(self, answer: Tree, number: int) -> dict[str, float]:
        """The accuracy of every group; 1/2 if noise leaves none of its records."""
        released = self.detail(answer, 0.0, number)
        return {name: _accuracy(*_group(released, name)[:2]) for name in self.names}

    def standard_error(self, answer: Tree, noise: float, number: int) -> dict[str, float]:
        """The standard deviation of the noise, from the derivative of the ratio at the released counts."""
        released = self.detail(answer, noise, number)
        return {name: _noise_of_ratio(*_group(released, name)) for name in self.names}


def group_interval(released: Mapping[str, Any], group: str, level: float) -> Interval:
    """A confidence interval for the accuracy of a group in the population, which covers noise and sampling.

    It holds every a for which right - a records is within z of its standard deviations, with a variance of
    sigma^2 ((1 - a)^2 + a^2) for noise and records a (1 - a) for the sample.
    """
    right, wrong, noise = _group(released, group)
    records, square = right + wrong, z_score(level) ** 2
    noisy, sampled = square * noise**2, square * max(records, 0.0)
    if not records > 0:
        return 0.0, 1.0
    found = solve_quadratic(
        records**2 - 2 * noisy + sampled,
        -2 * right * records + 2 * noisy - sampled,
        right**2 - noisy,
    )
    return within(found, 0.0, 1.0)


def group_records(released: Mapping[str, Any], group: str) -> tuple[float, float]:
    """The released number of records of a group, and the standard deviation of its noise."""
    right, wrong, noise = _group(released, group)
    return max(0.0, right + wrong), noise * math.sqrt(2)


def _group(released: Mapping[str, Any], group: str) -> tuple[float, float, float]:
    at = released["names"].index(group)
    return float(released["right"][at]), float(released["wrong"][at]), float(released["noise"])


def _accuracy(right: float, wrong: float) -> float:
    records = right + wrong
    return float(np.clip(right / records, 0, 1)) if records > 0 else 0.5


def _noise_of_ratio(right: float, wrong: float, noise: float) -> float:
    accuracy, records = _accuracy(right, wrong), right + wrong
    return min(1.0, noise * math.hypot(1 - accuracy, accuracy) / records) if records > 0 else 1.0
