"""DP Bilevel (Algorithm 1 of the paper): a penalty method with two private solves and one private step per round.

    y_t  ~ argmin_y g(x_t, y)                                    a private solve
    z_t  ~ argmin_y f(x_t, y)/penalty + g(x_t, y)                a private solve (the paper's y^lambda)
    G_t  = grad_x f(x_t, z_t) + penalty (grad_x g(x_t, z_t) - grad_x g(x_t, y_t)) + noise
    x_t+1 = Proj_X(x_t - step_size G_t)

The output is the x_t with the smallest step ||x_t+1 - x_t||. All iterates are released, so that the choice is free.

The contribution of a record to G_t is clipped as a whole, not term by term, because its terms nearly cancel. Clipping
also makes privacy unconditional: the paper's sensitivity holds only if the private solves are accurate.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from dpbilevel.constraints import Domain, project
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Call, Program, Stage, State
from dpbilevel.foundation.arguments import count, one_of, positive
from dpbilevel.foundation.structure import function, passing
from dpbilevel.inner.loc_gd import DPLocGD
from dpbilevel.inner.solver import Declare, InnerProblem, InnerSolver, Parameters
from dpbilevel.methods.context import PublicContext, free_gradients
from dpbilevel.methods.contributions import by_role, shares_by_role
from dpbilevel.methods.dp_bilevel.curvature import check_curvature
from dpbilevel.methods.dp_bilevel.sensitivity import WAYS, ClipNorm, bounded_hypergradients
from dpbilevel.paper.split import PaperSplit
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import FullBatch, Sampling, check_sampling
from dpbilevel.problem import BilevelProblem

Tree = Any

_LOWER, _PENALISED, _HYPERGRADIENT = "lower solve", "penalised solve", "hypergradient"
_STEP_SIZE = "try a tenth of the distance you expect x to move, divided by the norm of the hypergradient"
_PENALTY_WEIGHT = 10.0  # unless Algorithm 1 requires more
_OUTPUTS = {
    "smallest-step": "the iterate followed by the smallest step; free, because all iterates are released",
    "last": "the last iterate at which the lower level was solved",
}


@dataclass(frozen=True, kw_only=True)
class DPBilevel:
    """DP Bilevel, the paper's Algorithm 1, and its mini-batch form, Algorithm 3.

    Guarantee: the entire run, including every x_t, y_t and z_t, satisfies the budget of `solve` for the stated
    neighbouring relation, for any losses and records.

    Without arguments it runs if the problem certifies its constants. All parameters are then those of the theorem,
    which holds for worst-case records: steps are tiny, and x hardly moves. Set ``step_size`` and ``penalty_weight`` for
    useful progress; privacy does not depend on them.

    Args:
        inner: the private solver of the lower level: `DPLocGD`, `DPLocSGD`, a `BlackBox` trainer, or any `InnerSolver`.
        penalty_weight: lambda; at least max{2 L1f/mu_g, L0f/L0g, L1f/L1g} if constants are declared. None takes 10, or
            that bound if it is larger.
        steps: T, outer steps.
        step_size: eta; 1/(2L) from ``problem.constants`` by default.
        clip_norm: bound on the norm of each lower record's contribution to G_t, including the penalty weight;
            "certified" or "released" compute it from ``problem.constants``
            (`dpbilevel.methods.dp_bilevel.sensitivity` describes all three).
        upper_clip_norm: bound for each upper record's contribution; ``clip_norm`` by default.
        warm_start: start each solve at the released solution of the previous round (post-processing, hence free); False
            restarts at y_0 as in the paper.
        split: the shares of mu^2 of lower solves, penalised solves and hypergradients, in this order; "paper" uses the
            noise that the paper prescribes instead of exact calibration, and reports the epsilon that it spends.
        output: "smallest-step", the paper's rule, returns the x_t with the smallest ||x_t+1 - x_t|| (a proxy for the
            norm of the hypergradient); "last" returns x_T-1, for runs too short to become stationary. In both cases y
            is the released solution at the returned x.
        sampling: of the hypergradient's batch; with `DPLocSGD` as inner solver this is Mini-batch DP Bilevel (Algorithm
            3). All terms of G_t use the same batch: with different ones the two terms of g would not cancel.
    """

    inner: InnerSolver = field(default_factory=DPLocGD)
    penalty_weight: float | None = None
    steps: int = 20
    step_size: float | None = None
    clip_norm: ClipNorm = 1.0
    upper_clip_norm: float | None = None
    warm_start: bool = True
    split: tuple[float, float, float] | Literal["paper"] = (1.0, 1.0, 1.0)
    output: Literal["smallest-step", "last"] = "smallest-step"
    sampling: Sampling = field(default_factory=FullBatch)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, InnerSolver) or type(self.inner).__hash__ is None:
            raise InvalidArgument(
                f"inner={self.inner!r}: must be dpb.DPLocGD(...), dpb.DPLocSGD(...), dpb.BlackBox(...) or another "
                "dpb.InnerSolver (a frozen dataclass), a private solver of the lower level"
            )
        as_printed = isinstance(self.split, str) and self.split == "paper"
        if as_printed and not self.inner.calibrated:
            raise InvalidArgument(
                'split="paper": sets the noise of both solves, but a black box adds its own; leave split out'
            )
        if self.penalty_weight is not None:
            positive("penalty_weight", self.penalty_weight, "it is lambda, the weight of the lower level (try 10.0)")
        count("steps", self.steps, "it is the number of outer steps (try 20)")
        if isinstance(self.clip_norm, str):
            one_of("clip_norm", self.clip_norm, WAYS, "or a number, the bound itself (try 1.0)")
            if self.upper_clip_norm is not None:
                raise InvalidArgument(f"upper_clip_norm: clip_norm={self.clip_norm!r} computes it; leave it out")
        else:
            positive("clip_norm", self.clip_norm, "it bounds each record's contribution to the hypergradient (try 1.0)")
        for name in ("step_size", "upper_clip_norm"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), "give a number, or None for its default")
        if not as_printed and (not isinstance(self.split, tuple) or len(self.split) != 3):
            raise InvalidArgument(
                f'split={self.split!r}: must be a tuple of three shares, as in (1.0, 1.0, 1.0), or "paper"'
            )
        check_sampling(self.sampling)
        one_of("output", self.output, ("smallest-step", "last"), "it selects the iterate that is returned")
        for share in self.split if isinstance(self.split, tuple) else ():
            positive("split", share, "it shares mu^2 between lower solves, penalised solves and hypergradients")

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """Declare all releases and define the algorithm as a program; no record is involved."""
        budget = context.budget
        weight, step_size, parameters = self._outer_parameters(context.problem)
        weight, step_size = float(weight), float(step_size)
        bounded = bounded_hypergradients(context, weight, self.clip_norm, self.upper_clip_norm)
        if self.inner.calibrated:
            check_curvature(context)
        solves = self._inner_problems(context, weight, bounded.near)
        contributions = {solve.name: self.inner.contributions(solve) for solve in solves}
        contributions[_HYPERGRADIENT] = by_role(bounded.levels, context)
        shares, split_parameters = self._shares(contributions, budget)

        def declare(name: str, uses: int, sampling: Sampling) -> Release:
            release = Release(
                name=name,
                contributions=contributions[name],
                noise_std=1.0,
                uses=uses,
                sampling=sampling,
                adjacency=budget.adjacency,
            )
            return with_shares(release, shares[name], budget)

        asked = [self._asked(solve, partial(declare, solve.name)) for solve in solves]
        fixed = {release.name: release for release in asked if isinstance(release, DeclaredRelease)}
        declared = [release for release in asked if isinstance(release, Release)]
        if contributions[_HYPERGRADIENT]:
            declared.append(declare(_HYPERGRADIENT, self.steps, self.sampling))
        if isinstance(self.split, tuple):
            declared = list(calibrate(declared, budget, tuple(fixed.values())))
        releases = {release.name: release for release in declared}
        stages: list[Stage | Call] = []
        for solve in solves:
            stage, solve_parameters = self.inner.stage(solve, (releases | fixed)[solve.name])
            stages.append(stage)
            split_parameters |= solve_parameters
        hypergradient = releases.get(_HYPERGRADIENT)
        stages.append(self._hypergradient_stage(context, hypergradient, weight, step_size, bounded.scale))
        parameters |= split_parameters | _release_parameters(context, releases, shares, bounded.reason)
        program = Program(rounds=self.steps, stages=stages, start=_start, observe=_observe, finish=self._finish)
        return program, parameters

    def _asked(self, solve: InnerProblem, declare: Declare) -> Release | DeclaredRelease:
        """The release that the inner solver declares for one of the solves, checked: the solver may be a user's."""
        release = self.inner.declare(solve, declare)
        if not isinstance(release, Release | DeclaredRelease) or release.name != solve.name:
            raise InvalidArgument(
                f"inner={self.inner!r}: its declare must return declare(uses, sampling), or a DeclaredRelease "
                f"named {solve.name!r}; this is what the ledger charges"
            )
        return release

    def _inner_problems(
        self, context: PublicContext, weight: float, near: Callable[[Tree, Tree], Tree]
    ) -> tuple[InnerProblem, InnerProblem]:
        """The two solves of a round: of g for y, and of f/penalty + g for z, which ``near`` moves close to y."""
        lower = InnerProblem(
            name=_LOWER,
            context=context,
            rounds=self.steps,
            penalty_weight=None,
            start=_previous_y if self.warm_start else _first_y,
            end=_end_lower,
        )
        penalised = InnerProblem(
            name=_PENALISED,
            context=context,
            rounds=self.steps,
            penalty_weight=weight,
            start=_previous_z if self.warm_start else _first_y,
            end=function(_end_penalised, near),
        )
        return lower, penalised

    def _shares(
        self, contributions: Mapping[str, Mapping[str, Contribution]], budget: Budget
    ) -> tuple[dict[str, dict[str, float]], Parameters]:
        """release -> role -> share of mu^2."""
        if isinstance(self.split, tuple):
            weights = dict(zip((_LOWER, _PENALISED, _HYPERGRADIENT), self.split, strict=True))
            return shares_by_role(weights, contributions), {}
        paper = PaperSplit(budget, self.steps)
        share = self.steps * (paper.mu / budget.mu) ** 2
        claim = (
            f"actually {paper.exact_epsilon:.4g} if one role is in all three releases; by the paper's own composition "
            f"lemma {paper.epsilon_by_its_own_lemma:.4g}"
        )
        shares = {name: dict.fromkeys(parts, share) for name, parts in contributions.items()}
        return shares, {"epsilon claimed by the paper's split": (budget.epsilon, claim)}

    def _finish(self, state: State) -> tuple[Tree, Tree]:
        chosen = state["last" if self.output == "last" else "best"]
        return chosen["x"], chosen["y"]

    def _outer_parameters(self, problem: BilevelProblem) -> tuple[float, float, Parameters]:
        """The penalty weight and the step size, given or from certified constants."""
        constants = problem.constants
        if constants is None:
            self._check_given()
        smallest = 0.0 if constants is None else constants.smallest_penalty_weight()
        weight = max(_PENALTY_WEIGHT, smallest) if self.penalty_weight is None else self.penalty_weight
        if weight < smallest:
            raise InvalidArgument(
                f"penalty_weight={weight!r}: must be at least {smallest!r} = "
                "max{2 L1f/mu_g, L0f/L0g, L1f/L1g} of the declared constants; raise it to that bound, or leave it out"
            )
        penalty_reason = "as given" if self.penalty_weight is not None else f"{_PENALTY_WEIGHT:g}, or more if needed"
        if constants is not None:
            penalty_reason += f"; Algorithm 1 requires at least {smallest:.4g}"
        step_size, reason = self.step_size, "as given"
        if step_size is None and constants is not None:
            smoothness = constants.hyperobjective_smoothness(weight)
            if smoothness == 0:
                raise InvalidArgument("step_size=None: the constants make the hyperobjective linear; give a number")
            step_size, reason = 1 / (2 * smoothness), "1/(2L), L the smoothness of the penalised hyperobjective"
        assert step_size is not None, "checked above if there are no constants"
        parameters: Parameters = {
            "penalty": (weight, penalty_reason),
            "outer steps": (self.steps, "as given"),
            "step size": (step_size, reason),
            "output": (self.output, _OUTPUTS[self.output]),
        }
        return weight, step_size, parameters

    def _check_given(self) -> None:
        """Raise if a parameter is neither given nor can be derived, and list all of them."""
        missing = {f"inner.{name}": remedy for name, remedy in self.inner.missing().items()}
        if self.step_size is None:
            missing = {"step_size": _STEP_SIZE} | missing
        if missing:
            remedies = "; ".join(f"{name}: {remedy}" for name, remedy in missing.items())
            raise InvalidArgument(
                f"{', '.join(f'{name}=None' for name in missing)}: needs BilevelProblem(constants=...) to be derived, "
                f"and this problem certifies none; without constants give a number ({remedies})"
            )

    def _hypergradient_stage(
        self,
        context: PublicContext,
        release: Release | None,
        weight: float,
        step_size: float,
        scale: Callable[[Tree, Tree], Any],
    ) -> Stage:
        free = free_gradients(context.setting)
        step = _OuterStep(context.problem.domain, free, weight, step_size, function(scale))
        return Stage(release=release, query=_query, update=function(_OuterStep.update, step))


