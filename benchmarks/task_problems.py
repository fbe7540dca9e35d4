"""Losses and metrics of the tasks of the utility benchmark, and the two kinds of bilevel problems built from them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpbilevel as dpb
from dpbilevel.applications.losses import LinearModel

Tree = Any

SMALL_PENALTY = 1e-5  # of source and class tasks: makes the lower level strongly convex
PENALTY_BOX = (-12.0, 2.0)  # of logarithms of penalties


def logistic(y: jax.Array, row: jax.Array, label: jax.Array) -> jax.Array:
    return jax.nn.softplus(jnp.where(label > 0, -1.0, 1.0) * (row @ y))


def softmax(y: jax.Array, row: jax.Array, label: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(row @ y)[label]


def pseudo_huber(y: jax.Array, row: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.sqrt(1 + (row @ y - target) ** 2) - 1  # derivative below one, like the logistic loss


def right_class(y: Tree, rows: np.ndarray, labels: np.ndarray) -> float:
    scores = rows @ np.asarray(y)
    guessed = scores.argmax(1) if scores.ndim == 2 else (scores > 0).astype(int)
    return float(np.mean(guessed == labels))


def explained(y: Tree, rows: np.ndarray, targets: np.ndarray) -> float:
    """R squared, in place of accuracy for regression."""
    return float(1 - np.mean((rows @ np.asarray(y) - targets) ** 2) / np.var(targets))


def evaluators(loss: Callable[..., jax.Array], accuracy: Callable[..., float], rows: np.ndarray, targets: np.ndarray):
    def mean_loss(x: Tree, y: Tree) -> float:
        return float(jnp.mean(jax.vmap(loss, (None, 0, 0))(jnp.asarray(y), jnp.asarray(rows), jnp.asarray(targets))))

    return mean_loss, lambda x, y: accuracy(y, rows, targets)


def _model(loss: Callable[..., jax.Array], classes: int | None) -> LinearModel:
    """The same loss as a function of scores, with bounds for rows of norm one: training is that of linear models."""
    names = {logistic: "logistic", softmax: "softmax", pseudo_huber: "pseudo-huber"}
    return LinearModel(loss=names[loss], columns=1, classes=classes, row_norm=1.0)


def _row(record: Tree) -> Any:
    return record[0]


@functools.cache  # one problem for all repetitions, so that they share what is compiled
def weights_problem(loss: Callable[..., jax.Array], sources: int, classes: int | None = None) -> dpb.BilevelProblem:
    """One weight per source (the last entry of a lower record), with mean one."""
    model = _model(loss, classes)
    of_score, bounds = model.of_score(), model.bounds()

    def weighted(x: Tree, score: Any, record: Tree) -> Any:
        return sources * x[record[-1]] * of_score(score, record[1])

    def plain(x: Tree, score: Any, record: Tree) -> Any:
        return of_score(score, record[1])

    return dpb.BilevelProblem(
        upper_loss=dpb.LinearLoss(row=_row, loss=plain, bounds=bounds),
        lower_loss=dpb.LinearLoss(row=_row, loss=weighted, bounds=bounds),
        lower_term=lambda x, y: SMALL_PENALTY / 2 * jnp.sum(y**2),
        domain=dpb.Simplex(),
        lower_scale=lambda x: sources * jnp.sum(x**2),
        upper_trains=True,
    )


@functools.cache
def penalties_problem(loss: Callable[..., jax.Array], groups: tuple[int, ...]) -> dpb.BilevelProblem:
    """One penalty per group of coefficients, as a logarithm."""
    group_of_column, model = np.asarray(groups, np.int32), _model(loss, None)
    of_score = model.of_score()
    own = dpb.LinearLoss(row=_row, loss=lambda x, score, record: of_score(score, record[1]), bounds=model.bounds())
    return dpb.BilevelProblem(
        upper_loss=own,
        lower_loss=own,
        lower_term=lambda x, y: 0.5 * jnp.sum(jnp.exp(x[group_of_column]) * y**2),
        domain=dpb.Box(*PENALTY_BOX),
        public=[group_of_column],
        upper_trains=True,
    )


def uniform(number: int) -> np.ndarray:
    return np.full(number, 1 / number, np.float32)
