"""The final training: tuning gets a small share of the budget, and training the model at the final x gets the rest.

The training objective is g(x, .) at the released x. If the problem declares its upper loss to be a training loss, upper
records are used too, each with the weight of a lower record of full weight. Every record stays in its role, so that
roles still compose in parallel.

The clip adapts to the norms of per-record gradients (Andrew et al. 2021). Each step also releases the fraction of
records within the clip, for a hundredth of mu^2, and the clip is adjusted until this fraction is `_WITHIN`. A clip
above all norms would add unnecessary noise; a clip far below them biases the gradient towards typical records.
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
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import Levels, by_role, shares_by_role
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.methods.descent import Descent
from dpbilevel.methods.joint import Part, PerRecord, joined, separated, shared
from dpbilevel.methods.noiseless.noiseless import noiseless_training
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.outer import norm
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch
from dpbilevel.records import RecordShapes

Tree = Any
Parameters = dict[str, tuple[Any, str]]

TRAINING = "training"
GRADIENT, WITHIN = "gradient", "within the clip"
_SHARES = {GRADIENT: 0.99, WITHIN: 0.01}  # of mu^2
_WITHIN = 0.99  # fraction of records that are not clipped: those above the clip may be a whole class or source
_WANDERING = 0.3  # standard deviation of the log clip due to noise over the run; its pace is at most one
_NOISY = 0.006  # sqrt(d_y)/(mu n) at which the clip is reduced by a third
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.2
_PLENTY = 1000.0  # mu times records at which tuning's share lies half-way between the two


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Private training of the model at the final hyperparameters: full-batch gradient descent with Adam.

    Args:
        steps: number of gradient steps.
        learning_rate: initial learning rate of Adam in units of 1/C; it decreases linearly to zero.
        clip_norm: C, the initial clip, which then adapts to the norms of per-record gradients. Where the noise over all
            coordinates of y is large relative to the number of records, records are clipped to a smaller norm, by a
            factor of sqrt(1 + (v/0.006)^2) with v = sqrt(d_y)/(mu n).
        share: share of mu^2 for *tuning*. By default between 0.1 and 0.2: larger where there are few records or epsilon
            is small, so that the signal-to-noise ratio is low.
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
            raise InvalidArgument(
                f"share={self.share!r}: must lie between 0 and 1; it is tuning's share of mu^2 (try 0.15)"
            )

    def budgets(self, budget: Budget, sizes: RecordShapes, gaussian: bool) -> tuple[Budget, Budget, float]:
        """The budgets of tuning and of training, and tuning's share.

        Full-batch Gaussian runs split mu^2, which is exact. All other runs split epsilon and delta, which is always
        valid.
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

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training program: noisy gradient steps, or the exact minimiser if epsilon is infinite."""
        if not context.budget.is_private:
            return noiseless_training(context, self._pools(context))
        return self.descent(context)

    def descent(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training program with noisy gradient steps, also used inside larger programs; reads no record."""
        contributions = by_role(self._levels(context), context)
        release = Release(
            name=TRAINING,
            contributions=contributions,
            noise_std=1.0,
            uses=self.steps,
            sampling=FullBatch(),
            adjacency=context.budget.adjacency,
        )
        shares = shares_by_role({TRAINING: 1.0}, {TRAINING: contributions})
        (release,) = calibrate([with_shares(release, shares[TRAINING], context.budget)], context.budget)
        program = Program(
            rounds=self.steps,
            stages=[self._stage(context, release)],
            start=lambda x, y: {
                "x": x,
                "model": self._descent(context).start(y),
                "clip": jnp.asarray(self.clip_norm, jnp.float32),
            },
            observe=lambda state: {},
            finish=lambda state: (state["x"], state["model"]["average"]),
        )
        parameters: Parameters = {
            "training: steps": (self.steps, "at the final x"),
            "training: learning rate": (
                self.learning_rate / self.clip_norm,
                f"{self.learning_rate:g}/C, of Adam, decreasing linearly to zero",
            ),
            "training: records": (
                ", ".join(contributions),
                "upper records are used for training too, as the problem declares"
                if len(contributions) > 1
                else "of the lower level only",
            ),
            "training: noise": (
                release.noise_std,
                f"on a mean of {self._records(context)} vectors of norm at most one, spends the budget over all steps",
            ),
        }
        ratio = release.noise_std * math.sqrt(context.y_dimension)
        parameters["training: noise to signal"] = (
            ratio,
            "sigma sqrt(d)/(n C): noise of a step over the largest mean of records",
        )
        parameters["training: clip"] = (
            self.clip_norm,
            f"initially; it then adapts until {_WITHIN:.0%} of the records are within it",
        )
        parameters["training: cut of the clip"] = (
            self._cut(context),
            "factor on the clip, smaller where noise is large relative to n",
        )
        return program, parameters

    def _levels(self, context: PublicContext) -> Levels:
        problem, sizes = context.problem, context.sizes
        lower_gradient = gradient_in_y(problem.lower_loss)

        def lower(x: Tree, y: Tree, record: Tree) -> Tree:
            return optax.tree.scale(1 / problem.lower_scale(x), lower_gradient(x, y, record))

        loss_gradients: dict[str, Callable[..., Tree]] = {"lower": lower}
        if self._pools(context) and problem.upper_loss is not None:
            loss_gradients["upper"] = gradient_in_y(problem.upper_loss)
        total = self._records(context)

        def level(name: str) -> tuple[PerRecord, float]:
            # A mean over all records: the mean of each role is weighted by its fraction of the records.
            fraction = sizes.count(sizes.role_of(name) or name) / total
            contribution = joined(self._parts(context, loss_gradients[name]), clipped=context.budget.is_private)
            return lambda point, record: optax.tree.scale(fraction, contribution(point, record)), fraction

        return {name: level(name) for name in loss_gradients}

    def _parts(self, context: PublicContext, loss_gradient: Callable[[Tree, Tree, Tree], Tree]) -> dict[str, Part]:
        """A record's contribution at (x, y, clip): its gradient in units of the clip, and whether it is within it."""
        cut = self._cut(context)

        def gradient(point: Tree, record: Tree) -> Tree:
            x, y, clip = point
            return optax.tree.scale(1 / (cut * clip), loss_gradient(x, y, record))

        def within(point: Tree, record: Tree) -> jax.Array:
            return jnp.where(cut * norm(gradient(point, record)) <= 1, 0.5, -0.5)

        return shared({GRADIENT: (gradient, 1.0), WITHIN: (within, 0.5)}, _SHARES)

    def _pools(self, context: PublicContext) -> bool:
        """Whether upper records are used for training too."""
        return context.problem.upper_trains and context.problem.upper_loss is not None and context.sizes.both is None

    def _records(self, context: PublicContext) -> int:
        levels = ("lower", "upper") if self._pools(context) else ("lower",)
        return sum(context.sizes.count(context.sizes.role_of(level) or level) for level in levels)

    def _cut(self, context: PublicContext) -> float:
        """Factor on the clip. A smaller clip reduces the noise in proportion, but biases more records' gradients."""
        noise = math.sqrt(context.y_dimension) / (context.budget.mu * self._records(context))
        return 1 / math.sqrt(1 + (noise / _NOISY) ** 2)

    def _stage(self, context: PublicContext, release: Release) -> Stage:
        problem = context.problem
        descent, term, cut = self._descent(context), jax.grad(problem.term("lower"), 1), self._cut(context)
        parts = self._parts(context, gradient_in_y(problem.lower_loss))  # every level has the same units
        noise = parts[WITHIN].unit * release.noise_std * math.sqrt(self.steps)
        pace = 1 / math.hypot(1, noise / _WANDERING)

        def update(state: State, carry: Tree, answer: Tree, step: jax.Array) -> State:
            x, model, clip = carry["x"], carry["model"], carry["clip"]
            means = separated(answer, parts)
            scale = problem.lower_scale(x) * cut * clip
            gradient = optax.tree.add(optax.tree.scale(scale, means[GRADIENT]), term(x, model["y"]))
            clip = clip * jnp.exp(pace * (_WITHIN - 0.5 - means[WITHIN]))
            return carry | {"model": descent.move(model, gradient), "clip": clip.astype(jnp.float32)}

        return Stage(
            release=release,
            query=lambda state, carry, step: (carry["x"], carry["model"]["y"], carry["clip"]),
            update=update,
        )

    def _descent(self, context: PublicContext) -> Descent:
        return Descent(self.steps, self.learning_rate / self.clip_norm, context.problem.lower_domain)
