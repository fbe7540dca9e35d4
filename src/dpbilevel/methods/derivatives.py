"""Derivatives of one record's loss that methods sum over records.

Those in y of a `LinearLoss` are outer products, which releases sum by matrix products; those of any other loss are
arrays. Derivatives in x are arrays in both cases.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from dpbilevel.linear_loss import LinearLoss
from dpbilevel.privacy.outer import Outer
from dpbilevel.problem import Loss

Tree = Any


def gradient_in_y(loss: Loss) -> Callable[..., Tree]:
    """(x, y, record) -> the gradient of the loss in y."""
    if not isinstance(loss, LinearLoss):
        return jax.grad(loss, 1)

    def gradient(x: Tree, y: jax.Array, record: Tree) -> Outer:
        row, (score,) = loss.scores(record, y)
        return Outer(row, jax.grad(loss.loss, 1)(x, score, record))

    return gradient


def derivatives_along(loss: Loss) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """(x, y, u, record) -> gradient in y, H u and B u, each as one vector, for a direction u like y.

    H is the second derivative in y, and B the derivative in y of the gradient in x.
    """
    linear = loss if isinstance(loss, LinearLoss) else None
    gradients = jax.grad(loss if linear is None else linear.loss, (0, 1))

    def derivatives(x: Tree, y: Tree, u: Tree, record: Tree) -> tuple[Any, Any, jax.Array]:
        if linear is None:
            (_, gradient), (cross, curved) = jax.jvp(lambda y: gradients(x, y, record), (y,), (u,))
            return flat(gradient), flat(curved), flat(cross)
        row, (score, change) = linear.scores(record, y, u)
        (_, gradient), (cross, curved) = jax.jvp(lambda score: gradients(x, score, record), (score,), (change,))
        return Outer(row, gradient).flat(), Outer(row, curved).flat(), flat(cross)

    return derivatives


def gradients_and_change(loss: Loss) -> Callable[..., tuple[Any, jax.Array, jax.Array]]:
    """(x, y, first_x, first_y, record) -> gradients in y and in x, each as one vector, and the change of the loss."""
    linear = loss if isinstance(loss, LinearLoss) else None
    gradients = jax.grad(loss if linear is None else linear.loss, (0, 1))

    def derivatives(x: Tree, y: Tree, first_x: Tree, first_y: Tree, record: Tree) -> tuple[Any, jax.Array, jax.Array]:
        if linear is None:
            in_x, in_y = gradients(x, y, record)
            return flat(in_y), flat(in_x), loss(x, y, record) - loss(first_x, first_y, record)
        row, (score, first) = linear.scores(record, y, first_y)
        in_x, coefficient = gradients(x, score, record)
        change = linear.loss(x, score, record) - linear.loss(first_x, first, record)
        return Outer(row, coefficient).flat(), flat(in_x), change

    return derivatives


def flat(tree: Tree) -> jax.Array:
    """A pytree as one flat vector."""
    return ravel_pytree(tree)[0]
