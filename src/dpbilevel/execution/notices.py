"""What is said before a run charges anything: where noise will dominate, and where little or nothing is protected.

All of it follows from public numbers, the plan's. Warnings come before the charge, so that whoever turns one into an
error has spent nothing. What noise will do is kept as remarks of the plan too, and later of the solution. One warning
comes after a run, of a result that should not be used: it is never an error, since the result has been paid for.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpbilevel.errors import NotPrivateWarning, PrivacyLeakWarning, UtilityWarning
from dpbilevel.privacy.accounting import Chargeable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.spend import Privacy

TRAINING_LIMIT = 0.3  # noise to signal of a training step, above which the model is worth little
PASS_LIMIT = 1.0  # the same of one pass of tuning: beyond it, passes have more noise than signal
_RATIO = "noise to signal"
_TRAINING = f"training: {_RATIO}"


def noise_remarks(
    parameters: Mapping[str, tuple[Any, str]], releases: Sequence[Chargeable], records: int, budget: Budget
) -> tuple[str, ...]:
    """Where the noise of a plan will dominate: in the training of the model, and in the worst release of tuning.

    Args:
        numbers: of the plan; a method states the ratio of a release as "<release>: noise to signal" or
            "<release>, <part>: noise to signal".
        releases: of the plan.
        records: how many there are in all; public.
        budget: of the plan.
    """
    if not budget.is_private:
        return ()
    remarks = []
    if _TRAINING in parameters:
        ratio = float(parameters[_TRAINING][0])
        if ratio > TRAINING_LIMIT:
            remarks.append(
                f"{records:,} records are few for epsilon = {budget.epsilon:g}: the planned noise to signal of a "
                f"training step, sigma sqrt(d)/(n C), is {ratio:.2g}; more records, fewer columns or a larger epsilon "
                f"make it smaller (below {TRAINING_LIMIT:g} is good)"
            )
    ratio, what, has = max(_of_tuning(parameters, releases), default=(0.0, "", 0))
    if ratio > PASS_LIMIT:
        remarks.append(
            f"Tuning has more noise than signal: the planned noise to signal of a step ({what}) is {ratio:.2g} with "
            f"{has:,} records; about {math.ceil(has * ratio / PASS_LIMIT):,} would bring it to {PASS_LIMIT:g}, with as "
            "many numbers to tune; otherwise tune fewer, or with a larger epsilon"
        )
    return tuple(remarks)


def _of_tuning(
    parameters: Mapping[str, tuple[Any, str]], releases: Sequence[Chargeable]
) -> Iterator[tuple[float, str, int]]:
    """(ratio, what has it, how many records it reads) of every release that is not the training's."""
    for name, (ratio, _) in parameters.items():
        what, _, kind = name.rpartition(": ")
        if kind != _RATIO or name == _TRAINING:
            continue
        for release in releases:
            if isinstance(release, Release) and what.partition(", ")[0] == release.name:
                yield float(ratio), what, sum(part.count for part in release.contributions.values())


def warn_beforehand(privacy: Privacy, remarks: Sequence[str], stacklevel: int) -> None:
    """Warn of what the guarantee does not cover, of noise that will dominate, and of an infinite epsilon.

    ``stacklevel`` counts from the caller, as in `warnings.warn`.
    """
    for caveat in privacy.caveats:
        warnings.warn(caveat, PrivacyLeakWarning, stacklevel=stacklevel + 1)
    for remark in remarks:
        warnings.warn(remark, UtilityWarning, stacklevel=stacklevel + 1)
    if not privacy.budget.is_private:
        warnings.warn(
            "epsilon is infinite: neither noise nor clipping is applied, and the result is NOT private; give a finite "
            "epsilon for a private run",
            NotPrivateWarning,
            stacklevel=stacklevel + 1,
        )


def warn_afterwards(sentence: str, stacklevel: int) -> None:
    """Warn of a result that should not be used. Where warnings are errors it is shown, and the result still returned.

    ``stacklevel`` counts from the caller, as in `warnings.warn`.
    """
    try:
        warnings.warn(sentence, UtilityWarning, stacklevel=stacklevel + 1)
    except UtilityWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UtilityWarning)
            warnings.warn(sentence, UtilityWarning, stacklevel=stacklevel + 1)
