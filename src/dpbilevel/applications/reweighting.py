"""Weights of training records, by source or by class: minimise the validation loss of the model trained with them.

    f(y) = mean of loss(row . y, target) over validation records
    g(x, y) = mean of K x_s loss(row . y, target) over training records of K sources s, + (ridge/2) ||y||^2

with x on the simplex: equal weights count every record once. Validation records define the goal: clean records if
sources may be wrong, records from the deployment population, or records with the desired balance of classes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpbilevel.applications.losses import LinearModel
from dpbilevel.constraints import Simplex
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.problem import BilevelProblem
from dpbilevel.theory.weighted import weighted_constants

RIDGE = 1e-5  # negligible for rows of norm one; it makes the lower level strongly convex


def source_weights(
    loss: str = "logistic",
    *,
    columns: int,
    sources: int,
    classes: int | None = None,
    ridge: float = RIDGE,
    row_norm: float | None = None,
    target_bound: float | None = None,
    threshold: float | None = None,
) -> BilevelProblem:
    """A weight for each source of training records. x holds the weights (they sum to one), y the coefficients.

    Args:
        loss: see `dpbilevel.applications.losses.LinearModel`, also for the declared bounds.
        columns: length of a row, including an intercept's column of ones.
        sources: K, the public number of sources.
        classes: number of classes, for "softmax".
        ridge: the fixed L2 penalty.
        row_norm, target_bound, threshold: declared bounds, for the constants; that on rows for training, too.

    Upper records are pairs (row, target) and also train the final model; lower records are triples (row, target,
    source) with sources 0 to K - 1.

    >>> problem = source_weights("logistic", columns=8, sources=3)
    >>> problem.start[0].tolist()
    [0.3333333432674408, 0.3333333432674408, 0.3333333432674408]
    """
    model = LinearModel(
        loss=loss, columns=columns, classes=classes, row_norm=row_norm, target_bound=target_bound, threshold=threshold
    )
    count("sources", sources, "it is the public number of sources")
    return _weights(model, int(sources), positive("ridge", ridge, "it makes training strongly convex (try 1e-5)"), None)


def class_weights(
    *,
    columns: int,
    classes: int = 2,
    costs: Sequence[float] | None = None,
    ridge: float = RIDGE,
    row_norm: float | None = None,
) -> BilevelProblem:
    """A weight for each class of a linear classifier. x holds the weights (they sum to one), y the coefficients.

    Args:
        columns: length of a row, including an intercept's column of ones.
        classes: K, the public number of classes. With two, y is a vector and the loss logistic, otherwise softmax.
        costs: the public cost of a mistake on each class; validation losses are multiplied by them, and tuning starts
            at weights proportional to them. None if validation records already have the desired balance of classes
            (for example, equal numbers).
        ridge: the fixed L2 penalty.
        row_norm: declared bound on rows, for training and for the constants.

    Records are pairs (row, label) with labels 0 to K - 1 at both levels.

    >>> problem = class_weights(columns=8, classes=2, costs=[1.0, 10.0])
    >>> problem.start[1].shape
    (8,)
    """
    classes = count("classes", classes, "it is the public number of classes")
    loss = "logistic" if classes == 2 else "softmax"
    model = LinearModel(loss=loss, columns=columns, classes=None if classes == 2 else classes, row_norm=row_norm)
    if costs is not None:
        if not isinstance(costs, Sequence | np.ndarray) or len(costs) != classes:
            raise InvalidArgument(
                f"costs={costs!r}: must have one number for each of the {classes} classes (try {[1.0] * classes})"
            )
        costs = tuple(positive("costs", cost, "it is the cost of a mistake on a class (try 1.0)") for cost in costs)
    return _weights(model, classes, positive("ridge", ridge, "it makes training strongly convex (try 1e-5)"), costs)


@functools.lru_cache(maxsize=64)
def _weights(model: LinearModel, number: int, ridge: float, costs: tuple[float, ...] | None) -> BilevelProblem:
    of_score = model.of_score()
    # Relative costs: their mean is one, so that clips and learning rates keep their meaning.
    relative = None if costs is None else np.asarray(costs, np.float32) * len(costs) / sum(costs)
    first = np.full(number, 1 / number, np.float32) if relative is None else relative / number

    def upper_loss(x: Any, score: Any, record: Any) -> Any:
        target = record[1]
        cost = 1.0 if relative is None else jnp.asarray(relative)[target]
        return cost * of_score(score, target)

    def lower_loss(x: Any, score: Any, record: Any) -> Any:
        # The last entry is the source, or the class itself.
        return number * x[record[-1]] * of_score(score, record[1])

    return BilevelProblem(
        upper_loss=LinearLoss(row=lambda record: record[0], loss=upper_loss, bounds=model.bounds()),
        lower_loss=LinearLoss(row=lambda record: record[0], loss=lower_loss, bounds=model.bounds()),
        lower_term=lambda x, y: ridge / 2 * jnp.sum(y**2),
        domain=Simplex(),
        constants=model.certified(weighted_constants, weights=number, ridge=ridge) if costs is None else None,
        public=() if relative is None else [relative],
        lower_scale=lambda x: number * jnp.sum(x**2),
        upper_trains=True,
        # Known costs are the best initial guess of the weights.
        start=(first, model.start()),
    )
