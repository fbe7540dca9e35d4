"""Records in memory, a `Source`: arrays with room for whole chunks, and blocks of records that a sum is folded over.

A processor's compiler copies every slice of an array that a matrix product reads. So outer products of all records are
summed in one block, if their few numbers fit: then rows are read where they are, and nothing is as large as the rows.
For this, arrays have room for a whole number of chunks, and invalid records are stored as zeros.
"""

import contextlib
import math
import mmap
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.buffer import computed_once, stored_once
from dpbilevel.privacy.bundles import Packed, as_bundles, contents, unit_shape, units_at, units_from
from dpbilevel.privacy.one_read import one_read
from dpbilevel.privacy.outer import Layout, dense, known_norms, layout
from dpbilevel.privacy.products import OVERFLOW, Products, finite_rows, row_norms
from dpbilevel.privacy.storage import Storage, copy_in_order
from dpbilevel.privacy.sums import Sum, Tree, Vector

CHUNK = 128  # records whose contributions are summed in their own precision; the bounds on rounding assume it
# Elements of per-record contributions in memory at a time. On processors 2^20 is within a tenth of the best size for
# every kind of record that was measured (benchmarks/speed_blocks.py, docs/results/speed.md); accelerators need 256 MiB
# to stay busy. A block never has more records than _BLOCK, which the bound on float64 sums assumes.
_ELEMENTS, _ELEMENTS_ON_ACCELERATORS = 2**20, 2**26
_BLOCK = 2**20
# Entries of rows in a block of outer products, on a processor: 256 KiB, since rows are read twice, the second time from
# the cache of one core. Measured for 50,000 rows of 100 and of 1,000 columns: 2^15 and 2^17 to 2^19 took longer.
_ROW_ELEMENTS = 2**16
# And numbers in such a block, if records have more of them than their rows have entries, as those of networks: every
# operation on a block has a cost of its own. Measured for a network of 32 units on 100 columns: 2^16, 2^18 and 2^20
# took longer.
_NUMBER_ELEMENTS = 2**19
# Numbers of outer products, beside their rows, that may be in one block of all records: 16 MiB. Such a block has at
# most _WHOLE records, for which a sum of their chunks in float64 errs by at most 2^-12 of the clip.
_NUMBERS, _WHOLE = 2**22, 2**24
_WHOLE_IN_METRIC = 2**21  # the same where rows may be longer than they count (`products`)
_LINES = 16  # numbers of a record that are computed line by line: compilers vectorise that, but not a concatenation
# Linux grants addresses without memory behind them; Python knows the name of the flag since version 3.13 only.
_NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
_ALIGNMENT = 64  # bytes: arrays that begin at a multiple of it are used by processors without a copy


