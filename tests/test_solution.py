"""Solutions: what they say, and that saving and loading keeps it."""

import json
import math

import jax
import numpy as np
import pytest
from problems import leak, quadratic, sources

import dpbilevel as dpb


@pytest.fixture(scope="module")
def solutions():
    budget = dpb.Budget(1.0, 1e-4)
    case = sources()
    private = dpb.solve(
        case.problem,
        case.records(),
        budget,
        method=case.method(steps=3, penalty_weight=10.0),
        start=case.start,
        progress=False,
    )
    with pytest.warns(dpb.NotPrivateWarning, match="seed"):
        seeded = case.solve(budget, steps=3, penalty_weight=10.0)
    return {"private": private, "seeded": seeded, "infinite": leak().solve(dpb.Budget(math.inf), steps=3, seed=None)}


@pytest.mark.parametrize("name", ["private", "seeded", "infinite"])
def test_saved_and_loaded_solution_is_the_same(solutions, name, tmp_path):
    solution = solutions[name]
    path = solution.save(tmp_path / "run.json")
    loaded = dpb.Solution.load(path)
    for before, after in ((solution.x, loaded.x), (solution.y, loaded.y), (solution.history, loaded.history)):
        assert jax.tree.structure(before) == jax.tree.structure(after)
        jax.tree.map(np.testing.assert_array_equal, before, after)
    assert loaded.privacy.epsilon() == solution.privacy.epsilon()
    assert repr(loaded) == repr(solution)
    assert loaded.summary() == solution.summary()
    assert json.loads(path.read_text())["format"] == "dpbilevel.solution/1"


@pytest.mark.parametrize("name", ["seeded", "infinite"])
def test_not_private_is_said_everywhere(solutions, name, tmp_path):
    solution = solutions[name]
    content = json.loads(solution.save(tmp_path / "run.json").read_text())
    report, page = (solution.report(tmp_path / f"run.{kind}").read_text() for kind in ("md", "html"))
    assert "NOT PRIVATE" in repr(solution)
    assert "NOT PRIVATE" in solution.summary()
    assert content["privacy"]["dict"]["private"] is False
    for text in (report, page, solution._repr_html_()):
        assert "NOT PRIVATE" in text
    assert "not private" in report


def test_private_solution_states_its_guarantee(solutions, tmp_path):
    solution = solutions["private"]
    report = solution.report(tmp_path / "run.md").read_text()
    assert repr(solution).endswith("; (1, 0.0001)-DP, replace-one, one record)")
    for text in (solution.summary(), report):
        assert "NOT PRIVATE" not in text
        assert "(1, 0.0001)-differentially private" in text
        assert "replace-one" in text
        assert "not a person" in text
    for name in solution.parameters:
        assert name in report


def test_a_stranger_can_derive_epsilon_from_the_file(solutions, tmp_path):
    """From the numbers in the JSON alone, by the closed formula."""
    from scipy.stats import norm

    privacy = json.loads(solutions["private"].save(tmp_path / "run.json").read_text())["privacy"]["dict"]
    worst = 0.0
    for role in privacy["roles"]["dict"].values():
        charges = [charge["dict"] for charge in role["dict"]["charges"]["list"]]
        worst = max(worst, math.sqrt(sum(c["steps"] * c["sensitivity_over_noise"] ** 2 for c in charges)))
    epsilon, mu = privacy["epsilon"], worst
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(privacy["delta"], rel=1e-6)


def test_the_ending_says_what_is_written(solutions, tmp_path):
    solution = solutions["private"]
    assert solution.report(tmp_path / "run.html").read_text().startswith("<!DOCTYPE html>")
    assert solution.report(str(tmp_path / "run.MD")).read_text().startswith("# ")
    assert json.loads(solution.report(tmp_path / "run.json").read_text())["format"] == "dpbilevel.run/1"
    for wrong in ("run.pdf", "run"):
        with pytest.raises(dpb.InvalidArgument, match=r"must end in \.html, \.md or \.json"):
            solution.report(tmp_path / wrong)
    assert solution._repr_html_().startswith("<div")


def test_a_damaged_solution_is_refused(solutions, tmp_path):
    content = solutions["private"].to_json()
    for key in ("privacy", "x", "sizes"):
        path = tmp_path / "run.json"
        path.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        with pytest.raises(dpb.InvalidArgument, match="damaged"):
            dpb.Solution.load(path)


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"format": "other/1"}'])
def test_loading_something_else_is_refused(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(dpb.InvalidArgument, match=r"Solution\.save"):
        dpb.Solution.load(path)


def test_saved_file_holds_no_record(tmp_path):
    """Records with a sentinel value: it appears nowhere in what a run leaves behind."""
    case = quadratic()
    data = {role: np.where(np.arange(len(rows))[:, None] == 7, 0.7654321, rows) for role, rows in case.data.items()}
    solution = dpb.solve(
        case.problem, dpb.Records(**data), dpb.Budget(1.0, 1e-4), method=case.method(steps=2), start=case.start
    )
    written = [solution.save(tmp_path / "solution.json")]
    written += [solution.report(tmp_path / f"run.{kind}") for kind in ("json", "md", "html")]
    for path in written:
        assert "0.76543" not in path.read_text()
    assert "0.76543" not in solution._repr_html_()
