"""scikit-learn interface of the applications: privately tuned, privately trained models with ``fit`` and ``predict``.

| estimator | what is tuned | application |
| --- | --- | --- |
| `DPLogisticRegressionCV` | L2 penalties, one or one for each group of columns | `regularization` |
| `DPRidgeCV` | the same, for numbers | `regularization` |
| `DPSourceWeightedClassifier` | a weight for each source of rows | `source_weights` |
| `DPSourceWeightedRegressor` | the same, for numbers | `source_weights` |
| `DPMultiTaskRidge` | a representation that all tasks share | `shared_representation` |

Everything that ``fit`` leaves behind, tuning included, satisfies one (epsilon, delta). What must be known of the data
(``data_norm``, ``classes``, ``target_range``, names of sources and tasks) is declared; what is not is discovered, with
a `PrivacyLeakWarning` and a caveat on the result.
"""

from dpbilevel.estimators.logistic import DPLogisticRegressionCV
from dpbilevel.estimators.multitask import DPMultiTaskRidge
from dpbilevel.estimators.ridge import DPRidgeCV
from dpbilevel.estimators.sources import DPSourceWeightedClassifier, DPSourceWeightedRegressor

__all__ = [
    "DPLogisticRegressionCV",
    "DPMultiTaskRidge",
    "DPRidgeCV",
    "DPSourceWeightedClassifier",
    "DPSourceWeightedRegressor",
]
