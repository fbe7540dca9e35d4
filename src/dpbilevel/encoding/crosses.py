"""Crosses: products of the encoded columns of two input columns, so that the effect of one depends on the other."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpbilevel.encoding.blocks import Array, Block, Curve, Out, moved
from dpbilevel.encoding.columns import Table
from dpbilevel.encoding.declarations import check_labels
from dpbilevel.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Cross:
    """All products of a column of one block and a column of another: the norm of a row is the product of theirs."""

    first: Block
    second: Block
    labels: tuple[str, str]
    units: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of both."""
        return self.named("_")

    def named(self, joint: str) -> tuple[str, ...]:
        """The names of both, with ``joint`` between an input column and what follows."""
        return tuple(f"{one} x {other}" for one in self._named(0, joint) for other in self._named(1, joint))

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curves of each block, for every column of the other."""
        width, found = len(self.second.names), []
        for curve in self.first.curves:
            found += [
                Curve(f"{self.labels[0]} x {other}", tuple(width * at + end for at in curve.columns), curve.knots)
                for end, other in enumerate(self._named(1))
            ]
        for curve in self.second.curves:
            found += [
                Curve(f"{one} x {self.labels[1]}", moved(curve.columns, width * start), curve.knots)
                for start, one in enumerate(self._named(0))
            ]
        return tuple(found)

    def write_both(self, cells: Sequence[Array], out: Out, scale: Any) -> None:
        factors = []
        for block, own in zip((self.first, self.second), cells, strict=True):
            factors.append(np.zeros((len(out), len(block.names)), np.float32))
            block.write(own, factors[-1], 1.0)
        one, other = factors
        width = other.shape[1]
        for at in range(one.shape[1]):
            np.multiply(one[:, at : at + 1], other, out=out[:, width * at : width * (at + 1)])
        out *= np.float32(scale)

    def _named(self, at: int, joint: str = "_") -> list[str]:
        block = (self.first, self.second)[at]
        return [f"{self.labels[at]}{joint}{name}" if name else self.labels[at] for name in block.names]


def crosses(given: Any, table: Table, made: Sequence[Block]) -> list[tuple[int, int, Cross]]:
    """The declared crosses, with the positions of their columns."""
    if not isinstance(given, list | tuple):
        raise InvalidArgument('crosses: must be a list of pairs of columns (try [("latitude", "longitude")])')
    chosen: list[tuple[int, int, Cross]] = []
    for pair in given:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, Hashable) for one in pair):
            raise InvalidArgument(f"crosses: {pair!r:.60} must be a pair of columns")
        check_labels("crosses", pair, table)
        first, second = map(table.labels.index, pair)
        if first == second or any({first, second} == {one, other} for one, other, _ in chosen):
            raise InvalidArgument(f"crosses: {pair!r} must be two different columns, and each pair once")
        for label, block in zip(pair, (made[first], made[second]), strict=True):
            if block.units > 1 or block.cells == "dates":
                raise InvalidArgument(
                    f"crosses: column {label!r} is a date; cross numbers, integers, categories or text"
                )
        chosen.append((first, second, Cross(made[first], made[second], (str(pair[0]), str(pair[1])))))
    return chosen
