"""Copies of an estimator, as cross-validation and searches make them: a copy knows that it is one of several.

Each fit of such a copy spends an epsilon of its own, and what is done with the scores of copies on private rows, a
choice above all, is covered by none of them. No ledger changes that: it counts fits, not scores.

What a copy knows is part of its state, not of a process: it travels with a pickle into the workers of ``n_jobs``, and
the copies of a copy have it too. Where copies are made by the workers themselves, nobody can count them: there the
first one already counts as one of several.
"""

import os
import threading
import time
import warnings
from typing import Any

from sklearn.base import BaseEstimator

from dpbilevel.errors import PrivacyLeakWarning

PRIVATE_WAY = (
    "fit tunes by itself: fit once, on all training rows, and score held-out rows with dpb.evaluate; ledger= keeps the "
    "total where several fits are meant. A split must go by position alone (KFold(shuffle=True, random_state=...)), "
    "never be stratified, and never follow a sort by content"
)

_LOCK = threading.Lock()
_STARTED = time.time_ns()


class CountedCopies(BaseEstimator):
    """An estimator whose clones know how many there are."""

    def __sklearn_clone__(self) -> Any:
        copy = super().__sklearn_clone__()
        with _LOCK:  # workers may be threads
            self._copies = made = getattr(self, "_copies", 0) + 1
        elsewhere = getattr(self, "_pickled_in", _process()) != _process()
        copy._copy_number = max(made + elsewhere, getattr(self, "_copy_number", 1))
        return copy

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if not hasattr(self, "solution_"):  # it is still to be fitted, perhaps by a worker whose warnings nobody sees
            self._warn_of_copies(stacklevel=3)
            state["_pickled_in"] = _process()
        return state

    def _copies_caveat(self) -> str | None:
        """What the guarantee of one fit does not cover, from the second copy on."""
        number = getattr(self, "_copy_number", 1)
        # Where noise is fixed the result is not private at all, and says so.
        if number == 1 or getattr(self, "random_state", None) is not None:
            return None
        return (
            f"this is copy number {number}, or a later one, of an estimator, as cross-validation and searches make "
            "them, and the guarantee covers its own fit alone: neither the fits of other copies, nor scores on private "
            "rows and a choice by them, nor a split that looks at content"
        )

    def _warn_of_copies(self, stacklevel: int) -> None:
        caveat = self._copies_caveat()
        if caveat is not None:
            warnings.warn(f"{caveat}. Instead, {PRIVATE_WAY}", PrivacyLeakWarning, stacklevel=stacklevel + 1)


def _process() -> tuple[int, int]:
    """This process, among those of this machine and of others: identifiers alone are used again."""
    return os.getpid(), _STARTED
