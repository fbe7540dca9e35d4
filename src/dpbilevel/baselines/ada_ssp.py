"""AdaSSP: ridge regression from noisy sufficient statistics (Wang 2018, "Revisiting differentially private linear
regression: optimal and adaptive prediction & estimation in unbounded domain").

With rows a_i, |a_i| <= R, and targets |t_i| <= B, two releases determine the model: the mean of a_i a_i' and the mean
of a_i t_i. The ridge is what the noise of the first may take from its smallest eigenvalue, where that is not large:

    y = (M + ridge)^-1 v,    ridge = max(0, r - smallest eigenvalue of M),    r = s sqrt(d log(2 d^2/rho))

with s the noise of an entry of M, and |noise| <= r with probability 1 - rho.

**Sensitivity.** Of M: sqrt(2) R^2/n under replace-one, R^2/n under zero-out, from a release that builds products of
rows by itself (`privacy.second_moments`). Of v: 2 R B/n and R B/n, from a release that clips a_i t_i to R B. Nothing
rests on a declaration. The releases share mu^2 equally. The paper spends a third of its budget on the smallest
eigenvalue, too; here it is computed from the released M, whose noise lowers it rather than raises it.

A unit with rows a_1, ..., a_k contributes the sum of its products, divided by the public mean of rows m: sum a_j
a_j'/m, clipped as a whole to c R^2 (`privacy.unit_moments` has the proof), and sum a_j t_j/m, clipped to c R B, with c
= sqrt(k/m). Sensitivities are those of these clips, whatever the rows are.

M and v of a problem's losses are the second derivatives at a score of zero and minus the gradient at y = 0.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.linear_records import linear_bounds, penalties, row, score_loss
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Program, Stage, State
from dpbilevel.foundation.arguments import positive
from dpbilevel.foundation.structure import function, passing
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.noiseless.noiseless import noiseless_training
from dpbilevel.methods.training_gradients import fraction, levels_of, pools
from dpbilevel.methods.unit_losses import UnitLoss, clip_of_units, rows_of_units, sum_over_rows
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.calibration import calibrate, with_shares
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.second_moments import SecondMoments
from dpbilevel.problem import BilevelProblem

Tree = Any
Parameters = dict[str, tuple[Any, str]]

MOMENTS, PRODUCTS = "second moments", "products with targets"


@dataclass(frozen=True, kw_only=True)
class AdaSSP(Baseline):
    """Ridge regression at the starting x from two releases, of second moments and of products with targets.

    For problems with a squared loss that declares its bounds, such as `dpb.applications.regularization("squared",
    row_norm=...)`. The problem's own penalties are added to the ridge.

    Args:
        target_bound: B, declared; the products of longer targets with their rows are clipped.
        failure: rho, the probability with which the noise may exceed the ridge that accounts for it.

    >>> import numpy as np, dpbilevel as dpb
    >>> from dpbilevel.baselines import AdaSSP
    >>> rows = np.random.default_rng(0).normal(size=(3000, 4)) / 4
    >>> records = dpb.Records(
    ...     upper=(rows[:1000], rows[:1000] @ np.ones(4)), lower=(rows[1000:], rows[1000:] @ np.ones(4))
    ... )
    >>> problem = dpb.applications.regularization("squared", columns=4, row_norm=1.0)
    >>> solution = AdaSSP().solve(problem, records, dpb.Budget(4.0, 1e-5))
    >>> solution.y.shape, round(solution.privacy.epsilon(), 6)
    ((4,), 4.0)
    """

    target_bound: float = 1.0
    failure: float = 0.05

    def __post_init__(self) -> None:
        positive("target_bound", self.target_bound, "it bounds the targets (try 1.0)")
        if not 0 < positive("failure", self.failure, "it is a probability (try 0.05)") < 1:
            raise InvalidArgument(f"failure={self.failure!r}: must be below 1; it is a probability (try 0.05)")

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One round of two stages: a release each, and the model from both answers."""
        bounds = linear_bounds(context, "AdaSSP")
        if math.isfinite(bounds.derivative):
            raise InvalidProblem(
                "AdaSSP: needs a squared loss; for a loss with a bounded derivative use ObjectivePerturbation"
            )
        if not context.budget.is_private:
            return noiseless_training(context, pools(context))
        adjacency, row_norm = context.budget.adjacency, math.sqrt(bounds.curvature) * bounds.row_norm
        longest = bounds.curvature * bounds.row_norm * self.target_bound
        longer = clip_of_units(*rows_of_units(context.problem, context.sizes))
        rows = _contributions(context, _weighted_row, row_norm * math.sqrt(longer), root=True)
        products = _contributions(context, _product, longest * longer, root=False)
        declared = (
            SecondMoments(name=MOMENTS, contributions=rows, noise_std=1.0, uses=1, adjacency=adjacency),
            Release(name=PRODUCTS, contributions=products, noise_std=1.0, uses=1, adjacency=adjacency),
        )
        half = dict.fromkeys(rows, 0.5)
        moments, targets = calibrate([with_shares(r, half, context.budget) for r in declared], context.budget)
        columns = context.y_dimension
        reach = moments.noise_std * math.sqrt(columns * math.log(2 * columns**2 / self.failure))
        program = Program(
            rounds=1,
            stages=[
                Stage(release=moments, query=_point, update=_keep),
                Stage(
                    release=targets,
                    query=_point,
                    update=function(_Solve.update, _Solve(context.problem, reach)),
                ),
            ],
            start=_start,
            observe=_observe,
            finish=_finish,
        )
        return program, {
            "second moments: noise": (moments.noise_std, "on entries of the mean product of rows, half of mu^2"),
            "products: noise": (targets.noise_std, "on entries of the mean of rows times targets, half of mu^2"),
            "largest ridge": (reach, f"bounds the noise of second moments with probability {1 - self.failure:g}"),
        }


