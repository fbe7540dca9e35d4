"""The gradients of the final training: what each record contributes, and the clip that adapts to their norms.

The training objective is the mean over all records of the final training, each with the weight of a lower record of
full weight. A record contributes its gradient in units of the clip, and whether the gradient is within the clip. The
released fraction within the clip moves the clip for the next step (Andrew et al. 2021).
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
from dpbilevel.privacy.outer import norm
from dpbilevel.problem import BilevelProblem

Tree = Any

GRADIENT, WITHIN = "gradient", "within the clip"
_WANDERING = 0.3  # standard deviation of the log clip due to noise over the run; its pace is at most one


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
    """What records of each level contribute to a training step, at points (x, y, clip)."""
    levels = {}
    for level in levels_of(context):
        contribution = joined(_parts(_gradient(context, level), cut, shares), clipped=context.budget.is_private)
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
        parts = _parts(_gradient(context, "lower"), cut, shares)  # every level has the same units
        noise = parts[WITHIN].unit * noise_std * math.sqrt(steps)
        return cls(context.problem, parts, cut, within, 1 / math.hypot(1, noise / _WANDERING))

    def read(self, x: Tree, y: Tree, clip: jax.Array, answer: Tree) -> tuple[Tree, jax.Array]:
        """The gradient of the training objective at (x, y), and the next clip."""
        means = separated(answer, self.parts)
        scale = self.problem.lower_scale(x) * self.cut * clip
        term = gradient(self.problem, "lower_term", 1)(x, y)
        direction = optax.tree.add(optax.tree.scale(scale, means[GRADIENT]), term)
        clip = clip * jnp.exp(self.pace * (self.within - 0.5 - means[WITHIN]))
        return direction, clip.astype(jnp.float32)


def _gradient(context: PublicContext, level: str) -> Callable[[Tree, Tree, Tree], Tree]:
    problem = context.problem
    return _lower_gradient(problem) if level == "lower" else gradient(problem, "upper_loss", 1)


def _parts(
    loss_gradient: Callable[[Tree, Tree, Tree], Tree], cut: float, shares: Mapping[str, float]
) -> dict[str, Part]:
    contributions = {
        GRADIENT: (function(_in_units, loss_gradient, cut), 1.0),
        WITHIN: (function(_within, loss_gradient, cut), 0.5),
    }
    return shared(contributions, shares)


def _in_units(loss_gradient: Callable[[Tree, Tree, Tree], Tree], cut: Any, point: Tree, record: Tree) -> Tree:
    x, y, clip = point
    return optax.tree.scale(1 / (cut * clip), loss_gradient(x, y, record))


def _within(loss_gradient: Callable[[Tree, Tree, Tree], Tree], cut: Any, point: Tree, record: Tree) -> jax.Array:
    return jnp.where(cut * norm(_in_units(loss_gradient, cut, point, record)) <= 1, 0.5, -0.5)


def weighted(weight: Any, contribution: Callable[[Tree, Tree], Tree], point: Tree, record: Tree) -> Tree:
    """The contribution of a record, times the weight of its level."""
    return optax.tree.scale(weight, contribution(point, record))


@functools.lru_cache(maxsize=64)
def _lower_gradient(problem: BilevelProblem) -> Callable[[Tree, Tree, Tree], Tree]:
    def lower(x: Tree, y: Tree, record: Tree) -> Tree:
        return optax.tree.scale(1 / problem.lower_scale(x), gradient(problem, "lower_loss", 1)(x, y, record))

    return lower
