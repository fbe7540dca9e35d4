"""Encoded rows: an array that knows the norm its rows were declared to have, and what was not declared about them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.arguments import positive
from dpbilevel.errors import InvalidArgument, InvalidRecords


class EncodedRows(np.ndarray[Any, np.dtype[Any]]):
    """An array of rows with a declared norm and caveats; both stay through slicing, copying and pickling.

    Arithmetic and concatenation keep the caveats and forget the norm. ``np.asarray`` gives the plain array. Nothing
    private rests on the norm: who uses it clips rows to it, so a wrong one costs accuracy alone.

    Args:
        rows: the array.
        data_norm: the declared bound on the norm of every row, None where nothing was declared.
        caveats: what a guarantee that rests on these rows does not cover.

    >>> rows = EncodedRows(np.eye(3), data_norm=1.0, caveats=["the range of 'age' was taken from the data"])
    >>> rows[:2].data_norm, rows[:2].caveats
    (1.0, ("the range of 'age' was taken from the data",))
    >>> (2 * rows).data_norm is None, (2 * rows).caveats == rows.caveats
    (True, True)
    """

    data_norm: float | None
    caveats: tuple[str, ...]

    def __new__(
        cls, rows: npt.ArrayLike, *, data_norm: float | None = None, caveats: Sequence[str] = ()
    ) -> "EncodedRows":
        told: tuple[Any, ...] = tuple(caveats) if isinstance(caveats, list | tuple) else (None,)
        if not all(isinstance(caveat, str) for caveat in told):
            raise InvalidArgument("caveats: must be a list of sentences")
        if data_norm is not None:
            positive("data_norm", data_norm, "it bounds the norm of every row")
        encoded: EncodedRows | None = None
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            encoded = np.asarray(rows).view(cls)
        if encoded is None:  # told here, where no error that may quote a cell is its context
            raise InvalidRecords("rows: must be an array")
        encoded.data_norm = data_norm
        encoded.caveats = told
        return encoded

    def __array_finalize__(self, source: Any) -> None:
        self.data_norm = getattr(source, "data_norm", None)
        self.caveats = getattr(source, "caveats", ())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        # Results of arithmetic come through here, slices do not: twice a row of norm one has another norm.
        return array[()] if return_scalar else EncodedRows(array, caveats=self.caveats)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(function, types, args, kwargs)
        # NumPy joins subclasses into a plain array. Its vstack, hstack and stack all come through concatenate.
        return EncodedRows(result, caveats=_caveats_of(args)) if function is np.concatenate else result

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        rebuild, arguments, state = reduced
        return rebuild, arguments, (state, self.data_norm, self.caveats)

    def __setstate__(self, state: Any) -> None:
        array, self.data_norm, self.caveats = state
        super().__setstate__(array)


def _caveats_of(values: Any) -> tuple[str, ...]:
    """The caveats of all encoded rows in nested sequences, each once."""
    if isinstance(values, list | tuple):
        return tuple(dict.fromkeys(caveat for value in values for caveat in _caveats_of(value)))
    return values.caveats if isinstance(values, EncodedRows) else ()
