"""Tune, then train: hyperparameters need a small share of the budget, the model at the final x gets the rest.

The training objective is g(x, .) at the released x. Where the problem declares its upper loss to be a training loss,
upper records take part, each with the weight of a lower record that counts fully. Every record stays in its role, so
that roles still compose in parallel.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import optax

from dpbilevel.arguments import count, positive
from dpbilevel.errors import InvalidArgument
from dpbilevel.facts import Facts
from dpbilevel.methods.contributions import Levels, by_role, shares_by_role
from dpbilevel.methods.descent import Descent
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch
from dpbilevel.program import Program, Stage, State
from dpbilevel.records import Sizes

Tree = Any
Numbers = dict[str, tuple[Any, str]]

TRAINING = "training"
_NOISY = 0.006  # sqrt(d_y)/(mu n) at which the clip has fallen by a third
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.2
_PLENTY = 1000.0  # mu times records: a signal at which the share lies half-way


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Private training of the model at the final hyperparameters: full-batch gradient descent by Adam.

    Args:
        steps: gradient steps.
        learning_rate: of Adam, falling linearly to zero.
        clip_norm: C, the norm of a usual record's gradient. Records are clipped to less where noise in all of y's
            coordinates is large against the number of records: C/sqrt(1 + (v/0.006)^2), v = sqrt(d_y)/(mu n).
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
        """Declare the training's release and write it out; no record is involved."""
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
            start=lambda x, y: {"x": x, "model": self._descent(facts).start(y)},
            observe=lambda state: {},
            finish=lambda state: (state["x"], state["model"]["average"]),
        )
        numbers: Numbers = {
            "training: steps": (self.steps, "at the final x"),
            "training: learning rate": (self.learning_rate, "by Adam, falling linearly to zero"),
            "training: records": (
                ", ".join(contributions),
                "upper records train too, as the problem declares"
                if len(contributions) > 1
                else "of the lower level alone",
            ),
            "training: noise": (release.noise, "spends training's share of the budget over all steps"),
        }
        for role, contribution in contributions.items():
            numbers[f"training: clip ({role})"] = (contribution.clip, "bounds one record's part of the pooled mean")
        return program, numbers

    def _levels(self, facts: Facts) -> Levels:
        problem, sizes = facts.problem, facts.sizes
        lower_slope = jax.grad(problem.lower_loss, 1)

        def lower(point: Tree, record: Tree) -> Tree:
            x, y = point
            return optax.tree.scale(1 / problem.lower_scale(x), lower_slope(x, y, record))

        if not problem.upper_trains or problem.upper_loss is None or sizes.both is not None:
            return {"lower": (lower, self._clip(facts, sizes.count(sizes.role_of("lower") or "lower")))}
        upper_slope = jax.grad(problem.upper_loss, 1)
        # A mean over both roles together: each role's mean counts with its part of the records.
        total = sizes.count("lower") + sizes.count("upper")
        parts = {level: sizes.count(level) / total for level in ("lower", "upper")}
        clip = self._clip(facts, total)
        return {
            "lower": (
                lambda point, record: optax.tree.scale(parts["lower"], lower(point, record)),
                clip * parts["lower"],
            ),
            "upper": (
                lambda point, record: optax.tree.scale(parts["upper"], upper_slope(*point, record)),
                clip * parts["upper"],
            ),
        }

    def _clip(self, facts: Facts, records: int) -> float:
        """The clip: a smaller one saves noise in proportion, and bends the gradients of ever more records."""
        noise = math.sqrt(facts.y_dimension) / (facts.budget.mu * records)
        return self.clip_norm / math.sqrt(1 + (noise / _NOISY) ** 2)

    def _stage(self, facts: Facts, release: Release) -> Stage:
        problem = facts.problem
        descent, term = self._descent(facts), jax.grad(problem.term("lower"), 1)

        def update(state: State, carry: Tree, answer: Tree, step: jax.Array) -> State:
            x, model = carry["x"], carry["model"]
            gradient = optax.tree.add(optax.tree.scale(problem.lower_scale(x), answer), term(x, model["y"]))
            return carry | {"model": descent.move(model, gradient)}

        return Stage(
            release=release,
            steps=1,
            begin=lambda state: state,
            query=lambda state, carry, step: (carry["x"], carry["model"]["y"]),
            update=update,
            end=lambda state, carry: carry,
        )

    def _descent(self, facts: Facts) -> Descent:
        return Descent(self.steps, self.learning_rate, facts.problem.lower_domain)
