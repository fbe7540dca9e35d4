"""Objective perturbation: the exact minimiser of a training loss with a random linear term.

Chaudhuri, Monteleoni and Sarwate (2011), with the accounting and the approximate minimiser of Redberg, Koskela and Wang
(2023, "Improving the privacy and practicality of objective perturbation for differentially private linear learners").
One look at the records, whatever the number of passes that the minimiser takes: what a training of one release costs.

**How it is charged.** It is no Gaussian release of a clipped sum: the density of its result involves a determinant, and
the derivatives of the changed records depend on the noise. Its cost is the (epsilon, delta) of `privacy.objective`,
which has the proof, as a `DeclaredRelease`. Rows are shortened and derivatives clipped here. That the loss is convex,
and its curvature at most the declared one, is assumed and stated as a caveat; for this library's losses it is proved.

**The minimiser** is found by Newton steps that are halved until they reduce the norm of the gradient, until it is below
a public tolerance. This ends for all records, since the objective is smooth and strongly convex. The number of steps
depends on the records, and only the time shows it (see `docs/guarantee.md`). The tolerance bounds how far the result is
from the exact minimiser, and noise on the output hides it: the guarantee depends on no rate of convergence.

**Units** with several rows have a loss that is multiplied by a number, so that its gradient is bounded: min(1, c m/r)
for a unit of r rows, with c = sqrt(k/m), which leaves units of sqrt(k m) rows as they are. It is charged as
`privacy.objective` proves: derivatives of k rows depend on the noise, which costs a factor of 4^k in delta, and about
1.4 times the noise for k = 8. There are k places for the rows of each unit in memory.

**The ridge** is at least what keeps the cost of the determinant at a share of epsilon. Large noise asks for more: along
a direction in which the sum of losses has curvature h, the minimiser is (h c - b)/(h + ridge) for a coefficient c, and
its mean squared error is smallest at ridge = noise^2/(h c^2). With h = n K R^2/d, that of isotropic rows, and c = 1/R,
for scores of about one, this is a public number.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.baselines.baseline import Baseline
from dpbilevel.baselines.linear_records import linear_bounds, penalties, row, score_loss
from dpbilevel.errors import InvalidArgument, InvalidProblem, TrainerFailed
from dpbilevel.execution.program import Call, Program, State
from dpbilevel.foundation.arguments import positive
from dpbilevel.foundation.compilation import Compiled
from dpbilevel.foundation.precision import isolated_jax_config
from dpbilevel.linear_loss import LinearBounds
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.noiseless.noiseless import noiseless_training
from dpbilevel.methods.training_gradients import levels_of, number_of_records, pools
from dpbilevel.methods.unit_losses import clip_of_units, rows_of_units
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.declared import ApproximateDP, DeclaredRelease
from dpbilevel.privacy.noise import standard_normal
from dpbilevel.privacy.objective import MOST_ROWS, ObjectiveNoise, smallest_ridge
from dpbilevel.problem import BilevelProblem

Tree = Any
Floats = npt.NDArray[np.float64]
Parameters = dict[str, tuple[Any, str]]
Derivatives = Callable[[Floats], tuple[Floats, Floats]]  # y -> gradient and Hessian

PERTURBED = "objective perturbation"
_TOLERANCE = 2.0**-40  # of the largest gradient of all records; sums in float64 are more accurate
_MOST_COST = 1.0  # of the determinant: a ridge below half of one record's curvature has no effect
_STEPS = 10_000  # far more than any minimisation takes
_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Baseline):
    """Train at the starting x with one perturbed objective, and the full budget.

    For problems with one score per record and a loss with a bounded derivative that declares its bounds, such as
    `dpb.applications.regularization("logistic", row_norm=...)`. The problem's own penalties are used at the starting x,
    and a ridge that the guarantee needs is added to them.

    Args:
        share: largest share of epsilon for the determinant. The smaller it is, the larger the ridge must be: at least
            K R^2/(exp(share epsilon) - 1), on the sum of losses with curvature K and rows of norm R.

    >>> import numpy as np, warnings, dpbilevel as dpb
    >>> from dpbilevel.baselines import ObjectivePerturbation
    >>> rows = np.random.default_rng(0).normal(size=(3000, 4)) / 4
    >>> labels = (rows[:, 0] > 0).astype(int)
    >>> records = dpb.Records(upper=(rows[:1000], labels[:1000]), lower=(rows[1000:], labels[1000:]))
    >>> problem = dpb.applications.regularization("logistic", columns=4, row_norm=1.0)
    >>> with warnings.catch_warnings(action="ignore"):  # the caveat about declared bounds
    ...     solution = ObjectivePerturbation().solve(problem, records, dpb.Budget(2.0, 1e-5))
    >>> bool(solution.y[0] > 1), round(solution.privacy.epsilon(), 6)
    (True, 2.0)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < positive("share", self.share, "of epsilon for the determinant (try 0.1)") < 1:
            raise InvalidArgument(f"share={self.share!r}: must be below 1; it is a share of epsilon (try 0.1)")

    def program(self, context: PublicContext) -> tuple[Program, Parameters]:
        """One call, which draws its noise, minimises, and returns the noisy minimiser."""
        bounds, budget = linear_bounds(context, "ObjectivePerturbation"), context.budget
        if math.isinf(bounds.derivative):
            raise InvalidProblem(
                "ObjectivePerturbation: needs a loss with a bounded derivative; for a squared loss use AdaSSP"
            )
        if not budget.is_private or budget.delta is None:
            return noiseless_training(context, pools(context))
        number, sizes = number_of_records(context), context.sizes
        units = _Units.of(context)
        noise = self.noise(budget, bounds, number, context.y_dimension, units.rows, units.reach)
        roles = {level: sizes.role_of(level) or level for level in levels_of(context)}
        release = DeclaredRelease(
            name=PERTURBED,
            roles={role: sizes.count(role) for role in roles.values()},
            event=ApproximateDP(budget.epsilon, budget.delta),
            uses=1,
            adjacency=budget.adjacency,
            condition=(
                f"{PERTURBED}: the guarantee holds if the loss is convex in the score and its second derivative is at "
                f"most the declared {bounds.curvature:g} (Redberg et al. 2023)"
            ),
            rows_per_unit=units.rows,
        )

        def run(state: State, arrays: Mapping[str, Tree], keys: npt.NDArray[np.uint32]) -> State:
            records = {level: arrays[role] for level, role in roles.items()}
            return state | {"y": _perturbed(context.problem, bounds, units, noise, number, state, records, keys)}

        program = Program(
            rounds=1,
            stages=[Call(release=release, run=run, keys_per_round=2)],
            start=lambda x, y: {"x": x, "y": y},
            observe=lambda state: {},
            finish=lambda state: (state["x"], state["y"]),
        )
        return program, {
            "ridge": (noise.ridge / number, "on the mean loss, for the determinant or for the noise"),
            "objective: noise": (noise.noise_std / number, "on entries of the mean gradient"),
            "output: noise": (noise.output_std, "on entries of the minimiser, for what the solver leaves"),
            "tolerance": (noise.tolerance / number, "largest norm of the mean gradient at the result"),
        }

    def noise(
        self, budget: Budget, bounds: LinearBounds, records: int, columns: int, rows: int = 1, reach: float = 1.0
    ) -> ObjectiveNoise:
        """Ridge, noise and tolerance, from public numbers; ``rows`` and ``reach`` are k and c of units."""
        own: dict[str, Any] = {"curvature": bounds.curvature, "row_norm": bounds.row_norm, "rows": rows, "reach": reach}
        smallest = smallest_ridge(min(self.share * budget.epsilon, _MOST_COST), **own)
        own |= {"derivative": bounds.derivative}
        own |= {"tolerance": _TOLERANCE * records * bounds.derivative * bounds.row_norm}
        first = ObjectiveNoise.of(budget, **own, ridge=smallest)
        wanted = first.noise_std**2 * columns / (records * bounds.curvature)
        return ObjectiveNoise.of(budget, **own, ridge=max(smallest, wanted))


