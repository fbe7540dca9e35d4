"""Tables in CSV and Parquet files: reads the header, and rows as text, one block at a time, in bounded memory.

Cells are private, and error messages of readers quote them. Every such error is replaced by one that names the file,
the rule and the remedy.
"""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpbilevel.cli.layout import NO_HEADER, Layout, check_header
from dpbilevel.encoding.columns import MISSING
from dpbilevel.encoding.declarations import OTHER
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.execution.progress import counted

Array = npt.NDArray[Any]
Block = dict[str, Any]

_SEPARATED = {".csv": ",", ".tsv": "\t", ".txt": ","}
_PARQUET = (".parquet", ".pq")
_BLOCK = 2**24  # bytes of a file per block
_ROWS = 2**16  # rows of a Parquet file per block
_LINE = 2**20  # maximum length of a header, in characters
# Numbers with either decimal mark.
_NUMBERS = {mark: rf"^[+-]?(\d+[{mark}]?\d*|[{mark}]\d+)([eE][+-]?\d+)?$" for mark in ".,"}
_OTHER_MARK = {".": "pass --decimal , for 2,5", ",": "leave --decimal out for 2.5"}
# Words allowed in a column of numbers: missing and infinite values.
_NO_NUMBERS = sorted(MISSING | {f"{sign}{word}" for sign in ("", "+", "-") for word in ("inf", "infinity")})


