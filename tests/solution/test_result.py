"""What became of a run: a sentence from released values, and a warning where the result should not be used."""

import json
import types
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from support.report_data import made, review

import dpbilevel as dpb
from dpbilevel import estimators, solving
from dpbilevel.baselines import PrivateRandomSearch
from dpbilevel.cli.wording import for_command_line
from dpbilevel.report.html import html_report
from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.run_file import read_run, write_run
from dpbilevel.solution.outcome import Outcome, outcome

STEPS = 200
START = np.zeros(2, np.float32)
LITTLE = "more records, a larger epsilon or fewer hyperparameters"


def plan(method=None, budget=None, domain=None, rounds=STEPS, **parameters):
    return types.SimpleNamespace(
        method=method or dpb.Tracking(steps=STEPS),
        budget=budget or dpb.Budget(1.0, 1e-6),
        problem=types.SimpleNamespace(domain=domain or dpb.Unconstrained()),
        program=types.SimpleNamespace(rounds=rounds),
        parameters=parameters,
    )


def history(to=1.0, halfway=0.1, change=-0.5, noise=0.01, evidence=0.9, unsettled=0.1, scatter=0.01, steps=STEPS):
    """A run on a quadratic: x goes to (to, to), half of the way in a share of the steps."""
    way = to * (1 - 0.5 ** (np.maximum(0, np.arange(steps) - 3 * (steps // 20)) / (halfway * steps)))
    draws = np.random.default_rng(0).normal(scale=scatter, size=(steps, 2))
    x = np.stack([way, way], axis=1)
    return {
        "x": x.astype(np.float32),
        "hypergradient": (x - to + draws).astype(np.float32),
        "evidence": np.full(steps, evidence, np.float32),
        "unsettled": np.full(steps, unsettled, np.float32),
        "loss change": np.full(steps, change, np.float32),
        "loss change noise": np.full(steps, noise, np.float32),
    }


def reported(seen, planned=None, x=None, start=START):
    return outcome(planned or plan(), start, seen["x"][-1] if x is None else x, seen)


def test_a_run_that_gained_and_came_to_rest():
    found = reported(history())
    assert found.sentence == ("Tuned: the validation loss fell by 0.5 ± 0.01, and x converged to the noise floor.")
    assert found.usable


def test_an_upper_level_without_records_has_no_noise():
    assert reported(history(noise=0.0)).sentence.startswith("Tuned: the upper objective fell by 0.5, and")


def test_a_run_whose_steps_ran_out_names_more():
    found = reported(history(halfway=1.0))
    assert found.sentence == (
        "Tuned in part: the validation loss fell by 0.5 ± 0.01, but x (its hypergradient was 67% of the largest) had "
        "not converged after all steps; try Tracking(steps=400)."
    )
    assert found.usable
    assert for_command_line(found.sentence).endswith("; try Tracking(steps=400), from Python.")  # no option sets steps
    assert "the model had not converged after all steps" in reported(history(unsettled=2.0)).sentence


def test_hypergradients_that_noise_explains_are_no_way_to_go():
    assert reported(history(scatter=10.0)).sentence.startswith("Tuned: ")


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_sentence_has_no_unit(unit):
    for halfway, kind in ((0.1, "Tuned: "), (1.0, "Tuned in part: ")):
        seen = history(halfway=halfway)
        seen |= {"x": unit * seen["x"], "hypergradient": seen["hypergradient"] / unit}
        assert reported(seen).sentence.startswith(kind)


def test_arrays_of_x_have_units_of_their_own():
    done, late = history(), history(halfway=1.0)
    seen = done | {
        "x": {"far": 1e6 * done["x"], "near": late["x"]},
        "hypergradient": {"far": done["hypergradient"], "near": late["hypergradient"]},
    }
    start = {"far": START, "near": START}
    domain = {"far": dpb.Unconstrained(), "near": dpb.Ball(10.0)}
    last = {name: leaf[-1] for name, leaf in seen["x"].items()}
    assert reported(seen, plan(domain=domain), last, start).sentence.startswith("Tuned in part: ")


def test_at_an_edge_what_leads_out_is_no_way_to_go():
    seen = history(to=3.0)
    seen["x"] = np.minimum(seen["x"], 1.0)
    seen["hypergradient"] = seen["x"] - 3.0
    assert reported(seen).sentence.startswith("Tuned in part: ")
    assert reported(seen, plan(domain=dpb.Box(-1.0, 1.0))).sentence == (
        "Tuned: the validation loss fell by 0.5 ± 0.01, and x converged to the noise floor, at an edge of its "
        "domain (see the remarks)."
    )


@pytest.mark.parametrize(
    ("seen", "why", "advice"),
    [
        (history(to=0.0, change=0.1), "noise explains all of its movement", f"{LITTLE}, or another starting point"),
        (history(change=0.2), "the validation loss did not fall (it changed by 0.2 ± 0.01)", LITTLE),
        (history(to=np.nan), "values of the run were not finite", LITTLE),
    ],
)
def test_a_start_that_is_returned_is_said_to_be_one(seen, why, advice):
    found = reported(seen, x=START)
    assert found.sentence == f"Not tuned: the returned x is the starting point, because {why}; try {advice}."
    assert not found.usable


def test_an_average_of_the_start_is_the_start():
    start = np.full(2, 0.7, np.float32)
    assert reported(history(to=0.0), x=start * np.float32(1 + 1e-6), start=start).sentence.startswith("Not tuned: ")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (history(change=-0.015), "x moved, but the validation loss did not fall by more than its noise explains (it"),
        (history(evidence=0.3), "the validation loss fell by 0.5 ± 0.01, but x moved on little evidence (0.3 of 1)"),
    ],
)
def test_what_rests_on_noise_is_not_to_be_relied_on(seen, words):
    found = reported(seen)
    assert found.sentence.startswith(f"Not to be relied on: {words}")
    assert found.sentence.endswith(f"; try {LITTLE}.")
    assert not found.usable


@pytest.mark.parametrize("steps", [1, 2, 19])
def test_short_runs_measure_nothing(steps):
    found = reported(history(steps=steps, halfway=1.0), plan(dpb.Tracking(steps=steps)), x=START + 1)
    assert found.sentence.startswith(f"Moved: a run of {steps} steps does not measure the gain; try 20 or more")
    assert reported(history(steps=20, halfway=0.1), plan(dpb.Tracking(steps=20))).sentence.startswith("Tuned")


@pytest.mark.parametrize(
    ("moving", "words"),
    [
        (0, "Solved without noise: the starting point is stationary."),
        (1, "Solved without noise: x converged after 1 round of at most 300."),
        (23, "Solved without noise: x converged after 23 rounds of at most 300."),
        (300, "Stopped without noise after all 300 rounds: x was still moving; try a new run from the returned x."),
    ],
)
def test_without_noise_rounds_are_counted(moving, words):
    x = np.minimum(np.arange(1, 301), moving)[:, None] * np.ones(2)
    assert reported({"x": x}, plan(budget=dpb.Budget(float("inf")), rounds=300)).sentence == words


def test_methods_that_do_not_measure_say_so_and_no_more():
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=2))
    silent = {"x": history()["x"]}
    unknown = "this method does not measure convergence."
    rule = {"output": ("last", "")}
    assert reported(silent, plan(method, **rule)).sentence == f"Ran all 200 rounds; {unknown}"
    assert reported(silent, plan(method, rounds=1), x=START + 1).sentence == f"Ran its one round; {unknown}"
    unmoved = f"Ran all 200 rounds and returned the starting point (output rule: last); {unknown}"
    assert reported(silent, plan(method, **rule), x=START).sentence == unmoved
    assert reported({}, plan(dpb.Refit()), x=START).sentence == "Trained at the starting point of x; nothing was tuned."
    assert reported(silent, plan(method, **rule), x=START).usable
    assert not reported(silent, plan(method, **rule), x=START + np.nan).usable


