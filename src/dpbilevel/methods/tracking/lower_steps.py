"""Steps of the model y and the difference d: accelerated gradient descent with learning rates from released values.

y minimises g, and d solves (grad^2 g) d = -grad f. Both depend on the same Hessian, that of g in y, so that one
estimate of its largest eigenvalue, the curvature L, serves both. Power iteration on released Hessian-vector products
H v estimates it.

The learning rate. A step along a noisy gradient g + N with E|N|^2 = s^2 has an expected decrease of
eta |g|^2 - eta^2 L (|g|^2 + s^2)/2, which is largest at

    eta = (1/L) |g|^2 / (|g|^2 + s^2).

Data-free terms are known exactly. Their Hessian T is added to the records' largest curvature L, and gradients are
preconditioned by L + T. A penalty that grows a thousandfold then neither makes the steps diverge nor shortens the steps
of other coordinates.

The noise variance is known, so that the shrinkage factor |g|^2 / (|g|^2 + s^2) (a Wiener filter) follows from the
squared norm of the released gradient. It is one far from the solution and decreases to zero at the noise floor. The
noise that passes the filter is accumulated, which gives the variance of the noise in y and d. Momentum is Nesterov's
with adaptive restart (O'Donoghue and Candes 2015), times the same factor.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

State = dict[str, jax.Array]

_SHORT, _LONG = 0.8, 0.9  # decay of running averages: of squares (5 steps), of means and the curvature along d (10)
_DOUBT = 2.0  # standard deviations of noise that do not count as signal
_TOP_DECAY = 0.5  # decay of the squared curvature in power iteration steps, of which there are few
_FALL = 0.98  # smallest ratio of the largest curvature to that of the step before: it may decrease as x moves
_CONJUGATE = 10  # conjugate gradient iterations per step
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo one are evenly spread over [0, 1)
_TINY = 1e-30


def start_curvature(dimension: int, dtype: Any) -> State:
    """The state before the first step."""
    zero = jnp.zeros((), dtype)
    # Multiples of the golden ratio modulo one: a direction without a symmetry that a problem could share. A constant
    # vector would not do, because a softmax has no curvature along it.
    direction = jnp.asarray(np.arange(1, dimension + 1) * GOLDEN % 1, dtype)
    direction = direction / jnp.sqrt(jnp.sum(direction**2))
    scalars = dict.fromkeys(("square", "largest", "power_steps", "along", "term", "passes"), zero)
    return {"direction": direction} | scalars


def curvature(
    state: State,
    power: Any,
    direction: jax.Array,
    released: jax.Array,
    term: jax.Array,
    noise: jax.Array,
    bound: jax.Array,
) -> State:
    """The state after a step that released H u along u = ``direction``.

    Args:
        power: whether u is the direction of the power iteration; otherwise it is that of d.
        released: H u, with noise.
        term: the Hessian-vector product of the data-free term along u, which is exact.
        noise: standard deviation of the noise on each coordinate.
        bound: an upper bound on the norm of the mean, from the norms of the per-record vectors.
    """
    size = released.shape[0]
    square = jnp.sum(released**2) - size * noise**2
    first = power & (state["power_steps"] == 0)
    average = _TOP_DECAY * state["square"] + (1 - _TOP_DECAY) * square
    top = jnp.where(first, square, jnp.where(power, average, state["square"]))
    # An upper confidence bound: two standard deviations above the estimate, but at most the norm of the records'
    # vectors, because a mean is no longer than its terms. It shortens steps where noise hides the curvature.
    estimate = jnp.maximum(top, 0)
    deviation = noise**2 * jnp.sqrt(2 * size / 3) + 2 * noise * jnp.sqrt(estimate / 3)
    upper = jnp.minimum(jnp.sqrt(estimate + 2 * deviation), bound)
    lower = jnp.sqrt(jnp.maximum(square - 2 * noise**2 * jnp.sqrt(2.0 * size), 0))  # a lower bound, from this step
    largest = jnp.maximum(jnp.sqrt(estimate), upper)
    largest = jnp.maximum(jnp.maximum(largest, lower), _FALL * state["largest"])
    along, along_term = jnp.vdot(direction, released), jnp.vdot(direction, term)
    length = jnp.sqrt(jnp.sum(released**2))
    next_direction = jnp.where(power & (length > 0), released / jnp.maximum(length, _TINY), state["direction"])
    new = {
        "direction": next_direction,
        "square": top,
        "largest": jnp.maximum(largest, _TINY),
        "power_steps": state["power_steps"] + power,
        "along": jnp.where(power, state["along"], _LONG * state["along"] + (1 - _LONG) * (along + along_term)),
        "term": jnp.where(power, state["term"], _LONG * state["term"] + (1 - _LONG) * along_term),
        "passes": state["passes"] + ~power,
    }
    return {name: value.astype(state[name].dtype) for name, value in new.items()}


def along_difference(state: State) -> tuple[jax.Array, jax.Array]:
    """The curvature along d, and the curvature that sets the learning rate along d; from running averages.

    The first estimates the smallest curvature that matters, because d is largest where the curvature is smallest.
    """
    correction = jnp.maximum(1 - _LONG ** state["passes"], _TINY)  # of the bias of the first averages, as in Adam
    along, term = (jnp.where(state["passes"] > 0, state[name] / correction, 0) for name in ("along", "term"))
    of_steps = jnp.maximum(state["largest"] + term, _TINY)
    return jnp.clip(along, 0, of_steps), of_steps


def rate(state: State) -> jax.Array:
    """Convergence rate of accelerated steps: the inverse square root of the condition number along d."""
    along, of_steps = along_difference(state)
    return jnp.sqrt(along / of_steps)


def preconditioned(state: State, term: Callable[[jax.Array], jax.Array], gradients: jax.Array) -> jax.Array:
    """(L + T)^-1 g for each row g, with L the records' largest curvature and T the Hessian of the data-free term.

    ``term`` multiplies by T. It reads no records. After any number of iterations of conjugate gradients, the solution s
    for a gradient g satisfies g s = s (L + T) s, so that -s is a descent direction.
    """
    known = state["largest"] > 0
    largest = jnp.where(known, state["largest"], 1.0)
    solve = jax.vmap(lambda right: _conjugate_gradients(lambda v: v + term(v) / largest, right))
    # No step is made before a curvature is known.
    return jnp.where(known, solve(gradients / largest), 0.0)


def _conjugate_gradients(matrix: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Conjugate gradients with a fixed number of iterations.

    JAX's implementation stops on convergence, and the run time would then depend on released values.
    """

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        point, residual, direction, square = carry
        product = matrix(direction)
        length = _ratio(square, jnp.vdot(direction, product))
        residual = residual - length * product
        new = jnp.vdot(residual, residual)
        return (point + length * direction, residual, residual + _ratio(new, square) * direction, new), None

    start = (jnp.zeros_like(right), right, right, jnp.vdot(right, right))
    return jax.lax.scan(step, start, None, length=_CONJUGATE)[0][0]


