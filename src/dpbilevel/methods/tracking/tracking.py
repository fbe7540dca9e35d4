"""Difference tracking: one loop for the model y, the difference d and the hyperparameters x, one pass per step.

The hypergradient of F(x) = f(x, y*(x)) is grad_x f + (grad^2_xy g) d with (grad^2_yy g) d = -grad_y f. Tracking updates
y and d by noisy steps towards their solutions while x moves. With u = d/|d|, each step releases means over

    lower records of   grad_y g(x, y),   H u,   B u      (H = grad^2_yy g, B = grad^2_xy g: derivatives of gradients
    upper records of   grad_y f(x, y),   grad_x f(x, y)   along one direction, as cheap as a gradient)

It updates y by the first, d by |d| H u + grad_y f, and x by grad_x f + |d| B u. Noise on H u and B u is multiplied by
|d|, which is public. No penalty weight lambda multiplies it, and there is no bias of a finite penalty.

All steps are scale-free: clips adapt to the norms of records' vectors (`passes`), learning rates of y and d follow from
the largest curvature and the known noise (`lower_steps`), those of x from distances and gradients (`hyper_steps`). The
three rates are coupled: x moves only as far as y and d have converged and exceed their noise. All of this is
post-processing of released values, which costs no privacy.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.arguments import count, positive
from dpbilevel.foundation.structure import function
from dpbilevel.methods.context import PublicContext, Setting
from dpbilevel.methods.contributions import by_role, shares_by_role
from dpbilevel.methods.derivatives import derivatives_along, gradients_and_change, joined
from dpbilevel.methods.noiseless.noiseless import noiseless_tuning
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.tracking.loop import (
    CROSS,
    CURVATURE,
    HYPERGRADIENT,
    MODEL,
    PULL,
    Loop,
    phase_of,
    unravel,
    validation_start,
)
from dpbilevel.methods.tracking.passes import LOSS_CHANGE, Pass
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import FullBatch, Sampling, check_sampling

Tree = Any
Parameters = dict[str, tuple[Any, str]]
Passes = Mapping[str, Pass]  # level -> the vectors that its records contribute

_PASSES = {"lower": "training pass", "upper": "validation pass"}


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Difference tracking, the practical default.

    Guarantee: everything that is released, x, y and the history included, satisfies the budget of `solve` for the
    stated neighbouring relation, whatever the losses and records are.

    Args:
        steps: T, number of steps.
        clip_norm: C, the initial clip of all per-record vectors; about the norm of a row. Clips adapt within a tenth of
            the run, even if they are off by eight orders of magnitude.
        sampling: how the batch of each release is sampled.
    """

    steps: int = 200
    clip_norm: float = 1.0
    sampling: Sampling = field(default_factory=FullBatch)

    @property
    def default_refit(self) -> Refit:
        """The meaning of ``refit="auto"``: tracking finds x, and a new model is then trained at x."""
        return Refit(clip_norm=self.clip_norm)

    def __post_init__(self) -> None:
        count("steps", self.steps, "it is the number of steps (try 200)")
        positive("clip_norm", self.clip_norm, "it bounds each record's gradient (try 1.0)")
        check_sampling(self.sampling)

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """Declare all releases and build the program of the algorithm, without reading a record."""
        if not context.budget.is_private:
            return noiseless_tuning(context)
        passes, releases = self._calibrate(context)
        loop = Loop(context, passes, self.steps, self.clip_norm)
        program = Program(
            rounds=self.steps,
            stages=[
                Stage(release=releases["lower"], query=function(_query, loop), update=_keep),
                Stage(release=releases.get("upper"), query=function(_query, loop), update=function(_update, loop)),
            ],
            start=loop.start,
            observe=function(_observe, loop),
            finish=loop.finish,
        )
        return program, self._parameters(context, passes, releases)

    def _calibrate(self, context: PublicContext) -> tuple[dict[str, Pass], dict[str, Release]]:
        """The passes with their noise, and the calibrated releases."""
        passes = self._passes(context)
        # Contributions have norm one, so that the noise does not depend on the clips; the clips depend on the noise.
        contributions = {level: self._contributions(context, level, one) for level, one in passes.items()}
        weights = {level: float(sum(name != LOSS_CHANGE for name in one.names)) for level, one in passes.items()}
        shares = shares_by_role(weights, contributions)
        declared = [self._declare(context, level, contributions[level], shares[level]) for level in passes]
        releases = dict(zip(passes, calibrate(declared, context.budget), strict=True))
        passes = {level: replace(one, noise_std=releases[level].noise_std) for level, one in passes.items()}
        for level, one in passes.items():
            releases[level] = replace(releases[level], contributions=self._contributions(context, level, one))
        return passes, releases

    def _contributions(self, context: PublicContext, level: str, one: Pass) -> Any:
        return by_role({level: (function(Pass.contribution, one), 1.0)}, context)

    def _declare(self, context: PublicContext, level: str, contributions: Any, shares: Any) -> Release:
        release = Release(
            name=_PASSES[level],
            contributions=contributions,
            noise_std=1.0,
            uses=self.steps,
            sampling=self.sampling,
            adjacency=context.budget.adjacency,
        )
        return with_shares(release, shares, context.budget)

    def _passes(self, context: PublicContext) -> dict[str, Pass]:
        reads = context.inspection.hypergradient_reads
        d_x, d_y = context.x_dimension, context.y_dimension
        dimensions = {MODEL: d_y, CURVATURE: d_y} | ({CROSS: d_x} if "lower" in reads else {})
        passes = {"lower": Pass(_lower_vectors(context.setting), dimensions, 0.0, self.steps, floored=MODEL)}
        if context.problem.upper_loss is not None:
            dimensions = {PULL: d_y} | ({HYPERGRADIENT: d_x} if "upper" in reads else {}) | {LOSS_CHANGE: 1}
            passes["upper"] = Pass(_upper_vectors(context.setting), dimensions, 0.0, self.steps)
        return passes

    def _parameters(self, context: PublicContext, passes: Passes, releases: Mapping[str, Release]) -> Parameters:
        parameters: Parameters = {
            "steps": (self.steps, "with fewer the difference lags behind, more only divide the budget"),
            "steps before x moves": (3 * self.phase, "to find clips, the largest curvature, and a first y and d"),
            "clips begin at": (self.clip_norm, "and adapt to a multiple of the records' median norm"),
        }
        for level, one in passes.items():
            name = releases[level].name
            parameters[f"{name}: noise"] = (
                one.noise_std,
                "standard deviation for vectors of norm one; spends the budget",
            )
            for part in (part for part in one.names if part != LOSS_CHANGE):
                parameters[f"{name}: clip of the {part}"] = (
                    one.multiple(part),
                    "multiples of the records' median norm",
                )
                parameters[f"{name}: share of the {part}"] = (one.share, "of the mu^2 of a pass; the rest adapts clips")
            read = {name: (PULL if level == "upper" else CURVATURE, context.y_dimension)}
            if CROSS in one.names or HYPERGRADIENT in one.names:
                part = CROSS if level == "lower" else HYPERGRADIENT
                read[f"{name}, {part}"] = (part, context.x_dimension)
            for title, (part, dimension) in read.items():
                parameters[f"{title}: noise to signal"] = (
                    one.noise_std * math.sqrt(dimension / one.share),
                    f"of the {part}: noise of a step over the largest mean of records; steps are averaged",
                )
        parameters["output"] = ("average", "the average of x over about the last tenth of the steps: post-processing")
        if not any(part in one.names for one in passes.values() for part in (CROSS, HYPERGRADIENT)):
            parameters[HYPERGRADIENT] = (0, "free: no x-gradient depends on a record, so that it needs no noise")
        return parameters

    @property
    def phase(self) -> int:
        """Number of steps in each phase: clip search, largest curvature, convergence of y and d, and validation."""
        return phase_of(self.steps)

    @property
    def validation_start(self) -> int:
        """The first validation step; from there on, x does not move."""
        return validation_start(self.steps)


