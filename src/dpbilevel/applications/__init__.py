"""Ready-made bilevel problems. Each function returns a `BilevelProblem` with a start and, if they exist, constants.

| application | x, tuned | y, trained | records |
| --- | --- | --- | --- |
| `regularization` | penalties: one, or one for each group of columns | a linear model | (row, target) |
| `source_weights` | a weight for each source | a linear model | lower (row, target, source), upper (row, target) |
| `class_weights` | a weight for each class | a linear classifier | (row, label) |
| `shared_representation` | a feature map for all tasks | a head for each task | (row, target, task) |
| `label_noise` | confusion rates between classes | a linear classifier | (row, label), upper ones clean |

Scale rows to a norm of at most one (or set ``row_norm=``); an intercept is a column of ones. Equal arguments return the
same problem object, so that a second run does not compile again.
"""

from dpbilevel.applications.label_noise import confusion, label_noise
from dpbilevel.applications.losses import LOSSES
from dpbilevel.applications.regularization import regularization
from dpbilevel.applications.representation import represented, shared_representation
from dpbilevel.applications.reweighting import class_weights, source_weights

__all__ = [
    "LOSSES",
    "class_weights",
    "confusion",
    "label_noise",
    "regularization",
    "represented",
    "shared_representation",
    "source_weights",
]
