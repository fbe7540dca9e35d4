"""DP-Loc-GD (Algorithm 2 of the paper): localised noisy gradient descent for strongly convex objectives.

There are M rounds. Round m takes T_GD projected noisy gradient steps in the ball of radius R_m around its starting
point, with step sizes 1/(mu (t + 1)). The next round starts at its averaged iterate. With the statistical scale
A = Delta / (mu mu_solve) (Delta: sensitivity of one gradient, mu_solve: GDP budget of one solve),

    R_m = c (sqrt(R_{m-1} A) + A sqrt(d_y)),      M = max(1, ceil(log2 log2(R_0 / A))).

This differs from the paper in three ways. Its M = log2 log(1/A) depends on the units of y and may be undefined. Its
T_GD = n^2 steps, which make the optimisation error negligible, are not affordable; A is therefore at least the
optimisation error C / (mu sqrt(T_GD)) of the averaged iterate, so that the balls never shrink faster than T_GD steps
can follow. The average is over y_1, ..., y_T: with y_0, ..., y_{T-1} the last gradient of a round would be charged but
not used.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpbilevel.constants import Constants
from dpbilevel.constraints import into_ball, project
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Stage, State
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.foundation.structure import function, passing
from dpbilevel.inner.solver import Declare, InnerProblem, InnerSolver, Parameters
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import FullBatch, Poisson, Sampling, check_sampling

Tree = Any

_RADII = 8  # rounds that compiled code has room for, or a multiple of it; their number depends on the noise
_CONVEXITY = "DPLocGD needs mu_g, a public number; a regulariser (w/2)||y||^2 in lower_term gives w"


@dataclass(frozen=True)
class Localisation:
    """The schedule of one solve: public numbers only."""

    strong_convexity: float
    radii: tuple[float, ...]
    steps: int
    largest_step: float

    @property
    def total_steps(self) -> int:
        """Gradient steps of one solve: M * T_GD."""
        return len(self.radii) * self.steps


@dataclass(frozen=True, kw_only=True)
class DPLocGD(InnerSolver):
    """DP-Loc-GD, the paper's private solver for the lower level (Algorithm 2).

    Args:
        strong_convexity: mu_g, public; from ``problem.constants`` by default.
        radius: R_0, an upper bound on the distance of the solution from any starting point, public;
            2 * clip_norm / mu_g by default (Remark 1 of the paper, with the clip norm as Lipschitz constant).
        clip_norm: bound on the norm of each record's lower gradient; the paper uses the Lipschitz constant L0g.
        upper_clip_norm: bound for each record's upper gradient in the penalised solve; ``clip_norm`` by default.
        smoothness: L1g, public, if known: caps the first step sizes at 1/L1g, where the paper relies on the ball alone.
        steps: T_GD, gradient steps per round.
        rounds: M; from the formula above by default.
        radius_factor: c, the constant hidden in the O(.) of the paper's radii.
    """

    strong_convexity: float | None = None
    radius: float | None = None
    clip_norm: float = 1.0
    upper_clip_norm: float | None = None
    smoothness: float | None = None
    steps: int = 50
    rounds: int | None = None
    radius_factor: float = 1.0

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm, "it bounds each record's gradient norm (try 1.0)")
        positive("radius_factor", self.radius_factor, "it scales the radii (try 1.0)")
        count("steps", self.steps, "it is the number of gradient steps per round (try 50)")
        if self.rounds is not None:
            count("rounds", self.rounds, "it is the number of localisation rounds (try None for the formula)")
        for name in ("strong_convexity", "radius", "upper_clip_norm", "smoothness"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), "it is a public bound of the lower level")

    def gradient_sampling(self) -> Sampling:
        """The sampling scheme of a gradient: the full batch."""
        return FullBatch()

    def missing(self) -> dict[str, str]:
        """mu_g, if it was not given."""
        return {} if self.strong_convexity is not None else {"strong_convexity": _CONVEXITY}

    def convexity(self, constants: Constants | None) -> float:
        """mu_g, given or from certified constants."""
        if self.strong_convexity is not None:
            return self.strong_convexity
        if constants is None:
            raise InvalidArgument(f"strong_convexity=None: {_CONVEXITY} (or declare BilevelProblem(constants=...))")
        return constants.strong_convexity

    def localise(
        self,
        strong_convexity: float,
        noise_to_convexity: float,
        dimension: int,
        smoothness: float | None,
        rounds: int | None = None,
    ) -> Localisation:
        """The radii of all rounds.

        Args:
            strong_convexity: of the objective.
            noise_to_convexity: Delta / (mu mu_solve), zero without privacy.
            dimension: d_y.
            smoothness: of the objective, if known.
            rounds: M, if already determined.
        """
        radius = self.radius if self.radius is not None else 2 * self.clip_norm / strong_convexity
        floor = min(radius / 2, self.clip_norm / (strong_convexity * math.sqrt(self.steps)))
        scale = max(noise_to_convexity, floor)
        rounds = rounds or self.rounds
        if rounds is None:
            doublings = math.log2(radius / scale) if radius > scale else 1.0
            rounds = max(1, math.ceil(math.log2(doublings))) if doublings > 1 else 1
        radii = [radius]
        for _ in range(rounds - 1):
            shrunk = self.radius_factor * (math.sqrt(radii[-1] * scale) + scale * math.sqrt(dimension))
            radii.append(min(radii[-1], shrunk))
        largest_step = math.inf if smoothness is None else 1 / smoothness
        return Localisation(strong_convexity, tuple(radii), self.steps, largest_step)

    def contributions(self, problem: InnerProblem) -> dict[str, Contribution]:
        """Gradients in y."""
        return problem.gradients(self.clip_norm, self.upper_clip_norm or self.clip_norm)

    def declare(self, problem: InnerProblem, declare: Declare) -> Release:
        """All gradient steps of all rounds."""
        # The noise of one use per solve, at the share of the budget of a solve, determines the radii.
        private, sampling = problem.context.budget.is_private, self.gradient_sampling()
        noise = declare(problem.rounds, sampling).noise_std if private else 0.0
        return declare(problem.rounds * self._schedule(problem, noise).total_steps, sampling)

    def stage(self, problem: InnerProblem, release: Release) -> tuple[Stage, Parameters]:
        """One solve as a stage, and the parameters of its schedule."""
        # The radii follow from the calibrated noise, including amplification; the number of steps is as declared.
        uses = release.uses // problem.rounds
        noise = release.noise_std / math.sqrt(uses)
        schedule = self._schedule(problem, noise, uses // self.steps)
        return self._stage(problem, release, schedule), self._parameters(problem, schedule)

    def _schedule(self, problem: InnerProblem, noise: float, rounds: int | None = None) -> Localisation:
        constants, weight = problem.context.problem.constants, problem.penalty_weight
        convexity = self.convexity(constants)
        smoothness = self.smoothness or (constants.lower_smoothness if constants else None)
        if weight is not None and constants is not None:
            convexity = convexity - constants.upper_smoothness / weight
            if convexity <= 0:
                needed = 2 * constants.upper_smoothness / self.convexity(constants)
                raise InvalidArgument(
                    f"penalty_weight={weight!r}: f/penalty + g is not strongly convex; must exceed "
                    f"L1f/mu_g (Algorithm 1 requires 2 L1f/mu_g = {needed!r})"
                )
            smoothness = None if smoothness is None else smoothness + constants.upper_smoothness / weight
        return self.localise(convexity, noise / convexity, problem.context.y_dimension, smoothness, rounds)

    def _parameters(self, problem: InnerProblem, schedule: Localisation) -> Parameters:
        formula = "M = max(1, ceil(log2 log2(R_0/A)))"
        convexity = "mu_g, of g; steps 1/(mu (t+1))"
        if problem.penalty_weight is not None:
            convexity = (
                "mu_g - L1f/penalty, of f/penalty + g; steps 1/(mu (t+1))"
                if problem.context.problem.constants
                else "mu_g, assuming f convex in y (otherwise declare constants); steps 1/(mu (t+1))"
            )
        name = problem.name
        return {
            f"{name}: rounds": (len(schedule.radii), formula if self.rounds is None else "M, as given"),
            f"{name}: steps per round": (schedule.steps, "T_GD, as given"),
            f"{name}: radii": (schedule.radii, "R_m = c (sqrt(R_{m-1} A) + A sqrt(d_y)), non-increasing"),
            f"{name}: strong convexity": (schedule.strong_convexity, convexity),
        }

    def _stage(self, problem: InnerProblem, release: Release, schedule: Localisation) -> Stage:
        radii = np.zeros(-(-len(schedule.radii) // _RADII) * _RADII, np.float32)
        radii[: len(schedule.radii)] = schedule.radii
        convexity, largest_step = float(schedule.strong_convexity), float(schedule.largest_step)
        steps = _Steps(problem, convexity, radii, schedule.steps, largest_step)
        return Stage(
            release=release,
            uses_per_round=schedule.total_steps,
            begin=function(_Steps.begin, steps),
            query=_query,
            update=function(_Steps.update, steps),
            end=function(_Steps.end, steps),
        )


@dataclass(frozen=True, kw_only=True)
class DPLocSGD(DPLocGD):
    """DP-Loc-SGD, the paper's mini-batch solver for the lower level (Algorithm 4).

    Same schedule and arguments as `DPLocGD`, with gradients on random batches. A batch adds sampling noise to the
    privacy noise: it saves time if a pass over the data is expensive, and never improves accuracy at the same number of
    steps. The paper samples with replacement, which costs by far the most privacy; `Poisson` costs the least.

    Args:
        sampling: `Poisson(rate)`, `WithoutReplacement(size)` or `WithReplacement(size)`.
    """

    sampling: Sampling = field(default_factory=lambda: Poisson(0.1))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampling(self.sampling)

    def gradient_sampling(self) -> Sampling:
        """The sampling scheme of a gradient."""
        return self.sampling


@passing("problem", "strong_convexity", "radii", "steps", "largest_step")
@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of one solve.

    Args:
        problem: the minimisation.
        strong_convexity: of its objective.
        radii: of the balls, one for each round, then zeros.
        steps: gradient steps per round.
        largest_step: bound on the step sizes.
    """

    problem: InnerProblem
    strong_convexity: float
    radii: Any
    steps: int
    largest_step: float

    def begin(self, state: State) -> Tree:
        y = self.problem.start(state)
        return {"y": y, "centre": y, "sum": optax.tree.zeros_like(y)}

    def update(self, state: State, carry: Tree, answer: Tree, step: jax.Array) -> Tree:
        inside = step % self.steps
        size = jnp.minimum(1 / (self.strong_convexity * (inside + 1)), self.largest_step)
        gradient = optax.tree.add(answer, self.problem.free_gradient(state, carry["y"]))
        moved = project(self.problem.context.problem.lower_domain, _descend(carry["y"], gradient, size))
        moved = into_ball(moved, carry["centre"], jnp.asarray(self.radii)[step // self.steps])
        # The paper averages y_0, ..., y_{T-1}, which pays for the last answer without using it.
        summed = optax.tree.add(carry["sum"], moved)
        last = inside == self.steps - 1
        average = optax.tree.scale(1 / self.steps, summed)
        return {
            "y": _choose(last, average, moved),
            "centre": _choose(last, average, carry["centre"]),
            "sum": _choose(last, optax.tree.zeros_like(summed), summed),
        }

    def end(self, state: State, carry: Tree) -> State:
        return self.problem.end(state, carry["y"])


def _query(state: State, carry: Tree, step: jax.Array) -> Tree:
    return state["x"], carry["y"]


def _descend(y: Tree, gradient: Tree, size: jax.Array) -> Tree:
    return jax.tree.map(lambda leaf, direction: (leaf - size * direction).astype(leaf.dtype), y, gradient)


def _choose(condition: jax.Array, one: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), one, other)
