"""Models for rows from several sources, with a privately tuned weight per source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpbilevel.applications.reweighting import source_weights
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.additive import Additive
from dpbilevel.estimators.linear import LinearEstimator, PrivateClassifier, PrivateRegressor
from dpbilevel.estimators.owners import Owners
from dpbilevel.estimators.prepared import Prepared, Rows, Unread
from dpbilevel.estimators.scaled_rows import whole
from dpbilevel.estimators.targets import Labels, Names, Numbers, column
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class SourceWeighted(LinearEstimator):
    """An estimator with a weight per source."""

    source_names: Any = None

    def fit(
        self,
        X: Any,
        y: Any,
        sources: Any = None,
        validation: Any = None,
        *,
        units: Any = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Tune and train. The total cost is charged before the first step.

        Args:
            X, y: rows and targets.
            sources: the source of each row; None for one source. The rows of a unit may be in several sources: its
                gradient by the weights then has an entry for each of them, and is clipped as a whole.
            validation: a pair (X, y) of separate rows for tuning, none of which is also a training row (the guarantee
                assumes that each record occurs once); by default a fraction of the rows (``validation_fraction``).
                With units, (X, y, units): no unit may have rows of both kinds.
            units: the id of the unit of each row, with ``rows_per_unit``, as in `DPLogisticRegressionCV.fit`.
            checkpoint: path of a file from which an interrupted fit resumes, as in `dpbilevel.solve`. It is as secret
                as the rows; delete it once the model is saved.
        """
        return self._fit(self._prepare(X, y, sources, validation, units), checkpoint)

    def plan(self, rows: int, columns: int | BoundedEncoder, validation_rows: int | None = None) -> Plan:
        """Plan a fit from sizes alone. Classes and names of sources must be declared.

        Args:
            rows, columns: of X, or its fitted encoder instead of columns; with ``rows_per_unit``, rows are units.
            validation_rows: the number of separate validation rows, or units; None for a fraction of the rows.
        """
        validation = None
        if validation_rows is not None:
            count("validation_rows", validation_rows, "it is the number of separate validation rows")
            validation = Unread.of(validation_rows, columns, self.data_norm), None
        return self._plan(self._prepare(Unread.of(rows, columns, self.data_norm), validation=validation))

    def _prepare(
        self, X: Any, y: Any = None, sources: Any = None, validation: Any = None, units: Any = None
    ) -> Prepared:
        apart = _apart(validation, units)
        table = self._rows(X, *apart[:1])
        targets = self._targets(y, table)
        names = Names.of("source", sources, table, self.source_names)
        rows = table.with_intercept()
        lower = rows.values, targets.values, names.values
        owners = Owners.of(units, X, table.shape[0], self)
        if not apart:
            levels = self._levels(lower[:2], lower, owners)
        else:
            separate = {"upper": whole(self._validation(apart, table, targets)), "lower": whole(lower)}
            levels = self._of_rows(separate) if owners is None else owners.separate(separate, *apart[::2])
        additive = Additive.of(X, False, table)
        units_of_y = additive.units(lambda y: self._model(rows, targets, y)["coef_"])
        weighted = source_weights(**targets.model, columns=rows.shape[1], sources=len(names.names), row_norm=1.0)
        problem = additive.problem(weighted, units_of_y)
        return Prepared(
            planned=self._planned(problem, levels.sizes),
            records=levels.records,
            units=levels.units,
            caveats=(*rows.caveats, *targets.caveats, *names.caveats),
            legend=Legend("weight", tuple(map(str, names.names.tolist()))),
            facts={"columns": self._columns(), "rows": rows.scaling, "targets": targets.known, "names": names.names},
            finish=lambda x, y: (
                additive.attributes(self._model(rows, targets, y))
                | {"source_names_": names.names, "source_weights_": np.asarray(x, np.float64)}
            ),
            errors=lambda made, history: additive.errors(
                made["coef_"], history, lambda errors: self._model(rows, targets, errors)["coef_"]
            ),
        )

    def _validation(self, apart: Sequence[Any], table: Rows, targets: Labels | Numbers) -> tuple[Any, Any]:
        """Separate validation rows, and their targets."""
        rows = self._rows(apart[0], like=table).with_intercept()
        if rows.scaling is None:
            return rows.values, rows.column(targets.values.dtype)
        return rows.values, targets.same(column("validation y", apart[1], rows.shape[0]))


def _apart(validation: Any, units: Any) -> Sequence[Any]:
    """(X, y), or (X, y, units), of separate validation rows; empty if none are given."""
    if validation is None:
        return ()
    given = isinstance(validation, tuple | list)
    if units is None and not (given and len(validation) == 2):
        raise InvalidArgument("validation: must be a pair (X, y) of held-out rows, or None")
    if units is not None and not (given and len(validation) == 3):
        raise InvalidArgument(
            "validation: must be (X, y, units) with units, or None; whose rows these are must be known, since a unit "
            "with rows of both kinds would be two records"
        )
    return list(validation)


@dataclass(kw_only=True, eq=False, repr=False)
class DPSourceWeightedClassifier(SourceWeighted, PrivateClassifier):
    """Logistic regression on rows from several sources, whose weights are tuned on private validation rows.

    It helps if sources differ in quality and validation rows are clean, or come from where the model will be used.

    Args:
        classes: declared labels, in any order: with two classes, coefficients refer to the second. None reads them from
            the data, sorted, with a `PrivacyLeakWarning`.
        source_names: declared names of sources; None reads them from the data, with the same warning. Rows of an
            unlisted source belong to "other" if that is listed, and are refused otherwise.

    Settings shared by all estimators are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_, classes_: as in scikit-learn.
        source_weights_: released, one for each of ``source_names_``; they sum to one.
        coef_noise_: one standard deviation of each coefficient by the noise of training, where it is known.
        shapes_: the effect of each column before encoding, if rows are the output of a `BoundedEncoder`.
        privacy_: the privacy spend. solution_: everything that was released, with `report` and `save`.

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
    """Least squares on rows from several sources, whose weights are tuned on private validation rows.

    Args:
        target_range: declared (low, high); targets are clamped to it. None reads it from the data, with a
            `PrivacyLeakWarning`.
        source_names: declared names of sources; None reads them from the data, with the same warning. Rows of an
            unlisted source belong to "other" if that is listed, and are refused otherwise.

    Settings shared by all estimators are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_: as in scikit-learn.
        source_weights_: released, one for each of ``source_names_``; they sum to one.
        coef_noise_: one standard deviation of each coefficient by the noise of training, where it is known.
        shapes_: the effect of each column before encoding, if rows are the output of a `BoundedEncoder`.
        privacy_: the privacy spend. solution_: everything that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPSourceWeightedRegressor
    >>> draws = np.random.default_rng(0)
    >>> X, sources = draws.normal(size=(9000, 3)) / 3, draws.choice(["new", "old"], 9000)
    >>> y = 10 * X[:, 0]
    >>> given = np.where(sources == "old", -y, y)  # the old instrument has the wrong sign
    >>> model = DPSourceWeightedRegressor(data_norm=1.0, target_range=(-15, 15), source_names=["new", "old"])
    >>> model.fit(X[3000:], given[3000:], sources=sources[3000:], validation=(X[:3000], y[:3000]))
    DPSourceWeightedRegressor(...)
    >>> bool(model.source_weights_[0] > 0.6)  # the old instrument gets less weight, or none
    True
    """
