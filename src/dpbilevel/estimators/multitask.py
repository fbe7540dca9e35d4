"""Ridge regression of many tasks on a representation that they share, learnt privately."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from dpbilevel.applications.representation import shared_representation
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.estimators.split import split
from dpbilevel.estimators.targets import TARGET_BOUND, column, declared_names, name_codes, numbers, target_scale
from dpbilevel.foundation.arguments import count
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class DPMultiTaskRidge(RegressorMixin, PrivateEstimator):
    """One linear model for each task, on a few features that all tasks share and learn together.

    The representation is tuned on private validation rows, the heads are trained on it; one (epsilon, delta) covers
    both. It pays where there are many columns, few rows for each task, and the same few directions matter to all.

    Args:
        dimension: how many features the tasks share (at most the number of columns).
        task_names: declared names of tasks; None discovers them, with a `PrivacyLeakWarning`. Rows of a task that is
            not listed are those of "other", where that is listed. Otherwise fit refuses them, and predictions for them
            take the mean of all heads.
        target_range: declared (low, high); targets are clamped to it. None discovers it likewise.

    Settings that all estimators share are those of `dpbilevel.estimators.base.PrivateEstimator`. Half of mu^2 goes to
    the representation: it has far more numbers than a few penalties.

    Attributes:
        representation_: released, the map from columns (as given) to features.
        coef_, intercept_: of each of ``task_names_``, in units of the columns and of the target.
        privacy_: what was spent. solution_: all that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPMultiTaskRidge
    >>> draws = np.random.default_rng(0)
    >>> X, tasks = draws.normal(size=(20_000, 5)) / 4, draws.integers(0, 4, 20_000)
    >>> y = (X @ [1, 1, 0, 0, 0]) * np.array([1.0, -1.0, 2.0, 0.5])[tasks]  # one direction matters, to each its own way
    >>> model = DPMultiTaskRidge(dimension=1, data_norm=1.0, task_names=range(4), target_range=(-2, 2))
    >>> bool(model.fit(X, y, tasks=tasks).score(X, y, tasks=tasks) > 0.8)
    True
    """

    dimension: int = 2
    task_names: Any = None
    target_range: Any = None

    _refit: ClassVar[Refit | str] = Refit(share=0.5)

    def fit(self, X: Any, y: Any, tasks: Any = None) -> "DPMultiTaskRidge":
        """Tune and train. The whole spend is charged before the first step.

        Args:
            X, y: rows and targets.
            tasks: the task of each row; None for one task.
        """
        table = self._read(X, reset=True)
        number = table.shape[0]
        given = numbers("y", y, number)
        scale, caveat = target_scale(given, self.target_range)
        targets = scale.scaled(given)
        names, codes, more = np.array(["all"]), np.zeros(number, np.int32), None
        if tasks is not None:
            names, codes, more = name_codes("task", column("tasks", tasks, number), self.task_names, strict=True)
        scaled, caveats = self._scaling(X, table)
        rows = scaled.rows(table)
        upper, lower = split(number, self.validation_fraction, self.split_seed)
        dimension = self._dimension(table.shape[1])
        problem = self._problem(table.shape[1], len(names))
        validating, training = ((rows[part], targets[part], codes[part]) for part in (upper, lower))
        caveats += [found for found in (caveat, more) if found]
        entries = tuple(
            f"column {at}, feature {feature}" for at in range(table.shape[1]) for feature in range(dimension)
        )
        legend = Legend("entry of the representation", entries)
        x, heads = self._solve(problem, validating, training, caveats, legend)
        features, heads = np.asarray(x, np.float64), np.asarray(heads, np.float64)
        coefficients, intercepts = scaled.unscaled(heads[:, :-1] @ features.T, heads[:, -1])
        self._scaling_, self.task_names_ = scaled, names
        self.representation_ = features / scaled.size[:, None]
        self.coef_, self.intercept_ = scale.unit * coefficients, scale.unit * intercepts + scale.middle
        return self

    def plan(self, rows: int, columns: int) -> Plan:
        """Plan a fit from sizes alone. Names of tasks must be declared."""
        count("columns", columns, "it is the number of columns of X")
        problem = self._problem(columns, len(declared_names("task_names", self.task_names)))
        sizes = self._sizes(rows, columns, [np.float32, np.int32], [np.float32, np.int32])
        return self._announced(problem, sizes)

    def _problem(self, columns: int, tasks: int) -> BilevelProblem:
        return shared_representation(
            columns=columns, dimension=self._dimension(columns), tasks=tasks, target_bound=TARGET_BOUND
        )

    def _dimension(self, columns: int) -> int:
        return min(count("dimension", self.dimension, "it is how many features tasks share"), columns)

    def predict(self, X: Any, tasks: Any = None) -> npt.NDArray[np.float64]:
        """The predicted target of each row, by the head of its task (their mean where the task is unknown)."""
        table = self._read(X, reset=False)
        codes = np.full(table.shape[0], 0 if len(self.task_names_) == 1 else -1)
        if tasks is not None:
            given = column("tasks", tasks, table.shape[0])
            codes = name_codes("task", given, self.task_names_, strict=False)[1]
        heads = np.append(self.coef_, self.coef_.mean(axis=0, keepdims=True), axis=0)
        scores = self._scaling_.scores(table, heads, np.append(self.intercept_, self.intercept_.mean()))
        return np.take_along_axis(scores, codes[:, None] % len(heads), axis=1)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scores are checked on a few dozen rows, where noise rules
        return tags

    def score(self, X: Any, y: Any, tasks: Any = None) -> float:
        """R squared on *public* rows; `dpb.evaluate` is for private ones."""
        predicted = self.predict(X, tasks)
        return float(r2_score(numbers("y", y, len(predicted)), predicted))
