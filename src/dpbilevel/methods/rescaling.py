"""The scale of a trained model: one factor per group of penalised coefficients, measured on records after training.

Early stopping shrinks a model and noise inflates it. Which effect dominates is unknown before training, so no penalty
that is chosen before training corrects both. With y the trained model, d_b the direction of group b
(`scale_directions`) and c one factor per group, a few passes release the first two derivatives of

    F(c) = mean loss of the model y + sum_b (c_b - 1) d_b

at the current factors, and make a Newton step. These are a number per group and record, and one for their curvature,
instead of one per coefficient: their noise is smaller by the root of the number of coefficients. F is the loss of the
model as it is, with its noise, which is what users get; a model that is mostly noise is shrunk towards zero. The noise
of training needs no formula, because the derivatives are measured at the model that has it.

*Groups* are the columns that share a penalty of x. Columns that x does not penalise, such as an intercept, have no
factor, and follow the others. A problem without penalties in x has no groups, and nothing is spent. Groups whose scores
are correlated have one minimum together. The Hessian of F is close to a multiple of the mean products of their scores,
which the released second moments say; the multiple is what is measured. Every pass but the first is a measurement of
all factors. Where noise hides them, the next pass is close to a factor of one.

*Sampling.* Records that have trained the model are fitted better than others. The derivative of F is corrected by what
sampling alone explains, E[y . zeta] = phi d_eff/n, with d_eff the number of coefficients that training has fitted and
phi the dispersion of the loss: one for a log-likelihood. Training has fitted less where the loss is flatter than its
bound, which is measured too: a classifier that is certain has little curvature. For units n is their number, and phi
depends on how alike the rows of one are: 1/m for independent rows, one for equal ones. The clip of training, which
units' gradients have set, says where in between.

*Noise.* The noise of all factors is known. Where it hides them, the noise of the model itself says what to expect:
s/a, and at most one, with s the part of the mean square of its scores that noise does not explain (James and Stein) and
a the part of its signal that training has reached before it stopped. Factors have a Cauchy distribution around this:
most are close to it, and a few are far away. The factor is its mean given what was measured, in each eigenvector of the
covariance of all factors: what is known about a sum of factors does not move their difference. A twentieth is added to
the error for what noise does not cover: rows that are scaled down in training only, clips, and the correction for
sampling.
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
from dpbilevel.methods.scale_directions import Moments, members, moved
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
_SPREAD = 0.1  # of factors around what is expected: the scale of a Cauchy distribution
_REACH = 0.3  # the same for passes, whose distribution is taken as Gaussian
_FAINT = 0.01  # eigenvalues of the Hessian, in units of the noise on the derivative, below which nothing is measured
_CERTAIN = 2.0  # deviations of noise by which a loss must be flatter than its bound
_FURTHEST, _POINTS = 6.0, 601  # where its mean is integrated, in errors
_SYSTEMATIC = 0.05  # error of a measured factor besides noise; a tenth costs 1% of what the model explains at most
_TAIL = 2.0  # clips are this multiple of the root mean square of scores
_TINY = 1e-30


@functools.lru_cache(maxsize=64)
def groups_of_columns(setting: Setting) -> tuple[int, ...] | None:
    """The group of each column of y, by the penalty of x that it has, -1 for none; None if x has no penalties.

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
    numbers = {group: number for number, group in enumerate(sorted(set(groups[penalised].tolist())))}
    return tuple(numbers.get(int(group), -1) for group in groups)


