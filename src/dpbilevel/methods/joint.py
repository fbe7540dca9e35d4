"""Several vectors per record in one release, so that one pass over the records computes them all.

Each vector is clipped to its own bound and scaled so that the concatenation has norm at most one. With vector j scaled
by sqrt(share_j)/C_j, one Gaussian on the concatenation gives each vector exactly the noise of separate releases with
these shares of mu^2. Joining costs neither privacy nor accuracy, and saves passes.

Privacy rests only on the release's clip of the concatenation. The code here only decides how a record with a large norm
is shortened. A compiler may compute a vector twice, once for its norm and once for the concatenation, with different
rounding; the release measures the norm of the result.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.privacy.outer import norm

Tree = Any
PerRecord = Callable[[Tree, Tree], Tree]


@dataclass(frozen=True, eq=False)
class Part:
    """One of the vectors.

    Args:
        contribution: phi(point, record).
        clip: bound on its norm.
        share: its share of the release's mu^2; the shares of all parts sum to one.
    """

    contribution: PerRecord
    clip: float
    share: float

    @property
    def unit(self) -> float:
        """The value of one unit of the joint vector."""
        return self.clip / math.sqrt(self.share)


def shared(contributions: Mapping[str, tuple[PerRecord, float]], weights: Mapping[str, float]) -> dict[str, Part]:
    """Parts whose shares are the weights, normalised to a sum of one."""
    total = sum(weights[name] for name in contributions)
    return {
        name: Part(contribution, clip, weights[name] / total) for name, (contribution, clip) in contributions.items()
    }


def joined(parts: Mapping[str, Part], clipped: bool) -> PerRecord:
    """The joint contribution, as a dictionary of its parts; without privacy nothing is clipped."""

    def contribution(point: Tree, record: Tree) -> dict[str, Tree]:
        return {name: _scale(part, part.contribution(point, record), clipped) for name, part in parts.items()}

    return contribution


def separated(released: Mapping[str, Tree], parts: Mapping[str, Part]) -> dict[str, Tree]:
    """The parts of a released joint vector, each in its own unit."""
    return {name: optax.tree.scale(part.unit, released[name]) for name, part in parts.items()}


def _scale(part: Part, contribution: Tree, clipped: bool) -> Tree:
    factor: Any = 1 / part.unit
    if clipped:
        factor = factor * jnp.minimum(1.0, part.clip / jnp.maximum(norm(contribution), part.clip))
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), contribution)
