"""Screening of sources: score each source once with a clean model, and drop the bad ones.

A model is trained on the upper records only. One release then covers all sources at once: the sum of the losses of
their records under that model, and the number of their records, as one contribution that is clipped jointly (the number
of records of a source is as private as the records are). A unit with several rows contributes the mean of what its rows
do, in whatever sources they are: it is no longer than the longest of them, so that clip and noise stay those of rows,
and every unit counts once. The sources are sorted by mean loss and split at the largest gap: those below it get equal
weights, the others zero. The final training at these weights gets the remaining budget.

It only solves this kind of task. If sources are either good or bad it is hard to beat: one release instead of hundreds.
It cannot assign graded weights, always drops at least one source, and does not apply to other hyperparameters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.runs import (
    at_carry,
    check_pure,
    check_range,
    check_training,
    portion,
    within,
)
from dpbilevel.baselines.untuned import UpperRecordsOnly
from dpbilevel.constraints import Simplex
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.unit_losses import has_bundles, loss_of_row, mean_over_rows
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Contribution, Release

Tree = Any
Parameters = dict[str, tuple[Any, str]]

SCREENING = "screening"
_CERTAIN = 4.0  # a source is scored by its own records only above this many standard deviations of the noise
_RESOLUTION = 1e-6  # smallest fraction of all records that counts for a source, if there is no noise


@dataclass(frozen=True, kw_only=True)
class ScreenSources(Baseline):
    """Keep the sources with a small loss under a model of the upper records, drop the others, and train.

    For problems whose x is one vector of weights on a simplex, one for each source of lower records.

    Args:
        source: record -> the index of its source, for one lower record.
        loss: (y, record) -> the loss of one lower record; None uses the lower loss at the starting x (with uniform
            weights, that is the plain loss).
        loss_range: public range to which the loss of one record is clipped.
        training: settings of both trainings, the one on upper records and the final one; its ``share`` is the share of
            screening.

    The solution's history contains the released mean loss of every source.

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
        """The setting of ``refit="auto"``: screening finds x, and the model is trained at it with the remainder."""
        return self.training

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One round: train on upper records, score the sources, drop the bad ones."""
        sources, total = _simplex(context)
        shared = context.sizes.role_of("lower") == context.sizes.role_of("upper")
        share = 0.5 if shared else 1.0
        part = portion(context.budget, share)
        training, parameters = UpperRecordsOnly(training=self.training).embedded(replace(context, budget=part))
        declared = with_shares(self._release(context, sources), {self._role(context): share}, context.budget)
        *trained, screened = calibrate([*training.releases, declared], context.budget)
        program = Program(
            rounds=1,
            stages=[
                *training.stages(tuple(trained), _finish, _trained),
                self._stage(screened, total, has_bundles(context.sizes)),
            ],
            start=training.start(lambda x, y: {"x": x, "y": y, "source_loss": jnp.zeros(sources, jnp.float32)}),
            observe=_observe,
            finish=_finish,
        )
        return program, {
            "sources": (sources, "coordinates of x"),
            "screening: range": (self.loss_range, "what one record's loss is clipped to, as given"),
            "screening: noise": (screened.noise_std, "on losses and numbers of the sources, released once"),
        } | {name.replace("training", "model for screening", 1): value for name, value in parameters.items()}

    def _release(self, context: PublicContext, sources: int) -> Release:
        role, loss, source = self._role(context), self.loss, self.source
        if loss is not None:
            check_pure("loss", lambda x, y, record: self.loss(y, record), context, "lower")  # type: ignore[misc]
        check_pure("source", lambda x, y, record: jnp.sum(jax.nn.one_hot(source(record), sources)), context, "lower")
        lower = loss_of_row(context.problem.lower_loss)
        plain = function(_lower_loss, lower) if loss is None else function(_own_loss, loss)
        bounded = within(self.loss_range, plain, context.budget.is_private)
        half = (self.loss_range[1] - self.loss_range[0]) / 2
        vector = function(_BySource.vector, _BySource(function(source), sources, bounded, half))
        if has_bundles(context.sizes):
            vector = function(_of_unit, vector)
        clip = half * math.sqrt(2) if context.budget.is_private else math.inf
        return Release(
            name=SCREENING,
            contributions={role: Contribution(vector, clip, context.sizes.count(role))},
            noise_std=1.0,
            uses=1,
            adjacency=context.budget.adjacency,
        )

    def _stage(self, release: Release, total: float, of_units: bool) -> Stage:
        low, high = map(float, self.loss_range)
        least = max(_CERTAIN * release.noise_std / ((high - low) / 2), _RESOLUTION)
        update = _screened_by_units if of_units else _screened
        return Stage(release=release, query=at_carry, update=function(update, (low, high), least, float(total)))

    def _role(self, context: PublicContext) -> str:
        return context.sizes.role_of("lower") or "lower"


def _trained(state: State, x: Tree, y: Tree) -> State:
    return state | {"y": y}


def _observe(state: State) -> Tree:
    return {"x": state["x"], "source_loss": state["source_loss"]}


def _finish(state: State) -> tuple[Tree, Tree]:
    return state["x"], state["y"]


def _lower_loss(loss: Callable[[Tree, Tree, Tree], Any], point: Tree, record: Tree) -> Any:
    return loss(point[0], point[1], record)


def _own_loss(loss: Callable[[Tree, Tree], Any], point: Tree, record: Tree) -> Any:
    return loss(point[1], record)


@passing("source", "bounded", "half", structure=("sources",))
@dataclass(frozen=True, eq=False)
class _BySource:
    """The loss of a record, and half of its range, in the place of the record's source."""

    source: Callable[[Tree], Any]
    sources: int
    bounded: Callable[[Tree, Tree], Any]
    half: float

    def vector(self, point: Tree, record: Tree) -> Tree:
        mine = jax.nn.one_hot(self.source(record), self.sources)
        return {"loss": self.bounded(point, record) * mine, "number": self.half * mine}


