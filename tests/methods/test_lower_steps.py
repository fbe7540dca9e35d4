"""Steps of y and d: accelerated where nothing is noise, still where everything is, and aware of which is which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.methods.tracking import lower_steps

SPECTRUM = np.geomspace(1.0, 0.01, 6).astype(np.float32)


def descended(noise: float, scale: float = 1.0, steps: int = 150, seed: int = 0):
    """Minimise |y - 1|_H^2/2, times ``scale``, with noise on gradients and curvatures; errors, evidence, curvatures."""
    hessian = scale * jnp.asarray(SPECTRUM)

    def step(carry, inputs):
        index, key = inputs
        y, curvatures = carry
        power = index < 10
        keys = jax.random.split(key)
        along = (y["point"] - 1) / jnp.maximum(jnp.linalg.norm(y["point"] - 1), 1e-30)
        u = jnp.where(power, curvatures["direction"], along)
        curved, slope = (
            part + scale * noise * jax.random.normal(k, (6,))
            for part, k in zip((hessian * u, hessian * (y["point"] - 1)), keys, strict=True)
        )
        deviation = jnp.float32(scale * noise)
        curvatures = lower_steps.curvature(curvatures, power, u, curved, 0 * u, deviation, jnp.float32(scale))
        direction, ones = lower_steps.preconditioned(curvatures, lambda v: 0 * v, jnp.stack([slope, jnp.ones(6)]))
        y = lower_steps.step(y, slope, direction, 6 * deviation**2, curvatures, jnp.mean(ones**2), ~power)
        travelled = jnp.linalg.norm(y["point"])
        return (y, curvatures), (jnp.linalg.norm(y["point"] - 1), lower_steps.evidence(y, travelled))

    start = (lower_steps.start_steps(jnp.zeros(6)), lower_steps.start_curvature(6, jnp.float32))
    inputs = (jnp.arange(steps), jax.random.split(jax.random.key(seed), steps))
    (_, curvatures), (errors, evidence) = jax.lax.scan(step, start, inputs)
    return np.asarray(errors), np.asarray(evidence), curvatures


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_quadratic_of_condition_a_hundred_is_solved_in_any_unit(scale):
    errors, evidence, curvatures = descended(0.0, scale)
    assert errors[-1] < 0.02
    assert evidence[-1] == pytest.approx(1.0)
    assert float(curvatures["largest"]) == pytest.approx(scale, rel=0.05)


def test_steps_end_at_the_noise_floor():
    """Steps with the factor of Wiener are no worse than a hundredth of what plain steps leave in steep directions."""
    errors, _, _ = descended(0.01, seed=1)
    assert errors[-1] < 0.6
    assert np.std(errors[-20:]) < 0.05


def test_noise_alone_has_no_evidence():
    """A gradient that is nothing but noise: the point hardly moves (twenty fixed seeds)."""
    moved = []
    for seed in range(20):
        state = lower_steps.start_steps(jnp.zeros(6))
        curvatures = lower_steps.start_curvature(6, jnp.float32) | {"largest": jnp.float32(1.0)}
        noise = np.random.default_rng(seed).normal(size=(100, 6)).astype(np.float32)
        for one in noise:
            variance, square = jnp.float32(6.0), jnp.ones(())
            state = lower_steps.step(state, one, one, variance, curvatures, square, jnp.asarray(True))
        moved.append(float(jnp.linalg.norm(state["point"])))
    # Steps that trust every gradient would be some ten standard deviations away: sqrt(6 * 100) = 24.
    assert np.median(moved) < 2.5


def test_the_first_direction_is_none_that_a_softmax_is_flat_along():
    """The loss does not change if all classes of a column grow alike: along equal numbers there is no curvature."""
    direction = lower_steps.start_curvature(12, jnp.float32)["direction"].reshape(4, 3)
    assert float(jnp.linalg.norm(direction)) == pytest.approx(1.0)
    assert float(jnp.linalg.norm(direction - direction.mean(axis=1, keepdims=True))) > 0.4


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1e3])
def test_a_known_term_is_divided_by_exactly(penalty):
    """Records with a largest curvature of one, and a term that is curved along one coordinate."""
    term = penalty * jnp.eye(6)[0]
    curvatures = lower_steps.start_curvature(6, jnp.float32) | {"largest": jnp.float32(1.0)}
    gradients = jnp.asarray([[1.0] * 6, [1.0, -1, 1, 1, -1, 1]])
    directions = lower_steps.preconditioned(curvatures, lambda v: term * v, gradients)
    np.testing.assert_allclose(directions, gradients / (1 + term), rtol=1e-3)


@pytest.mark.parametrize("divided", [True, False])
def test_a_term_a_thousand_times_as_steep_as_records_neither_diverges_nor_slows_down(divided):
    """The mutant takes the records' largest curvature for that of the whole."""
    hessian, term = jnp.asarray(SPECTRUM), 1e3 * jnp.eye(6)[0]
    curvatures = lower_steps.start_curvature(6, jnp.float32) | {"largest": jnp.float32(1.0)}
    best = hessian / (hessian + term)
    state = lower_steps.start_steps(jnp.zeros(6))
    for _ in range(100):
        slope = hessian * (state["point"] - 1) + term * state["point"]
        (direction,) = lower_steps.preconditioned(curvatures, lambda v: divided * term * v, slope[None])
        state = lower_steps.step(state, slope, direction, jnp.zeros(()), curvatures, jnp.ones(()), jnp.asarray(True))
    error = float(jnp.linalg.norm(state["main"] - best))
    assert error < 0.1 if divided else not error < 1e3
