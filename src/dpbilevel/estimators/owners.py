"""Rows of units in an estimator: which unit has which role, and the sizes that are planned with.

A unit has one role, for all of its rows. The role is the rank of a public hash of its id among all ids: it depends on
the set of ids alone, which neighbours share, and never on rows. In the order of first appearance, one person who loses
the first row would change the roles of others. To replace an id moves at most one other unit into another role.

The label, the source and the task of a row are its content, and neighbours may differ in all of them. So a unit may
have rows in several sources. Its loss is the sum of theirs, its gradient by the weights has an entry for each of its
sources, and every contribution of a method is clipped as a whole, whichever entries it has: no sensitivity rests on
where rows are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.prepared import Unread, levels
from dpbilevel.estimators.split import split_by_hash
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.units import check_bounds, check_columns_are_public, listed_ids, read_ids, read_units

Tree = Any


class Levels(NamedTuple):
    """Records of both levels.

    Args:
        records: arrays by role, or shapes for a plan.
        sizes: the sizes that are planned with.
        units: arguments of `dpb.Records` that bundle rows into units; empty if rows are records.
    """

    records: Mapping[str, Tree]
    sizes: RecordShapes
    units: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Levels({self.sizes!r}; values hidden)"


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show ids
class Owners:
    """Whose rows the rows of a table are.

    Args:
        ids: one for each row.
        rows_per_unit, mean_rows: as in `dpb.Records`.
        validation_fraction, split_seed: of units; the seed is part of the hash.
        listed: the declared list of ids, sorted; None without one, where the ids are those of the rows.
    """

    ids: npt.NDArray[Any]
    rows_per_unit: int
    mean_rows: float
    validation_fraction: float
    split_seed: int
    listed: npt.NDArray[Any] | None = None

    @classmethod
    def of(cls, units: Any, X: Any, rows: int, estimator: Any) -> "Owners | None":
        """With the settings of an estimator, for so many rows X; None if rows are records, or X is `Unread`.

        Raises if only one of units and their bound is given.
        """
        if isinstance(X, Unread):
            return None
        most = estimator.rows_per_unit
        if units is None and most is None:
            for name in ("mean_rows", "unit_ids"):
                if getattr(estimator, name) is not None:
                    raise InvalidArgument(
                        f"{name}: must be left out without rows_per_unit, the bound on rows of a unit"
                    )
            return None
        bounds = check_bounds(most, estimator.mean_rows)
        if units is None:
            raise InvalidArgument("units: must be given to fit with rows_per_unit, one id for each row")
        _check_encoded(X)
        ids = read_ids(units, rows)
        listed = listed_ids(estimator.unit_ids, ids)
        return cls(ids, *bounds, estimator.validation_fraction, estimator.split_seed, listed)

    def split(self, upper: Sequence[Any], lower: Sequence[Any]) -> Levels:
        """``upper`` columns of the rows of some units, and ``lower`` columns of those of the others."""
        names = np.unique(self.ids) if self.listed is None else self.listed
        unit = np.searchsorted(names, self.ids)
        if len(names) < 2:
            raise InvalidArgument("units: must have at least 2 ids, one to validate and one to train")
        validating, _ = split_by_hash(names, self.validation_fraction, self.split_seed)
        is_upper = np.zeros(len(names), bool)
        is_upper[validating] = True
        selections = np.flatnonzero(is_upper[unit]), np.flatnonzero(~is_upper[unit])
        ids = {role: self.ids[places] for role, places in zip(("upper", "lower"), selections, strict=True)}
        listed = {"upper": names[is_upper], "lower": names[~is_upper]}
        return self._bundled(levels(upper, lower, selections), ids, listed)

    def separate(self, records: Mapping[str, Tree], X: Any, units: Any) -> Levels:
        """Records by role, where validation rows X were given with units of their own; raises if one has both roles."""
        _check_encoded(X)
        if self.listed is not None:
            raise InvalidArgument(
                "unit_ids: is not supported together with validation rows of their own; leave it out, or let the "
                "estimator split"
            )
        rows = {role: int(jax.tree.leaves(tree)[0].shape[0]) for role, tree in records.items()}
        ids = read_units({"upper": units, "lower": self.ids}, rows)
        return self._bundled(records, ids, {role: np.unique(own) for role, own in ids.items()})

    def _bundled(
        self,
        records: Mapping[str, Tree],
        ids: Mapping[str, npt.NDArray[Any]],
        listed: Mapping[str, npt.NDArray[Any]],
    ) -> Levels:
        bounds: dict[str, Any] = {"rows_per_unit": self.rows_per_unit, "mean_rows": self.mean_rows}
        shapes = {role: _of_number(tree, len(listed[role])) for role, tree in records.items()}
        return Levels(records, RecordShapes(**shapes, **bounds), {"unit": ids, "unit_ids": listed, **bounds})


def _check_encoded(X: Any) -> None:
    if isinstance(X, EncodedRows | StreamedRows):
        check_columns_are_public([X])


def planned_sizes(records: Mapping[str, Tree], estimator: Any) -> RecordShapes:
    """Sizes for a plan without data: lines of the shapes are rows, or units if the estimator bounds their rows."""
    if estimator.rows_per_unit is None:
        return RecordShapes(**records)
    most, mean = check_bounds(estimator.rows_per_unit, estimator.mean_rows)
    return RecordShapes(**records, rows_per_unit=most, mean_rows=mean)


def _of_number(tree: Tree, number: int) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), tree)
