"""The split into validation and training rows: by a public permutation of positions, independent of content.

Units are split by a public hash of their ids, which leaves this module as an order only.

This is the only module of the estimators that draws random numbers. They are public and follow from a given seed.
"""

import hashlib
from typing import Any

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
    _check_seed(split_seed)
    validating = validation_rows(rows, validation_fraction)
    order = np.random.default_rng(split_seed).permutation(rows)
    return order[:validating], order[validating:]


def split_by_hash(ids: npt.NDArray[Any], validation_fraction: float, split_seed: int) -> tuple[Positions, Positions]:
    """Places of validation units and of training units in a list of distinct ids, at least one of each.

    >>> validation, training = split_by_hash(np.array(["ada", "bob", "cyd", "dan"]), 0.25, split_seed=0)
    >>> len(validation), len(training)
    (1, 3)
    """
    _check_seed(split_seed)
    key = f"dpbilevel role of a unit {int(split_seed)}".encode()[:64]
    hashes = [hashlib.blake2b(str(one).encode(), key=key, digest_size=16).digest() for one in ids.tolist()]
    order = np.array(sorted(range(len(hashes)), key=hashes.__getitem__), np.intp)
    validating = validation_rows(len(ids), validation_fraction)
    return order[:validating], order[validating:]


def _check_seed(split_seed: int) -> None:
    if isinstance(split_seed, bool) or not isinstance(split_seed, int | np.integer) or split_seed < 0:
        raise InvalidArgument(f"split_seed={split_seed!r}: must be a whole number >= 0; it is public (try 0)")


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
