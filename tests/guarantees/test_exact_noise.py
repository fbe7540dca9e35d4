"""noise="exact" from end to end: no release stays in floating point, no budget is exceeded, and all of it is said."""

import dataclasses
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.report_data import made, with_privacy

pytest.importorskip("opendp", reason='exact noise needs the extra "exact"')

import dpbilevel as dpb
from dpbilevel.baselines import FixedDefault, NaiveGridSearch, ScreenSources, UpperRecordsOnly
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.program import Call, Program, Stage
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.records import answer_dimensions
from dpbilevel.report.content import content
from dpbilevel.report.guarantee import guarantee
from dpbilevel.report.review import Review
from dpbilevel.report.words import spend_words

BUDGET = dpb.Budget(2.0, 1e-4)
SHAPE = jax.ShapeDtypeStruct((160, 2), "float32")
APART = dpb.RecordShapes(upper=jax.ShapeDtypeStruct((80, 2), "float32"), lower=SHAPE)
START = (np.zeros(2), np.zeros(2))


def problem(**settings):
    """x-gradients of both levels read records: all releases are charged, and none is free."""
    constants = dpb.Constants(
        upper_lipschitz=1.0,
        upper_smoothness=1.0,
        lower_lipschitz=1.0,
        lower_smoothness=2.0,
        lower_hessian_lipschitz=1.0,
        strong_convexity=1.0,
    )
    return dpb.BilevelProblem(
        upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2) + 0.1 * jnp.sum(x) * record[0],
        lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - jnp.mean(x) - record) ** 2),
        constants=constants,
        **settings,
    )


# ---- no release stays in floating point

SHORT = dpb.Refit(steps=2)
DOUBLE = {"inner": dpb.DPLocGD(steps=2, rounds=1), "step_size": 0.1, "steps": 2}
SCORED = {"candidates": [np.zeros(2), np.ones(2)], "score_range": (0.0, 1.0), "training": SHORT}
WEIGHTED = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
    lower_loss=lambda x, y, record: 1.5 * x[record[1]] * jnp.sum((y - record[0]) ** 2),
    domain=dpb.Simplex(),
)
SOURCES = dpb.RecordShapes(upper=SHAPE, lower=(SHAPE, jax.ShapeDtypeStruct((160,), "int32")))
UNIFORM = (np.ones(3) / 3, np.zeros(2))

METHODS = {
    "tracking": (problem(), APART, START, dpb.Tracking(steps=3), SHORT),
    "tracking without a training": (problem(), APART, START, dpb.Tracking(steps=3), None),
    "tracking, one role": (problem(), dpb.RecordShapes(both=SHAPE), START, dpb.Tracking(steps=3), SHORT),
    "tracking on a simplex": (WEIGHTED, SOURCES, UNIFORM, dpb.Tracking(steps=3), SHORT),
    "pooled training": (problem(upper_trains=True), APART, START, dpb.Tracking(steps=3), SHORT),
    "double loop": (problem(), APART, START, dpb.DPBilevel(**DOUBLE), None),
    "double loop and a training": (problem(), APART, START, dpb.DPBilevel(**DOUBLE), SHORT),
    "certified clip": (problem(), APART, START, dpb.DPBilevel(**DOUBLE, clip_norm="certified"), None),
    "released clip": (problem(), APART, START, dpb.DPBilevel(**DOUBLE, clip_norm="released"), None),
    "the paper's split": (problem(), APART, START, dpb.DPBilevel(**DOUBLE, split="paper"), None),
    "untuned": (problem(), APART, START, FixedDefault(training=SHORT), None),
    "clean rows": (problem(), APART, START, UpperRecordsOnly(training=SHORT), None),
    "grid search": (problem(), APART, START, NaiveGridSearch(**SCORED), None),
    "screening": (WEIGHTED, SOURCES, UNIFORM, ScreenSources(source=lambda record: record[1], training=SHORT), SHORT),
}


def planned(name, noise):
    of, sizes, start, method, refit = METHODS[name]
    return dpb.plan(of, sizes, BUDGET, start=start, method=method, refit=refit, noise=noise)


def traced(plan, start):
    """How many numbers each release of a plan answers with, by tracing its programs once more."""
    point = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), "float32"), start)
    parts = [part for part in (plan.program, plan.training) if part is not None]
    return [answer_dimensions(part, plan.sizes, jax.eval_shape(part.start, *point)) for part in parts]


def no_float_noise(key, size):
    raise AssertionError("noise was drawn in floating point")