def _ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)


def start_steps(point: jax.Array) -> State:
    """The state before the first step; gradients are evaluated at ``point``."""
    zero = jnp.zeros((), point.dtype)
    scalars = dict.fromkeys(("run", "passes", "square", "signal", "error"), zero)
    return {"point": point, "main": point, "mean": jnp.zeros_like(point)} | scalars


def step(
    state: State,
    gradient: jax.Array,
    direction: jax.Array,
    variance: jax.Array,
    curvatures: State,
    square: jax.Array,
    moving: Any,
    project: Callable[[jax.Array], jax.Array] = lambda point: point,
) -> State:
    """One step along a released gradient.

    Args:
        gradient, direction: before and after preconditioning.
        variance: of the noise of the gradient, summed over coordinates.
        square: the mean squared eigenvalue of the preconditioner, by which a step multiplies this variance.
        moving: whether the step is made.
        project: onto the domain.
    """
    along, of_steps = along_difference(curvatures)
    passes = state["passes"] + 1
    mean = _LONG * state["mean"] + (1 - _LONG) * gradient
    recent = _SHORT * state["square"] + (1 - _SHORT) * jnp.sum(gradient**2)
    signal = jnp.maximum(
        _excess(recent / (1 - _SHORT**passes), variance, gradient.shape[0] * (1 + _SHORT) / (1 - _SHORT)),
        _excess(
            jnp.sum(mean**2) / (1 - _LONG**passes) ** 2,
            variance * (1 - _LONG) / (1 + _LONG) * (1 + _LONG**passes) / (1 - _LONG**passes),
            gradient.shape[0],
        ),
    )
    shrinkage = signal / jnp.maximum(signal + variance, _TINY)
    main = project(state["point"] - shrinkage * direction)
    change = main - state["main"]
    restart = jnp.vdot(gradient, change) > 0
    momentum = jnp.where(restart, 0.0, shrinkage * state["run"] / (state["run"] + 3))
    new = {
        "point": project(main + momentum * change),
        "main": main,
        "mean": mean,
        "run": jnp.where(restart, 0.0, state["run"] + 1),
        "passes": passes,
        "square": recent,
        "signal": signal,
        "error": (1 - shrinkage * along / of_steps) ** 2 * state["error"] + shrinkage**2 * square * variance,
    }
    return {name: jnp.where(moving, value, state[name]).astype(state[name].dtype) for name, value in new.items()}


def most_of_noise(freedom: float) -> float:
    """Upper bound on a mean square of noise relative to its expectation: two standard deviations above it.

    ``freedom`` is the number of degrees of freedom of the mean square.
    """
    return 1 + _DOUBT * math.sqrt(2 / freedom)


def _excess(square: jax.Array, noise: jax.Array, freedom: float) -> jax.Array:
    """The part of a square that exceeds what noise of the given expected square can explain."""
    return jnp.maximum(0.0, square - most_of_noise(freedom) * noise)


def evidence(state: State, travelled: jax.Array) -> jax.Array:
    """Fraction of a distance that is signal, against the noise of one coordinate (the James-Stein factor)."""
    variance = state["error"] / state["point"].size
    return jnp.maximum(0.0, 1 - variance / jnp.maximum(travelled**2, _TINY))


def unsettled(state: State, curvatures: State, travelled: jax.Array) -> jax.Array:
    """Estimated distance to the solution relative to the distance travelled, from gradients beyond the noise."""
    return jnp.sqrt(state["signal"]) / jnp.maximum(along_difference(curvatures)[0] * travelled, _TINY)
