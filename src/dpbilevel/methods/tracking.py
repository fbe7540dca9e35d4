"""Difference tracking: one loop for model, difference and hyperparameters, without the factor lambda on any noise.

The double loop solves for y and z privately and multiplies z - y, noise and all, by the penalty. Tracking follows the
scaled difference d = penalty (z - y) itself. With z = y + d/penalty, one step is

    y <- y - eta_y [ grad_y g(x, y) ]
    d <- d - eta_d [ penalty (grad_y g(x, z) - grad_y g(x, y)) + grad_y f(x, z) ]
    x <- step(x, [ grad_x f(x, z) + penalty (grad_x g(x, z) - grad_x g(x, y)) ])

where [.] is released. Each record's vectors are differences of gradients at nearby points, bounded by L1g ||d|| and not
by the penalty, and noise in y cancels in them. As the penalty grows, d solves (grad^2 g) d = -grad f by differences of
gradients alone. Adam, averaging and the rules of `hyper_steps` are post-processing and cost nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.arguments import count, positive
from dpbilevel.constraints import ConvexSet, into_ball, project
from dpbilevel.errors import InvalidArgument
from dpbilevel.facts import Facts
from dpbilevel.methods.contributions import Levels, by_role, shares_by_role
from dpbilevel.methods.descent import Descent, adam, averaged, moved
from dpbilevel.methods.hyper_steps import Rule, Surroundings, rule_for, unit_of
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch, Sampling, check_sampling
from dpbilevel.problem import free_gradient
from dpbilevel.program import Program, Stage, State

Tree = Any
Numbers = dict[str, tuple[Any, str]]

MODEL, DIFFERENCE, VALIDATION, HYPERGRADIENT = "model", "difference", "validation gradient", "hypergradient"
_CALM = 0.9  # of the averaged y and d at which hypergradients are taken: their noise is multiplied with each other
_MEMORY = 0.95  # of the averaged x: about the last twenty steps


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Difference tracking, the practical default.

    Guarantee: everything that is released, x, y and the history included, satisfies the budget of `solve` for the
    stated neighbouring relation, whatever the losses and records are.

    The defaults are for per-record losses whose gradients in y have a norm of about one (rows of norm one).

    Args:
        steps: T.
        penalty: lambda. It limits the bias, about 1/penalty, and multiplies no noise.
        learning_rate: of y, by Adam, falling linearly to zero.
        clip_norm: C, bound on each record's gradient in y; the other bounds are C/2 for the difference, C for the
            validation gradient and for the hypergradient (in natural units of x).
        split: how the mu^2 of a role is shared between model, difference and hypergradient, in this order; releases
            that a role takes no part in, or that cost nothing, leave their share to the others.
        sampling: of each release's batch.
    """

    steps: int = 200
    penalty: float = 3.0
    learning_rate: float = 0.3
    clip_norm: float = 1.0
    split: tuple[float, float, float] = (0.3, 0.3, 0.4)
    sampling: Sampling = field(default_factory=FullBatch)

    @property
    def default_refit(self) -> Refit:
        """What ``refit="auto"`` means: tracking finds x, and the model is trained anew at it."""
        return Refit(clip_norm=self.clip_norm)

    def __post_init__(self) -> None:
        count("steps", self.steps, "it is the number of steps (try 200)")
        positive("penalty", self.penalty, "it is lambda, the weight of the lower level (try 3.0)")
        positive("learning_rate", self.learning_rate, "it is the step size of the model (try 0.3)")
        positive("clip_norm", self.clip_norm, "it bounds each record's gradient (try 1.0)")
        if not isinstance(self.split, tuple) or len(self.split) != 3:
            raise InvalidArgument(f"split={self.split!r}: must be a tuple of three shares, as in (0.3, 0.3, 0.4)")
        for share in self.split:
            positive("split", share, "it shares mu^2 between model, difference and hypergradient")
        check_sampling(self.sampling)

    def program(self, facts: Facts) -> tuple[Program, Numbers]:
        """Declare all releases and write the algorithm out as a program; no record is involved."""
        contributions = {name: by_role(levels, facts) for name, levels in self._levels(facts).items()}
        contributions = {name: parts for name, parts in contributions.items() if parts}
        weights = dict(zip((MODEL, DIFFERENCE, HYPERGRADIENT), self.split, strict=True)) | {VALIDATION: self.split[1]}
        shares = shares_by_role(weights, contributions)
        declared = [
            with_shares(
                Release(
                    name=name,
                    contributions=parts,
                    noise=1.0,
                    steps=self.steps,
                    sampling=self.sampling,
                    adjacency=facts.budget.adjacency,
                ),
                shares[name],
                facts.budget,
            )
            for name, parts in contributions.items()
        ]
        releases = {release.name: release for release in calibrate(declared, facts.budget)}
        rules = self._rules(facts, releases.get(HYPERGRADIENT))
        program = Program(
            rounds=self.steps,
            stages=self._stages(facts, releases, rules),
            start=lambda x, y: self._start(facts, rules, x, y),
            observe=lambda state: {"x": state["x"], "hypergradient": state["hypergradient"]},
            finish=lambda state: (state["x_average"], state["model"]["average"]),
        )
        return program, self._numbers(releases, shares)

    def _levels(self, facts: Facts) -> dict[str, Levels]:
        """What one record adds to each release, by level, with its clip."""
        problem, clip, penalty = facts.problem, self.clip_norm, self.penalty
        lower_slope, reads = jax.grad(problem.lower_loss, 1), facts.inspection.hypergradient_reads

        def model(point: Tree, record: Tree) -> Tree:
            x, y, _ = point
            return optax.tree.scale(1 / problem.lower_scale(x), lower_slope(x, y, record))

        def difference(point: Tree, record: Tree) -> Tree:
            x, y, z = point
            change = optax.tree.sub(lower_slope(x, z, record), lower_slope(x, y, record))
            return optax.tree.scale(penalty / problem.lower_scale(x), change)

        levels: dict[str, Levels] = {
            MODEL: {"lower": (model, clip)},
            DIFFERENCE: {"lower": (difference, clip / 2)},
            HYPERGRADIENT: {},
        }
        if "lower" in reads:
            lower_x = jax.grad(problem.lower_loss)

            def lower_part(point: Tree, record: Tree) -> Tree:
                x, y, z = point
                change = optax.tree.sub(lower_x(x, z, record), lower_x(x, y, record))
                return _in_units(problem.domain, optax.tree.scale(penalty, change))

            levels[HYPERGRADIENT]["lower"] = (lower_part, clip)
        if problem.upper_loss is not None:
            upper_y, upper_x = jax.grad(problem.upper_loss, 1), jax.grad(problem.upper_loss)
            levels[VALIDATION] = {"upper": (lambda point, record: upper_y(point[0], point[2], record), clip)}
            if "upper" in reads:
                levels[HYPERGRADIENT]["upper"] = (
                    lambda point, record: _in_units(problem.domain, upper_x(point[0], point[2], record)),
                    clip,
                )
        return levels

    def _rules(self, facts: Facts, release: Release | None) -> Tree:
        """A rule for each set of the domain, with the public numbers of the hypergradient's release."""

        def rule(convex_set: ConvexSet, x: Tree) -> Rule:
            unit = unit_of(convex_set, x)
            parts = () if release is None else tuple(release.contributions.values())
            around = Surroundings(
                steps=self.steps,
                noise=0.0 if release is None else release.noise / unit,
                clip=0.0 if release is None or not facts.budget.is_private else max(p.clip for p in parts) / unit,
                records=max((part.count for part in parts), default=1),
            )
            return rule_for(convex_set, around)

        return jax.tree.map(rule, facts.problem.domain, facts.point[0])

    def _stages(self, facts: Facts, releases: dict[str, Release], rules: Tree) -> list[Stage]:
        problem, descent = facts.problem, self._descent(facts)
        terms = {level: jax.grad(problem.term(level), 1) for level in ("upper", "lower")}
        constants = problem.constants
        radius = None if constants is None else constants.upper_lipschitz / constants.strong_convexity

        def model(state: State, answer: Tree) -> State:
            x, y, _ = self._point(state)
            gradient = optax.tree.add(optax.tree.scale(problem.lower_scale(x), answer), terms["lower"](x, y))
            return state | {"model": descent.move(state["model"], gradient)}

        def difference(state: State, answer: Tree) -> State:
            x, y, z = self._point(state)
            free = optax.tree.scale(self.penalty, optax.tree.sub(terms["lower"](x, z), terms["lower"](x, y)))
            released = optax.tree.scale(problem.lower_scale(x), answer)
            return state | {"pull": optax.tree.add(released, optax.tree.add(free, terms["upper"](x, z)))}

        def validation(state: State, answer: Tree | None) -> State:
            pull = state["pull"] if answer is None else optax.tree.add(state["pull"], answer)
            direction, moments = adam().update(pull, state["moments"])
            left = 1 - state["step"] / self.steps
            d = moved(state["d"], direction, 3 * self.learning_rate * left)
            if radius is not None:
                d = into_ball(d, optax.tree.zeros_like(d), radius)
            return state | {"d": d, "d_average": averaged(state["d_average"], d, _CALM), "moments": moments}

        hypergradient = self._hypergradient(facts, rules)
        return [
            self._stage(releases[MODEL], model),
            self._stage(releases[DIFFERENCE], difference),
            self._stage(releases.get(VALIDATION), validation),
            self._stage(releases.get(HYPERGRADIENT), hypergradient, self._calm_point),
        ]

    def _hypergradient(self, facts: Facts, rules: Tree) -> Callable[[State, Tree | None], State]:
        problem, reads = facts.problem, facts.inspection.hypergradient_reads
        free = {
            level: free_gradient(problem, level, level in reads, facts.sizes.record(level))
            for level in ("upper", "lower")
        }

        def hypergradient(state: State, answer: Tree | None) -> State:
            x, y, z = self._calm_point(state)
            change = optax.tree.sub(free["lower"](x, z), free["lower"](x, y))
            gradient = optax.tree.add(free["upper"](x, z), optax.tree.scale(self.penalty, change))
            if answer is not None:
                gradient = optax.tree.add(gradient, _in_units(problem.domain, answer, inverse=True))
            pairs = jax.tree.map(
                lambda _, rule, kept, part, slope: rule.move(kept, part, slope, state["step"]),
                problem.domain,
                rules,
                state["rules"],
                x,
                gradient,
            )
            kept, stepped = (jax.tree.map(lambda _, pair, i=i: pair[i], problem.domain, pairs) for i in (0, 1))
            x = project(problem.domain, stepped)
            average = averaged(state["x_average"], x, _MEMORY)
            step = state["step"] + 1
            return state | {"x": x, "x_average": average, "rules": kept, "step": step, "hypergradient": gradient}

        return hypergradient

    def _point(self, state: State) -> tuple[Tree, Tree, Tree]:
        y = state["model"]["y"]
        return state["x"], y, moved(y, state["d"], -1 / self.penalty)

    def _calm_point(self, state: State) -> tuple[Tree, Tree, Tree]:
        y = state["model"]["average"]
        return state["x"], y, moved(y, state["d_average"], -1 / self.penalty)

    def _descent(self, facts: Facts) -> Descent:
        return Descent(self.steps, self.learning_rate, facts.problem.lower_domain)

    def _start(self, facts: Facts, rules: Tree, x: Tree, y: Tree) -> State:
        zero = optax.tree.zeros_like(y)
        return {
            "step": jnp.zeros((), jnp.float32),
            "x": x,
            "x_average": x,
            "hypergradient": optax.tree.zeros_like(x),
            "model": self._descent(facts).start(y),
            "d": zero,
            "d_average": zero,
            "pull": zero,
            "moments": adam().init(zero),
            "rules": jax.tree.map(lambda _, rule, part: rule.start(part), facts.problem.domain, rules, x),
        }

    def _stage(
        self,
        release: Release | None,
        digest: Callable[[State, Tree], State],
        point: Callable[[State], tuple[Tree, Tree, Tree]] | None = None,
    ) -> Stage:
        return Stage(
            release=release,
            steps=1,
            begin=lambda state: state,
            query=lambda state, carry, step: (point or self._point)(state),
            update=lambda state, carry, answer, step: digest(carry, answer),
            end=lambda state, carry: carry,
        )

    def _numbers(self, releases: dict[str, Release], shares: dict[str, dict[str, float]]) -> Numbers:
        numbers: Numbers = {
            "steps": (self.steps, "fewer leave the difference behind, more only divide the budget"),
            "penalty": (self.penalty, "a bias of about 1/penalty; it multiplies no noise"),
            "learning rate": (self.learning_rate, "of y, by Adam, falling linearly to zero; three times that for d"),
        }
        for name, release in releases.items():
            for role, contribution in release.contributions.items():
                numbers[f"{name}: clip ({role})"] = (contribution.clip, "bounds one record's whole vector")
                numbers[f"{name}: share of mu^2 ({role})"] = (shares[name][role], "split, over the role's releases")
            numbers[f"{name}: noise"] = (release.noise, "spends the budget over all steps")
        if HYPERGRADIENT not in releases:
            numbers[HYPERGRADIENT] = (0, "free: no x-gradient reads a record, so that its step needs no noise")
        return numbers


def _in_units(domain: Tree, gradient: Tree, inverse: bool = False) -> Tree:
    """A gradient in natural units of x, so that one clip fits all of it; ``inverse`` leads back."""

    def convert(convex_set: ConvexSet, part: Tree) -> Tree:
        unit = unit_of(convex_set, part)
        return optax.tree.scale(1 / unit if inverse else unit, part)

    return jax.tree.map(convert, domain, gradient)
