"""Adam on released gradients, with a decreasing learning rate and an averaged iterate; post-processing, hence free."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.constraints import Domain, project
from dpbilevel.foundation.structure import passing

Tree = Any
State = Any

_DECAY = 0.9  # decay of the averaged iterate: about the last ten, whose learning rates are small already


def adam() -> optax.GradientTransformation:
    """Adam's direction. Its second moments average over a hundred steps, half of a typical run."""
    return optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-12)


def moved(y: Tree, direction: Tree, rate: Any) -> Tree:
    """y - rate * direction, in the dtype of y."""
    return jax.tree.map(lambda leaf, step: (leaf - rate * step).astype(leaf.dtype), y, direction)


def averaged(average: Tree, value: Tree, decay: float) -> Tree:
    """The running average after one more value."""
    return jax.tree.map(lambda a, v: (decay * a + (1 - decay) * v).astype(v.dtype), average, value)


@passing("steps", "learning_rate", structure=("domain",))
@dataclass(frozen=True)
class Descent:
    """Projected Adam with a learning rate that decreases linearly to zero; its result is the averaged iterate."""

    steps: int
    learning_rate: float
    domain: Domain

    def start(self, y: Tree) -> State:
        """The state before the first step."""
        return {"step": jnp.zeros((), jnp.float32), "y": y, "average": y, "moments": adam().init(y)}

    def move(self, state: State, gradient: Tree) -> State:
        """One step along a released gradient."""
        direction, moments = adam().update(gradient, state["moments"])
        rate = self.learning_rate * (1 - (state["step"] + 1) / (self.steps + 1))
        y = project(self.domain, moved(state["y"], direction, rate))
        average = averaged(state["average"], y, _DECAY)
        return {"step": state["step"] + 1, "y": y, "average": average, "moments": moments}
