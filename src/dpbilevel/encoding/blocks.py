"""Blocks: the encoded columns of one input column.

Every block writes its cells into rows of zeros, multiplied by a common scale. Its squared norm is at most ``units``
times the square of the scale, in float32 too.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.axes import Axis, Hats
from dpbilevel.encoding.columns import is_missing
from dpbilevel.encoding.dates import DAY, WEEKDAYS, part_of
from dpbilevel.encoding.declarations import OTHER
from dpbilevel.encoding.hashed_words import write_words

Array = npt.NDArray[Any]
Out = npt.NDArray[np.float32]
Cells = Literal["numbers", "dates", "any"]


class Curve(NamedTuple):
    """Encoded columns that are neighbours in order: the coefficients of a model there are values of a curve.

    Args:
        name: the input column, with the part or the other side of a cross if there is one.
        columns: positions of the encoded columns, in order.
        knots: where the curve has these values, in units of the input column; days after the first for dates.
    """

    name: str
    columns: tuple[int, ...]
    knots: tuple[float, ...]


class Block(Protocol):
    """The columns of one input column: ``names`` within it ("" for its only column), and which of them are curves."""

    @property
    def cells(self) -> Cells: ...
    @property
    def units(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def curves(self) -> tuple[Curve, ...]: ...
    def write(self, cells: Any, out: Out, scale: Any) -> None: ...


@dataclass(frozen=True, eq=False)
class Plain:
    """A number in one column, mapped to [-1, 1]; zero if it is missing."""

    axis: Axis
    cells: ClassVar[Cells] = "numbers"
    units: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("",)
    curves: ClassVar[tuple[Curve, ...]] = ()

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        if self.axis.scale == "linear":
            out[:] = centred(cells[:, None], np.array([self.axis.low]), np.array([self.axis.high]), scale)
        else:
            finite = np.isfinite(cells)
            places = self.axis.places(np.where(finite, cells, self.axis.low))
            out[:, 0] = np.where(finite, 2 * places - 1, 0.0) * np.float64(scale)


@dataclass(frozen=True, eq=False)
class Number:
    """A number, or an integer, as hats; zeros if it is missing."""

    hats: Hats
    cells: ClassVar[Cells] = "numbers"
    units: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, ...]:
        return _written(self.hats.knots)

    @property
    def curves(self) -> tuple[Curve, ...]:
        return (Curve("", tuple(range(len(self.hats.knots))), tuple(self.hats.knots.tolist())),)

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        self.hats.write(cells, np.isfinite(cells), out, scale)


@dataclass(frozen=True, eq=False)
class Listed:
    """Categories, one column each. A value that is not listed is "other" if that is listed, otherwise zeros."""

    values: tuple[Any, ...]
    cells: ClassVar[Cells] = "any"
    units: ClassVar[int] = 1
    curves: ClassVar[tuple[Curve, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.values))

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        positions = _codes(cells.tolist(), {value: code for code, value in enumerate(self.values)})
        listed = np.flatnonzero(positions >= 0)
        out[listed, positions[listed]] = scale


@dataclass(frozen=True, eq=False)
class Date:
    """A date in its range, and parts of it, each of norm at most one.

    Args:
        first: the first date, from which days are counted.
        days: the block of the number of days.
        parts: a block for each part, by name.
    """

    first: np.datetime64
    days: Plain | Number
    parts: tuple[tuple[str, Number], ...]
    cells: ClassVar[Cells] = "dates"

    @property
    def units(self) -> int:
        """One for the date itself, and one for each part."""
        return 1 + len(self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Dates of knots, then parts."""
        names = [""]
        if isinstance(self.days, Number):
            moments = [self.first + np.timedelta64(round(86_400 * day), "s") for day in self.days.hats.knots.tolist()]
            days = [str(moment.astype("datetime64[D]")) for moment in moments]
            names = days if len(set(days)) == len(days) else list(map(str, moments))
        for part, block in self.parts:
            names += [f"{part} {WEEKDAYS[int(name)] if part == 'weekday' else name}" for name in block.names]
        return tuple(names)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curve of the date itself, and one for each part."""
        curves, start = [*self.days.curves], len(self.days.names)
        for part, block in self.parts:
            curves += [curve._replace(name=part, columns=moved(curve.columns, start)) for curve in block.curves]
            start += len(block.names)
        return tuple(curves)

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        known, end = ~np.isnat(cells), len(self.days.names)
        self.days.write(np.where(known, (cells - self.first) / DAY, np.nan), out[:, :end], scale)
        for part, block in self.parts:
            start, end = end, end + len(block.names)
            block.write(np.where(known, part_of(part, cells), np.nan), out[:, start:end], scale)


@dataclass(frozen=True, eq=False)
class Text:
    """Text as hashed words."""

    columns: int
    cells: ClassVar[Cells] = "any"
    units: ClassVar[int] = 1
    curves: ClassVar[tuple[Curve, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"word{at}" for at in range(self.columns))

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        """Write the counts of words, at norm ``scale``."""
        write_words(cells.tolist(), out, scale)


@dataclass(frozen=True, eq=False)
class WithMissing:
    """Another block, and a column that is one where a cell is missing; the others are zero there."""

    block: Block

    @property
    def cells(self) -> Cells:
        return self.block.cells

    @property
    def units(self) -> int:
        return self.block.units

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.block.names, "missing")

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self.block.curves

    def write(self, cells: Array, out: Out, scale: Any) -> None:
        self.block.write(cells, out[:, :-1], scale)
        missing = self._missing(cells)
        out[missing] = 0.0
        out[missing, -1] = scale

    def _missing(self, cells: Array) -> npt.NDArray[np.bool_]:
        if self.block.cells == "numbers":
            return ~np.isfinite(cells)
        if self.block.cells == "dates":
            return np.isnat(cells)
        listed = self.block.values if isinstance(self.block, Listed) else ()
        blank = [isinstance(cell, str) and not cell.strip() and cell not in listed for cell in cells.tolist()]
        return np.array(blank) | np.fromiter(map(is_missing, cells.tolist()), bool, len(cells))


def centred(cells: Array, low: Array, high: Array, scale: Any) -> npt.NDArray[np.float64]:
    """Columns of numbers, clamped to their ranges, mapped to [-1, 1] and multiplied by the scale.

    A number that is missing or infinite becomes zero, the middle of its range.
    """
    half = high / 2 - low / 2  # halves first: the difference of two large bounds may overflow
    middle = high / 2 + low / 2
    placed = np.where(np.isfinite(cells), cells, middle)
    np.clip(placed, low, high, out=placed)
    placed -= middle
    placed /= np.where(half > 0, half, 1.0)
    placed *= scale
    return np.clip(placed, -scale, scale, out=placed)  # rounding of a quotient may exceed one


def _written(knots: npt.NDArray[np.float64]) -> tuple[str, ...]:
    """Knots in six digits, or in as many as make them different."""
    for digits in itertools.count(6):
        names = tuple(f"{knot:.{digits}g}" for knot in knots)
        if len(set(names)) == len(names):
            return names
    raise AssertionError("knots are different")


def moved(columns: Sequence[int], start: int) -> tuple[int, ...]:
    """Positions after ``start`` others."""
    return tuple(start + at for at in columns)


def _codes(cells: list[Any], code_of: dict[Any, int]) -> npt.NDArray[np.intp]:
    """Positions of cells in the list of categories; -1 for a cell that is not listed."""
    unlisted = code_of.get(OTHER, -1)
    try:
        codes = [code_of.get(cell, unlisted) for cell in cells]
    except TypeError:  # an unhashable cell is not listed
        codes = [code_of.get(cell, unlisted) if _is_hashable(cell) else unlisted for cell in cells]
    return np.array(codes, dtype=np.intp)


def _is_hashable(cell: Any) -> bool:
    try:
        hash(cell)
    except TypeError:
        return False
    return True
