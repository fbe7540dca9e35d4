"""Tables in files, CSV and Parquet: their header, and their rows as text a block at a time, in bounded memory.

Cells are private and messages of readers quote them: every error of theirs is replaced by one that names the file, the
rule and the remedy.
"""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.declarations import OTHER
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.progress import counted

Array = npt.NDArray[Any]
Block = dict[str, Any]

_SEPARATED = {".csv": ",", ".tsv": "\t", ".txt": ","}
_PARQUET = (".parquet", ".pq")
_BLOCK = 2**24  # bytes of a file that are read at a time
_ROWS = 2**16  # the same in rows, of a Parquet file
_LINE = 2**20  # characters: no header is longer
# What people take for a number.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True)
class TableFile:
    """A file of rows.

    Args:
        path: of the file.
        names: of its columns, without blanks around them.
        headings: the same as the file has them.
        kinds: "number", "text" or "other" for each column where the file declares types, as Parquet does; otherwise
            None.
        rows: how many there are, where the file declares it; otherwise None.
        delimiter: of a CSV file.
    """

    path: Path
    names: tuple[str, ...]
    headings: tuple[str, ...]
    kinds: tuple[str, ...] | None
    rows: int | None
    delimiter: str

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """Some columns of all rows, in order, as Arrow arrays of text."""
        # Files without a row are refused by whoever needs rows: how many there are is known at the end only.
        headings = [self.headings[self.names.index(name)] for name in columns]
        with _without_cells(self.path), counted(f"Reading {self.path.name}", 100, "percent") as advance:
            read = 0
            for batch, part in self._parquet(headings) if self.kinds is not None else self._separated(headings):
                if batch.num_rows:
                    yield {name: _text(batch.column(at)) for name, at in zip(columns, headings, strict=True)}
                advance(int(100 * part) - read)
                read = int(100 * part)

    def _separated(self, headings: Sequence[str]) -> Iterator[tuple[Any, float]]:
        """Batches of rows, each with the part of the file that has been read."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        with self.path.open("rb") as file:
            _header(file, self.delimiter)
            if not file.read(1):  # which Arrow takes for an error
                return
        # Every cell is read as text: no type is inferred from cells, and none fails to convert.
        text = dict.fromkeys(self.headings, pyarrow.string())
        with pyarrow.OSFile(str(self.path)) as source:
            reader = arrow_csv.open_csv(
                source,
                read_options=arrow_csv.ReadOptions(block_size=_BLOCK),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(column_types=text, include_columns=list(headings)),
            )
            for batch in reader:
                yield batch, source.tell() / source.size()

    def _parquet(self, headings: Sequence[str]) -> Iterator[tuple[Any, float]]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            read = 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=list(headings)):
                read += batch.num_rows
                yield batch, read / file.metadata.num_rows


def open_table(path: Path, delimiter: str | None = None) -> TableFile:
    """A file by its header alone; no row is read."""
    suffix = path.suffix.lower()
    if suffix not in _SEPARATED and suffix not in _PARQUET:
        known = ", ".join([*_SEPARATED, *_PARQUET])
        raise InvalidArgument(f"{path}: must be a CSV or Parquet file; its name must end in one of {known}")
    if not path.exists():
        raise InvalidArgument(f"{path}: there is no such file; check the path")
    if not path.is_file():
        raise InvalidArgument(f"{path}: is a folder; pass a CSV or Parquet file")
    with _without_cells(path):
        table = _opened_parquet(path) if suffix in _PARQUET else _opened_separated(path, delimiter)
    _check_names(table)
    return table


def numbers(cells: Any) -> npt.NDArray[np.float64]:
    """Cells of text as numbers; NaN where a cell is empty or no number.

    >>> import pyarrow
    >>> numbers(pyarrow.array(["1", "2.5e3", "", "many", None, "-inf"])).tolist()
    [1.0, 2500.0, nan, nan, nan, nan]
    """
    import pyarrow
    import pyarrow.compute as compute

    if not pyarrow.types.is_string(cells.type):
        return np.asarray(compute.cast(cells, pyarrow.float64()).to_numpy(zero_copy_only=False), np.float64)
    usable = compute.if_else(compute.match_substring_regex(cells, _NUMBER), cells, None)
    return np.asarray(compute.cast(usable, pyarrow.float64()).to_numpy(zero_copy_only=False), np.float64)


def words(cells: Any) -> npt.NDArray[np.object_]:
    """Cells of text as strings; empty where a cell is missing."""
    import pyarrow
    import pyarrow.compute as compute

    cells = compute.cast(cells, pyarrow.string())  # numbers of a Parquet file, where the schema lists them as words
    return np.asarray(compute.fill_null(cells, "").to_numpy(zero_copy_only=False), dtype=object)


def listed_words(cells: Any, values: Sequence[str], *, other: bool) -> npt.NDArray[np.object_] | None:
    """Cells as the listed values that they are, or None where one is not listed.

    With ``other``, the value "other" takes cells that are not listed. All cells of a value share one string.

    >>> import pyarrow
    >>> listed_words(pyarrow.array(["F", None]), ["F", "other"], other=True).tolist()
    ['F', 'other']
    """
    import pyarrow
    import pyarrow.compute as compute

    codes = compute.index_in(compute.cast(cells, pyarrow.string()), pyarrow.array(values, pyarrow.string()))
    if codes.null_count:
        if not other or OTHER not in values:
            return None
        codes = compute.fill_null(codes, list(values).index(OTHER))
    return np.array(values, dtype=object)[codes.to_numpy(zero_copy_only=False)]


def _text(cells: Any) -> Any:
    """A column as text without blanks around it, or as it is where it holds numbers."""
    import pyarrow
    import pyarrow.compute as compute

    kind = cells.type
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind):
        return cells
    return compute.utf8_trim_whitespace(compute.cast(cells, pyarrow.string()))


def _opened_separated(path: Path, delimiter: str | None) -> TableFile:
    delimiter = _SEPARATED[path.suffix.lower()] if delimiter is None else delimiter
    if len(delimiter) != 1:
        raise InvalidArgument(f"--delimiter {delimiter!r}: must be one character (try ',' or ';')")
    with path.open("rb") as file:
        header = _header(file, delimiter)
    names = tuple(name.strip() for name in header)
    if not any(names):
        raise InvalidArgument(f"{path}: has no header; its first line must name the columns")
    if len(names) == 1:
        others = [other for other in (";", "\t", "|", ",") if other in names[0]]
        if others:
            raise InvalidArgument(
                f"{path}: its header is one column when split at {delimiter!r}; pass --delimiter {others[0]!r}"
            )
    return TableFile(path, names, tuple(header), None, None, delimiter)


def _header(file: BinaryIO, delimiter: str) -> list[str]:
    """The first row of a file, line by line from its bytes: what comes after it is not even decoded."""
    lines = (line.decode("utf-8-sig") for line in iter(lambda: file.readline(_LINE), b""))
    return next(csv.reader(lines, delimiter=delimiter, strict=True), [])


def _opened_parquet(path: Path) -> TableFile:
    from pyarrow import parquet

    # The footer: names, types and the number of rows. It may hold extremes of columns as well, which nobody looks at.
    with parquet.ParquetFile(path) as file:
        fields, rows = file.schema_arrow, file.metadata.num_rows
    names = tuple(name.strip() for name in fields.names)
    return TableFile(path, names, tuple(fields.names), tuple(_kind(field.type) for field in fields), rows, ",")


def _kind(kind: Any) -> str:
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) else "other"


def _check_names(table: TableFile) -> None:
    if any(not name for name in table.names):
        raise InvalidArgument(f"{table.path}: has a column without a name; name every column in the first line")
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
    if twice:
        raise InvalidArgument(f"{table.path}: has the column {twice[0]!r} more than once; rename one of them")


@contextlib.contextmanager
def _without_cells(path: Path) -> Iterator[None]:
    """Replace errors of readers, which quote cells, by what may be said."""
    import pyarrow

    try:
        yield
    except PermissionError:
        raise InvalidArgument(f"{path}: may not be read; check its permissions") from None
    except UnicodeDecodeError:
        raise InvalidRecords(f"{path}: is not UTF-8 text; convert it (iconv -f latin1 -t utf-8)") from None
    except (pyarrow.ArrowException, csv.Error):
        raise InvalidRecords(
            f"{path}: cannot be read: a row must have as many cells as the header has columns, quotes must be closed, "
            "and the text must be UTF-8 (check --delimiter; a Parquet file must be whole)"
        ) from None
    except OSError:
        raise InvalidArgument(f"{path}: cannot be read; check the file and its disk") from None
