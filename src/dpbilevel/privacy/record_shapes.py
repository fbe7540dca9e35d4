"""The public facts about records: how many there are in each role, and the shape and dtype of one.

Plans, caches of compiled programs and checkpoints know records by them; none of them sees a value.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.accounting import ROLES
from dpbilevel.privacy.arrays import check_leading_axis, shape_of
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.roles import check_roles
from dpbilevel.privacy.shards import checked_mesh
from dpbilevel.privacy.units import bundle_shapes, check_bounds

Tree = Any


@dataclass(frozen=True, eq=False)
class RecordShapes:
    """The public facts about records: shapes and dtypes, with the number of records as leading axis.

    To plan without data, pass pytrees of ``jax.ShapeDtypeStruct``, or of arrays, of which only the shapes are kept. For
    units, pass ``rows_per_unit`` (and ``mean_rows``) as to `Records`, and arrays with one line for each unit. For
    records on several devices, pass their ``mesh``.

    >>> import jax
    >>> f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    >>> RecordShapes(upper=(f32(500, 8), f32(500)), lower=(f32(4000, 8), f32(4000)))
    RecordShapes(upper=500 records, lower=4000 records)
    >>> RecordShapes(lower=(f32(4000, 8), f32(4000)), rows_per_unit=5)
    RecordShapes(lower=4000 units of at most 5 rows)
    """

    upper: Tree = None
    lower: Tree = None
    both: Tree = None
    heldout: Tree = None
    rows_per_unit: int | None = None
    mean_rows: float | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        check_roles(self.upper, self.lower, self.both, self.heldout)
        if self.rows_per_unit is not None:
            most, mean = check_bounds(self.rows_per_unit, self.mean_rows)
            object.__setattr__(self, "rows_per_unit", most)
            object.__setattr__(self, "mean_rows", mean)
        elif self.mean_rows is not None:
            raise InvalidArgument("mean_rows: must be left out without rows_per_unit; it is the mean of rows per unit")
        if self.mesh is not None:
            object.__setattr__(self, "mesh", checked_mesh(self.mesh))
        for role in ROLES:
            shapes = jax.tree.map(lambda leaf: shape_of(role, leaf), getattr(self, role))  # noqa: B023
            check_leading_axis(role, shapes)
            object.__setattr__(self, role, bundle_shapes(shapes, self.rows_per_unit or 1))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that have records."""
        return tuple(role for role in ROLES if getattr(self, role) is not None)

    def count(self, role: str) -> int:
        """The number of records of a role ("upper", "lower", "both" or "heldout")."""
        return int(jax.tree.leaves(getattr(self, role))[0].shape[0])

    def role_of(self, level: str) -> str | None:
        """The role whose records a level ("upper" or "lower") reads; None if it reads none."""
        if self.both is not None:
            return "both"
        return level if getattr(self, level) is not None else None

    def record(self, level: str) -> Tree:
        """The shape and dtype of one record of a level: a row, or the `Bundle` of a unit's rows."""
        role = self.role_of(level)
        return _one(None if role is None else getattr(self, role))

    def row(self, level: str) -> Tree:
        """The shape and dtype of one row of a level."""
        record = self.record(level)
        return _one(record.rows) if self.rows_per_unit is not None and isinstance(record, Bundle) else record

    def _key(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten((self.upper, self.lower, self.both, self.heldout))
        return (
            structure,
            self.rows_per_unit,
            self.mean_rows,
            self.mesh,
            *((leaf.shape, leaf.dtype) for leaf in leaves),
        )

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordShapes) and self._key() == other._key()

    def __repr__(self) -> str:
        return f"RecordShapes({self.counts()}{self.where()})"

    def where(self) -> str:
        """On how many devices records are, as text; empty without a mesh."""
        return "" if self.mesh is None else f", on {self.mesh.size} device{'' if self.mesh.size == 1 else 's'}"

    def counts(self) -> str:
        """The number of records in each role, as text."""
        most = self.rows_per_unit
        kind = "records" if most is None else f"units of at most {most} row{'' if most == 1 else 's'}"
        return ", ".join(f"{role}={self.count(role)} {kind}" for role in self.roles)


def _one(stacked: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)
