"""How the model y and the difference d move: accelerated gradient steps whose lengths come from released values.

Both solve systems with the same Hessian, that of g in y: y its minimisation, d the equation (grad^2 g) d = -grad f. So
one largest curvature L serves both. It is found by power iteration on released curvatures: H v, asked along v, points
more and more along the steepest direction.

The length of a step. A noisy gradient g + N with E|N|^2 = s^2 leads to an expected decrease of
eta |g|^2 - eta^2 L (|g|^2 + s^2)/2, which is largest at

    eta = (1/L) |g|^2 / (|g|^2 + s^2).

A data-free term is known exactly. Its Hessian T goes beside the records' largest curvature L: gradients are divided by
L + T, so that a penalty that grows a thousandfold neither makes steps diverge nor shortens those of other coordinates.

Noise is known, so that the factor (Wiener's) is read off the square of what was released. It is one far from the
solution and falls to zero at the noise floor, by itself; and what it lets through of the noise can be added up, so that
everybody knows how much of y and d is noise. Momentum is Nesterov's with adaptive restart (O'Donoghue and Candes 2015),
times the same factor.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

State = dict[str, jax.Array]

_SHORT, _LONG = 0.8, 0.9  # memories: of squares, five passes; of means and of the curvature along d, ten
_DOUBT = 2.0  # standard deviations of noise that do not count as signal
_TOP_DECAY = 0.5  # of the squared curvature in power passes, of which there are few
_FALL = 0.98  # of the largest curvature, from one pass to the next: it may become smaller as x moves
_CONJUGATE = 10  # conjugate gradients of a step
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo one fill 0 to 1 evenly
_TINY = 1e-30


def start_curvature(dimension: int, dtype: Any) -> State:
    """Before the first pass."""
    zero = jnp.zeros((), dtype)
    # Numbers that fill 0 to 1 evenly (multiples of the golden ratio, modulo one): a direction that no problem is
    # symmetric to. Equal numbers would not do: along them a softmax has no curvature at all.
    direction = jnp.asarray(np.arange(1, dimension + 1) * GOLDEN % 1, dtype)
    direction = direction / jnp.sqrt(jnp.sum(direction**2))
    numbers = dict.fromkeys(("square", "largest", "heard", "along", "term", "passes"), zero)
    return {"direction": direction} | numbers


def curvature(
    state: State,
    power: Any,
    asked: jax.Array,
    released: jax.Array,
    term: jax.Array,
    noise: jax.Array,
    bound: jax.Array,
) -> State:
    """After a pass that asked for the curvature ``released`` = H u along u = ``asked``.

    Args:
        power: whether u was the direction of the power iteration; otherwise it was d's.
        term: the curvature of the data-free term along u, which is exact.
        noise: standard deviation of the noise on each coordinate.
        bound: how large the mean can be, by the norms of records' vectors.
    """
    size = released.shape[0]
    square = jnp.sum(released**2) - size * noise**2
    first = power & (state["heard"] == 0)
    kept = _TOP_DECAY * state["square"] + (1 - _TOP_DECAY) * square
    top = jnp.where(first, square, jnp.where(power, kept, state["square"]))
    # Where noise hides the curvature, steps are as short as two of its standard deviations ask for, or as its records'
    # norms allow: a mean is no longer than its terms.
    known = jnp.maximum(top, 0)
    spread = noise**2 * jnp.sqrt(2 * size / 3) + 2 * noise * jnp.sqrt(known / 3)
    careful = jnp.minimum(jnp.sqrt(known + 2 * spread), bound)
    elsewhere = jnp.sqrt(jnp.maximum(square - 2 * noise**2 * jnp.sqrt(2.0 * size), 0))
    largest = jnp.maximum(jnp.sqrt(known), careful)
    largest = jnp.maximum(jnp.maximum(largest, elsewhere), _FALL * state["largest"])
    along, bent = jnp.vdot(asked, released), jnp.vdot(asked, term)
    length = jnp.sqrt(jnp.sum(released**2))
    turned = jnp.where(power & (length > 0), released / jnp.maximum(length, _TINY), state["direction"])
    new = {
        "direction": turned,
        "square": top,
        "largest": jnp.maximum(largest, _TINY),
        "heard": state["heard"] + power,
        "along": jnp.where(power, state["along"], _LONG * state["along"] + (1 - _LONG) * (along + bent)),
        "term": jnp.where(power, state["term"], _LONG * state["term"] + (1 - _LONG) * bent),
        "passes": state["passes"] + ~power,
    }
    return {name: value.astype(state[name].dtype) for name, value in new.items()}


def along_difference(state: State) -> tuple[jax.Array, jax.Array]:
    """The curvature along d, the slowest of the solution's own directions, and that of steps; by running means."""
    started = jnp.maximum(1 - _LONG ** state["passes"], _TINY)
    along, term = (jnp.where(state["passes"] > 0, state[name] / started, 0) for name in ("along", "term"))
    of_steps = jnp.maximum(state["largest"] + term, _TINY)
    return jnp.clip(along, 0, of_steps), of_steps


