"""The problems of `survey.py`: small data sets, and synthetic ones from few to many columns per row.

Every repetition of a data set is another split into training and test rows; every repetition of a synthetic problem is
another draw. What is declared follows from fixed rules: columns of data sets from zero (or symmetric around it) to
their largest value, rounded up to one digit, as a code book has it; synthetic rows have norm one, up to the spread of
their draws, and longer ones are scaled down.

Problems for development (`DEVELOPMENT`) have other shapes, data sets, sizes of effects and seeds than those whose
results are committed (`COMMITTED`): settings may be chosen on the former only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TEST_FRACTION, TEST_ROWS = 0.3, 4000
TARGETS = (-4.0, 4.0)  # declared range of synthetic targets, whose variance is 1.25
CORRELATION = 0.7  # between neighbouring columns


@dataclass(frozen=True, kw_only=True)
class Split:
    """One repetition of a problem: rows, targets, and what is declared about them."""

    rows: np.ndarray
    targets: np.ndarray
    test_rows: np.ndarray
    test_targets: np.ndarray
    declared: dict[str, Any]

    @property
    def classifies(self) -> bool:
        """Whether targets are classes."""
        return "classes" in self.declared


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem of the survey.

    Args:
        name: its name in results.
        draw: repetition -> split.
        group: problems of the same group have the same shapes and share compiled programs.
    """

    name: str
    draw: Callable[[int], Split]
    group: str


# ----------------------------------------------------------------------------------------------------------- synthetic


def synthetic(kind: str, rows: int, columns: int, design: str, strength: float, seed: int) -> Problem:
    """A linear model with random coefficients.

    Args:
        kind: "logistic" or "linear".
        rows: for training.
        columns: of each row.
        design: "dense", "sparse" (a tenth of the coefficients, at least two, are not zero) or "correlated" (columns).
        strength: standard deviation of the scores of logistic models; that of linear ones is 1, with noise of 0.5.
        seed: of all draws, together with the repetition.
    """

    def draw(repetition: int) -> Split:
        draws = np.random.default_rng([seed, repetition, rows, columns, *map(ord, kind[:3] + design)])
        normal = draws.normal(size=(rows + TEST_ROWS, columns))
        if design == "correlated":
            for column in range(1, columns):
                own = math.sqrt(1 - CORRELATION**2) * normal[:, column]
                normal[:, column] = CORRELATION * normal[:, column - 1] + own
        table = normal / math.sqrt(columns)
        truth = draws.normal(size=columns)
        if design == "sparse":
            truth[draws.permutation(columns)[max(2, columns // 10) :]] = 0.0
        scores = table @ truth
        scores /= np.std(scores)
        if kind == "logistic":
            targets = (draws.random(len(scores)) < 1 / (1 + np.exp(-strength * scores))).astype(int)
            declared: dict[str, Any] = {"classes": [0, 1]}
        else:
            targets = np.clip(scores + 0.5 * draws.normal(size=len(scores)), *TARGETS)
            declared = {"target_range": TARGETS}
        declared["data_norm"] = 1.0
        return Split(
            rows=table[:rows],
            targets=targets[:rows],
            test_rows=table[rows:],
            test_targets=targets[rows:],
            declared=declared,
        )

    name = f"{kind}, {rows:,} x {columns}, {design}"
    return Problem(name=name, draw=draw, group=f"{kind} {rows} {columns}")


# ----------------------------------------------------------------------------------------------------------- data sets


def rounded_up(values: np.ndarray) -> np.ndarray:
    """Positive numbers rounded up to one digit.

    >>> rounded_up(np.array([0.0123, 28.1, 4254.0]))
    array([2.e-02, 3.e+01, 5.e+03])
    """
    power = 10.0 ** np.floor(np.log10(values))
    return np.ceil(values / power) * power


def column_bounds(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of columns by the rule above."""
    high = rounded_up(np.maximum(np.abs(table).max(axis=0), 1e-12))
    return np.where(table.min(axis=0) < 0, -high, 0.0), high


def data_set(name: str, seed: int, relabel: Callable[[np.ndarray], np.ndarray] | None = None) -> Problem:
    """A data set of scikit-learn, ``load_<name>``; classes may be merged by ``relabel``."""
    loader, title = name.partition(", ")[0], name.replace("_", " ")

    def draw(repetition: int) -> Split:
        from sklearn import datasets

        table, targets = getattr(datasets, f"load_{loader}")(return_X_y=True)
        targets = targets if relabel is None else relabel(targets)
        bounds = column_bounds(table)
        order = np.random.default_rng([seed, repetition, *map(ord, loader)]).permutation(len(table))
        test, train = np.split(order, [int(TEST_FRACTION * len(table))])
        if loader == "diabetes":
            declared: dict[str, Any] = {"target_range": (0.0, float(rounded_up(targets.max())))}
        else:
            declared = {"classes": np.unique(targets).tolist()}
        declared["bounds"] = bounds
        return Split(
            rows=table[train],
            targets=targets[train],
            test_rows=table[test],
            test_targets=targets[test],
            declared=declared,
        )

    return Problem(name=title, draw=draw, group=name)


def _odd(digits: np.ndarray) -> np.ndarray:
    return digits % 2


def _large(digits: np.ndarray) -> np.ndarray:
    return (digits >= 5).astype(int)


DESIGNS = ("dense", "sparse", "correlated")
COMMITTED = (
    data_set("breast_cancer", 71),
    data_set("wine", 71),
    data_set("diabetes", 71),
    data_set("digits, odd or even", 71, _odd),
    data_set("digits", 71),
    *(
        synthetic(kind, rows, columns, design, 2.0, 71)
        for kind in ("logistic", "linear")
        for rows, columns in ((8000, 8), (4000, 40), (2000, 60), (800, 80))
        for design in DESIGNS
    ),
)
DEVELOPMENT = (
    data_set("iris", 1072),
    data_set("digits, five and above", 1072, _large),
    *(
        synthetic(kind, rows, columns, design, 1.5, 1072)
        for kind in ("logistic", "linear")
        for rows, columns in ((5000, 6), (3000, 25), (1500, 50), (400, 30))
        for design in DESIGNS
    ),
)
QUICK = tuple(synthetic(kind, 300, 3, "dense", 1.5, 2072) for kind in ("logistic", "linear"))
