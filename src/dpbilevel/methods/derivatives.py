"""Derivatives of one record's loss that methods sum over records.

Those in y of a `LinearLoss` are outer products, which releases sum by matrix products. So are those in the matrices of
a network's first layer (`layers`). All others are arrays, and derivatives in x are arrays in any case.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.linear_loss import LinearLoss
from dpbilevel.methods.layers import with_outer_products
from dpbilevel.privacy.outer import Outer, dense
from dpbilevel.problem import Loss

Tree = Any


def gradient_in_y(loss: Loss) -> Callable[..., Tree]:
    """(x, y, record) -> the gradient of the loss in y."""
    if not isinstance(loss, LinearLoss):
        return with_outer_products(jax.grad(loss, 1))

    def gradient(x: Tree, y: jax.Array, record: Tree) -> Outer:
        row, (score,) = loss.scores(record, y)
        return Outer(row, jax.grad(loss.loss, 1)(x, score, record))

    return gradient


def derivatives_along(loss: Loss) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """(x, y, u, record) -> gradient in y, H u and B u, each as one vector or as its parts, for a direction u like y.

    H is the second derivative in y, and B the derivative in y of the gradient in x.
    """
    linear = loss if isinstance(loss, LinearLoss) else None
    gradients = jax.grad(loss if linear is None else linear.loss, (0, 1))

    def along(x: Tree, y: Tree, u: Tree, record: Tree) -> tuple[Tree, Tree, Tree]:
        (_, gradient), (cross, curved) = jax.jvp(lambda y: gradients(x, y, record), (y,), (u,))
        return gradient, curved, cross

    def derivatives(x: Tree, y: Tree, u: Tree, record: Tree) -> tuple[Any, Any, jax.Array]:
        if linear is None:
            gradient, curved, cross = with_outer_products(along)(x, y, u, record)
            return _vector(gradient), _vector(curved), flat(cross)
        row, (score, change) = linear.scores(record, y, u)
        (_, gradient), (cross, curved) = jax.jvp(lambda score: gradients(x, score, record), (score,), (change,))
        return Outer(row, gradient).flat(), Outer(row, curved).flat(), flat(cross)

    return derivatives


def gradients_and_change(loss: Loss) -> Callable[..., tuple[Any, jax.Array, jax.Array]]:
    """(x, y, first_x, first_y, record) -> gradients in y and in x, as in `derivatives_along`, and the loss's change."""
    linear = loss if isinstance(loss, LinearLoss) else None
    gradients = jax.grad(loss if linear is None else linear.loss, (0, 1))

    def derivatives(x: Tree, y: Tree, first_x: Tree, first_y: Tree, record: Tree) -> tuple[Any, jax.Array, jax.Array]:
        if linear is None:
            in_x, in_y = with_outer_products(gradients)(x, y, record)
            return _vector(in_y), flat(in_x), loss(x, y, record) - loss(first_x, first_y, record)
        row, (score, first) = linear.scores(record, y, first_y)
        in_x, coefficient = gradients(x, score, record)
        change = linear.loss(x, score, record) - linear.loss(first_x, first, record)
        return Outer(row, coefficient).flat(), flat(in_x), change

    return derivatives


def flat(tree: Tree) -> jax.Array:
    """A pytree as one flat vector."""
    return ravel_pytree(tree)[0]


def _vector(tree: Tree) -> Any:
    """A pytree as one flat vector; as a tuple of its flat leaves, if some of them are outer products."""
    leaves = jax.tree.leaves(tree)
    if not any(isinstance(leaf, Outer) for leaf in leaves) or len({leaf.dtype for leaf in leaves}) > 1:
        return flat(dense(tree))
    return tuple(leaf.flat() if isinstance(leaf, Outer) else leaf.ravel() for leaf in leaves)


def joined(vector: Any) -> jax.Array:
    """One flat vector, of a released vector that may be a tuple of its parts."""
    return jnp.concatenate(vector) if isinstance(vector, tuple) else vector
