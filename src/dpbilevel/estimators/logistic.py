"""Logistic regression, binary and multiclass, with privately tuned penalties."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin

from dpbilevel.applications.regularization import regularization
from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.estimators.groups import numbered_groups
from dpbilevel.estimators.penalties import PenaltyEstimator
from dpbilevel.estimators.rows import split_intercept, with_intercept
from dpbilevel.estimators.split import split
from dpbilevel.estimators.targets import check_kind, class_codes, column, declared_names
from dpbilevel.foundation.arguments import count
from dpbilevel.planning import Plan
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import RecordShapes
from dpbilevel.solution.solution import Legend


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Prediction by linear scores, one for two classes, otherwise one for each class."""

    classes: Any = None

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Scores: of the second class for two classes, otherwise one column for each class."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row."""
        scores = self._scores(X)
        best = (scores[:, 0] > 0).astype(int) if len(self.classes_) == 2 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probability of each class for each row."""
        scores = self._scores(X)
        if len(self.classes_) == 2:
            return np.stack([expit(-scores[:, 0]), expit(scores[:, 0])], axis=1)
        return np.asarray(softmax(scores, axis=1))

    def predict_log_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on *public* rows; `dpb.evaluate` is for private ones."""
        predicted = self.predict(X)
        targets = column("y", y, len(predicted))
        check_kind(targets, self.classes_)
        return float(np.average(predicted == targets, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # scores are checked on a few dozen rows, where noise rules
        return tags

    def _scores(self, X: Any) -> npt.NDArray[np.float64]:
        table = self._read(X, reset=False)
        return self._scaling_.scores(table, self.coef_, self.intercept_)


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogisticRegressionCV(PenaltyEstimator, PrivateClassifier):
    """Logistic regression whose L2 penalties are tuned on private rows, under one (epsilon, delta) for everything.

    Args:
        classes: declared labels, in an order of your choice: of two classes, coefficients are those of the last. None
            discovers them, sorted, with a `PrivacyLeakWarning`.
        groups: one label for each column; columns of one label share a penalty (``range(columns)``: a penalty each,
            `BoundedEncoder.group_of_column_`: one for each encoded column). None: one penalty. The intercept has none.

    Settings that all estimators share are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_, classes_: as in scikit-learn.
        penalties_: released, one for each of ``groups_``, of the mean loss on rows scaled to norm one.
        privacy_: what was spent. solution_: all that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPLogisticRegressionCV
    >>> X = np.random.default_rng(0).normal(size=(5000, 3)) / 3
    >>> y = np.where(X[:, 0] > 0, "yes", "no")
    >>> model = DPLogisticRegressionCV(epsilon=1.0, data_norm=1.0, classes=["no", "yes"]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), model.privacy_
    (True, Privacy((1, 8e-05)-DP, replace-one, one record))
    """

    groups: Any = None

    def fit(self, X: Any, y: Any) -> "DPLogisticRegressionCV":
        """Tune and train. The whole spend is charged before the first step."""
        table = self._read(X, reset=True)
        labels = column("y", y, table.shape[0])
        classes, codes, caveat = class_codes(labels, self.classes)
        groups, group_of = numbered_groups(self.groups, table.shape[1])
        scaled, caveats = self._scaling(X, table)
        rows = with_intercept(scaled.rows(table))
        upper, lower = split(len(rows), self.validation_fraction, self.split_seed)
        sizes = self._sizes(len(rows), rows.shape[1], [np.int32], [np.int32])
        problem = self._problem(sizes, len(classes), group_of)
        caveats += [caveat] if caveat else []
        legend = Legend("penalty", tuple(map(str, groups)), logarithmic=True)
        x, weights = self._solve(problem, (rows[upper], codes[upper]), (rows[lower], codes[lower]), caveats, legend)
        self.classes_, self._scaling_ = classes, scaled
        self.coef_, self.intercept_ = scaled.unscaled(*split_intercept(weights))
        self.groups_, self.penalties_ = groups, np.exp(np.asarray(x, np.float64))
        return self

    def plan(self, rows: int, columns: int) -> Plan:
        """Plan a fit from sizes alone: what it will spend, and how loud its noise will be. Classes must be declared.

        >>> DPLogisticRegressionCV(epsilon=1.0, classes=["no", "yes"]).plan(rows=5000, columns=3)
        Plan(Tracking, 600 releases on RecordShapes(upper=1000 records, lower=4000 records): (1, 8e-05)-DP, ...)
        """
        classes = declared_names("classes", self.classes)
        _, group_of = numbered_groups(self.groups, count("columns", columns, "it is the length of a row"))
        sizes = self._sizes(rows, columns + 1, [np.int32], [np.int32])
        return self._announced(self._problem(sizes, len(classes), group_of), sizes)

    def _problem(self, sizes: RecordShapes, classes: int, group_of: Sequence[int]) -> BilevelProblem:
        binary = classes == 2
        model = {"loss": "logistic"} if binary else {"loss": "softmax", "classes": classes}
        tuned = functools.partial(regularization, **model, columns=len(group_of), groups=group_of)
        return self._in_reach(lambda penalties: tuned(penalties=penalties), sizes)
