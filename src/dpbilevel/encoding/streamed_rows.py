"""Encoded rows that nothing holds: they are made of a file, block by block, each time that they are read.

An estimator reads the rows of a table once, on their way into its records. Rows of a file need no other place before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.columns import Kind, Table
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidRecords

_FEWEST = 2  # rows of a chunk


@dataclass(frozen=True, eq=False, repr=False)  # a repr would show cells
class StreamedRows:
    """A table of encoded rows for estimators, in place of an array of them.

    Args:
        number: the number of rows.
        encoder: the fitted encoder, whose norm, caveats and terms they have.
        blocks: a function that reads them again: blocks of encoded rows, in order.
        chosen: which of the rows there are, as a mask; None for all.

    >>> encoder = BoundedEncoder(ranges={"age": (0, 100)}).fit({"age": [50]})
    >>> ages = [{"age": [0, 25]}, {"age": [50]}, {"age": [75, 100]}]
    >>> rows = StreamedRows(5, encoder, lambda: map(encoder.transform, ages))
    >>> [chunk.shape[1] for _, chunk in rows.as_table().chunks()]
    [3, 2]
    >>> rows.at(np.array([0, 4])).shape
    (2, 1)
    """

    number: int
    encoder: BoundedEncoder
    blocks: Callable[[], Iterator[EncodedRows]]
    chosen: npt.NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of encoded columns."""
        rows = self.number if self.chosen is None else int(self.chosen.sum())
        return rows, len(self.encoder.group_of_column_)

    @property
    def data_norm(self) -> float:
        """The declared bound on the norm of every row."""
        return float(self.encoder.row_norm_)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a guarantee based on these rows does not cover."""
        return tuple(self.encoder.caveats_)

    @property
    def counts_rows(self) -> bool:
        """Whether the columns follow from the number of rows, which is private for units."""
        return self.encoder._counts_rows

    @property
    def terms(self) -> tuple[Any, ...]:
        """What the columns mean."""
        return tuple(self.encoder.terms_)

    def __len__(self) -> int:
        return self.shape[0]

    def at(self, positions: npt.NDArray[np.intp]) -> "StreamedRows":
        """Some of these rows, in their order."""
        mine = np.arange(self.number) if self.chosen is None else np.flatnonzero(self.chosen)
        chosen = np.zeros(self.number, bool)
        chosen[mine[positions]] = True
        return replace(self, chosen=chosen)

    def as_table(self) -> Table:
        """The table that estimators read."""
        kind: Kind = "numbers"
        return _StreamedTable(None, self.shape, (kind,) * self.shape[1], _unread, rows=self)

    def arrays(self) -> Iterator[npt.NDArray[np.float32]]:
        """Blocks of these rows, in order; raises unless there are as many as there were."""
        first = 0
        for block in self.blocks():
            stop = first + len(block)
            if stop > self.number:
                break
            mine = None if self.chosen is None else self.chosen[first:stop]
            yield np.asarray(block) if mine is None else np.asarray(block)[mine]
            first = stop
        else:
            if first == self.number:
                return
        raise InvalidRecords(
            "X: has another number of rows than when they were counted; a file must not change while it is read"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class _StreamedTable(Table):
    rows: StreamedRows

    def chunks(self, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        first, rest = 0, np.zeros((0, self.shape[1]), np.float32)  # a file is read to its end, whatever is wanted
        for block in self.rows.arrays():
            rest = np.concatenate([rest, block])
            if len(rest) >= 2 * _FEWEST:  # some are kept, so that the last chunk has more than one row, as in `Table`
                yield slice(first, first + len(rest) - _FEWEST), rest[:-_FEWEST].T
                first, rest = first + len(rest) - _FEWEST, rest[-_FEWEST:]
        yield slice(first, first + len(rest)), rest.T


def _unread(rows: slice) -> Any:
    raise AssertionError("rows of a file are read in order")
