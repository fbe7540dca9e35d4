"""scikit-learn interface of the applications: privately tuned, privately trained models with ``fit`` and ``predict``.

| estimator | what is tuned | application |
| --- | --- | --- |
| `DPLogisticRegressionCV` | L2 penalties, one in total or one per group of columns | `regularization` |
| `DPRidgeCV` | the same, for regression | `regularization` |
| `DPSourceWeightedClassifier` | a weight per source of rows | `source_weights` |
| `DPSourceWeightedRegressor` | the same, for regression | `source_weights` |
| `DPMultiTaskRidge` | a representation that all tasks share | `shared_representation` |

Everything that ``fit`` returns, including the result of tuning, satisfies one (epsilon, delta). You declare the public
facts about the data (``data_norm``, ``classes``, ``target_range``, names of sources and tasks). Undeclared facts are
read from the data, with a `PrivacyLeakWarning` and a caveat on the result.
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
