"""A scikit-learn transformer that encodes tables as rows of bounded norm, from declared facts about the columns.

Ranges learnt from the data, as by `StandardScaler` or `OneHotEncoder`, are releases that are not charged.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from dpbilevel.encoding import feature_maps
from dpbilevel.encoding.blocks import Block, Date, Number, Plain, WithMissing, centred
from dpbilevel.encoding.columns import Chunk, Table, as_slice, is_dictionary, numbers_of, read_table
from dpbilevel.encoding.crosses import Cross, crosses
from dpbilevel.encoding.dates import moments
from dpbilevel.encoding.declarations import check_finite, complete, declared
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.terms import terms_of
from dpbilevel.errors import InvalidArgument, InvalidRecords, PrivacyLeakWarning
from dpbilevel.foundation.arguments import one_of, positive


class BoundedEncoder(TransformerMixin, BaseEstimator):
    """Encode numbers and categories as rows of norm at most ``row_norm``, from declared ranges and categories.

    Numbers are clamped to their range and mapped to [-1, 1], or encoded as a curve by ``knots``. Categories are one-hot
    encoded. All rows are divided by the largest norm that a row can have, the square root of the number of columns
    before encoding (with crosses, parts of dates and the intercept), and multiplied by ``row_norm``. Nothing is learnt
    from records, so fitting costs no budget.

    The range or categories of an undeclared column are discovered from the data, with a `PrivacyLeakWarning` and a
    caveat that the encoder and its output carry (frames from ``set_output`` cannot: then only the encoder has it).
    Categorical types of pandas, polars and Arrow do not count as declarations, because they were derived from data. The
    number of rows and the names and types of columns are public.

    Args:
        ranges: {column: (low, high)} for numeric columns; columns of arrays are referred to by position.
        categories: {column: [value, ...]}. A missing or unlisted value is encoded as zeros, or as the category "other"
            if that is listed.
        ordinals: {column: (low, high)} for integers of a small range, which have one column each.
        dates: {column: (first, last)} for dates, as ISO text, `datetime` or NumPy dates; other dates are clamped.
        texts: {column: number of columns} for text: a bag of words, hashed into so many columns.
        scales: {column: "log", "sqrt" or "linear"} for numbers; the logarithm is that of the distance to the low end.
        knots: None (default): a number is one column. A number of knots: it is a curve, linear between knots that are
            equally far apart on its scale, with one column per knot. "auto": that number from the number of rows,
            which must be public (estimators of units refuse such rows).
            {column: number, "auto" or list of knots in units of the column} is for these columns alone.
        parts: {column: [part, ...]} adds "year", "month", "weekday" or "hour" of a date.
        missing: columns whose missing cells are indicated by a column of their own. They are then never refused.
        crosses: [(column, column), ...] adds all products of the encoded columns of two columns.
        row_norm: the largest norm of an encoded row.
        intercept: whether to append a constant column.
        invalid: "refuse" (default) raises `InvalidRecords` for missing or infinite numbers and missing dates, which is
            outside of any guarantee; "zero" encodes them as zeros, the middle of the range of a plain column. Text in a
            numeric column is always refused.

    Attributes:
        ranges_, categories_: the range or categories used for each column, including discovered ones.
        caveats_: one sentence per undeclared column (more than ten share one); empty if everything was declared.
        knots_: the knots of every column that is a curve, in units of the column (dates: days after the first).
        curves_: which output columns are values of one curve, in order: (name, columns, knots) for each.
        terms_: the points at which the effect of each input column is shown, with the encoded cells there.
        group_of_column_: the position of the input column of every output column. Crosses have the next numbers,
            and the intercept the last.
        row_norm_, n_features_in_, feature_names_in_: as usual in scikit-learn.

    >>> table = {"age": [17, 90, 60], "sex": ["F", "M", "unknown"]}
    >>> encoder = BoundedEncoder(ranges={"age": (0, 120)}, categories={"sex": ["F", "M"]}, row_norm=math.sqrt(2))
    >>> rows = encoder.fit_transform(table)
    >>> rows.round(2).tolist()
    [[-0.72, 1.0, 0.0], [0.5, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> rows.data_norm, rows.caveats, encoder.get_feature_names_out().tolist()
    (1.41, (), ['age', 'sex_F', 'sex_M'])
    >>> curve = BoundedEncoder(ranges={"age": (0, 120)}, categories={"sex": ["F", "M"]}, knots={"age": 3})
    >>> (curve.fit_transform(table) * math.sqrt(2)).round(2).tolist()
    [[0.72, 0.28, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0]]
    >>> curve.get_feature_names_out().tolist()
    ['age_0', 'age_60', 'age_120', 'sex_F', 'sex_M']
    """

    def __init__(
        self,
        *,
        ranges: Mapping[Any, tuple[float, float]] | None = None,
        categories: Mapping[Any, Any] | None = None,
        ordinals: Mapping[Any, tuple[int, int]] | None = None,
        dates: Mapping[Any, tuple[Any, Any]] | None = None,
        texts: Mapping[Any, int] | None = None,
        scales: Mapping[Any, str] | None = None,
        knots: Any = None,
        parts: Mapping[Any, Sequence[str]] | None = None,
        missing: Sequence[Any] = (),
        crosses: Sequence[tuple[Any, Any]] = (),
        row_norm: float = 1.0,
        intercept: bool = False,
        invalid: str = "refuse",
    ) -> None:
        self.ranges = ranges
        self.categories = categories
        self.ordinals = ordinals
        self.dates = dates
        self.texts = texts
        self.scales = scales
        self.knots = knots
        self.parts = parts
        self.missing = missing
        self.crosses = crosses
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
        table = read_table(X, dates=_labels_of(self.dates))
        for size, noun in zip(table.shape, ("sample", "feature"), strict=True):
            if size == 0:  # scikit-learn's message, which its estimator checks expect
                raise InvalidRecords(f"X: 0 {noun}(s) (shape={table.shape}) while a minimum of 1 is required.")
        given = declared(table, self.ranges, self.categories, self.ordinals, self.dates, self.texts)
        missing = feature_maps.missing_of(self.missing, table)
        scales, parts = feature_maps.scales_of(self.scales, given), feature_maps.parts_of(self.parts, given)
        feature_maps.knots_of(self.knots, given, 1)  # whether they are valid, before a cell is read
        known = complete(table, given, refuse=self.invalid == "refuse", missing=missing)
        knots = feature_maps.knots_of(self.knots, known, table.shape[0])
        blocks = feature_maps.blocks(table, known, scales=scales, knots=knots, parts=parts, missing=missing)
        crossed = crosses(self.crosses, table, blocks)
        made: list[Block | Cross] = [*blocks, *(cross for _, _, cross in crossed)]
        units = sum(block.units for block in made) + bool(self.intercept)
        scale = _rounded_down(norm, units)
        for caveat in known.caveats:
            warnings.warn(caveat, PrivacyLeakWarning, stacklevel=2)
        self._store_columns(X, table)
        self._intercept, self._scale = bool(self.intercept), scale
        self._counts_rows = feature_maps.counts_rows(self.knots)
        self._blocks, self._crosses, self._missing = blocks, crossed, missing
        self.row_norm_ = norm
        self.caveats_ = known.caveats
        self.ranges_ = {label: known.ranges[label] for label in table.labels if label in known.ranges}
        self.categories_ = {label: list(known.categories[label]) for label in table.labels if label in known.categories}
        widths = [len(block.names) for block in made] + [1] * self._intercept
        self.group_of_column_ = np.repeat(np.arange(len(widths)), widths)
        self._store_curves(widths)
        self.terms_ = terms_of(list(map(str, self._labels)), blocks, scale)
        return self

    def transform(self, X: Any) -> EncodedRows:
        """The encoded rows in float32, with the declared norm and the caveats."""
        check_is_fitted(self, "group_of_column_")
        table = self._read_same_columns(X)
        encoded = np.zeros((table.shape[0], len(self.group_of_column_)), np.float32)
        write = self._writer()
        for rows, columns in table.chunks():
            write(columns, encoded[rows])
        if self._intercept:
            encoded[:, -1] = self._scale
        result = EncodedRows(encoded, data_norm=self.row_norm_, caveats=self.caveats_)
        result.counts_rows = self._counts_rows
        result.terms = self.terms_
        return result

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the output columns: the name of a plain column, column_category or column_knot, and "intercept"."""
        check_is_fitted(self, "group_of_column_")
        return np.array(self._column_names(_check_feature_names_in(self, input_features), "_"), dtype=object)

    def _column_names(self, inputs: Sequence[str], joint: str) -> list[str]:
        """Names of the output columns, with ``joint`` between an input column and what follows."""
        names = []
        for name, block in zip(inputs, self._blocks, strict=True):
            names += [f"{name}{joint}{own}" if own else name for own in block.names]
        for _, _, cross in self._crosses:
            names += cross.named(joint)
        return names + ["intercept"] * self._intercept

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
            X = {label: X[label] for label in self._labels}  # the order of a dictionary is irrelevant
            return read_table(X, dates=self._dates)
        table = read_table(X, dates=self._dates)
        validate_data(self, X if table.names else table, reset=False, skip_check_array=True)
        if table.names and self._names and table.names != self._names:
            raise InvalidRecords("X: must have the columns of fit, in the same order")
        return table

    @property
    def _dates(self) -> list[Any]:
        return [label for label, block in zip(self._labels, self._blocks, strict=True) if block.cells == "dates"]

    def _store_curves(self, widths: list[int]) -> None:
        starts = np.cumsum([0, *widths]).tolist()
        names = [*map(str, self._labels), *([""] * len(self._crosses))]
        blocks: list[Block | Cross] = [*self._blocks, *(cross for _, _, cross in self._crosses)]
        self.curves_ = tuple(
            curve._replace(
                name=" ".join(filter(None, (name, curve.name))), columns=tuple(start + at for at in curve.columns)
            )
            for start, name, block in zip(starts, names, blocks, strict=False)
            for curve in block.curves
        )
        self.knots_ = {}
        for label, block in zip(self._labels, self._blocks, strict=True):
            inner: Any = block.block if isinstance(block, WithMissing) else block
            inner = inner.days if isinstance(inner, Date) else inner
            if isinstance(inner, Number):
                self.knots_[label] = inner.hats.knots.tolist()

    def _writer(self) -> Callable[[Chunk, npt.NDArray[np.float32]], None]:
        """A function that encodes a chunk of rows into rows of zeros."""
        blocks, scale = self._blocks, self._scale
        starts = np.searchsorted(self.group_of_column_, np.arange(len(blocks) + len(self._crosses) + 1)).tolist()
        numeric = [at for at, block in enumerate(blocks) if block.cells == "numbers"]
        plain = {at: block.axis for at in numeric if _is_linear(block := blocks[at])}
        others = [at for at in range(len(blocks)) if at not in plain]
        read = {at: place for place, at in enumerate(numeric) if at not in plain or self._is_crossed(at)}

        if plain:  # all at once: there may be thousands, such as pixels
            places = as_slice([starts[at] for at in plain])
            chosen = as_slice([place for place, at in enumerate(numeric) if at in plain])
            low, high = np.array([(axis.low, axis.high) for axis in plain.values()]).T

        def write(columns: Chunk, out: npt.NDArray[np.float32]) -> None:
            numbers = self._numbers(columns, numeric)
            cells = {at: numbers[:, place] for at, place in read.items()} | self._moments(columns)
            if plain:
                out[:, places] = centred(numbers[:, chosen], low, high, scale)
            for at in others:
                blocks[at].write(cells.get(at, columns[at]), out[:, starts[at] : starts[at + 1]], scale)
            for at, (*pair, cross) in enumerate(self._crosses, len(blocks)):
                both = [cells.get(one, columns[one]) for one in pair]
                cross.write_both(both, out[:, starts[at] : starts[at + 1]], scale)

        return write

    def _is_crossed(self, at: int) -> bool:
        return any(at in (first, second) for first, second, _ in self._crosses)

    def _numbers(self, columns: Chunk, numeric: list[int]) -> npt.NDArray[np.float64]:
        """The cells of all columns of numbers; those that are missing or infinite may be refused."""
        if not numeric:
            return np.empty((0, 0))
        labels = self._labels
        numbers = numbers_of(columns, numeric, labels)
        if self.invalid == "refuse":
            own = [labels[at] for at in numeric]
            check_finite(np.isfinite(numbers) | np.array([label in self._missing for label in own]), own)
        return numbers

    def _moments(self, columns: Chunk) -> dict[int, npt.NDArray[np.datetime64]]:
        """The cells of all columns of dates; those that are missing may be refused."""
        cells = {}
        for label in self._dates:
            at = self._labels.index(label)
            cells[at] = moments(columns[at], label)
            if self.invalid == "refuse" and label not in self._missing and np.isnat(cells[at]).any():
                raise InvalidRecords(
                    f"column {label!r}: must hold dates and no missing values; clean it, name it in missing=[...] for "
                    'a column that indicates them, or pass invalid="zero" to encode them as zeros'
                )
        return cells

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


def _is_linear(block: Block) -> TypeGuard[Plain]:
    return isinstance(block, Plain) and block.axis.scale == "linear"


def _labels_of(declared_dates: Any) -> list[Any]:
    return list(declared_dates) if isinstance(declared_dates, Mapping) else []