def _contributions(context: PublicContext, of_record: Any, clip: float, *, root: bool) -> dict[str, Contribution]:
    """Contributions by role; the weight of a role is part of what its records contribute."""
    parts = {}
    for level in levels_of(context):
        weight, role = fraction(context, level), context.sizes.role_of(level) or level
        weight = math.sqrt(weight) if root else weight
        own = function(of_record, score_loss(context.problem, level), row(context.problem, level), weight)
        loss = context.problem.loss(level)
        if isinstance(loss, UnitLoss):
            own = function(_rows_of_unit if root else _sum_of_unit, own, loss.mean_rows)
        parts[role] = Contribution(own, weight * clip, context.sizes.count(role))
    return parts


def _weighted_row(loss: Any, row: Any, weight: Any, x: Tree, record: Tree) -> jax.Array:
    """A row whose product with itself has the weight of its record."""
    own = row(record)
    curvature = jax.grad(jax.grad(loss, 1), 1)(x, jnp.zeros((), own.dtype), record)
    return (weight * jnp.sqrt(jnp.maximum(curvature, 0.0)) * own).astype(own.dtype)


def _product(loss: Any, row: Any, weight: Any, x: Tree, record: Tree) -> jax.Array:
    """The row times the target, which is minus the derivative of the squared loss at a score of zero."""
    own = row(record)
    return (-weight * jax.grad(loss, 1)(x, jnp.zeros((), own.dtype), record) * own).astype(own.dtype)


def _rows_of_unit(of_row: Any, mean_rows: Any, x: Tree, unit: Bundle) -> jax.Array:
    """All rows of a unit, the sum of whose products is divided by the mean of rows."""
    rows = jax.vmap(lambda row: of_row(x, row))(unit.rows)
    return jnp.where(unit.present[:, None], rows / jnp.sqrt(mean_rows), 0).astype(rows.dtype)


def _sum_of_unit(of_row: Any, mean_rows: Any, x: Tree, unit: Bundle) -> jax.Array:
    summed = sum_over_rows(lambda row: of_row(x, row), unit)
    return (summed / mean_rows).astype(summed.dtype)


@passing("reach", structure=("problem",))
@dataclass(frozen=True, eq=False)
class _Solve:
    """The model from both answers."""

    problem: BilevelProblem
    reach: float

    def update(self, state: State, carry: State, answer: jax.Array, step: jax.Array) -> State:
        sizes, directions = jnp.linalg.eigh(carry["moments"])
        ridge = jnp.maximum(self.reach - jnp.maximum(sizes[0], 0.0), 0.0)
        positive_part = (directions * jnp.maximum(sizes, 0.0)) @ directions.T
        first, own = penalties(self.problem, carry["x"], carry["y"])
        matrix = positive_part + jnp.diag(own + ridge)
        return carry | {"y": jnp.linalg.solve(matrix, answer - first).astype(carry["y"].dtype)}


def _start(x: Tree, y: jax.Array) -> State:
    return {"x": x, "y": y, "moments": jnp.zeros((y.size, y.size), y.dtype)}


def _point(state: State, carry: State, step: jax.Array) -> Tree:
    return carry["x"]


def _keep(state: State, carry: State, answer: jax.Array, step: jax.Array) -> State:
    return carry | {"moments": answer.astype(carry["moments"].dtype)}


def _observe(state: State) -> Tree:
    return {}


def _finish(state: State) -> tuple[Tree, Tree]:
    return state["x"], state["y"]
