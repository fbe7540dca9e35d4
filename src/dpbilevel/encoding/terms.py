"""Terms: where the effect of an input column can be read from the coefficients of a linear model.

A linear model of encoded rows is a sum of one function per input column. A term has the points at which such a function
is shown and the encoded cells there. All of them follow from the declarations: knots, ends of ranges, and categories.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.blocks import Block, Date, Listed, Number, Plain, WithMissing
from dpbilevel.encoding.dates import CYCLES, WEEKDAYS

Floats = npt.NDArray[np.float64]

NAMES, DATES = "names", "dates"  # scales of categories and of dates; those of numbers are `axes.SCALES`
_POINTS = 25  # of a plain column that is a curve in its own units
_PARTS = {"weekday": [name[:3] for name in WEEKDAYS], "month": list(map(str, range(1, 13)))}


@dataclass(frozen=True, eq=False)
class Term:
    """The points of a function of one input column, and what the encoder writes there.

    Args:
        name: the input column, with the part of a date.
        columns: positions of the encoded columns.
        points: in units of the input column: numbers, dates, or names of categories.
        places: the points on the declared scale, from 0 to 1; for names their order.
        scale: "linear", "log", "sqrt", "dates" or "names".
        values: (points, columns), the encoded cells.
        cyclic: whether the last point is a neighbour of the first, as December is of January.
    """

    name: str
    columns: tuple[int, ...]
    points: npt.NDArray[Any]
    places: Floats
    scale: str
    values: Floats
    cyclic: bool = False

    def centred(self, width: int) -> Floats:
        """(points, width): the matrix that maps coefficients to the function, minus its mean over the points.

        The level of a function is that of the intercept: hats of a column sum to a constant. The mean over declared
        points is a public choice of it.
        """
        matrix = np.zeros((len(self.points), width))
        matrix[:, self.columns] = self.values - self.values.mean(axis=0)
        return matrix


def terms_of(names: Sequence[str], blocks: Sequence[Block], scale: Any) -> tuple[Term, ...]:
    """The terms of all input columns; hashed text and crosses, which are functions of more than one number, have none.

    >>> from dpbilevel.encoding.axes import Axis, Hats
    >>> block = Number(Hats.even(Axis(0.0, 10.0), 3))
    >>> (term,) = terms_of(["age"], [block], 0.5)
    >>> term.points.tolist(), term.values[0].tolist(), term.centred(3).sum().round(9)
    ([0.0, 5.0, 10.0], [0.5, 0.0, 0.0], np.float64(0.0))
    """
    made: list[Term] = []
    start = 0
    for name, block in zip(names, blocks, strict=True):
        inner = block.block if isinstance(block, WithMissing) else block
        made += _terms(name, inner, start, scale)
        start += len(block.names)
    return tuple(made)


def readout(terms: Sequence[Term], width: int) -> Floats:
    """The matrices of all terms, one below the other."""
    return np.concatenate([term.centred(width) for term in terms]) if terms else np.zeros((0, width))


def _terms(name: str, block: Block, start: int, scale: Any) -> Iterator[Term]:
    if isinstance(block, Listed):
        cells = np.array(block.values, dtype=object)
        yield _written(name, block, start, scale, cells, np.array(block.names), np.arange(float(len(cells))), NAMES)
    elif isinstance(block, Number):
        yield _number(name, block, start, scale)
    elif isinstance(block, Plain):
        places = np.linspace(0.0, 1.0, 2 if block.axis.scale == "linear" else _POINTS)
        cells = block.axis.numbers(places)
        yield _written(name, block, start, scale, cells, cells, places, block.axis.scale)
    elif isinstance(block, Date):
        (days,) = _terms(name, block.days, start, scale)
        dates = block.first + np.round(86_400 * days.points).astype("timedelta64[s]")
        yield Term(name, days.columns, dates, days.places, DATES, days.values)
        start += len(block.days.names)
        for part, own in block.parts:
            term = _number(f"{name}, {part}", own, start, scale)
            if part in _PARTS:
                places = np.arange(float(len(term.points)))
                term = Term(term.name, term.columns, np.array(_PARTS[part]), places, NAMES, term.values)
            yield replace(term, cyclic=part in CYCLES)
            start += len(own.names)


def _number(name: str, block: Number, start: int, scale: Any) -> Term:
    knots, axis = block.hats.knots, block.hats.axis
    return _written(name, block, start, scale, knots, knots, axis.places(knots), axis.scale)


def _written(
    name: str, block: Block, start: int, scale: Any, cells: Any, points: Any, places: Floats, kind: str
) -> Term:
    out = np.zeros((len(cells), len(block.names)), np.float32)
    block.write(cells, out, scale)
    return Term(name, tuple(range(start, start + len(block.names))), points, places, kind, out.astype(np.float64))
