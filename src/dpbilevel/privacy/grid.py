"""The grid of exact noise: what records add, as integers, and the bounds within which 64 bits hold it all.

One unit of the grid is a power of two, at most 2^-20 of what the role with the smallest clip over count can move the
answer. A record's vector is clipped as ever and then rounded to the nearest multiples of count * unit, so that sums of
all roles are integers in the same unit. From there on no floating-point number of a record is left: sums are exact,
whatever their order; noise is an integer; the answer is their sum times the unit, rounded once, which is
post-processing. Rounding moves each number of a mean by at most 2^-21 of the clip, far less than noise does.

**Sensitivity.** Rounding lengthens a vector of d entries by at most sqrt(d)/2 units, a part of 2^-9 of the clip up to
d = 2^24; a clip in float64 overshoots by a few parts in 2^53. Neither is left to arithmetic that is argued about: a
row of integers that is longer than (1 + 2^-8) clips counts as zero, and the integers that are measured are those that
are added. `ROUNDING`, the 2^-7 by which every release raises its sensitivity, covers that and the rounding of the
numbers that are public, so that exact and float releases have the same ratio of sensitivity to noise.

**Overflow.** Sums stay below 2^62, and so does noise, but for a probability that no delta can see. What cannot be
bounded like that is refused before a record is read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.buffer import computed_once
from dpbilevel.privacy.clipping import clipped, over_blocks
from dpbilevel.privacy.discrete import LARGEST_SCALE

Tree = Any

OVERSHOOT = 2.0**-8  # of the clip, at most, by an integer row; the rest of ROUNDING covers float64
_BITS = 20
_LARGEST_DIMENSION = 2**24
_LARGEST_SUM = 2.0**62  # leaves as much again for noise


@dataclass(frozen=True)
class Grid:
    """The integers of one release.

    Args:
        dimension: numbers in an answer.
        unit: what one unit is in the answer, a power of two.
    """

    dimension: int
    unit: float

    @classmethod
    def of(cls, name: str, dimension: int, bounds: Mapping[str, tuple[float, int]]) -> "Grid":
        """The grid of a release with clips and counts by role; refuses what 64-bit integers could not hold."""
        if dimension > _LARGEST_DIMENSION:
            raise InvalidArgument(
                f'noise="exact": release {name!r} has {dimension:,} numbers; must be at most 2^24, for the bound on '
                'rounding to hold (leave noise="float")'
            )
        smallest = min(clip / count for clip, count in bounds.values())
        grid = cls(dimension, math.ldexp(1.0, math.frexp(smallest)[1] - 1 - _BITS))
        if sum(count * grid.longest(clip, count) for clip, count in bounds.values()) > _LARGEST_SUM:
            raise InvalidArgument(
                f'noise="exact": sums of release {name!r} could exceed 64-bit integers; its roles have too many '
                'records, or clips over counts that are too far apart (leave noise="float")'
            )
        return grid

    def scale(self, name: str, noise: float) -> float:
        """The discrete Gaussian's, in units, of noise on the answer."""
        scale = noise / self.unit
        if not 0 < scale <= LARGEST_SCALE:
            raise InvalidArgument(
                f'noise="exact": release {name!r} needs noise of {scale:.3g} units; must be above 0 and at most 2^52 '
                '(a larger epsilon, or noise="float")'
            )
        return scale

    def longest(self, clip: float, count: int) -> float:
        """The largest norm of a record's integers, in units."""
        return clip / (count * self.unit) * (1 + OVERSHOOT)

    def summed(
        self, vector: Callable[[Tree], Tree], records: Tree, present: jax.Array, clip: float, count: int
    ) -> jax.Array:
        """Sum of all records' integers, in int64: exact, in whatever order and in whatever blocks.

        Like `clipped_sum`, with a common denominator: the answer is this over all roles, times the unit.
        """
        spacing, longest = count * self.unit, self.longest(clip, count)

        def add_block(total: jax.Array, vectors: jax.Array, taken: jax.Array) -> jax.Array:
            return total + jnp.sum(integers(vectors, taken, clip, spacing, longest), axis=0)

        return over_blocks(vector, records, present, add_block, jnp.zeros(self.dimension, jnp.int64))


def integers(vectors: jax.Array, present: jax.Array, clip: float, spacing: float, longest: float) -> jax.Array:
    """Each row, clipped, in multiples of ``spacing``, rounded to the nearest; one longer than ``longest`` is zero."""

    def units(first: jax.Array, number: int) -> list[jax.Array]:
        rows, mine = (jax.lax.dynamic_slice_in_dim(array, first, number) for array in (vectors, present))
        return [jnp.round(clipped(rows.astype(jnp.float64), mine, clip) * (1 / spacing))]

    # Once, for a number halfway between two integers may round to either, and the row that is measured must be added.
    rounded = computed_once(units, vectors.shape, jnp.float64)
    within = jnp.sum(rounded**2, axis=1) <= longest**2  # false for what is not a number, too
    return jnp.where(within[:, None], rounded, 0).astype(jnp.int64)
