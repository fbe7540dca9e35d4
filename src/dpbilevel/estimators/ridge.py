"""Ridge regression with privately tuned penalties."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from dpbilevel.applications.regularization import regularization
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.estimators.groups import numbered_groups
from dpbilevel.estimators.penalties import PenaltyEstimator
from dpbilevel.estimators.rows import Scaling, split_intercept, with_intercept
from dpbilevel.estimators.split import split
from dpbilevel.estimators.targets import TARGET_BOUND, TargetScale, numbers, target_scale
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import RecordShapes
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """Prediction by one linear score, in units of the target."""

    target_range: Any = None

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The predicted target of each row."""
        table = self._read(X, reset=False)
        return self._scaling_.scores(table, self.coef_[None, :], np.atleast_1d(self.intercept_))[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R squared on *public* rows; `dpb.evaluate` is for private ones."""
        predicted = self.predict(X)
        return float(r2_score(numbers("y", y, len(predicted)), predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scores are checked on a few dozen rows, where noise rules
        return tags

    def _released(self, weights: npt.ArrayLike, scaled: Scaling, scale: TargetScale) -> None:
        """Set the model of targets in their own units from one of scaled targets."""
        coefficients, intercepts = scaled.unscaled(*split_intercept(weights))
        self._scaling_ = scaled
        self.coef_ = scale.unit * coefficients[0]
        self.intercept_ = float(scale.unit * intercepts[0] + scale.middle)


@dataclass(kw_only=True, eq=False, repr=False)
class DPRidgeCV(PenaltyEstimator, PrivateRegressor):
    """Ridge regression whose penalties are tuned on private rows, under one (epsilon, delta) for everything.

    Args:
        target_range: declared (low, high); targets are clamped to it. None discovers it, with a `PrivacyLeakWarning`.
        groups: one label for each column; columns of one label share a penalty (``range(columns)``: a penalty each).
            None: one penalty. The intercept has none.

    Settings that all estimators share are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_: as in scikit-learn.
        penalties_: released, one for each of ``groups_``, of half the mean squared error, with targets scaled to
            [-3, 3] and rows to norm one.
        privacy_: what was spent. solution_: all that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPRidgeCV
    >>> X = np.random.default_rng(0).normal(size=(5000, 3)) / 3
    >>> y = 20 + 10 * X[:, 0]
    >>> model = DPRidgeCV(epsilon=1.0, data_norm=1.0, target_range=(0, 40)).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.privacy_
    (True, Privacy((1, 8e-05)-DP, replace-one, one record))
    """

    groups: Any = None

    def fit(self, X: Any, y: Any) -> "DPRidgeCV":
        """Tune and train. The whole spend is charged before the first step."""
        table = self._read(X, reset=True)
        given = numbers("y", y, table.shape[0])
        scale, caveat = target_scale(given, self.target_range)
        targets = scale.scaled(given)
        groups, group_of = numbered_groups(self.groups, table.shape[1])
        scaled, caveats = self._scaling(X, table)
        rows = with_intercept(scaled.rows(table))
        upper, lower = split(len(rows), self.validation_fraction, self.split_seed)
        problem = self._problem(self._sizes(len(rows), rows.shape[1], [np.float32], [np.float32]), group_of)
        caveats += [caveat] if caveat else []
        legend = Legend("penalty", tuple(map(str, groups)), logarithmic=True)
        x, weights = self._solve(problem, (rows[upper], targets[upper]), (rows[lower], targets[lower]), caveats, legend)
        self._released(weights, scaled, scale)
        self.groups_, self.penalties_ = groups, np.exp(np.asarray(x, np.float64))
        return self

    def plan(self, rows: int, columns: int) -> Plan:
        """Plan a fit from sizes alone: what it will spend, and how loud its noise will be."""
        _, group_of = numbered_groups(self.groups, count("columns", columns, "it is the length of a row"))
        sizes = self._sizes(rows, columns + 1, [np.float32], [np.float32])
        return self._announced(self._problem(sizes, group_of), sizes)

    def _problem(self, sizes: RecordShapes, group_of: Sequence[int]) -> BilevelProblem:
        model: dict[str, Any] = {"columns": len(group_of), "groups": group_of, "target_bound": TARGET_BOUND}
        return self._in_reach(lambda penalties: regularization("squared", **model, penalties=penalties), sizes)
