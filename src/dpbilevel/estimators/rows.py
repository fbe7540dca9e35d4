"""Scaling of rows for training: by a declared norm or declared bounds, to norm at most one.

Each row is scaled separately, from declared numbers alone, so that the result for one row does not depend on another.
The number of rows outside the declared range is not counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.columns import Chunk, Table, numbers_of
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.arguments import positive

Floats = npt.NDArray[np.float64]

# Share of a row's norm: the constant column is part of every record's gradient, and shares its clip norm and noise.
_CONSTANT = 0.3
_OTHERS = math.sqrt(1 - _CONSTANT**2)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Maps rows to (row - middle)/size, with norm at most one.

    Args:
        middle, size: one number per column.
        clamped: whether each column is clamped to its declared bounds; otherwise long rows are scaled down to norm one.
    """

    middle: Floats
    size: Floats
    clamped: bool

    def rows(self, table: Table, *, refuse: bool = False) -> npt.NDArray[np.float32]:
        """Scaled rows for training. Missing cells raise if refused; otherwise `Records` handles them."""
        scaled = np.empty(table.shape, np.float32)
        for chosen, chunk in self.chunks(table, refuse=refuse):
            scaled[chosen] = chunk
        return scaled

    def chunks(
        self, table: Table, *, refuse: bool = False, wanted: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
        """The same, chunk by chunk; those without a row that is ``wanted`` are left out."""
        unit_norm = not self.clamped and bool((self.size == 1).all())
        for chosen, chunk in table.chunks(wanted):
            with np.errstate(all="ignore"):  # a NumPy warning would reveal an outlier
                if unit_norm and isinstance(chunk, np.ndarray) and chunk.dtype == np.float32:
                    scaled = _within_unit_norm(chunk, refuse=refuse)
                else:
                    cells = _numbers(chunk, table, refuse=refuse)
                    scaled = self._clamped(cells) if self.clamped else self._shortened(cells)
                rounded = scaled.astype(np.float32)
            yield chosen, rounded

    def _clamped(self, cells: Floats) -> Floats:
        bound = 1 / math.sqrt(cells.shape[1])
        clamped = np.clip((cells - self.middle) / self.size, -bound, bound)
        return np.where(np.isfinite(cells), clamped, np.nan)  # an infinite cell counts as missing; it is not clamped

    def _shortened(self, cells: Floats) -> Floats:
        # Normalised to entries of at most one first: squares of large numbers overflow, those of tiny ones underflow.
        largest = np.abs(cells).max(axis=1, keepdims=True)
        directions = cells / np.where(largest > 0, largest, 1.0)
        lengths = np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1.0)
        return directions * np.minimum(largest / self.size[0], 1 / lengths)

    def scores(self, table: Table, coefficients: Floats, intercepts: Floats, *, refuse: bool = False) -> Floats:
        """Linear scores of all rows, for prediction; coefficients are in units of the original columns.

        Missing or infinite cells raise if refused, and are otherwise replaced by the middle.
        """
        scores = np.empty((table.shape[0], len(coefficients)))
        for chosen, chunk in table.chunks():
            cells = _numbers(chunk, table, refuse=refuse)
            cells = np.where(np.isfinite(cells), cells, self.middle)
            scores[chosen] = cells @ coefficients.T + intercepts
        return scores

    def unscaled(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Floats]:
        """Convert coefficients of scaled rows to coefficients of the original columns."""
        own = coefficients / self.size
        return own, intercepts - own @ self.middle


def norm_scaling(columns: int, data_norm: float) -> Scaling:
    """The scaling for a declared norm of rows."""
    return Scaling(np.zeros(columns), np.full(columns, data_norm), False)


def scaling(table: Table, data_norm: Any, bounds: Any) -> tuple[Scaling, str | None]:
    """The scaling for the declared norm or bounds; if neither is declared, for the norm of the data, with a caveat."""
    columns = table.shape[1]
    if data_norm is not None and bounds is not None:
        raise InvalidArgument(
            "data_norm, bounds: must not both be given; declare the norm of rows, or bounds of columns"
        )
    if bounds is not None:
        return Scaling(*_middle_and_size(bounds, columns), True), None
    caveat = None
    if data_norm is None:
        data_norm = _largest_norm(table)
        caveat = (
            "data_norm was not declared and is the largest norm of the data, which the guarantee does not cover "
            "(declare data_norm= or bounds=, or encode with dpb.BoundedEncoder)"
        )
    norm = positive("data_norm", data_norm, "it bounds the norm of every row; longer rows are scaled down (try 1.0)")
    return norm_scaling(columns, norm), caveat


def with_intercept(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows with an additional constant column, rescaled to norm at most one."""
    constant = np.full((len(rows), 1), _CONSTANT, np.float32)
    return np.concatenate([rows * np.float32(_OTHERS), constant], axis=1, dtype=np.float32)


def split_intercept(y: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Coefficients (one row per output) and intercepts of a model of rows `with_intercept`."""
    weights = np.asarray(y, np.float64)
    weights = weights.reshape(len(weights), -1).T
    return _OTHERS * weights[:, :-1], _CONSTANT * weights[:, -1]


def _within_unit_norm(chunk: npt.NDArray[np.float32], *, refuse: bool) -> Floats:
    """Scale float32 rows, such as those of encoders; rows of norm at most one are unchanged, bit for bit.

    Squares of float32 numbers neither overflow nor underflow in float64. All rows take the same operations: the run
    time must not depend on whether one of them is too long.
    """
    norms = np.sqrt(np.einsum("ij,ij->j", chunk, chunk, dtype=np.float64))
    if refuse and not np.isfinite(norms).all():
        raise _unusable()
    rows: Floats = chunk.T / np.maximum(norms, 1.0)[:, None]
    return rows


def _numbers(chunk: Chunk, table: Table, *, refuse: bool = False) -> Floats:
    """A chunk as float64; missing or infinite cells raise if refused."""
    cells = numbers_of(chunk, list(range(table.shape[1])), table.labels)
    if refuse and not np.isfinite(cells).all():
        raise _unusable()
    return cells


def _unusable() -> InvalidRecords:
    return InvalidRecords(
        "X: contains NaN, infinity or missing cells; clean it, encode categories with dpb.BoundedEncoder, or "
        'pass invalid="zero" to let such rows contribute nothing'
    )


def _largest_norm(table: Table) -> float:
    largest = 0.0
    for _, chunk in table.chunks():
        cells = _numbers(chunk, table)
        finite = np.where(np.isfinite(cells), cells, 0.0)
        with np.errstate(all="ignore"):
            largest = max(largest, float(np.linalg.norm(finite, axis=1).max(initial=0.0)))
    return largest if 0 < largest < math.inf else 1.0


def _middle_and_size(bounds: Any, columns: int) -> tuple[Floats, Floats]:
    problem = InvalidArgument(
        f"bounds: must be a pair (low, high) of finite numbers, or of one number per column ({columns}), low < high"
    )
    if not isinstance(bounds, tuple | list | np.ndarray) or len(bounds) != 2:
        raise problem
    try:
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), (columns,)) for bound in bounds)
    except (TypeError, ValueError, OverflowError):
        raise problem from None
    with np.errstate(all="ignore"):
        # Halved before subtracting: the difference of two large bounds may overflow.
        middle, size = low / 2 + high / 2, (high / 2 - low / 2) * math.sqrt(columns)
    if not (np.isfinite(middle).all() and np.isfinite(size).all() and (size > 0).all()):
        raise problem
    return middle, size
