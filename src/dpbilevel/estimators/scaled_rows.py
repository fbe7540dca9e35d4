"""Rows that are scaled on their way into records: nothing holds all scaled rows before their roles are known.

A fit holds one copy of its rows beside the caller's. Chunks of the table are scaled, and written to where they stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from dpbilevel.encoding.columns import Table
from dpbilevel.estimators.rows import Scaling, with_intercept
from dpbilevel.privacy.memory import reserved
from dpbilevel.privacy.parts import Part, job_of, own_range
from dpbilevel.privacy.storage import Storage


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """The rows of a table with their scaling.

    Args:
        scaling, table: what is scaled, and how.
        refuse: whether missing cells raise when rows are read.
        intercept: whether rows have an additional constant column.
        basis: (columns, new columns), orthonormal; the columns are replaced by these combinations of them.
        storage: where rows are written to, if not to memory.
        mesh: the devices that rows are divided among; of several processes, each has its own rows.
    """

    scaling: Scaling
    table: Table
    refuse: bool = False
    intercept: bool = False
    basis: npt.NDArray[np.float64] | None = None
    storage: Storage | None = None
    mesh: Mesh | None = None

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        rows, columns = self.table.shape
        return rows, (columns if self.basis is None else self.basis.shape[1]) + int(self.intercept)

    def with_intercept(self) -> "ScaledRows":
        """The same rows with an additional constant column."""
        return replace(self, intercept=True)

    def in_basis(self, basis: npt.NDArray[np.float64]) -> "ScaledRows":
        """The same rows in another basis; none is longer than before, up to rounding."""
        return replace(self, basis=basis)

    @property
    def is_in_order(self) -> bool:
        """Whether rows of a role should be in the order of the table: a disk, or a process, then reads a part of it."""
        return self.storage is not None or self.mesh is not None

    def parts(self, selections: Sequence[npt.NDArray[np.intp]]) -> list[Any]:
        """Selected rows, one array for each of some disjoint selections, in its order; the table is read once.

        In a job of several processes these are a `Part` of them.
        """
        rows, columns = self.shape
        part_of, place = np.full(rows, -1, np.int8), np.zeros(rows, np.min_scalar_type(rows))
        parts = []
        for number, selection in enumerate(selections):
            here = selection[own_range(len(selection), self.mesh)]
            part_of[here], place[here] = number, np.arange(len(here))
            parts.append(reserved(len(here), (columns,), self.dtype, self.storage))
        job = job_of(self.mesh)
        with job.barrier("rows"):
            for chosen, chunk in self.scaling.chunks(self.table, refuse=self.refuse, wanted=part_of >= 0):
                own = chunk if self.basis is None else in_basis(chunk, self.basis).astype(self.dtype)
                scaled = with_intercept(own) if self.intercept else own
                for number, part in enumerate(parts):
                    mine = part_of[chosen] == number
                    part[place[chosen][mine]] = scaled[mine]
        if not job.is_several:
            return list(parts)
        return [Part(part, len(selection)) for part, selection in zip(parts, selections, strict=True)]


def in_basis(rows: npt.NDArray[Any], basis: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rows in another basis, column by column: every cell takes the same operations, wherever its row is.

    A matrix product rounds by blocks of rows. The place of a row depends on how many rows other units have.
    """
    product = np.zeros((basis.shape[1], len(rows)))
    with np.errstate(all="ignore"):  # a NumPy warning would reveal a cell that is not finite
        for column, combination in zip(rows.T, basis, strict=True):
            used = np.flatnonzero(combination)
            if used.size:  # most combine the columns of one curve
                near = slice(used[0], used[-1] + 1)
                product[near] += combination[near, None] * column
    product[:, ~np.isfinite(rows).all(axis=1)] = np.nan  # for a column that no combination uses
    return product.T


def whole(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Leaves of records as arrays, or as shapes if they are."""
    return tuple(leaf.parts([np.arange(leaf.shape[0])])[0] if isinstance(leaf, ScaledRows) else leaf for leaf in leaves)
