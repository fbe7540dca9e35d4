"""A scikit-learn transformer that encodes tables as rows of bounded norm, from declared ranges and categories.

Ranges learnt from the data, as by `StandardScaler` or `OneHotEncoder`, are releases that are not charged.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from dpbilevel.encoding.columns import Chunk, Table, as_slice, is_dictionary, numbers_of, read_table
from dpbilevel.encoding.declarations import OTHER, completed, declared, refuse_missing
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.errors import InvalidArgument, InvalidRecords, PrivacyLeakWarning
from dpbilevel.foundation.arguments import one_of, positive


class BoundedEncoder(TransformerMixin, BaseEstimator):
    """Encode numbers and categories as rows of norm at most ``row_norm``, from declared ranges and categories.

    Numbers are clamped to their range and mapped to [-1, 1]. Categories are one-hot encoded. All rows are divided by
    the largest norm that a row can have, the square root of the number of input columns (with the intercept), and
    multiplied by ``row_norm``. Nothing is learnt from records, so fitting costs no budget.

    The range or categories of an undeclared column are discovered from the data, with a `PrivacyLeakWarning` and a
    caveat that the encoder and its output carry (frames from ``set_output`` cannot: then only the encoder has it).
    Categorical types of pandas, polars and Arrow do not count as declarations, because they were derived from data. The
    number of rows and the names and types of columns are public.

    Args:
        ranges: {column: (low, high)} for numeric columns; columns of arrays are referred to by position.
        categories: {column: [value, ...]}. A missing or unlisted value is encoded as zeros, or as the category "other"
            if that is listed.
        row_norm: the largest norm of an encoded row.
        intercept: whether to append a constant column.
        invalid: "refuse" (default) raises `InvalidRecords` for missing or infinite numbers, which lies outside of any
            guarantee; "zero" encodes them as the middle of their range. Text in a numeric column is always refused.

    Attributes:
        ranges_, categories_: the range or categories used for each column, including discovered ones.
        caveats_: one sentence per undeclared column (more than ten share one); empty if everything was declared.
        group_of_column_: the position of the input column of every output column; the intercept's group is the last.
        row_norm_, n_features_in_, feature_names_in_: as usual in scikit-learn.

    >>> table = {"age": [17, 90, 60], "sex": ["F", "M", "unknown"]}
    >>> encoder = BoundedEncoder(ranges={"age": (0, 120)}, categories={"sex": ["F", "M"]}, row_norm=math.sqrt(2))
    >>> rows = encoder.fit_transform(table)
    >>> rows.round(2).tolist()
    [[-0.72, 1.0, 0.0], [0.5, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> rows.data_norm, rows.caveats, encoder.get_feature_names_out().tolist()
    (1.41, (), ['age', 'sex_F', 'sex_M'])
    """

    def __init__(
        self,
        *,
        ranges: Mapping[Any, tuple[float, float]] | None = None,
        categories: Mapping[Any, Any] | None = None,
        row_norm: float = 1.0,
        intercept: bool = False,
        invalid: str = "refuse",
    ) -> None:
        self.ranges = ranges
        self.categories = categories
        self.row_norm = row_norm
        self.intercept = intercept
        self.invalid = invalid

    def fit(self, X: Any, y: Any = None) -> "BoundedEncoder":
        """Check the declarations against the columns of X, and discover ranges and categories of undeclared columns.

        Args:
            X: a pandas or polars frame, an Arrow table, a dictionary of columns, a (sparse) matrix or nested lists.
            y: ignored.
        """
        norm = positive("row_norm", self.row_norm, "it bounds the norm of every encoded row (try 1.0)")
        one_of("invalid", self.invalid, ("refuse", "zero"), "it determines how missing numbers are treated")
        if not isinstance(self.intercept, bool | np.bool_):
            raise InvalidArgument(f"intercept={self.intercept!r}: must be True or False")
        table = read_table(X)
        for size, noun in zip(table.shape, ("sample", "feature"), strict=True):
            if size == 0:  # scikit-learn's message, which its estimator checks expect
                raise InvalidRecords(f"X: 0 {noun}(s) (shape={table.shape}) while a minimum of 1 is required.")
        scale = _rounded_down(norm, table.shape[1] + bool(self.intercept))
        given = declared(table, self.ranges, self.categories)
        known = completed(table, given, refuse=self.invalid == "refuse")
        for caveat in known.caveats:
            warnings.warn(caveat, PrivacyLeakWarning, stacklevel=2)
        self._store_columns(X, table)
        self._intercept, self._scale = bool(self.intercept), scale
        self.row_norm_ = norm
        self.caveats_ = known.caveats
        self.ranges_ = {label: known.ranges[label] for label in table.labels if label in known.ranges}
        self.categories_ = {label: list(known.categories[label]) for label in table.labels if label in known.categories}
        widths = [len(self.categories_.get(label, [None])) for label in table.labels] + [1] * self._intercept
        self.group_of_column_ = np.repeat(np.arange(len(widths)), widths)
        return self

    def transform(self, X: Any) -> EncodedRows:
        """The encoded rows in float32, with the declared norm and the caveats."""
        check_is_fitted(self, "group_of_column_")
        table = self._read_same_columns(X)
        encoded = np.zeros((table.shape[0], len(self.group_of_column_)), np.float32)
        labels = self._labels
        starts = np.searchsorted(self.group_of_column_, np.arange(len(labels)))
        numeric = [at for at, label in enumerate(labels) if label in self.ranges_]
        codes = {
            at: {value: code for code, value in enumerate(self.categories_[label])}
            for at, label in enumerate(labels)
            if label in self.categories_
        }
        for rows, columns in table.chunks():
            chunk = encoded[rows]
            if numeric:
                chunk[:, as_slice(starts[numeric])] = self._numbers(columns, numeric)
            for at, code_of in codes.items():
                positions = _codes(columns[at].tolist(), code_of)
                listed = np.flatnonzero(positions >= 0)
                chunk[listed, starts[at] + positions[listed]] = self._scale
        if self._intercept:
            encoded[:, -1] = self._scale
        return EncodedRows(encoded, data_norm=self.row_norm_, caveats=self.caveats_)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the output columns: the name of a numeric column, column_category for others, and "intercept"."""
        check_is_fitted(self, "group_of_column_")
        names = []
        for name, label in zip(_check_feature_names_in(self, input_features), self._labels, strict=True):
            values = self.categories_.get(label)
            names += [name] if values is None else [f"{name}_{value}" for value in values]
        return np.array(names + ["intercept"] * self._intercept, dtype=object)

    @property
    def _labels(self) -> tuple[Any, ...]:
        return tuple(range(self.n_features_in_)) if self._names is None else self._names

    def _store_columns(self, X: Any, table: Table) -> None:
        if not is_dictionary(X):
            validate_data(self, X if table.names else table, skip_check_array=True)
        else:  # scikit-learn does not accept dictionaries as tables
            self.n_features_in_ = len(X)
            self.feature_names_in_ = np.array(list(X), dtype=object)
            if not all(isinstance(name, str) for name in X):
                del self.feature_names_in_
        self._names = table.names

    def _read_same_columns(self, X: Any) -> Table:
        """Read the table; raise if its columns differ from those of fit."""
        if is_dictionary(X):
            if set(X) != set(self._labels):
                raise InvalidRecords(f"X: must have the columns of fit, {', '.join(map(repr, self._labels))}")
            return read_table({label: X[label] for label in self._labels})  # the order of a dictionary is irrelevant
        table = read_table(X)
        validate_data(self, X if table.names else table, reset=False, skip_check_array=True)
        if table.names and self._names and table.names != self._names:
            raise InvalidRecords("X: must have the columns of fit, in the same order")
        return table

    def _numbers(self, columns: Chunk, numeric: list[int]) -> npt.NDArray[np.float64]:
        """A matrix of the numeric columns, clamped, mapped to [-1, 1] and multiplied by the scale."""
        labels = self._labels
        low, high = np.array([self.ranges_[labels[at]] for at in numeric]).T
        cells = numbers_of(columns, numeric, labels)
        finite = np.isfinite(cells)
        if self.invalid == "refuse" and not finite.all():
            refuse_missing(labels[numeric[int(finite.all(axis=0).argmin())]])
        half = high / 2 - low / 2  # halves first: the difference of two large bounds may overflow
        middle = high / 2 + low / 2
        np.copyto(cells, middle, where=~finite)
        np.clip(cells, low, high, out=cells)
        cells -= middle
        cells /= np.where(half > 0, half, 1.0)
        cells *= self._scale
        return np.clip(cells, -self._scale, self._scale, out=cells)  # rounding of a quotient may exceed one

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = self.invalid == "zero"
        tags.transformer_tags.preserves_dtype = []
        return tags


def _rounded_down(norm: float, columns: int) -> np.float32:
    """norm/sqrt(columns) as float32, rounded so that no row of float32 numbers exceeds the norm."""
    exact = norm / math.sqrt(columns)
    with np.errstate(over="ignore"):
        scale = np.float32(exact)
    if not 0 < scale < np.inf:
        raise InvalidArgument(f"row_norm={norm!r}: must fit float32; encoded rows are float32 (try 1.0)")
    return np.nextafter(scale, np.float32(0)) if float(scale) > exact else scale


def _codes(cells: list[Any], code_of: dict[Any, int]) -> npt.NDArray[np.intp]:
    """Positions of cells in the list of categories; -1 for a cell that is not listed."""
    unlisted = code_of.get(OTHER, -1)
    try:
        codes = [code_of.get(cell, unlisted) for cell in cells]
    except TypeError:  # an unhashable cell is not listed
        codes = [code_of.get(cell, unlisted) if _is_hashable(cell) else unlisted for cell in cells]
    return np.array(codes, dtype=np.intp)


def _is_hashable(cell: Any) -> bool:
    try:
        hash(cell)
    except TypeError:
        return False
    return True