@pytest.mark.parametrize("name", METHODS)
def test_no_release_of_any_method_stays_in_floating_point(name, monkeypatch):
    exact = planned(name, "exact")
    monkeypatch.setattr(release_module, "standard_normal", no_float_noise)
    found = {release: size for part in traced(exact, METHODS[name][2]) for release, size in part.items()}
    assert set(found) == set(exact.releases)
    for release, size in found.items():
        assert release.grid.dimension == size
        assert all(charge.exact for charge in release.charges())
    assert exact.noise == exact.parameters["noise"][0] == "exact"
    assert exact.privacy.mu is None
    assert exact.privacy.epsilon() <= BUDGET.epsilon
    if name != "the paper's split":  # which prescribes its noise, and far too much of it
        assert exact.privacy.epsilon() > 0.999 * BUDGET.epsilon


def test_the_walk_over_releases_catches_noise_in_floating_point(monkeypatch):
    plain = planned("tracking", "float")
    monkeypatch.setattr(release_module, "standard_normal", no_float_noise)
    with pytest.raises(AssertionError, match="floating point"):
        traced(plain, START)
    assert plain.noise == "float"
    assert not plain.privacy.exact_noise
    assert plain.privacy.mu is not None


def test_a_program_is_exact_as_a_whole_or_not_at_all():
    exact = planned("tracking", "exact").program
    plain = planned("tracking", "float").program
    with pytest.raises(InvalidProblem, match="some have exact noise and others do not"):
        dataclasses.replace(exact, stages=[exact.stages[0], plain.stages[1]])
    with pytest.raises(InvalidArgument, match="which is not generated from keys"):
        exact.keys(KeySchedule(), 0, 1)


def test_plans_of_either_noise_ask_the_same_and_exact_noise_is_larger():
    exact, plain = planned("tracking", "exact"), planned("tracking", "float")
    for one, other in zip(exact.releases, plain.releases, strict=True):
        assert (one.name, one.uses) == (other.name, other.uses)
        assert 1 < one.noise_std / other.noise_std < 1.2
        assert one.scale * one.grid.unit == one.noise_std


