"""The clipped sum: the only way in which records enter a computation.

Each record's contribution is clipped *jointly*, over all leaves of its pytree. The guarantee accounts for rounding: a
plain float32 sum of 10^7 records exceeds its sensitivity by 7%. Here contributions are summed in chunks of 128 and the
chunks' sums in float64, and `ROUNDING` bounds the remaining error. It also accounts for compilers: contributions are
`computed_once`, so that the vectors whose norms are measured are the vectors that are summed.

This is not taken from a library because no library bounds its rounding; it is tested against ``jax_privacy.clipping``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpbilevel.privacy.buffer import computed_once
from dpbilevel.privacy.outer import Layout, dense, known_norms, layout
from dpbilevel.privacy.products import Products, products_total, row_norms
from dpbilevel.privacy.sums import Sum, Tree, Vector, compensated

# A clipped sum changes by at most (1 + ROUNDING) times what it would in real arithmetic. Adding 128 float32 vectors of
# norm C errs by at most 127 * 2^-24 * 128 C < 2^-10 C in any order; only the changed record's chunk differs between
# neighbours, and both sums may err: 2^-9 C. Float64, with compensation between blocks, adds less than
# 2^-9 C up to 10^9 records.
ROUNDING = 2.0**-7

# Entries beyond this are treated like infinities. XLA divides by multiplying with a reciprocal, and that of a float32
# above 2^126 is flushed to zero: the norm would be underestimated. Clips stay far from both limits for the same reason.
_OVERFLOW = 2.0**100
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60

_CHUNK = 128
# Elements of per-record contributions in memory at a time. On processors 2^20 is within a tenth of the best size for
# every kind of record that was measured (benchmarks/speed_blocks.py, docs/results/speed.md); accelerators need 256 MiB
# to stay busy. A block never has more records than _BLOCK, which the bound on float64 sums assumes.
_ELEMENTS, _ELEMENTS_ON_ACCELERATORS = 2**20, 2**26
_BLOCK = 2**20
# Entries of rows in a block of outer products, on a processor: 256 KiB, since rows are read twice, the second time from
# the cache of one core. Measured for 50,000 rows of 100 and of 1,000 columns: 2^15 and 2^17 to 2^19 took longer.
_ROW_ELEMENTS = 2**16


def clipped_sum(vector: Vector, records: Tree, present: jax.Array, clip: float) -> jax.Array:
    """Sum of the clipped contributions of all present records, raveled, in float64.

    Args:
        vector: maps one record to its contribution, a pytree of real arrays.
        records: pytree of arrays with a common leading axis, or `Memory`.
        present: boolean mask of the records to include.
        clip: largest norm of one record's contribution; infinite for no clipping.

    A record whose contribution has a non-finite entry (or one beyond 2^100) contributes zero. Memory is bounded:
    records are processed in blocks whose size depends on public sizes only.
    """

    total = compensated_sum(clip)
    source = records if isinstance(records, Memory) else Memory(records)
    return total.value(source.fold(vector, total, present))


def compensated_sum(clip: float) -> Sum:
    """The sum of clipped contributions in float64: chunks in their own precision, blocks with compensation."""

    def block_total(vectors: jax.Array | Products, taken: jax.Array) -> jax.Array:
        if isinstance(vectors, Products):
            return products_total(vectors, taken, clip, min(taken.shape[0], _CHUNK))
        block, dimension = vectors.shape
        chunk = min(block, _CHUNK)
        chunks = clipped(vectors, taken, clip).reshape(block // chunk, chunk, dimension)
        return jnp.sum(jnp.sum(chunks, axis=1).astype(jnp.float64), axis=0)

    return compensated(block_total, lambda dimension: jnp.zeros(dimension, jnp.float64))


class Memory(NamedTuple):
    """Records in memory, a `Source`.

    Args:
        arrays: pytree of arrays with a common leading axis.
        norms: of the rows of each leaf that is a matrix, from `measured`; without them every fold measures rows again.
    """

    arrays: Tree
    norms: tuple[jax.Array | None, ...] | None = None

    def measured(self) -> "Memory":
        """With the norms of all rows, computed once for many folds; compilers drop those that no fold uses."""
        leaves = jax.tree.leaves(self.arrays)
        return Memory(self.arrays, tuple(row_norms(leaf) if _is_matrix(leaf) else None for leaf in leaves))

    def fold(self, vector: Vector, total: Sum, present: jax.Array) -> Any:
        """Fold a sum over blocks of records; a block is a whole number of chunks.

        The numbers of a block are computed once: the values that ``total.add`` measures are the values that it adds.
        Contributions that are outer products are added as such, all others as vectors. So is a single record or column,
        and on accelerators a single coefficient: compilers make no matrix product of it, and tests of compiled programs
        look for one.
        """
        found = layout(vector, _one(self.arrays))
        fewest = 1 if jax.default_backend() == "cpu" else 2
        if found is None or min(found.columns, present.shape[0]) < 2 or found.coefficients < fewest:
            return self._vectors(vector, total, present)
        return self._products(found, vector, total, present)

    def _vectors(self, vector: Vector, total: Sum, present: jax.Array) -> Any:
        described = jax.tree.leaves(jax.eval_shape(lambda record: dense(vector(record)), _one(self.arrays)))
        dimension = sum(leaf.size for leaf in described)
        # Half precision is too coarse for sums.
        dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in described))
        block = self._block(present, dimension, _ELEMENTS)

        def add(carry: Any, begin: jax.Array, taken: jax.Array) -> Any:
            def rows(offset: jax.Array, size: int) -> list[jax.Array]:
                part = _slice(self.arrays, begin + offset, size)
                return jax.tree.leaves(jax.vmap(lambda record: dense(vector(record)))(part))

            return total.add(carry, computed_once(rows, (block, dimension), dtype), taken)

        return _over_blocks(add, total.start(dimension), present, block)

    def _products(self, found: Layout, vector: Vector, total: Sum, present: jax.Array) -> Any:
        rows, norms = self._rows(found)
        block = self._block(present, max(found.columns, found.numbers), _ROW_ELEMENTS)
        width = found.numbers + (found.columns if rows is None else 0)

        def numbers(record: Tree, norm: jax.Array | None) -> list[jax.Array]:
            leaf = found.record_leaf
            pairs = [] if leaf is None else [(jax.tree.leaves(record)[leaf], norm)]
            with known_norms(pairs):
                return found.numbers_of(vector(record))

        def add(carry: Any, begin: jax.Array, taken: jax.Array) -> Any:
            def parts(offset: jax.Array, size: int) -> list[jax.Array]:
                known = None if rows is None else norms.astype(rows.dtype)
                return jax.vmap(numbers)(*_slice((self.arrays, known), begin + offset, size))

            buffer = computed_once(parts, (block, width), found.dtype)
            if rows is None:
                mine = buffer[:, found.numbers :]
                measured = row_norms(mine)
            else:
                mine, measured = _slice((rows, norms), begin, block)
            return total.add(carry, Products(buffer[:, : found.numbers], mine, measured, found), taken)

        return _over_blocks(add, total.start(sum(size for size, _ in found.leaves)), present, block)

    def _rows(self, found: Layout) -> tuple[Any, Any]:
        """The records' array of rows and its norms; None and None if rows are computed from records."""
        if found.record_leaf is None:
            return None, None
        rows = jax.tree.leaves(self.arrays)[found.record_leaf]
        return rows, row_norms(rows) if self.norms is None else self.norms[found.record_leaf]

    def _block(self, present: jax.Array, numbers: int, elements: int) -> int:
        """Records in a block, from public sizes only."""
        largest = max(1, numbers, sum(leaf.size for leaf in jax.tree.leaves(_one(self.arrays))))
        elements = max(elements, min(_CHUNK * largest, _ELEMENTS))  # a whole chunk, unless records are wide
        if jax.default_backend() != "cpu":
            elements = _ELEMENTS_ON_ACCELERATORS
        # At least two records: `computed_once` takes two steps, and would compute a single record twice.
        at_once = min(present.shape[0], _BLOCK, max(2, elements // largest))
        chunk = min(at_once, _CHUNK)
        return at_once // chunk * chunk


def _over_blocks(add: Callable[[Any, jax.Array, jax.Array], Any], start: Any, present: jax.Array, block: int) -> Any:
    """Fold ``add(carry, begin, taken)`` over blocks of records."""
    number = present.shape[0]

    def step(carry: Any, index: jax.Array) -> tuple[Any, None]:
        # The last block is shifted back to end with the last record; rows of the previous block are masked.
        first = index * block
        begin = jnp.minimum(first, number - block)
        taken = jax.lax.dynamic_slice_in_dim(present, begin, block)
        return add(carry, begin, taken & (begin + jnp.arange(block) >= first)), None

    return jax.lax.scan(step, start, jnp.arange(-(-number // block)))[0]


def clipped(vectors: jax.Array, present: jax.Array, clip: float) -> jax.Array:
    """Scale each row to norm at most ``clip``; rows that are absent, not finite or beyond 2^100 become zero.

    Rows are divided by their largest entry first, so that squares neither overflow nor underflow, and the norm is
    rounded up by its error bound: no row of the result exceeds ``clip`` by more than a few units in the last place.

    The rows must be `computed_once`, because a bound on one copy of a row implies nothing about another. Values derived
    from them here may be computed several times. The test of entries and the largest entry involve no rounding, so all
    copies agree. Quotients, norms and scales have errors of a few units in the last place. The sum of squares has a
    larger error, in any order and with or without fused multiply-adds; the norm is raised by its bound. So every copy
    of the norm is at least the true norm minus a few units. Whichever copy decides, for a row or for one of its
    entries: rows that it leaves unchanged are short enough, rows that it scales become short enough, and where copies
    disagree the norm equals the clip or the row becomes zero. All of these errors are below 2^-18 of the clip, and
    `ROUNDING` leaves a margin of more than 2^-8.
    """
    # Entry by entry, because XLA's vectorised maximum may ignore NaN.
    usable = present & jnp.all(jnp.abs(vectors) <= _OVERFLOW, axis=1)
    vectors = jnp.where(usable[:, None], vectors, 0)
    largest = jnp.max(jnp.abs(vectors), axis=1, initial=0.0)
    largest = jnp.where(largest > jnp.finfo(vectors.dtype).tiny, largest, 1)
    directions = vectors / largest[:, None]
    dimension = vectors.shape[1]
    accumulate = jnp.float64 if dimension > 2**16 else vectors.dtype
    lengths = jnp.sqrt(jnp.sum(directions**2, axis=1, dtype=accumulate))
    lengths = (lengths * (1 + dimension * float(jnp.finfo(accumulate).eps))).astype(vectors.dtype)
    too_long = largest * lengths > clip
    scales = jnp.where(too_long, clip / lengths, 0).astype(vectors.dtype)
    return jnp.where(too_long[:, None], directions * scales[:, None], vectors)


def _one(records: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)


def _slice(tree: Tree, begin: jax.Array, size: int) -> Tree:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, size), tree)


def _is_matrix(leaf: jax.Array) -> bool:
    return leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating)
