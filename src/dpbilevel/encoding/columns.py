"""Chunked access to tables of any kind: data frames, dictionaries, arrays, nested lists and sparse matrices.

The shape of a table and the names and types of its columns are public. Cells are private: no message here contains one,
and errors of other libraries, which may quote cells, are replaced.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dpbilevel.errors import InvalidRecords

Array = npt.NDArray[Any]
Chunk = list[Array] | Array
# "categories" are the categorical types of pandas and polars; the kind of "objects" is known from their cells only.
Kind = Literal["numbers", "booleans", "strings", "categories", "dates", "objects"]

_KINDS: dict[str, Kind] = {"i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans", "O": "objects"}
_KINDS |= {"U": "strings", "S": "strings", "T": "strings"}
_REFUSED = {"M": "dates", "m": "time differences", "V": "nested values"}
# Text that represents a missing number, in lower case.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "+nan", "-nan", "null", "none"})
_CELLS = 2**20  # cells per chunk: eight megabytes as float64


@dataclass(frozen=True, eq=False)
class Table:
    """A table that can be read in chunks of rows.

    Args:
        names: the column names; None if the columns have none.
        shape: numbers of rows and columns.
        kinds: the kind of each column, from its type.
        read: returns the columns of a slice of rows: a list of arrays, or one array with one row per column.
        held: which rows are here, in order, if others are not: ``read`` then returns slices of these.
    """

    names: tuple[Any, ...] | None
    shape: tuple[int, int]
    kinds: tuple[Kind, ...]
    read: Callable[[slice], Chunk]
    held: npt.NDArray[np.intp] | None = None

    @property
    def labels(self) -> tuple[Any, ...]:
        """How declarations refer to the columns: by name, or by position if they have no names."""
        return tuple(range(self.shape[1])) if self.names is None else self.names

    def chunks(self, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[tuple[Any, Chunk]]:
        """Iterate over all rows in order, in chunks, each with the places of its rows.

        Chunks without a row that is ``wanted`` are not read. Rows that are not here are left out.
        """
        rows, total, start = max(2, _CELLS // max(1, self.shape[1])), self.shape[0], 0
        total = total if self.held is None else len(self.held)
        while start < total:
            # No chunk has one row, unless the table has: NumPy adds up a single row in another order, so that its last
            # bits would tell the number of rows, which is private with units.
            stop = total if total - start <= rows + 1 else start + rows
            places: Any = slice(start, stop) if self.held is None else self.held[start:stop]
            if wanted is None or wanted[places].any():
                yield places, self.read(slice(start, stop))
            start = stop


def read_table(X: Any, dates: Collection[Any] = ()) -> Table:
    """Read a data frame (pandas, polars), an Arrow table, a dictionary of columns, a matrix (also sparse) or lists.

    Types of dates are refused except for the columns in ``dates``.

    >>> table = read_table({"age": np.array([31, 57]), "sex": np.array(["F", "M"]), "town": ["Oslo", None]})
    >>> table.names, table.shape, table.kinds
    (('age', 'sex', 'town'), (2, 3), ('numbers', 'strings', 'objects'))
    """
    if hasattr(X, "as_table"):  # rows that are made when they are read
        table: Table = X.as_table()
        return table
    if is_dictionary(X):
        return _of_columns(tuple(X), [_column(name, column) for name, column in X.items()], dates)
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # pandas
        return _of_columns(tuple(X.columns), [X.iloc[:, at] for at in range(X.shape[1])], dates)
    if hasattr(X, "get_columns") and hasattr(X, "height"):  # polars
        return _of_columns(tuple(X.columns), X.get_columns(), dates)
    if hasattr(X, "column_names") and hasattr(X, "itercolumns"):  # pyarrow
        return _of_columns(tuple(X.column_names), list(X.itercolumns()), dates)
    if scipy.sparse.issparse(X):
        if X.ndim == 2:
            X = X.tocsr()
        return _of_matrix(X, lambda rows: X[rows].toarray())
    matrix = _array("X", X)
    table = _of_matrix(matrix, lambda rows: matrix[rows])
    held = getattr(X, "held", None)
    return table if held is None else replace(table, shape=(held.number, matrix.shape[1]), held=held.places)


def is_dictionary(X: Any) -> bool:
    """Whether a table is a dictionary of columns. Some sparse matrices are dictionaries too, but of positions."""
    return isinstance(X, Mapping) and not scipy.sparse.issparse(X)


def numbers_of(columns: Chunk, chosen: list[int], labels: tuple[Any, ...]) -> npt.NDArray[np.float64]:
    """Chosen columns of a chunk as one float64 matrix; missing cells are NaN.

    Raises for text and other cells that are not numbers: they are treated as errors, not as missing numbers.

    >>> numbers_of([np.array(["1.5", None, "none", True], dtype=object)], [0], ("age",)).tolist()
    [[1.5], [nan], [nan], [1.0]]
    """
    if isinstance(columns, np.ndarray) and columns.dtype.kind in "biuf":
        return columns.T[:, as_slice(chosen)].astype(np.float64)
    return np.stack([_as_numbers(columns[at], labels[at]) for at in chosen], axis=1)


def as_slice(positions: list[int] | npt.NDArray[np.intp]) -> Any:
    """Increasing positions as a slice if they have no gaps: NumPy reads and writes slices many times faster."""
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == len(positions) else positions


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or pandas' NA or NaT."""
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _as_numbers(values: Array, label: Any) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            cells = [_number(value) for value in values.tolist()]
    if None in cells:
        raise InvalidRecords(
            f"column {label!r}: must hold numbers; it contains text or other cells, which are never treated as missing "
            "numbers (convert text like '1,5' and dates to numbers, or declare categories)"
        )
    return np.array(cells, np.float64)


