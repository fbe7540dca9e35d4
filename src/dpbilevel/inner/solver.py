"""The contract of a private solver of the lower level, and the minimisation that it is handed.

A round of `DPBilevel` asks for two approximate minimisers over y, at a released x: of g(x, y), and of the penalised
f(x, y)/penalty + g(x, y). Each is an `InnerProblem`; an `InnerSolver` says how it is solved and what that costs.
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
Parameters = dict[str, tuple[Any, str]]  # name -> (value, why it is what it is)
Declare = Callable[[int, Sampling], Release]  # (uses in the whole run, ...) -> a release with its share of the budget


@dataclass(frozen=True, eq=False, kw_only=True)
class InnerProblem:
    """One minimisation over y of each round, in public facts.

    Attributes:
        name: of its release, in the ledger and in the report.
        context: the public facts of the run.
        rounds: solves in the whole run, one per round.
        penalty_weight: lambda, for f/lambda + g; None for g alone.
        start: state -> where a solve may begin, released; it has the structure of every y.
        end: (state, solution) -> state; how a stage hands its solution over.
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
        """What f counts beside g: zero, or one over the penalty."""
        return 0.0 if self.penalty_weight is None else 1 / self.penalty_weight

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels whose losses it has."""
        return ("lower",) if self.penalty_weight is None else ("lower", "upper")

    def gradients(self, clip: float, upper_clip: float) -> dict[str, Contribution]:
        """Per-record gradients in y at points (x, y), by role; clips are of one lower and one upper record."""
        if self.penalty_weight is None:
            return by_role(lower_gradients(self.context, clip), self.context)
        levels = penalised_gradients(self.context, self.penalty_weight, clip, upper_clip)
        return by_role(levels, self.context)

    def free_gradient(self, state: State, y: Tree) -> Tree:
        """The gradient in y of the data-free terms, which costs nothing and is added to a noisy answer."""
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
    """A private solver of the lower level: public numbers in a frozen dataclass, and three functions of them.

    Obligations, in the order in which `DPBilevel` asks:

    * `contributions` and `declare` run **before any record is read**, on public facts alone: what one record adds to an
      answer, within which clip, and how many answers the whole run takes. The ledger charges that, and no more is
      handed out. Sensitivity follows from clips and numbers of records; it is never stated.
    * `stage` says where each answer is asked for (``query``) and what becomes of it (``update``). It sees released
      values only: the state, its own carry, and noisy answers. Its ``uses_per_round``, times rounds, are what it
      declared.
    * Noise is the release's. A solver draws no randomness, and nothing that depends on records decides how often it
      asks, what shapes it has, or when it stops.
    * It is hashable and compares by its numbers (a frozen dataclass is, and does): equal solvers make the same plan.

    A solver that cannot be written as answers to releases, because it is a program from elsewhere, declares its cost
    instead: `declare` returns a `DeclaredRelease`, ``calibrated`` is False, and the guarantee rests on its word. That
    is what `BlackBox` does.
    """

    calibrated: ClassVar[bool] = True  # whether noise is given to it by the budget; False where it brings its own

    def missing(self) -> Mapping[str, str]:
        """Settings that were not given and follow from certified constants alone, and what to give without these."""
        return {}

    def contributions(self, problem: InnerProblem) -> Mapping[str, Contribution]:
        """What one record adds to an answer, by role, with its clip; nothing where the cost is declared."""
        return {}

    @abstractmethod
    def declare(self, problem: InnerProblem, declare: Declare) -> Release | DeclaredRelease:
        """What all solves of the run ask for: ``declare(uses, sampling)``, or a declared cost.

        A release from ``declare`` has the noise at which its uses spend the share of this problem; the whole run is
        calibrated after that.
        """

    @abstractmethod
    def stage(self, problem: InnerProblem, release: Any) -> tuple[Stage | Call, Parameters]:
        """One solve as a stage of a round, and its numbers with reasons; ``release`` is as declared, with its noise."""
