"""The seam between releases and records: how contributions add up (`Sum`), and where records are (`Source`).

A release needs one thing of the records of a role: the sum of their clipped contributions at a point. A source folds a
sum over its records, block by block; blocks of one source, or shards of it on several devices, are joined by `merge`.
Noise is added once, after everything is merged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

Tree = Any
Vector = Callable[[Tree], Tree]  # maps one record to its contribution, a pytree of real arrays


class Sum(NamedTuple):
    """A sum over records.

    Args:
        start: dimension -> the sum of no records.
        add: (carry, contributions of a block of records, mask) -> the sum with the block's masked records.
        merge: the sum of two parts of the records.
        value: carry -> the total, a vector.
    """

    start: Callable[[int], Any]
    add: Callable[[Any, Any, jax.Array], Any]
    merge: Callable[[Any, Any], Any]
    value: Callable[[Any], jax.Array]


class Source(Protocol):
    """Where the records of a role are."""

    def fold(self, vector: Vector, total: Sum, present: jax.Array) -> Any:
        """The carry of ``total`` after all records that are present have been added."""
        ...


def compensated(block_total: Callable[[Any, jax.Array], jax.Array], zero: Callable[[int], jax.Array]) -> Sum:
    """Kahan's compensated sum of the totals of blocks: its error does not grow with the number of blocks."""

    def plus(carry: tuple[jax.Array, jax.Array], more: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, excess = carry
        addend = more - excess
        larger = total + addend
        return larger, (larger - total) - addend

    return Sum(
        start=lambda dimension: (zero(dimension), zero(dimension)),
        add=lambda carry, block, taken: plus(carry, block_total(block, taken)),
        merge=lambda one, other: plus(plus(one, other[0]), -other[1]),
        value=lambda carry: carry[0],
    )


def exact(block_total: Callable[[Any, jax.Array], jax.Array], zero: Callable[[int], jax.Array]) -> Sum:
    """The sum of integers, which is exact in any order."""
    return Sum(
        start=zero,
        add=lambda carry, block, taken: carry + block_total(block, taken),
        merge=lambda one, other: one + other,
        value=lambda carry: carry,
    )
