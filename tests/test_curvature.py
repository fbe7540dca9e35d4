"""A regulariser whose weight may reach zero is refused, from declared structure and never from data."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import dpbilevel as dpb

BUDGET = dpb.Budget(1.0, 1e-4)


def linear_model(domain, term=lambda x, y: 0.5 * x * jnp.sum(y**2), loss=None) -> dpb.BilevelProblem:
    def squared(x, y, record):
        return 0.5 * (record[0] @ y - record[1]) ** 2

    return dpb.BilevelProblem(upper_loss=squared, lower_loss=loss or squared, lower_term=term, domain=domain)


def plan(problem, x=1.0):
    sizes = dpb.RecordShapes(upper=(np.zeros((50, 3)), np.zeros(50)), lower=(np.zeros((50, 3)), np.zeros(50)))
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=0.1, steps=2), steps=1, step_size=0.1)
    return dpb.plan(problem, sizes, BUDGET, method=method, start=(x, np.zeros(3)))


@pytest.mark.parametrize("domain", [dpb.NonNegative(), dpb.Box(0.0, 10.0), dpb.Box(-1.0, 10.0)])
def test_a_weight_that_may_reach_zero_is_refused_with_a_remedy(domain):
    with pytest.raises(dpb.InvalidProblem, match=r"not strongly convex in y.*Box\(0.01"):
        plan(linear_model(domain))


def test_a_pytree_of_sets_is_looked_into():
    problem = linear_model({"weight": dpb.NonNegative()}, term=lambda x, y: 0.5 * x["weight"] * jnp.sum(y**2))
    with pytest.raises(dpb.InvalidProblem, match="not strongly convex"):
        plan(problem, x={"weight": 1.0})


@pytest.mark.parametrize(
    ("domain", "term"),
    [
        (dpb.Box(0.01, 10.0), lambda x, y: 0.5 * x * jnp.sum(y**2)),
        (dpb.Box(-4.0, 1.0), lambda x, y: 0.5 * jnp.exp(x) * jnp.sum(y**2)),
        (dpb.NonNegative(), lambda x, y: 0.5 * (x + 0.1) * jnp.sum(y**2)),
        (dpb.NonNegative(), lambda x, y: x * jnp.sum(y)),  # never curved by x: nothing is lost at the edge
        (dpb.Unconstrained(), lambda x, y: 0.5 * x * jnp.sum(y**2)),
    ],
)
def test_what_keeps_its_curvature_is_accepted(domain, term):
    assert plan(linear_model(domain, term)).releases


def test_losses_that_are_curved_by_themselves_are_accepted():
    def distance(x, y, record):
        return 0.5 * jnp.sum((y - record[0]) ** 2) + 0.0 * record[1]

    assert plan(linear_model(dpb.NonNegative(), loss=distance)).releases


def test_the_verdict_does_not_depend_on_data():
    """The same problem is refused whatever the records are: `plan` sees none, and `solve` fails before a charge."""
    problem = linear_model(dpb.NonNegative())
    ledger = dpb.Ledger(BUDGET)
    rows = np.random.default_rng(0).normal(size=(50, 3))
    records = dpb.Records(upper=(rows, rows[:, 0]), lower=(rows, rows[:, 0]))
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=0.1), step_size=0.1)
    with pytest.raises(dpb.InvalidProblem, match="not strongly convex"):
        dpb.solve(problem, records, BUDGET, method=method, start=(1.0, np.zeros(3)), ledger=ledger)
    assert not ledger.entries
    away = dataclasses.replace(problem, domain=dpb.Box(0.1, 10.0))
    assert dpb.plan(away, records.sizes, BUDGET, method=method, start=(1.0, np.zeros(3))).releases
