"""What baselines for linear models need of a problem at a fixed x: rows, derivatives, weights and penalties."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.constraints import Unconstrained
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.linear_loss import LinearBounds, LinearLoss
from dpbilevel.methods.context import PublicContext, gradient
from dpbilevel.methods.training_gradients import levels_of
from dpbilevel.methods.unit_losses import has_bundles
from dpbilevel.problem import BilevelProblem

Tree = Any


def linear_bounds(context: PublicContext, name: str) -> LinearBounds:
    """The declared bounds of a problem's losses; raises unless it is a linear model with one score per record."""
    if has_bundles(context.sizes):
        raise InvalidArgument(
            f"rows_per_unit: must be 1 for {name}, whose sensitivity is that of a record with one row; use one row per "
            "unit, or dpb.Refit()"
        )
    problem, y = context.problem, context.point[1]
    losses = [problem.loss(level) for level in levels_of(context)]
    known = [loss.bounds for loss in losses if isinstance(loss, LinearLoss) and loss.bounds is not None]
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
    """(x, score, record) -> the loss of a record of a level, where a lower record of full weight has weight one."""
    loss = problem.loss(level)
    assert isinstance(loss, LinearLoss)
    if level == "upper":
        return loss.loss
    return lambda x, score, record: loss.loss(x, score, record) / problem.lower_scale(x)


@functools.lru_cache(maxsize=64)
def row(problem: BilevelProblem, level: str) -> Callable[[Tree], Any]:
    """record -> its row."""
    loss = problem.loss(level)
    assert isinstance(loss, LinearLoss)
    return loss.row


def penalties(problem: BilevelProblem, x: Tree, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The data-free term in units of a mean loss, as a quadratic: its gradient at zero and separate curvatures."""
    term, zero = gradient(problem, "lower_term", 1), jnp.zeros_like(y)
    first, along_ones = jax.jvp(lambda y: term(x, y), (zero,), (jnp.ones_like(y),))
    scale = problem.lower_scale(x)
    return first / scale, jnp.maximum(along_ones, 0.0) / scale
