"""What a fit is before anything is charged: a plan, its records, and what becomes of the released values.

Reading comes first, then the problem and its plan, then the finish. A fit reads a table, a plan reads sizes in place of
it (`Unread` for a table, shapes for arrays), an audit reads two tables; from there on all three are the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.rows import Scaling, with_intercept
from dpbilevel.estimators.split import split, validation_rows
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.solution.solution import Legend

Tree = Any


@dataclass(frozen=True)
class Unread:
    """The size of a table that is yet to come: what a plan has in place of one."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        count("columns", self.columns, "it is the number of columns of X")
        count("rows", self.rows, "it is the number of rows that a fit will have")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table as records hold them.

    Args:
        values: (rows, columns) of norm at most one; shapes alone where nothing was read.
        caveats: what the guarantee does not cover about them.
        scaling: how the table became the values; None where nothing was read.
    """

    values: Any
    caveats: tuple[str, ...] = ()
    scaling: Scaling | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.values.shape
        return rows, columns

    def column(self, kind: type) -> jax.ShapeDtypeStruct:
        """The shape of one number of a type for each row."""
        return jax.ShapeDtypeStruct(self.shape[:1], kind)

    def with_intercept(self) -> "Rows":
        """The same with one more column, which is constant."""
        if self.scaling is None:
            return Rows(jax.ShapeDtypeStruct((self.shape[0], self.shape[1] + 1), np.float32))
        return Rows(with_intercept(self.values), self.caveats, self.scaling)


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """All that a run needs, and what it leaves behind.

    Args:
        planned: the plan of the run.
        records: role to a pytree of arrays; of shapes for a plan.
        caveats: what was not declared, in sentences.
        legend: what the numbers of x mean.
        facts: what was declared of rows or read from them: columns, scaling, classes, ranges, names.
        finish: attributes of the fitted estimator, from the released x and y and ``facts`` alone.
    """

    planned: Plan
    records: Mapping[str, Tree]
    caveats: Sequence[str]
    legend: Legend
    facts: Mapping[str, Any]
    finish: Callable[[Tree, Tree], Mapping[str, Any]]

    def facts_as_text(self) -> str:
        """All facts without loss, for the fingerprint of a checkpoint: with others, `finish` gives other values."""
        return json.dumps([self.legend, self.facts], default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else vars(value)


def levels(upper: Sequence[Any], lower: Sequence[Any], validation_fraction: float, split_seed: int) -> dict[str, Tree]:
    """Records of both levels: a public part of the rows of ``upper`` columns, and the rest of those of ``lower``."""
    rows = int(lower[0].shape[0])
    if rows < 2:
        raise InvalidArgument(f"rows={rows}: must be at least 2, one to validate and one to train")
    if isinstance(lower[0], jax.ShapeDtypeStruct):
        validating = validation_rows(rows, validation_fraction)
        return {"upper": _shapes(upper, validating), "lower": _shapes(lower, rows - validating)}
    validate, train = split(rows, validation_fraction, split_seed)
    return {"upper": tuple(leaf[validate] for leaf in upper), "lower": tuple(leaf[train] for leaf in lower)}


def _shapes(leaves: Sequence[Any], rows: int) -> Tree:
    return tuple(jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