@passing("weight", "step_size", "scale", structure=("domain", "free"))
@dataclass(frozen=True, eq=False)
class _OuterStep:
    """The step of x.

    Args:
        domain: X.
        free: the parts of x-gradients that cost no budget, by level.
        weight: lambda.
        step_size: eta.
        scale: (y, z) -> the factor of the answer.
    """

    domain: Domain
    free: Mapping[str, Callable[..., Tree]]
    weight: float
    step_size: float
    scale: Callable[[Tree, Tree], Any]

    def update(self, state: State, carry: Tree, answer: Tree, step: jax.Array) -> State:
        x, y, z = state["x"], state["y"], state["z"]
        difference = optax.tree.sub(self.free["lower"](x, z), self.free["lower"](x, y))
        gradient = optax.tree.add(self.free["upper"](x, z), optax.tree.scale(self.weight, difference))
        if answer is not None:
            gradient = optax.tree.add(gradient, optax.tree.scale(self.scale(y, z), answer))
        moved = jax.tree.map(lambda leaf, g: (leaf - self.step_size * g).astype(leaf.dtype), x, gradient)
        moved = project(self.domain, moved)
        move = optax.tree.norm(optax.tree.sub(moved, x)).astype(jnp.float32)
        last = {"move": move, "x": x, "y": y}
        better = move < state["best"]["move"]
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), last, state["best"])
        seen = {
            "x": moved,
            "move": move,
            "hypergradient_norm": optax.tree.norm(gradient).astype(jnp.float32),
            "solution_distance": optax.tree.norm(optax.tree.sub(z, y)).astype(jnp.float32),
        }
        return state | {"x": moved, "last": last, "best": best, "seen": seen}


