"""Screening of sources: one look at what a clean model says about each source, and a cut.

A model is trained on the upper records alone. One release then asks all sources at once: the sum of the losses of their
records under that model, and their number, as one vector that is clipped whole (how many records a source has is as
private as the records are). The sources are sorted by their mean loss and cut at the largest gap; those below it weigh
the same, the others nothing. The final training at these weights gets the rest of the budget.

It solves this one kind of task, and where sources fall into good and bad ones it is hard to beat: one release instead
of hundreds. It cannot weigh (all or nothing), always cuts somewhere, and has nothing to say on other hyperparameters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.runs import (
    check_pure,
    check_range,
    check_training,
    only_release,
    portion,
    training_stage,
    within,
)
from dpbilevel.baselines.untuned import UpperRecordsOnly
from dpbilevel.constraints import Simplex
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Contribution, Release

Tree = Any
Parameters = dict[str, tuple[Any, str]]

SCREENING = "screening"
_CERTAIN = 4.0  # a source with fewer records than this many standard deviations of the noise is not judged by them
_RESOLUTION = 1e-6  # of a source's part of all records, where there is no noise


@dataclass(frozen=True, kw_only=True)
class ScreenSources(Baseline):
    """Keep the sources that a model of the upper records finds likely, drop the others, and train.

    For problems whose x is one vector of weights on a simplex, one for each source of lower records.

    Args:
        source: record -> the index of its source, for one lower record.
        loss: (y, record) -> the loss of one lower record; None takes the lower loss at the starting x (at uniform
            weights, that is the plain loss).
        loss_range: what the loss of one record is clipped to, public.
        training: settings of both trainings, the one on upper records and the final one; its ``share`` is what
            screening gets.

    The solution's history has the released mean loss of every source.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import ScreenSources
    >>> squared = lambda y, value: 0.5 * (y - value) ** 2
    >>> problem = dpb.BilevelProblem(
    ...     upper_loss=lambda x, y, record: squared(y, record),
    ...     lower_loss=lambda x, y, record: 3 * x[record["source"]] * squared(y, record["value"]),
    ...     domain=dpb.Simplex(),
    ... )
    >>> source = np.arange(1500) % 3
    >>> records = dpb.Records(upper=np.full(500, 0.5), lower={"source": source, "value": 0.5 - (source == 1)})
    >>> screen = ScreenSources(
    ...     source=lambda record: record["source"], loss_range=(0.0, 1.0), training=dpb.Refit(steps=50)
    ... )
    >>> kept = screen.solve(problem, records, dpb.Budget(9.0, 1e-5), start=(np.ones(3) / 3, 0.0))
    >>> kept.x.tolist()
    [0.5, 0.0, 0.5]
    """

    source: Callable[[Tree], Any]
    loss: Callable[[Tree, Tree], Any] | None = None
    loss_range: tuple[float, float] = (0.0, 2.0)
    training: Refit = field(default_factory=Refit)

    def __post_init__(self) -> None:
        if not callable(self.source):
            raise InvalidArgument("source: must be a function from one lower record to the index of its source")
        if self.loss is not None and not callable(self.loss):
            raise InvalidArgument("loss: must be a function (y, record) -> number, or None for the lower loss")
        check_range("loss_range", self.loss_range)
        check_training(self.training)

    @property
    def default_refit(self) -> Refit:
        """What ``refit="auto"`` means: screening finds x, and the model is trained at it with the rest."""
        return self.training

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One round: train on upper records, ask the sources, cut."""
        sources, total = _simplex(context)
        shared = context.sizes.role_of("lower") == context.sizes.role_of("upper")
        share = 0.5 if shared else 1.0
        part = portion(context.budget, share)
        training, parameters = UpperRecordsOnly(training=self.training).program(replace(context, budget=part))
        declared = with_shares(self._release(context, sources), {self._role(context): share}, context.budget)
        trained, screened = calibrate([only_release(training), declared], context.budget)
        program = Program(
            rounds=1,
            stages=[
                training_stage(training, trained, lambda s: (s["x"], s["y"]), lambda s, x, y: s | {"y": y}),
                self._stage(screened, sources, total),
            ],
            start=lambda x, y: {"x": x, "y": y, "source_loss": jnp.zeros(sources, jnp.float32)},
            observe=lambda state: {"x": state["x"], "source_loss": state["source_loss"]},
            finish=lambda state: (state["x"], state["y"]),
        )
        return program, {
            "sources": (sources, "coordinates of x"),
            "screening: range": (self.loss_range, "what one record's loss is clipped to, as given"),
            "screening: noise": (screened.noise_std, "on losses and numbers of the sources, released once"),
        } | {name.replace("training", "model for screening", 1): value for name, value in parameters.items()}

    def _release(self, context: PublicContext, sources: int) -> Release:
        problem, role = context.problem, self._role(context)
        loss, source = self.loss, self.source
        if loss is not None:
            check_pure("loss", lambda x, y, record: self.loss(y, record), context, "lower")  # type: ignore[misc]
        check_pure("source", lambda x, y, record: jnp.sum(jax.nn.one_hot(source(record), sources)), context, "lower")

        def plain(point: Tree, record: Tree) -> Any:
            return problem.lower_loss(point[0], point[1], record) if loss is None else loss(point[1], record)

        bounded = within(self.loss_range, plain, context.budget.is_private)
        half = (self.loss_range[1] - self.loss_range[0]) / 2

        def vector(point: Tree, record: Tree) -> Tree:
            mine = jax.nn.one_hot(source(record), sources)
            return {"loss": bounded(point, record) * mine, "number": half * mine}

        clip = half * math.sqrt(2) if context.budget.is_private else math.inf
        return Release(
            name=SCREENING,
            contributions={role: Contribution(vector, clip, context.sizes.count(role))},
            noise_std=1.0,
            uses=1,
            adjacency=context.budget.adjacency,
        )

    def _stage(self, release: Release, sources: int, total: float) -> Stage:
        low, high = self.loss_range
        half = (high - low) / 2
        least = max(_CERTAIN * release.noise_std / half, _RESOLUTION)

        def update(state: State, carry: State, answer: Tree, step: jax.Array) -> State:
            part = answer["number"] / half  # of all records
            overall = jnp.sum(answer["loss"])  # every record has a source, and their number is public
            # A source with few records is taken for an average one: its own ratio would be noise over noise.
            means = overall + (answer["loss"] - overall * part) / jnp.maximum(part, least)
            kept = below_the_largest_gap(means)
            weights = total * kept / jnp.sum(kept)
            x = jax.tree.map(lambda leaf: weights.astype(leaf.dtype), carry["x"])
            return carry | {"x": x, "source_loss": (means + (low + high) / 2).astype(jnp.float32)}

        return Stage(
            release=release,
            query=lambda state, carry, step: (carry["x"], carry["y"]),
            update=update,
        )

    def _role(self, context: PublicContext) -> str:
        return context.sizes.role_of("lower") or "lower"


def below_the_largest_gap(values: jax.Array) -> jax.Array:
    """Which values lie below the largest gap between neighbours in order.

    >>> below_the_largest_gap(jnp.array([0.9, 0.1, 0.2, 1.0])).tolist()
    [False, True, True, False]
    """
    ordered = jnp.sort(values)
    return values <= ordered[jnp.argmax(jnp.diff(ordered))]


def _simplex(context: PublicContext) -> tuple[int, float]:
    """The number of sources and what their weights sum to."""
    sets, leaves = jax.tree.leaves(context.problem.domain), jax.tree.leaves(context.point[0])
    if len(sets) != 1 or not isinstance(sets[0], Simplex) or len(leaves) != 1 or leaves[0].ndim != 1:
        raise InvalidProblem(
            "domain: screening needs x to be one vector of weights on dpb.Simplex(), one for each source; for other "
            "hyperparameters use dpb.Tracking()"
        )
    if leaves[0].size < 2:
        raise InvalidProblem("start: x0 has one source; screening chooses among at least two")
    return leaves[0].size, sets[0].total
