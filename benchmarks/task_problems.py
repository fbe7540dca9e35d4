"""Losses and metrics of the tasks of the utility benchmark, and the two kinds of bilevel problems built from them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpbilevel as dpb

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


def judges(loss: Callable[..., jax.Array], accuracy: Callable[..., float], rows: np.ndarray, targets: np.ndarray):
    def mean_loss(x: Tree, y: Tree) -> float:
        return float(jnp.mean(jax.vmap(loss, (None, 0, 0))(jnp.asarray(y), jnp.asarray(rows), jnp.asarray(targets))))

    return mean_loss, lambda x, y: accuracy(y, rows, targets)


@functools.cache  # one problem for all repetitions, so that they share what is compiled
def weights_problem(loss: Callable[..., jax.Array], sources: int) -> dpb.BilevelProblem:
    """One weight per source (the last entry of a lower record), with mean one."""
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(y, record[0], record[1]),
        lower_loss=lambda x, y, record: sources * x[record[-1]] * loss(y, record[0], record[1]),
        lower_term=lambda x, y: SMALL_PENALTY / 2 * jnp.sum(y**2),
        domain=dpb.Simplex(),
        lower_scale=lambda x: sources * jnp.sum(x**2),
        upper_trains=True,
    )


@functools.cache
def penalties_problem(loss: Callable[..., jax.Array], groups: tuple[int, ...]) -> dpb.BilevelProblem:
    """One penalty per group of coefficients, as a logarithm."""
    group_of_column = np.asarray(groups, np.int32)
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: loss(y, *record),
        lower_loss=lambda x, y, record: loss(y, *record),
        lower_term=lambda x, y: 0.5 * jnp.sum(jnp.exp(x[group_of_column]) * y**2),
        domain=dpb.Box(*PENALTY_BOX),
        public=[group_of_column],
        upper_trains=True,
    )


def uniform(number: int) -> np.ndarray:
    return np.full(number, 1 / number, np.float32)