def test_numbers_that_are_not_finite_lose_no_result():
    seen = history()
    seen["hypergradient"][150] = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reported(seen).sentence.startswith("Tuned in part: ")


def problem(**more):
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
        lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - x - record) ** 2),
        **more,
    )


def solve(rows, shift, epsilon=3.0, **more):
    """Validation and training records whose means differ by a shift, which is the best x."""
    draws = np.random.default_rng(0)
    upper, lower = (mean + 0.3 * draws.normal(size=(rows, 2)).astype(np.float32) for mean in (1 + shift, 1.0))
    settings = {"start": (START, START), "refit": None, "seed": 0, "progress": False}
    return dpb.solve(problem(), dpb.Records(upper=upper, lower=lower), dpb.Budget(epsilon, 1e-6), **settings | more)


def after_the_run(caught):
    return [one for one in caught if one.category is dpb.UtilityWarning and str(one.message).startswith("Not ")]


@pytest.fixture(scope="module")
def tuned():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = solve(20_000, 2.0)
    assert not after_the_run(caught)
    return solution


@pytest.fixture(scope="module")
def untuned():
    with pytest.warns(dpb.UtilityWarning) as caught:
        solution = solve(60, 0.0, epsilon=1.0)
    (warning,) = after_the_run(caught)
    assert str(warning.message) == solution.result
    assert warning.filename == __file__
    return solution


