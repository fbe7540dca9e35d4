"""The gradients of the final training: what each record contributes, and the clip that adapts to their norms.

The training objective is the mean over all records of the final training, each with the weight of a lower record of
full weight. A record contributes its gradient in units of the clip, and whether the gradient is within the clip; those
of a linear model are measured in a `Metric`, if there is one. The released fraction within the clip moves the clip for
the next step (Andrew et al. 2021), relative to the fraction that is to be beyond it: a clip that is far too large, with
no record beyond it, falls by a third in a step, whatever the fraction.

For classes a record may also contribute its squared derivative in the score, whose mean is that of the second
derivative (the two sides of the Fisher information).
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext, gradient
from dpbilevel.methods.contributions import Levels
from dpbilevel.methods.joint import Part, joined, separated, shared
from dpbilevel.methods.unit_losses import UnitLoss, linear_loss
from dpbilevel.privacy.metric import Metric
from dpbilevel.privacy.outer import Outer, norm
from dpbilevel.problem import BilevelProblem

Tree = Any

GRADIENT, WITHIN, SQUARE = "gradient", "within the clip", "squared derivative"
_WANDERING = 0.3  # standard deviation of the log clip due to noise over the run
_PACE = 0.35  # largest change of the log clip in a step if no record is beyond it
_FALL, _RISE = -0.35, 0.7  # limits of this change


def pools(context: PublicContext) -> bool:
    """Whether upper records are used for training too."""
    return context.problem.upper_trains and context.problem.upper_loss is not None and context.sizes.both is None


def levels_of(context: PublicContext) -> tuple[str, ...]:
    """The levels whose records train the model."""
    return ("lower", "upper") if pools(context) else ("lower",)


def number_of_records(context: PublicContext) -> int:
    """How many records train the model."""
    return sum(_count(context, level) for level in levels_of(context))


def fraction(context: PublicContext, level: str) -> float:
    """The fraction of these records that a level has: the weight of its mean in the mean of all."""
    return _count(context, level) / number_of_records(context)


def _count(context: PublicContext, level: str) -> int:
    return context.sizes.count(context.sizes.role_of(level) or level)


def gradient_levels(context: PublicContext, cut: float, shares: Mapping[str, float]) -> Levels:
    """What records of each level contribute to a training step, at points (x, y, clip, metric); None for no metric.

    The parts are those that have shares.
    """
    levels = {}
    for level in levels_of(context):
        contribution = joined(_parts(context, level, cut, shares), clipped=context.budget.is_private)
        mine = fraction(context, level)
        levels[level] = function(weighted, mine, contribution), mine
    return levels


@passing("parts", "cut", "within", "pace", structure=("problem",))
@dataclass(frozen=True, eq=False)
class ReleasedGradients:
    """Reads released gradients.

    Args:
        problem: the bilevel problem.
        parts: what a record contributes.
        cut: factor on the clip.
        within: fraction of records that the clip leaves unchanged.
        pace: of the adaptation of the clip.
    """

    problem: BilevelProblem
    parts: dict[str, Part]
    cut: float
    within: float
    pace: float

    @classmethod
    def of(
        cls,
        context: PublicContext,
        cut: float,
        within: float,
        shares: Mapping[str, float],
        noise_std: float,
        steps: int,
    ) -> "ReleasedGradients":
        """For releases of `gradient_levels` with this noise."""
        parts = _parts(context, "lower", cut, shares)  # every level has the same units
        noise = parts[WITHIN].unit * noise_std * math.sqrt(steps) / (1 - within)
        return cls(context.problem, parts, cut, within, _PACE / math.hypot(1, _PACE * noise / _WANDERING))

    def read(self, point: Tree, answer: Tree) -> tuple[Tree, jax.Array]:
        """The gradient of the training objective at a point (x, y, clip, metric), and the next clip."""
        (x, y, clip, metric), means = point, separated(answer, self.parts)
        scale = self.problem.lower_scale(x) * self.cut * clip
        term = gradient(self.problem, "lower_term", 1)(x, y)
        direction = optax.tree.add(optax.tree.scale(scale, _divided_by(metric, means[GRADIENT])), term)
        missing = (self.within - 0.5 - means[WITHIN]) / (1 - self.within)
        clip = clip * jnp.exp(jnp.clip(self.pace * missing, _FALL, _RISE))
        return direction, clip.astype(jnp.float32)

    def square(self, answer: Tree) -> jax.Array:
        """The mean squared derivative in the score, in units of the square of its bound; one if it has no share."""
        if SQUARE not in self.parts:
            return jnp.ones((), jnp.float32)
        return separated(answer, self.parts)[SQUARE] + 0.5


def _gradient(context: PublicContext, level: str) -> Callable[[Tree, Tree, Tree], Tree]:
    problem = context.problem
    return _lower_gradient(problem) if level == "lower" else gradient(problem, "upper_loss", 1)


def _parts(context: PublicContext, level: str, cut: float, shares: Mapping[str, float]) -> dict[str, Part]:
    loss_gradient = _gradient(context, level)
    contributions: dict[str, tuple[Any, float]] = {
        GRADIENT: (function(_in_units, loss_gradient, cut), 1.0),
        WITHIN: (function(_within, loss_gradient, cut), 0.5),
    }
    if SQUARE in shares:
        contributions[SQUARE] = (_square(context.problem, level), 0.5)
    return shared(contributions, shares)


def _in_units(loss_gradient: Callable[[Tree, Tree, Tree], Tree], cut: Any, point: Tree, record: Tree) -> Tree:
    x, y, clip, metric = point
    return optax.tree.scale(1 / (cut * clip), _within_metric(metric, loss_gradient(x, y, record)))


def _within(loss_gradient: Callable[[Tree, Tree, Tree], Tree], cut: Any, point: Tree, record: Tree) -> jax.Array:
    return jnp.where(cut * norm(_in_units(loss_gradient, cut, point, record)) <= 1, 0.5, -0.5)


@functools.lru_cache(maxsize=64)
def _square(problem: BilevelProblem, level: str) -> Callable[[Tree, Tree], jax.Array]:
    """The squared derivative of the loss in the score, in units of the square of its bound, less a half.

    Of a unit: summed over its rows and divided by their mean number.
    """
    loss = problem.loss(level)
    linear = linear_loss(loss)
    assert linear is not None
    assert linear.bounds is not None
    bound = linear.bounds.derivative

    def of_row(x: Tree, y: Tree, record: Tree) -> jax.Array:
        _, (score,) = linear.scores(record, y)
        derivative = jax.grad(linear.loss, 1)(x, score, record) / bound
        return jnp.sum(derivative**2)

    def square(point: Tree, record: Tree) -> jax.Array:
        x, y = point[:2]
        weight = problem.lower_scale(x) if level == "lower" else 1.0
        if not isinstance(loss, UnitLoss):
            return of_row(x, y, record) / weight**2 - 0.5
        squares = jax.vmap(lambda row: of_row(x, y, row))(record.rows)
        return jnp.sum(jnp.where(record.present, squares, 0)) / (loss.mean_rows * weight**2) - 0.5

    return function(square)


def weighted(weight: Any, contribution: Callable[[Tree, Tree], Tree], point: Tree, record: Tree) -> Tree:
    """The contribution of a record, times the weight of its level."""
    return optax.tree.scale(weight, contribution(point, record))


@functools.lru_cache(maxsize=64)
def _lower_gradient(problem: BilevelProblem) -> Callable[[Tree, Tree, Tree], Tree]:
    def lower(x: Tree, y: Tree, record: Tree) -> Tree:
        return optax.tree.scale(1 / problem.lower_scale(x), gradient(problem, "lower_loss", 1)(x, y, record))

    return lower


def _within_metric(metric: Metric | None, gradient: Tree) -> Tree:
    """B times a gradient: an outer product with a row, or an array whose first axis has the columns of rows."""
    if metric is None:
        return gradient
    return gradient.within(metric) if isinstance(gradient, Outer) else _by_columns(metric.times, gradient)


def _divided_by(metric: Metric | None, released: Tree) -> Tree:
    """B^-1 times a released gradient."""
    return released if metric is None else _by_columns(metric.inverse_times, released)


def _by_columns(function: Callable[[jax.Array], jax.Array], array: jax.Array) -> jax.Array:
    return function(array.reshape(array.shape[0], -1)).reshape(array.shape)
