"""Units as records: bundles of at most k rows, and how they lie in memory.

Compiled programs see shapes, and the number of rows is private. Arrays with k places for every unit have a public
shape, but take k times the memory of units of one row. So on a processor the rows of a role are `Packed`: they lie one
after another, unit after unit, in arrays of the same public shape, units times k. What lies behind the last row is
never written, and takes no physical memory where systems give memory to what is touched. Only the units of one block at
a time are laid out with k places each, by `units_from`: a block of bundles is the same, bit for bit, however units are
stored, and so is everything that is computed from it.

The physical memory of a process, and the time of its first pass, then depend on the number of rows, as does the time
that reading a table takes. Neither is hidden.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.privacy.storage import read_rows

Tree = Any


class Bundle(NamedTuple):
    """The rows of a unit, or of many units along a leading axis.

    Args:
        rows: pytree of arrays; the axis after the units' is over k rows. Absent rows repeat a row of the same unit, so
            that a loss is only evaluated at rows that exist.
        present: which of the k rows exist.
    """

    rows: Tree
    present: Any


class Packed(NamedTuple):
    """Units whose rows lie one after another.

    Args:
        rows: pytree of arrays of the shapes of a `Bundle`; along their first two axes together, the rows of the first
            unit come first, then those of the second, and so on. All others are zero.
        first: the place of the first row of each unit.
        number: how many rows each unit has, at most k.
    """

    rows: Tree
    first: Any
    number: Any

    @property
    def rows_per_unit(self) -> int:
        """k."""
        return int(jax.tree.leaves(self.rows)[0].shape[1])


def is_packed(rows_per_unit: int | None, mesh: Any) -> bool:
    """Whether units are stored packed, from public facts: on processors, whose memory is the system's.

    Accelerators back all of an array by memory, and devices of a mesh have units of their own.
    """
    return (rows_per_unit or 1) > 1 and mesh is None and jax.default_backend() == "cpu"


def packed_shapes(bundles: Bundle) -> Packed:
    """The shapes of packed units, from those of bundles."""
    units, most = bundles.present.shape
    return Packed(
        bundles.rows,
        jax.ShapeDtypeStruct((units,), place_dtype(units, most)),
        jax.ShapeDtypeStruct((units,), np.dtype(np.int32)),
    )


def place_dtype(units: int, rows_per_unit: int) -> np.dtype[Any]:
    """The type of places of rows, from public numbers.

    >>> place_dtype(10**6, 8), place_dtype(10**9, 8)
    (dtype('int32'), dtype('int64'))
    """
    return np.dtype(np.int32 if units * rows_per_unit < 2**31 else np.int64)


def unit_shape(records: Tree) -> Tree:
    """The shape and dtype of one record of arrays with a leading axis, a `Bundle` if units are packed."""
    if isinstance(records, Packed):
        present = jax.ShapeDtypeStruct((records.number.shape[0], records.rows_per_unit), np.dtype(bool))
        records = Bundle(records.rows, present)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)


def units_from(records: Tree, begin: Any, size: int) -> Tree:
    """So many records from one on, inside compiled code; packed units as a `Bundle`."""

    def part(leaf: Any) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(leaf, begin, size)

    if not isinstance(records, Packed):
        return jax.tree.map(part, records)
    with jax.enable_x64(True):  # places may have 64 bits, whatever losses are traced in
        number = part(records.number)
        present, places = _places(part(records.first), number, records.rows_per_unit, jnp)

        def rows(leaf: Any) -> jax.Array:
            own = jnp.asarray(_flat(leaf)).at[places].get(mode="promise_in_bounds")
            has_rows = (number > 0).reshape(-1, *[1] * (own.ndim - 1))
            return jnp.where(has_rows, own, jnp.zeros((), own.dtype))

        return Bundle(jax.tree.map(rows, records.rows), present)


def units_at(records: Tree, places: jax.Array) -> Tree:
    """The records at some places, in the form in which they are; rows of packed units stay where they are."""
    if isinstance(records, Packed):
        return records._replace(first=records.first[places], number=records.number[places])
    return jax.tree.map(lambda leaf: leaf[places], records)


def as_bundles(packed: Packed, units: int, made: Callable[..., npt.NDArray[Any]] = np.empty) -> Bundle:
    """The first units as NumPy's arrays, with k places each; ``made(shape, dtype)`` is an array to write into."""
    first, number = (np.asarray(leaf)[:units] for leaf in (packed.first, packed.number))
    present, places = _places(first, number, packed.rows_per_unit, np)

    def rows(leaf: Any) -> npt.NDArray[Any]:
        own = made((units, *leaf.shape[1:]), leaf.dtype)
        np.take(_flat(np.asarray(leaf)), places, axis=0, out=own, mode="clip")
        own[number == 0] = 0
        return own

    return Bundle(jax.tree.map(rows, packed.rows), present)


def read_units(packed: Packed, chosen: Any, out: Packed) -> None:
    """Copy units, those of a slice or at some places, to others of NumPy's arrays: from a file, if they are in one.

    Their rows lie one after another there, too. What was in ``out`` before stays behind them, where nobody reads it.

    >>> rows = np.arange(8.0).reshape(4, 2)
    >>> held = Packed(rows, np.array([0, 1, 1, 3]), np.array([1, 0, 2, 2]))
    >>> found = Packed(np.zeros((2, 2)), np.zeros(2, int), np.zeros(2, int))
    >>> read_units(held, slice(2, 4), found)
    >>> found.rows.tolist(), found.first.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [0, 2])
    >>> read_units(held, np.array([3, 0]), found)
    >>> found.rows.ravel()[:3].tolist(), found.number.tolist()
    ([3.0, 4.0, 0.0], [2, 1])
    """
    first, number = packed.first[chosen], packed.number[chosen]
    ends, units = np.cumsum(number), len(number)
    out.number[:units], out.number[units:] = number, 0
    out.first[:units], out.first[units:] = ends - number, 0
    total = int(number.sum())
    for leaf, copied in zip(jax.tree.leaves(packed.rows), jax.tree.leaves(out.rows), strict=True):
        if isinstance(chosen, slice):
            read_rows(_flat(leaf), int(first[0]), _flat(copied)[:total])
        else:
            places = np.repeat(first - (ends - number), number) + np.arange(total)
            np.take(_flat(leaf), places, axis=0, out=_flat(copied)[:total], mode="clip")


def contents(records: Tree, number: int) -> Iterator[npt.NDArray[Any]]:
    """What so many records hold, as NumPy's arrays: of units their rows, and how many each has, however they lie."""
    if isinstance(records, Packed):
        numbers = np.asarray(records.number)[:number]
        yield from (_flat(np.asarray(leaf))[: numbers.sum()] for leaf in jax.tree.leaves(records.rows))
        yield numbers
    elif isinstance(records, Bundle):
        yield from (leaf[records.present] for leaf in jax.tree.leaves(records.rows))
        yield records.present.sum(axis=1, dtype=np.int32)
    else:
        yield from jax.tree.leaves(records)


def _places(first: Any, number: Any, most: int, xp: Any) -> tuple[Any, Any]:
    """Which of the k rows of units exist, and the places of all k.

    Absent rows repeat the first. Behind it are rows of other units, and no loss of this one may see them.
    """
    slots = xp.arange(most, dtype=first.dtype)
    present = slots < number[:, None]
    return present, first[:, None] + xp.where(present, slots, xp.zeros((), slots.dtype))


def _flat(rows: Any) -> Any:
    return rows.reshape(-1, *rows.shape[2:])
