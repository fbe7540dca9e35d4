"""The tasks of the utility benchmark: bilevel problems on real data.

Every size below is a declared constant, as are ranges and category counts in `task_data`: the definition of a task does
not depend on the data. The random choices of a repetition (split, corruption, noise columns) depend on its seed alone,
never on the seed of the privacy noise. `load(name, data_directory, seed)` returns a `Task`; `NAMES` lists them.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from task_data import (
    ADULT_CATEGORIES,
    ADULT_NUMERIC,
    FLIGHTS_CARRIERS,
    MNIST_CLASSES,
    MNIST_PIXELS,
    Arrays,
    adult,
    california,
    flights,
    mnist,
    unit_rows,
)
from task_oracles import tuned_penalties, tuned_weights
from task_problems import (
    Tree,
    evaluators,
    explained,
    logistic,
    penalties_problem,
    pseudo_huber,
    right_class,
    softmax,
    uniform,
    weights_problem,
)

import dpbilevel as dpb

FLIGHTS_TARGET = 14  # Southwest, a mid-sized carrier
FLIGHTS_TRAINING, FLIGHTS_VALIDATION, FLIGHTS_TEST = 80_000, 3000, 5000
CALIFORNIA_DEGREE, CALIFORNIA_NOISE = 4, 64  # polynomial degree of each column; columns of pure noise
CALIFORNIA_TEST, CALIFORNIA_VALIDATION = 4000, 3000


@dataclass(frozen=True, eq=False)
class Task:
    """A bilevel problem with private records, and public test rows to evaluate the result.

    Attributes:
        upper, lower: private records, arrays with one leading axis.
        start: (x0, y0), public: where tuning starts.
        usual: x that people would use without tuning: equal weights, or scikit-learn's default penalty, C = 1. Where it
            is not the start, the start is a bad one.
        find_oracle: good hyperparameters, known or found without privacy; a few candidates by name, the best guess
            first. Which is best depends on the noise, so that the upper bound of the benchmark tries all of them.
        test_loss, test_accuracy: of (x, y) on the test rows.
        facts: public facts for the tables.
    """

    name: str
    problem: dpb.BilevelProblem
    upper: Arrays
    lower: Arrays
    start: tuple[Tree, Tree]
    usual: Tree
    find_oracle: Callable[[], Mapping[str, Tree]]
    test_loss: Callable[[Tree, Tree], float]
    test_accuracy: Callable[[Tree, Tree], float]
    facts: Mapping[str, Any]

    def records(self) -> dpb.Records:
        return dpb.Records(upper=self.upper, lower=self.lower)

    @functools.cached_property
    def oracle_candidates(self) -> Mapping[str, Tree]:
        return self.find_oracle()

    @property
    def starts_badly(self) -> bool:
        """Whether tuning starts where nobody would train."""
        return not np.array_equal(self.start[0], self.usual)

    @property
    def oracle_x(self) -> Tree:
        return next(iter(self.oracle_candidates.values()))


def load(name: str, data_directory: str | Path, seed: int) -> Task:
    """One repetition of a task."""
    if name not in _TASKS:
        raise ValueError(f"task {name!r}: must be one of {', '.join(available())}")
    return _TASKS[name](name, Path(data_directory), seed)


def available() -> tuple[str, ...]:
    return tuple(_TASKS)


def default_data_directory() -> Path:
    """The default data directory: $DPBILEVEL_DATA, or shared/data next to or in the repository."""
    repository = Path(__file__).resolve().parent.parent
    nearby = [repository.parent / "shared" / "data", repository / "shared" / "data"]
    return Path(os.environ.get("DPBILEVEL_DATA") or next((path for path in nearby if path.is_dir()), nearby[0]))


def _draws(seed: int) -> np.random.Generator:
    return np.random.default_rng([4, seed])  # a separate stream, independent of the seeds of the noise


def _sources(
    name: str,
    seed: int,
    data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    *,
    classes: int,
    sources: int,
    bad: int,
    flipped: float,
    validation: int,
    shuffled: bool = False,
) -> Task:
    """Training rows come from sources; the first ``bad`` of them have wrong labels, and validation rows are clean."""
    rows, labels, test_rows, test_labels = data
    draws = _draws(seed)
    order = draws.permutation(len(rows))
    upper, lower = order[:validation], order[validation:]
    source = draws.integers(0, sources, len(lower)).astype(np.int32)
    wrong = (source < bad) & (draws.random(len(lower)) < flipped)
    given = labels[lower].copy()
    given[wrong] = (given[wrong] + draws.integers(1, classes, wrong.sum())) % classes
    if shuffled:
        source = draws.permutation(source)  # all sources are now equally good: there is nothing to learn
    good = np.where(np.arange(sources) < bad, 0.0, 1 / (sources - bad)).astype(np.float32)
    known = {"uniform": uniform(sources)} if shuffled else {"good sources": good}
    loss, shape = (softmax, (rows.shape[1], classes)) if classes > 2 else (logistic, (rows.shape[1],))
    mean_loss, accuracy = evaluators(loss, right_class, test_rows, test_labels)
    return Task(
        name=name,
        problem=weights_problem(loss, sources, classes if classes > 2 else None),
        upper=(rows[upper], labels[upper]),
        lower=(rows[lower], given, source),
        start=(uniform(sources), np.zeros(shape, np.float32)),
        usual=uniform(sources),
        find_oracle=lambda: known,
        test_loss=mean_loss,
        test_accuracy=accuracy,
        facts={"kind": "sources", "sources": sources, "bad sources": bad, "validation": validation},
    )


def _flights_shift(name: str, directory: Path, seed: int) -> Task:
    """Sources are carriers; validation and test rows are flights of one of them. Nothing is corrupted."""
    rows, late, carrier = flights(directory)
    order = _draws(seed).permutation(len(rows))
    mine = order[carrier[order] == FLIGHTS_TARGET]
    test, upper = mine[:FLIGHTS_TEST], mine[FLIGHTS_TEST : FLIGHTS_TEST + FLIGHTS_VALIDATION]
    used = np.zeros(len(rows), bool)
    used[test] = used[upper] = True
    # From the end: the flights of the target at the front are already in use.
    lower = order[~used[order]][-FLIGHTS_TRAINING:]
    mean_loss, accuracy = evaluators(logistic, right_class, rows[test], late[test])

    def oracle() -> Mapping[str, Tree]:
        # The exact optimum of the validation loss without noise. The target alone has few rows, so that at small
        # epsilon a mixture with all carriers may be better.
        alone = np.eye(FLIGHTS_CARRIERS, dtype=np.float32)[FLIGHTS_TARGET]
        exact = tuned_weights(rows, late, carrier, lower, upper)
        even = uniform(FLIGHTS_CARRIERS)
        mixed = {f"{share:g} target": share * alone + (1 - share) * even for share in (0.2, 0.5)}
        return {"exact": exact, "target alone": alone, **mixed, "half exact": (exact + even) / 2}

    return Task(
        name=name,
        problem=weights_problem(logistic, FLIGHTS_CARRIERS),
        upper=(rows[upper], late[upper]),
        lower=(rows[lower], late[lower], carrier[lower]),
        start=(uniform(FLIGHTS_CARRIERS), np.zeros(rows.shape[1], np.float32)),
        usual=uniform(FLIGHTS_CARRIERS),
        find_oracle=oracle,
        test_loss=mean_loss,
        test_accuracy=accuracy,
        facts={"kind": "shift", "sources": FLIGHTS_CARRIERS, "validation": FLIGHTS_VALIDATION},
    )


def _imbalance(name: str, directory: Path, seed: int, *, validation: int = 5000, rarest: float = 0.01) -> Task:
    """Class c keeps a fraction rarest^(c/9) of its training rows; validation and test classes are balanced."""
    rows, labels, test_rows, test_labels = mnist(directory)
    draws, upper, lower, kept = _draws(seed), [], [], []
    for label in range(MNIST_CLASSES):
        mine = draws.permutation(np.flatnonzero(labels == label))
        clean = validation // MNIST_CLASSES
        keep = int((len(mine) - clean) * rarest ** (label / (MNIST_CLASSES - 1)))
        upper.append(mine[:clean])
        lower.append(mine[clean : clean + keep])
        kept.append(keep)
    # Rows of a file have no particular order, and class sizes are public here (class weights need declared sizes).
    upper_rows, lower_rows = draws.permutation(np.concatenate(upper)), draws.permutation(np.concatenate(lower))
    inverse = 1 / np.asarray(kept, np.float32)
    powers = {"inverse frequency": 1.0, "its root": 0.5}
    mean_loss, accuracy = evaluators(softmax, right_class, test_rows, test_labels)
    return Task(
        name=name,
        problem=weights_problem(softmax, MNIST_CLASSES, MNIST_CLASSES),
        upper=(rows[upper_rows], labels[upper_rows]),
        lower=(rows[lower_rows], labels[lower_rows], labels[lower_rows]),
        start=(uniform(MNIST_CLASSES), np.zeros((MNIST_PIXELS, MNIST_CLASSES), np.float32)),
        usual=uniform(MNIST_CLASSES),
        find_oracle=lambda: {key: inverse**power / np.sum(inverse**power) for key, power in powers.items()},
        test_loss=mean_loss,
        test_accuracy=accuracy,
        facts={"kind": "classes", "sources": MNIST_CLASSES, "validation": validation},
    )


def _penalties(
    name: str,
    loss: Callable[..., jax.Array],
    accuracy: Callable[..., float],
    groups: np.ndarray,
    start: float,
    upper: Arrays,
    lower: Arrays,
    test: Arrays,
) -> Task:
    number = int(groups.max()) + 1
    mean_loss, mean_accuracy = evaluators(loss, accuracy, *test)

    def oracle() -> Mapping[str, Tree]:
        # The exact optimum of the validation loss without noise. With noise, larger penalties may be better, equal for
        # all groups or not.
        exact = tuned_penalties(loss, lower, upper, groups)
        floors = {f"exact, at least {least}": np.maximum(exact, least) for least in (-8.0, -6.0)}
        equal = {f"all {value}": np.full(number, value, np.float32) for value in (-12.0, -10.0, -8.0, -7.0, -6.0)}
        return {"exact": exact, **floors, **equal}

    return Task(
        name=name,
        problem=penalties_problem(loss, tuple(groups.tolist())),
        upper=upper,
        lower=lower,
        start=(np.full(number, start, np.float32), np.zeros(len(groups), np.float32)),
        # scikit-learn's C = 1 is a penalty of one on the sum of losses.
        usual=np.full(number, -np.log(len(upper[0]) + len(lower[0])), np.float32),
        find_oracle=oracle,
        test_loss=mean_loss,
        test_accuracy=mean_accuracy,
        facts={"kind": "penalties", "penalties": number, "start": start, "validation": len(upper[0])},
    )


def _adult_penalties(
    name: str, directory: Path, seed: int, *, start: float, grouped: bool, validation: int = 6000
) -> Task:
    rows, labels, test_rows, test_labels = adult(directory)
    order = _draws(seed).permutation(len(rows))
    upper, lower = order[:validation], order[validation:]
    widths = [1] * len(ADULT_NUMERIC) + list(ADULT_CATEGORIES.values()) + [1]
    groups = np.repeat(np.arange(len(widths)), widths) if grouped else np.zeros(sum(widths), int)
    return _penalties(
        name,
        logistic,
        right_class,
        groups,
        start,
        (rows[upper], labels[upper]),
        (rows[lower], labels[lower]),
        (test_rows, test_labels),
    )


def _california_groups(name: str, directory: Path, seed: int, *, start: float = -3.0) -> Task:
    """Groups: the polynomials of each column, the products of columns, and the columns of pure noise."""
    columns, targets = california(directory)
    draws = _draws(seed)
    number = columns.shape[1]
    curves = np.polynomial.legendre.legvander(columns, CALIFORNIA_DEGREE)[:, :, 1:]  # within [-1, 1], like columns
    first, second = np.triu_indices(number, 1)
    noise = np.clip(draws.normal(size=(len(columns), CALIFORNIA_NOISE)) / 2, -1, 1)
    rows = unit_rows([curves.reshape(len(columns), -1), columns[:, first] * columns[:, second], noise])
    widths = [CALIFORNIA_DEGREE] * number + [len(first), CALIFORNIA_NOISE, 1]
    order = draws.permutation(len(rows))
    test, upper, lower = np.split(order, [CALIFORNIA_TEST, CALIFORNIA_TEST + CALIFORNIA_VALIDATION])
    parts = ((rows[part], targets[part]) for part in (upper, lower, test))
    return _penalties(name, pseudo_huber, explained, np.repeat(np.arange(len(widths)), widths), start, *parts)


_adult_sources = functools.partial(_sources, classes=2, sources=12, bad=8, flipped=0.7)
_TASKS: dict[str, Callable[[str, Path, int], Task]] = {
    "adult-sources": lambda name, data, seed: _adult_sources(name, seed, adult(data), validation=4000),
    "adult-sources-1000": lambda name, data, seed: _adult_sources(name, seed, adult(data), validation=1000),
    "adult-shuffled": lambda name, data, seed: _adult_sources(name, seed, adult(data), validation=4000, shuffled=True),
    "mnist-sources": lambda name, data, seed: _sources(
        name, seed, mnist(data), classes=MNIST_CLASSES, sources=20, bad=10, flipped=1.0, validation=5000
    ),
    "flights-shift": _flights_shift,
    **{
        f"adult-{kind}-{-start}": functools.partial(_adult_penalties, start=float(start), grouped=kind == "groups")
        for kind in ("groups", "scalar")
        for start in (-5, -3, 0)
    },
    "mnist-imbalance": _imbalance,
    "california-groups": _california_groups,
}
NAMES = available()
