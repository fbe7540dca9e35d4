"""What baselines that are methods have in common: they can be solved with on their own."""

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
    """A method with `solve` as a function of its own, so that all baselines are called in the same way."""

    @abstractmethod
    def program(self, context: PublicContext) -> tuple[Program, dict[str, tuple[Any, str]]]:
        """Write the baseline out for a problem; no record is involved."""

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