def _query(loop: Loop, state: State, carry: State, step: jax.Array) -> Tree:
    return loop.query(carry)


def _keep(state: State, carry: State, answer: Tree, step: jax.Array) -> State:
    return carry | {"lower": _whole(answer)}


def _update(loop: Loop, state: State, carry: State, answer: Tree, step: jax.Array) -> State:
    return loop.update(carry, None if answer is None else _whole(answer))


def _whole(answer: Mapping[str, Any]) -> dict[str, jax.Array]:
    return {name: joined(vector) for name, vector in answer.items()}


def _observe(loop: Loop, state: State) -> Tree:
    return state["seen"] | {"x": loop.to_x(state["x"])}


@functools.lru_cache(maxsize=64)
def _lower_vectors(setting: Setting) -> Callable[[Tree, Tree], dict[str, Any]]:
    reads, to_y = "lower" in setting.inspection.hypergradient_reads, unravel(setting.point[1])
    along = derivatives_along(setting.problem.lower_loss)

    def lower(at: Tree, record: Tree) -> dict[str, Any]:
        gradient, curved, cross = along(at["x"], at["y"], to_y(at["u"]), record)
        return {MODEL: gradient, CURVATURE: curved} | ({CROSS: cross} if reads else {})

    return lower


@functools.lru_cache(maxsize=64)
def _upper_vectors(setting: Setting) -> Callable[[Tree, Tree], dict[str, Any]]:
    reads, upper_loss = "upper" in setting.inspection.hypergradient_reads, setting.problem.upper_loss
    assert upper_loss is not None, "without an upper loss there is no validation pass"
    derivatives = gradients_and_change(upper_loss)

    def upper(at: Tree, record: Tree) -> dict[str, Any]:
        pull, direct, change = derivatives(at["x"], at["y"], *at["first"], record)
        parts = {PULL: pull} | ({HYPERGRADIENT: direct} if reads else {})
        return parts | {LOSS_CHANGE: jnp.reshape(change, 1)}

    return upper
