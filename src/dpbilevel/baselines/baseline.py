"""The base class of baselines that are methods."""

from abc import ABC, abstractmethod
from typing import Any

from dpbilevel.execution.program import Program
from dpbilevel.methods.context import PublicContext
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records
from dpbilevel.solution.solution import Solution
from dpbilevel.solving import solve

Tree = Any


class Baseline(ABC):
    """A method with its own `solve`, so that all baselines are called in the same way."""

    @abstractmethod
    def program(self, context: PublicContext) -> tuple[Program, dict[str, tuple[Any, str]]]:
        """The program of the baseline for a problem; it involves no records."""

    def solve(
        self,
        problem: BilevelProblem,
        records: Records,
        budget: Budget,
        *,
        start: tuple[Tree, Tree] | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> Solution:
        """The same as ``dpb.solve(problem, records, budget, method=self, start=start, ...)``."""
        return solve(problem, records, budget, method=self, start=start, ledger=ledger, seed=seed, progress=progress)
