"""The split into validation and training rows: by a public permutation of positions, independent of content.

This is the only module of the estimators that draws random numbers. They are public and follow from a given seed.
"""

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument

Positions = npt.NDArray[np.intp]


def split(rows: int, validation_fraction: float, split_seed: int) -> tuple[Positions, Positions]:
    """Positions of validation rows and of training rows, at least one of each.

    >>> validation, training = split(10, 0.2, split_seed=0)
    >>> len(validation), sorted([*validation.tolist(), *training.tolist()]) == list(range(10))
    (2, True)
    """
    if isinstance(split_seed, bool) or not isinstance(split_seed, int | np.integer) or split_seed < 0:
        raise InvalidArgument(f"split_seed={split_seed!r}: must be a whole number >= 0; it is public (try 0)")
    validating = validation_rows(rows, validation_fraction)
    order = np.random.default_rng(split_seed).permutation(rows)
    return order[:validating], order[validating:]


def validation_rows(rows: int, validation_fraction: float) -> int:
    """The number of validation rows: at least one, and at least one row remains for training.

    >>> validation_rows(10, 0.2)
    2
    """
    if isinstance(validation_fraction, bool) or not isinstance(validation_fraction, int | float | np.number):
        raise InvalidArgument(
            f"validation_fraction={validation_fraction!r}: must be a number between 0 and 1 (try 0.2)"
        )
    if not 0 < validation_fraction < 1:
        raise InvalidArgument(f"validation_fraction={validation_fraction!r}: must lie between 0 and 1 (try 0.2)")
    return min(max(1, round(rows * validation_fraction)), rows - 1)