@dataclass(frozen=True)
class _Units:
    """What is public of units.

    Args:
        rows: k, the most rows of one.
        mean: m, by which their losses are divided.
        reach: c, which bounds the gradient of one in units of that of a row.
    """

    rows: int
    mean: float
    reach: float

    @classmethod
    def of(cls, context: PublicContext) -> "_Units":
        most, mean = rows_of_units(context.problem, context.sizes)
        if most > MOST_ROWS:
            raise InvalidArgument(
                f"rows_per_unit={most}: must be at most {MOST_ROWS} for ObjectivePerturbation, whose delta is divided "
                "by 4^k (use fewer rows per unit, or dpb.Refit())"
            )
        return cls(most, mean, clip_of_units(most, mean))

    def flat(self, records: Tree) -> tuple[Tree, jax.Array]:
        """All rows of records, and what multiplies the loss of each; that of absent ones is zero."""
        if not isinstance(records, Bundle):
            return records, jnp.ones(len(jax.tree.leaves(records)[0]))
        rows = jnp.maximum(jnp.sum(records.present, axis=1, keepdims=True), 1)
        weights = jnp.where(records.present, jnp.minimum(1.0, self.reach * self.mean / rows) / self.mean, 0.0)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), records.rows), weights.reshape(-1)


def _perturbed(
    problem: BilevelProblem,
    bounds: LinearBounds,
    units: _Units,
    noise: ObjectiveNoise,
    number: int,
    state: State,
    records: Mapping[str, Tree],
    keys: npt.NDArray[np.uint32],
) -> npt.NDArray[Any]:
    """The noisy minimiser; ``keys`` has one row for the objective's noise, and one for that of the output."""
    y = np.asarray(state["y"])
    with isolated_jax_config():
        x = jax.tree.map(_double, state["x"])
        linear, quadratic = penalties(problem, x, jnp.zeros(y.size, jnp.float64))
        drawn, last = (np.asarray(standard_normal(jnp.asarray(pair[0]), y.size)) for pair in keys)
        slant = number * np.asarray(linear) + noise.noise_std * drawn
        own = number * np.asarray(quadratic) + noise.ridge
        doubled = jax.tree.map(_double, dict(records))

        def derivatives(at: Floats) -> tuple[Floats, Floats]:
            gradient, curved = (
                np.asarray(value) for value in _derivatives(problem, tuple(doubled), bounds, units)(x, at, doubled)
            )
            return gradient + own * at + slant, curved + np.diag(own)

        found = minimiser(derivatives, np.zeros(y.size), noise.tolerance)
    return (found + noise.output_std * last).astype(y.dtype)


