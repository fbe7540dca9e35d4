"""Counts the clones of an estimator that cross-validation and searches make, to warn of uncovered releases.

Each fit of a clone spends its own epsilon. Using the scores of clones on private rows, in particular to choose among
them, is covered by none of these guarantees. A ledger does not change that: it counts fits, not scores.

The count is part of the state of an estimator, not of the process: it is pickled along with it to the workers of
``n_jobs``, and clones of a clone inherit it. Clones made by the workers themselves cannot be counted; there the first
one already counts as one of several.
"""

import os
import threading
import time
import warnings
from typing import Any

from sklearn.base import BaseEstimator

from dpbilevel.errors import PrivacyLeakWarning

PRIVATE_WAY = (
    "fit tunes by itself: fit once, on all training rows, and score held-out rows with dpb.evaluate; for several fits, "
    "ledger= tracks the total. Splits must depend on positions alone (KFold(shuffle=True, random_state=...)): never "
    "stratify, and never sort by content first"
)

_LOCK = threading.Lock()
_STARTED = time.time_ns()


class CountedCopies(BaseEstimator):
    """An estimator whose clones store how many there are."""

    def __sklearn_clone__(self) -> Any:
        copy = super().__sklearn_clone__()
        with _LOCK:  # workers may be threads
            self._copies = made = getattr(self, "_copies", 0) + 1
        elsewhere = getattr(self, "_pickled_in", _process()) != _process()
        copy._copy_number = max(made + elsewhere, getattr(self, "_copy_number", 1))
        return copy

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if not hasattr(self, "solution_"):  # not fitted yet: a worker may fit it, and its warnings may not be shown
            self._warn_of_copies(stacklevel=3)
            state["_pickled_in"] = _process()
        return state

    def _copies_caveat(self) -> str | None:
        """The caveat of a fit, from the second clone on."""
        number = getattr(self, "_copy_number", 1)
        # With fixed noise the result is not private at all, and is marked so.
        if number == 1 or getattr(self, "random_state", None) is not None:
            return None
        return (
            f"this is at least clone number {number} of an estimator, as made by cross-validation and searches, and "
            "the guarantee covers this fit alone: not the fits of other clones, not scores on private rows or choices "
            "based on them, and not splits that depend on content"
        )

    def _warn_of_copies(self, stacklevel: int) -> None:
        caveat = self._copies_caveat()
        if caveat is not None:
            warnings.warn(f"{caveat}. Instead, {PRIVATE_WAY}", PrivacyLeakWarning, stacklevel=stacklevel + 1)


def _process() -> tuple[int, int]:
    """Identifies this process, also across machines: process identifiers alone are reused."""
    return os.getpid(), _STARTED
