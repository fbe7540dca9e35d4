"""Descent on released gradients: Adam with a falling step and an averaged iterate. Post-processing, so it is free."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.constraints import Domain, project

Tree = Any
State = Any

_DECAY = 0.9  # of the average: about the last ten iterates, while steps are falling anyway


def adam() -> optax.GradientTransformation:
    """Adam's direction. Its second moments forget over a hundred steps, which is half of a usual run."""
    return optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-12)


def moved(y: Tree, direction: Tree, rate: Any) -> Tree:
    """y - rate * direction, in y's type."""
    return jax.tree.map(lambda leaf, step: (leaf - rate * step).astype(leaf.dtype), y, direction)


def averaged(average: Tree, value: Tree, memory: float) -> Tree:
    """A running average."""
    return jax.tree.map(lambda a, v: (memory * a + (1 - memory) * v).astype(v.dtype), average, value)


@dataclass(frozen=True)
class Descent:
    """Steps of Adam that fall linearly to zero, inside a domain; the averaged iterate is what counts."""

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
