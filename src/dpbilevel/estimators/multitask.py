"""Ridge regression for many tasks on a shared representation, learned privately."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from dpbilevel.applications.representation import shared_representation
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.estimators.owners import Owners
from dpbilevel.estimators.prepared import Prepared, Rows, Unread
from dpbilevel.estimators.targets import TARGET_BOUND, Names, Numbers, column, name_codes, numbers
from dpbilevel.foundation.arguments import count
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import Plan
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class DPMultiTaskRidge(RegressorMixin, PrivateEstimator):
    """One linear model per task, on a few features that all tasks share and that are learned from all of them.

    The representation is tuned on private validation rows, and the heads are trained on it; one (epsilon, delta) covers
    both. It helps if there are many columns, few rows per task, and the same few directions matter to all tasks.

    Args:
        dimension: the number of shared features (at most the number of columns).
        task_names: declared names of tasks; None reads them from the data, with a `PrivacyLeakWarning`. Rows of an
            unlisted task belong to "other" if that is listed. Otherwise fit refuses them, and predictions for them use
            the mean of all heads.
        target_range: declared (low, high); targets are clamped to it. None reads it from the data, with the same
            warning.

    Settings shared by all estimators are those of `dpbilevel.estimators.base.PrivateEstimator`. Half of mu^2 is spent
    on the representation, which has many more parameters than a few penalties.

    Attributes:
        representation_: released, the map from the columns of X to features.
        coef_, intercept_: one per task in ``task_names_``, in units of the columns and of the target.
        privacy_: the privacy spend. solution_: everything that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPMultiTaskRidge
    >>> draws = np.random.default_rng(0)
    >>> X, tasks = draws.normal(size=(20_000, 5)) / 4, draws.integers(0, 4, 20_000)
    >>> y = (X @ [1, 1, 0, 0, 0]) * np.array([1.0, -1.0, 2.0, 0.5])[
    ...     tasks
    ... ]  # one shared direction, one coefficient per task
    >>> model = DPMultiTaskRidge(dimension=1, data_norm=1.0, task_names=range(4), target_range=(-2, 2))
    >>> bool(model.fit(X, y, tasks=tasks).score(X, y, tasks=tasks) > 0.8)
    True
    """

    dimension: int = 2
    task_names: Any = None
    target_range: Any = None

    _refit: ClassVar[Refit | str] = Refit(share=0.5)

    def fit(
        self, X: Any, y: Any, tasks: Any = None, *, units: Any = None, checkpoint: str | Path | None = None
    ) -> Self:
        """Tune and train. The total cost is charged before the first step.

        Args:
            X, y: rows and targets.
            tasks: the task of each row; None for one task. The rows of a unit may have several tasks.
            units: the id of the unit of each row, with ``rows_per_unit``, as in `DPRidgeCV.fit`.
            checkpoint: path of a file from which an interrupted fit resumes, as in `dpbilevel.solve`. It is as secret
                as the rows; delete it once the model is saved.
        """
        return self._fit(self._prepare(X, y, tasks, units), checkpoint)

    def plan(self, rows: int, columns: int | BoundedEncoder) -> Plan:
        """Plan a fit from sizes alone. Names of tasks must be declared. With ``rows_per_unit``, ``rows`` are units."""
        return self._plan(self._prepare(Unread.of(rows, columns, self.data_norm)))

    def _prepare(self, X: Any, y: Any = None, tasks: Any = None, units: Any = None) -> Prepared:
        rows = self._rows(X)
        targets = Numbers.of(y, rows, self.target_range)
        names = Names.of("task", tasks, rows, self.task_names)
        columns = rows.values, targets.values, names.values
        dimension = min(
            count("dimension", self.dimension, "it is the number of features that tasks share"), rows.shape[1]
        )
        entries = (f"column {at}, feature {feature}" for at in range(rows.shape[1]) for feature in range(dimension))
        levels = self._levels(columns, columns, Owners.of(units, X, rows.shape[0], self))
        problem = shared_representation(
            columns=rows.shape[1], dimension=dimension, tasks=len(names.names), target_bound=TARGET_BOUND
        )
        return Prepared(
            planned=self._planned(problem, levels.sizes),
            records=levels.records,
            units=levels.units,
            caveats=(*rows.caveats, *targets.caveats, *names.caveats),
            legend=Legend("entry of the representation", tuple(entries)),
            facts={"columns": self._columns(), "rows": rows.scaling, "targets": targets.known, "names": names.names},
            finish=lambda x, y: self._model(rows, targets, x, y) | {"task_names_": names.names},
        )

    @staticmethod
    def _model(rows: Rows, targets: Numbers, x: npt.ArrayLike, y: npt.ArrayLike) -> dict[str, Any]:
        """Attributes of the fitted model, from a representation of scaled rows and the heads on it."""
        assert rows.scaling is not None
        features, heads = np.asarray(x, np.float64), np.asarray(y, np.float64)
        linear = rows.scaling.unscaled(heads[:, :-1] @ features.T, heads[:, -1])
        model = dict(zip(("coef_", "intercept_"), targets.scale.unscaled(*linear), strict=True))
        return model | {"_scaling_": rows.scaling, "representation_": features / rows.scaling.size[:, None]}

    def predict(self, X: Any, tasks: Any = None) -> npt.NDArray[np.float64]:
        """The predicted target of each row, by the head of its task (the mean of all heads for unknown tasks)."""
        table = self._read(X, reset=False)
        codes = np.full(table.shape[0], 0 if len(self.task_names_) == 1 else -1)
        if tasks is not None:
            given = column("tasks", tasks, table.shape[0])
            codes = name_codes("task", given, self.task_names_, strict=False)[1]
        heads = np.append(self.coef_, self.coef_.mean(axis=0, keepdims=True), axis=0)
        scores = self._scaling_.scores(
            table, heads, np.append(self.intercept_, self.intercept_.mean()), refuse=self.invalid == "refuse"
        )
        return np.take_along_axis(scores, codes[:, None] % len(heads), axis=1)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scikit-learn checks scores on a few dozen rows, where noise dominates
        return tags

    def score(self, X: Any, y: Any, tasks: Any = None) -> float:
        """R squared on *public* rows; use `dpb.evaluate` for private rows."""
        predicted = self.predict(X, tasks)
        return float(r2_score(numbers("y", y, len(predicted)), predicted))
