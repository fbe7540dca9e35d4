"""Checks of options that need no file. They run first, so that errors are reported without delay."""

import math
import warnings

from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.holdout import check_holdout
from dpbilevel.cli.layout import layout
from dpbilevel.errors import InvalidArgument, UtilityWarning
from dpbilevel.estimators.split import validation_rows
from dpbilevel.foundation.arguments import one_of
from dpbilevel.planning import check_delta
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.privacy.shards import first_devices
from dpbilevel.solving import check_noise

_FEWEST = 2  # rows: one for validation and one for training
_WEAK = 20  # epsilon above which the user is warned
_SMALL = 1e-12  # used if delta will follow from the number of rows


def check_options(asked: FitCommand) -> None:
    """Raise for options that no run can have."""
    asked.check()
    if asked.rows is not None and asked.rows < _FEWEST:
        raise InvalidArgument(
            f"--rows {asked.rows}: must be at least {_FEWEST}, one for validation and one for training"
        )
    validation_rows(_FEWEST, asked.validation_fraction)
    check_holdout(asked.holdout)
    budget = Budget(asked.epsilon, _SMALL if asked.delta is None else asked.delta, asked.adjacency)  # type: ignore[arg-type]
    check_delta(budget, asked.rows or _FEWEST)
    budget.mu  # noqa: B018 - raises if the accountant cannot compute it
    check_invalid(asked.invalid)
    if asked.seed is not None and asked.seed < 0:
        raise InvalidArgument(f"--seed {asked.seed}: must be a whole number >= 0; leave it out for a private run")
    check_noise(asked.noise, asked.seed, "random_state")
    if asked.devices is not None:
        first_devices(asked.devices)
    if asked.noise == "exact":
        for_exact_noise(budget)
    layout(**asked.layout)  # raises for invalid formats
    warn_if_weak(asked.epsilon)


def warn_if_weak(epsilon: float) -> None:
    """Warn if epsilon is too large for a meaningful guarantee."""
    if math.isinf(epsilon):
        warnings.warn("--epsilon inf: no noise is added, and the result is not private", UtilityWarning, stacklevel=2)
    elif epsilon > _WEAK:
        warnings.warn(
            f"--epsilon {epsilon:g}: gives almost no protection; above {_WEAK} a result may reveal most of a record "
            "(1 is strong, and values above 10 are rare)",
            UtilityWarning,
            stacklevel=2,
        )


def check_invalid(invalid: str) -> None:
    """Raise unless the option is valid."""
    one_of("invalid", invalid, ("refuse", "zero"), "it defines how rows with missing numbers are treated")
