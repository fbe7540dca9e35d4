"""The integer grid of exact noise: contributions as integers, with bounds that rule out 64-bit overflow.

One unit of the grid is a power of two, at most 2^-20 of the largest change that one record of the role with the
smallest clip/count can cause. A record's contribution is clipped as usual and then rounded to the nearest multiples of
count * unit, so that the sums of all roles are integers in the same unit. From there on records enter no floating-point
computation: sums are exact in any order, noise is an integer, and the answer is their sum times the unit, rounded once,
which is post-processing. Rounding changes each entry of a mean by at most 2^-21 of the clip, far less than the noise.

**Sensitivity.** Rounding increases the norm of a vector of d entries by at most sqrt(d)/2 units, which is 2^-9 of the
clip up to d = 2^24; clipping in float64 overshoots by a few parts in 2^53. The guarantee does not rely on these
estimates: a row of integers with norm above (1 + 2^-8) clips counts as zero, and the integers whose norm is measured
are those that are added. `ROUNDING`, the 2^-7 by which every release raises its sensitivity, covers this overshoot and
the rounding of public numbers, so that exact and float releases have the same ratio of sensitivity to noise.

**Overflow.** Sums stay below 2^62, and so does noise, except with a probability that is negligible against any delta.
Releases for which this bound cannot be guaranteed are refused before a record is read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.structure import passing
from dpbilevel.privacy.buffer import computed_once
from dpbilevel.privacy.clipping import clipped
from dpbilevel.privacy.discrete import LARGEST_SCALE
from dpbilevel.privacy.outer import dense
from dpbilevel.privacy.shards import source_of
from dpbilevel.privacy.sums import Tree, Vector, exact

OVERSHOOT = 2.0**-8  # largest relative excess of an integer row over the clip; the rest of ROUNDING covers float64
_BITS = 20
_LARGEST_DIMENSION = 2**24
_LARGEST_SUM = 2.0**62  # leaves the same range for noise


@passing("unit", structure=("dimension",))
@dataclass(frozen=True)
class Grid:
    """The integer grid of one release.

    Args:
        dimension: number of entries of an answer.
        unit: the value of one unit in the answer, a power of two.
    """

    dimension: int
    unit: float

    @classmethod
    def of(cls, name: str, dimension: int, bounds: Mapping[str, tuple[float, int]]) -> "Grid":
        """The grid of a release with clips and counts by role; raises if 64-bit integers could overflow."""
        if dimension > _LARGEST_DIMENSION:
            raise InvalidArgument(
                f'noise="exact": release {name!r} has {dimension:,} entries; must be at most 2^24, for the bound on '
                'rounding to hold (use noise="float")'
            )
        smallest = min(clip / count for clip, count in bounds.values())
        grid = cls(dimension, math.ldexp(1.0, math.frexp(smallest)[1] - 1 - _BITS))
        if sum(count * grid.longest(clip, count) for clip, count in bounds.values()) > _LARGEST_SUM:
            raise InvalidArgument(
                f'noise="exact": sums of release {name!r} could exceed 64-bit integers; its roles have too many '
                'records, or ratios of clip to count that differ too much (use noise="float")'
            )
        return grid

    def scale(self, name: str, noise: float) -> float:
        """The scale of the discrete Gaussian, in units, for this noise on the answer."""
        scale = noise / self.unit
        if not 0 < scale <= LARGEST_SCALE:
            raise InvalidArgument(
                f'noise="exact": release {name!r} needs noise of {scale:.3g} units; must be above 0 and at most 2^52 '
                '(use a larger epsilon, or noise="float")'
            )
        return scale

    def longest(self, clip: float, count: int) -> float:
        """The largest norm of a record's integer contribution, in units."""
        return clip / (count * self.unit) * (1 + OVERSHOOT)

    def summed(self, vector: Vector, records: Tree, present: jax.Array, clip: float, count: int) -> jax.Array:
        """Sum of all records' integer contributions in int64: exact, in any order and any blocks.

        Like `clipped_sum` with a common denominator: the answer is the sum of this over all roles, times the unit.
        """
        spacing, longest = count * self.unit, self.longest(clip, count)

        def block_total(vectors: jax.Array, taken: jax.Array) -> jax.Array:
            return jnp.sum(integers(vectors, taken, clip, spacing, longest), axis=0)

        total = exact(block_total, lambda dimension: jnp.zeros(dimension, jnp.int64))
        # Integers of a record are those of its whole vector: outer products are written out, block by block.
        return total.value(source_of(records).fold(lambda record: dense(vector(record)), total, present))


def integers(vectors: jax.Array, present: jax.Array, clip: float, spacing: float, longest: float) -> jax.Array:
    """Clip each row and round it to multiples of ``spacing``; rows with norm above ``longest`` become zero."""

    def units(first: jax.Array, number: int) -> list[jax.Array]:
        rows, mine = (jax.lax.dynamic_slice_in_dim(array, first, number) for array in (vectors, present))
        return [jnp.round(clipped(rows.astype(jnp.float64), mine, clip) * (1 / spacing))]

    # Computed once: a number halfway between two integers may round to either, and the measured row must be the added
    # one.
    rounded = computed_once(units, vectors.shape, jnp.float64)
    within = jnp.sum(rounded**2, axis=1) <= longest**2  # false for NaN, too
    return jnp.where(within[:, None], rounded, 0).astype(jnp.int64)
