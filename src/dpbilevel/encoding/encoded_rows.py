"""Encoded rows: an array with the declared norm of its rows, and with caveats about undeclared columns.

The two propagate by opposite rules. The norm is a property of these particular rows: operations drop it unless they are
known to preserve it. Caveats apply to everything computed from the rows: every array that NumPy returns keeps them, and
an array computed from several encoded ones has the caveats of all. So does the mark that columns follow from the number
of rows, which must be refused with units.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument, InvalidRecords
from dpbilevel.foundation.arguments import positive

Array = npt.NDArray[Any]

# Concatenating rows side by side gives rows with a new norm; hstack and column_stack call np.concatenate.
_SIDE_BY_SIDE = frozenset({np.concatenate, np.hstack, np.column_stack})
_KEEP_THE_NORM = _SIDE_BY_SIDE | {np.take}
_CHANGE_THE_FIRST = frozenset({np.copyto, np.put, np.putmask, np.place, np.put_along_axis, np.fill_diagonal})


class Inherited(NamedTuple):
    """What everything that is computed from encoded rows inherits."""

    caveats: tuple[str, ...] = ()
    counts_rows: bool = False

    @classmethod
    def of(cls, values: Any) -> "Inherited":
        """From all encoded rows in nested sequences and dictionaries, each caveat once."""
        found = list(_encoded(values))
        caveats = dict.fromkeys(caveat for rows in found for caveat in rows.caveats)
        return cls(tuple(caveats), any(rows.counts_rows for rows in found))


class Held(NamedTuple):
    """Which rows of a table an array has, where other processes of a job have the others.

    Args:
        places: their places in the table, in order.
        number: the number of rows of the table.
    """

    places: npt.NDArray[np.intp]
    number: int

    def chosen(self, places: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.bool_], "Held"]:
        """Of a table of some rows of this one, in order: which rows here are in it, and their places there."""
        place = np.full(self.number, -1)
        place[places] = np.arange(len(places))
        own = place[self.places]
        return own >= 0, Held(own[own >= 0], len(places))


class EncodedRows(np.ndarray[Any, np.dtype[Any]]):
    """An array of rows with a declared norm and caveats.

    Both are preserved by slicing, copying, pickling and stacking side by side, where the norm is the root of the sum of
    squares. All other NumPy operations keep the caveats and drop the norm. ``np.asarray`` returns the plain array, and
    so does everything that calls it: fitted steps of scikit-learn, data frames, sparse matrices. Privacy does not
    depend on the norm: its users clip rows to it, so a wrong norm only costs accuracy.

    Args:
        rows: the array.
        data_norm: the declared bound on the norm of every row; None if nothing was declared.
        caveats: what a guarantee based on these rows does not cover.

    >>> rows = EncodedRows(np.eye(3), data_norm=1.0, caveats=["the range of 'age' was taken from the data"])
    >>> rows[:2].data_norm, rows[:2].caveats
    (1.0, ("the range of 'age' was taken from the data",))
    >>> (2 * rows).data_norm is None, (2 * rows).caveats == rows.caveats
    (True, True)
    >>> round(np.hstack([rows, rows]).data_norm, 4)
    1.4142
    """

    __array_priority__ = 1.0  # products of a plain array with encoded rows are encoded rows

    data_norm: float | None
    caveats: tuple[str, ...]
    terms: tuple[Any, ...] = ()  # of `dpbilevel.encoding.terms`; dropped where columns may have changed
    counts_rows: bool = False  # whether the columns follow from the number of rows, which is private for units
    held: Held | None = None  # if these are not all rows of a table; dropped by every operation

    def __new__(
        cls, rows: npt.ArrayLike, *, data_norm: float | None = None, caveats: Sequence[str] = ()
    ) -> "EncodedRows":
        sentences: tuple[Any, ...] = tuple(caveats) if isinstance(caveats, list | tuple) else (None,)
        if not all(isinstance(caveat, str) for caveat in sentences):
            raise InvalidArgument("caveats: must be a list of sentences")
        if data_norm is not None:
            positive("data_norm", data_norm, "it bounds the norm of every row")
        encoded: EncodedRows | None = None
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            encoded = np.asarray(rows).view(cls)
        if encoded is None:  # raised here, so that an error that may quote a cell is not its context
            raise InvalidRecords("rows: must be an array")
        encoded.data_norm = data_norm
        encoded.caveats = sentences
        return encoded

    def __array_finalize__(self, source: Any) -> None:
        # NumPy calls this for every new array and view; a transposed array, for example, has different rows.
        self.data_norm = None
        self.terms = ()
        self.held = None
        self.caveats = getattr(source, "caveats", ())
        self.counts_rows = getattr(source, "counts_rows", False)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else _with(array, Inherited.of(self))

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, out: Any = (), **options: Any) -> Any:
        inherited = Inherited.of((inputs, out, options))
        changed = (*out, *inputs[:1]) if method == "at" else out
        plain = {"out": tuple(map(_plain, out))} if out else {}
        plain |= {name: _plain(value) for name, value in options.items()}
        result = super().__array_ufunc__(ufunc, method, *map(_plain, inputs), **plain)
        return _propagate(result, inherited, changed)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(function, types, args, kwargs)
        given = (*args, *kwargs.values())
        norm = getattr(result, "data_norm", None) if function in _KEEP_THE_NORM else None
        if function is np.concatenate:
            norm = _side_by_side(*args, **kwargs)
        out = kwargs.get("out")
        changed = (*(out if isinstance(out, tuple) else (out,)), *(given[:1] if function in _CHANGE_THE_FIRST else ()))
        result = _propagate(result, Inherited.of(given), changed, given)
        if norm is not None:
            result.data_norm = norm
        return result

    def __getitem__(self, key: Any) -> Any:
        chosen = super().__getitem__(key)
        if isinstance(chosen, EncodedRows):
            is_matrix = self.ndim == 2 >= chosen.ndim
            chosen.terms = self.terms if is_matrix and not isinstance(key, tuple) and chosen.ndim == 2 else ()
            chosen.data_norm = self.data_norm if is_matrix and _gives_parts_of_rows(key) else None
        return chosen

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._change(Inherited.of(value))

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        """`numpy.ndarray.take`; whole rows keep the norm."""
        taken = _propagate(super().take(indices, axis, out, mode), Inherited.of((self, out)), (out,))
        if out is None and self.ndim == taken.ndim == 2 and axis in (0, -2):
            taken.data_norm, taken.terms = self.data_norm, self.terms
        return taken

    def copy(self, order: Any = "C") -> "EncodedRows":
        """`numpy.ndarray.copy`; the copy keeps the norm."""
        return self._same(super().copy(order))

    def __copy__(self) -> "EncodedRows":
        return self._same(super().__copy__())

    def __deepcopy__(self, memo: Any) -> "EncodedRows":
        return self._same(super().__deepcopy__(memo))

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """`numpy.ndarray.astype`; floating-point dtypes keep the norm."""
        converted = super().astype(dtype, *args, **kwargs)
        return (
            self._same(converted) if isinstance(converted, EncodedRows) and converted.dtype.kind == "f" else converted
        )

    def dot(self, other: Any, out: Any = None) -> Any:
        """`numpy.ndarray.dot`, with the caveats of both operands."""
        return np.dot(self, other, out=out)

    def nonzero(self) -> tuple[Array, ...]:
        """`numpy.ndarray.nonzero`, with the caveats."""
        return tuple(_with(indices, Inherited.of(self)) for indices in super().nonzero())

    def searchsorted(self, *args: Any, **kwargs: Any) -> Any:
        """`numpy.ndarray.searchsorted`, with the caveats."""
        return _propagate(super().searchsorted(*args, **kwargs), Inherited.of((self, args, kwargs)))

    def sort(self, *args: Any, **kwargs: Any) -> None:
        """`numpy.ndarray.sort`, in place; it mixes rows, so the norm is dropped."""
        super().sort(*args, **kwargs)
        self._change()

    def partition(self, *args: Any, **kwargs: Any) -> None:
        """`numpy.ndarray.partition`, in place; it mixes rows, so the norm is dropped."""
        super().partition(*args, **kwargs)
        self._change()

    def fill(self, value: Any) -> None:
        """`numpy.ndarray.fill`, in place; the norm is dropped."""
        super().fill(value)
        self._change(Inherited.of(value))

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        """`numpy.ndarray.put`, in place; the norm is dropped."""
        super().put(indices, values, mode)
        self._change(Inherited.of(values))

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        rebuild, arguments, state = reduced
        return rebuild, arguments, (state, self.data_norm, self.caveats, self.counts_rows, self.terms)

    def __setstate__(self, state: Any) -> None:
        array, self.data_norm, self.caveats, self.counts_rows, self.terms = state
        super().__setstate__(array)

    def _same(self, rows: Any) -> Any:
        rows.data_norm, rows.terms = self.data_norm, self.terms
        return rows

    def _change(self, more: Inherited = Inherited()) -> None:
        """Drop the norm and inherit more, after cells were written."""
        self.data_norm, self.terms = None, ()
        self.caveats = tuple(dict.fromkeys((*self.caveats, *more.caveats)))
        self.counts_rows |= more.counts_rows


def caveats_of(values: Any) -> tuple[str, ...]:
    """The caveats of all encoded rows, which may be streamed, in nested sequences and dictionaries, without duplicates.

    >>> caveats_of([EncodedRows([1.0], caveats=["one"]), {"more": EncodedRows([1.0], caveats=["two", "one"])}])
    ('one', 'two')
    """
    return Inherited.of(values).caveats


def _encoded(values: Any) -> Iterator[Any]:
    if isinstance(values, EncodedRows) or hasattr(values, "as_table"):  # rows that are made when they are read
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _encoded(value)
    elif isinstance(values, dict):
        yield from _encoded(list(values.values()))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, EncodedRows) else value


def _with(array: Array, inherited: Inherited) -> EncodedRows:
    """A view of the array as encoded rows without a norm."""
    encoded = array.view(EncodedRows)
    encoded.data_norm, encoded.terms = None, ()
    encoded.caveats, encoded.counts_rows = inherited
    return encoded


def _propagate(result: Any, inherited: Inherited, changed: Sequence[Any] = (), given: Sequence[Any] = ()) -> Any:
    """Attach what is inherited to every array in a result of NumPy, and to the arrays that were written into."""
    for array in changed:
        if isinstance(array, EncodedRows):
            array._change(inherited)
            if isinstance(result, np.ndarray) and np.may_share_memory(result, array) and result.shape == array.shape:
                return array  # in-place arithmetic returns its target
    if any(result is array for array in given):
        return result  # np.atleast_2d of a matrix, for example, is the matrix itself
    if isinstance(result, np.ndarray) and not isinstance(result, np.ma.MaskedArray):  # a view would lose the mask
        return _with(result, inherited)
    if isinstance(result, tuple) and hasattr(result, "_make"):
        return result._make(_propagate(part, inherited) for part in result)
    if type(result) in (list, tuple):
        return type(result)(_propagate(part, inherited, given=given) for part in result)
    return result


def _side_by_side(arrays: Any, axis: Any = 0, *args: Any, **kwargs: Any) -> float | None:
    """The norm of rows concatenated to longer rows; None if one of the arrays has no norm."""
    norms = [part.data_norm if isinstance(part, EncodedRows) and part.ndim == 2 else None for part in arrays]
    known = [norm for norm in norms if norm is not None]
    return math.hypot(*known) if axis in (1, -1) and len(known) == len(norms) else None


def _gives_parts_of_rows(key: Any) -> bool:
    """Whether an index into a matrix selects entire rows or parts of them, without repeating a column."""
    row, *columns = (key or (...,)) if isinstance(key, tuple) else (key,)
    columns = [part for part in columns if part is not Ellipsis] or [slice(None)]
    if len(columns) > 1 or row is None:
        return False
    if isinstance(columns[0], slice):
        return isinstance(row, slice) or row is Ellipsis or np.ndim(row) <= 1
    return isinstance(row, slice) and _has_no_repeats(np.asarray(columns[0]))


def _has_no_repeats(positions: Array) -> bool:
    if positions.ndim != 1 or positions.dtype == bool:
        return positions.ndim == 1
    return len(set(positions.tolist())) == positions.size and bool((positions >= 0).all())
