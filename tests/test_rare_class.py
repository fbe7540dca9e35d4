"""One class in twenty-five: as the model learns the others, their gradients vanish, and clips must not follow them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import dpbilevel as dpb
from dpbilevel.methods.tracking import passes
from dpbilevel.planning import _planned


def loss(x, weights, record):
    row, label = record
    score = row @ weights
    return jnp.logaddexp(0.0, score) - label * score


PROBLEM = dpb.BilevelProblem(
    upper_loss=loss,
    lower_loss=loss,
    lower_term=lambda x, weights: jnp.exp(x) / 2 * jnp.sum(weights**2),
    domain=dpb.Box(-9.0, 0.0),
    start=(np.float32(-2.0), np.zeros(4, np.float32)),
)


def draw(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    labels = (draws.random(number) < 0.04).astype(np.float32)
    rows = 0.3 * draws.normal(size=(number, 4))
    rows[:, 0] += 0.5 * labels
    rows[:, 3] = 0.5
    return rows.astype(np.float32), labels


def mean_loss(x, weights, records) -> jax.Array:
    return jnp.mean(jax.vmap(lambda record: loss(x, weights, record))(records))


@pytest.fixture
def losses():
    """The validation loss that tracking's own model ends with, and that of the exact minimiser."""
    upper, lower = draw(3000, seed=5), draw(6000, seed=6)

    def reached() -> tuple[float, float]:
        _planned.cache_clear()  # plans know nothing of a mutant
        records, budget = dpb.Records(upper=upper, lower=lower), dpb.Budget(3.0, 1e-6)
        solution = dpb.solve(PROBLEM, records, budget, refit=None, seed=1, progress=False)

        def objective(weights):
            return mean_loss(solution.x, weights, lower) + PROBLEM.lower_term(solution.x, weights)

        best = minimize(jax.jit(jax.value_and_grad(objective)), np.zeros(4), jac=True).x
        return tuple(float(mean_loss(solution.x, weights, upper)) for weights in (solution.y, best))

    yield reached
    _planned.cache_clear()


def test_a_rare_class_is_learned(losses):
    reached, best = losses()
    assert reached < 1.1 * best


def test_mutant_whose_clip_follows_all_others_unlearns_it(losses, monkeypatch):
    monkeypatch.setattr(passes, "_ENOUGH", 0.0)
    reached, best = losses()
    assert reached > 1.5 * best
