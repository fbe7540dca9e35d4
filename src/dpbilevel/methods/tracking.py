"""Difference tracking: one loop for model, difference and hyperparameters, without the factor lambda on any noise.

The double loop solves for y and z privately and multiplies z - y, noise and all, by the penalty. Tracking follows the
scaled difference d = penalty (z - y) itself. With z = y + d/penalty, one step is

    y <- y - eta_y [ grad_y g(x, y) ]
    d <- d - eta_d [ penalty (grad_y g(x, z) - grad_y g(x, y)) + grad_y f(x, z) ]
    x <- step(x, [ grad_x f(x, z) + penalty (grad_x g(x, z) - grad_x g(x, y)) ])

where [.] is released, all of it in one pass over the records. Each record's vectors are differences of gradients at
nearby points, bounded by L1g ||d|| and not by the penalty, and noise in y cancels in them. As the penalty grows, d
solves (grad^2 g) d = -grad f by differences of gradients alone. Adam, averaging and the rules of `hyper_steps` are
post-processing and cost nothing.
"""

import math
from collections.abc import Callable, Mapping
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
from dpbilevel.methods.joint import Part, Vector, joined, separated, shared
from dpbilevel.methods.noiseless import noiseless_tuning
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch, Sampling, check_sampling
from dpbilevel.problem import free_gradient
from dpbilevel.program import Program, Stage, State

Tree = Any
Numbers = dict[str, tuple[Any, str]]
Parts = Mapping[str, Mapping[str, Part]]  # level -> name -> what a record of the level adds