class Memory(NamedTuple):
    """Records in memory, a `Source`.

    Args:
        arrays: pytree of arrays with a common leading axis, which may be longer than the number of records (`room`); or
            units that are `Packed`.
        norms: of the rows of each leaf that is a matrix, None for others, from `stored`: then rows are finite. Without
            them every fold measures rows, and replaces those that are not finite.
    """

    arrays: Tree
    norms: tuple[Any, ...] | None = None

    @classmethod
    def stored(cls, arrays: Tree, valid: npt.NDArray[np.bool_]) -> "Memory":
        """Copies of NumPy's arrays, with the norms of rows, on JAX's device.

        Records that are not valid become zeros, so that rows are finite: a coefficient of zero does not remove NaN from
        a matrix product. What was `reserved` is not copied.
        """
        return jax.device_put(cls.filled(arrays, valid), may_alias=True)

    @classmethod
    def filled(cls, arrays: Tree, valid: npt.NDArray[np.bool_], storage: Storage | None = None) -> "Memory":
        """What is `stored`, as NumPy's arrays, on disk if ``storage`` is given."""
        if isinstance(arrays, Packed):
            return cls(arrays, ())
        filled = jax.tree.map(lambda leaf: _filled(leaf, valid, storage), arrays)
        norms = tuple(_norms(leaf, storage) if _is_matrix(leaf) else None for leaf in jax.tree.leaves(filled))
        return cls(filled, norms)

    @classmethod
    def shapes(cls, records: Tree) -> "Memory":
        """The shapes of what is `stored`, from those of the records."""
        filled = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((room(leaf.shape[0]), *leaf.shape[1:]), leaf.dtype), records
        )
        if isinstance(records, Packed):
            return cls(filled, ())
        leaves = jax.tree.leaves(filled)
        norms = [jax.ShapeDtypeStruct(leaf.shape[:1], np.float64) if _is_matrix(leaf) else None for leaf in leaves]
        return cls(filled, tuple(norms))

    def records(self, number: int) -> Tree:
        """The shapes of the records, of which there are so many."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype), unit_shape(self.arrays)
        )

    def as_numpy(self, number: int) -> Tree:
        """The records, of which there are so many, as NumPy's arrays; not to be written into."""
        if isinstance(self.arrays, Packed):
            return as_bundles(self.arrays, number)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:number], self.arrays)

    def contents(self, number: int) -> Iterator[npt.NDArray[Any]]:
        """All that is held of the records, for a seal."""
        return contents(self.arrays if isinstance(self.arrays, Packed) else self.as_numpy(number), number)

    def at(self, places: jax.Array) -> "Memory":
        """The records at some places."""
        norms = self.norms if self.norms is None else jax.tree.map(lambda leaf: leaf[places], self.norms)
        return Memory(units_at(self.arrays, places), norms)

    def fold(self, vector: Vector, total: Sum, present: jax.Array, most: int | None = None) -> Any:
        """Fold a sum over blocks of records; a block is a whole number of chunks.

        With ``most``, a power of two, blocks of vectors have at most so many records, and divide any multiple of it.

        The numbers of a block are computed once: the values that ``total.add`` measures are the values that it adds.
        Contributions that are outer products are added as such, all others as vectors. So is a single record or column:
        compilers make no matrix product of it, and tests of compiled programs look for one.
        """
        found = None if isinstance(self.arrays, Packed) else layout(vector, unit_shape(self.arrays))
        if found is None or min(found.columns, present.shape[0]) < 2:
            return self._vectors(vector, total, present, most)
        return self._products(found, vector, total, present)

    def _vectors(self, vector: Vector, total: Sum, present: jax.Array, most: int | None) -> Any:
        described = jax.tree.leaves(jax.eval_shape(lambda record: dense(vector(record)), unit_shape(self.arrays)))
        dimension = sum(leaf.size for leaf in described)
        # Half precision is too coarse for sums.
        dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in described))
        block = self._block(present, dimension, _ELEMENTS)
        if most is not None:
            block = min(most, 2 ** (block.bit_length() - 1))

        def add(carry: Any, begin: jax.Array, taken: jax.Array) -> Any:
            def rows(offset: jax.Array, size: int) -> list[jax.Array]:
                part = units_from(self.arrays, begin + offset, size)
                return jax.tree.leaves(jax.vmap(lambda record: dense(vector(record)))(part))

            return total.add(carry, computed_once(rows, (block, dimension), dtype), taken)

        return _over_blocks(add, total.start(dimension), present, block)

    def _products(self, found: Layout, vector: Vector, total: Sum, present: jax.Array) -> Any:
        def numbers(record: Tree, norm: jax.Array | None) -> list[jax.Array]:
            leaf = found.record_leaf
            pairs = [] if leaf is None else [(jax.tree.leaves(record)[leaf], norm)]
            with known_norms(pairs):
                return found.numbers_of(vector(record))

        def add(carry: Any, begin: Any, taken: jax.Array) -> Any:
            part = Memory(*units_from(tuple(self), begin, taken.shape[0]))
            own, norms = part._rows(found)
            if own is not None:
                norms = _in_metric(found, own, norms)
            known = None if own is None else norms.astype(found.dtype)
            parts = jax.vmap(numbers)(part.arrays, known)
            if own is None:
                own, norms = finite_rows(stored_once([parts.pop().astype(found.dtype)]), computed=True)
                norms = _in_metric(found, own, norms)
            lines = [part.reshape(taken.shape[0], -1).T.astype(found.dtype) for part in parts]
            if found.numbers <= _LINES:
                lines = [part[line : line + 1] for part in lines for line in range(part.shape[0])]
            factors = found.coefficients
            if factors == 1 and jax.default_backend() != "cpu":
                # Compilers for accelerators make a matrix product of two coefficients, but not of one.
                lines.insert(1, jnp.zeros_like(lines[0]))
                factors = 2
            return total.add(carry, Products(stored_once(lines), own, norms, factors, found), taken)

        start = total.start(sum(size for size, _ in found.leaves))
        kernel = one_read(found, vector, self.arrays, self.norms)
        if kernel is not None:
            norms = _in_metric(found, kernel.rows, kernel.norms)
            return kernel._replace(norms=norms).fold(total, start, present)
        if self._is_one_block(found):
            rest = jax.tree.leaves(self.arrays)[0].shape[0] - present.shape[0]
            return add(start, 0, jnp.concatenate([present, jnp.zeros(rest, bool)]))
        elements = _ROW_ELEMENTS if found.numbers <= found.columns else _NUMBER_ELEMENTS
        block = self._block(present, max(found.columns, found.numbers), elements)
        return _over_blocks(add, start, present, block)

    def _rows(self, found: Layout) -> tuple[Any, Any]:
        """The records' array of rows, all of them finite, and its norms; None and None if rows are computed."""
        if found.record_leaf is None:
            return None, None
        rows = jax.tree.leaves(self.arrays)[found.record_leaf]
        return finite_rows(rows) if self.norms is None else (rows, self.norms[found.record_leaf])

    def _is_one_block(self, found: Layout) -> bool:
        """Whether outer products of all records fit into one block, whose rows are not copied; by public sizes."""
        length = jax.tree.leaves(self.arrays)[0].shape[0]
        copied = self.norms is None or found.record_leaf is None
        elements = length * (found.numbers + (found.columns if copied else 0))
        on_processor = _ELEMENTS if copied else _NUMBERS
        most = on_processor if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATORS
        longest = _WHOLE if found.metric is None else _WHOLE_IN_METRIC
        return length == room(length) <= longest and elements <= most

    def _block(self, present: jax.Array, numbers: int, elements: int) -> int:
        """Records in a block, from public sizes only."""
        largest = max(1, numbers, sum(leaf.size for leaf in jax.tree.leaves(unit_shape(self.arrays))))
        elements = max(elements, min(CHUNK * largest, _ELEMENTS))  # a whole chunk, unless records are wide
        if jax.default_backend() != "cpu":
            elements = _ELEMENTS_ON_ACCELERATORS
        # At least two records: `computed_once` takes two steps, and would compute a single record twice.
        at_once = min(present.shape[0], _BLOCK, max(2, elements // largest))
        chunk = min(at_once, CHUNK)
        return at_once // chunk * chunk


def _in_metric(found: Layout, rows: jax.Array, norms: jax.Array) -> jax.Array:
    """Norms of rows in the metric of their contributions, computed once; those of rows as they are without one."""
    if found.metric is None:
        return norms
    (measured,) = stored_once([found.metric.norms(rows.astype(found.dtype), norms)[None]])
    return jnp.where(measured <= OVERFLOW, measured, jnp.inf)


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


def room(number: int) -> int:
    """The length of the arrays of so many records: a whole number of chunks, or less than one."""
    return number if number <= CHUNK else -(-number // CHUNK) * CHUNK


class Reserved(np.ndarray[Any, np.dtype[Any]]):
    """The part of an array that records fill; views and copies of it are arrays as any other."""

    whole: npt.NDArray[Any] | None
    caveats: tuple[str, ...]  # what a guarantee about these records does not cover

    def __array_finalize__(self, source: Any) -> None:
        self.whole, self.caveats = None, getattr(source, "caveats", ())


def reserved(number: int, shape: tuple[int, ...], dtype: Any, storage: Storage | None = None) -> Reserved:
    """Zeros for so many records of a shape, to be filled and handed over: `Memory.stored` takes it without a copy.

    Whoever fills it must not change it afterwards. With ``storage`` it is on disk.
    """
    whole_shape, dtype = (room(number), *shape), np.dtype(dtype)
    size = math.prod(whole_shape) * dtype.itemsize
    # The memory of files begins with a page.
    memory = np.zeros(size + _ALIGNMENT, np.uint8) if storage is None else storage.zeros(size)
    begin = -memory.ctypes.data % _ALIGNMENT
    whole = memory[begin : begin + size].view(dtype).reshape(whole_shape)
    part = whole[:number].view(Reserved)
    part.whole = whole
    return part


def untouched(
    units: int, shape: tuple[int, ...], dtype: Any, rows: int, storage: Storage | None = None
) -> npt.NDArray[Any]:
    """Zeros for so many units of a shape (k, ...), with room for whole chunks; memory only for those that are written.

    With ``storage`` it is on disk, where space is taken for the first ``rows`` rows, and the rest is a hole.
    """
    whole_shape, dtype = (room(units), *shape), np.dtype(dtype)
    size, row = math.prod(whole_shape) * dtype.itemsize, math.prod(shape[1:]) * dtype.itemsize
    memory = _pages(size) if storage is None else storage.zeros(size, rows * row)
    return memory[:size].view(dtype).reshape(whole_shape)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    """So many bytes of zeros, which the system backs by memory when they are written; there may be more than it has."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(size, np.uint8)
    with contextlib.suppress(OSError, OverflowError):
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        return np.frombuffer(mmap.mmap(-1, max(1, size), flags=kind), np.uint8, size)
    raise InvalidArgument(
        f"rows_per_unit: the system has no {size / 2**30:,.0f} GiB of addresses for the places of all units; must be "
        "smaller, or a limit on addresses must be raised (ulimit -v)"
    )


def _filled(leaf: npt.NDArray[Any], valid: npt.NDArray[np.bool_], storage: Storage | None) -> npt.NDArray[Any]:
    """An array with room for whole chunks, and zeros for records that are not valid."""
    if not isinstance(leaf, Reserved) or leaf.whole is None:
        copied = reserved(leaf.shape[0], leaf.shape[1:], leaf.dtype, storage)
        copy_in_order(leaf, copied)
        leaf = copied
    assert leaf.whole is not None
    leaf.whole[: len(valid)][~valid] = 0
    return leaf.whole


def _norms(rows: npt.NDArray[Any], storage: Storage | None) -> npt.NDArray[Any]:
    return row_norms(rows, reserved(len(rows), (), np.float64, storage))


def _is_matrix(leaf: Any) -> bool:
    return leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating)
