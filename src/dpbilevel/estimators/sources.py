"""Models of rows that come from several sources, with a privately tuned weight for each source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpbilevel.applications.reweighting import source_weights
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.linear import LinearEstimator, PrivateClassifier, PrivateRegressor
from dpbilevel.estimators.prepared import Prepared, Rows, Unread
from dpbilevel.estimators.targets import Labels, Names, Numbers, column
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class SourceWeighted(LinearEstimator):
    """An estimator that weighs sources."""

    source_names: Any = None

    def fit(
        self, X: Any, y: Any, sources: Any = None, validation: Any = None, *, checkpoint: str | Path | None = None
    ) -> Self:
        """Tune and train. The whole spend is charged before the first step.

        Args:
            X, y: rows and targets.
            sources: the source of each row; None for one source.
            validation: a pair (X, y) of rows to tune on, none of which is among the others (the guarantee counts every
                record once); by default a part of the rows (``validation_fraction``).
            checkpoint: path of a file from which an interrupted fit resumes, as in `dpbilevel.solve`. It is as secret
                as the rows; delete it once the model is saved.
        """
        return self._fit(self._prepare(X, y, sources, validation), checkpoint)

    def plan(self, rows: int, columns: int, validation_rows: int | None = None) -> Plan:
        """Plan a fit from sizes alone. Classes and names of sources must be declared.

        Args:
            rows, columns: of X.
            validation_rows: of validation rows that are given apart; None for a part of the rows.
        """
        validation = None
        if validation_rows is not None:
            count("validation_rows", validation_rows, "it is the number of rows that are given apart")
            validation = Unread(validation_rows, columns), None
        return self._plan(self._prepare(Unread(rows, columns), validation=validation))

    def _prepare(self, X: Any, y: Any = None, sources: Any = None, validation: Any = None) -> Prepared:
        pair = _pair(validation)
        table = self._rows(X, *pair[:1])
        targets = self._targets(y, table)
        names = Names.of("source", sources, table, self.source_names)
        rows = table.with_intercept()
        lower = rows.values, targets.values, names.values
        apart = {"upper": self._validation(pair, table, targets), "lower": lower} if pair else None
        records = apart or self._levels(lower[:2], lower)
        problem = source_weights(**targets.model, columns=rows.shape[1], sources=len(names.names))
        return Prepared(
            planned=self._planned(problem, records),
            records=records,
            caveats=(*rows.caveats, *targets.caveats, *names.caveats),
            legend=Legend("weight", tuple(map(str, names.names.tolist()))),
            facts={"columns": self._columns(), "rows": rows.scaling, "targets": targets.known, "names": names.names},
            finish=lambda x, y: (
                self._model(rows, targets, y)
                | {"source_names_": names.names, "source_weights_": np.asarray(x, np.float64)}
            ),
        )

    def _validation(self, pair: Sequence[Any], table: Rows, targets: Labels | Numbers) -> tuple[Any, Any]:
        """Rows that are given apart, and their targets."""
        rows = self._rows(pair[0], like=table).with_intercept()
        if rows.scaling is None:
            return rows.values, rows.column(targets.values.dtype)
        return rows.values, targets.same(column("validation y", pair[1], rows.shape[0]))


def _pair(validation: Any) -> Sequence[Any]:
    """The pair (X, y) of validation rows, empty where none are given."""
    if validation is None:
        return ()
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InvalidArgument("validation: must be a pair (X, y) of rows that were held out, or None")
    return validation


@dataclass(kw_only=True, eq=False, repr=False)
class DPSourceWeightedClassifier(SourceWeighted, PrivateClassifier):
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


@dataclass(kw_only=True, eq=False, repr=False)
class DPSourceWeightedRegressor(SourceWeighted, PrivateRegressor):
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
