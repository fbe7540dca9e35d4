"""Logistic regression, binary and multiclass, with privately tuned penalties."""

from dataclasses import dataclass

from dpbilevel.estimators.linear import PrivateClassifier
from dpbilevel.estimators.penalties import PenaltyEstimator


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
