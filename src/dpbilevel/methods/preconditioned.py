"""Training of linear models: few gradient steps, preconditioned by released second moments of the rows.

The Hessian of a linear model's training loss is at most kappa M, with M the second moments of rows (weighted as records
are) and kappa the largest curvature of the loss in the score. M is released once, with a small share of mu^2. Steps are

    v <- v/2 + P g,   y <- y - v,   P = (kappa M+ + damping + the penalties' own curvature)^-1

with noisy gradients g; M+ is the positive part of the released matrix. The model is the average of the second half of
all y, in which noise of single steps averages out; its scale is then measured (`rescaling`). Every number here is
public or released:

*Damping* is a multiple of the largest eigenvalue of the noise on kappa M, below which M says nothing.

*Steps.* Directions of large curvature converge within a few steps. In all others T steps shrink y like ridge regression
with penalty damping/(2 T). Noise s on the mean gradient (of all steps together) is equivalent to a ridge of about s
|row|^2: where it dominates, T makes the two equal, and more steps would fit noise. It continues in proportion to the
square root of signal over noise, so that it converges as epsilon grows. Training starts where the curvature is that of
y = 0, which for many classes is far below its bound, and takes so many more steps.

*Clip.* A clip C adds noise in proportion to C v, v = sqrt(d)/(mu n), and shortens the gradients of the records beyond
it, a fraction 1 - q, by about C (1 - q). The sum of squares is smallest at a fraction in proportion to v.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np

from dpbilevel.constraints import Unconstrained
from dpbilevel.execution.program import Program, Stage
from dpbilevel.foundation.structure import function
from dpbilevel.linear_loss import LinearBounds
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.contributions import by_role, shares_by_role
from dpbilevel.methods.moment_rows import moment_rows, moments_clip
from dpbilevel.methods.preconditioned_steps import (
    MOMENTUM,
    Steps,
    finish,
    gradients_at,
    observe,
    rows_at,
    scales_at,
    start,
)
from dpbilevel.methods.rescaling import PASSES, SCALE, Rescaling, groups_of_columns, scale_levels
from dpbilevel.methods.rescaling import SHARE as _SCALE_SHARE
from dpbilevel.methods.training_gradients import (
    GRADIENT,
    WITHIN,
    ReleasedGradients,
    gradient_levels,
    levels_of,
    number_of_records,
)
from dpbilevel.methods.unit_losses import linear_loss, rows_of_units
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.second_moments import SecondMoments
from dpbilevel.privacy.unit_moments import MOST_ROWS

Tree = Any
Parameters = dict[str, tuple[Any, str]]

TRAINING, MOMENTS = "training", "second moments"
_SHARE = 0.05  # of mu^2 for second moments: costs as much accuracy as 2.5% fewer records
_SHARES = {GRADIENT: 0.98, WITHIN: 0.02}  # of the mu^2 of steps
_DAMPING = 3.0  # twice the largest eigenvalue of the noise, which is sqrt(2 d) times its deviation on the diagonal
_FEWEST, _MOST = 20, 400  # steps; where more are needed, first-order steps do as well
_LITTLE_NOISE = 0.003  # v below which training is longer, so that it converges as epsilon grows
_CLIPPED, _MOST_CLIPPED = 30.0, 0.25  # fraction of records beyond the clip, per v, and at most
_MOST_COLUMNS = 2048  # a matrix of this size takes seconds to decompose


@dataclass(frozen=True, eq=False)
class Preconditioned:
    """A training whose steps are preconditioned.

    Args:
        bounds: of the losses.
        records: number of training records.
        columns: length of a row.
        mu: privacy parameter of the whole training.
        replaced: whether a neighbour replaces a record, which counts twice.
        outputs: scores per record.
        steps: as given; None for a number that follows from the noise.
        rescale: whether the scale of the model is measured afterwards.
        rows_per_unit: k, the most rows of a record that is a unit.
        mean_rows: m, by which the sum of losses of its rows is divided.
    """

    bounds: LinearBounds
    records: int
    columns: int
    mu: float
    replaced: bool
    outputs: int
    steps: int | None = None
    rescale: bool = True
    rows_per_unit: int = 1
    mean_rows: float = 1.0

    @classmethod
    def of(cls, context: PublicContext, steps: int | None = None, rescale: bool = True) -> Self | None:
        """The training of a problem; None if its losses do not declare their bounds, or if it does not pay."""
        problem, leaves = context.problem, jax.tree.leaves(context.point[1])
        losses = [linear_loss(problem.loss(level)) for level in levels_of(context)]
        bounds = [None if loss is None else loss.bounds for loss in losses]
        if bounds[0] is None or None in bounds or not isinstance(problem.lower_domain, Unconstrained):
            return None
        most, mean = rows_of_units(problem, context.sizes)
        if leaves[0].shape[0] > _MOST_COLUMNS or most > MOST_ROWS:
            return None
        columns, *outputs = leaves[0].shape
        training = cls(
            bounds=bounds[0],
            records=number_of_records(context),
            columns=columns,
            mu=context.budget.mu,
            replaced=context.budget.adjacency == "replace-one",
            outputs=math.prod(outputs),
            steps=steps,
            rescale=rescale,
            rows_per_unit=most,
            mean_rows=mean,
        )
        # Where damping exceeds every eigenvalue of the second moments, they say nothing.
        informative = training.damping < training.bounds.curvature * training.bounds.row_norm**2
        return training if informative and (steps is not None or training.number_of_steps <= _MOST) else None

    @property
    def moments_clip(self) -> float:
        """c, the clip of a record's second moments in units of R^2."""
        return moments_clip(self.rows_per_unit, self.mean_rows, MOMENTUM)

    @property
    def damping(self) -> float:
        """Added to the curvature of all directions."""
        deviation = (math.sqrt(2) if self.replaced else 1.0) / (self.records * self.mu * math.sqrt(_SHARE))
        largest = self.bounds.curvature * self.bounds.row_norm**2 * self.moments_clip
        return _DAMPING * largest * deviation * math.sqrt(self.columns)

    @property
    def ridge(self) -> float:
        """The ridge equivalent to the noise on the mean gradient."""
        noise = (2.0 if self.replaced else 1.0) / (self.records * self.mu * math.sqrt(1 - _SHARE - _SCALE_SHARE))
        bounded = math.isfinite(self.bounds.derivative)
        # Gradients of an unbounded loss are clipped at its residuals, which are smaller than its targets.
        return noise * self.bounds.row_norm**2 * (self.bounds.derivative if bounded else self.bounds.curvature / 2)

    @property
    def noise_to_signal(self) -> float:
        """v: the noise on the mean of all steps' gradients over the largest mean, up to a factor of at most two."""
        return math.sqrt(self.columns * self.outputs) / (self.mu * self.records)

    @property
    def number_of_steps(self) -> int:
        """T."""
        if self.steps is not None:
            return self.steps
        longer = max(1.0, math.sqrt(_LITTLE_NOISE / self.noise_to_signal))
        worth = self.damping / self.ridge * self.bounds.curvature / self.bounds.at_zero
        return min(max(_FEWEST, math.ceil(longer * worth)), max(_MOST, math.ceil(worth)))

    @property
    def within(self) -> float:
        """q, the fraction of records that are not clipped."""
        return 1 - min(_CLIPPED * self.noise_to_signal, _MOST_CLIPPED)

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training program; reads no record."""
        steps, groups = self.number_of_steps, groups_of_columns(context.setting) if self.rescale else None
        releases = self._releases(context, steps, groups)
        gradients = ReleasedGradients.of(context, 1.0, self.within, _SHARES, releases[TRAINING].noise_std, steps)
        moments_noise, rescaling = releases[MOMENTS].noise_std, None
        if groups is not None:
            bounds = self.bounds
            rescaling = Rescaling.of(
                context,
                groups,
                releases[SCALE].noise_std,
                moments_noise=moments_noise,
                records=self.records,
                row_norm=bounds.row_norm,
                curvature=bounds.curvature,
                likelihood=math.isfinite(bounds.derivative),
                mean_rows=self.mean_rows,
            )
        noise = gradients.parts[GRADIENT].unit * releases[TRAINING].noise_std
        readout = None if context.problem.readout is None else np.asarray(context.problem.readout, np.float32)
        numbers = self.damping, self.bounds.curvature, steps, noise, moments_noise
        update = Steps(gradients, context.problem, *numbers, rescaling, readout)
        stages = [
            Stage(release=releases[MOMENTS], query=rows_at, update=function(Steps.precondition, update)),
            Stage(
                release=releases[TRAINING],
                query=gradients_at,
                update=function(Steps.step, update),
                uses_per_round=steps,
            ),
        ]
        if rescaling is not None:
            stages.append(
                Stage(
                    release=releases[SCALE],
                    query=scales_at,
                    begin=function(Steps.begin_scale, update),
                    update=function(Steps.rescale, update),
                    uses_per_round=PASSES,
                )
            )
        stages[-1] = replace(stages[-1], end=function(Steps.end, update))
        program = Program(
            rounds=1,
            stages=stages,
            start=function(start, update, self._first_clip),
            observe=observe,
            finish=finish,
        )
        return program, self._parameters(releases, tuple(releases[TRAINING].contributions))

    def _releases(self, context: PublicContext, steps: int, groups: tuple[int, ...] | None) -> dict[str, Release]:
        """The calibrated releases by name; the scale has one where there are penalties to adapt."""
        adjacency = context.budget.adjacency
        contributions = {
            MOMENTS: moment_rows(context, self.bounds.row_norm * math.sqrt(self.moments_clip)),
            TRAINING: by_role(gradient_levels(context, 1.0, _SHARES), context),
        }
        weights, uses = {MOMENTS: _SHARE, TRAINING: 1 - _SHARE}, {MOMENTS: 1, TRAINING: steps}
        if groups is not None:
            contributions[SCALE] = by_role(scale_levels(context, groups), context)
            weights |= {TRAINING: 1 - _SHARE - _SCALE_SHARE, SCALE: _SCALE_SHARE}
            uses[SCALE] = PASSES
        shares = shares_by_role(weights, contributions)
        declared = []
        for name, parts in contributions.items():
            kind = SecondMoments if name == MOMENTS else Release
            release = kind(name=name, contributions=parts, noise_std=1.0, uses=uses[name], adjacency=adjacency)
            declared.append(with_shares(release, shares[name], context.budget))
        return dict(zip(contributions, calibrate(declared, context.budget), strict=True))

    @property
    def _first_clip(self) -> float:
        return self.bounds.row_norm * (self.bounds.derivative if math.isfinite(self.bounds.derivative) else 1.0)

    def _parameters(self, releases: Mapping[str, Release], roles: tuple[str, ...]) -> Parameters:
        moments, training = releases[MOMENTS], releases[TRAINING]
        pooled = "upper records are used for training too, as the problem declares"
        parameters: Parameters = {
            "training: steps": (self.number_of_steps, "at the final x, preconditioned by second moments of rows"),
            "training: records": (", ".join(roles), pooled if len(roles) > 1 else "of the lower level only"),
            "second moments: share": (_SHARE, "of the training's mu^2"),
            "second moments: noise": (moments.noise_std, f"on entries of a mean of {self.records} products of rows"),
            "training: damping": (self.damping, "of the preconditioner: twice the noise of second moments"),
            "training: noise": (
                training.noise_std,
                f"on a mean of {self.records} vectors of norm at most one, spends the budget over all steps",
            ),
            "training: noise to signal": (
                training.noise_std * math.sqrt(self.columns * self.outputs / self.number_of_steps),
                "sigma sqrt(d)/(n C): noise of all steps together over the largest mean of records",
            ),
            "training: clip": (self._first_clip, f"initially; it then adapts until {self.within:.0%} are within it"),
        }
        if self.rows_per_unit > 1:
            reason = "of a unit, in squared norms of rows: sqrt(k/m), and at least k/(3 m), for which steps are stable"
            parameters["second moments: clip"] = (self.moments_clip, reason)
        if SCALE in releases:
            parameters[f"{SCALE}: share"] = (_SCALE_SHARE, "of the training's mu^2")
            parameters[f"{SCALE}: passes"] = (
                PASSES,
                "Newton steps after training, a factor per group of coefficients",
            )
        return parameters
