"""Sums over records with the clip, its norm or the division broken: mutations of `clipped_sum` and of what it calls."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpbilevel.privacy import memory, products
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.metric import Metric


def unclipped_sum(vector, records, present, clip):
    return clipped_sum(vector, records, present, float("inf"))


def leafwise_clipped_sum(vector, records, present, clip):
    """Every leaf clipped on its own: with k leaves a record moves the sum by sqrt(k) clips."""
    shapes = jax.eval_shape(vector, jax.tree.map(lambda leaf: leaf[0], records))
    number = len(jax.tree.leaves(shapes))
    parts = [
        clipped_sum(lambda record, i=i: jax.tree.leaves(vector(record))[i], records, present, clip)
        for i in range(number)
    ]
    return jnp.concatenate(parts)


def non_finite_sum(vector, records, present, clip):
    """Non-finite entries pass through: one such record spoils the whole sum."""
    vectors = jax.vmap(lambda record: ravel_pytree(vector(record))[0])(records)
    norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return jnp.sum(jnp.where(present[:, None], vectors * jnp.minimum(1, clip / norms), 0).astype(jnp.float64), axis=0)


def realised_batch_sum(vector, records, present, clip):
    """Divided by the size of the batch that was drawn, instead of the public rate * n."""
    return clipped_sum(vector, records, present, clip) * (0.5 * len(present)) / jnp.maximum(jnp.sum(present), 1)


# ---- outer products: what takes the place of a function of `products`


def rows_without_norms(monkeypatch):
    """Coefficients are clipped as if every row had norm one."""

    def ones(rows, out=None):
        with jax.enable_x64(True):
            return jnp.ones(rows.shape[0], jnp.float64)

    for module in (memory, products):
        monkeypatch.setattr(module, "row_norms", ones)


def rows_not_in_metric(monkeypatch):
    """Rows are measured in a metric in which they are shorter, and summed as they are."""
    monkeypatch.setattr(Metric, "times", lambda self, columns: columns)


def rows_not_zeroed(monkeypatch):
    """Rows that are not summed keep their values, and zero times NaN is NaN."""
    monkeypatch.setattr(products, "_zeroed", lambda rows, finite: rows)


def not_finite_coefficients(monkeypatch):
    """Coefficients that are not finite are summed."""
    true = products._clipped_numbers

    def broken(block, usable, clip):
        return jnp.where(jnp.isfinite(block.numbers), true(block, usable, clip), block.numbers)

    monkeypatch.setattr(products, "_clipped_numbers", broken)


def other_numbers_not_measured(monkeypatch):
    """The norm is that of the outer products alone."""
    true = products._clipped_numbers

    def broken(block, usable, clip):
        count = block.layout.coefficients
        measured = block._replace(numbers=block.numbers.at[count:].set(0))
        scales = true(measured, usable, clip)[:1] / jnp.where(block.numbers[:1] == 0, 1, block.numbers[:1])
        return jnp.where(usable, block.numbers * scales, 0)

    monkeypatch.setattr(products, "_clipped_numbers", broken)