def _number(value: Any) -> float | None:
    """A cell as a number: NaN if it is missing, None if it is anything else."""
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf
    except (TypeError, ValueError):
        missing = is_missing(value) or (isinstance(value, str) and value.strip().lower() in MISSING)
        return math.nan if missing else None


def _of_columns(names: tuple[Any, ...], columns: list[Any], dates: Collection[Any]) -> Table:
    if len(set(names)) < len(names):
        raise InvalidRecords("X: column names must be unique; declarations refer to names (rename duplicate columns)")
    if len({len(column) for column in columns}) > 1:
        raise InvalidRecords("X: columns have different lengths; every column needs the same number of rows")
    kinds = tuple(_kind(f"column {name!r}", column, name in dates) for name, column in zip(names, columns, strict=True))
    height = len(columns[0]) if columns else 0
    return Table(names, (height, len(columns)), kinds, lambda rows: [_values(column, rows) for column in columns])


def _of_matrix(matrix: Any, rows_of: Callable[[slice], Array]) -> Table:
    if matrix.ndim != 2:
        raise InvalidRecords(
            f"X: must have two dimensions, rows and columns; has {matrix.ndim}. Reshape your data to one row per record"
        )
    kinds = (_of_type("X", matrix.dtype.kind),) * matrix.shape[1]
    return Table(None, matrix.shape, kinds, lambda rows: rows_of(rows).T)


def _column(name: Any, column: Any) -> Any:
    """A value of a dictionary: a pandas or polars series or an Arrow array unchanged, anything else as an array."""
    if _is_pandas(column) or _is_polars(column) or _is_arrow(column):
        return column
    if isinstance(column, list | tuple):  # a list has no type, and NumPy would infer one from cells
        return np.fromiter(column, dtype=object, count=len(column))
    array = _array(f"column {name!r}", column)
    if array.ndim != 1:
        raise InvalidRecords(f"column {name!r}: must have one dimension; a column is a list of cells")
    return array


def _array(where: str, values: Any) -> Array:
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidRecords(f"{where}: is a masked array; fill the masked cells, or drop their rows")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
            array = np.array(values, dtype=object)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRecords(f"{where}: cannot be read as an array; every row needs the same number of cells") from None
    return array


def _is_pandas(column: Any) -> bool:
    return hasattr(column, "iloc")


def _is_polars(column: Any) -> bool:
    return hasattr(column, "to_physical")


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "to_pylist")


def _of_type(where: str, kind: str, dates: bool = False) -> Kind:
    if kind == "c":
        raise InvalidRecords(f"{where}: Complex data not supported; must be real numbers, strings or booleans")
    if kind == "M" and dates:
        return "dates"
    if kind not in _KINDS:
        raise InvalidRecords(
            f"{where}: holds {_REFUSED.get(kind, 'values of an unknown type')}; must be numbers, strings or booleans "
            "(declare dates= in dpb.BoundedEncoder, or convert dates to numbers, and nested values to columns)"
        )
    return _KINDS[kind]


def _kind(where: str, column: Any, dates: bool) -> Kind:
    zoned = getattr(getattr(column, "type", None), "tz", None) or _zone(getattr(column, "dtype", None))
    if dates and zoned is not None:
        raise InvalidRecords(f"{where}: has dates with a time zone; convert them to local time without a zone")
    if _is_pandas(column):
        dtype = column.dtype
        if isinstance(dtype, np.dtype) or dtype.kind != "O":
            return _of_type(where, dtype.kind, dates)
        return "strings" if str(dtype).startswith(("str", "large_string")) else "categories"
    if _is_polars(column):
        dtype = column.dtype
        if dtype.is_temporal() or dtype.is_nested():
            is_date = str(dtype).startswith("Date")  # Date and Datetime
            return _of_type(where, "M" if is_date else "m" if dtype.is_temporal() else "V", dates)
        known: dict[str, Kind] = {"Boolean": "booleans", "String": "strings", "Null": "objects"}
        return "numbers" if dtype.is_numeric() else known.get(str(dtype), "categories")
    if _is_arrow(column) and str(column.type).startswith("dictionary"):
        return "categories"
    return _of_type(where, np.asarray(column[:0]).dtype.kind, dates)


def _zone(dtype: Any) -> Any:
    """The time zone of a type of pandas or polars."""
    return getattr(dtype, "tz", None) or getattr(dtype, "time_zone", None)


def _values(column: Any, rows: slice) -> Array:
    if _is_pandas(column):
        chosen = column.iloc[rows]
        if isinstance(chosen.dtype, np.dtype):
            return chosen.to_numpy()
        if chosen.dtype.kind in "iuf":
            return chosen.to_numpy(dtype=np.float64, na_value=np.nan)
        return chosen.to_numpy(dtype=object)
    if _is_polars(column):
        if column.dtype.is_numeric():
            return column[rows].cast(float).to_numpy()
        if column.dtype.is_temporal():
            return column[rows].to_numpy()
        return np.fromiter(column[rows].to_list(), dtype=object, count=rows.stop - rows.start)
    return np.asarray(column[rows])
