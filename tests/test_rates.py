"""The benchmark of rates: its closed forms, its fit, a tiny run of it, and what its committed results claim."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def rates():
    sys.path.append(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("rates", ROOT / "benchmarks" / "rates.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rates"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["rates"]


SHAPES = [(3, 5, True), (5, 3, True), (4, 4, False)]


def is_gradient(value, gradient, x):
    """Whether ``gradient`` agrees with central differences of ``value`` at x."""
    steps = 1e-5 * np.eye(len(x))
    differences = [(value(x + step) - value(x - step)) / 2e-5 for step in steps]
    return np.allclose(gradient, differences, atol=1e-7)


@pytest.mark.parametrize(("d_x", "d_y", "coupled"), SHAPES)
def test_hypergradient_agrees_with_finite_differences(rates, d_x, d_y, coupled):
    records, x = rates.population(d_x, d_y), np.random.default_rng(0).normal(size=d_x)
    gradient = rates.hyperobjective(x, records, coupled)[1]

    def value(point):
        return rates.hyperobjective(point, records, coupled)[0]

    assert is_gradient(value, gradient, x)
    # What the check must reject: a wrong sign, and the upper level's own gradient without the way through y*.
    assert not is_gradient(value, -gradient, x)
    assert is_gradient(value, rates.hyperobjective(x, records, not coupled)[1], x) is False


@pytest.mark.parametrize(("d_x", "d_y", "coupled"), SHAPES)
def test_hyperobjective_is_that_of_the_losses_which_the_library_is_given(rates, d_x, d_y, coupled):
    problem, records = rates.problem(d_x, d_y, coupled), rates.population(d_x, d_y)
    x = jnp.asarray(np.random.default_rng(1).normal(size=d_x), jnp.float32)

    def mean(loss, y):
        return jnp.mean(jax.vmap(lambda record: loss(x, y, record))(records))

    # g is a quadratic with the identity as Hessian: one gradient step from anywhere reaches y*(x).
    y = -jax.grad(lambda y: mean(problem.lower_loss, y))(jnp.zeros(d_y))
    value = rates.hyperobjective(np.asarray(x, np.float64), records, coupled)[0]
    assert float(mean(problem.upper_loss, y)) == pytest.approx(value, rel=1e-5)


def test_gradient_mapping_is_the_gradient_inside_and_its_tangential_part_on_the_sphere(rates):
    assert rates.gradient_mapping(np.zeros(3), np.array([0.3, 0.0, 0.4])) == pytest.approx(0.5)
    edge = np.array([rates.RADIUS, 0.0])
    assert rates.gradient_mapping(edge, np.array([-1.0, 0.0])) == pytest.approx(0.0, abs=1e-12)
    assert rates.gradient_mapping(edge, np.array([-1.0, 0.01])) == pytest.approx(0.01 / (1 + 0.25 / 0.6), rel=1e-3)
    assert rates.gradient_mapping(edge, np.array([1.0, 0.0])) == pytest.approx(1.0)


def test_fit_finds_the_exponent_of_a_power_law(rates):
    grid, random = 1000 * 2.0 ** np.arange(5), np.random.default_rng(2)
    noise = np.exp(0.2 * random.normal(size=(5, 12)))
    exact, noisy = (rates.fitted(grid, 3.0 * grid[:, None] ** (-1 / 3) * n) for n in (np.ones((5, 2)), noise))
    assert exact == pytest.approx((-1 / 3, -1 / 3, -1 / 3))
    assert noisy.low < -1 / 3 < noisy.high
    assert noisy.high - noisy.low < 0.25
    # A floor, which makes a curve flatter, must not pass for the law; nor must another exponent.
    floored = rates.fitted(grid, 3.0 * grid[:, None] ** (-1 / 3) * noise + 1.0)
    assert rates.verdict(floored, "-1/3") == "ABOVE the bound"
    assert rates.verdict(noisy, "-1/3") == "agrees"
    assert rates.verdict(noisy, "-1") == "ABOVE the bound"
    assert rates.verdict(noisy, "1/6") == "below the bound"


def test_intervals_cover_as_often_as_they_say(rates):
    grid, random = 2.0 ** np.arange(4), np.random.default_rng(3)
    fits = [rates.fitted(grid, np.exp(random.normal(size=(4, 6)))) for _ in range(1000)]
    assert np.mean([fit.low <= 0 <= fit.high for fit in fits]) == pytest.approx(0.95, abs=0.025)


def test_numbers_of_a_run_scale_as_the_theorems_say(rates):
    small, large = (rates.Setting(n).method() for n in (8000, 64_000))
    assert large.penalty_weight == pytest.approx(2 * small.penalty_weight)
    assert large.steps == pytest.approx(4 * small.steps, rel=0.02)
    small, large = (rates.Setting(n, coupled=False).method() for n in (2000, 8000))
    assert large.penalty_weight == pytest.approx(2 * small.penalty_weight)
    assert large.steps == pytest.approx(4 * small.steps, rel=0.02)


@pytest.mark.slow
def test_quick_version_runs_and_writes_its_results(rates, tmp_path):
    (tmp_path / "rates.md").write_text(f"before\n\n{rates.MARK}\nold\n{rates.MARK}\n\nafter\n", encoding="utf-8")
    results = rates.main(quick=True, output=tmp_path)
    page = (tmp_path / "rates.md").read_text(encoding="utf-8")
    assert page.startswith("before")
    assert page.endswith("after\n")
    assert "old" not in page
    assert page.count("| n | ERM: x_out |") == 1
    assert (tmp_path / "rates_exponents.svg").read_text(encoding="utf-8").count("<svg") == 1
    raw = json.loads((tmp_path / "rates.json").read_text(encoding="utf-8"))
    assert len(raw["experiments"]) == len(results)
    for experiment in raw["experiments"]:
        values = np.array(experiment["values"])
        assert values.shape == (2, 2)
        assert ((values > 0) & (values < 2)).all()


def test_committed_results_claim_what_their_numbers_say(rates):
    raw = json.loads((RESULTS / "rates.json").read_text(encoding="utf-8"))
    found = {}
    for experiment in raw["experiments"]:
        exponent = rates.fitted(experiment["grid"], np.array(experiment["values"]))
        assert exponent == pytest.approx(experiment["exponent"])
        assert rates.verdict(exponent, experiment["bound"]) == experiment["verdict"]
        assert str(exponent) in (RESULTS / "rates.md").read_text(encoding="utf-8")
        found[experiment["name"], experiment["against"], experiment["metric"]] = exponent
    assert found["ERM", "n", "x_out"].value <= -1 / 3
    for metric in ("x_out", "one batch's error"):
        batch = found["no privacy, replacement", "batch", metric]
        assert -1 < batch.low < -1 / 2 < batch.high < 0
        assert math.isclose(batch.value, -1 / 2, abs_tol=0.1)
