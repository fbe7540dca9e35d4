"""Training of linear models: few gradient steps, preconditioned by released second moments of the rows.

The Hessian of a linear model's training loss is at most kappa M, with M the second moments of rows (weighted as records
are) and kappa the largest curvature of the loss in the score. M is released once, with a small share of mu^2. Gradients
are clipped in the `Metric` of M, in which they are shorter. With noisy gradients g, steps are

    v <- v/2 + P g,   y <- y - v,   P = (kappa M+ + damping + the penalties' own curvature)^-1

M+ is the positive part of the released matrix. The model is the average of all y, each with the weight of its number,
in which noise of single steps averages out; with several classes its scale is then measured (`scale`). Every number
here is public or released:

*Damping* is above the largest eigenvalue of the noise on kappa M, below which M says nothing.

*Steps.* Directions of large curvature converge within a few steps. In all others T steps shrink y like ridge regression
with penalty damping/(4/3 T). With noise s on a coordinate of the mean gradient, rows of norm a and scores of size
sigma, the best ridge is s a/sigma if coefficients are of one size in all directions, and d s^2/(kappa sigma^2) if all
directions explain as much. Tables are between the two, and the ridge is their geometric mean. T is what it takes with a
damping of twice the largest eigenvalue of the noise, for rows that are half as long in the metric as declared. What
the released second moments say of their length changes the damping instead.

*Clip.* A clip C adds noise in proportion to C v, v = sqrt(d)/(mu n), and shortens the gradients of the records beyond
it, a fraction 1 - q, by about C (1 - q). The sum of squares is smallest at a fraction in proportion to v. Residuals of
a squared loss are cut on both sides, which cancels; of classes, gradients of the rare ones are cut, so that fewer may
be. The first clip is that of records of typical norm in the metric whose score is zero.
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
    LENGTH,
    MOMENTUM,
    REACHED,
    Steps,
    finish,
    gradients_at,
    observe,
    rows_at,
    scale_at,
)
from dpbilevel.methods.scale import PASSES, SCALE, Scale, scale_levels
from dpbilevel.methods.scale import SHARE as _SCALE_SHARE
from dpbilevel.methods.training_gradients import (
    GRADIENT,
    SQUARE,
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
_OF_SQUARE = 0.01  # the same, of classes: standard errors need the curvature at the model
_DAMPING = 3.0  # twice the largest eigenvalue of the noise, which is sqrt(2 d) times its deviation on the diagonal
_FEWEST, _MOST = 10, 180  # steps; where more would be taken, second moments have little noise
# Typical clip of derivatives in the score, in units of kappa sigma. Residuals are clipped at three times the size of
# scores; derivatives of classes at their bound, and scores are log-odds of about one.
_TYPICAL, _TYPICAL_OF_TWO_CLASSES = 3.0, 5.0
# Fraction of records beyond the clip, per v: if their gradients are bounded, as those of classes, or not; and at most.
_CLIPPED, _CLIPPED_RESIDUALS, _MOST_CLIPPED = 10.0, 30.0, 0.25
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
    rows_per_unit: int = 1
    mean_rows: float = 1.0

    @classmethod
    def of(cls, context: PublicContext, steps: int | None = None) -> Self | None:
        """The training of a problem; None if its losses do not declare their bounds, or if rows are too long."""
        problem, leaves = context.problem, jax.tree.leaves(context.point[1])
        losses = [linear_loss(problem.loss(level)) for level in levels_of(context)]
        bounds = [None if loss is None else loss.bounds for loss in losses]
        if bounds[0] is None or None in bounds or not isinstance(problem.lower_domain, Unconstrained):
            return None
        most, mean = rows_of_units(problem, context.sizes)
        if leaves[0].shape[0] > _MOST_COLUMNS or most > MOST_ROWS:
            return None
        columns, *outputs = leaves[0].shape
        return cls(
            bounds=bounds[0],
            records=number_of_records(context),
            columns=columns,
            mu=context.budget.mu,
            replaced=context.budget.adjacency == "replace-one",
            outputs=math.prod(outputs),
            steps=steps,
            rows_per_unit=most,
            mean_rows=mean,
        )

    @property
    def moments_clip(self) -> float:
        """c, the clip of a record's second moments in units of R^2."""
        return moments_clip(self.rows_per_unit, self.mean_rows, MOMENTUM)

    @property
    def damping(self) -> float:
        """Added to the curvature of all directions, for rows of typical length."""
        deviation = (math.sqrt(2) if self.replaced else 1.0) / (self.records * self.mu * math.sqrt(_SHARE))
        largest = self.bounds.curvature * self.bounds.row_norm**2 * self.moments_clip
        return _DAMPING * largest * deviation * math.sqrt(self.columns)

    @property
    def ridge(self) -> float:
        """The ridge that balances what noise adds and what shrinkage loses, for rows of typical length."""
        changed = 2.0 if self.replaced else 1.0
        clip = _TYPICAL_OF_TWO_CLASSES if self._is_bounded and self.outputs == 1 else _TYPICAL
        noise = (
            changed
            * clip
            * LENGTH
            * self.unlike
            / (self.records * self.mu * math.sqrt(self._shares_of_releases[TRAINING]))
        )
        of_one_size, explaining_equally = noise, self.columns * noise**2
        return self.bounds.curvature * self.bounds.row_norm**2 * math.sqrt(of_one_size * explaining_equally)

    @property
    def unlike(self) -> float:
        """By which gradients of units are shorter than those of rows: derivatives of the rows of a unit are unlike."""
        return 1 / math.sqrt(self.mean_rows)

    @property
    def noise_to_signal(self) -> float:
        """v: the noise on the mean of all steps' gradients over the largest mean, up to a factor of at most two."""
        return math.sqrt(self.columns * self.outputs) / (self.mu * self.records)

    @property
    def number_of_steps(self) -> int:
        """T."""
        if self.steps is not None:
            return self.steps
        return min(max(_FEWEST, math.ceil(self.damping / (REACHED * self.ridge))), _MOST)

    @property
    def within(self) -> float:
        """q, the fraction of records that are within the clip."""
        clipped = _CLIPPED if self._is_bounded else _CLIPPED_RESIDUALS
        return 1 - min(clipped * self.noise_to_signal, _MOST_CLIPPED)

    @property
    def _is_bounded(self) -> bool:
        """Whether gradients are bounded, as those of a log-likelihood of classes."""
        return math.isfinite(self.bounds.derivative)

    @property
    def _shares(self) -> dict[str, float]:
        return _SHARES | ({SQUARE: _OF_SQUARE} if self._is_bounded else {})

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """The training program; reads no record."""
        steps, shares, releases = self.number_of_steps, self._shares, self._releases(context)
        noise_std, readout = releases[TRAINING].noise_std, context.problem.readout
        gradients = ReleasedGradients.of(context, 1.0, self.within, shares, noise_std, steps)
        update = Steps(
            problem=context.problem,
            gradients=gradients,
            ridge=self.ridge,
            row_norm=self.bounds.row_norm,
            unlike=self.unlike,
            surplus=self.rows_per_unit / (self.mean_rows * self.moments_clip),
            curvature=self.bounds.curvature,
            derivative=self.bounds.derivative if self._is_bounded else None,
            outputs=self.outputs,
            steps=steps,
            noise=gradients.parts[GRADIENT].unit * noise_std,
            moments_noise=releases[MOMENTS].noise_std,
            scale=self._scale(context, releases) if self._is_scaled else None,
            readout=None if readout is None else np.asarray(readout, np.float32),
        )
        stages = [
            Stage(release=releases[MOMENTS], query=rows_at, update=function(Steps.decompose, update)),
            Stage(
                release=releases[TRAINING],
                query=gradients_at,
                update=function(Steps.step, update),
                uses_per_round=steps,
            ),
        ]
        if self._is_scaled:
            stages.append(
                Stage(
                    release=releases[SCALE],
                    query=scale_at,
                    begin=function(Steps.begin_scale, update),
                    update=function(Steps.rescale, update),
                    uses_per_round=PASSES,
                )
            )
        stages[-1] = replace(stages[-1], end=function(Steps.end, update))
        program = Program(rounds=1, stages=stages, start=function(Steps.start, update), observe=observe, finish=finish)
        return program, self._parameters(releases, tuple(releases[TRAINING].contributions))

    @property
    def _is_scaled(self) -> bool:
        return self._is_bounded and self.outputs > 1

    @property
    def _shares_of_releases(self) -> dict[str, float]:
        """Of mu^2."""
        scale = {SCALE: _SCALE_SHARE} if self._is_scaled else {}
        return {MOMENTS: _SHARE, TRAINING: 1 - _SHARE - sum(scale.values())} | scale

    def _scale(self, context: PublicContext, releases: Mapping[str, Release]) -> Scale:
        return Scale.of(
            context,
            noise_std=releases[SCALE].noise_std,
            records=self.records,
            derivative=self.bounds.derivative,
            curvature=self.bounds.curvature,
        )

    def _releases(self, context: PublicContext) -> dict[str, Release]:
        """The calibrated releases by name."""
        adjacency = context.budget.adjacency
        contributions = {
            MOMENTS: moment_rows(context, self.bounds.row_norm * math.sqrt(self.moments_clip)),
            TRAINING: by_role(gradient_levels(context, 1.0, self._shares), context),
        }
        if self._is_scaled:
            contributions[SCALE] = by_role(scale_levels(context), context)
        uses = {MOMENTS: 1, TRAINING: self.number_of_steps, SCALE: PASSES}
        shares = shares_by_role(self._shares_of_releases, contributions)
        declared = []
        for name, parts in contributions.items():
            kind = SecondMoments if name == MOMENTS else Release
            release = kind(name=name, contributions=parts, noise_std=1.0, uses=uses[name], adjacency=adjacency)
            declared.append(with_shares(release, shares[name], context.budget))
        return dict(zip(contributions, calibrate(declared, context.budget), strict=True))

    def _parameters(self, releases: Mapping[str, Release], roles: tuple[str, ...]) -> Parameters:
        moments, training = releases[MOMENTS], releases[TRAINING]
        pooled = "upper records are used for training too, as the problem declares"
        parameters: Parameters = {
            "training: steps": (self.number_of_steps, "at the final x, preconditioned by second moments of rows"),
            "training: records": (", ".join(roles), pooled if len(roles) > 1 else "of the lower level only"),
            "second moments: share": (_SHARE, "of the training's mu^2"),
            "second moments: noise": (moments.noise_std, f"on entries of a mean of {self.records} products of rows"),
            "training: ridge": (
                self.ridge,
                "worth the noise, for rows half as long as declared: steps shrink the model like it",
            ),
            "training: damping": (
                self.damping,
                "of the preconditioner, for such rows; released second moments say what theirs is",
            ),
            "training: noise": (
                training.noise_std,
                f"on a mean of {self.records} vectors of norm at most one, spends the budget over all steps",
            ),
            "training: noise to signal": (
                training.noise_std * math.sqrt(self.columns / self.number_of_steps),
                "sigma sqrt(d)/(n C): noise of all steps together, by output, over the largest mean of records",
            ),
            "training: within the clip": (self.within, "fraction of records within the clip, which adapts to that"),
        }
        if self.rows_per_unit > 1:
            reason = "of a unit, in squared norms of rows: sqrt(k/m), and at least k/(3 m), for which steps are stable"
            parameters["second moments: clip"] = (self.moments_clip, reason)
        if SCALE in releases:
            parameters[f"{SCALE}: share"] = (_SCALE_SHARE, "of the training's mu^2, for one factor on all coefficients")
        return parameters
