"""The scale of a trained model: one factor per group of penalised coefficients, measured on records after training.

Early stopping shrinks a model and noise inflates it. Which effect dominates is unknown before training, so no penalty
that is chosen before training corrects both. With y the trained model, y_b its coefficients of group b, and c one
factor per group, a few passes release the first two derivatives of

    F(c) = mean loss of the model (c_b y_b)_b

at the current factors, and make a Newton step for each factor. These are two numbers per group and record, instead of
one per coefficient: their noise is smaller by the root of the number of coefficients. F is the loss of the model as it
is, with its noise, which is what users get; a model that is mostly noise is shrunk towards zero. The noise of training
needs no formula, because the derivatives are measured at the model that has it.

*Groups* are the columns that share a penalty of x; all columns that x does not penalise, such as an intercept, are one
more. A problem without penalties in x has no groups, and nothing is spent.

*Sampling.* Records that have trained the model are fitted better than others. The derivative of F is corrected by what
sampling alone explains, E[y . zeta] = phi d_eff/n, with d_eff the number of coefficients that training has fitted and
phi the dispersion of the loss: one for a log-likelihood. For units n is their number, and phi depends on how alike the
rows of one are: 1/m for independent rows, one for equal ones. The clip of training, which units' gradients have set,
says where in between.

*Noise.* The noise of every factor is known. Where it hides the factor, the noise of the model itself says what to
expect: s/a, and at most one, with s the part of the mean square of its scores that noise does not explain (James and
Stein) and a the part of its signal that training has reached before it stopped. The factor is that, and moves from it
as far as the movement exceeds its error: not at all up to about two standard deviations, and by the whole distance from
four on (firm shrinkage; Gao and Bruce 1997). A twentieth is added to the error for what noise does not cover: rows that
are scaled down in training only, clips, and the correction for sampling.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constraints import project
from dpbilevel.execution.program import State
from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext, Setting
from dpbilevel.methods.contributions import Levels
from dpbilevel.methods.joint import Part, joined, separated, shared
from dpbilevel.methods.standard_errors import without_noise
from dpbilevel.methods.training_gradients import fraction, levels_of, weighted
from dpbilevel.problem import BilevelProblem

Tree = Any

SCALE = "scale of the model"
PASSES = 4  # Newton steps; the first starts at a factor of one, the others are averaged
SHARE = 0.02  # of the training's mu^2: costs as much accuracy as 1% fewer records
_SHARES = {"derivative": 0.7, "curvature": 0.3}  # of the mu^2 of a pass
_MOST_GROUPS = 16  # with more, all penalised columns share a factor, because noise grows with their number
_LARGEST = 3.0  # factor: training that stops early reaches at least a third of the way
_DOUBT = 1 + 2 * math.sqrt(2)  # a squared movement over its variance that noise explains: two deviations above its mean
_PLAIN = 0.25  # ratio of noise to a square below which nothing is shrunk
_SYSTEMATIC = 0.05  # error of a measured factor besides noise; a tenth costs 1% of what the model explains at most
_TAIL = 2.0  # clips are this multiple of the root mean square of scores
_TINY = 1e-30


@functools.lru_cache(maxsize=64)
def groups_of_columns(setting: Setting) -> tuple[int, ...] | None:
    """The group of each column of y, by the penalty of x that it has; None if x has no penalties.

    The second derivatives of the data-free term are differentiated in x, at public points.
    """
    problem, (x_shape, y_shape) = setting.problem, setting.point
    leaves = jax.tree.leaves(y_shape)
    if problem.lower_term is None or len(leaves) != 1 or not leaves[0].ndim or len(jax.tree.leaves(x_shape)) != 1:
        return None
    x, y = (jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape) for shape in setting.point)
    x = project(problem.domain, x)

    def curvatures(x: Tree) -> jax.Array:
        along = jax.jvp(lambda y: jax.grad(problem.term("lower"), 1)(x, y), (y,), (jnp.ones_like(y),))[1]
        return along.reshape(leaves[0].shape[0], -1).mean(axis=1)

    derivative = np.asarray(jax.jacobian(curvatures)(x)).reshape(leaves[0].shape[0], -1)
    penalised = (derivative != 0).any(axis=1)
    if not penalised.any() or (np.count_nonzero(derivative, axis=1) > 1).any():
        return None
    groups = np.where(penalised, derivative.astype(bool).argmax(axis=1), -1)
    if len(set(groups[penalised])) > _MOST_GROUPS:
        groups = np.where(penalised, 0, -1)
    _, numbers = np.unique(groups, return_inverse=True)
    return tuple(int(number) for number in numbers)


def scale_levels(context: PublicContext, groups: tuple[int, ...]) -> Levels:
    """What records of each level contribute to a pass, at points (x, y, scales, clips)."""
    levels = {}
    for level in levels_of(context):
        mine = fraction(context, level)
        contribution = joined(_parts(context.problem, level, groups), clipped=context.budget.is_private)
        levels[level] = function(weighted, mine, contribution), mine
    return levels


@passing(
    *("parts", "noise_std", "moments_noise", "records", "row_norm", "curvature"),
    structure=("groups", "likelihood", "mean_rows"),
)
@dataclass(frozen=True, eq=False)
class Rescaling:
    """Newton steps of the factors.

    Args:
        groups: the group of each column.
        parts: what a record contributes.
        noise_std: of a pass, for vectors of norm one.
        moments_noise: on entries of the second moments.
        records: number of training records.
        row_norm, curvature: declared bounds.
        likelihood: whether derivatives are bounded, as those of a log-likelihood of classes.
        mean_rows: m, the mean number of rows of a record.
    """

    groups: tuple[int, ...]
    parts: dict[str, Part]
    noise_std: float
    moments_noise: float
    records: int
    row_norm: float
    curvature: float
    likelihood: bool
    mean_rows: float = 1.0

    @classmethod
    def of(cls, context: PublicContext, groups: tuple[int, ...], noise_std: float, **numbers: Any) -> "Rescaling":
        """For a release of `scale_levels` with this noise."""
        return cls(groups, _parts(context.problem, "lower", groups), noise_std, **numbers)

    @property
    def number(self) -> int:
        """Number of groups."""
        return max(self.groups) + 1

    def start(self) -> State:
        """The state before the first pass."""
        zeros, ones = jnp.zeros(self.number, jnp.float32), jnp.ones(self.number, jnp.float32)
        return {"scales": ones, "clips": jnp.ones(2, jnp.float32), "sum": zeros, "variance": zeros, "fitted": zeros}

    def begin(
        self, state: State, y: jax.Array, moments: tuple[jax.Array, jax.Array], fitted: jax.Array, clip: jax.Array
    ) -> State:
        """The state at a trained model: clips from the root mean square of its scores, by released second moments.

        Args:
            state: as it started.
            y: the trained model.
            moments: eigenvalues and eigenvectors of the released second moments.
            fitted: the part of each column that training has fitted, of one.
            clip: the last clip of training.
        """
        flat = y.reshape(y.shape[0], -1)
        sizes, directions = moments
        square = jnp.sum(sizes @ (directions.T @ flat) ** 2)
        noise = self.moments_noise * jnp.sum(flat**2)
        size = jnp.sqrt(jnp.minimum(jnp.maximum(square, 0) + noise, self.row_norm**2 * jnp.sum(flat**2)))
        derivative = clip / self.row_norm
        clips = jnp.stack([_TAIL * derivative * size, self.curvature * (_TAIL * size) ** 2])
        dispersion = self._dispersion((derivative / _TAIL) ** 2)
        of_groups = jax.ops.segment_sum(fitted, jnp.asarray(self.groups), self.number) * flat.shape[1]
        more = {"clips": jnp.maximum(clips, _TINY), "fitted": dispersion * of_groups / self.records}
        return state | {name: value.astype(jnp.float32) for name, value in more.items()}

    def _dispersion(self, square: jax.Array) -> Any:
        """phi, from the mean square of derivatives."""
        if not self.likelihood:
            return square
        return 1.0 if self.mean_rows == 1 else jnp.clip(square / self.curvature, 1 / self.mean_rows, 1.0)

    def step(self, state: State, answer: Tree, step: jax.Array) -> State:
        """The factors after a pass."""
        means = separated(answer, self.parts)
        noise = {name: self.parts[name].unit * self.noise_std * state["clips"][at] for at, name in enumerate(_SHARES)}
        derivative = state["clips"][0] * means["derivative"] + state["fitted"]
        curvature = jnp.maximum(state["clips"][1] * means["curvature"], noise["curvature"])
        target = state["scales"] - derivative / jnp.maximum(curvature, _TINY)
        variance = (noise["derivative"] / jnp.maximum(curvature, _TINY)) ** 2
        scales = jnp.clip(target, 0.0, _LARGEST)
        later = jnp.where(step > 0, 1.0 / (PASSES - 1), 0.0)
        new = {
            "scales": scales,
            "sum": state["sum"] + later * scales,
            "variance": state["variance"] + later * variance / (PASSES - 1),
        }
        return state | {name: value.astype(jnp.float32) for name, value in new.items()}

    def factors(
        self, state: State, of_model: jax.Array, of_noise: jax.Array, reached: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """The factor of each column after the last pass.

        Args:
            state: after the last pass.
            of_model, of_noise: mean squares of scores, by column.
            reached: as of `reached_columns`.
        """
        groups = jnp.asarray(self.groups)
        parts = (of_model, of_noise, *reached)
        whole, noise, once, twice = (jax.ops.segment_sum(part, groups, self.number) for part in parts)
        explained = jnp.maximum(1 - noise / jnp.maximum(whole, _TINY), 0.0)
        prior = jnp.minimum(explained * once / jnp.maximum(twice, _TINY), 1.0)
        moved = state["sum"] - prior
        evidence = 1 - _DOUBT * (state["variance"] + _SYSTEMATIC**2) / jnp.maximum(moved**2, _TINY)
        return (prior + jnp.clip(evidence / (1 - _PLAIN), 0.0, 1.0) * moved)[groups]


def at_point(state: State, x: Tree, y: jax.Array) -> Tree:
    """The query point of a pass."""
    return x, y, state["scales"], state["clips"]


def scaled(y: jax.Array, factors: jax.Array) -> jax.Array:
    """The model with a factor for each of its columns."""
    return (y * factors.reshape(-1, *(1,) * (y.ndim - 1))).astype(y.dtype)


def _parts(problem: BilevelProblem, level: str, groups: tuple[int, ...]) -> dict[str, Part]:
    derivative, curvature = _derivatives(problem, level, groups)
    return shared({"derivative": (derivative, 1.0), "curvature": (curvature, 1.0)}, _SHARES)


@functools.lru_cache(maxsize=64)
def _derivatives(problem: BilevelProblem, level: str, groups: tuple[int, ...]) -> tuple[Any, Any]:
    loss, column_groups = problem.loss(level), np.array(groups, np.int32)
    assert loss is not None, "only levels with records train a model"

    def relative(point: Tree, record: Tree) -> Any:
        x, y, _, _ = point
        weight = problem.lower_scale(x) if level == "lower" else 1.0
        return lambda scales: loss(x, scaled(y, scales[column_groups]), record) / weight

    def derivative(point: Tree, record: Tree) -> jax.Array:
        return jax.grad(relative(point, record))(point[2]) / point[3][0]

    def curvature(point: Tree, record: Tree) -> jax.Array:
        along = jnp.eye(max(groups) + 1, dtype=point[2].dtype)
        gradient = jax.grad(relative(point, record))
        second = jax.vmap(lambda unit: unit @ jax.jvp(gradient, (point[2],), (unit,))[1])(along)
        return second / point[3][1]

    return derivative, curvature


def fitted_columns(
    moments: tuple[jax.Array, jax.Array], noise: Any, curvature: Any, damping: Any, steps: Any
) -> jax.Array:
    """The part of each column that training has fitted: a = 1 - exp(-1.5 T p h) in each eigenvector, h its curvature.

    Steps with a momentum of one half move twice as far, and the average of the second half stands at 3/4 of all steps.
    """
    fitted, _ = _fitted(moments[0], noise, curvature, damping, steps)
    return moments[1] ** 2 @ fitted


def reached_columns(
    moments: tuple[jax.Array, jax.Array], noise: Any, curvature: Any, damping: Any, steps: Any
) -> tuple[jax.Array, jax.Array]:
    """Sums of h a and of h a^2 by column, with a as in `fitted_columns`.

    If coefficients are of one size in all directions, a model that has reached a of them comes closest to them in
    scores with a factor of sum h a / sum h a^2.
    """
    fitted, clean = _fitted(moments[0], noise, curvature, damping, steps)
    squares = moments[1] ** 2
    return squares @ (clean * fitted), squares @ (clean * fitted**2)


def _fitted(sizes: jax.Array, noise: Any, curvature: Any, damping: Any, steps: Any) -> tuple[jax.Array, jax.Array]:
    """By eigenvector the part that training has fitted, and the curvature."""
    clean = curvature * without_noise(sizes, noise)
    rate = 1.0 / (curvature * jnp.maximum(sizes, 0) + damping)
    return 1 - jnp.exp(-1.5 * steps * rate * clean), clean
