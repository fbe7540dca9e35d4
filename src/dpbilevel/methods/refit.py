"""The final training: tuning gets a small share of the budget, and training the model at the final x gets the rest.

The training objective is g(x, .) at the released x. If the problem declares its upper loss to be a training loss, upper
records are used too, each with the weight of a lower record of full weight. Every record stays in its role, so that
roles still compose in parallel.

Linear models whose losses declare their bounds take preconditioned steps (`preconditioned`), where the second moments
of rows can be released with little noise. All others take steps of Adam with a clip that adapts (`training_gradients`).
A clip above all norms would add unnecessary noise; a clip far below them biases the gradient towards typical records.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import by_role, shares_by_role
from dpbilevel.methods.descent import Descent
from dpbilevel.methods.noiseless.noiseless import noiseless_training
from dpbilevel.methods.preconditioned import Preconditioned
from dpbilevel.methods.training_gradients import (
    GRADIENT,
    WITHIN,
    ReleasedGradients,
    gradient_levels,
    levels_of,
    number_of_records,
    pools,
)
from dpbilevel.methods.unit_losses import linear_loss
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch

Tree = Any
Parameters = dict[str, tuple[Any, str]]

TRAINING = "training"
_SHARES = {GRADIENT: 0.99, WITHIN: 0.01}  # of mu^2
_FEWEST, _MOST = 200, 600  # steps of Adam
_RECORDS_PER_STEP = 3.0  # mu times records, below which steps are long enough to overshoot
_LINEAR, _OTHER = 2.0, 1.0  # learning rate times root of steps: for rows of norm one, and for y of unknown scale
_WITHIN = 0.99  # fraction of records that are not clipped: those above the clip may be a whole class or source
_NOISY = 0.003  # sqrt(d_y)/(mu n) at which the clip is reduced by a third
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.2
_PLENTY = 1000.0  # mu times records at which tuning's share lies half-way between the two


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Private training of the model at the final hyperparameters: full-batch gradient descent.

    Args:
        steps: number of gradient steps. By default as many as a linear model with released second moments needs, and
            mu n/3 for all others, at least 200 and at most 600.
        learning_rate: learning rate of Adam in units of 1/C. If it is given, Adam is used. By default steps are
            preconditioned by second moments where that pays. Otherwise it is 2/sqrt(steps) for linear models, in
            units of 1/C or, if it is declared, of one over the norm of rows, and 1/sqrt(steps) for all others.
        clip_norm: C, the initial clip, which then adapts to the norms of per-record gradients. Where the noise over all
            coordinates of y is large relative to the number of records, records are clipped to a smaller norm, by a
            factor of sqrt(1 + v/0.003) with v = sqrt(d_y)/(mu n).
        share: share of mu^2 for *tuning*. By default between 0.1 and 0.2: larger where there are few records or epsilon
            is small, so that the signal-to-noise ratio is low.
    """

    steps: int | None = None
    learning_rate: float | None = None
    clip_norm: float = 1.0
    share: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            count("steps", self.steps, "it is the number of gradient steps (try 200)")
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate, "it is the step size of Adam (try 0.1)")
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
            return noiseless_training(context, pools(context))
        preconditioned = None if self.learning_rate is not None else Preconditioned.of(context, self.steps)
        return self.descent(context) if preconditioned is None else preconditioned.program(context)

    def descent(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training program with steps of Adam, also used inside larger programs; reads no record."""
        steps = self.steps or _number_of_steps(context)
        learning_rate, formula = self._learning_rate(context, steps)
        cut, records = self._cut(context), number_of_records(context)
        contributions = by_role(gradient_levels(context, cut, _SHARES), context)
        release = Release(
            name=TRAINING,
            contributions=contributions,
            noise_std=1.0,
            uses=steps,
            sampling=FullBatch(),
            adjacency=context.budget.adjacency,
        )
        shares = shares_by_role({TRAINING: 1.0}, {TRAINING: contributions})
        (release,) = calibrate([with_shares(release, shares[TRAINING], context.budget)], context.budget)
        training = _Training(
            ReleasedGradients.of(context, cut, _WITHIN, _SHARES, release.noise_std, steps),
            Descent(steps, learning_rate, context.problem.lower_domain),
        )
        program = Program(
            rounds=steps,
            stages=[Stage(release=release, query=_query, update=function(_Training.update, training))],
            start=function(_start, training.descent, float(self.clip_norm)),
            observe=_observe,
            finish=_finish,
        )
        parameters: Parameters = {
            "training: steps": (
                steps,
                "at the final x"
                if self.steps
                else f"at the final x: mu n/{_RECORDS_PER_STEP:g}, at least {_FEWEST} and at most {_MOST}",
            ),
            "training: learning rate": (
                learning_rate,
                f"{formula}, of Adam; the second half of all iterates is averaged",
            ),
            "training: records": (
                ", ".join(contributions),
                "upper records are used for training too, as the problem declares"
                if len(contributions) > 1
                else "of the lower level only",
            ),
            "training: noise": (
                release.noise_std,
                f"on a mean of {records} vectors of norm at most one, spends the budget over all steps",
            ),
        }
        ratio = release.noise_std * math.sqrt(context.y_dimension / steps)
        parameters["training: noise to signal"] = (
            ratio,
            "sigma sqrt(d)/(n C): noise of all steps together over the largest mean of records",
        )
        parameters["training: clip"] = (
            self.clip_norm,
            f"initially; it then adapts until {_WITHIN:.0%} of the records are within it",
        )
        parameters["training: cut of the clip"] = (
            cut,
            "factor on the clip, smaller where noise is large relative to n",
        )
        return program, parameters

    def _cut(self, context: PublicContext) -> float:
        """Factor on the clip. A smaller clip reduces the noise in proportion, but biases more records' gradients."""
        noise = math.sqrt(context.y_dimension) / (context.budget.mu * number_of_records(context))
        return 1 / math.sqrt(1 + noise / _NOISY)

    def _learning_rate(self, context: PublicContext, steps: int) -> tuple[float, str]:
        """The learning rate, and its formula.

        Where noise dominates, it decides the noise in y alone: it adds at most sqrt(2/3) times this rate times the root
        of the number of steps to a coordinate, whatever epsilon is.
        """
        if self.learning_rate is not None:
            return self.learning_rate / self.clip_norm, f"{self.learning_rate:g}/C"
        losses = [linear_loss(context.problem.loss(level)) for level in levels_of(context)]
        declared = [loss.bounds for loss in losses if loss is not None and loss.bounds is not None]
        if len(declared) < len(losses):  # so that a linear loss without bounds trains like the same function
            return _OTHER / (self.clip_norm * math.sqrt(steps)), f"{_OTHER:g}/(C sqrt(steps))"
        bounds = declared[0]
        return _LINEAR / (bounds.row_norm * math.sqrt(steps)), f"{_LINEAR:g}/(R sqrt(steps)), with R the norm of rows"


def _number_of_steps(context: PublicContext) -> int:
    """Enough that no step overshoots where curvature is largest; the noise in y does not depend on them."""
    return math.ceil(max(_FEWEST, min(_MOST, context.budget.mu * number_of_records(context) / _RECORDS_PER_STEP)))


@passing("gradients", "descent")
@dataclass(frozen=True, eq=False)
class _Training:
    """A training step: what it reads from the release, and how y moves."""

    gradients: ReleasedGradients
    descent: Descent

    def update(self, state: State, carry: Tree, answer: Tree, step: jax.Array) -> State:
        direction, clip = self.gradients.read(_query(state, carry, step), answer)
        return carry | {"model": self.descent.move(carry["model"], direction), "clip": clip}


def _start(descent: Descent, clip_norm: Any, x: Tree, y: Tree) -> State:
    return {"x": x, "model": descent.start(y), "clip": jnp.asarray(clip_norm, jnp.float32)}


def _query(state: State, carry: Tree, step: jax.Array) -> Tree:
    return carry["x"], carry["model"]["y"], carry["clip"], None  # no metric


def _observe(state: State) -> Tree:
    return {}


def _finish(state: State) -> tuple[Tree, Tree]:
    return state["x"], state["model"]["average"]
