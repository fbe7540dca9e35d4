"""How much of a trained model is noise: steps are linear in their noise near the minimiser, and its size is known.

In an eigenvector of the Hessian with curvature h, steps with rate p, momentum m and noise n_t are

    v <- m v + p (h y + n_t),   y <- y - v,

so that the covariance of y, v and the average of all y, each with the weight of its number, follows from that of the
step before. No formula for it is closed and simple: the covariance is carried from step to step instead. Sampling error
is not part.
"""

from typing import Any

import jax
import jax.numpy as jnp


def averaged_variances(rates: jax.Array, curvatures: jax.Array, noise: Any, steps: Any, momentum: float) -> jax.Array:
    """The variance of the average of all steps, each with the weight of its number, in each eigenvector.

    Args:
        rates: p, by eigenvector.
        curvatures: h, by eigenvector.
        noise: variance of n_t, by eigenvector or the same in all.
        steps: number of steps.
        momentum: m.
    """
    noise = jnp.broadcast_to(noise, rates.shape)[..., None, None]
    zero, one = jnp.zeros_like(rates), jnp.ones_like(rates)

    def step(index: jax.Array, covariance: jax.Array) -> jax.Array:
        weight = 2.0 * (index + 1) / (steps * (steps + 1.0))
        velocity = jnp.stack([rates * curvatures, momentum * one, zero], axis=-1)
        place = jnp.stack([one, zero, zero], axis=-1) - velocity
        average = jnp.stack([zero, zero, one], axis=-1) + weight * place
        linear = jnp.stack([place, velocity, average], axis=-2)
        response = jnp.stack([-rates, rates, -weight * rates], axis=-1)
        added = response[..., :, None] * response[..., None, :] * noise
        return linear @ covariance @ jnp.swapaxes(linear, -1, -2) + added

    start = jnp.zeros((*rates.shape, 3, 3), rates.dtype)
    return jax.lax.fori_loop(0, steps, step, start)[:, 2, 2]


def without_noise(sizes: jax.Array, noise: Any) -> jax.Array:
    """Eigenvalues of released second moments without the part that noise adds.

    Noise moves an eigenvalue w above the edge e = sqrt(2 d) s of its own spectrum to w = v + e^2/(4 v); v is known from
    w. All others are noise, and share what is left of the trace, which is unbiased.
    """
    edge = noise * jnp.sqrt(2.0 * sizes.shape[0])
    spikes = sizes > edge
    root = jnp.sqrt(jnp.maximum(sizes**2 - edge**2, 0))
    above = jnp.where(spikes, (sizes + root) / 2, 0.0)
    rest = jnp.maximum(jnp.sum(sizes) - jnp.sum(above), 0.0) / jnp.maximum(jnp.sum(~spikes), 1)
    return jnp.where(spikes, above, rest)
