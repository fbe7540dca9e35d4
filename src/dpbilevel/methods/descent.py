"""Adam on released gradients, with a constant learning rate and averaged iterates; post-processing, hence free.

Where noise dominates, Adam divides every gradient by the same number, the noise of a step: y follows gradient descent.
Noise that all steps together add to a direction of curvature h is twice that of a single exact release if the second
half of all iterates is averaged. A learning rate that decreases to zero would leave more, in proportion to the square
root of h times the length of training; and in directions that are still moving, an eighth more.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.constraints import Domain, project
from dpbilevel.foundation.structure import passing

Tree = Any
State = Any


def adam() -> optax.GradientTransformation:
    """Adam's direction. Its second moments average over a hundred steps, at most half of a typical run."""
    return optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-12)


def moved(y: Tree, direction: Tree, rate: Any) -> Tree:
    """y - rate * direction, in the dtype of y."""
    return jax.tree.map(lambda leaf, step: (leaf - rate * step).astype(leaf.dtype), y, direction)


def averaged(average: Tree, value: Tree, weight: Any) -> Tree:
    """The running average after one more value, which has this weight."""
    return jax.tree.map(lambda a, v: (a + weight * (v - a)).astype(v.dtype), average, value)


@passing("steps", "learning_rate", structure=("domain",))
@dataclass(frozen=True)
class Descent:
    """Projected Adam with a constant learning rate; its result is the average of the second half of all iterates."""

    steps: int
    learning_rate: float
    domain: Domain

    def start(self, y: Tree) -> State:
        """The state before the first step."""
        return {"step": jnp.zeros((), jnp.float32), "y": y, "average": y, "moments": adam().init(y)}

    def move(self, state: State, gradient: Tree) -> State:
        """One step along a released gradient."""
        direction, moments = adam().update(gradient, state["moments"])
        y = project(self.domain, moved(state["y"], direction, self.learning_rate))
        # Until half-way the average is the iterate itself.
        number = jnp.maximum(state["step"] + 1 - self.steps // 2, 1)
        average = averaged(state["average"], y, 1 / number)
        return {"step": state["step"] + 1, "y": y, "average": average, "moments": moments}
