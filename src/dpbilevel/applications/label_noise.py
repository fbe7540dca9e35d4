"""Wrong labels as a hyperparameter: how often each class is taken for each other, found with a few clean records.

    f(y) = mean of -log p_label over validation records, whose labels are right
    g(x, y) = mean of -log (sum over classes c of p_c T(x)[c, label]) over training records, + (ridge/2) ||y||^2

with p = softmax(row . y) and T(x) the confusion matrix: row c says which label a record of class c is given. The model
is trained to explain wrong labels by T instead of by itself (Patrini et al. 2017 call this forward correction, with a
matrix that was estimated beforehand). x holds the logarithms of odds: how often c is taken for another class, against
how often it is right.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.applications.losses import LinearModel
from dpbilevel.constraints import Box
from dpbilevel.foundation.arguments import positive
from dpbilevel.problem import BilevelProblem

_ODDS = (-8.0, 2.0)  # logarithms of the odds of one confusion: from one in 3,000 to seven to one
_START = -3.0  # each confusion once in twenty
_RIDGE = 1e-3  # with less the model comes after x so slowly that x overshoots the truth, and swings around it


def label_noise(*, columns: int, classes: int, ridge: float = _RIDGE, row_norm: float = 1.0) -> BilevelProblem:
    """How often each class is labelled as each other. x holds logarithms of odds, y the coefficients.

    Args:
        columns: length of a row, an intercept's column of ones included.
        classes: K, the public number of classes.
        ridge: the fixed L2 penalty.
        row_norm: declared bound on rows.

    Records are pairs (row, label) with labels 0 to K - 1; those of the upper level have right labels and train the
    final model too. `confusion` turns x into the matrix. The lower level is not convex: no constants are certified.

    >>> problem = label_noise(columns=8, classes=3)
    >>> problem.start[0].shape, problem.start[1].shape, problem.constants
    ((3, 2), (8, 3), None)
    """
    model = LinearModel(loss="softmax", columns=columns, classes=classes, row_norm=row_norm)
    return _label_noise(model, positive("ridge", ridge, "it keeps training bounded (try 1e-3)"))


def confusion(x: Any) -> jax.Array:
    """The confusion matrix of hyperparameters x: row c says how often a record of class c is given each label.

    >>> confusion(np.array([[-2.0, -2.0], [-30.0, 0.0], [-30.0, -30.0]])).round(2).tolist()  # doctest: +ELLIPSIS
    [[0.78..., 0.10..., 0.10...], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    return jax.nn.softmax(_odds(jnp.asarray(x)), axis=1)


def _odds(x: jax.Array) -> jax.Array:
    """Logarithms of odds with zeros on the diagonal, which x leaves out: being right is what odds are against."""
    below = jnp.tril(jnp.pad(x, ((0, 0), (0, 1))), -1)
    above = jnp.triu(jnp.pad(x, ((0, 0), (1, 0))), 1)
    return below + above


@functools.lru_cache(maxsize=64)
def _label_noise(model: LinearModel, ridge: float) -> BilevelProblem:
    clean = model.point_loss()
    classes = model.classes or 2

    def lower_loss(x: Any, y: Any, record: Any) -> Any:
        row, label = record
        given = jax.nn.log_softmax(_odds(x), axis=1)[:, label]
        return -jax.nn.logsumexp(jax.nn.log_softmax(row @ y) + given)

    return BilevelProblem(
        upper_loss=lambda x, y, record: clean(y, *record),
        lower_loss=lower_loss,
        lower_term=lambda x, y: ridge / 2 * jnp.sum(y**2),
        domain=Box(*_ODDS),
        upper_trains=True,
        start=(np.full((classes, classes - 1), _START, np.float32), model.start()),
    )
