"""One run of a search: train the model at given hyperparameters, then release its validation score.

Both are stages of one program, each with its own release: the training of `Refit`, unchanged, and the score,

    score = mean over upper records of the loss, clipped to a public range  +  noise.

The range is centred at zero before noise is added, which halves the sensitivity. If the upper records also train,
training and score share their budget; otherwise each has the entire budget of its role.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.baselines.embedded_training import EmbeddedTraining
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Stage, State
from dpbilevel.foundation.arguments import positive
from dpbilevel.foundation.structure import function
from dpbilevel.foundation.tracing import closed_over_arrays, trace_loss
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.unit_losses import loss_for_records
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Contribution, Release

Tree = Any
Parameters = dict[str, tuple[Any, str]]
Loss = Callable[[Tree, Tree, Tree], Any]

SCORE = "score"


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRuns:
    """How the runs of a search are trained and scored.

    Args:
        training: settings of the training, like those of the final training of `solve`.
        score: (x, y, record) -> the score of an upper record, smaller is better; None uses the upper loss with the
            upper term.
        score_range: public range to which the score of one record is clipped.
        score_share: share of mu^2 for scoring, if the scored records also train.
    """

    training: Refit = field(default_factory=Refit)
    score: Loss | None = None
    score_range: tuple[float, float] = (0.0, 2.0)
    score_share: float = 0.1

    def __post_init__(self) -> None:
        check_training(self.training)
        if self.score is not None and not callable(self.score):
            raise InvalidArgument("score: must be a function (x, y, record) -> number, or None for the upper loss")
        check_range("score_range", self.score_range)
        if not positive("score_share", self.score_share, "it is the share of mu^2 for scoring (try 0.1)") < 1:
            raise InvalidArgument(f"score_share={self.score_share!r}: must lie between 0 and 1 (try 0.1)")

    def stages(
        self, context: PublicContext, rounds: int, begin: Callable[[State], tuple[Tree, Tree]]
    ) -> tuple[list[Stage], EmbeddedTraining, Parameters]:
        """The stages of a run, for ``rounds`` runs that share the budget of ``context``, and its training.

        ``begin`` returns the x at which a round trains and the y from which it starts. A round stores "x", "y" and
        "score" in the state.
        """
        contribution, role = self._contribution(context)
        budget = portion(context.budget, 1 / rounds)
        training, parameters = EmbeddedTraining.of(self.training, replace(context, budget=budget))
        shared = any(role in release.contributions for release in training.releases)
        if shared:
            budget = portion(context.budget, (1 - self.score_share) / rounds)
            training, parameters = EmbeddedTraining.of(self.training, replace(context, budget=budget))
        declared = [replace(release, uses=rounds * release.uses) for release in training.releases]
        if contribution is not None and role is not None:
            score = Release(
                name=SCORE,
                contributions={role: contribution},
                noise_std=1.0,
                uses=rounds,
                adjacency=context.budget.adjacency,
            )
            declared.append(with_shares(score, {role: self.score_share if shared else 1.0}, context.budget))
        releases, number = calibrate(declared, context.budget), len(training.releases)
        scoring = releases[number] if len(releases) > number else None
        stages = [*training.stages(releases[:number], begin, _trained), self._scoring_stage(context, scoring)]
        if scoring is None:
            return stages, training, parameters | {"score": (0, "free: the upper level reads no record")}
        return (
            stages,
            training,
            parameters
            | {
                "score: range": (self.score_range, "what one record's score is clipped to, as given"),
                "score: noise": (scoring.noise_std, "of the mean that is released"),
            },
        )

    def _contribution(self, context: PublicContext) -> tuple[Contribution | None, str | None]:
        problem, sizes = context.problem, context.sizes
        loss = self.score or problem.upper_loss
        if loss is None:
            return None, None
        role = sizes.role_of("upper")
        if role is None:
            raise InvalidProblem("score: has no upper records to read; pass Records(upper=...), or leave score out")
        if self.score is not None:
            check_pure("score", self.score, context, "upper")
        private = context.budget.is_private
        if self.score is not None:
            loss = loss_for_records(self.score, sizes)
        bounded = within(self.score_range, function(_loss_at, loss), private)
        half = (self.score_range[1] - self.score_range[0]) / 2
        return Contribution(bounded, half if private else math.inf, sizes.count(role)), role

    def _scoring_stage(self, context: PublicContext, release: Release | None) -> Stage:
        term = context.problem.term("upper") if self.score is None else _no_term
        return Stage(release=release, query=at_carry, update=function(_scored, term, sum(self.score_range) / 2))


def at_carry(state: State, carry: State, step: jax.Array) -> Tree:
    """The query point (x, y) of the carry."""
    return carry["x"], carry["y"]


def _trained(state: State, x: Tree, y: Tree) -> State:
    return state | {"x": x, "y": y}


def _scored(
    term: Callable[[Tree, Tree], Any], middle: Any, state: State, carry: State, answer: Tree, step: jax.Array
) -> State:
    value = jnp.zeros(()) if answer is None else middle + answer
    return carry | {"score": (value + term(carry["x"], carry["y"])).astype(carry["score"].dtype)}


def _no_term(x: Tree, y: Tree) -> float:
    return 0.0


def _loss_at(loss: Loss, point: Tree, record: Tree) -> Any:
    return loss(point[0], point[1], record)


def within(
    bounds: tuple[float, float], loss: Callable[[Tree, Tree], Any], private: bool
) -> Callable[[Tree, Tree], jax.Array]:
    """A loss clipped to public bounds and centred at zero; NaN counts as the worst value.

    Without privacy nothing is clipped.
    """
    return function(_clipped if private else _shifted, tuple(map(float, bounds)), loss)


def _clipped(bounds: tuple[Any, Any], loss: Callable[[Tree, Tree], Any], point: Tree, record: Tree) -> jax.Array:
    low, high = bounds
    value = loss(point, record)
    value = jnp.where(jnp.isnan(value), high, value).astype(value.dtype)  # infinities are clipped
    return jnp.clip(value, low, high) - (low + high) / 2


def _shifted(bounds: tuple[Any, Any], loss: Callable[[Tree, Tree], Any], point: Tree, record: Tree) -> jax.Array:
    low, high = bounds
    return loss(point, record) - (low + high) / 2


def portion(budget: Budget, share: float) -> Budget:
    """The budget of a share of mu^2; full-batch Gaussian shares compose exactly to the full budget."""
    if not budget.is_private or budget.delta is None:
        return budget
    return with_mu(budget, budget.mu * math.sqrt(share))


def with_mu(budget: Budget, mu: float) -> Budget:
    """A budget with the same delta and relation that spends exactly mu."""
    return Budget(gaussian_epsilon(mu, budget.delta or 0.0), budget.delta, budget.adjacency)


def check_pure(name: str, loss: Loss, context: PublicContext, level: str) -> None:
    """Trace a user's function on shapes; raises unless it is a pure real scalar that closes over no private array."""
    traced = trace_loss(name, loss, *context.point, context.sizes.row(level))
    if closed_over_arrays(traced, context.problem.public):
        raise InvalidProblem(
            f"{name}: closes over an array that was not declared public; list it in public=... of the problem, or pass "
            "it as part of the records"
        )


def check_training(training: Any) -> None:
    """Raise unless ``training`` is a `Refit`."""
    if not isinstance(training, Refit):
        raise InvalidArgument(f"training={training!r}: must be dpb.Refit(...), the settings of the training")


def check_range(name: str, bounds: Any) -> None:
    """Raise unless ``bounds`` is a pair (low, high) of finite numbers with low < high."""
    if (
        not isinstance(bounds, tuple)
        or len(bounds) != 2
        or not all(isinstance(bound, int | float) and abs(bound) <= sys.float_info.max for bound in bounds)
        or not bounds[0] < bounds[1]
    ):
        raise InvalidArgument(
            f"{name}={bounds!r}: must be a pair (low, high) of finite numbers, to which losses are clipped (try (0, 2))"
        )