def _query(state: State, carry: Tree, step: jax.Array) -> Tree:
    return state["x"], state["y"], state["z"]


def _observe(state: State) -> Tree:
    return state["seen"]


def _previous_y(state: State) -> Tree:
    return state["y"]


def _previous_z(state: State) -> Tree:
    return state["z"]


def _first_y(state: State) -> Tree:
    return state["y_start"]


def _end_lower(state: State, solution: Tree) -> State:
    return state | {"y": solution}


def _end_penalised(near: Callable[[Tree, Tree], Tree], state: State, solution: Tree) -> State:
    return state | {"z": near(state["y"], solution)}


def _start(x: Tree, y: Tree) -> State:
    nothing = jnp.full((), jnp.inf, jnp.float32)
    seen = {"x": x, "move": nothing, "hypergradient_norm": nothing, "solution_distance": nothing}
    candidate = {"move": nothing, "x": x, "y": y}
    return {"x": x, "y": y, "z": y, "y_start": y, "last": candidate, "best": candidate, "seen": seen}


def _release_parameters(
    context: PublicContext,
    releases: Mapping[str, Release],
    shares: Mapping[str, Mapping[str, float]],
    hypergradient_clip: str,
) -> Parameters:
    parameters: Parameters = {}
    for name, release in releases.items():
        for role, contribution in release.contributions.items():
            reason = hypergradient_clip if name == _HYPERGRADIENT else "bounds the norm of one record's contribution"
            parameters[f"{name}: clip ({role})"] = (contribution.clip, reason)
            parameters[f"{name}: share of mu^2 ({role})"] = (shares[name][role], "split, over the releases of the role")
        parameters[f"{name}: noise"] = (
            release.noise_std,
            "max over roles of sensitivity/ratio, then scaled to spend the budget",
        )
        signal = sum(contribution.clip for contribution in release.contributions.values())
        dimension = context.x_dimension if name == _HYPERGRADIENT else context.y_dimension
        parameters[f"{name}: noise to signal"] = (
            release.noise_std * math.sqrt(dimension) / signal,
            "noise of a step relative to the largest mean of records",
        )
    if _HYPERGRADIENT not in releases:
        parameters[_HYPERGRADIENT] = (0, "free: no gradient in x reads records, so the outer step needs no noise")
    return parameters
