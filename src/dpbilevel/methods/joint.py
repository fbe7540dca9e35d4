"""Several vectors of one record in one release: one pass over the records answers them all.

Each vector is clipped to a bound of its own and scaled so that the whole has norm at most one. With vector j scaled by
sqrt(share_j)/C_j, one Gaussian on the whole is, vector by vector, exactly the noise of separate releases that share
mu^2 as given: joining costs no privacy and no accuracy, and saves passes. Privacy rests on the release's clip of the
whole alone; what happens in here only decides how a record that is too long is shortened. A compiler may compute a part
once for its norm and once more for its place in the whole, and the two may differ: the whole is measured after that.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

Tree = Any
PerRecord = Callable[[Tree, Tree], Tree]


@dataclass(frozen=True, eq=False)
class Part:
    """One of the vectors.

    Args:
        contribution: phi(point, record).
        clip: its bound.
        share: of mu^2, among the parts of the release; shares sum to one.
    """

    contribution: PerRecord
    clip: float
    share: float

    @property
    def unit(self) -> float:
        """What one unit of the joint answer stands for."""
        return self.clip / math.sqrt(self.share)


def shared(contributions: Mapping[str, tuple[PerRecord, float]], weights: Mapping[str, float]) -> dict[str, Part]:
    """Parts whose shares are the weights, brought to a sum of one."""
    total = sum(weights[name] for name in contributions)
    return {
        name: Part(contribution, clip, weights[name] / total) for name, (contribution, clip) in contributions.items()
    }


def joined(parts: Mapping[str, Part], clipped: bool) -> PerRecord:
    """The joint vector, as a dictionary of its parts; without privacy nothing is clipped."""

    def contribution(point: Tree, record: Tree) -> dict[str, Tree]:
        return {name: _scaled(part, part.contribution(point, record), clipped) for name, part in parts.items()}

    return contribution


def separated(answer: Mapping[str, Tree], parts: Mapping[str, Part]) -> dict[str, Tree]:
    """The parts of a joint answer, each in its own unit."""
    return {name: optax.tree.scale(part.unit, answer[name]) for name, part in parts.items()}


def _scaled(part: Part, contribution: Tree, clipped: bool) -> Tree:
    factor: Any = 1 / part.unit
    if clipped:
        factor = factor * jnp.minimum(1.0, part.clip / jnp.maximum(optax.tree.norm(contribution), part.clip))
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), contribution)