def _of_unit(of_row: Callable[[Tree, Tree], Tree], point: Tree, unit: Bundle) -> Tree:
    return mean_over_rows(lambda row: of_row(point, row), unit)


def _screened_by_units(
    bounds: tuple[Any, Any], least: Any, total: Any, state: State, carry: State, answer: Tree, step: jax.Array
) -> State:
    # Units without rows, of a list of all ids, are in no source: fractions are those of the others.
    low, high = bounds
    others = jnp.maximum(jnp.sum(answer["number"]) / ((high - low) / 2), least)
    of_others = {name: part / others for name, part in answer.items()}
    return _screened(bounds, least, total, state, carry, of_others, step)


def _screened(
    bounds: tuple[Any, Any], least: Any, total: Any, state: State, carry: State, answer: Tree, step: jax.Array
) -> State:
    low, high = bounds
    part = answer["number"] / ((high - low) / 2)  # fraction of all records
    overall = jnp.sum(answer["loss"])  # every record has a source, and the number of records is public
    # A source with few records counts as average: its own ratio would be noise over noise.
    means = overall + (answer["loss"] - overall * part) / jnp.maximum(part, least)
    good = below_the_largest_gap(means)
    weights = total * good / jnp.sum(good)
    x = jax.tree.map(lambda leaf: weights.astype(leaf.dtype), carry["x"])
    return carry | {"x": x, "source_loss": (means + (low + high) / 2).astype(jnp.float32)}


def below_the_largest_gap(values: jax.Array) -> jax.Array:
    """Boolean mask of the values below the largest gap between consecutive sorted values.

    >>> below_the_largest_gap(jnp.array([0.9, 0.1, 0.2, 1.0])).tolist()
    [False, True, True, False]
    """
    ordered = jnp.sort(values)
    return values <= ordered[jnp.argmax(jnp.diff(ordered))]


def _simplex(context: PublicContext) -> tuple[int, float]:
    """The number of sources and the sum of their weights."""
    sets, leaves = jax.tree.leaves(context.problem.domain), jax.tree.leaves(context.point[0])
    if len(sets) != 1 or not isinstance(sets[0], Simplex) or len(leaves) != 1 or leaves[0].ndim != 1:
        raise InvalidProblem(
            "domain: screening needs x to be one vector of weights on dpb.Simplex(), one for each source; for other "
            "hyperparameters use dpb.Tracking()"
        )
    if leaves[0].size < 2:
        raise InvalidProblem("start: x0 has one source; screening needs at least two")
    return leaves[0].size, sets[0].total
