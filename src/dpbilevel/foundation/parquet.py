"""Parquet files, and folders of them: one table in the order of their names, read in batches.

Cells are private, and error messages of readers quote them. Every such error is replaced by one that names the file,
the rule and the remedy.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.extras import needing
from dpbilevel.foundation.reading_ahead import reading_ahead

SUFFIXES = (".parquet", ".pq")
# A batch has at most so many rows, and so many cells if it has more than a few rows.
_ROWS, _CELLS, _FEW = 2**16, 2**20, 2**10
_BUFFER = 2**16  # bytes of a column that are read at a time


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or the Parquet files of a folder by name; other programs begin names of their own with _ or ."""
    if not path.is_dir():
        return [path]
    return sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES and f.name[0] not in "._" and f.is_file())


def footers(path: Path) -> tuple[list[Any], int]:
    """The schemas of all files, and the number of rows. Extremes of columns, which footers may have, are not used."""
    with needing("cli", "reading Parquet"):
        from pyarrow import parquet
    rows, schemas = 0, []
    with without_cells(path):
        for part in parquet_files(path):
            with parquet.ParquetFile(part) as file:
                schemas.append(file.schema_arrow)
                rows += file.metadata.num_rows
    return schemas, rows


def batches(path: Path, columns: Sequence[str], within: slice | None = None) -> Iterator[Any]:
    """The columns of all rows, in order, or of those ``within`` a range: then other row groups are not read.

    While one batch is used, the next is decoded.
    """
    return reading_ahead(_batches(path, columns, within))


def _batches(path: Path, columns: Sequence[str], within: slice | None) -> Iterator[Any]:
    from pyarrow import parquet

    rows = min(_ROWS, max(_FEW, _CELLS // max(1, len(columns))))
    begin, end = (0, math.inf) if within is None else (within.start, within.stop)
    first = 0  # row of the next group
    with without_cells(path):
        for part in parquet_files(path):
            # Reads no further than needed: row groups may be as large as files.
            with parquet.ParquetFile(part, pre_buffer=False, buffer_size=_BUFFER) as file:
                groups: dict[int, int] = {}  # that have rows of the range, and the first row of each
                for group in range(file.num_row_groups):
                    number = file.metadata.row_group(group).num_rows
                    if first < end and first + number > begin:
                        groups[group] = first
                    first += number
                if groups:
                    read = file.iter_batches(batch_size=rows, row_groups=list(groups), columns=list(columns))
                    start = next(iter(groups.values()))
                    yield from rows_within(read, begin - start, end - start)


def rows_within(read: Iterable[Any], begin: float, end: float) -> Iterator[Any]:
    """The rows of batches from one place to another; those after it are not read."""
    for batch in read:
        low, high = int(max(0, begin)), int(min(batch.num_rows, end))
        begin, end = begin - batch.num_rows, end - batch.num_rows
        if low < high:
            yield batch.slice(low, high - low)
        if end <= 0:
            return


@contextlib.contextmanager
def without_cells(path: Path, remedy: str = "a Parquet file must be complete") -> Iterator[None]:
    """Replace errors of readers, which may quote cells; ``remedy`` is for files that cannot be parsed."""
    import pyarrow

    try:
        yield
    except PermissionError:
        raise InvalidArgument(f"{path}: cannot be read; check its permissions") from None
    except pyarrow.ArrowException:
        raise InvalidRecords(f"{path}: cannot be read: {remedy}") from None
    except OSError:
        raise InvalidArgument(f"{path}: cannot be read; check the file and its disk") from None
