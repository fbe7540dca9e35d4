"""Options that can be judged by themselves: they are, before a file is opened, so that nobody waits for a typo."""

import math
import warnings

from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.layout import layout
from dpbilevel.errors import InvalidArgument, UtilityWarning
from dpbilevel.estimators.split import validation_rows
from dpbilevel.foundation.arguments import one_of
from dpbilevel.planning import check_delta
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.solving import check_noise

_FEWEST = 2  # rows: one to validate and one to train
_WEAK = 20  # the epsilon above which a guarantee is worth a word
_SMALL = 1e-12  # stands for a delta that the number of rows will decide


def check_options(asked: FitCommand) -> None:
    """Raise where no run can have these options."""
    asked.check()
    if asked.rows is not None and asked.rows < _FEWEST:
        raise InvalidArgument(f"--rows {asked.rows}: must be at least {_FEWEST}, one to validate and one to train")
    validation_rows(_FEWEST, asked.validation_fraction)
    budget = Budget(asked.epsilon, _SMALL if asked.delta is None else asked.delta, asked.adjacency)  # type: ignore[arg-type]
    check_delta(budget, asked.rows or _FEWEST)
    budget.mu  # noqa: B018 - raises where the accountant has no number for it
    check_invalid(asked.invalid)
    if asked.seed is not None and asked.seed < 0:
        raise InvalidArgument(f"--seed {asked.seed}: must be a whole number >= 0; leave it out for a private run")
    check_noise(asked.noise, asked.seed, "random_state")
    if asked.noise == "exact":
        for_exact_noise(budget)
    layout(**asked.layout)  # raises where no file is written like that
    remark_on(asked.epsilon)


def remark_on(epsilon: float) -> None:
    """Warn of an epsilon that promises next to nothing."""
    if math.isinf(epsilon):
        warnings.warn("--epsilon inf: no noise is added, and nothing of this is private", UtilityWarning, stacklevel=2)
    elif epsilon > _WEAK:
        warnings.warn(
            f"--epsilon {epsilon:g}: promises next to nothing; above {_WEAK} a result may tell nearly all of what a "
            "record holds (1 is strong, and few go beyond 10)",
            UtilityWarning,
            stacklevel=2,
        )


def check_invalid(invalid: str) -> None:
    """Raise unless it is known what becomes of missing numbers."""
    one_of("invalid", invalid, ("refuse", "zero"), "it says what happens to rows with missing numbers")
