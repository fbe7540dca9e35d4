"""Linear models: one row of coefficients per output, trained on rows with an intercept."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score

from dpbilevel.estimators.base import PrivateEstimator
from dpbilevel.estimators.prepared import Rows
from dpbilevel.estimators.rows import Floats, norm_scaling, split_intercept
from dpbilevel.estimators.targets import Labels, Numbers, check_kind, column, numbers
from dpbilevel.solution.solution import Solution


@dataclass(kw_only=True, eq=False, repr=False)
class LinearEstimator(PrivateEstimator):
    """An estimator that predicts from linear scores."""

    @classmethod
    def restore(
        cls, solution: Solution, coefficients: Any, intercepts: Any, *, data_norm: float = 1.0, classes: Any = None
    ) -> Self:
        """A fitted estimator from the released values of an earlier fit; it makes the same predictions.

        Coefficients and intercepts are its ``coef_`` and ``intercept_``; a classifier needs its ``classes_`` too.
        """
        columns = np.shape(coefficients)[-1]
        known = {"n_features_in_": columns, "_scaling_": norm_scaling(columns, data_norm)}
        known |= {} if classes is None else {"classes_": np.asarray(classes)}
        return cls(data_norm=data_norm)._fitted(solution, known | {"coef_": coefficients, "intercept_": intercepts})

    @abstractmethod
    def _targets(self, y: Any, rows: Rows) -> Labels | Numbers:
        """Encode the targets of rows."""

    @staticmethod
    def _model(rows: Rows, targets: Labels | Numbers, weights: npt.ArrayLike) -> dict[str, Any]:
        """Attributes of the fitted model, from coefficients that include the intercept."""
        assert rows.scaling is not None
        return {"_scaling_": rows.scaling} | targets.attributes(*rows.scaling.unscaled(*split_intercept(weights)))

    def _scores(self, X: Any) -> Floats:
        table = self._read(X, reset=False)
        weights = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        return self._scaling_.scores(table, *weights, refuse=self.invalid == "refuse")


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, LinearEstimator):
    """Classification by linear scores: one score for two classes, otherwise one per class."""

    classes: Any = None

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Scores: of the second class for two classes, otherwise one column per class."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most likely class of each row."""
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
        """Accuracy on *public* rows; use `dpb.evaluate` for private rows."""
        predicted = self.predict(X)
        targets = column("y", y, len(predicted))
        check_kind(targets, self.classes_)
        return float(np.average(predicted == targets, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # scikit-learn checks scores on a few dozen rows, where noise dominates
        return tags

    def _targets(self, y: Any, rows: Rows) -> Labels:
        return Labels.of(y, rows, self.classes)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, LinearEstimator):
    """Regression by one linear score, in units of the target."""

    target_range: Any = None

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The predicted target of each row."""
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R squared on *public* rows; use `dpb.evaluate` for private rows."""
        predicted = self.predict(X)
        return float(r2_score(numbers("y", y, len(predicted)), predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scikit-learn checks scores on a few dozen rows, where noise dominates
        return tags

    def _targets(self, y: Any, rows: Rows) -> Numbers:
        return Numbers.of(y, rows, self.target_range)
