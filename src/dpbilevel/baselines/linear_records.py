"""What baselines for linear models need of a problem at a fixed x: rows, derivatives, weights and penalties."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.constraints import Unconstrained
from dpbilevel.errors import InvalidProblem
from dpbilevel.linear_loss import LinearBounds
from dpbilevel.methods.context import PublicContext, gradient
from dpbilevel.methods.training_gradients import levels_of
from dpbilevel.methods.unit_losses import linear_loss
from dpbilevel.problem import BilevelProblem

Tree = Any


def linear_bounds(context: PublicContext, name: str) -> LinearBounds:
    """The declared bounds of the losses of rows; raises unless they are a linear model with one score per row."""
    problem, y = context.problem, context.point[1]
    losses = [linear_loss(problem.loss(level)) for level in levels_of(context)]
    known = [loss.bounds for loss in losses if loss is not None and loss.bounds is not None]
    if len(known) < len(losses) or not hasattr(y, "ndim") or y.ndim != 1:
        raise InvalidProblem(
            f"{name}: needs a linear model with one score per record and declared bounds; give dpb.LinearLoss(..., "
            "bounds=dpb.LinearBounds(...)), or row_norm= to an application, and y as one vector"
        )
    if len(set(known)) > 1:
        raise InvalidProblem(f"{name}: needs the same declared bounds at both levels; give both losses the same")
    if not isinstance(problem.lower_domain, Unconstrained):
        raise InvalidProblem(f"{name}: needs an unconstrained y; leave lower_domain out")
    return known[0]


@functools.lru_cache(maxsize=64)
def score_loss(problem: BilevelProblem, level: str) -> Callable[[Tree, Any, Tree], Any]:
    """(x, score, row) -> the loss of a row of a level, where a lower one of full weight has weight one."""
    loss = linear_loss(problem.loss(level))
    assert loss is not None, "checked"
    if level == "upper":
        return loss.loss
    return lambda x, score, record: loss.loss(x, score, record) / problem.lower_scale(x)


@functools.lru_cache(maxsize=64)
def row(problem: BilevelProblem, level: str) -> Callable[[Tree], Any]:
    """A row of records -> its vector."""
    loss = linear_loss(problem.loss(level))
    assert loss is not None, "checked"
    return loss.row


def penalties(problem: BilevelProblem, x: Tree, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The data-free term in units of a mean loss, as a quadratic: its gradient at zero and separate curvatures."""
    term, zero = gradient(problem, "lower_term", 1), jnp.zeros_like(y)
    first, along_ones = jax.jvp(lambda y: term(x, y), (zero,), (jnp.ones_like(y),))
    scale = problem.lower_scale(x)
    return first / scale, jnp.maximum(along_ones, 0.0) / scale