def rate(state: State) -> jax.Array:
    """By how much accelerated steps come nearer to a solution, each: the inverse root of the condition along d."""
    along, of_steps = along_difference(state)
    return jnp.sqrt(along / of_steps)


class Preconditioner(NamedTuple):
    """What gradients are divided by in a step: L + T, the records' largest curvature and the term's own.

    Args:
        apply: to a vector by it.
        square: the mean square of the inverses of its eigenvalues: what a step makes of noise.
    """

    apply: Callable[[jax.Array], jax.Array]
    square: jax.Array


def preconditioner(state: State, term: Callable[[jax.Array], jax.Array], signs: jax.Array) -> Preconditioner:
    """L + T, for a data-free term with the Hessian T, by conjugate gradients along it; they cost no pass.

    However few they are, the step s that they find has g s = s (L + T) s: it goes down.
    """
    known = state["largest"] > 0
    largest = jnp.where(known, state["largest"], 1.0)

    def apply(vector: jax.Array) -> jax.Array:
        # Before any curvature is known there is no step.
        return jnp.where(known, _solved(lambda v: v + term(v) / largest, vector / largest), 0.0)

    return Preconditioner(apply, jnp.mean(apply(signs) ** 2))


def _solved(matrix: Callable[[jax.Array], jax.Array], right: jax.Array) -> jax.Array:
    """Conjugate gradients, always as many: JAX's own end where they are exact, and run times must not tell."""

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        point, residual, along, square = carry
        ahead = matrix(along)
        length = _ratio(square, jnp.vdot(along, ahead))
        residual = residual - length * ahead
        new = jnp.vdot(residual, residual)
        return (point + length * along, residual, residual + _ratio(new, square) * along, new), None

    start = (jnp.zeros_like(right), right, right, jnp.vdot(right, right))
    return jax.lax.scan(step, start, None, length=_CONJUGATE)[0][0]


def _ratio(above: jax.Array, below: jax.Array) -> jax.Array:
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)


def start_steps(point: jax.Array) -> State:
    """Before the first step; ``point`` is where gradients are asked."""
    zero = jnp.zeros((), point.dtype)
    numbers = dict.fromkeys(("run", "passes", "square", "signal", "error"), zero)
    return {"point": point, "main": point, "mean": jnp.zeros_like(point)} | numbers


def step(
    state: State,
    gradient: jax.Array,
    variance: jax.Array,
    curvatures: State,
    by: Preconditioner,
    moving: Any,
    project: Callable[[jax.Array], jax.Array] = lambda point: point,
) -> State:
    """One step along a released gradient whose noise has the given variance, all coordinates together."""
    along, of_steps = along_difference(curvatures)
    passes = state["passes"] + 1
    mean = _LONG * state["mean"] + (1 - _LONG) * gradient
    square = _SHORT * state["square"] + (1 - _SHORT) * jnp.sum(gradient**2)
    signal = jnp.maximum(
        _beyond(square / (1 - _SHORT**passes), variance, gradient.shape[0] * (1 + _SHORT) / (1 - _SHORT)),
        _beyond(
            jnp.sum(mean**2) / (1 - _LONG**passes) ** 2,
            variance * (1 - _LONG) / (1 + _LONG) * (1 + _LONG**passes) / (1 - _LONG**passes),
            gradient.shape[0],
        ),
    )
    trust = signal / jnp.maximum(signal + variance, _TINY)
    main = project(state["point"] - trust * by.apply(gradient))
    change = main - state["main"]
    turned = jnp.vdot(gradient, change) > 0
    momentum = jnp.where(turned, 0.0, trust * state["run"] / (state["run"] + 3))
    new = {
        "point": project(main + momentum * change),
        "main": main,
        "mean": mean,
        "run": jnp.where(turned, 0.0, state["run"] + 1),
        "passes": passes,
        "square": square,
        "signal": signal,
        "error": (1 - trust * along / of_steps) ** 2 * state["error"] + trust**2 * by.square * variance,
    }
    return {name: jnp.where(moving, value, state[name]).astype(state[name].dtype) for name, value in new.items()}


def most_of_noise(freedom: float) -> float:
    """How large the mean square of noise is at most, against its expectation: two standard deviations more."""
    return 1 + _DOUBT * math.sqrt(2 / freedom)


def _beyond(square: jax.Array, noise: jax.Array, freedom: float) -> jax.Array:
    """What of a square noise of a given expectation does not explain."""
    return jnp.maximum(0.0, square - most_of_noise(freedom) * noise)


def evidence(state: State, travelled: jax.Array) -> jax.Array:
    """How much of a distance is not noise, in any one direction, between 0 and 1 (James and Stein's factor)."""
    one_direction = state["error"] / state["point"].size
    return jnp.maximum(0.0, 1 - one_direction / jnp.maximum(travelled**2, _TINY))


def unsettled(state: State, curvatures: State, travelled: jax.Array) -> jax.Array:
    """How far it still is to the solution, against the distance travelled: what gradients beyond noise ask for."""
    return jnp.sqrt(state["signal"]) / jnp.maximum(along_difference(curvatures)[0] * travelled, _TINY)