def test_a_real_run_with_enough_records_is_tuned(tuned):
    assert tuned.result.startswith("Tuned: the validation loss fell by ")
    np.testing.assert_allclose(tuned.x, 2.0, atol=0.1)


def test_a_real_run_on_noise_is_not_and_warns(untuned):
    assert untuned.result.startswith("Not tuned: the returned x is the starting point")
    assert (untuned.x == START).all()


def test_the_warning_is_never_an_error_since_the_result_is_paid_for():
    shown = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Not ", category=dpb.UtilityWarning)
        warnings.filterwarnings("ignore", message="Tuning has", category=dpb.UtilityWarning)
        warnings.filterwarnings("ignore", message="seed", category=dpb.NotPrivateWarning)
        warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
        solution = solve(60, 0.0, epsilon=1.0, method=dpb.Tracking(steps=20))
    assert shown == [solution.result]


def test_without_noise_it_is_solved():
    with pytest.warns(dpb.NotPrivateWarning):
        solution = solve(100, 2.0, epsilon=float("inf"), seed=None)
    assert solution.result.startswith("Solved without noise: x converged after ")


def from_public_values(solution, **settings):
    """Whether the sentence follows from a plan, made without records, and what was released."""
    sizes = dpb.RecordShapes(**{role: np.zeros((count, 2), np.float32) for role, count in solution.sizes.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = dpb.plan(problem(), sizes, solution.privacy.budget, start=(START, START), refit=None, **settings)
    return solution.result == outcome(planned, START, solution.x, solution.history).sentence


@pytest.mark.filterwarnings("ignore::dpbilevel.NotPrivateWarning", "ignore::dpbilevel.UtilityWarning")
def test_the_sentence_follows_from_released_values_alone(tuned, untuned, monkeypatch):
    assert from_public_values(tuned)
    assert from_public_values(untuned)
    # A mutation that tells what only the records know.
    monkeypatch.setattr(solving, "outcome", lambda *_: Outcome("The largest record is 1."))
    method = dpb.Tracking(steps=3)
    assert not from_public_values(solve(60, 0.0, method=method), method=method)


def test_everything_that_shows_a_run_shows_it(tuned, tmp_path):
    guarantee, result, *_ = tuned.summary().split("\n")
    assert (guarantee, result) == (tuned.privacy.sentence(), tuned.result)
    assert dpb.Solution.load(tuned.save(tmp_path / "solution.json")).result == tuned.result
    whole = review(solution=tuned)
    path = write_run(whole, tmp_path / "run.json")
    assert json.loads(path.read_text())["result"] == tuned.result
    assert read_run(path).solution.result == tuned.result
    for text in (tuned._repr_html_(), html_report(whole), markdown_report(whole)):
        assert tuned.result in text


def test_files_of_earlier_versions_have_none(tmp_path):
    content = made().to_json()
    del content["result"]
    solution = dpb.Solution.from_json(content)
    assert solution.result == ""
    whole = review(solution=solution)
    for text in (html_report(whole), markdown_report(whole)):
        assert "Outcome" not in text


def test_estimators_warn_at_the_line_of_the_fit():
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 2))
    settings = {"data_norm": 1.0, "target_range": (-1, 1), "random_state": 0}
    model = estimators.DPRidgeCV(epsilon=0.5, method=dpb.Tracking(), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows, np.random.default_rng(1).uniform(-1, 1, 60))
    (warning,) = after_the_run(caught)
    assert str(warning.message) == model.solution_.result
    assert warning.filename == __file__


def test_a_random_search_does_not_know():
    search = PrivateRandomSearch(candidates=[np.zeros(2), np.ones(2)], mean_runs=4, score_range=(0.0, 4.0))
    draws = np.random.default_rng(0).normal(size=(2, 300, 2)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = search.solve(
            problem(), dpb.Records(upper=draws[0], lower=draws[1]), dpb.Budget(3.0, 1e-5), start=(START, START)
        )
    assert solution.result == (
        "Returned the best of about 4 runs, by noisy score; this method does not measure convergence."
    )
