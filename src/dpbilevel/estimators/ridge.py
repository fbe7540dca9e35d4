"""Ridge regression with privately tuned penalties."""

from dataclasses import dataclass

from dpbilevel.estimators.linear import PrivateRegressor
from dpbilevel.estimators.penalties import PenaltyEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class DPRidgeCV(PenaltyEstimator, PrivateRegressor):
    """Ridge regression whose penalties are tuned on private rows, under one (epsilon, delta) for everything.

    Args:
        target_range: declared (low, high); targets are clamped to it. None reads it from the data, with a
            `PrivacyLeakWarning`.
        groups: one label per column; columns with the same label share a penalty (``range(columns)``: one penalty per
            column). None: one penalty for all. The intercept is not penalised.
        smooth: whether wiggles of the curves of a `BoundedEncoder` are penalised: True for one penalty of smoothness
            for each curve, "shared" for one for all, False (default) for none (docs/additive.md).
        largest_weight: declared bound of ``sample_weight``; None reads it from the data, with the same warning.

    Settings shared by all estimators are those of `dpbilevel.estimators.base.PrivateEstimator`.

    Attributes:
        coef_, intercept_: as in scikit-learn.
        penalties_: released, one for each of ``groups_``, relative to half the mean squared error, with targets
            scaled to [-3, 3] and rows to norm one.
        coef_noise_: one standard deviation of each coefficient by the noise of training, where it is known.
        shapes_: the effect of each column before encoding, if rows are the output of a `BoundedEncoder`.
        privacy_: the privacy spend. solution_: everything that was released, with `report` and `save`.

    >>> import numpy as np
    >>> from dpbilevel.estimators import DPRidgeCV
    >>> X = np.random.default_rng(0).normal(size=(5000, 3)) / 3
    >>> y = 20 + 10 * X[:, 0]
    >>> model = DPRidgeCV(epsilon=1.0, data_norm=1.0, target_range=(0, 40)).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.privacy_
    (True, Privacy((1, 8e-05)-DP, replace-one, one record))
    """