def scale_levels(context: PublicContext, groups: tuple[int, ...]) -> Levels:
    """What records of each level contribute to a pass, at points (x, y, directions, scales, clips)."""
    levels = {}
    for level in levels_of(context):
        mine = fraction(context, level)
        contribution = joined(_parts(context.problem, level), clipped=context.budget.is_private)
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
        return cls(groups, _parts(context.problem, "lower"), noise_std, **numbers)

    @property
    def number(self) -> int:
        """Number of groups."""
        return max(self.groups) + 1

    def start(self, y: jax.Array) -> State:
        """The state before the first pass."""
        zeros, ones = jnp.zeros(self.number, jnp.float32), jnp.ones(self.number, jnp.float32)
        return {
            "along": jnp.zeros((self.number, *y.shape), y.dtype),
            "products": jnp.eye(self.number, dtype=jnp.float32),
            "scales": ones,
            "clips": jnp.ones(2, jnp.float32),
            "sum": zeros,
            "curvature": jnp.zeros((), jnp.float32),
            "covariance": jnp.zeros((self.number, self.number), jnp.float32),
            "reach": jnp.zeros(y.shape[0], jnp.float32),
            "columns": jnp.zeros((self.number, y.shape[0]), jnp.float32),
            "optimism": jnp.zeros((), jnp.float32),
        }

    def begin(
        self, state: State, y: jax.Array, moments: tuple[jax.Array, jax.Array], reach: jax.Array, clip: jax.Array
    ) -> State:
        """The state at a trained model: its directions, and clips from the root mean square of their scores.

        Args:
            state: as it started.
            y: the trained model.
            moments: eigenvalues and eigenvectors of the released second moments.
            reach: of training, as of `reach_of_training`.
            clip: the last clip of training.
        """
        known = Moments.of(moments, self.moments_noise, self.groups)
        along = known.along(y)
        # Noise on second moments may be what makes the scores of two groups alike.
        error = self.moments_noise * jnp.sum(along.reshape(self.number, -1) ** 2, axis=1)
        products = known.products(along) + jnp.diag(error)
        size = jnp.sqrt(jnp.minimum(jnp.trace(products), self.row_norm**2 * jnp.sum(along**2)))
        derivative = clip / self.row_norm
        clips = jnp.stack([_TAIL * derivative * size, self.curvature * (_TAIL * size) ** 2])
        dispersion = self._dispersion((derivative / _TAIL) ** 2)
        more: dict[str, jax.Array] = {
            "along": along,
            "products": products,
            "clips": jnp.maximum(clips, _TINY),
            "reach": reach,
            "columns": jnp.asarray(members(self.groups)) @ moments[1] ** 2,
            "optimism": jnp.asarray(dispersion * math.prod(y.shape[1:]) / self.records, jnp.float32),
        }
        return state | {name: value.astype(state[name].dtype) for name, value in more.items()}

    def _dispersion(self, square: jax.Array) -> Any:
        """phi, from the mean square of derivatives."""
        if not self.likelihood:
            return square
        return 1.0 if self.mean_rows == 1 else jnp.clip(square / self.curvature, 1 / self.mean_rows, 1.0)

    def step(self, state: State, answer: Tree, step: jax.Array) -> State:
        """The factors after a pass."""
        means = separated(answer, self.parts)
        noise = self.parts["derivative"].unit * self.noise_std * state["clips"][0]
        # It changes less between passes than its noise.
        curvature = (step * state["curvature"] + state["clips"][1] * means["curvature"]) / (step + 1)
        measured = state | {"curvature": curvature}
        fitted = state["columns"] @ fitted_part(state["reach"], self.flatness(measured, step + 1))
        derivative = state["clips"][0] * means["derivative"] + state["optimism"] * fitted
        ratio = jnp.maximum(curvature, self._curvature_noise(state, step + 1)) / self._largest(state)
        sizes, axes = jnp.linalg.eigh(jnp.minimum(ratio, 1.0) * self.curvature * state["products"])
        sizes = jnp.maximum(sizes, jnp.maximum(_FAINT * noise, _TINY))
        inverse = (axes / sizes) @ axes.T
        target = state["scales"] - inverse @ derivative
        # The next pass is where the factors are believed to be, so that noise in weak directions does not lead away.
        trust = sizes**2 / (sizes**2 + (noise / _REACH) ** 2)
        scales = jnp.clip(1 + axes @ (trust * (axes.T @ (target - 1))), 0.0, _LARGEST)
        later = jnp.where(step > 0, 1.0 / (PASSES - 1), 0.0)
        new = {
            "scales": scales,
            "curvature": curvature,
            "sum": state["sum"] + later * target,
            "covariance": state["covariance"] + later * (noise * inverse) @ (noise * inverse).T / (PASSES - 1),
        }
        return state | {name: value.astype(jnp.float32) for name, value in new.items()}

    def flatness(self, state: State, passes: Any = PASSES) -> Any:
        """The curvature of the loss in units of its bound, after so many passes, plus two deviations of its noise.

        A squared loss has its bound everywhere.
        """
        if not self.likelihood:
            return 1.0
        noise = _CERTAIN * self._curvature_noise(state, passes)
        return jnp.minimum((jnp.maximum(state["curvature"], 0) + noise) / self._largest(state), 1.0)

    def _curvature_noise(self, state: State, passes: Any) -> jax.Array:
        return self.parts["curvature"].unit * self.noise_std * state["clips"][1] / jnp.sqrt(1.0 * passes)

    def _largest(self, state: State) -> jax.Array:
        return self.curvature * jnp.maximum(jnp.trace(state["products"]), _TINY)

    def factors(
        self,
        state: State,
        moments: tuple[jax.Array, jax.Array],
        y: jax.Array,
        variances: jax.Array,
        fitted: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The factor of each group after the last pass, and their covariance by the noise of all passes.

        One factor is expected of all groups: two whose scores cancel must not be shrunk apart from each other.

        Args:
            state: after the last pass.
            moments: eigenvalues and eigenvectors of the released second moments.
            y: the trained model.
            variances: of its noise, by eigenvector of the second moments.
            fitted: the part of each eigenvector that training has fitted, of one.
        """
        known = Moments.of(moments, self.moments_noise, tuple(min(group, 0) for group in self.groups))
        noise = math.prod(y.shape[1:]) * known.by_direction(variances)
        once, twice = known.by_direction(fitted), known.by_direction(fitted**2)
        return self.decided(state, expected(known.of_model(y), noise, once, twice))

    def decided(self, state: State, prior: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What was measured, where noise does not hide it, and what is expected elsewhere."""
        variances, axes = jnp.linalg.eigh(state["covariance"] + _SYSTEMATIC**2 * jnp.eye(self.number))
        moves, errors = believed(axes.T @ (state["sum"] - prior), jnp.sqrt(jnp.maximum(variances, _SYSTEMATIC**2)))
        return jnp.clip(prior + axes @ moves, 0.0, _LARGEST), (axes * errors**2) @ axes.T


def believed(measured: jax.Array, error: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of a number with a Cauchy distribution around zero, given a measurement with a Gaussian error.

    The second result is the error of this mean. With v the variance of the number given the measurement, it changes by
    v/error^2 per unit of the measurement.

    An error above one, by which a measurement of factors says nothing, is taken for one with the same ratio to it.
    """
    shorter = 1 / jnp.maximum(error, 1.0)
    measured, error = measured * shorter, error * shorter
    grid = jnp.linspace(-_FURTHEST, _FURTHEST, _POINTS)
    numbers = measured[:, None] + error[:, None] * grid
    weights = jnp.exp(-0.5 * grid**2) / (1 + (numbers / _SPREAD) ** 2)
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
    mean = jnp.sum(numbers * weights, axis=1)
    return mean, jnp.sum((numbers - mean[:, None]) ** 2 * weights, axis=1) / error


def expected(of_model: jax.Array, of_noise: jax.Array, once: jax.Array, twice: jax.Array) -> jax.Array:
    """The factor that is expected.

    Args:
        of_model, of_noise: mean squares of scores.
        once, twice: sums of h a and of h a^2, with a the part of an eigenvector that training has fitted and h the
            second moment of its scores. If coefficients are of one size in all directions, a model that has reached a
            of them comes closest to them in scores with a factor of sum h a / sum h a^2.
    """
    explained = jnp.maximum(1 - of_noise / jnp.maximum(of_model, _TINY), 0.0)
    return jnp.minimum(explained * once / jnp.maximum(twice, _TINY), 1.0)


def at_point(state: State, x: Tree, y: jax.Array) -> Tree:
    """The query point of a pass."""
    return x, y, state["along"], state["scales"], state["clips"]


def _parts(problem: BilevelProblem, level: str) -> dict[str, Part]:
    derivative, curvature = _derivatives(problem, level)
    return shared({"derivative": (derivative, 1.0), "curvature": (curvature, 1.0)}, _SHARES)


@functools.lru_cache(maxsize=64)
def _derivatives(problem: BilevelProblem, level: str) -> tuple[Any, Any]:
    loss = problem.loss(level)
    assert loss is not None, "only levels with records train a model"

    def relative(point: Tree, record: Tree) -> Any:
        x, y, along, _, _ = point
        weight = problem.lower_scale(x) if level == "lower" else 1.0
        return lambda scales: loss(x, moved(y, along, scales), record) / weight

    def derivative(point: Tree, record: Tree) -> jax.Array:
        return jax.grad(relative(point, record))(point[3]) / point[4][0]

    def curvature(point: Tree, record: Tree) -> jax.Array:
        each = jnp.eye(point[3].shape[0], dtype=point[3].dtype)
        gradient = jax.grad(relative(point, record))
        second = jax.vmap(lambda unit: unit @ jax.jvp(gradient, (point[3],), (unit,))[1])(each)
        return jnp.sum(second) / point[4][1]

    return derivative, curvature


def reach_of_training(sizes: jax.Array, noise: Any, curvature: Any, damping: Any, steps: Any) -> jax.Array:
    """1.5 T p h for each eigenvector, with h the bound on its curvature.

    Steps with a momentum of one half move twice as far, and the average of the second half stands at 3/4 of all steps.
    """
    clean = curvature * without_noise(sizes, noise)
    rate = 1.0 / (curvature * jnp.maximum(sizes, 0) + damping)
    return 1.5 * steps * rate * clean


def fitted_part(reach: jax.Array, flatness: Any) -> jax.Array:
    """The part of each eigenvector that training has fitted, with the curvature as a part of its bound."""
    return 1 - jnp.exp(-flatness * reach)
