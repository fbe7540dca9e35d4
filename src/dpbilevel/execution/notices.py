"""Warnings before the charge: where noise will dominate, and where the guarantee is weak or absent.

All of them follow from the plan, which is public. They come before the charge, so that nothing is spent where warnings
are turned into errors. Warnings about noise are also remarks of the plan and of the solution. One warning comes after a
run, if its result should not be used. It never raises, because the result has been paid for.
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

TRAINING_LIMIT = 0.07  # noise-to-signal ratio of training above which models may not beat a constant
PASS_LIMIT = 1.0  # noise-to-signal ratio of a tuning step above which it has more noise than signal
_MOST_MEMORY = 2.0  # times that of rows
_RATIO = "noise to signal"
TRAINING_RATIO = f"training: {_RATIO}"


def noise_remarks(
    parameters: Mapping[str, tuple[Any, str]], releases: Sequence[Chargeable], records: int, budget: Budget
) -> tuple[str, ...]:
    """Remarks on where noise will dominate: in the training of the model, and in the noisiest release of tuning.

    Args:
        parameters: parameters of the plan; a method states the ratio of a release as "<release>: noise to signal" or
            "<release>, <part>: noise to signal".
        releases: releases of the plan.
        records: total number of records, which is public.
        budget: budget of the plan.
    """
    if not budget.is_private:
        return ()
    remarks = []
    if TRAINING_RATIO in parameters:
        ratio = float(parameters[TRAINING_RATIO][0])
        if ratio > TRAINING_LIMIT:
            remarks.append(
                f"{records:,} records are few for epsilon = {budget.epsilon:g}: the planned noise to signal of "
                f"training, sigma sqrt(d)/(n C), is {ratio:.2g}; more records, fewer columns or a larger epsilon "
                f"make it smaller (below {TRAINING_LIMIT:g} is good)"
            )
    ratio, name, count = max(_tuning_ratios(parameters, releases), default=(0.0, "", 0))
    if ratio > PASS_LIMIT:
        remarks.append(
            f"Tuning has more noise than signal: the planned noise to signal of a step ({name}) is {ratio:.2g} with "
            f"{count:,} records; about {math.ceil(count * ratio / PASS_LIMIT):,} records would reduce it to "
            f"{PASS_LIMIT:g}; otherwise tune fewer hyperparameters, or use a larger epsilon"
        )
    return tuple(remarks)


def records_needed(records: int, ratio: float) -> int:
    """About how many records bring the noise to signal of training from ``ratio`` to `TRAINING_LIMIT`.

    The same epsilon and delta are assumed; it is approximate, because the share of tuning depends on the number.

    >>> records_needed(1000, 0.14)
    2000
    """
    return max(2, math.ceil(records * ratio / TRAINING_LIMIT))


def memory_remarks(rows_per_unit: int | None, mean_rows: float | None) -> tuple[str, ...]:
    """A remark on units that take much more memory than their rows, where they are not packed.

    >>> memory_remarks(8, 4.0), len(memory_remarks(8, 2.0))
    ((), 1)
    """
    if rows_per_unit is None or mean_rows is None or rows_per_unit <= _MOST_MEMORY * mean_rows:
        return ()
    return (
        f"Units have {rows_per_unit} places for rows each, on a GPU, on several devices and in a black box: with "
        f"{mean_rows:g} rows on average (mean_rows), that is {rows_per_unit / mean_rows:.2g} times the memory of their "
        "rows; a smaller rows_per_unit needs less",
    )


def _tuning_ratios(
    parameters: Mapping[str, tuple[Any, str]], releases: Sequence[Chargeable]
) -> Iterator[tuple[float, str, int]]:
    """(ratio, name of the release or its part, number of records) of every release of tuning."""
    for name, (ratio, _) in parameters.items():
        title, _, kind = name.rpartition(": ")
        if kind != _RATIO or name == TRAINING_RATIO:
            continue
        for release in releases:
            if isinstance(release, Release) and title.partition(", ")[0] == release.name:
                yield float(ratio), title, sum(part.count for part in release.contributions.values())


def warn_beforehand(privacy: Privacy, remarks: Sequence[str], stacklevel: int) -> None:
    """Warn about caveats of the guarantee, about noise that will dominate, and about an infinite epsilon.

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
    """Warn about a result that should not be used. Where warnings are errors, the warning is shown but not raised.

    ``stacklevel`` counts from the caller, as in `warnings.warn`.
    """
    try:
        warnings.warn(sentence, UtilityWarning, stacklevel=stacklevel + 1)
    except UtilityWarning:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UtilityWarning)
            warnings.warn(sentence, UtilityWarning, stacklevel=stacklevel + 1)
