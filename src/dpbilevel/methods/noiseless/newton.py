"""The lower level without noise: its minimiser by Newton's method, and the adjoint by implicit differentiation.

Newton directions come from conjugate gradients on Hessian-vector products. They need neither a Hessian nor a step size,
and poor conditioning costs iterations instead of accuracy. Penalties that differ by orders of magnitude are the usual
reason for poor conditioning. Their Hessian is diagonal and reads no record, so that it preconditions for free.

On a constrained set, spectral projected gradients find the minimiser. It satisfies y = P(y - eta grad g(y)) for every
eta > 0, and differentiating this equation gives the adjoint for any projection P. Without constraints P is the
identity, and u solves (grad^2 g) u = grad f.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import bicgstab

from dpbilevel.constraints import Domain, Unconstrained, project
from dpbilevel.methods.noiseless import conjugate_gradients, spectral

Tree = Any
Function = Callable[[Tree], jax.Array]

_NEWTON_STEPS = 30
_LENGTHS = 30  # largest number of step lengths in a line search
_INEXACT = 1e-2  # relative residual of a Newton direction; the next step corrects the rest
_PRECISE = 1e-5  # relative step length at convergence, and relative residual of the adjoint
_PRODUCTS = 500  # largest number of Hessian-vector products in one solve
_PROJECTED_STEPS = 2000
_DIAGONAL = 1e-3  # relative difference of two estimates of a diagonal that rounding explains


def inverse_scales(loss: Function, term: Function, y: Tree) -> jax.Array:
    """The preconditioner of conjugate gradients, one number for each coordinate: the inverse of D/m + 1.

    D is the Hessian of the data-free part of the loss, ``term``, and m the mean curvature of the rest. For a diagonal D
    and signs s, s * (D s) is its diagonal, whatever the signs are. Two choices of signs that disagree show that D is
    not diagonal; all numbers are one then, as they are where D is zero. They affect speed, not results.
    """
    flat, unravel = ravel_pytree(y)
    along, of_term = _products(lambda at: loss(unravel(at)), flat), _products(lambda at: term(unravel(at)), flat)
    signs = [jnp.where(jnp.arange(flat.size) % (2 * period) < period, 1, -1).astype(flat.dtype) for period in (1, 3)]
    diagonal, again = (jnp.maximum(one * of_term(one), 0) for one in signs)
    is_diagonal = jnp.linalg.norm(diagonal - again) <= _DIAGONAL * jnp.linalg.norm(diagonal)
    rest = jnp.vdot(signs[0], along(signs[0])) / flat.size - jnp.mean(diagonal)
    usable = is_diagonal & (rest > 0) & jnp.all(jnp.isfinite(diagonal))
    return jnp.where(usable, 1 / (jnp.where(usable, diagonal, 0) / jnp.where(usable, rest, 1) + 1), 1)


def minimiser(loss: Function, domain: Domain, y: Tree, scales: jax.Array) -> Tree:
    """The minimiser of a smooth, strongly convex loss on a domain, from a start; `inverse_scales` gives ``scales``."""
    if domain == Unconstrained():
        flat, unravel = ravel_pytree(y)
        return unravel(_newton(lambda point: loss(unravel(point)), flat, scales))

    def evaluate(point: Tree, memory: Tree) -> tuple[jax.Array, Tree, Tree]:
        return *jax.value_and_grad(loss)(point), memory

    return spectral.minimise(evaluate, domain, y, (), _PROJECTED_STEPS).best[0]


def adjoint(loss: Function, domain: Domain, y: Tree, pull: Tree, start: Tree, scales: jax.Array) -> Tree:
    """u such that -(cross derivative of the loss) u is the gradient in x of <pull, y*(x)>, for the minimiser y*."""
    flat, unravel = ravel_pytree(y)
    along = _products(lambda point: loss(unravel(point)), flat)
    right, guess = ravel_pytree(pull)[0], ravel_pytree(start)[0]
    limit = min(10 * flat.size, _PRODUCTS)
    if domain == Unconstrained():
        return unravel(conjugate_gradients.solve(along, right, scales, _PRECISE, limit, guess))
    # y = P(v), v = y - eta grad g(y). With J the derivative of P, which is symmetric: w = pull + (1 - eta H) J w, and
    # u = eta J w.
    steepness = jnp.vdot(right, along(right)) / jnp.maximum(jnp.vdot(right, right), jnp.finfo(right.dtype).tiny)
    eta = 1 / jnp.where(steepness > 0, steepness, 1)
    gradient = ravel_pytree(jax.grad(loss)(y))[0]

    def projected(point: jax.Array) -> jax.Array:
        return ravel_pytree(project(domain, unravel(point)))[0]

    _, back = jax.vjp(projected, flat - eta * gradient)

    def operator(w: jax.Array) -> jax.Array:
        tangent = back(w)[0]
        return w - tangent + eta * along(tangent)

    w = bicgstab(operator, right, tol=_PRECISE, maxiter=limit)[0]
    return unravel(eta * back(w)[0])


def _products(loss: Function, y: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """v -> (grad^2 loss) v, by reverse mode only: losses with a custom VJP have no forward mode.

    The Hessian is symmetric. What does not depend on v, such as the scores of records, is computed once for all v.
    """
    _, back = jax.vjp(jax.grad(loss), y)
    return lambda v: back(v)[0]


def _newton(loss: Function, start: jax.Array, scales: jax.Array) -> jax.Array:
    """Newton's method, with directions as precise as its convergence makes use of.

    Where the gradient shrank by a factor r in the last step, it would shrink by r^2 in the next one with an exact
    direction (Eisenstat and Walker 1996). It is not made smaller than convergence needs: the distance to the minimiser
    that is left after a step is estimated by its length times r. Only a short direction ends the search, not this
    estimate.
    """
    value_and_gradient = jax.value_and_grad(loss)
    limit = min(10 * start.size, _PRODUCTS)

    def length(gradient: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.vdot(gradient, scales * gradient))

    def unfinished(carry: Any) -> jax.Array:
        *_, taken, converged = carry
        return ~converged & (taken < _NEWTON_STEPS)

    def step(carry: Any) -> Any:
        y, value, gradient, tolerance, taken, _ = carry
        direction = conjugate_gradients.solve(_products(loss, y), -gradient, scales, tolerance, limit)
        downhill = (jnp.vdot(direction, gradient) < 0) & jnp.all(jnp.isfinite(direction))
        direction = jnp.where(downhill, direction, -gradient)
        near = y + direction
        size = jnp.maximum(jnp.linalg.norm(near), jnp.linalg.norm(near - start))
        small = downhill & (jnp.linalg.norm(direction) <= _PRECISE * size)

        def search() -> Any:
            return _line_search(value_and_gradient, y, value, gradient, direction)

        # A step that is small ends the search: nobody needs the value and the gradient after it.
        new, new_value, new_gradient = jax.lax.cond(small, lambda: (near, value, gradient), search)
        shrunk = length(new_gradient) / length(gradient)
        better = (shrunk < 0.5) | (new_value < value)
        converged = small | ~better  # at the limit of floating-point precision, neither improves
        keep = small | (jnp.isfinite(new_value) & better)
        left = jnp.linalg.norm(new - y) * shrunk
        useful = jnp.clip(shrunk**2, 0.1 * _PRECISE * size / left, _INEXACT)
        y, value, gradient = (
            jnp.where(keep, a, b) for a, b in zip((new, new_value, new_gradient), (y, value, gradient), strict=True)
        )
        return y, value, gradient, useful, taken + 1, converged

    value, gradient = value_and_gradient(start)
    begin = (start, value, gradient, jnp.asarray(_INEXACT, value.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    return jax.lax.while_loop(unfinished, step, begin)[0]


def _line_search(
    value_and_gradient: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    y: jax.Array,
    value: jax.Array,
    gradient: jax.Array,
    direction: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A step length that satisfies the (weak) Wolfe conditions, by bisection."""
    steep = jnp.abs(jnp.vdot(gradient, direction))
    slack = 2 * jnp.finfo(value.dtype).eps * jnp.abs(value)

    def is_rejected(carry: Any) -> jax.Array:
        length, _, _, (_, new_value, new_gradient), tries = carry
        flat = jnp.vdot(new_gradient, direction) >= -0.9 * steep
        return (tries == 0) | (~(fell(new_value, length) & flat) & (tries < _LENGTHS))

    def bisect(carry: Any) -> Any:
        length, low, high, (_, new_value, _), tries = carry
        lower = fell(new_value, length)
        nearer, further = jnp.where(lower, length, low), jnp.where(lower, high, length)
        between = jnp.where(jnp.isinf(further), 2 * length, (nearer + further) / 2)
        length, low, high = (
            jnp.where(tries == 0, a, b) for a, b in zip((length, low, high), (between, nearer, further), strict=True)
        )
        point = y + length * direction
        return length, low, high, (point, *value_and_gradient(point)), tries + 1

    def fell(new_value: jax.Array, length: jax.Array) -> jax.Array:
        return new_value <= value - 1e-4 * length * steep + slack

    one = jnp.ones_like(value)
    start = (one, jnp.zeros_like(value), jnp.full_like(value, jnp.inf), (y, value, gradient), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(is_rejected, bisect, start)[3]
