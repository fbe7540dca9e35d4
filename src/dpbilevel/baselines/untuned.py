"""Training without tuning: on all records at the starting x, or on the validation records only.

The first is the obvious default. The second is the simplest treatment of records that may be wrong: omit them. It needs
no hyperparameters, and is hard to beat with many validation records and a large budget.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.embedded_training import EmbeddedTraining
from dpbilevel.baselines.runs import check_training
from dpbilevel.errors import InvalidProblem
from dpbilevel.execution.program import Program
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.problem import BilevelProblem

Parameters = dict[str, tuple[Any, str]]


@dataclass(frozen=True, kw_only=True)
class FixedDefault(Baseline):
    """Train at the starting x with the full budget: *untuned*.

    Upper records also train if the problem declares it (``upper_trains``).

    Args:
        training: settings of the training.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import FixedDefault
    >>> problem = dpb.BilevelProblem(
    ...     upper_term=lambda x, y: (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    ... )
    >>> records = dpb.Records(lower=np.linspace(0, 1, 2000))
    >>> untuned = FixedDefault().solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0))
    >>> float(untuned.x), bool(abs(untuned.y - 0.5) < 0.1)
    (0.0, True)
    """

    training: Refit = field(default_factory=Refit)

    def __post_init__(self) -> None:
        check_training(self.training)

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training, unchanged."""
        return self.training.program(context)


@dataclass(frozen=True, kw_only=True)
class UpperRecordsOnly(Baseline):
    """Train on the upper records only, with the upper loss and the full budget; the lower records are not read.

    The regulariser, which is the lower level's data-free term, is used at the starting x as in any training.

    Args:
        training: settings of the training.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import UpperRecordsOnly
    >>> squared = lambda x, y, record: 0.5 * (y - record) ** 2
    >>> problem = dpb.BilevelProblem(upper_loss=squared, lower_loss=squared)
    >>> records = dpb.Records(upper=np.linspace(0, 1, 2000), lower=np.full(50, -9.0))
    >>> clean = UpperRecordsOnly().solve(problem, records, dpb.Budget(3.0, 1e-5), start=(0.0, 0.0))
    >>> bool(abs(clean.y - 0.5) < 0.1), list(clean.privacy.charges)
    (True, ['upper'])
    """

    training: Refit = field(default_factory=Refit)

    def __post_init__(self) -> None:
        check_training(self.training)

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training, with upper records in place of the lower ones."""
        training, parameters = self.embedded(context)
        return training.program, parameters

    def embedded(self, context: PublicContext) -> tuple[EmbeddedTraining, Parameters]:
        """The training, also for larger programs."""
        problem, sizes = context.problem, context.sizes
        role = sizes.role_of("upper")
        if problem.upper_loss is None or role is None:
            raise InvalidProblem(
                "upper_loss: is missing, so there are no upper records to train on; give the loss and "
                "Records(upper=...), or use FixedDefault()"
            )
        shapes = sizes if role == "both" else replace(sizes, lower=sizes.upper, upper=None)
        swapped = replace(context, problem=_swapped(problem), sizes=shapes)
        training, parameters = EmbeddedTraining.of(self.training, swapped)
        parameters["training: records"] = (role, "of the upper level alone")
        return training.on_role(role), parameters


@functools.lru_cache(maxsize=64)
def _swapped(problem: BilevelProblem) -> BilevelProblem:
    """The training reads the lower level. In this problem, the upper level takes its place."""
    assert problem.upper_loss is not None, "without an upper loss there is nothing to swap"
    return replace(problem, lower_loss=problem.upper_loss, lower_scale=_one, upper_trains=False)


def _one(x: Any) -> float:
    return 1.0
