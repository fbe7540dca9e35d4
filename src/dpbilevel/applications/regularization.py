"""Tuning L2 penalties of a linear model: minimise the validation loss of the model trained with them.

    f(y) = mean of loss(row . y, target) over validation records
    g(x, y) = the same over training records + sum over columns j of (exp(x_k(j))/2) y_j^2

Hypergradients read no records here: they are functions of released models only, and cost nothing.
"""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from dpbilevel.applications.losses import LinearModel
from dpbilevel.constraints import Box
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import positive
from dpbilevel.linear_loss import LinearLoss
from dpbilevel.problem import BilevelProblem
from dpbilevel.theory.glm import glm_constants

PENALTIES = (
    math.exp(-12.0),
    math.exp(2.0),
)  # for rows of norm one: from no effect to shrinking the model to almost zero
UNTUNED = -1  # the group of columns that keep the smallest penalty


def regularization(
    loss: str = "logistic",
    *,
    columns: int,
    groups: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    classes: int | None = None,
    penalties: tuple[float, float] = PENALTIES,
    row_norm: float | None = None,
    target_bound: float | None = None,
    threshold: float | None = None,
) -> BilevelProblem:
    """Penalties of a linear model. x holds their logarithms, y the coefficients.

    Args:
        loss: see `dpbilevel.applications.losses.LinearModel`, also for the declared bounds.
        columns: length of a row.
        groups: the group number of each column, starting at 0; ``range(columns)`` gives each column its own penalty,
            None gives all the same. A column in group -1, such as an intercept, keeps the smallest penalty.
        weights: a public factor of each column on its penalty; one by default.
        classes: number of classes, for "softmax".
        penalties: (smallest, largest), public; tuning starts half-way between their logarithms.
        row_norm, target_bound, threshold: declared bounds, for the constants; that on rows for training, too.

    Records are pairs (row, target) at both levels, and validation records also train the final model.

    >>> import numpy as np, dpbilevel as dpb
    >>> problem = dpb.applications.regularization("squared", columns=4, groups=[0, 0, 1, -1])
    >>> draws = np.random.default_rng(0)
    >>> rows = draws.normal(size=(3000, 4)) / 4
    >>> targets = rows[:, 0]
    >>> records = dpb.Records(upper=(rows[:1000], targets[:1000]), lower=(rows[1000:], targets[1000:]))
    >>> solution = dpb.solve(problem, records, dpb.Budget(1.0, 1e-5))
    >>> solution.x.shape, solution.y.shape
    ((2,), (4,))
    """
    model = LinearModel(
        loss=loss, columns=columns, classes=classes, row_norm=row_norm, target_bound=target_bound, threshold=threshold
    )
    group_of = tuple(0 for _ in range(columns)) if groups is None else _checked_groups(groups, columns)
    if not isinstance(penalties, tuple | list) or len(penalties) != 2:
        raise InvalidArgument(f"penalties={penalties!r}: must be (smallest, largest), both public (try (1e-5, 10.0))")
    low, high = (positive("penalties", bound, "it bounds every penalty (try 1e-5 and 10)") for bound in penalties)
    if low >= high:
        raise InvalidArgument(f"penalties={penalties!r}: the smallest must be below the largest; swap the two bounds")
    return _regularization(model, group_of, _checked_weights(weights, columns), low, high)


@functools.lru_cache(maxsize=64)
def _regularization(
    model: LinearModel, group_of: tuple[int, ...], factors: tuple[float, ...] | None, low: float, high: float
) -> BilevelProblem:
    of_score = model.of_score()
    number, least = max(group_of) + 1, math.log(low)
    # The penalty of untuned columns follows those of the groups.
    group_of_column = np.array([number if group == UNTUNED else group for group in group_of], np.int32)
    of_column = None if factors is None else np.array(factors, np.float32)
    ends = (low, high) if factors is None else (low * min(factors), high * max(factors))

    loss = LinearLoss(
        row=lambda record: record[0],
        loss=lambda x, score, record: of_score(score, record[1]),
        bounds=model.bounds(),
    )

    def penalty(x, y):  # type: ignore[no-untyped-def]
        weights = jnp.exp(jnp.append(x, least))[group_of_column]
        weights = weights if of_column is None else weights * of_column
        return 0.5 * jnp.sum(weights * jnp.sum(y.reshape(len(group_of), -1) ** 2, axis=1))

    return BilevelProblem(
        upper_loss=loss,
        lower_loss=loss,
        lower_term=penalty,
        domain=Box(least, math.log(high)),
        constants=model.certified(glm_constants, penalty=ends, coordinates="log", fixed=ends[0]),
        public=[group_of_column, *([] if of_column is None else [of_column])],
        upper_trains=True,
        start=(np.full(number, (least + math.log(high)) / 2, np.float32), model.start()),
    )


def _checked_groups(groups: Sequence[int], columns: int) -> tuple[int, ...]:
    """Group numbers as a tuple; raises if they do not partition the columns."""
    try:
        numbers = np.asarray(groups)
    except (RuntimeError, TypeError, ValueError):  # lists of unequal lengths, objects that are not arrays
        numbers = np.array(None)
    if numbers.shape != (columns,) or numbers.dtype.kind not in "iu":
        raise InvalidArgument(
            f"groups: must give one whole number for each of the {columns} columns, the number of its group; got an "
            f"array of shape {numbers.shape} and type {numbers.dtype}"
        )
    tuned = sorted(set(numbers.tolist()) - {UNTUNED})
    if not tuned or tuned != list(range(len(tuned))):
        raise InvalidArgument(
            f"groups: must be numbered 0, 1, 2, … without gaps ({UNTUNED} for columns whose penalty is not tuned); got "
            f"the numbers {tuned}"
        )
    return tuple(int(number) for number in numbers)


def _checked_weights(weights: Sequence[float] | None, columns: int) -> tuple[float, ...] | None:
    """Factors of penalties; raises if they are not one positive number for each column."""
    if weights is None:
        return None
    if not isinstance(weights, list | tuple | np.ndarray) or len(weights) != columns:
        raise InvalidArgument(f"weights: must give one number for each of the {columns} columns")
    return tuple(positive("weights", weight, "it multiplies the penalty of a column (try 1.0)") for weight in weights)
