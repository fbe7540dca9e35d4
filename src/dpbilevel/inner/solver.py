"""The interface of private solvers of the lower level, and the minimisation problem that they solve.

Each round of `DPBilevel` needs two approximate minimisers over y, at a released x: of g(x, y), and of the penalised
f(x, y)/penalty + g(x, y). Each is an `InnerProblem`. An `InnerSolver` defines how it is solved and what that costs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from dpbilevel.execution.program import Call, Stage, State
from dpbilevel.foundation.structure import function, register
from dpbilevel.methods.context import PublicContext, Setting
from dpbilevel.methods.contributions import by_role, lower_gradients, penalised_gradients
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import Sampling

Tree = Any
Parameters = dict[str, tuple[Any, str]]  # name -> (value, reason)
Declare = Callable[[int, Sampling], Release]  # (uses in the whole run, ...) -> a release with its share of the budget


@dataclass(frozen=True, eq=False, kw_only=True)
class InnerProblem:
    """One minimisation over y in each round, described by public facts.

    Attributes:
        name: the name of its release, in the ledger and in the report.
        context: the public facts of the run.
        rounds: the number of solves in the run, one per round.
        penalty_weight: lambda, for f/lambda + g; None for g alone.
        start: state -> a released starting point, with the structure of y.
        end: (state, solution) -> the state with the solution stored.
    """

    name: str
    context: PublicContext
    rounds: int
    penalty_weight: float | None
    start: Callable[[State], Tree]
    end: Callable[[State, Tree], State]

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, function(getattr(self, name)))

    @property
    def upper_weight(self) -> float:
        """The weight of f relative to g: zero, or one over the penalty weight."""
        return 0.0 if self.penalty_weight is None else 1 / self.penalty_weight

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels whose losses are part of the objective."""
        return ("lower",) if self.penalty_weight is None else ("lower", "upper")

    def gradients(self, clip: float, upper_clip: float) -> dict[str, Contribution]:
        """Per-record gradients in y at points (x, y), by role; ``upper_clip`` is for upper records."""
        if self.penalty_weight is None:
            return by_role(lower_gradients(self.context, clip), self.context)
        levels = penalised_gradients(self.context, self.penalty_weight, clip, upper_clip)
        return by_role(levels, self.context)

    def free_gradient(self, state: State, y: Tree) -> Tree:
        """The gradient in y of the data-free terms, to be added to a noisy gradient; it costs no privacy."""
        problem = self.context.problem

        def terms(x: Tree, y: Tree) -> Any:
            return self.upper_weight * problem.term("upper")(x, y) + problem.term("lower")(x, y)

        return jax.grad(terms, 1)(state["x"], y)


# Compiled code sees the setting in place of the context, whose budget is not for it to read.
register(
    InnerProblem,
    lambda problem: (
        {name: getattr(problem, name) for name in ("penalty_weight", "start", "end")},
        {"context": problem.context if isinstance(problem.context, Setting) else problem.context.setting},
    ),
)


class InnerSolver(ABC):
    """A private solver of the lower level: a frozen dataclass of public settings with three functions.

    Requirements, in the order in which `DPBilevel` calls the functions:

    * `contributions` and `declare` run **before any record is read**, on public facts alone. They define what one
      record contributes to a noisy answer, its clip norm, and the number of answers in the entire run. The ledger
      charges exactly that, and a run cannot use more. The sensitivity is computed from clip norms and record counts.
    * `stage` defines the point of each query (``query``) and the update from its noisy answer (``update``). It sees
      released values only: the state, its own carry, and noisy answers. Its ``uses_per_round`` times the number of
      rounds must equal the declared number of uses.
    * The release draws the noise. A solver draws no randomness, and its number of queries, its shapes and its stopping
      rule do not depend on records.
    * It is hashable and compares by value, as frozen dataclasses do: equal solvers make the same plan.

    An external program that cannot be expressed as queries declares its cost instead: `declare` returns a
    `DeclaredRelease`, ``calibrated`` is False, and the guarantee relies on the declaration. `BlackBox` does this.
    """

    calibrated: ClassVar[bool] = True  # whether its noise is calibrated to the budget; False if it adds its own noise

    def missing(self) -> Mapping[str, str]:
        """Settings that were not given and can only be derived from certified constants, each with a remedy."""
        return {}

    def contributions(self, problem: InnerProblem) -> Mapping[str, Contribution]:
        """What one record contributes to an answer, by role, with its clip norm; empty if the cost is declared."""
        return {}

    @abstractmethod
    def declare(self, problem: InnerProblem, declare: Declare) -> Release | DeclaredRelease:
        """The release of all solves of the run, from ``declare(uses, sampling)``, or a declared cost.

        The noise of a release from ``declare`` is such that its uses spend the share of this problem; the entire run is
        calibrated afterwards.
        """

    @abstractmethod
    def stage(self, problem: InnerProblem, release: Any) -> tuple[Stage | Call, Parameters]:
        """One solve as a stage of a round, and its parameters with reasons; ``release`` is as declared, calibrated."""
