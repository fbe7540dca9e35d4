"""The benchmark of the penalty: tracking's error is flat in it, the double loop's grows; and what its page claims."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def penalty():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("penalty")
    sys.path.remove(str(ROOT / "benchmarks"))


def test_error_of_the_hypergradient_is_flat_in_the_penalty_while_the_double_loop_multiplies_it(penalty, tmp_path):
    """Two decades of the penalty, the same budget; x is held still, so that all steps estimate one hypergradient."""
    results = penalty.main(tmp_path, penalties=(10.0, 1000.0), seeds=2)
    tracked, double = (results["methods"][method] for method in (penalty.TRACKING, penalty.DOUBLE))
    assert 1 / 1.3 < tracked[penalty.STEP]["growth"] < 1.3
    assert tracked[penalty.MEAN]["growth"] < 1.3
    for measure in (penalty.STEP, penalty.MEAN):
        assert double[measure]["growth"] > 10
    assert double[penalty.STEP]["growth"] > 50
    assert json.loads((tmp_path / "penalty.json").read_text("utf-8"))["penalties"] == [10, 1000]
    assert "| 1000 |" in (tmp_path / "penalty.md").read_text("utf-8")
    assert (tmp_path / "penalty.svg").read_text("utf-8").count("<svg") == 1


@pytest.mark.parametrize("weight", [1.0, 30.0])
def test_bias_is_that_of_the_penalised_problem(penalty, weight):
    """Against finite differences of min_z f(x, z) + lambda (g(x, z) - g(x, y*)), by an independent solver."""
    records = {name: values[:50].astype(np.float64) for name, values in penalty.drawn(penalty.SETTING, 1).items()}
    dimension = len(penalty.START[0])

    def value(x):
        lowest = x + records["b"].mean(axis=0)

        def penalised(z):
            distances = np.sum((x - records["e"]) ** 2 + (z - records["a"]) ** 2, axis=1)
            return np.mean(np.sqrt(1 + distances)) + weight / 2 * np.sum((z - lowest) ** 2)

        return minimize(penalised, lowest, method="BFGS", options={"gtol": 1e-9}).fun

    steps = 1e-3 * np.eye(dimension)
    gradient = [(value(step) - value(-step)) / 2e-3 for step in steps]
    exact = penalty.hyperobjective(np.zeros(dimension), records, True)[1]
    assert penalty.bias(weight, records) == pytest.approx(np.linalg.norm(gradient - exact), rel=1e-3)


def test_intervals_cover_as_often_as_they_say(penalty):
    draws = np.exp(np.random.default_rng(0).normal(size=(2000, 10)))
    ends = [penalty.interval(values)[1:] for values in draws]
    assert np.mean([low <= 1 <= high for low, high in ends]) == pytest.approx(0.95, abs=0.015)


def test_committed_results_claim_what_their_numbers_say(penalty):
    raw = json.loads((RESULTS / "penalty.json").read_text(encoding="utf-8"))
    page = (RESULTS / "penalty.md").read_text(encoding="utf-8")
    assert raw["penalties"] == list(penalty.PENALTIES)
    late = [raw["penalties"].index(value) for value in raw["fitted"]]
    for method in penalty.METHODS:
        for measure in (penalty.STEP, penalty.MEAN):
            found = raw["methods"][method][measure]
            values = np.array(found["values"])
            assert values.shape == (len(raw["penalties"]), raw["seeds"])
            exponent = penalty.fitted(raw["fitted"], values[late])
            assert exponent == pytest.approx(found["exponent"])
            assert str(exponent) in page
    assert raw["fitted"][-1] == 100 * raw["fitted"][0]
    assert raw["methods"][penalty.TRACKING][penalty.STEP]["exponent"][2] < 0.05
    assert raw["methods"][penalty.DOUBLE][penalty.STEP]["exponent"][1] > 0.8
