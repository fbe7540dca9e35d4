"""A shared representation for many tasks: the upper level learns a feature map, the lower level one head per task.

    f(x, y) = mean over validation records of (1/2) (head_t . phi_x(row) + intercept_t - target)^2
    g(x, y) = the same over training records + (ridge/2) ||heads||^2 / tasks

phi_x is a linear map to a few dimensions, optionally after one hidden layer. A single task has too few records to learn
the map; together they have enough, and the map is a hyperparameter of all heads.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from dpbilevel.constraints import Ball
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.problem import BilevelProblem
from dpbilevel.theory.representation import representation_constants

_RIDGE = 1e-3


def shared_representation(
    *,
    columns: int,
    dimension: int,
    tasks: int,
    hidden: int | None = None,
    ridge: float = _RIDGE,
    row_norm: float = 1.0,
    target_bound: float = 1.0,
) -> BilevelProblem:
    """A feature map for all tasks. x holds the map, y one head per task, with its intercept last.

    Args:
        columns: length of a row.
        dimension: dimension of the representation; smaller than columns, or nothing is shared.
        tasks: the public number of tasks.
        hidden: units of a hidden layer (tanh) before the linear map; None for a linear map only.
        ridge: the fixed L2 penalty of heads, relative to the mean loss over the records of its task.
        row_norm, target_bound: declared bounds, for the initial map and for the constants (linear maps only).

    Records are triples (row, target, task) with tasks 0 to tasks - 1 at both levels, and validation records also train
    the final heads. `represented` applies a map.

    >>> problem = shared_representation(columns=6, dimension=2, tasks=10)
    >>> problem.start[0].shape, problem.start[1].shape
    ((6, 2), (10, 3))
    """
    for name, value in (("columns", columns), ("dimension", dimension), ("tasks", tasks)):
        count(name, value, "it is a public size")
    for name, bound in (("row_norm", row_norm), ("target_bound", target_bound)):
        positive(name, bound, "it is a declared bound (try 1.0)")
    if dimension > columns:
        raise InvalidArgument(f"dimension={dimension!r}: must not exceed columns={columns!r}, the dimension of rows")
    if hidden is not None:
        count("hidden", hidden, "it is the number of hidden units (None for a linear map)")
    positive("ridge", ridge, "it makes the heads' training strongly convex (try 1e-3)")
    return _representation(columns, dimension, tasks, hidden, float(ridge), float(row_norm), float(target_bound))


def represented(x: Any, rows: Any) -> jax.Array:
    """phi_x of one row or of many: a linear map, after a hidden layer if x has one.

    >>> represented(np.eye(3, 2), np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0]
    """
    if not isinstance(x, dict):
        return jnp.asarray(rows) @ jnp.asarray(x)
    return jnp.tanh(jnp.asarray(rows) @ x["hidden"] + x["bias"]) @ x["output"]


@functools.lru_cache(maxsize=64)
def _representation(
    columns: int, dimension: int, tasks: int, hidden: int | None, ridge: float, row_norm: float, target_bound: float
) -> BilevelProblem:
    # Heads can compensate the scale of a map, but only slowly: features train as fast as the intercept if they are as
    # large as its column of ones. This map achieves that for rows that spread evenly over their columns. The domain
    # allows maps twice as large.
    scale = math.sqrt(columns) / row_norm
    first: Any = scale * spread(columns, dimension if hidden is None else hidden)
    if hidden is not None:
        first = {"hidden": first, "bias": np.zeros(hidden, np.float32), "output": spread(hidden, dimension)}
    radius = 2 * math.sqrt(sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(first)))
    ridge = ridge / tasks

    def loss(x: Any, y: Any, record: Any) -> Any:
        row, target, task = record
        head = y[task]
        return 0.5 * (represented(x, row) @ head[:-1] + head[-1] - target) ** 2

    constants = None
    if hidden is None:
        # An intercept is one more column of ones, which the map leaves unchanged: a larger map of larger rows.
        constants = representation_constants(
            math.hypot(row_norm, 1), map_norm=math.hypot(radius, 1), target_bound=target_bound, ridge=ridge
        )
    return BilevelProblem(
        upper_loss=loss,
        lower_loss=loss,
        lower_term=lambda x, y: ridge / 2 * jnp.sum(y**2),
        domain=Ball(radius),
        constants=constants,
        upper_trains=True,
        start=(first, np.zeros((tasks, dimension + 1), np.float32)),
    )


def spread(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """A public, data-independent start: columns of norm one, orthogonal if there are no more of them than rows.

    >>> start = spread(8, 3)
    >>> np.round(start.T @ start, 6).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    # k^1.5 times the golden ratio, modulo one, is equidistributed, so its normal quantiles resemble normal variates. So
    # is k times it, but that nearly repeats after 8, 13, 21, ... steps: as many hidden units would be almost equal.
    fractions = (np.arange(1, rows * columns + 1) ** 1.5 * (math.sqrt(5) - 1) / 2) % 1
    normal = norm.ppf(fractions).reshape(rows, columns)
    if columns <= rows:
        normal, _ = np.linalg.qr(normal)
    return (normal / np.linalg.norm(normal, axis=0)).astype(np.float32)
