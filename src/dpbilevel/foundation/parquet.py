"""Parquet files, and folders of them: one table in the order of their names, read in batches.

Cells are private, and error messages of readers quote them. Every such error is replaced by one that names the file,
the rule and the remedy.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.extras import needing

SUFFIXES = (".parquet", ".pq")
_ROWS = 2**16  # of a batch


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


def batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """The columns of all rows, in order."""
    from pyarrow import parquet

    with without_cells(path):
        for part in parquet_files(path):
            # Without threads or a cache that read ahead: a batch and its row group are all that is in memory.
            with parquet.ParquetFile(part, pre_buffer=False) as file:
                yield from file.iter_batches(batch_size=_ROWS, columns=list(columns))


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
