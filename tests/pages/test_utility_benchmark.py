"""The utility benchmark: its arithmetic, its rule against overrides, and a run at toy size (no data files needed)."""

import functools
import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.constraints import contains
from dpbilevel.privacy.accounting import Charge

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _benchmarks_import_each_other():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def _module(name):
    return pytest.fixture(lambda: importlib.import_module(name))


utility, methods, results = map(_module, ("utility", "utility_methods", "utility_results"))
tasks, data, problems, oracles = map(_module, ("tasks", "task_data", "task_problems", "task_oracles"))


@pytest.fixture
def toy(tasks, data, monkeypatch):
    """Four sources, two of them with wrong labels, in three dimensions."""
    draws = np.random.default_rng(0)
    columns = draws.normal(size=(1200, 2))
    rows = data.unit_rows([columns])
    labels = (columns[:, 0] > 0).astype(np.int32)
    parts = rows[:1000], labels[:1000], rows[1000:], labels[1000:]
    build = functools.partial(tasks._sources, data=parts, classes=2, sources=4, bad=2, flipped=0.7, validation=300)
    monkeypatch.setitem(tasks._TASKS, "toy", lambda name, directory, seed: build(name, seed))
    return build("toy", 0)


# ------------------------------------------------------------------------------------------------- no overrides


def broken_argument(problem, records, budget, start, seed, task):
    return dpb.solve(problem, records, budget, method=dpb.Tracking(), start=start, seed=seed)