# ---- refusals, before anything is charged


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 3}, r"seed=3: exact noise has no seed; leave seed out"),
        ({"noise": "discretized"}, r"noise='discretized': must be one of 'float', 'exact'"),
        ({"noise": None}, r"noise=None: must be one of"),
        ({"budget": dpb.Budget(math.inf)}, r'noise="exact": needs a finite epsilon'),
        ({"method": dpb.Tracking(steps=2, sampling=dpb.Poisson(0.5))}, r"sampling=Poisson.*must be dpb.FullBatch"),
        (
            {"method": dpb.DPBilevel(inner=dpb.DPLocSGD(strong_convexity=1.0), step_size=1.0)},
            r"sampling=Poisson.*must be dpb.FullBatch",
        ),
        (
            {"method": dpb.DPBilevel(inner=dpb.BlackBox(train=print, event=dpb.GaussianDP(0.1)), step_size=1.0)},
            r'noise="exact": does not apply to a black box',
        ),
    ],
    ids=["seed", "unknown", "none", "no privacy", "sampling", "inner sampling", "black box"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_exact_noise_cannot_do_is_refused_before_the_charge(settings, message):
    settings = {"noise": "exact", "method": dpb.Tracking(steps=2), "refit": None, "progress": False} | settings
    budget = settings.pop("budget", BUDGET)
    ledger, records = dpb.Ledger(budget), dpb.Records(upper=np.zeros((80, 2)), lower=np.zeros((160, 2)))
    with pytest.raises(InvalidArgument, match=message):
        dpb.solve(problem(), records, budget, start=START, ledger=ledger, **settings)
    assert ledger.entries == ()


def test_a_machine_without_opendp_refuses_before_the_charge(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    ledger, records = dpb.Ledger(BUDGET), dpb.Records(upper=np.zeros((80, 2)), lower=np.zeros((160, 2)))
    with pytest.raises(InvalidArgument, match=r"dpbilevel\[exact\]"):
        dpb.solve(problem(), records, BUDGET, start=START, ledger=ledger, noise="exact", progress=False)
    assert ledger.entries == ()
    assert planned("tracking", "exact").privacy.exact_noise, "planning draws nothing"


def test_an_epsilon_that_zcdp_cannot_meet_is_refused():
    with pytest.raises(InvalidArgument, match=r"is too small for delta"):
        for_exact_noise(dpb.Budget(1e-4, 0.01))


# ---- a run


def mean_problem():
    return dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
    )


@pytest.fixture(scope="module")
def solved():
    """The paper's warm-up, whose solution is minus the mean of the data, with either noise."""
    rows = np.clip(np.random.default_rng(0).normal(size=(4000, 3)) * 0.3 + [0.4, -0.1, 0.2], -1, 1)
    inner = dpb.DPLocGD(strong_convexity=1.0, smoothness=1.0, clip_norm=2.0, radius=3.0, steps=10, rounds=1)
    method = dpb.DPBilevel(inner=inner, penalty_weight=10.0, steps=10, step_size=0.5)
    ledger = dpb.Ledger(dpb.Budget(20.0, 1e-4))
    start, budget = (np.zeros(3), np.zeros(3)), dpb.Budget(8.0, 5e-5)
    settings = {"method": method, "start": start, "progress": False}
    exact = dpb.solve(mean_problem(), dpb.Records(lower=rows), budget, ledger=ledger, noise="exact", **settings)
    plain = dpb.solve(mean_problem(), dpb.Records(lower=rows), budget, seed=0, **settings)
    return exact, plain, rows, ledger


@pytest.mark.filterwarnings("ignore::dpbilevel.errors.NotPrivateWarning")
def test_a_run_ends_where_one_with_float_noise_does(solved):
    exact, plain, rows, _ = solved
    error, usual = (np.linalg.norm(solution.x + rows.mean(axis=0)) for solution in (exact, plain))
    assert error < 0.04, "either noise leaves an error of 0.004 on average, and of 0.011 at most in 60 runs"
    assert usual < 0.04


def test_a_run_says_what_was_spent_and_how_it_was_computed(solved):
    exact, *_ = solved
    privacy = exact.privacy
    assert 7.99 < privacy.epsilon() <= 8
    assert privacy.mu is None
    assert not privacy.void
    assert "zero-concentrated DP of discrete Gaussian noise" in privacy.sentence()
    assert privacy.delta(8.0) <= 5e-5
    assert privacy.epsilon() < privacy.epsilon(group=2) < privacy.epsilon(group=3)
    assert 0 < privacy.tradeoff(0.05) < 0.95
    assert sum(privacy.shares("lower")) == pytest.approx(1)
    assert "sqrt(2 rho)" in exact.summary()


def test_a_ledger_adds_exact_runs_by_epsilon_and_delta(solved):
    exact, _, _, ledger = solved
    assert ledger.composition == "basic"
    assert ledger.spent() == exact.privacy.epsilon()
    assert ledger.entries[0].mu is None
    gaussian = dpb.Ledger(BUDGET, composition="gaussian")
    with pytest.raises(InvalidArgument, match="compose as full-batch Gaussians"):
        gaussian.charge(planned("tracking", "exact").releases, BUDGET, "exact")


def test_a_saved_run_is_read_back_as_it_was(solved, tmp_path):
    exact, plain, *_ = solved
    again = dpb.Solution.load(exact.save(tmp_path / "run.json"))
    assert again.privacy.exact_noise
    assert again.privacy.epsilon() == exact.privacy.epsilon()
    assert not dpb.Solution.load(plain.save(tmp_path / "plain.json")).privacy.exact_noise


def test_the_plan_of_a_run_has_its_units_and_its_integer_noise(solved):
    exact, *_ = solved
    for release in ("lower solve", "penalised solve"):
        unit, noise, units = (exact.parameters[f"{release}: {what}"][0] for what in ("unit", "noise", "noise in units"))
        assert units == noise / unit
        assert units > 2**10


def test_programs_with_calls_of_black_boxes_are_refused_by_themselves():
    event, roles = dpb.GaussianDP(0.01), {"lower": 160}
    call = Call(release=DeclaredRelease(name="training", roles=roles, event=event, uses=1), run=lambda state, _: state)
    program = Program(rounds=1, stages=[call], start=max, observe=max, finish=max)
    with pytest.raises(InvalidArgument, match="does not apply to 'training', a black box"):
        program.discretized({})


def executed(release, rows, rounds, uses=1):
    """All answers of a release."""
    stage = Stage(
        release=release,
        uses_per_round=uses,
        begin=lambda state: jnp.zeros((uses, rows.shape[1])),
        query=lambda state, carry, step: None,
        update=lambda state, carry, answer, step: carry.at[step].set(answer),
        end=lambda state, carry: carry,
    )
    program = Program(
        rounds=rounds,
        stages=[stage],
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )
    start, records = jnp.zeros((uses, rows.shape[1])), dpb.Records(lower=rows)
    receipt = Receipt([release])
    return np.asarray(records.execute(program, receipt, KeySchedule(), start, rounds)[1])


@pytest.mark.parametrize("double", [False, True])
def test_answers_are_means_with_fresh_noise_of_the_declared_size(double):
    rows = np.tile(np.float32([[0.25, -0.5]]), (100, 1))
    part = dpb.Contribution(lambda point, record: record, 1.0, 100)
    release = dpb.Release(name="mean", contributions={"lower": part}, noise_std=0.02, uses=4000).discretized(2)
    with jax.enable_x64(double):
        answers = executed(release, rows, 2000, 2).reshape(4000, 2)
    assert answers.dtype == (np.float64 if double else np.float32)
    noise = (answers - rows[0]) / 0.02
    # Five and a half standard errors each: a false alarm in about one of a million runs.
    assert np.abs(noise.mean(axis=0)).max() < 5.5 / math.sqrt(4000)
    assert np.abs(noise.var(axis=0) - 1).max() < 5.5 * math.sqrt(2 / 4000)
    assert abs(np.mean(noise[:, 0] * noise[:, 1])) < 5.5 / math.sqrt(4000)
    assert abs(np.mean(noise[1:] * noise[:-1])) < 5.5 / math.sqrt(8000)
    assert len(np.unique(answers, axis=0)) == 4000, "no two uses have the same noise"
    if double:
        units = answers / release.grid.unit
        assert np.array_equal(units, np.rint(units)), "every answer is a whole number of units"


# ---- what people read


def exact_solution():
    whole = made()
    charges = {
        role: tuple(dataclasses.replace(charge, exact=True) for charge in charges)
        for role, charges in whole.privacy.charges.items()
    }
    return with_privacy(whole, charges=charges)


def test_the_guarantee_of_a_report_is_true_of_either_noise():
    plain, exact = guarantee(made()), guarantee(exact_solution())
    assert "lowest bits of floating-point noise" in plain.sentence
    assert any("lowest bits are not protected" in line for line in plain.assumptions)
    assert "float64" in dict(plain.terms)["Noise"]
    assert "floating-point" not in exact.sentence
    assert "rounded to integers before integer noise was added" in exact.sentence
    assert "attacks on timing are out of reach" in exact.sentence
    assert not any("float" in line for line in exact.assumptions)
    assert any("OpenDP" in line for line in exact.assumptions)
    assert "OpenDP samples exactly" in dict(exact.terms)["Noise"]
    assert "zero-concentrated" in dict(exact.terms)["Accountant"]


def test_a_report_explains_the_spend_by_rho():
    reported = content(Review(solution=exact_solution()))
    assert reported["guarantee"]["noise"] == "exact"
    assert reported["guarantee"]["mu"] is None
    assert "rho of zCDP is the sum" in spend_words(reported)
    assert "mu = " in spend_words(content(Review(solution=made())))


@pytest.mark.slow
def test_an_estimator_takes_exact_noise():
    from dpbilevel.estimators import DPRidgeCV

    rows = np.random.default_rng(0).normal(size=(3000, 2)) / 4
    settings = {"data_norm": 1.0, "target_range": (-1, 1), "method": dpb.Tracking(steps=3), "noise": "exact"}
    fitted = DPRidgeCV(epsilon=3.0, **settings).fit(rows, rows[:, 0])
    assert fitted.privacy_.exact_noise
    assert fitted.privacy_.epsilon() <= 3
    assert fitted.solution_.parameters["noise"][0] == "exact"
    with pytest.raises(InvalidArgument, match="random_state=1: exact noise has no seed; leave random_state out"):
        DPRidgeCV(random_state=1, **settings).fit(rows, rows[:, 0])


def test_an_evaluation_takes_exact_noise():
    rows = np.linspace(-1, 1, 4000)
    scored = dpb.evaluate(lambda rows: rows > 0.1, (rows, rows > 0), dpb.Budget(1.0, 1e-5), noise="exact")
    assert scored.values["accuracy"] == pytest.approx(0.95, abs=0.01)
    assert scored.privacy.exact_noise
    assert 0.999 < scored.privacy.epsilon() <= 1
    with pytest.raises(InvalidArgument, match="exact noise has no seed"):
        dpb.evaluate(lambda rows: rows, (rows, rows), dpb.Budget(1.0, 1e-5), noise="exact", seed=1)
