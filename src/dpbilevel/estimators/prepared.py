"""What an estimator prepares before anything is charged: a plan, its records, and the use of released values.

First the data are read, then the problem is defined and planned, then the function that computes attributes from
released values. A fit reads a table, a plan uses sizes instead (`Unread` for a table, shapes for arrays), an audit
reads two tables. All three share the rest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.encoding.terms import Term
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.rows import Scaling
from dpbilevel.estimators.scaled_rows import ScaledRows
from dpbilevel.estimators.split import Positions, split, validation_rows
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.solution.solution import Legend

Tree = Any


@dataclass(frozen=True)
class Unread:
    """The size of a table, for a plan without data.

    Args:
        rows: their number.
        columns: their number after encoding.
        terms: of the encoder, if it is known.
        row_norm: the norm of a row that training scales to one.
    """

    rows: int
    columns: int
    terms: tuple[Term, ...] = ()
    row_norm: float = 1.0

    @classmethod
    def of(cls, rows: int, columns: Any, data_norm: float | None = None) -> "Unread":
        """The size of a table with this number of columns, or encoded by this encoder."""
        if not isinstance(columns, BoundedEncoder):
            return cls(rows, columns)
        check_is_fitted(columns, "terms_")
        norm = columns.row_norm_ if data_norm is None else data_norm
        return cls(rows, len(columns.group_of_column_), tuple(columns.terms_), norm)

    def __post_init__(self) -> None:
        count("columns", self.columns, "it is the number of columns of X")
        count("rows", self.rows, "it is the number of rows of X")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table as stored in records.

    Args:
        values: `ScaledRows`, each row of norm at most one; only a shape if nothing was read.
        caveats: limits of the guarantee because of undeclared facts.
        scaling: the scaling of the table; None if nothing was read.
    """

    values: Any
    caveats: tuple[str, ...] = ()
    scaling: Scaling | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        rows, columns = self.values.shape
        return rows, columns

    def column(self, kind: type) -> jax.ShapeDtypeStruct:
        """The shape of an array of this type with one number per row."""
        return jax.ShapeDtypeStruct(self.shape[:1], kind)

    def in_basis(self, basis: Any) -> "Rows":
        """The same rows in another basis."""
        if self.scaling is None:
            return Rows(jax.ShapeDtypeStruct((self.shape[0], basis.shape[1]), np.float32))
        return Rows(self.values.in_basis(basis), self.caveats, self.scaling)

    def with_intercept(self) -> "Rows":
        """The same rows with an additional constant column."""
        if self.scaling is None:
            return Rows(jax.ShapeDtypeStruct((self.shape[0], self.shape[1] + 1), np.float32))
        return Rows(self.values.with_intercept(), self.caveats, self.scaling)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)  # a repr would show cells
class Prepared:
    """The inputs of a run, and the function that computes the attributes of the fitted estimator.

    Args:
        planned: the plan of the run.
        records: a pytree of arrays by role; of shapes for a plan.
        caveats: sentences about facts that were not declared.
        legend: the meaning of the entries of x.
        facts: what was declared about rows or read from them: columns, scaling, classes, ranges, names.
        finish: (x, y) -> attributes of the fitted estimator, from released values and ``facts`` alone.
        errors: (attributes, history) -> attributes with standard errors; None for a model without.
        units: arguments of `dpb.Records` that bundle rows into units; empty if rows are records.
    """

    planned: Plan
    records: Mapping[str, Tree]
    caveats: Sequence[str]
    legend: Legend
    facts: Mapping[str, Any]
    finish: Callable[[Tree, Tree], Mapping[str, Any]]
    errors: Callable[[Mapping[str, Any], Mapping[str, Tree]], Mapping[str, Any]] | None = None
    units: Mapping[str, Any] = field(default_factory=dict)

    def facts_as_text(self) -> str:
        """All facts without loss, for the fingerprint of a checkpoint: with others, `finish` gives other values."""
        return json.dumps([self.legend, self.facts], default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else vars(value)


def split_levels(
    upper: Sequence[Any], lower: Sequence[Any], validation_fraction: float, split_seed: int
) -> dict[str, Tree]:
    """Records of both levels: ``upper`` columns of a public selection of rows, and ``lower`` columns of the others."""
    rows = int(lower[0].shape[0])
    if rows < 2:
        raise InvalidArgument(f"rows={rows}: must be at least 2, one to validate and one to train")
    if isinstance(lower[0], jax.ShapeDtypeStruct):
        validating = validation_rows(rows, validation_fraction)
        return {"upper": _shapes(upper, validating), "lower": _shapes(lower, rows - validating)}
    selections = split(rows, validation_fraction, split_seed)
    if isinstance(lower[0], ScaledRows) and lower[0].is_in_order:
        for selection in selections:
            selection.sort()
    return levels(upper, lower, selections)


def levels(upper: Sequence[Any], lower: Sequence[Any], selections: Sequence[Positions]) -> dict[str, Tree]:
    """Records of both levels, of the first and of the second selection of rows."""
    roles = (("upper", upper), ("lower", lower))
    leaves = {id(leaf): leaf for leaf in (*upper, *lower)}  # most are of both roles, and read once
    parts = {key: _parts(leaf, selections) for key, leaf in leaves.items()}
    return {role: tuple(parts[id(leaf)][at] for leaf in own) for at, (role, own) in enumerate(roles)}


def _parts(leaf: Any, selections: Sequence[Positions]) -> Sequence[Any]:
    return leaf.parts(selections) if isinstance(leaf, ScaledRows) else [leaf[selection] for selection in selections]


def _shapes(leaves: Sequence[Any], rows: int) -> Tree:
    return tuple(jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