def minimiser(derivatives: Derivatives, start: Floats, tolerance: float) -> Floats:
    """A point at which the gradient of a smooth, strongly convex function has norm at most ``tolerance``."""
    point, (gradient, curved) = start, derivatives(start)
    for _ in range(_STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= tolerance:
            return point
        step = np.linalg.solve(curved, gradient)
        for halving in range(_HALVINGS):
            # Along a Newton step the gradient is (1 - length) times itself, up to second order.
            length = 0.5**halving
            moved = point - length * step
            gradient, curved = derivatives(moved)
            if float(np.linalg.norm(gradient)) <= (1 - length / 2) * size:
                break
        point = moved
    raise TrainerFailed(f"{PERTURBED}: found no minimiser; nothing is released, and the run remains charged")


@functools.lru_cache(maxsize=64)
def _derivatives(
    problem: BilevelProblem, levels: tuple[str, ...], bounds: LinearBounds, units: _Units
) -> Callable[..., Any]:
    """(x, y, records by level) -> gradient and Hessian of the sum of losses; rows shortened, derivatives clipped."""

    def of_level(level: str, x: Tree, y: jax.Array, records: Tree) -> tuple[jax.Array, jax.Array]:
        records, weights = units.flat(records)
        rows = jax.vmap(row(problem, level))(records)
        norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = jnp.where(jnp.isfinite(norms), rows, 0.0) * jnp.minimum(
            1.0, bounds.row_norm / jnp.maximum(norms, 1e-300)
        )
        derivative = jax.grad(score_loss(problem, level), 1)

        def clipped(score: jax.Array, record: Tree) -> jax.Array:
            # A record of more than full weight counts once: the bound on the curvature is one for full weights.
            weight = jax.grad(derivative, 1)(x, jnp.zeros_like(score), record) / bounds.at_zero
            return jnp.clip(
                derivative(x, score, record) / jnp.maximum(weight, 1.0), -bounds.derivative, bounds.derivative
            )

        scores = rows @ y
        derivatives = weights * jax.vmap(clipped)(scores, records)
        bends = weights * jnp.clip(jax.vmap(jax.grad(clipped))(scores, records), 0.0, bounds.curvature)
        return derivatives @ rows, (rows * bends[:, None]).T @ rows

    @Compiled
    def both(x: Tree, y: jax.Array, records: Mapping[str, Tree]) -> tuple[jax.Array, jax.Array]:
        parts = [of_level(level, x, y, records[level]) for level in levels]
        return sum(gradient for gradient, _ in parts), sum(curved for _, curved in parts)  # type: ignore[return-value]

    return both


def _double(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array.astype(np.float64) if array.dtype.kind == "f" else array
