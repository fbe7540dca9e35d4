"""Metrics as released second moments may give them."""

import jax.numpy as jnp
import numpy as np

from dpbilevel.privacy.metric import Metric


def random_metric(rng, columns):
    """Orthonormal directions, which count for anything from nothing to all of their length."""
    number = min(columns, 3)
    directions = np.linalg.qr(rng.normal(size=(columns, number)))[0]
    return Metric(jnp.asarray(directions, jnp.float32), jnp.asarray(10 ** rng.uniform(-4, 0, number), jnp.float32))
