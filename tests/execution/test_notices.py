"""Warnings before the charge: noise that will dominate, and an epsilon that protects almost nothing, or nothing."""

import contextlib
import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.estimator_cases import untrained

import dpbilevel as dpb
from dpbilevel import estimators
from dpbilevel.execution import notices
from dpbilevel.report.card_parts import CAVEATS
from dpbilevel.report.guarantee import guarantee

ROWS = 300
BUDGET = dpb.Budget(1.0, 1e-5)
OURS = (dpb.UtilityWarning, dpb.PrivacyLeakWarning, dpb.NotPrivateWarning)


def squared(x, y, record):
    return 0.5 * (record[0] @ y - record[1]) ** 2


PENALTY = dpb.BilevelProblem(
    upper_loss=squared,
    lower_loss=squared,
    lower_term=lambda x, y: 0.5 * jnp.exp(x) * jnp.sum(y**2),
    domain=dpb.Box(-5.0, 1.0),
    start=(0.0, np.zeros(2)),
)
CLEANING = dpb.BilevelProblem(  # a weight for every record
    upper_loss=squared,
    lower_loss=lambda x, y, record: jax.nn.sigmoid(x[record[2]]) * squared(x, y, record),
    lower_term=lambda x, y: 0.05 * jnp.sum(y**2),
    start=(np.zeros(20_000), np.zeros(2)),
)
QUICK = {"method": dpb.Tracking(steps=2), "refit": dpb.Refit(steps=2)}


def shapes(rows, indexed=False):
    more = [jax.ShapeDtypeStruct((rows,), np.int32)] if indexed else []
    return (jax.ShapeDtypeStruct((rows, 2), np.float32), jax.ShapeDtypeStruct((rows,), np.float32), *more)


def records(seed=0, rows=ROWS):
    draws = np.random.default_rng(seed)
    X = draws.uniform(-0.5, 0.5, (rows, 2)).astype(np.float32)
    return dpb.Records(upper=(X[::3], X[::3, 0]), lower=(X, X[:, 1]))


class Charged(Exception):
    pass


@pytest.fixture
def stopped(monkeypatch):
    """Runs end where they would charge, and long before they compile."""

    def charge(*_, **__):
        raise Charged

    monkeypatch.setattr(dpb.Ledger, "charge", charge)


def said(call):
    """Warnings of the library that a call gives, in their order."""
    with warnings.catch_warnings(record=True) as caught, contextlib.suppress(Charged):
        warnings.simplefilter("always")
        call()
    return [(one.category, str(one.message), one.filename) for one in caught if one.category in OURS]


def test_a_weight_for_every_record_is_refused_a_hearing_before_it_is_paid_for():
    """With 20,000 records the model is learnt well; 20,000 weights are not."""
    sizes = dpb.RecordShapes(upper=shapes(10_000), lower=shapes(20_000, indexed=True))
    ((category, message, place),) = said(lambda: dpb.plan(CLEANING, sizes, BUDGET))
    assert (category, place) == (dpb.UtilityWarning, __file__)
    assert "more noise than signal" in message
    assert "training pass, cross derivative" in message
    one_weight = dpb.RecordShapes(upper=shapes(10_000), lower=shapes(20_000))
    assert said(lambda: dpb.plan(PENALTY, one_weight, BUDGET)) == []


def test_solve_warns_before_it_charges_and_the_result_keeps_it(monkeypatch):
    monkeypatch.setattr(dpb.Records, "execute", untrained)
    ledger = dpb.Ledger(BUDGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dpb.UtilityWarning)
        with pytest.raises(dpb.UtilityWarning, match="80 records are few for epsilon = 1"):
            dpb.solve(PENALTY, records(rows=60), BUDGET, ledger=ledger, **QUICK)
    assert ledger.entries == ()
    with pytest.warns(dpb.UtilityWarning) as caught:
        solution = dpb.solve(PENALTY, records(rows=60), BUDGET, ledger=ledger, **QUICK)
    assert (*solution.remarks[: len(caught) - 1], solution.result) == tuple(str(one.message) for one in caught)
    assert {one.filename for one in caught} == {__file__}


@pytest.mark.parametrize("name", ["validation pass", "training pass, hypergradient", "hypergradient"])
def test_the_threshold_of_tuning_is_one(name):
    release = dpb.Release(
        name=name.partition(", ")[0],
        contributions={"lower": dpb.Contribution(lambda point, record: record, 1.0, 100)},
        noise_std=1.0,
        uses=1,
    )

    def remarks(ratio, budget=BUDGET):
        return notices.noise_remarks({f"{name}: noise to signal": (ratio, "")}, [release], 100, budget)

    assert remarks(1.0) == ()
    (remark,) = remarks(1.01)
    assert "with 100 records; about 101 records would" in remark
    assert remarks(5.0, dpb.Budget(math.inf)) == ()


