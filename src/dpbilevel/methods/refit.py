"""Tune, then train: hyperparameters need a small share of the budget, the model at the final x gets the rest.

The training objective is g(x, .) at the released x. Where the problem declares its upper loss to be a training loss,
upper records take part, each with the weight of a lower record that counts fully. Every record stays in its role, so
that roles still compose in parallel.

The clip follows the norms of records' gradients (Andrew et al. 2021): each pass also releases which part of the records
is within it, for a hundredth of mu^2, and it moves until that is `_WITHIN`. A clip above all norms would add noise for
nothing, one well below them bends the gradient towards the usual record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.methods.context import Facts
from dpbilevel.methods.contributions import Levels, by_role, shares_by_role
from dpbilevel.methods.descent import Descent
from dpbilevel.methods.joint import Part, Vector, joined, separated, shared
from dpbilevel.methods.noiseless.noiseless import noiseless_training
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch
from dpbilevel.records import Sizes

Tree = Any
Numbers = dict[str, tuple[Any, str]]

TRAINING = "training"
GRADIENT, WITHIN = "gradient", "within the clip"
_SHARES = {GRADIENT: 0.99, WITHIN: 0.01}  # of mu^2
_WITHIN = 0.99  # part of the records that the clip leaves as they are: those beyond it can be a class or a source
_WANDERING = 0.3  # of the clip's logarithm, by noise over the whole run; its pace is at most one
_NOISY = 0.006  # sqrt(d_y)/(mu n) at which the clip has fallen by a third
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.2
_PLENTY = 1000.0  # mu times records: a signal at which the share lies half-way


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Private training of the model at the final hyperparameters: full-batch gradient descent by Adam.

    Args:
        steps: gradient steps.
        learning_rate: of Adam, in units of 1/C, falling linearly to zero.
        clip_norm: C, where the clip starts before it follows the norms of records' gradients. Records are clipped to
            less than that where noise in all of y's coordinates is large against the number of records, by a factor
            of sqrt(1 + (v/0.006)^2) with v = sqrt(d_y)/(mu n).
        share: of mu^2 that is left to *tuning*; between 0.1 and 0.2 by default, more where there are few records or a
            small epsilon and the signal is faint.
    """

    steps: int = 200
    learning_rate: float = 0.2
    clip_norm: float = 1.0
    share: float | None = None

    def __post_init__(self) -> None:
        count("steps", self.steps, "it is the number of gradient steps (try 200)")
        positive("learning_rate", self.learning_rate, "it is the step size of Adam (try 0.2)")
        positive("clip_norm", self.clip_norm, "it bounds each record's gradient (try 1.0)")
        if self.share is not None and not 0 < positive("share", self.share, "of mu^2 for tuning (try 0.15)") < 1:
            raise InvalidArgument(f"share={self.share!r}: must lie between 0 and 1; it is what tuning gets (try 0.15)")

    def budgets(self, budget: Budget, sizes: Sizes, gaussian: bool) -> tuple[Budget, Budget, float]:
        """The budgets of tuning and of training, and tuning's share.

        Full-batch Gaussian runs share mu^2, which is exact. Anything else shares epsilon and delta, which always holds.
        """
        if not budget.is_private or budget.delta is None:
            return budget, budget, 1.0
        signal = budget.mu * min(map(sizes.count, sizes.roles)) / _PLENTY
        share = self.share or _LEAST_SHARE + (_MOST_SHARE - _LEAST_SHARE) / (1 + signal)
        parts = (share, 1 - share)
        if gaussian:
            epsilons = [gaussian_epsilon(budget.mu * part**0.5, budget.delta) for part in parts]
            tuning, training = (Budget(epsilon, budget.delta, budget.adjacency) for epsilon in epsilons)
        else:
            tuning, training = (Budget(budget.epsilon * p, budget.delta * p, budget.adjacency) for p in parts)
        return tuning, training, share

    def program(self, facts: Facts) -> tuple[Program, Numbers]:
        """The training at the end of a run: noisy steps, or without a budget the minimiser itself."""
        if not facts.budget.is_private:
            return noiseless_training(facts, self._pools(facts))
        return self.descent(facts)

    def descent(self, facts: Facts) -> tuple[Program, Numbers]:
        """The training as steps along released gradients, also as a part of larger programs; reads no record."""
        contributions = by_role(self._levels(facts), facts)
        release = Release(
            name=TRAINING,
            contributions=contributions,
            noise=1.0,
            steps=self.steps,
            sampling=FullBatch(),
            adjacency=facts.budget.adjacency,
        )
        shares = shares_by_role({TRAINING: 1.0}, {TRAINING: contributions})
        (release,) = calibrate([with_shares(release, shares[TRAINING], facts.budget)], facts.budget)
        program = Program(
            rounds=self.steps,
            stages=[self._stage(facts, release)],
            start=lambda x, y: {
                "x": x,
                "model": self._descent(facts).start(y),
                "clip": jnp.asarray(self.clip_norm, jnp.float32),
            },
            observe=lambda state: {},
            finish=lambda state: (state["x"], state["model"]["average"]),
        )
        numbers: Numbers = {
            "training: steps": (self.steps, "at the final x"),
            "training: learning rate": (
                self.learning_rate / self.clip_norm,
                f"{self.learning_rate:g}/C, by Adam, falling linearly to zero",
            ),
            "training: records": (
                ", ".join(contributions),
                "upper records train too, as the problem declares"
                if len(contributions) > 1
                else "of the lower level alone",
            ),
            "training: noise": (
                release.noise,
                f"on a mean of {self._records(facts)} vectors of norm at most one, spends the budget over all steps",
            ),
        }
        ratio = release.noise * math.sqrt(facts.y_dimension)
        numbers["training: noise to signal"] = (ratio, "sigma sqrt(d)/(n C): noise of a step over what records can add")
        numbers["training: clip"] = (self.clip_norm, f"to begin with; it then follows the norm that {_WITHIN:.0%} keep")
        numbers["training: cut of the clip"] = (self._cut(facts), "less where noise is large against n")
        return program, numbers

    def _levels(self, facts: Facts) -> Levels:
        problem, sizes = facts.problem, facts.sizes
        lower_slope = jax.grad(problem.lower_loss, 1)

        def lower(x: Tree, y: Tree, record: Tree) -> Tree:
            return optax.tree.scale(1 / problem.lower_scale(x), lower_slope(x, y, record))

        slopes = {"lower": lower}
        if self._pools(facts) and problem.upper_loss is not None:
            slopes["upper"] = jax.grad(problem.upper_loss, 1)
        total = self._records(facts)

        def level(name: str) -> tuple[Vector, float]:
            # A mean over all records together: each role's mean counts with its part of the records.
            part = sizes.count(sizes.role_of(name) or name) / total
            vector = joined(self._parts(facts, slopes[name]), clipped=facts.budget.is_private)
            return lambda point, record: optax.tree.scale(part, vector(point, record)), part

        return {name: level(name) for name in slopes}

    def _parts(self, facts: Facts, slope: Callable[[Tree, Tree, Tree], Tree]) -> dict[str, Part]:
        """What a record adds at points (x, y, clip): its gradient in units of the clip, and whether that is within."""
        cut = self._cut(facts)

        def gradient(point: Tree, record: Tree) -> Tree:
            x, y, clip = point
            return optax.tree.scale(1 / (cut * clip), slope(x, y, record))

        def within(point: Tree, record: Tree) -> jax.Array:
            return jnp.where(cut * optax.tree.norm(gradient(point, record)) <= 1, 0.5, -0.5)

        return shared({GRADIENT: (gradient, 1.0), WITHIN: (within, 0.5)}, _SHARES)

    def _pools(self, facts: Facts) -> bool:
        """Whether upper records train too."""
        return facts.problem.upper_trains and facts.problem.upper_loss is not None and facts.sizes.both is None

    def _records(self, facts: Facts) -> int:
        levels = ("lower", "upper") if self._pools(facts) else ("lower",)
        return sum(facts.sizes.count(facts.sizes.role_of(level) or level) for level in levels)

    def _cut(self, facts: Facts) -> float:
        """Of the clip: a smaller one saves noise in proportion, and bends the gradients of ever more records."""
        noise = math.sqrt(facts.y_dimension) / (facts.budget.mu * self._records(facts))
        return 1 / math.sqrt(1 + (noise / _NOISY) ** 2)

    def _stage(self, facts: Facts, release: Release) -> Stage:
        problem = facts.problem
        descent, term, cut = self._descent(facts), jax.grad(problem.term("lower"), 1), self._cut(facts)
        parts = self._parts(facts, jax.grad(problem.lower_loss, 1))  # their units are those of every level
        noise = parts[WITHIN].unit * release.noise * math.sqrt(self.steps)
        pace = 1 / math.hypot(1, noise / _WANDERING)

        def update(state: State, carry: Tree, answer: Tree, step: jax.Array) -> State:
            x, model, clip = carry["x"], carry["model"], carry["clip"]
            told = separated(answer, parts)
            scale = problem.lower_scale(x) * cut * clip
            gradient = optax.tree.add(optax.tree.scale(scale, told[GRADIENT]), term(x, model["y"]))
            clip = clip * jnp.exp(pace * (_WITHIN - 0.5 - told[WITHIN]))
            return carry | {"model": descent.move(model, gradient), "clip": clip.astype(jnp.float32)}

        return Stage(
            release=release,
            steps=1,
            begin=lambda state: state,
            query=lambda state, carry, step: (carry["x"], carry["model"]["y"], carry["clip"]),
            update=update,
            end=lambda state, carry: carry,
        )

    def _descent(self, facts: Facts) -> Descent:
        return Descent(self.steps, self.learning_rate / self.clip_norm, facts.problem.lower_domain)
