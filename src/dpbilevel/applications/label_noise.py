"""Label noise as a hyperparameter: confusion rates between classes, tuned on a few clean records.

    f(y) = mean of -log p_label over validation records, whose labels are correct
    g(x, y) = mean of -log (sum over classes c of p_c T(x)[c, label]) over training records, + (ridge/2) ||y||^2

with p = softmax(row . y) and T(x) the confusion matrix: row c is the distribution of labels given to records of class
c. T explains the wrong labels, so that the model need not (Patrini et al. 2017 call this forward correction, with a
matrix estimated in advance). x holds log-odds: of labelling c as another class, against labelling it correctly.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.applications.losses import LinearModel
from dpbilevel.constraints import Box
from dpbilevel.foundation.arguments import positive
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.problem import BilevelProblem

_ODDS = (-8.0, 2.0)  # log-odds of one confusion: from one in 3,000 to seven to one
_START = -3.0  # each confusion has odds of one to twenty
_RIDGE = 1e-3  # with less, the model adapts to x so slowly that x overshoots and oscillates


def label_noise(*, columns: int, classes: int, ridge: float = _RIDGE, row_norm: float = 1.0) -> BilevelProblem:
    """Confusion rates between classes. x holds log-odds, y the coefficients.

    Args:
        columns: length of a row, including an intercept's column of ones.
        classes: K, the public number of classes.
        ridge: the fixed L2 penalty.
        row_norm: declared bound on rows.

    Records are pairs (row, label) with labels 0 to K - 1; those of the upper level have correct labels and also train
    the final model. `confusion` converts x to the matrix. The lower level is not convex: no constants are certified.

    >>> problem = label_noise(columns=8, classes=3)
    >>> problem.start[0].shape, problem.start[1].shape, problem.constants
    ((3, 2), (8, 3), None)
    """
    model = LinearModel(loss="softmax", columns=columns, classes=classes, row_norm=row_norm)
    return _label_noise(model, positive("ridge", ridge, "it keeps training bounded (try 1e-3)"))


def confusion(x: Any) -> jax.Array:
    """The confusion matrix of hyperparameters x: row c is the distribution of labels given to records of class c.

    >>> confusion(np.array([[-2.0, -2.0], [-30.0, 0.0], [-30.0, -30.0]])).round(2).tolist()  # doctest: +ELLIPSIS
    [[0.78..., 0.10..., 0.10...], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    return jax.nn.softmax(_odds(jnp.asarray(x)), axis=1)


def _odds(x: jax.Array) -> jax.Array:
    """Log-odds with zeros on the diagonal, which x omits: the odds are relative to the correct label."""
    below = jnp.tril(jnp.pad(x, ((0, 0), (0, 1))), -1)
    above = jnp.triu(jnp.pad(x, ((0, 0), (1, 0))), 1)
    return below + above


@functools.lru_cache(maxsize=64)
def _label_noise(model: LinearModel, ridge: float) -> BilevelProblem:
    clean = model.of_score()
    classes = model.classes or 2

    def lower_loss(x: Any, scores: Any, record: Any) -> Any:
        given = jax.nn.log_softmax(_odds(x), axis=1)[:, record[1]]
        return -jax.nn.logsumexp(jax.nn.log_softmax(scores) + given)

    return BilevelProblem(
        upper_loss=LinearLoss(row=lambda record: record[0], loss=lambda x, scores, record: clean(scores, record[1])),
        lower_loss=LinearLoss(row=lambda record: record[0], loss=lower_loss),
        lower_term=lambda x, y: ridge / 2 * jnp.sum(y**2),
        domain=Box(*_ODDS),
        upper_trains=True,
        start=(np.full((classes, classes - 1), _START, np.float32), model.start()),
    )