MODEL, DIFFERENCE, HYPERGRADIENT = "model", "difference", "hypergradient"
_PASSES = {"lower": "training pass", "upper": "validation pass"}
_CALM = 0.9  # of the averaged y and d at which hypergradients are taken: their noise is multiplied with each other
_MEMORY = 0.95  # of the averaged x: about the last twenty steps
_DIFFERENCE_RATE = 1.5  # of d's steps against y's: larger ones follow noise, smaller ones come too late
# Clips lie below what a record may add: as long as most records add less than a clip, noise falls with it and the
# mean does not; further down each record votes with its direction, of which a mean needs fewer records still.
_LOWER_DIFFERENCE, _UPPER_GRADIENT = 0.2, 0.25  # of C
_HYPERGRADIENT = 0.3  # in natural units of x: for weights it is a difference of losses, whatever the rows' norm


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Difference tracking, the practical default.

    Guarantee: everything that is released, x, y and the history included, satisfies the budget of `solve` for the
    stated neighbouring relation, whatever the losses and records are.

    One number describes the data: ``clip_norm``, the norm of rows. Rows twice as long with twice the clip are the same
    problem with half the y, and are solved alike.

    Args:
        steps: T.
        penalty: lambda. It limits the bias, about 1/penalty, and multiplies no noise.
        learning_rate: of y, by Adam, in units of 1/C, falling linearly to zero.
        clip_norm: C, bound on each record's gradient in y, about the norm of rows. Validation gradients are clipped
            at C/4, differences at C/5, and hypergradients (in natural units of x) at 0.3.
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
        if not facts.budget.is_private:
            return noiseless_tuning(facts)
        parts = self._parts(facts)
        private = facts.budget.is_private
        levels: dict[str, Levels] = {
            _PASSES[level]: {level: (joined(mine, clipped=private), 1.0)} for level, mine in parts.items()
        }
        contributions = {name: by_role(level, facts) for name, level in levels.items()}
        weights = {_PASSES[level]: sum(self._weights()[name] for name in mine) for level, mine in parts.items()}
        shares = shares_by_role(weights, contributions)
        declared = [
            with_shares(
                Release(
                    name=name,
                    contributions=roles,
                    noise=1.0,
                    steps=self.steps,
                    sampling=self.sampling,
                    adjacency=facts.budget.adjacency,
                ),
                shares[name],
                facts.budget,
            )
            for name, roles in contributions.items()
        ]
        releases = {release.name: release for release in calibrate(declared, facts.budget)}
        rules = self._rules(facts, parts, releases)
        program = Program(
            rounds=self.steps,
            stages=self._stages(facts, parts, releases, rules),
            start=lambda x, y: self._start(facts, parts, rules, x, y),
            observe=lambda state: {"x": state["x"], "hypergradient": state["hypergradient"]},
            finish=lambda state: (state["x_average"], state["model"]["average"]),
        )
        return program, self._numbers(facts, parts, releases)

    def _weights(self) -> dict[str, float]:
        return dict(zip((MODEL, DIFFERENCE, HYPERGRADIENT), self.split, strict=True))

    def _parts(self, facts: Facts) -> dict[str, dict[str, Part]]:
        """Level to what one record of it adds, at points (x, y, z, calm y, calm z)."""
        problem, clip, penalty = facts.problem, self.clip_norm, self.penalty
        reads = facts.inspection.hypergradient_reads
        lower_x, lower_y = (jax.grad(problem.lower_loss, argument) for argument in (0, 1))

        def model(point: Tree, record: Tree) -> Tree:
            x, y, *_ = point
            return optax.tree.scale(1 / problem.lower_scale(x), lower_y(x, y, record))

        def difference(point: Tree, record: Tree) -> Tree:
            x, y, z, *_ = point
            change = optax.tree.sub(lower_y(x, z, record), lower_y(x, y, record))
            return optax.tree.scale(penalty / problem.lower_scale(x), change)

        def lower_part(point: Tree, record: Tree) -> Tree:
            x, _, _, y, z = point
            change = optax.tree.sub(lower_x(x, z, record), lower_x(x, y, record))
            return _in_units(problem.domain, optax.tree.scale(penalty, change))

        lower = {MODEL: (model, clip), DIFFERENCE: (difference, clip * _LOWER_DIFFERENCE)}
        if "lower" in reads:
            lower[HYPERGRADIENT] = (lower_part, _HYPERGRADIENT)
        parts = {"lower": shared(lower, self._weights())}
        if problem.upper_loss is not None:
            upper_x, upper_y = (jax.grad(problem.upper_loss, argument) for argument in (0, 1))
            upper: dict[str, tuple[Vector, float]] = {
                DIFFERENCE: (lambda point, record: upper_y(point[0], point[2], record), clip * _UPPER_GRADIENT)
            }
            if "upper" in reads:
                upper[HYPERGRADIENT] = (
                    lambda point, record: _in_units(problem.domain, upper_x(point[0], point[4], record)),
                    _HYPERGRADIENT,
                )
            parts["upper"] = shared(upper, self._weights())
        return parts

    def _rules(self, facts: Facts, parts: Parts, releases: Mapping[str, Release]) -> Tree:
        """A rule for each set of the domain, with the public numbers of the hypergradient's releases."""
        reading = [level for level, mine in parts.items() if HYPERGRADIENT in mine]
        units = {level: parts[level][HYPERGRADIENT].unit for level in reading}
        noise = math.hypot(*(units[level] * releases[_PASSES[level]].noise for level in reading))
        clips = [parts[level][HYPERGRADIENT].clip for level in reading] if facts.budget.is_private else []
        unsettled = max(release.noise for release in releases.values()) * math.sqrt(facts.y_dimension)
        counts = [facts.sizes.count(facts.sizes.role_of(level) or level) for level in reading]

        def rule(convex_set: ConvexSet, x: Tree) -> Rule:
            unit = unit_of(convex_set, x)
            around = Surroundings(
                steps=self.steps,
                noise=noise / unit,
                clip=max(clips, default=0.0) / unit,
                records=max(counts, default=1),
                unsettled=unsettled,
            )
            return rule_for(convex_set, around)

        return jax.tree.map(rule, facts.problem.domain, facts.point[0])

    def _stages(self, facts: Facts, parts: Parts, releases: Mapping[str, Release], rules: Tree) -> list[Stage]:
        def kept(level: str) -> Callable[[State, Tree | None], State]:
            def keep(state: State, answer: Tree | None) -> State:
                return state if answer is None else state | {level: separated(answer, parts[level])}

            return keep

        digest = self._digest(facts, parts, rules)
        return [
            self._stage(releases[_PASSES["lower"]], kept("lower")),
            self._stage(releases.get(_PASSES["upper"]), lambda state, answer: digest(kept("upper")(state, answer))),
        ]

    def _digest(self, facts: Facts, parts: Parts, rules: Tree) -> Callable[[State], State]:
        """What a step does with the answers of both passes."""
        problem, descent = facts.problem, self._descent(facts)
        terms = {level: jax.grad(problem.term(level), 1) for level in ("upper", "lower")}
        constants, rate = problem.constants, self.learning_rate / self.clip_norm
        radius = None if constants is None else constants.upper_lipschitz / constants.strong_convexity
        hypergradient = self._hypergradient(facts, parts, rules)

        def digest(state: State) -> State:
            x, y, z, *_ = self._point(state)
            scale, lower = problem.lower_scale(x), state["lower"]
            gradient = optax.tree.add(optax.tree.scale(scale, lower[MODEL]), terms["lower"](x, y))
            free = optax.tree.scale(self.penalty, optax.tree.sub(terms["lower"](x, z), terms["lower"](x, y)))
            pull = optax.tree.add(
                optax.tree.scale(scale, lower[DIFFERENCE]), optax.tree.add(free, terms["upper"](x, z))
            )
            if "upper" in parts:
                pull = optax.tree.add(pull, state["upper"][DIFFERENCE])
            direction, moments = adam().update(pull, state["moments"])
            left = 1 - state["step"] / self.steps
            d = moved(state["d"], direction, _DIFFERENCE_RATE * rate * left)
            if radius is not None:
                d = into_ball(d, optax.tree.zeros_like(d), radius)
            changed = {"model": descent.move(state["model"], gradient), "d": d, "moments": moments}
            changed["d_average"] = averaged(state["d_average"], d, _CALM)
            return hypergradient(state) | changed

        return digest

    def _hypergradient(self, facts: Facts, parts: Parts, rules: Tree) -> Callable[[State], State]:
        problem, reads = facts.problem, facts.inspection.hypergradient_reads
        free = {
            level: free_gradient(problem, level, level in reads, facts.sizes.record(level))
            for level in ("upper", "lower")
        }

        def hypergradient(state: State) -> State:
            x, _, _, y, z = self._point(state)
            change = optax.tree.sub(free["lower"](x, z), free["lower"](x, y))
            gradient = optax.tree.add(free["upper"](x, z), optax.tree.scale(self.penalty, change))
            for level in parts:
                if HYPERGRADIENT in parts[level]:
                    released = _in_units(problem.domain, state[level][HYPERGRADIENT], inverse=True)
                    gradient = optax.tree.add(gradient, released)
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

    def _point(self, state: State) -> tuple[Tree, Tree, Tree, Tree, Tree]:
        """(x, y, z), and y and z averaged over the last steps, at which hypergradients are taken."""
        y, calm = state["model"]["y"], state["model"]["average"]
        back = -1 / self.penalty
        return state["x"], y, moved(y, state["d"], back), calm, moved(calm, state["d_average"], back)

    def _descent(self, facts: Facts) -> Descent:
        return Descent(self.steps, self.learning_rate / self.clip_norm, facts.problem.lower_domain)

    def _start(self, facts: Facts, parts: Parts, rules: Tree, x: Tree, y: Tree) -> State:
        zero, still = optax.tree.zeros_like(y), optax.tree.zeros_like(x)
        nothing = {MODEL: zero, DIFFERENCE: zero, HYPERGRADIENT: still}
        answers = {level: {name: nothing[name] for name in mine} for level, mine in parts.items()}
        return answers | {
            "step": jnp.zeros((), jnp.float32),
            "x": x,
            "x_average": x,
            "hypergradient": still,
            "model": self._descent(facts).start(y),
            "d": zero,
            "d_average": zero,
            "moments": adam().init(zero),
            "rules": jax.tree.map(lambda _, rule, part: rule.start(part), facts.problem.domain, rules, x),
        }

    def _stage(self, release: Release | None, digest: Callable[[State, Tree | None], State]) -> Stage:
        return Stage(
            release=release,
            steps=1,
            begin=lambda state: state,
            query=lambda state, carry, step: self._point(state),
            update=lambda state, carry, answer, step: digest(carry, answer),
            end=lambda state, carry: carry,
        )

    def _numbers(self, facts: Facts, parts: Parts, releases: Mapping[str, Release]) -> Numbers:
        numbers: Numbers = {
            "steps": (self.steps, "fewer leave the difference behind, more only divide the budget"),
            "penalty": (self.penalty, "a bias of about 1/penalty; it multiplies no noise"),
            "learning rate": (
                self.learning_rate / self.clip_norm,
                f"{self.learning_rate:g}/C, of y, by Adam, falling linearly; {_DIFFERENCE_RATE:g} times that for d",
            ),
        }
        for level, mine in parts.items():
            release = releases[_PASSES[level]]
            numbers[f"{release.name}: noise"] = (
                release.noise,
                "on a vector of norm one, spends the budget over all steps",
            )
            for name, part in mine.items():
                numbers[f"{release.name}: clip of the {name}"] = (part.clip, "bounds one record's vector")
                numbers[f"{release.name}: share of the {name}"] = (part.share, "of the pass's mu^2")
                reason = "its clip over the root of its share, times the noise of the pass"
                numbers[f"{release.name}: noise of the {name}"] = (part.unit * release.noise, reason)
            read = {release.name: (DIFFERENCE, facts.y_dimension)}
            if HYPERGRADIENT in mine:
                read[f"{release.name}, {HYPERGRADIENT}"] = (HYPERGRADIENT, facts.x_dimension)
            for title, (name, dimension) in read.items():
                numbers[f"{title}: noise to signal"] = (
                    mine[name].unit / mine[name].clip * release.noise * math.sqrt(dimension),
                    f"of the {name}: noise of a step over what records can add; steps are averaged",
                )
        numbers["output"] = ("average", "the average of x over about the last twenty steps: post-processing, so free")
        if not any(HYPERGRADIENT in mine for mine in parts.values()):
            numbers[HYPERGRADIENT] = (0, "free: no x-gradient reads a record, so that its step needs no noise")
        return numbers


def _in_units(domain: Tree, gradient: Tree, inverse: bool = False) -> Tree:
    """A gradient in natural units of x, so that one clip fits all of it; ``inverse`` leads back."""

    def convert(convex_set: ConvexSet, part: Tree) -> Tree:
        unit = unit_of(convex_set, part)
        return optax.tree.scale(1 / unit if inverse else unit, part)

    return jax.tree.map(convert, domain, gradient)
