"""Tables in CSV and Parquet files: reads the header, and rows as text, one block at a time, in bounded memory.

A CSV file may be compressed (.csv.gz), and a folder of Parquet files is one table, in the order of their names.

Cells are private, and error messages of readers quote them. Every such error is replaced by one that names the file,
the rule and the remedy.
"""

import contextlib
import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from dpbilevel.cli.layout import NO_HEADER, Layout, check_header
from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.execution.progress import show_progress
from dpbilevel.foundation.parquet import SUFFIXES, batches, footers, parquet_files, rows_within, without_cells

Block = dict[str, Any]

_SEPARATED = {".csv": ",", ".tsv": "\t", ".txt": ","}
_BLOCK = 2**24  # bytes of a file per block
_LINE = 2**20  # maximum length of a header, in characters


@dataclass(frozen=True)
class TableFile:
    """A table in a file.

    Args:
        path: the path of the file, or of a folder of Parquet files.
        names: the names of its columns, without surrounding blanks.
        headings: the names as in the file.
        kinds: "number", "text", "date" or "other" for each column if the file declares types, as Parquet does, or None.
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

    def count_rows(self) -> int:
        """The number of rows, which is public; a CSV file is read for it."""
        if self.rows is not None:
            return self.rows
        first = self.names[0]
        return sum(len(block[first]) for block in self.blocks([first], "Counting rows of"))

    def blocks(self, columns: Sequence[str], doing: str = "Reading", within: slice | None = None) -> Iterator[Block]:
        """The given columns of all rows, in order, as Arrow arrays of text; or of those ``within`` a range."""
        # Callers that need rows refuse empty files: the number of rows is known only at the end.
        headings = [self.headings[self.names.index(name)] for name in columns]
        with _without_cells(self.path), show_progress(f"{doing} {self.path.name}", 100, "percent") as advance:
            read = 0
            rows = self._parquet(headings, within) if self.kinds is not None else self._separated(headings, within)
            for batch, part in rows:
                if batch.num_rows:
                    yield {name: _text(batch.column(at)) for name, at in zip(columns, headings, strict=True)}
                advance(int(100 * part) - read)
                read = int(100 * part)

    def _separated(self, headings: Sequence[str], within: slice | None) -> Iterator[tuple[Any, float]]:
        """Batches of rows, each with the fraction of the file read so far."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        layout = self.layout
        with _opened(self.path) as file:
            if layout.columns is None:
                _first_line(file, layout.delimiter or ",")
            if not file.read(1):  # an error for Arrow
                return
        # Every cell is read as text: no types are inferred from cells, and no conversion can fail.
        text = dict.fromkeys(self.headings, pyarrow.string())
        with pyarrow.OSFile(str(self.path)) as source:
            reader = arrow_csv.open_csv(
                pyarrow.CompressedInputStream(source, "gzip") if _is_compressed(self.path) else source,
                read_options=arrow_csv.ReadOptions(block_size=_BLOCK, column_names=layout.columns),
                parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(column_types=text, include_columns=list(headings)),
            )
            for batch in reader if within is None else rows_within(reader, within.start, within.stop):
                yield batch, source.tell() / source.size()

    def _parquet(self, headings: Sequence[str], within: slice | None) -> Iterator[tuple[Any, float]]:
        read, rows = 0, self.rows if within is None else within.stop - within.start
        for batch in batches(self.path, headings, within):
            read += batch.num_rows
            yield batch, read / (rows or read)


def open_table(path: Path, layout: Layout | None = None) -> TableFile:
    """Open a file and read its header. No row is read, except to count cells if there is no header."""
    layout = layout or Layout()
    if path.is_dir():
        if not parquet_files(path):
            raise InvalidArgument(
                f"{path}: is a folder without Parquet files; pass a CSV or Parquet file, or their folder"
            )
    elif _suffix(path) not in (*_SEPARATED, *SUFFIXES):
        known = ", ".join([*_SEPARATED, *SUFFIXES])
        raise InvalidArgument(
            f"{path}: must be a CSV or Parquet file; its name must end in one of {known}, or in .csv.gz if compressed"
        )
    elif not path.exists():
        raise InvalidArgument(f"{path}: does not exist; check the path")
    is_parquet = path.is_dir() or _suffix(path) in SUFFIXES
    with _without_cells(path):
        return _opened_parquet(path, layout) if is_parquet else _opened_separated(path, layout)


def _is_compressed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _suffix(path: Path) -> str:
    """The extension that tells the format; of a compressed CSV, the one before .gz."""
    inner = path.with_suffix("").suffix.lower()
    return inner if _is_compressed(path) and inner in _SEPARATED else path.suffix.lower()


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if _is_compressed(path) else path.open("rb")


def _text(cells: Any) -> Any:
    """A column as text without surrounding blanks; unchanged if it holds numbers or booleans."""
    import pyarrow
    import pyarrow.compute as compute

    kind = cells.type
    if pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind) or pyarrow.types.is_boolean(kind):
        return cells
    return compute.utf8_trim_whitespace(compute.cast(cells, pyarrow.string()))


def _opened_separated(path: Path, layout: Layout) -> TableFile:
    delimiter = _SEPARATED[_suffix(path)] if layout.delimiter is None else layout.delimiter
    with _opened(path) as file:
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
    if layout.columns is not None:
        raise InvalidArgument(f"--columns: is for CSV files without a header; {path} names its columns, leave it out")
    schemas, rows = footers(path)
    fields = schemas[0]
    columns = [[(field.name, _kind(field.type)) for field in schema] for schema in schemas]
    if any(other != columns[0] for other in columns):
        raise InvalidArgument(
            f"{path}: its files have different columns; all must have the same names and types, in order"
        )
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
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    return "text" if types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) else "other"


@contextlib.contextmanager
def _without_cells(path: Path) -> Iterator[None]:
    """Replace errors of readers, which may quote cells."""
    remedy = (
        "a row must have as many cells as there are columns, quotes must be closed, and the text must be UTF-8 (check "
        "--delimiter; a Parquet or compressed file must be complete)"
    )
    with without_cells(path, remedy):
        try:
            yield
        except UnicodeDecodeError:
            raise InvalidRecords(f"{path}: is not UTF-8 text; convert it (iconv -f latin1 -t utf-8)") from None
        except (csv.Error, EOFError, zlib.error, gzip.BadGzipFile):
            raise InvalidRecords(f"{path}: cannot be read: {remedy}") from None