@dataclass(frozen=True)
class TableFile:
    """A table in a file.

    Args:
        path: the path of the file.
        names: the names of its columns, without surrounding blanks.
        headings: the names as in the file.
        kinds: "number", "text" or "other" for each column if the file declares types, as Parquet does; otherwise None.
        rows: the number of rows if the file declares it; otherwise None.
        layout: the format of a CSV file, with its delimiter.
    """

    path: Path
    names: tuple[str, ...]
    headings: tuple[str, ...]
    kinds: tuple[str, ...] | None
    rows: int | None
    layout: Layout

    @property
    def remedy(self) -> str:
        """The remedy for a missing column; the first line may be a record and is not quoted."""
        if self.kinds is not None:
            return "check the names"
        return NO_HEADER if self.layout.columns is None else "check the names in --columns"

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """The given columns of all rows, in order, as Arrow arrays of text."""
        # Callers that need rows refuse empty files: the number of rows is known only at the end.
        headings = [self.headings[self.names.index(name)] for name in columns]
        with _without_cells(self.path), counted(f"Reading {self.path.name}", 100, "percent") as advance:
            read = 0
            for batch, part in self._parquet(headings) if self.kinds is not None else self._separated(headings):
                if batch.num_rows:
                    yield {name: _text(batch.column(at)) for name, at in zip(columns, headings, strict=True)}
                advance(int(100 * part) - read)
                read = int(100 * part)

    def _separated(self, headings: Sequence[str]) -> Iterator[tuple[Any, float]]:
        """Batches of rows, each with the fraction of the file read so far."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        layout = self.layout
        with self.path.open("rb") as file:
            if layout.columns is None:
                _first_line(file, layout.delimiter or ",")
            if not file.read(1):  # an error for Arrow
                return
        # Every cell is read as text: no types are inferred from cells, and no conversion can fail.
        text = dict.fromkeys(self.headings, pyarrow.string())
        with pyarrow.OSFile(str(self.path)) as source:
            reader = arrow_csv.open_csv(
                source,
                read_options=arrow_csv.ReadOptions(block_size=_BLOCK, column_names=layout.columns),
                parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True),
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


def open_table(path: Path, layout: Layout | None = None) -> TableFile:
    """Open a file and read its header. No row is read, except to count cells if there is no header."""
    layout = layout or Layout()
    suffix = path.suffix.lower()
    if suffix not in _SEPARATED and suffix not in _PARQUET:
        known = ", ".join([*_SEPARATED, *_PARQUET])
        raise InvalidArgument(f"{path}: must be a CSV or Parquet file; its name must end in one of {known}")
    if not path.exists():
        raise InvalidArgument(f"{path}: does not exist; check the path")
    if not path.is_file():
        raise InvalidArgument(f"{path}: is a folder; pass a CSV or Parquet file")
    with _without_cells(path):
        return _opened_parquet(path, layout) if suffix in _PARQUET else _opened_separated(path, layout)


def numbers(name: str, cells: Any, decimal: str = ".") -> npt.NDArray[np.float64]:
    """Cells of a column as numbers; NaN for missing ones. Other text is refused.

    >>> import pyarrow
    >>> numbers("age", pyarrow.array(["1", "2.5e3", "", "NA", None, "-inf"])).tolist()
    [1.0, 2500.0, nan, nan, nan, nan]
    >>> numbers("age", pyarrow.array(["2,5"]), decimal=",").tolist()
    [2.5]
    """
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_string(cells.type):
        numeric = compute.fill_null(compute.match_substring_regex(cells, _NUMBERS[decimal]), False)
        others = compute.drop_null(cells.filter(compute.invert(numeric)))
        known = pyarrow.array(_NO_NUMBERS, pyarrow.string())
        if not compute.all(compute.is_in(compute.utf8_lower(others), known), min_count=0).as_py():
            raise InvalidRecords(
                f"column {name!r}: the schema declares a range, but a cell is not a number. Numbers are written like "
                f"2{decimal}5 ({_OTHER_MARK[decimal]}); empty cells and NA are missing values; other text is refused: "
                "convert dates to numbers, and declare categories for words"
            )
        cells = compute.replace_substring(compute.if_else(numeric, cells, None), decimal, ".")
    return np.asarray(compute.cast(cells, pyarrow.float64()).to_numpy(zero_copy_only=False), np.float64)


def words(cells: Any, values: Sequence[str] = ()) -> npt.NDArray[np.object_]:
    """Cells as strings, in the spelling of ``values``; empty for missing cells."""
    import pyarrow
    import pyarrow.compute as compute

    cells = compute.cast(cells, pyarrow.string())  # for numbers in a Parquet file that the schema lists as words
    for spelling, value in _spellings(values).items():
        cells = compute.if_else(compute.fill_null(compute.equal(cells, spelling), False), value, cells)
    return np.asarray(compute.fill_null(cells, "").to_numpy(zero_copy_only=False), dtype=object)


def listed_words(cells: Any, values: Sequence[str], *, other: bool) -> npt.NDArray[np.object_] | None:
    """Cells as listed values, or None if a cell is not listed.

    With ``other``, unlisted cells become "other" if that is listed. Equal cells share one string.

    >>> import pyarrow
    >>> listed_words(pyarrow.array(["F", None]), ["F", "other"], other=True).tolist()
    ['F', 'other']
    >>> listed_words(pyarrow.array([True, False]), ["False", "True"], other=False).tolist()
    ['True', 'False']
    """
    import pyarrow
    import pyarrow.compute as compute

    spellings = _spellings(values)
    known = [*values, *spellings]
    codes = compute.index_in(compute.cast(cells, pyarrow.string()), pyarrow.array(known, pyarrow.string()))
    if codes.null_count:
        if not other or OTHER not in values:
            return None
        codes = compute.fill_null(codes, known.index(OTHER))
    return np.array([*values, *spellings.values()], dtype=object)[codes.to_numpy(zero_copy_only=False)]


def _spellings(values: Sequence[str]) -> dict[str, str]:
    """Alternative spellings of listed booleans: Parquet and TOML have true, Python writes True."""
    truths = [value for value in values if value.lower() in ("true", "false")]
    spellings = {style(value): value for value in truths for style in (str.lower, str.capitalize, str.upper)}
    return {spelling: value for spelling, value in spellings.items() if spelling not in values}


def _text(cells: Any) -> Any:
    """A column as text without surrounding blanks; unchanged if it holds numbers or booleans."""
    import pyarrow
    import pyarrow.compute as compute

    kind = cells.type
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind) or pyarrow.types.is_boolean(kind):
        return cells
    return compute.utf8_trim_whitespace(compute.cast(cells, pyarrow.string()))


def _opened_separated(path: Path, layout: Layout) -> TableFile:
    delimiter = _SEPARATED[path.suffix.lower()] if layout.delimiter is None else layout.delimiter
    with path.open("rb") as file:
        first = _first_line(file, delimiter)
    names = tuple(cell.strip() for cell in first)
    if not any(names):
        raise InvalidArgument(f"{path}: is empty, or its first line is; the first line must name the columns")
    if len(names) == 1 != len(layout.columns or ()):
        others = [other for other in (";", "\t", "|", ",") if other in names[0]]
        if others:
            raise InvalidArgument(
                f"{path}: its first line is one column when split at {delimiter!r}; pass --delimiter {others[0]!r}"
            )
    layout = replace(layout, delimiter=delimiter)
    if layout.columns is None:
        check_header(path, names)
        return TableFile(path, names, tuple(first), None, None, layout)
    if len(names) != len(layout.columns):
        raise InvalidArgument(
            f"--columns: names {len(layout.columns)} columns, and {path} has {len(names)} when split at {delimiter!r}; "
            "name all of them, in order"
        )
    return TableFile(path, layout.columns, layout.columns, None, None, layout)


def _first_line(file: BinaryIO, delimiter: str) -> list[str]:
    """The first row of a file; bytes after it are not decoded."""
    lines = (line.decode("utf-8-sig") for line in iter(lambda: file.readline(_LINE), b""))
    return next(csv.reader(lines, delimiter=delimiter, strict=True), [])


def _opened_parquet(path: Path, layout: Layout) -> TableFile:
    from pyarrow import parquet

    if layout.columns is not None:
        raise InvalidArgument(f"--columns: is for CSV files without a header; {path} names its columns, leave it out")
    # The footer has names, types and the number of rows. It may also have extremes of columns, which are not used.
    with parquet.ParquetFile(path) as file:
        fields, rows = file.schema_arrow, file.metadata.num_rows
    names = tuple(name.strip() for name in fields.names)
    if len(set(names)) < len(names) or not all(names):
        raise InvalidArgument(f"{path}: has columns without a name, or with duplicate names; rename them")
    return TableFile(path, names, tuple(fields.names), tuple(_kind(field.type) for field in fields), rows, layout)


def _kind(kind: Any) -> str:
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) else "other"


@contextlib.contextmanager
def _without_cells(path: Path) -> Iterator[None]:
    """Replace errors of readers, which may quote cells."""
    import pyarrow

    try:
        yield
    except PermissionError:
        raise InvalidArgument(f"{path}: cannot be read; check its permissions") from None
    except UnicodeDecodeError:
        raise InvalidRecords(f"{path}: is not UTF-8 text; convert it (iconv -f latin1 -t utf-8)") from None
    except (pyarrow.ArrowException, csv.Error):
        raise InvalidRecords(
            f"{path}: cannot be read: a row must have as many cells as there are columns, quotes must be closed, and "
            "the text must be UTF-8 (check --delimiter; a Parquet file must be complete)"
        ) from None
    except OSError:
        raise InvalidArgument(f"{path}: cannot be read; check the file and its disk") from None