def broken_by_size(problem, records, budget, start, seed):
    steps = 100 * (1 + records.sizes.count("upper") // 2000)
    return dpb.solve(problem, records, budget, method=dpb.Tracking(steps=steps), start=start, seed=seed)


def broken_by_choice(problem, records, budget, start, seed):
    method = dpb.Tracking(steps=400) if isinstance(problem.domain, dpb.Simplex) else dpb.Tracking()
    return dpb.solve(problem, records, budget, method=method, start=start, seed=seed)


def broken_by_budget(problem, records, budget, start, seed):
    method = dpb.Refit(steps=int(200 * budget.epsilon))
    return dpb.solve(problem, records, budget, method=method, start=start, seed=seed)


def test_no_method_knows_its_task(methods):
    assert {methods.UNTUNED, methods.OURS, "double loop"} <= set(methods.METHODS)
    assert methods.ORACLE not in methods.METHODS  # a ceiling, no method
    complaints = [c for name, method in methods.METHODS.items() for c in methods.override_complaints(name, method)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("broken", [broken_argument, broken_by_size, broken_by_choice, broken_by_budget])
def test_overrides_are_found(methods, broken):
    assert methods.override_complaints("broken", broken)


# ---------------------------------------------------------------------------------------------------- arithmetic


def test_gap_closed_is_a_ratio_of_means_with_the_worst_pair(results):
    gap = results.gap_closed([0.6, 0.8], [0.35, 0.45], [0.3, 0.4])
    assert gap.mean == pytest.approx((0.25 + 0.35) / (0.3 + 0.4))
    assert gap.worst == pytest.approx(0.25 / 0.3)
    assert results.gap_closed([0.6], [0.3], [0.3]).mean == pytest.approx(1.0)
    assert math.isnan(results.gap_closed([0.6], [0.3], [0.3]).half_width)


def test_the_interval_of_the_gap_covers(results):
    draws, hits, repetitions = np.random.default_rng(0), 0, 400
    for _ in range(repetitions):
        split = draws.normal(0, 0.02, 10)  # moves all losses of a repetition together
        untuned, method, oracle = (m + split + draws.normal(0, 0.01, 10) for m in (0.6, 0.35, 0.3))
        gap = results.gap_closed(untuned, method, oracle)
        hits += abs(gap.mean - 0.25 / 0.3) <= gap.half_width
    assert 0.91 <= hits / repetitions <= 0.98


def test_small_gaps_are_not_counted(results):
    assert results.is_counted([0.5], [0.48])
    assert not results.is_counted([0.5], [0.495])
    assert not results.is_counted([0.5], [0.6])


def outcome(task, method, epsilon, seed, loss, **more):
    return {
        "task": task,
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "test_loss": loss,
        "accuracy": 0.8,
        "passes": 200.0,
        "wall_seconds": 1.0,
        "x": [0.25] * 4,
        "device": "cpu",
        "commit": "abc",
        "note": {},
        **more,
    }


def results_of(results, losses, task="adult-sources", epsilon=1.0):
    made = [outcome(task, method, epsilon, seed, loss) for method, each in losses.items() for seed, loss in each]
    return {results.key_of(o["task"], o["method"], o["epsilon"], o["seed"]): o for o in made}


def test_the_table_compares_the_same_repetitions_only(results):
    losses = {"untuned": [(0, 0.6), (1, 0.7)], "tracking": [(0, 0.33), (5, 9.0)], "oracle": [(0, 0.3), (1, 0.3)]}
    table = results.Table(results_of(results, losses))
    assert table.gap("adult-sources", "tracking", 1.0).mean == pytest.approx(0.9)
    assert table.gap("adult-sources", "tracking", 3.0) is None


def test_gaps_from_a_bad_start_are_those_from_it_and_gains_are_over_untuned(results):
    losses = {
        "untuned": [(0, 0.4)],
        "bad start": [(0, 0.6)],
        "tracking": [(0, 0.39)],
        "oracle": [(0, 0.3)],
    }
    table = results.Table(results_of(results, losses))
    assert table.before("adult-sources", 1.0) == "bad start"
    assert table.gap("adult-sources", "tracking", 1.0).mean == pytest.approx(0.7)
    assert table.gain("adult-sources", "tracking", 1.0).mean == pytest.approx(0.025)


@pytest.mark.parametrize(("loss", "verdict"), [(0.31, "met"), (0.4, "**missed**")])
def test_targets_are_judged_as_measured(results, loss, verdict):
    losses = {"untuned": [(0, 0.6)], "tracking": [(0, loss)], "oracle": [(0, 0.3)]}
    rows = results.verdicts(results.Table(results_of(results, losses)))
    assert [row[2] for row in rows if row[0].startswith("adult-sources, ε = 1: gap")] == [verdict]


def test_the_shuffled_control_is_judged(results):
    losses = {"untuned": [(0, 0.6)], "tracking": [(0, 0.63)]}
    measured = results_of(results, losses, task=results.SHUFFLED)
    measured[results.key_of(results.SHUFFLED, "tracking", 1.0, 0)]["x"] = [0.5, 0.2, 0.2, 0.1]
    assert [row[2] for row in results.verdicts(results.Table(measured))] == ["**missed**", "**missed**"]


# --------------------------------------------------------------------------------------------------------- files


def test_results_merge_by_key(utility, results, tmp_path):
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    results.write_results(first, results_of(results, {"untuned": [(0, 0.6), (1, 0.7)]}))
    results.write_results(second, results_of(results, {"untuned": [(1, 0.5)], "oracle": [(0, 0.3)]}))
    utility.main(["--merge", str(second), "--out", str(first)])
    found = results.read_results(first)
    assert {key: o["test_loss"] for key, o in found.items()} == {
        "adult-sources|untuned|1|0": 0.6,
        "adult-sources|untuned|1|1": 0.5,
        "adult-sources|oracle|1|0": 0.3,
    }
    second.write_text(json.dumps({"format": "another"}))
    with pytest.raises(ValueError, match=r"two\.json"):
        results.read_results(second)


# --------------------------------------------------------------------------------------------------------- tasks


def test_splits_depend_on_the_repetition_alone(toy, tasks):
    same, other = tasks.load("toy", "", 0), tasks.load("toy", "", 1)
    for level in ("upper", "lower"):
        for mine, again in zip(getattr(toy, level), getattr(same, level), strict=True):
            np.testing.assert_array_equal(mine, again)
    assert not np.array_equal(toy.lower[1], other.lower[1])
    assert toy.problem is other.problem  # repetitions share what is compiled
    assert not toy.starts_badly
    np.testing.assert_allclose(toy.oracle_x, [0, 0, 0.5, 0.5])


def test_names_say_what_there_is(tasks):
    assert {"adult-groups-5", "adult-groups-3", "adult-groups-0", "mnist-imbalance"} <= set(tasks.NAMES)
    with pytest.raises(ValueError, match="must be one of"):
        tasks.load("nonsense", "", 0)


def test_tuning_without_privacy_finds_a_stationary_point(oracles, problems):
    """The hypergradient of the exact solver against differences of its own validation loss."""
    draws = np.random.default_rng(1)
    rows = draws.normal(size=(300, 4))
    labels = (rows[:, 0] + draws.normal(size=300) > 0).astype(float)
    groups = np.array([0, 0, 1, 1])
    model = oracles._Exact(problems.logistic, (rows[:200], labels[:200]), (rows[200:], labels[200:]))

    def value(x):
        _, hessian = model.solve(np.ones(200), np.exp(x[groups]))
        return model.validation(hessian)

    x = np.array([-2.0, -3.0])
    adjoint = value(x)[1]
    slope = -np.bincount(groups, np.exp(x[groups]) * model.y * adjoint, 2)
    steps = 1e-4 * np.eye(2)
    np.testing.assert_allclose(slope, [(value(x + s)[0] - value(x - s)[0]) / 2e-4 for s in steps], atol=1e-6)
    found = oracles.tuned_penalties(problems.logistic, (rows[:200], labels[:200]), (rows[200:], labels[200:]), groups)
    assert value(found)[0] <= value(x)[0]


def test_losses_of_problems_are_those_that_are_reported(problems):
    draws = np.random.default_rng(2)
    row, y = draws.normal(size=4).astype(np.float32) / 3, draws.normal(size=4).astype(np.float32)
    for loss, target in ((problems.logistic, 1), (problems.pseudo_huber, 0.7)):
        posed = problems.penalties_problem(loss, (0, 0, 1, 1))
        assert float(posed.lower_loss(np.zeros(2), y, (row, target))) == pytest.approx(float(loss(y, row, target)))
        assert posed.lower_loss.bounds.row_norm == 1.0
    weights, matrix = problems.weights_problem(problems.softmax, 2, 3), draws.normal(size=(4, 3)).astype(np.float32)
    value = float(weights.lower_loss(np.array([0.25, 0.75]), matrix, (row, np.array(2), np.array(1))))
    assert value == pytest.approx(1.5 * float(problems.softmax(matrix, row, 2)))


def test_penalties_start_badly_and_people_would_use_one_on_the_sum(tasks, problems):
    rows, labels = np.eye(4, dtype=np.float32)[np.arange(40) % 4], (np.arange(40) % 2).astype(np.int32)
    parts = (rows[:10], labels[:10]), (rows[10:30], labels[10:30]), (rows[30:], labels[30:])
    task = tasks._penalties("toy", problems.logistic, problems.right_class, np.zeros(4, int), -3.0, *parts)
    assert task.starts_badly
    np.testing.assert_allclose(np.exp(task.usual), 1 / 30, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------ toy run


def test_a_run_from_start_to_report(utility, methods, results, toy, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    short = {
        "untuned": lambda problem, records, budget, start, seed: dpb.solve(
            problem, records, budget, method=dpb.Refit(steps=5), start=start, refit=None, seed=seed
        ),
        "tracking": lambda problem, records, budget, start, seed: dpb.solve(
            problem, records, budget, method=dpb.Tracking(steps=4), start=start, refit=dpb.Refit(steps=6), seed=seed
        ),
    }
    monkeypatch.setattr(utility, "METHODS", short)
    trainings = {"default": lambda: dpb.Refit(steps=5), "not for this": lambda: dpb.baselines.AdaSSP()}
    monkeypatch.setattr(methods, "TRAININGS", trainings)
    target = tmp_path / "utility.json"
    call = ["--tasks", "toy", "--epsilons", "1", "--seeds", "2", "--out", str(target)]
    utility.main(call)
    measured = results.read_results(target)
    assert set(measured) == {
        f"toy|{method}|1|{seed}" for method in ("untuned", "tracking", "oracle") for seed in (0, 1)
    }
    assert measured["toy|untuned|1|0"]["passes"] == pytest.approx(6)  # five steps, and second moments
    assert measured["toy|oracle|1|0"]["note"] == {"x": "good sources", "training": "default"}
    assert all(np.isfinite(o["test_loss"]) and len(o["x"]) == 4 for o in measured.values())

    changed = {key: o | {"test_loss": 1.0} for key, o in measured.items()}
    results.write_results(target, changed)
    utility.main(call)  # all there: nothing is run again
    assert results.read_results(target) == changed

    results.write_results(target, measured)
    utility.main(["--report", "--out", str(target)])
    page = (tmp_path / "utility.md").read_text("utf-8")
    assert "toy" in page
    assert "Gap closed at ε = 1" in page
    assert "Gain over untuned at ε = 1" in page
    assert "<svg" in (tmp_path / "utility.svg").read_text("utf-8")


def test_passes_count_batches_by_their_part(utility):
    charges = {
        "lower": (
            Charge("model", "lower", 0.1, 10, dpb.FullBatch(), 900),
            Charge("difference", "lower", 0.1, 10, dpb.Poisson(0.5), 900),
        ),
        "upper": (Charge("validation", "upper", 0.1, 10, dpb.FullBatch(), 100),),
    }
    privacy, sizes = SimpleNamespace(charges=charges), {"lower": 900, "upper": 100}
    solution = SimpleNamespace(privacy=privacy, sizes=sizes, parameters={})
    assert utility.passes_of(solution) == pytest.approx(10 * (0.9 + 0.45 + 0.1))
    solution.parameters = {"runs": (30, "expected"), "training: steps": (200, "each")}
    assert utility.passes_of(solution) == pytest.approx(30 * 200.1)


def test_candidates_of_searches_lie_in_the_domain(methods, toy):
    penalties = dpb.BilevelProblem(lower_loss=lambda x, y, r: y, upper_term=lambda x, y: y, domain=dpb.Box(-12.0, 2.0))
    for problem, start in ((toy.problem, toy.start), (penalties, (np.zeros(3), 0.0))):
        drawn = [methods.prior_of(problem, start)(jax.random.key(seed)) for seed in range(20)]
        for x in [*drawn, *methods.grid_of(problem, start)]:
            assert np.shape(x) == np.shape(start[0])
            assert contains(problem.domain, x)
