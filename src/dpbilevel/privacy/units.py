"""Units of privacy that are more than a row: a person, a device, a household. A unit is a record that is a bundle.

A unit holds at most k of its rows. Everything else treats it as any other record: what it contributes to a release is a
function of the whole bundle and is clipped as a whole, so that replacing *all* rows of one unit changes an answer by no
more than replacing one record does. Sensitivities, accounting and noise stay as they are.

**Neighbours.** The set of ids is fixed: two data sets are neighbours if they differ in the rows of one id, any number
of them. An id without rows is in no table: there is at least one row in both, unless a public list declares all ids
that may be in the data. A unit without rows is then a record that contributes zero. So nothing that concerns another
unit may depend on the rows of this one:

* Units are ordered by id. In the order of first appearance, a person who loses the first row would move others.
* A unit with more than k rows keeps k of them, by a hash of their positions among its own rows.
* A unit with fewer rows is padded. The number of rows of a unit is private, and so is their total. Shapes, divisors and
  sizes are numbers of units.

To replace an *id* may change a place in each of two roles: where roles follow from ids, the new id may have another
role, and another unit then takes the old one. The guarantee is that of a group of two; it holds exactly for exact noise
and up to rounding otherwise, because all units between two ids are stored one place further, and sums of the same
numbers in another order have other last bits.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.privacy.arrays import check_leading_axis, shape_of
from dpbilevel.privacy.bundles import Bundle, Packed, as_bundles, place_dtype
from dpbilevel.privacy.memory import reserved, untouched
from dpbilevel.privacy.storage import Storage

Tree = Any

_KEY = 0x9E3779B97F4A7C15  # public; it makes the choice of rows independent of the order in which they were written
_NO_ID = np.array(["", "nan", "None", "NaT", "<NA>"])  # and what missing ids become if they are converted to text
_RULES = {
    "unit": "unit: must be one integer or string for each row, none of them missing",
    "unit_ids": "unit_ids: must list integers or strings, each once, none of them missing",
}


def check_bounds(rows_per_unit: Any, mean_rows: Any) -> tuple[int, float]:
    """k and the public mean of rows per unit, k by default; raises unless both are usable."""
    most = count("rows_per_unit", rows_per_unit, "it bounds the rows of a unit that are used; it is public (try 8)")
    mean = positive("mean_rows", most if mean_rows is None else mean_rows, "it is a public guess of rows per unit")
    if mean > most:
        raise InvalidArgument(
            f"mean_rows={mean_rows!r}: must be at most rows_per_unit={most}, rows beyond are not used"
        )
    return most, mean


def bundle_shapes(shapes: Tree, rows_per_unit: int) -> Tree:
    """The shapes of units, from those of arrays with one row per unit; a unit of one row is that row."""
    if rows_per_unit == 1 or shapes is None or isinstance(shapes, Bundle):
        return shapes
    leaves = jax.tree.leaves(shapes)
    wide = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], rows_per_unit, *leaf.shape[1:]), leaf.dtype), shapes
    )
    return Bundle(wide, jax.ShapeDtypeStruct((leaves[0].shape[0], rows_per_unit), np.dtype(bool)))


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show places
class Selection:
    """Which rows of a table make up its units.

    Args:
        rows: the places in the table of all rows that are used, unit after unit, in the order of ids.
        number: how many rows of each unit are used.
        rows_per_unit: k.
    """

    rows: npt.NDArray[np.intp]
    number: npt.NDArray[np.intp]
    rows_per_unit: int

    def __repr__(self) -> str:
        return f"Selection({len(self)} units of at most {self.rows_per_unit} rows; places hidden)"

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, ids: npt.NDArray[Any], rows_per_unit: int, listed: npt.NDArray[Any] | None = None) -> "Selection":
        """At most k rows for each id; with ``listed``, which is sorted, for each of those."""
        names = np.unique(ids) if listed is None else listed
        unit = np.searchsorted(names, ids)
        found = np.bincount(unit, minlength=len(names))
        order = np.argsort(unit, kind="stable")  # the rows of a unit, in the order of the table
        # Of longer units, those rows are kept that have the smallest hashes of their places in the unit.
        longer = np.flatnonzero(np.repeat(found > rows_per_unit, found))
        unit = unit[order[longer]]
        begins = np.searchsorted(unit, unit)
        hashes = _mixed(np.arange(len(unit)) - begins)
        ranked = longer[np.lexsort((hashes, unit))]
        kept = np.ones(len(order), bool)
        kept[ranked[np.arange(len(unit)) - begins >= rows_per_unit]] = False
        return cls(order[kept], np.minimum(found, rows_per_unit), rows_per_unit)

    def usable(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which units are valid: those with rows, of which every row that is used is. Others contribute zero."""
        unit = np.repeat(np.arange(len(self)), self.number)
        return (self.number > 0) & (np.bincount(unit[~valid[self.rows]], minlength=len(self)) == 0)

    def _of_one_row(self, arrays: Tree, storage: Storage | None) -> Tree:
        def gathered(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
            units = reserved(len(self), leaf.shape[1:], leaf.dtype, storage)
            if len(self.rows) == len(self):
                np.take(leaf, self.rows, axis=0, out=units, mode="clip")
            else:
                units[self.number > 0] = leaf[self.rows]
            return units

        return jax.tree.map(gathered, arrays)

    @property
    def places(self) -> Bundle:
        """The places in the table of k rows of each unit, and which of these exist; 0 for a unit without rows."""
        table = np.arange(self.rows.max(initial=-1) + 1)
        return as_bundles(self.packed(table, np.ones(len(self), bool)), len(self))

    def packed(self, arrays: Tree, valid: npt.NDArray[np.bool_], storage: Storage | None = None) -> Packed:
        """The units of arrays with one line per row. Rows of units that are not valid are left out."""
        most, number = self.rows_per_unit, np.where(valid, self.number, 0)
        rows = self.rows[np.repeat(valid, self.number)]

        def gathered(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
            whole = untouched(len(self), (most, *leaf.shape[1:]), leaf.dtype, len(rows), storage)
            np.take(leaf, rows, axis=0, out=whole.reshape(-1, *leaf.shape[1:])[: len(rows)], mode="clip")
            return whole

        first = np.cumsum(number) - number
        places = _with_room(first, place_dtype(len(self), most)), _with_room(number, np.dtype(np.int32))
        return Packed(jax.tree.map(gathered, arrays), *places)

    def bundled(self, arrays: Tree, storage: Storage | None = None) -> Tree:
        """The units of arrays with k places for each; a unit of one row is that row, without a mask."""
        if self.rows_per_unit == 1:
            return self._of_one_row(arrays, storage)
        packed = self.packed(arrays, np.ones(len(self), bool))
        return as_bundles(packed, len(self), lambda shape, dtype: reserved(shape[0], shape[1:], dtype, storage))


def check_columns_are_public(rows: Tree) -> None:
    """Raise for encoded rows whose number of columns follows from the number of rows."""
    if any(getattr(leaf, "counts_rows", False) for leaf in jax.tree.leaves(rows)):
        raise InvalidRecords(
            'knots="auto": encoded these rows, and follows from their number; with units that is private (only the '
            "number of units is public). Declare a number of knots (try knots=12), or knots=None"
        )


def selections(
    given: Mapping[str, Tree], unit: Any, rows_per_unit: Any, mean_rows: Any, unit_ids: Any = None
) -> dict[str, Selection]:
    """By role, the rows of each unit; empty without units. Arguments are those of `Records`."""
    if unit is None and rows_per_unit is None and mean_rows is None and unit_ids is None:
        return {}
    most, _ = check_bounds(rows_per_unit, mean_rows)
    if unit is None:
        raise InvalidRecords("unit: must be given with rows_per_unit=...; it is the id of the unit of each row")
    check_columns_are_public(given)
    for role, tree in given.items():
        check_leading_axis(role, jax.tree.map(lambda leaf: shape_of(role, leaf), tree))  # noqa: B023
    rows = {role: int(np.shape(jax.tree.leaves(tree)[0])[0]) for role, tree in given.items()}
    ids, listed = read_units(unit, rows), dict[str, Any](dict.fromkeys(rows))
    if unit_ids is not None:
        listed = read_units(unit_ids, dict.fromkeys(rows), "unit_ids")
    return {role: Selection.of(own, most, listed_ids(listed[role], own)) for role, own in ids.items()}


def listed_ids(unit_ids: Any, ids: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """A declared list of ids, sorted; None without one. Raises unless all ids of rows are in it, and quotes none."""
    if unit_ids is None:
        return None
    given = read_ids(unit_ids, None, "unit_ids")
    listed = np.unique(given)
    if len(listed) < len(given):
        raise InvalidRecords(f"{_RULES['unit_ids']}; an id is listed twice")
    if listed.dtype.kind != ids.dtype.kind or not np.isin(ids, listed).all():
        raise InvalidRecords(
            "unit_ids: must list all ids that may be in the data, and a row has another one, or one of another type. "
            "The list is public and is not read off the rows: add the id, or leave out rows of ids that are not listed"
        )
    return listed


def read_units(unit: Any, rows: Mapping[str, int | None], name: str = "unit") -> dict[str, npt.NDArray[Any]]:
    """The ids of the rows of each role, which has so many; raises unless every unit has one role.

    Args:
        unit: ids of the rows of the only role, or a mapping from roles to them.
        rows: the number of rows of each role; None if they are not ids of rows.
        name: what errors call the ids: "unit" or "unit_ids".
    """
    if not isinstance(unit, Mapping):
        if len(rows) > 1:
            raise InvalidRecords(f"{name}: must map the roles {', '.join(map(repr, rows))} to their ids")
        unit = dict.fromkeys(rows, unit)
    if set(unit) != set(rows):
        raise InvalidRecords(f"{name}: must have the ids of the roles {', '.join(map(repr, rows))}, and no others")
    ids = {role: read_ids(unit[role], number, name) for role, number in rows.items()}
    if len(ids) > 1:
        one, other = (ids[role] for role in rows)
        if one.dtype.kind != other.dtype.kind:
            raise InvalidRecords(f"{name}: must be integers in all roles, or strings in all roles")
        if np.intersect1d(one, other).size:
            raise InvalidRecords(
                f"{name}: an id is in two roles; roles must be disjoint by unit, since the guarantee is the largest "
                "over roles and not their sum. Give all rows of a unit the same role"
            )
    return ids


def read_ids(ids: Any, rows: int | None = None, name: str = "unit") -> npt.NDArray[Any]:
    """Ids as an array of 64-bit integers or of strings, one for each row if given; errors quote none of them."""
    rule = _RULES[name]
    array: npt.NDArray[Any] | None = None
    with contextlib.suppress(Exception):  # raised here, so that an error that may quote an id is not its context
        # NumPy would make text of all items of a list with one string, of those that are missing too.
        array = np.asarray(ids, dtype=object if isinstance(ids, list | tuple) else None)
    if array is None or isinstance(ids, np.ma.MaskedArray) or array.ndim != 1:
        raise InvalidRecords(f"{rule}; pass one column")
    if rows is not None and len(array) != rows:
        raise InvalidRecords(f"{rule}; it has another length than the rows")
    if array.dtype.kind == "O":
        array = _plain(array)
    if array.dtype.kind == "f":
        raise InvalidRecords(f"{rule}; these are floating-point numbers (drop rows without an id, then astype(int))")
    kind = array.dtype.kind
    if kind not in "iuUS" or (kind in "US" and np.isin(array, _NO_ID.astype(kind)).any()):
        raise InvalidRecords(f"{rule} (drop rows without an id, or give each of them an id of its own)")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidRecords(f"{name}: must fit 64-bit integers; pass larger ids as strings")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _plain(objects: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Objects as strings, bytes or integers; unchanged if they are not all of one of these kinds."""
    kinds = {type(item) for item in objects}
    for text in (str, bytes):
        if kinds and all(issubclass(kind, text) for kind in kinds):
            return objects.astype(text)
    if kinds and all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        try:
            return objects.astype(np.int64)
        except OverflowError:
            return objects
    return objects


def _with_room(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    part = reserved(len(values), (), dtype)
    part[...] = values
    assert part.whole is not None
    return part.whole


def _mixed(positions: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """A hash of positions: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection of 64 bits."""
    value = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_KEY)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
