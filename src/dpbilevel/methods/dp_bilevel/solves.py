"""The two private solves of a round: y ~ argmin g(x, .) and z ~ argmin f(x, .)/penalty + g(x, .).

`LocalisedSolves` makes them with DP-Loc-(S)GD, as releases that share the budget of the run; `BlackBoxSolves` leaves
them to a trainer from elsewhere, whose cost is declared and cannot be shared out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Call, Stage, State
from dpbilevel.inner.black_box import BlackBox
from dpbilevel.inner.loc_gd import DPLocGD, Localisation
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import by_role, lower_gradients, penalised_gradients
from dpbilevel.methods.dp_bilevel.curvature import check_curvature
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import Sampling

Tree = Any
Parameters = dict[str, tuple[Any, str]]  # name -> (value, why it is what it is)
Declare = Callable[[str, int, Sampling], Release]  # (name, uses, ...) -> a release with its share of the budget

LOWER, PENALISED = "lower solve", "penalised solve"


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalisedSolves:
    """Both solves by DP-Loc-GD or DP-Loc-SGD.

    Args:
        context: the public facts of the run.
        inner: the solver.
        penalty_weight: lambda.
        rounds: T, outer steps.
        warm_start: whether a solve starts at the previous round's solution.
        near: (y, z) -> z, moved to where the hypergradient's bound holds.
    """

    context: PublicContext
    inner: DPLocGD
    penalty_weight: float
    rounds: int
    warm_start: bool
    near: Callable[[Tree, Tree], Tree]
    fixed: tuple[DeclaredRelease, ...] = field(default=(), init=False)

    def contributions(self) -> dict[str, dict[str, Contribution]]:
        """What records add to the solves' releases, by role."""
        inner, context = self.inner, self.context
        check_curvature(context)
        clips = (inner.clip_norm, inner.upper_clip_norm or inner.clip_norm)
        return {
            LOWER: by_role(lower_gradients(context, inner.clip_norm), context),
            PENALISED: by_role(penalised_gradients(context, self.penalty_weight, *clips), context),
        }

    def declared(self, declare: Declare) -> list[Release]:
        """The solves' releases: all gradient steps of all rounds."""
        # One use per solve: its noise at the solve's share of the budget is what the localisation goes by.
        private, sampling = self.context.budget.is_private, self.inner.gradient_sampling()
        first = {
            name: declare(name, self.rounds, sampling).noise_std if private else 0.0 for name in (LOWER, PENALISED)
        }
        uses = {name: self.rounds * self._schedule(name, noise).total_steps for name, noise in first.items()}
        return [declare(name, number, sampling) for name, number in uses.items()]

    def stages(self, releases: Mapping[str, Release]) -> tuple[list[Stage | Call], Parameters]:
        """The solves as stages, and the numbers of their schedules."""
        stages: list[Stage | Call] = []
        parameters: Parameters = {}
        for name in (LOWER, PENALISED):
            # With the noise known, amplification included, the radii are settled; the number of steps is as declared.
            uses = releases[name].uses // self.rounds
            noise = releases[name].noise_std / math.sqrt(uses)
            schedule = self._schedule(name, noise, uses // self.inner.steps)
            stages.append(self._stage(name, releases[name], schedule))
            parameters |= self._parameters(name, schedule)
        return stages, parameters

    def _schedule(self, name: str, noise: float, rounds: int | None = None) -> Localisation:
        constants = self.context.problem.constants
        convexity = self.inner.convexity(constants)
        smoothness = self.inner.smoothness or (constants.lower_smoothness if constants else None)
        if name == PENALISED and constants is not None:
            convexity = convexity - constants.upper_smoothness / self.penalty_weight
            if convexity <= 0:
                needed = 2 * constants.upper_smoothness / self.inner.convexity(constants)
                raise InvalidArgument(
                    f"penalty_weight={self.penalty_weight!r}: f/penalty + g is not strongly convex; must exceed "
                    f"L1f/mu_g (Algorithm 1 asks for 2 L1f/mu_g = {needed!r})"
                )
            smoothness = None if smoothness is None else smoothness + constants.upper_smoothness / self.penalty_weight
        return self.inner.localise(convexity, noise / convexity, self.context.y_dimension, smoothness, rounds)

    def _parameters(self, name: str, schedule: Localisation) -> Parameters:
        formula = "M = max(1, ceil(log2 log2(R_0/A)))"
        convexity = "mu_g, of g; steps 1/(mu (t+1))"
        if name == PENALISED:
            convexity = (
                "mu_g - L1f/penalty, of f/penalty + g; steps 1/(mu (t+1))"
                if self.context.problem.constants
                else "mu_g, taking f as convex in y (declare constants where it is not); steps 1/(mu (t+1))"
            )
        return {
            f"{name}: rounds": (len(schedule.radii), formula if self.inner.rounds is None else "M, as given"),
            f"{name}: steps per round": (schedule.steps, "T_GD, as given"),
            f"{name}: radii": (schedule.radii, "R_m = c (sqrt(R_{m-1} A) + A sqrt(d_y)), never growing"),
            f"{name}: strong convexity": (schedule.strong_convexity, convexity),
        }

    def _stage(self, name: str, release: Release, schedule: Localisation) -> Stage:
        problem, variable = self.context.problem, "y" if name == LOWER else "z"
        upper_weight = 0.0 if name == LOWER else 1 / self.penalty_weight

        def terms(x: Tree, y: Tree) -> Any:
            return upper_weight * problem.term("upper")(x, y) + problem.term("lower")(x, y)

        return self.inner.stage(
            release,
            schedule,
            start=lambda state: state[variable] if self.warm_start else state["y_start"],
            query=lambda state, y: (state["x"], y),
            free_gradient=lambda state, y: jax.grad(terms, 1)(state["x"], y),
            domain=problem.lower_domain,
            end=lambda state, y: _solved(state, variable, y, self.near),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class BlackBoxSolves:
    """Both solves by a trainer from elsewhere: one call each per round.

    Args:
        context: the public facts of the run.
        inner: the trainer.
        penalty_weight: lambda.
        rounds: T, outer steps.
        near: (y, z) -> z, moved to where the hypergradient's bound holds.
    """

    context: PublicContext
    inner: BlackBox
    penalty_weight: float
    rounds: int
    near: Callable[[Tree, Tree], Tree]
    fixed: tuple[DeclaredRelease, ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.context.sizes
        levels: dict[str, Sequence[str]] = {LOWER: ("lower",), PENALISED: ("lower", "upper")}
        fixed = []
        for name in (LOWER, PENALISED):
            roles = {sizes.role_of(level) for level in levels[name] if self.context.problem.loss(level) is not None}
            counts = {role: sizes.count(role) for role in sizes.roles if role in roles}
            event, adjacency = self.inner.event, self.inner.adjacency
            fixed.append(DeclaredRelease(name=name, roles=counts, event=event, uses=self.rounds, adjacency=adjacency))
        object.__setattr__(self, "fixed", tuple(fixed))

    def contributions(self) -> dict[str, dict[str, Contribution]]:
        """Nothing that the budget could be shared with."""
        return {}

    def declared(self, declare: Declare) -> list[Release]:
        """Nothing whose noise could be calibrated."""
        return []

    def stages(self, releases: Mapping[str, Release]) -> tuple[list[Stage | Call], Parameters]:
        """The two calls of a round."""
        lower, penalised = self.fixed
        parameters: Parameters = {
            f"{release.name}: event": (repr(release.event), "declared by the black box for each call")
            for release in self.fixed
        }
        return [self._call(lower, "y", 0.0), self._call(penalised, "z", 1 / self.penalty_weight)], parameters

    def _call(self, release: DeclaredRelease, variable: str, upper_weight: float) -> Call:
        problem, sizes = self.context.problem, self.context.sizes

        def run(state: State, arrays: Mapping[str, Tree]) -> State:
            role_of = {level: sizes.role_of(level) for level in (("lower", "upper") if upper_weight else ("lower",))}
            records = {level: arrays[role] for level, role in role_of.items() if role is not None and role in arrays}
            solution = self.inner.solve(state["x"], state["y"], records, upper_weight, problem.lower_domain)
            return _solved(state, variable, solution, self.near)

        return Call(release=release, run=run)


def _solved(state: State, variable: str, solution: Tree, near: Callable[[Tree, Tree], Tree]) -> State:
    moved = near(state["y"], solution) if variable == "z" else solution
    return state | {variable: moved}
