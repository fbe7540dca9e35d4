"""Losses of linear models: a function of x, of row . y and of the record.

    g_i(x, y) = loss(x, row_i . y, record_i)

The gradient in y is the row times the derivative in the score. Methods that know this compute the scores of all records
by one matrix product and the sums of gradients by another, without an array for each record's gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.errors import InvalidProblem
from dpbilevel.foundation.arguments import positive

Tree = Any


@dataclass(frozen=True, kw_only=True)
class LinearBounds:
    """Declared bounds of a linear loss, for a record of full weight. Training uses them to choose its steps.

    The guarantee does not rest on them: releases clip by themselves. Wrong bounds make training slow or unstable.

    Args:
        row_norm: of every row.
        curvature: largest second derivative of the loss in the score; an operator norm if the score is a vector.
        first_curvature: the same at the start of training, where y is zero: a mean over the entries of the score. By
            default it is the largest.
        derivative: largest first derivative in the score; infinite where it is not bounded, as for a squared loss.

    >>> LinearBounds(row_norm=1.0, curvature=0.25, derivative=1.0)  # logistic regression on rows of norm one
    LinearBounds(row_norm=1.0, curvature=0.25, first_curvature=None, derivative=1.0)
    """

    row_norm: float
    curvature: float
    first_curvature: float | None = None
    derivative: float = math.inf

    def __post_init__(self) -> None:
        positive("row_norm", self.row_norm, "it bounds the norm of every row (try 1.0)")
        positive("curvature", self.curvature, "it bounds the second derivative of the loss in the score (try 1.0)")
        positive(
            "derivative", self.derivative, "it bounds the first derivative of the loss in the score", infinite=True
        )
        positive("first_curvature", self.at_zero, "it is the second derivative of the loss at a score of zero")

    @property
    def at_zero(self) -> float:
        """The curvature at a score of zero."""
        return self.curvature if self.first_curvature is None else self.first_curvature


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearLoss:
    """One record's loss of a linear model, for `BilevelProblem`: a function (x, y, record) -> scalar.

    y is one array whose first axis has the length of a row: a vector, or a matrix with one column per output.

    The guarantee is that of any loss: what is clipped is what is summed. Results are those of the same loss written as
    a function, up to rounding; only speed and memory differ. It is fastest where the row is an array of the record.

    Args:
        row: record -> its row, a vector.
        loss: (x, score, record) -> scalar, with score = row . y: a scalar, or a vector if y is a matrix. Weights of
            records belong here, too.
        bounds: declared bounds, if known: the final training then needs fewer steps, and is more accurate.

    >>> import jax, dpbilevel as dpb
    >>> logistic = dpb.LinearLoss(
    ...     row=lambda record: record["row"],
    ...     loss=lambda x, score, record: jax.nn.softplus(-record["label"] * score),
    ... )
    >>> problem = dpb.BilevelProblem(
    ...     upper_loss=logistic,
    ...     lower_loss=logistic,
    ...     lower_term=lambda x, y: x * (y @ y),
    ...     domain=dpb.Box(0.001, 10.0),
    ... )
    """

    row: Callable[[Tree], Any]
    loss: Callable[[Tree, Any, Tree], Any]
    bounds: LinearBounds | None = None

    def __post_init__(self) -> None:
        for name, signature in (("row", "(record) -> vector"), ("loss", "(x, score, record) -> scalar")):
            if not callable(getattr(self, name)):
                raise InvalidProblem(f"{name}: must be a function {signature} in LinearLoss(row=..., loss=...)")
        if self.bounds is not None and not isinstance(self.bounds, LinearBounds):
            raise InvalidProblem(f"bounds: must be dpb.LinearBounds(...) or None, not {type(self.bounds).__name__}")

    def __call__(self, x: Tree, y: Tree, record: Tree) -> Any:
        """The loss of a record, as a function of x and y."""
        return self.loss(x, self.row_of(record, y) @ y, record)

    def row_of(self, record: Tree, *models: Tree) -> jax.Array:
        """The row of a record, whose length fits the models."""
        row = self.row(record)
        if jnp.ndim(row) != 1 or not jnp.issubdtype(jnp.result_type(row), jnp.floating):
            raise InvalidProblem(
                "row: must return one vector of real numbers for a record in LinearLoss(row=..., loss=...)"
            )
        for y in models:
            if not hasattr(y, "shape") or y.shape[:1] != row.shape:
                raise InvalidProblem(
                    f"LinearLoss: y must be one array whose first axis has the length of a row, {row.shape[0]}; write "
                    "losses of other models as functions (x, y, record) -> scalar"
                )
        return row

    def weighted_row(self, x: Tree, y: Tree, record: Tree) -> jax.Array:
        """The row times the root of the record's weight: its second derivative at a score of zero over the declared."""
        assert self.bounds is not None, "without declared bounds there is no full weight"
        row, score = self.row_of(record, y), jnp.zeros(y.shape[1:], y.dtype)
        curved = jax.hessian(self.loss, 1)(x, score, record)
        mean = jnp.trace(curved.reshape(score.size, score.size)) / score.size
        return row * jnp.sqrt(jnp.maximum(mean / self.bounds.at_zero, 0.0)).astype(row.dtype)

    def scores(self, record: Tree, *models: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """The row of a record and its scores under several models, all of them by one product."""
        row = self.row_of(record, *models)
        columns = [model.reshape(row.size, -1) for model in models]
        product = jnp.matmul(row, jnp.concatenate(columns, axis=1), precision=jax.lax.Precision.HIGHEST)
        scores, first = [], 0
        for model, column in zip(models, columns, strict=True):
            scores.append(product[first : first + column.shape[1]].reshape(model.shape[1:]))
            first += column.shape[1]
        return row, scores
