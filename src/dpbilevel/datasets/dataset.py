"""The return value of a loader: rows, targets and their public declarations."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = dict[str, Array] | Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A public data set, with its declarations.

    Args:
        name: the name of the data set.
        X: a dictionary from column to array, or a matrix if all columns are alike (pixels).
        target: the values to predict; elements of ``classes``, or numbers.
        test_X, test_target: the source's own test rows; None if it has none.
        ranges: {column: (low, high)}, as in `BoundedEncoder`. Facts about the form or the instrument, or chosen clamps;
            never measured on the rows. Columns of a matrix are referred to by position.
        categories: {column: [value, ...]}, the published code book.
        maps: feature maps that suit the columns, as further arguments of `BoundedEncoder`: scales, knots and crosses.
        classes: the possible values of a target; None for numbers.
        target_range: (low, high) of numeric targets, chosen like ranges; None for classes.
        citation, licence: citation and licence of the data.

    >>> data = Dataset(
    ...     name="coins",
    ...     X={"weight": np.array([2.5, 5.0])},
    ...     target=np.array(["cent", "nickel"]),
    ...     ranges={"weight": (0.0, 30.0)},
    ...     classes=("cent", "nickel"),
    ...     citation="none",
    ...     licence="CC0",
    ... )
    >>> data
    Dataset('coins', 2 rows, 1 column, 2 classes)
    """

    name: str
    X: Columns
    target: Array
    test_X: Columns | None = None
    test_target: Array | None = None
    ranges: dict[Any, tuple[float, float]]
    categories: dict[Any, list[Any]] | None = None
    maps: dict[str, Any] = field(default_factory=dict)
    classes: tuple[Any, ...] | None = None
    target_range: tuple[float, float] | None = None
    citation: str
    licence: str

    def frame(self) -> Any:
        """X as a pandas DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.X)

    def __repr__(self) -> str:
        width = len(self.X) if isinstance(self.X, dict) else self.X.shape[1]
        parts = [repr(self.name), f"{len(self.target)} rows", f"{width} column{'s' * (width != 1)}"]
        parts.append("numeric target" if self.classes is None else f"{len(self.classes)} classes")
        if self.test_target is not None:
            parts.append(f"{len(self.test_target)} test rows")
        return f"Dataset({', '.join(parts)})"


def decode(codes: Array, values: list[Any]) -> Array:
    """Category codes as values, in an object array: a string dtype would be as wide as the longest name."""
    return np.array(values, dtype=object)[codes]


def code_book(text: str) -> list[str]:
    """Split a string of codes at blanks.

    >>> code_book("EWR JFK LGA")
    ['EWR', 'JFK', 'LGA']
    """
    return text.split()
