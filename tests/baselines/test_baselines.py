"""What people use instead of bilevel tuning: each baseline does what it says, and pays for it beforehand."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.problems import leak, quadratic, quadratic_both, ridge

import dpbilevel as dpb
from dpbilevel import baselines
from dpbilevel.baselines import (
    FixedDefault,
    NaiveGridSearch,
    OracleHyperparameters,
    ScreenSources,
    UpperRecordsOnly,
    oracle,
)
from dpbilevel.baselines.screening import below_the_largest_gap

FREE = dpb.Budget(math.inf)
BUDGET = dpb.Budget(4.0, 1e-5)
LONG, QUICK = dpb.Refit(steps=150), dpb.Refit(steps=40)


def solved(baseline, case, budget=FREE, **settings):
    problem = settings.pop("problem", case.problem)
    settings = {"seed": 0, "progress": False, "start": case.start} | settings
    return baseline.solve(problem, case.records(), budget, **settings)


def ridge_model(case, x, role):
    rows, targets = case.data[role]
    gram, moment = rows.T @ rows / len(rows), rows.T @ targets / len(rows)
    return np.linalg.solve(gram + np.exp(x) * np.eye(4), moment)


# ------------------------------------------------------------------------------------------------------------- untuned


def test_the_fixed_default_trains_at_the_starting_x():
    case = ridge()
    solution = solved(FixedDefault(training=LONG), case, start=(np.array(-1.0), np.zeros(4)))
    assert float(solution.x) == -1.0
    np.testing.assert_allclose(solution.y, ridge_model(case, -1.0, "lower"), atol=0.02)
    sizes = case.records().sizes
    plans = [
        dpb.plan(case.problem, sizes, BUDGET, method=m, start=case.start) for m in (FixedDefault(training=LONG), LONG)
    ]
    assert plans[0].parameters == plans[1].parameters
    assert plans[0].privacy.epsilon() == pytest.approx(BUDGET.epsilon, rel=1e-6)


def test_upper_records_alone_give_the_model_of_the_upper_records_with_the_regulariser():
    case = ridge()
    solution = solved(UpperRecordsOnly(training=LONG), case, start=(np.array(-1.0), np.zeros(4)))
    np.testing.assert_allclose(solution.y, ridge_model(case, -1.0, "upper"), atol=0.02)
    assert np.linalg.norm(ridge_model(case, -1.0, "upper") - ridge_model(case, -1.0, "lower")) > 0.2
    both = solved(UpperRecordsOnly(training=LONG), quadratic_both())
    np.testing.assert_allclose(both.y, 2 * quadratic_both().data["both"].mean(0), atol=0.02)


def test_upper_records_alone_leave_the_lower_ones_in_peace():
    """Neither scale nor pooling of the lower level matters, lower records are not charged, nor do they change a bit."""
    case = quadratic(400)
    problem = replace(case.problem, upper_trains=True, lower_scale=lambda x: 3.0)
    baseline = UpperRecordsOnly(training=QUICK)
    plan = dpb.plan(problem, case.records().sizes, BUDGET, method=baseline, start=case.start)
    assert set(plan.privacy.charges) == {"upper"}
    assert plan.privacy.epsilon() == pytest.approx(BUDGET.epsilon, rel=1e-6)
    plain = dpb.plan(case.problem, case.records().sizes, BUDGET, method=baseline, start=case.start)
    assert plan.releases[0].noise_std == plain.releases[0].noise_std
    one = solved(baseline, case, BUDGET)
    other = solved(baseline, replace(case, data=case.data | {"lower": -case.data["lower"]}), BUDGET)
    np.testing.assert_array_equal(one.y, other.y)
    assert np.linalg.norm(one.y - case.data["upper"].mean(0)) < 0.2


def test_upper_records_alone_need_upper_records():
    with pytest.raises(dpb.InvalidProblem, match=r"upper_loss: is missing.*FixedDefault"):
        solved(UpperRecordsOnly(), leak())


# --------------------------------------------------------------------------------------------------------- grid search


def test_the_grid_tries_every_candidate_and_keeps_the_best():
    case = ridge()
    candidates = [-3.5, -2.0, -1.0, 0.0]
    solution = solved(NaiveGridSearch(candidates=candidates, training=LONG), case)
    values = [case.value(x) for x in candidates]
    np.testing.assert_allclose(solution.history["score"], values, rtol=2e-3)
    np.testing.assert_allclose(solution.history["x"], candidates)
    assert float(solution.x) == candidates[int(np.argmin(values))]
    np.testing.assert_allclose(solution.y, ridge_model(case, float(solution.x), "lower"), atol=0.02)


def test_every_run_of_the_grid_is_charged():
    case = quadratic(1500)
    candidates = [case.solution + shift for shift in (1.0, 0.0, -1.0)]
    search = NaiveGridSearch(candidates=candidates, score_range=(0.0, 4.0), training=QUICK)
    plan = dpb.plan(case.problem, case.records().sizes, BUDGET, method=search, start=case.start)
    uses = {release.name: release.uses for release in plan.releases}
    assert uses == {"training": 3 * 40, "score": 3}
    for role in ("upper", "lower"):
        assert plan.privacy.epsilon(role=role) == pytest.approx(BUDGET.epsilon, rel=1e-6)
    alone = replace(search, candidates=candidates[:1])
    single = dpb.plan(case.problem, case.records().sizes, BUDGET, method=alone, start=case.start)
    # Clips depend on the budget of a run, so that noise is compared in units of sensitivity.
    for mine, other in zip(plan.releases, single.releases, strict=True):
        (role,) = mine.contributions
        multiples = [release.noise_std / release.sensitivity(role) for release in (mine, other)]
        assert multiples[0] == pytest.approx(math.sqrt(3) * multiples[1], rel=1e-6)
    solution = solved(search, case, BUDGET)
    np.testing.assert_allclose(solution.x, case.solution, rtol=1e-5)
    assert solution.history["score"].argmin() == 1


@pytest.mark.parametrize("pooled", [True, False])
def test_records_that_train_and_score_pay_for_both(pooled):
    case = quadratic() if pooled else quadratic_both()
    problem = replace(case.problem, upper_trains=True)
    search = NaiveGridSearch(candidates=[case.start[0]] * 2, training=QUICK, score_share=0.2)
    plan = dpb.plan(problem, case.records().sizes, BUDGET, method=search, start=case.start)
    spent = {
        charge.release: charge.mu**2 / BUDGET.mu**2 for charge in plan.privacy.charges["upper" if pooled else "both"]
    }
    assert spent == pytest.approx({"training": 0.8, "score": 0.2}, rel=1e-6)


def test_a_score_without_records_is_free():
    case = leak()
    search = NaiveGridSearch(candidates=[case.solution, np.ones(3)], training=LONG)
    plan = dpb.plan(case.problem, case.records().sizes, BUDGET, method=search, start=case.start)
    assert [release.name for release in plan.releases] == ["training"]
    solution = solved(search, case)
    np.testing.assert_allclose(solution.x, case.solution, rtol=1e-5)
    np.testing.assert_allclose(solution.history["score"], [case.value(x) for x in search.candidates], atol=2e-3)


# ----------------------------------------------------------------------------------------------------------- screening


def source_case(numbers=(400, 400, 400, 400, 400), bad=(1, 3), upper=800, seed=0):
    """Sources with the right mean, and bad ones with its negative; weights on a simplex."""
    rng = np.random.default_rng(seed)
    source = np.repeat(np.arange(len(numbers)), numbers)
    centre = np.where(np.isin(source, bad), -1.0, 1.0)[:, None] * np.array([0.6, -0.4])
    values = np.clip(centre + 0.2 * rng.normal(size=(len(source), 2)), -1, 1)
    clean = np.clip(np.array([0.6, -0.4]) + 0.2 * rng.normal(size=(upper, 2)), -1, 1)
    number = len(numbers)
    problem = dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
        lower_loss=lambda x, y, record: number * x[record[1]] * 0.5 * jnp.sum((y - record[0]) ** 2),
        lower_scale=lambda x: number * jnp.sum(x**2),
        domain=dpb.Simplex(),
    )
    records = {"upper": clean, "lower": (values, source)}
    return problem, records, (np.ones(number) / number, np.zeros(2))


def source_of(record):
    return record[1]


def test_screening_keeps_the_good_sources_and_trains_on_them():
    problem, data, start = source_case()
    baseline = ScreenSources(source=source_of, loss_range=(0.0, 2.0), training=QUICK)
    solution = baseline.solve(problem, dpb.Records(**data), FREE, start=start, seed=0)
    np.testing.assert_allclose(solution.x, np.array([1, 0, 1, 0, 1]) / 3, rtol=1e-6)
    assert np.linalg.norm(solution.y - np.array([0.6, -0.4])) < 0.1
    values, source = data["lower"]
    clean = data["upper"].mean(0)
    losses = [0.5 * np.mean(np.sum((clean - values[source == k]) ** 2, 1)) for k in range(5)]
    np.testing.assert_allclose(solution.history["source_loss"][0], losses, atol=0.02)


@pytest.mark.parametrize("listed", [False, True])
def test_screening_of_units_whose_rows_are_in_several_sources(listed):
    """Each person has rows of all five sources; of a list, every other one has none at all."""
    problem, data, start = source_case()
    source, number = data["lower"][1], len(data["upper"])
    people = np.concatenate([np.arange(n) for n in np.bincount(source)])[np.argsort(np.argsort(source, kind="stable"))]
    unit = {"upper": 10_000 + np.arange(number), "lower": 2 * people}
    ids = {"unit_ids": {"upper": unit["upper"], "lower": np.arange(2 * people.max() + 2)}} if listed else {}
    records = dpb.Records(**data, unit=unit, rows_per_unit=5, **ids)
    baseline = ScreenSources(source=source_of, loss_range=(0.0, 2.0), training=QUICK)
    solution = baseline.solve(problem, records, FREE, start=start, seed=0)
    np.testing.assert_allclose(solution.x, np.array([1, 0, 1, 0, 1]) / 3, rtol=1e-6)
    values, clean = data["lower"][0], data["upper"].mean(0)
    losses = [0.5 * np.mean(np.sum((clean - values[source == k]) ** 2, 1)) for k in range(5)]
    np.testing.assert_allclose(solution.history["source_loss"][0], losses, atol=0.03)


def test_screening_is_one_release_on_lower_records_and_the_whole_spends_the_budget():
    problem, data, start = source_case()
    budget = dpb.Budget(1.0, 1e-6)
    baseline = ScreenSources(source=source_of, training=replace(QUICK, share=0.15))
    plan = dpb.plan(problem, dpb.Records(**data).sizes, budget, method=baseline, start=start)
    spent = {
        role: {charge.release: (charge.uses, charge.mu**2 / budget.mu**2) for charge in charges}
        for role, charges in plan.privacy.charges.items()
    }
    assert spent["lower"]["screening"] == (1, pytest.approx(0.15, rel=1e-6))
    assert spent["lower"]["training"] == (40, pytest.approx(0.85, rel=1e-6))
    assert spent["upper"]["training"] == (40, pytest.approx(0.15, rel=1e-6))
    assert plan.privacy.epsilon() == pytest.approx(1.0, rel=1e-6)


def test_records_of_both_levels_share_the_budget_of_screening():
    problem, data, start = source_case()
    both = replace(problem, upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record[0]) ** 2))
    baseline = ScreenSources(source=source_of, training=replace(QUICK, share=0.2))
    plan = dpb.plan(both, dpb.Records(both=data["lower"]).sizes, BUDGET, method=baseline, start=start)
    spent = [charge.mu**2 / BUDGET.mu**2 for charge in plan.privacy.charges["both"]]
    assert spent == pytest.approx([0.1, 0.1, 0.8], rel=1e-6)


def test_screening_is_not_fooled_by_how_many_records_a_source_has():
    """Sums alone would be: most of their spread is between large sources and small ones."""
    problem, data, start = source_case(numbers=(3000, 150, 150), bad=(2,))
    values, source = data["lower"]
    clean = data["upper"].mean(0)
    sums = [np.sum(0.5 * np.sum((clean - values[source == k]) ** 2, 1) - 1.0) for k in range(3)]
    assert below_the_largest_gap(jnp.array(sums)).tolist() == [True, False, False]  # the mutation
    baseline = ScreenSources(source=source_of, training=QUICK)
    solution = baseline.solve(problem, dpb.Records(**data), BUDGET, start=start, seed=0)
    np.testing.assert_allclose(solution.x, [0.5, 0.5, 0.0])
    assert np.linalg.norm(solution.y - np.array([0.6, -0.4])) < 0.1


def test_no_records_vector_is_bent_by_the_clip_of_screening():
    problem, data, start = source_case()
    baseline = ScreenSources(source=source_of, loss=lambda y, record: 100 * jnp.sum(record[0]), loss_range=(-1.0, 3.0))
    plan = dpb.plan(problem, dpb.Records(**data).sizes, BUDGET, method=baseline, start=start)
    (release,) = [release for release in plan.releases if release.name == "screening"]
    contribution = release.contributions["lower"]
    for value in (-9.0, 0.0, 0.01, 9.0, math.nan):
        vector = contribution.per_record(start, (jnp.full(2, value), jnp.array(3)))
        flat = np.concatenate([vector["loss"], vector["number"]])
        assert np.linalg.norm(flat) <= contribution.clip * (1 + 1e-6)
        assert np.flatnonzero(vector["number"]).tolist() == [3]
    assert release.sensitivity("lower") == pytest.approx(2 * 2 * math.sqrt(2) / 2000, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": dpb.NonNegative()}, "domain: screening needs x to be one vector"),
        ({"domain": dpb.Simplex(), "start": (np.ones(1), np.zeros(2))}, "one source"),
    ],
)
def test_screening_says_which_problems_it_is_for(change, message):
    problem, data, start = source_case()
    start = change.pop("start", start)
    with pytest.raises(dpb.InvalidProblem, match=message):
        dpb.plan(
            replace(problem, **change),
            dpb.Records(**data).sizes,
            BUDGET,
            method=ScreenSources(source=source_of),
            start=start,
        )


def test_functions_with_side_effects_are_refused():
    problem, data, start = source_case()

    def spying(record):
        jax.debug.print("{}", record[1])
        return record[1]

    with pytest.raises(dpb.InvalidProblem, match="source: must have no side effects"):
        dpb.plan(problem, dpb.Records(**data).sizes, BUDGET, method=ScreenSources(source=spying), start=start)


# --------------------------------------------------------------------------------------------------------- the oracle


def test_an_oracle_is_marked_as_not_private_and_keeps_the_best():
    case = ridge()
    model = ridge_model(case, case.solution, "lower")
    settings = [dpb.Refit(steps=1), dpb.Refit(steps=100)]
    with pytest.warns(dpb.NotPrivateWarning, match="upper bound for benchmarks and NOT private"):
        best = oracle(
            case.problem,
            case.records(),
            dpb.Budget(1000.0, 1e-5),
            case.solution,
            case.start,
            score=lambda x, y: np.linalg.norm(y - model),
            settings=settings,
            repeats=2,
        )
    assert best.privacy.void
    assert "NOT PRIVATE" in best.privacy.sentence()
    assert "best of 4 runs that no ledger has charged" in best.privacy.sentence()
    assert best.parameters["training: steps"][0] == 100
    assert float(best.x) == pytest.approx(case.solution)


@pytest.mark.slow
def test_an_oracle_weighs_upper_records_where_they_train():
    problem, data, start = source_case()
    ceiling = OracleHyperparameters(
        x=np.array([0.0, 0.5, 0.0, 0.5, 0.0]),  # the bad sources: the less they count, the better
        score=lambda x, y: float(np.linalg.norm(y - np.array([0.6, -0.4]))),
        settings=[QUICK],
    )
    records = dpb.Records(**data)
    best = ceiling.solve(replace(problem, upper_trains=True), records, FREE, start=start, progress=False)
    assert best.parameters["weight scale"][0] == 2.0
    alone = ceiling.solve(problem, records, FREE, start=start, progress=False)
    assert alone.parameters["weight scale"][0] == 1.0


def test_an_oracle_refuses_a_ledger():
    case = ridge()
    ceiling = OracleHyperparameters(x=0.0, score=lambda x, y: 0.0)
    with pytest.raises(dpb.InvalidArgument, match="ledger: must be None"):
        ceiling.solve(case.problem, case.records(), BUDGET, start=case.start, ledger=dpb.Ledger(BUDGET))


# ---------------------------------------------------------------------------------------------------------- all of them


METHODS = {
    "FixedDefault": FixedDefault(training=QUICK),
    "UpperRecordsOnly": UpperRecordsOnly(training=QUICK),
    "NaiveGridSearch": NaiveGridSearch(candidates=[np.ones(5) / 5] * 2, training=QUICK),
    "ScreenSources": ScreenSources(source=source_of, training=QUICK),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_charged_before_records_are_read(monkeypatch, name):
    problem, data, start = source_case()
    ledger, seen = dpb.Ledger(BUDGET), []

    class Touched(Exception):
        pass

    def touched(records, *arguments):
        seen.append(len(ledger.entries))
        raise Touched

    monkeypatch.setattr(dpb.Records, "execute", touched)
    records = dpb.Records(**data)
    small = dpb.Ledger(dpb.Budget(3.9, 1e-5))
    with pytest.raises(dpb.BudgetExceeded):
        METHODS[name].solve(problem, records, BUDGET, start=start, ledger=small, seed=0)
    assert seen == []
    assert small.entries == ()
    with pytest.raises(Touched):
        METHODS[name].solve(problem, records, BUDGET, start=start, ledger=ledger, seed=0)
    assert seen == [1]
    (entry,) = ledger.entries  # it stands, though nothing came of it
    assert entry.description == name
    assert entry.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-6)


def test_the_package_says_when_each_baseline_is_good():
    for name in baselines.__all__:
        assert getattr(baselines, name).__doc__
    for name in [*METHODS, "PrivateRandomSearch", "OracleHyperparameters"]:
        assert f"`{name}`" in baselines.__doc__


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedDefault(training=3), "training=3: must be dpb.Refit"),
        (lambda: UpperRecordsOnly(training=None), "training=None"),
        (lambda: NaiveGridSearch(candidates="grid"), "candidates: must be a list"),
        (lambda: NaiveGridSearch(candidates=[]), "candidates: must be a list"),
        (lambda: solved(NaiveGridSearch(candidates=[np.zeros(7)]), quadratic()), "shapes of x0"),
        (lambda: solved(NaiveGridSearch(candidates=[9.0]), ridge()), "must lie in domain"),
        (lambda: solved(NaiveGridSearch(candidates=[True]), ridge()), "must be real numbers"),
        (lambda: ScreenSources(source=1), "source: must be a function"),
        (lambda: ScreenSources(source=source_of, loss=1), "loss: must be a function"),
        (lambda: ScreenSources(source=source_of, loss_range=(0.0, math.inf)), "loss_range"),
        (lambda: OracleHyperparameters(x=0.0, score=None), "score: must be a function"),
        (lambda: OracleHyperparameters(x=0.0, score=len, settings=[]), "settings: must be a list"),
        (lambda: OracleHyperparameters(x=0.0, score=len, weight_scales=[0.0]), "weight_scales=0.0"),
        (lambda: OracleHyperparameters(x=0.0, score=len, repeats=0), "repeats=0"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        make()