def test_the_paper_s_method_says_how_large_its_noise_is():
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=3), steps=3, step_size=0.1, clip_norm=2.0)
    planned = dpb.plan(PENALTY, dpb.RecordShapes(upper=shapes(40_000), lower=shapes(40_000)), BUDGET, method=method)
    ratios = {name: value for name, (value, _) in planned.parameters.items() if name.endswith("noise to signal")}
    noise = planned.parameters["penalised solve: noise"][0]
    clips = [value for name, (value, _) in planned.parameters.items() if name.startswith("penalised solve: clip")]
    assert ratios["penalised solve: noise to signal"] == pytest.approx(noise * math.sqrt(2) / sum(clips))
    assert planned.remarks == ()
    small = dpb.RecordShapes(upper=shapes(50), lower=shapes(50))
    with pytest.warns(dpb.UtilityWarning, match=r"noise to signal of a step \((lower|penalised) solve\)"):
        dpb.plan(PENALTY, small, dpb.Budget(0.1, 1e-5), method=method)


def entry_points(epsilon):
    budget = dpb.Budget(epsilon, 1e-5)
    yield lambda: dpb.plan(PENALTY, records().sizes, budget)
    yield lambda: dpb.solve(PENALTY, records(), budget, **QUICK)
    model = estimators.DPRidgeCV(epsilon=epsilon, data_norm=1.0, target_range=(-1, 1), method=QUICK["method"])
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (ROWS, 2))
    yield lambda: model.plan(rows=ROWS, columns=2)
    yield lambda: model.fit(X, X[:, 0])


def weak(epsilon):
    """For each entry point, the warnings that it gives about epsilon."""
    for call in entry_points(epsilon):
        yield [one for one in said(call) if "epsilon is" in one[1]]


def test_an_epsilon_above_20_is_remarked_on_everywhere_and_20_is_not(stopped):
    assert list(weak(20.0)) == [[]] * 4
    for ((category, message, place),) in weak(20.5):
        assert (category, place) == (dpb.PrivacyLeakWarning, __file__)
        assert message.startswith("epsilon is above 20")


def test_an_infinite_epsilon_is_remarked_on_everywhere(stopped):
    for ((category, message, place),) in weak(math.inf):
        assert (category, place) == (dpb.NotPrivateWarning, __file__)
        assert "NOT private" in message


def test_reports_say_that_a_large_epsilon_protects_next_to_nobody():
    with pytest.warns(dpb.PrivacyLeakWarning, match="above 20"):
        solution = dpb.solve(PENALTY, records(), dpb.Budget(30.0, 1e-5), **QUICK)
    made = guarantee(solution)
    assert made.status == CAVEATS
    assert made.notice
    for words in (made.sentence, solution.summary(), solution.privacy.sentence()):
        assert words.count("epsilon is above 20") == 1
    again = dpb.Privacy.from_json(solution.privacy.to_json())
    assert again.caveats == solution.privacy.caveats
    assert dpb.Privacy(solution.privacy.charges, dpb.Budget(20.0, 1e-5)).caveats == ()


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [("25", "--epsilon 25:"), ("inf", "--epsilon inf:"), ("0.1", "400 records are few")],
)
def test_the_command_line_says_it_once(epsilon, words, command):
    code, _, errors = command("plan", "--rows", "400", "--columns", "3", "--epsilon", epsilon)
    assert code == 0
    assert errors.count(words) == 1


def test_a_run_on_a_file_says_it_once_although_it_plans_before_it_fits(folder, command):
    tune = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "25", "--json")
    code, output, errors = command(*tune)
    assert code == 0
    assert errors.count("--epsilon 25:") == 1
    assert "above 20" not in errors.replace("above 20 a result", "")
    assert "remarks" in json.loads(output)


def depends_on_records(solve_):
    """Whether what is said beforehand differs between two data sets of the same sizes."""
    first, second = ([(kind, text) for kind, text, _ in said(lambda s=s: solve_(records(s)))] for s in (1, 2))
    return first != second


def test_what_is_said_beforehand_depends_on_no_record():
    def solved(rows):
        return dpb.solve(PENALTY, rows, dpb.Budget(0.5, 1e-5), **QUICK)

    def telling(rows):  # a mutant, which reads the content of rows
        solution = solved(rows)
        warnings.warn(f"{solution.y}", dpb.UtilityWarning, stacklevel=1)

    assert not depends_on_records(solved)
    assert depends_on_records(telling)


def plan_of_units(mean_rows, **more):
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x + y) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    )
    sizes = dpb.RecordShapes(lower=np.zeros(4000), rows_per_unit=8, mean_rows=mean_rows, **more)
    return dpb.plan(problem, sizes, dpb.Budget(1.0, 1e-5), start=(0.0, 0.0), method=dpb.Refit(steps=5))


def test_units_are_told_the_memory_of_bundles_and_how_many_an_acceptable_noise_needs():
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("records",))
    with pytest.warns(dpb.UtilityWarning, match="4 times the memory of their rows"):
        plan_of_units(2.0, mesh=mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_of_units(4.0, mesh=mesh)  # twice the memory
        planned = plan_of_units(2.0)  # packed
    needed = planned.parameters["training: units needed"][0]
    ratio = planned.parameters["training: noise to signal"][0]
    assert needed == pytest.approx(4000 * ratio / 0.07, abs=1)
