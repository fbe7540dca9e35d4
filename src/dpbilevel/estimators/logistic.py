"""Logistic regression, binary and multiclass, with privately tuned penalties."""

from dataclasses import dataclass
from typing import Any

from dpbilevel.estimators.linear import PrivateClassifier
from dpbilevel.estimators.penalties import PenaltyEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogisticRegressionCV(PenaltyEstimator, PrivateClassifier):
    """Logistic regression whose L2 penalties are tuned on private rows, under one (epsilon, delta) for everything.

    Args:
        classes: declared labels, in any order: with two classes, coefficients refer to the second. None reads them from
            the data, sorted, with a `PrivacyLeakWarning`.
        groups: one label per column; columns with the same label share a penalty (``range(columns)``: one penalty per
            column, `BoundedEncoder.group_of_column_`: one per column before encoding). None: one penalty for all. The
            intercept is not penalised.
        smooth: whether wiggles of the curves of a `BoundedEncoder` are penalised: True for one penalty of smoothness
            for each curve, "shared" for one for all, False (default) for none (docs/additive.md).
        largest_weight: declared bound of ``sample_weight``; None reads it from the data, with the same warning.
        class_weight: {class: weight} for every class, declared. "balanced" is refused: it reads private counts.

    Settings shared by all estimators are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_, classes_: as in scikit-learn.
        penalties_: released, one for each of ``groups_``, relative to the mean loss on rows scaled to norm one.
        coef_noise_: one standard deviation of each coefficient by the noise of training, where it is known.
        shapes_: the effect of each column before encoding, if rows are the output of a `BoundedEncoder`.
        privacy_: the privacy spend. solution_: everything that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPLogisticRegressionCV
    >>> X = np.random.default_rng(0).normal(size=(5000, 3)) / 3
    >>> y = np.where(X[:, 0] > 0, "yes", "no")
    >>> model = DPLogisticRegressionCV(epsilon=1.0, data_norm=1.0, classes=["no", "yes"]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), model.privacy_
    (True, Privacy((1, 8e-05)-DP, replace-one, one record))
    """

    class_weight: Any = None
