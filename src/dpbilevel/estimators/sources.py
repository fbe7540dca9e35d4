"""Models of rows that come from several sources, with a privately tuned weight for each source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.applications.reweighting import source_weights
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.base import PrivateEstimator, shapes
from dpbilevel.estimators.logistic import PrivateClassifier
from dpbilevel.estimators.ridge import PrivateRegressor
from dpbilevel.estimators.rows import Scaling, split_intercept, with_intercept
from dpbilevel.estimators.split import split
from dpbilevel.estimators.targets import (
    TARGET_BOUND,
    class_codes,
    column,
    declared_names,
    name_codes,
    numbers,
    target_scale,
)
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import RecordShapes
from dpbilevel.solution.solution import Legend

Rows = npt.NDArray[np.float32]


@dataclass(kw_only=True, eq=False, repr=False)
class _Weighted(PrivateEstimator):
    """What classifier and regressor share: records of both levels."""

    source_names: Any = None

    def _sources(self, sources: Any, rows: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], list[str]]:
        if sources is None:
            return np.array(["all"]), np.zeros(rows, np.int32), []
        given = column("sources", sources, rows)
        names, codes, caveat = name_codes("source", given, self.source_names, strict=True)
        return names, codes, [caveat] if caveat else []

    @staticmethod
    def _legend(names: npt.NDArray[Any]) -> Legend:
        return Legend("weight", tuple(map(str, names.tolist())))

    def _validation(self, pair: Sequence[Any], scaled: Scaling) -> tuple[Rows, npt.NDArray[Any]] | None:
        if not pair:
            return None
        table = self._read(pair[0], reset=False, fitted=False)
        return with_intercept(scaled.rows(table)), column("validation y", pair[1], table.shape[0])

    def _levels(self, rows: Rows, targets: Any, codes: Any, validation: tuple[Rows, Any] | None) -> tuple[Any, Any]:
        """Records of the upper and of the lower level."""
        if validation is not None:
            return validation, (rows, targets, codes)
        upper, lower = split(len(rows), self.validation_fraction, self.split_seed)
        return (rows[upper], targets[upper]), (rows[lower], targets[lower], codes[lower])

    def _level_sizes(self, rows: int, columns: int, validation_rows: int | None, target: type) -> RecordShapes:
        if validation_rows is None:
            return self._sizes(rows, columns, [target], [target, np.int32])
        count("rows", rows, "it is the number of rows that a fit will have")
        count("validation_rows", validation_rows, "it is the number of rows that are given apart")
        return RecordShapes(
            upper=shapes(validation_rows, columns, [target]), lower=shapes(rows, columns, [target, np.int32])
        )


def _pair(validation: Any) -> Sequence[Any]:
    """The pair (X, y) of validation rows, empty where none are given."""
    if validation is None:
        return ()
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InvalidArgument("validation: must be a pair (X, y) of rows that were held out, or None")
    return validation


@dataclass(kw_only=True, eq=False, repr=False)
class DPSourceWeightedClassifier(PrivateClassifier, _Weighted):
    """Logistic regression on rows of several sources, each with a weight that is tuned on private validation rows.

    It pays where sources differ in quality and validation rows are good, or come from where the model will be used.

    Args:
        classes: declared labels, in an order of your choice: of two classes, coefficients are those of the last. None
            discovers them, sorted, with a `PrivacyLeakWarning`.
        source_names: declared names of sources; None discovers them likewise. Rows of a source that is not listed are
            those of "other", where that is listed, and refused otherwise.

    Settings that all estimators share are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_, classes_: as in scikit-learn.
        source_weights_: released, one for each of ``source_names_``; they sum to one.
        privacy_: what was spent. solution_: all that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPSourceWeightedClassifier
    >>> draws = np.random.default_rng(0)
    >>> X, sources = draws.normal(size=(9000, 3)) / 3, draws.choice(["clinic", "lab"], 9000)
    >>> truth = X[:, 0] > 0
    >>> y = np.where(sources == "lab", ~truth, truth).astype(int)  # all labels of the lab are wrong
    >>> model = DPSourceWeightedClassifier(data_norm=1.0, classes=[0, 1], source_names=["clinic", "lab"])
    >>> model.fit(X[3000:], y[3000:], sources=sources[3000:], validation=(X[:3000], truth[:3000].astype(int)))
    DPSourceWeightedClassifier(...)
    >>> bool(model.source_weights_[0] > 0.6), bool(model.score(X, truth) > 0.9)
    (True, True)
    """

    def fit(self, X: Any, y: Any, sources: Any = None, validation: Any = None) -> "DPSourceWeightedClassifier":
        """Tune and train. The whole spend is charged before the first step.

        Args:
            X, y: rows and labels.
            sources: the source of each row; None for one source.
            validation: a pair (X, y) of rows to tune on, none of which is among the others (the guarantee counts every
                record once); by default a part of the rows (``validation_fraction``).
        """
        table = self._read(X, reset=True)
        classes, labels, caveat = class_codes(column("y", y, table.shape[0]), self.classes)
        names, codes, more = self._sources(sources, table.shape[0])
        pair = _pair(validation)
        scaled, caveats = self._scaling(X, table, *pair[:1])
        held_out = self._validation(pair, scaled)
        if held_out is not None:
            held_out = held_out[0], class_codes(held_out[1], classes)[1]
        rows = with_intercept(scaled.rows(table))
        problem = self._problem(rows.shape[1], len(names), len(classes))
        caveats += [*([caveat] if caveat else []), *more]
        x, weights = self._solve(problem, *self._levels(rows, labels, codes, held_out), caveats, self._legend(names))
        self.classes_, self._scaling_, self.source_names_ = classes, scaled, names
        self.coef_, self.intercept_ = scaled.unscaled(*split_intercept(weights))
        self.source_weights_ = np.asarray(x, np.float64)
        return self

    def plan(self, rows: int, columns: int, validation_rows: int | None = None) -> Plan:
        """Plan a fit from sizes alone. Classes and names of sources must be declared.

        Args:
            rows, columns: of X.
            validation_rows: of validation rows that are given apart; None for a part of the rows.
        """
        count("columns", columns, "it is the number of columns of X")
        names = declared_names("source_names", self.source_names)
        problem = self._problem(columns + 1, len(names), len(declared_names("classes", self.classes)))
        return self._announced(problem, self._level_sizes(rows, columns + 1, validation_rows, np.int32))

    @staticmethod
    def _problem(columns: int, sources: int, classes: int) -> BilevelProblem:
        binary = classes == 2
        return source_weights(
            "logistic" if binary else "softmax",
            columns=columns,
            sources=sources,
            classes=None if binary else classes,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class DPSourceWeightedRegressor(PrivateRegressor, _Weighted):
    """Least squares on rows of several sources, each with a weight that is tuned on private validation rows.

    Args:
        target_range: declared (low, high); targets are clamped to it. None discovers it, with a `PrivacyLeakWarning`.
        source_names: declared names of sources; None discovers them likewise. Rows of a source that is not listed are
            those of "other", where that is listed, and refused otherwise.

    Settings that all estimators share are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_: as in scikit-learn.
        source_weights_: released, one for each of ``source_names_``; they sum to one.
        privacy_: what was spent. solution_: all that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPSourceWeightedRegressor
    >>> draws = np.random.default_rng(0)
    >>> X, sources = draws.normal(size=(9000, 3)) / 3, draws.choice(["new", "old"], 9000)
    >>> y = 10 * X[:, 0]
    >>> given = np.where(sources == "old", -y, y)  # the old instrument has the wrong sign
    >>> model = DPSourceWeightedRegressor(data_norm=1.0, target_range=(-15, 15), source_names=["new", "old"])
    >>> model.fit(X[3000:], given[3000:], sources=sources[3000:], validation=(X[:3000], y[:3000]))
    DPSourceWeightedRegressor(...)
    >>> bool(model.source_weights_[0] > 0.6)  # the old one counts for less, or for nothing
    True
    """

    def fit(self, X: Any, y: Any, sources: Any = None, validation: Any = None) -> "DPSourceWeightedRegressor":
        """Tune and train. The whole spend is charged before the first step.

        Args:
            X, y: rows and targets.
            sources: the source of each row; None for one source.
            validation: a pair (X, y) of rows to tune on, none of which is among the others (the guarantee counts every
                record once); by default a part of the rows (``validation_fraction``).
        """
        table = self._read(X, reset=True)
        given = numbers("y", y, table.shape[0])
        scale, caveat = target_scale(given, self.target_range)
        names, codes, more = self._sources(sources, table.shape[0])
        pair = _pair(validation)
        scaled, caveats = self._scaling(X, table, *pair[:1])
        held_out = self._validation(pair, scaled)
        if held_out is not None:
            held_out = held_out[0], scale.scaled(held_out[1])
        rows = with_intercept(scaled.rows(table))
        problem = self._problem(rows.shape[1], len(names))
        caveats += [*([caveat] if caveat else []), *more]
        x, weights = self._solve(
            problem, *self._levels(rows, scale.scaled(given), codes, held_out), caveats, self._legend(names)
        )
        self._released(weights, scaled, scale)
        self.source_names_, self.source_weights_ = names, np.asarray(x, np.float64)
        return self

    def plan(self, rows: int, columns: int, validation_rows: int | None = None) -> Plan:
        """Plan a fit from sizes alone. Names of sources must be declared.

        Args:
            rows, columns: of X.
            validation_rows: of validation rows that are given apart; None for a part of the rows.
        """
        count("columns", columns, "it is the number of columns of X")
        problem = self._problem(columns + 1, len(declared_names("source_names", self.source_names)))
        return self._announced(problem, self._level_sizes(rows, columns + 1, validation_rows, np.float32))

    @staticmethod
    def _problem(columns: int, sources: int) -> BilevelProblem:
        return source_weights("squared", columns=columns, sources=sources, target_bound=TARGET_BOUND)
