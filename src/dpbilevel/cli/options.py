"""Options that can be judged by themselves: they are, before a file is opened, so that nobody waits for a typo."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from dpbilevel.errors import InvalidArgument, UtilityWarning
from dpbilevel.estimators.split import validation_rows
from dpbilevel.foundation.arguments import one_of
from dpbilevel.planning import check_delta
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.solving import check_noise

GROUPS = ("one", "columns", "schema")
_FEWEST = 2  # rows: one to validate and one to train
_WEAK = 20  # the epsilon above which a guarantee is worth a word
_SMALL = 1e-12  # stands for a delta that the number of rows will decide


def check_settings(settings: Mapping[str, Any], *, groups: str = "one", rows: int | None = None) -> None:
    """Raise where no run can have these settings.

    Args:
        settings: of an estimator, by the names of its arguments.
        groups: of penalties.
        rows: that a dry run is told of.
    """
    if groups not in GROUPS:
        raise InvalidArgument(f"--groups {groups}: must be one of {', '.join(GROUPS)}")
    if rows is not None and rows < _FEWEST:
        raise InvalidArgument(f"--rows {rows}: must be at least {_FEWEST}, one to validate and one to train")
    validation_rows(_FEWEST, settings["validation_fraction"])
    epsilon, delta = settings["epsilon"], settings["delta"]
    budget = Budget(epsilon, _SMALL if delta is None else delta, settings["adjacency"])
    check_delta(budget, rows or _FEWEST)
    budget.mu  # noqa: B018 - raises where the accountant has no number for it
    check_invalid(settings["invalid"])
    seed = settings["random_state"]
    if seed is not None and seed < 0:
        raise InvalidArgument(f"--seed {seed}: must be a whole number >= 0; leave it out for a private run")
    check_noise(settings["noise"], seed, "random_state")
    if settings["noise"] == "exact":
        for_exact_noise(budget)
    remark_on(epsilon)


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
