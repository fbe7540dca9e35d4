"""The scale of a trained model of several classes: one factor on its coefficients, measured on records after training.

The steps of training shrink a model like a ridge for coefficients of typical size. How well several classes can be told
apart is unknown before training, and models of easy ones are much larger. So with y the trained model and c a factor, a
few passes release the first two derivatives of

    F(c) = mean loss of the model c y

at the current factor, and make a Newton step. Those are two numbers per record instead of one per coefficient: their
noise is smaller by the root of their number. F is the loss of the model as it is, with its noise, which is what users
get.

*Sampling.* Records that have trained the model are fitted better than others. The derivative is corrected by what
sampling alone explains, E[y . zeta] = d_eff/n for a log-likelihood, with d_eff the number of coefficients that training
has fitted.

*Noise.* The noise of the factor is known. The factor is its mean given what was measured, for factors of 1 +- 0.4.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.execution.program import State
from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import Levels
from dpbilevel.methods.joint import Part, joined, separated, shared
from dpbilevel.methods.training_gradients import fraction, levels_of, weighted
from dpbilevel.problem import BilevelProblem

Tree = Any

SCALE = "scale of the model"
PASSES = 2  # Newton steps; the second starts close to where it ends
SHARE = 0.04  # of the training's mu^2: costs as much accuracy as 2% fewer records
_FIRST, _SECOND = "derivative", "curvature"
_SHARES = {_FIRST: 0.7, _SECOND: 0.3}  # of the mu^2 of a pass
_SPREAD = 0.4  # standard deviation of factors
_LARGEST = 3.0  # factor
_SHORTER = 0.5  # by how much a pass shortens, at most: certain models have little curvature, which shorter ones have
_TAIL = 2.0  # clips are this multiple of what a record with the mean square score has
_TINY = 1e-30


def scale_levels(context: PublicContext) -> Levels:
    """What records of each level contribute to a pass, at points (x, y, factor, clips)."""
    levels = {}
    for level in levels_of(context):
        mine = fraction(context, level)
        contribution = joined(_parts(context.problem, level), clipped=context.budget.is_private)
        levels[level] = function(weighted, mine, contribution), mine
    return levels


@passing("parts", "noise_std", "records", "derivative", "curvature")
@dataclass(frozen=True, eq=False, kw_only=True)
class Scale:
    """Newton steps of the factor.

    Args:
        parts: what a record contributes.
        noise_std: of a pass, for vectors of norm one.
        records: number of training records.
        derivative, curvature: declared bounds on those of the loss in a score.
    """

    parts: dict[str, Part]
    noise_std: float
    records: int
    derivative: float
    curvature: float

    @classmethod
    def of(cls, context: PublicContext, **numbers: Any) -> "Scale":
        """For releases of `scale_levels`."""
        return cls(parts=_parts(context.problem, "lower"), **numbers)

    def start(self) -> State:
        """The state before the first pass."""
        zero, one = jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32)
        state = {"factor": one, "clips": jnp.ones(2, jnp.float32)}
        return state | dict.fromkeys(("curvature", "largest", "optimism", "sum", "error"), zero)

    def begin(self, state: State, square: jax.Array, fitted: jax.Array) -> State:
        """The state at a trained model, with its mean square score and the number of coefficients that are fitted."""
        square = jnp.maximum(square, _TINY)
        more = {
            "clips": jnp.stack([_TAIL * self.derivative * jnp.sqrt(square), _TAIL**2 * self.curvature * square]),
            "largest": self.curvature * square,
            "optimism": fitted / self.records,
        }
        return state | {name: value.astype(jnp.float32) for name, value in more.items()}

    def step(self, state: State, answer: Tree, step: jax.Array) -> State:
        """The factor after a pass."""
        means, number = separated(answer, self.parts), step + 1.0
        noise, noise_of_curvature = (
            self.parts[name].unit * self.noise_std * clip
            for name, clip in zip((_FIRST, _SECOND), state["clips"], strict=True)
        )
        # It changes less between passes than its noise, and is at most its bound.
        curvature = (step * state["curvature"] + state["clips"][1] * means[_SECOND]) / number
        curved = jnp.clip(jnp.maximum(curvature, noise_of_curvature / jnp.sqrt(number)), _TINY, state["largest"])
        derivative = state["clips"][0] * means[_FIRST] + state["optimism"]
        total = state["sum"] + state["factor"] - jnp.minimum(derivative / curved, _SHORTER)
        error = noise / (curved * jnp.sqrt(number))
        trust = _SPREAD**2 / (_SPREAD**2 + error**2)
        factor = jnp.clip(1 + trust * (total / number - 1), 0.0, _LARGEST)
        new = {"sum": total, "factor": factor, "error": trust * error, "curvature": curvature}
        return state | {name: value.astype(jnp.float32) for name, value in new.items()}


def at_point(state: State, x: Tree, y: jax.Array) -> Tree:
    """The query point of a pass."""
    return x, y, state["factor"], state["clips"]


def _parts(problem: BilevelProblem, level: str) -> dict[str, Part]:
    first, second = _derivatives(problem, level)
    return shared({_FIRST: (first, 1.0), _SECOND: (second, 1.0)}, _SHARES)


@functools.lru_cache(maxsize=64)
def _derivatives(problem: BilevelProblem, level: str) -> tuple[Any, Any]:
    """The first two derivatives of a record's loss in the factor, in units of their clips."""
    loss = problem.loss(level)
    assert loss is not None, "only levels with records train a model"

    def slope(point: Tree, record: Tree) -> Callable[[jax.Array], jax.Array]:
        x, y, _, _ = point
        weight = problem.lower_scale(x) if level == "lower" else 1.0
        return jax.grad(lambda factor: loss(x, (factor * y).astype(y.dtype), record) / weight)

    def first(point: Tree, record: Tree) -> jax.Array:
        return slope(point, record)(point[2]) / jnp.maximum(point[3][0], _TINY)

    def second(point: Tree, record: Tree) -> jax.Array:
        return jax.grad(slope(point, record))(point[2]) / jnp.maximum(point[3][1], _TINY)

    return function(first), function(second)
