"""Estimators on units: all rows of one, in whatever sources or tasks, move no answer by more than is charged for."""

import functools

import numpy as np
import pytest
from support import unit_neighbours as units
from support.estimator_cases import CASES, PLACES, QUICK, X, every_case, released

import dpbilevel as dpb
from dpbilevel.audit import Case, audit
from dpbilevel.audit.case import _bundled
from dpbilevel.methods.preconditioned import MOMENTS
from dpbilevel.privacy import release as release_module

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.NotPrivateWarning")

PEOPLE = np.arange(60) // 3
BOUNDS = {"rows_per_unit": units.MOST, "mean_rows": 3}
WEIGHTED = ("weighted classifier", "weighted regressor")


def test_the_rows_of_a_unit_are_in_several_sources():
    assert max(len(set(PLACES[person == PEOPLE])) for person in range(20)) == 2


@every_case
def test_a_fit_protects_units_and_is_what_was_planned(case):
    ledger = dpb.Ledger(dpb.Budget(1.0, 0.04))
    model = case.make(**BOUNDS, delta=None, ledger=ledger).fit(X, case.y, units=PEOPLE, **case.more())
    assert model.solution_.sizes == {"upper": 4, "lower": 16}
    assert [entry.rows_per_unit for entry in ledger.entries] == [units.MOST]
    assert "all of its rows, of which at most 4 are used" in model.privacy_.sentence()
    planned = case.make(**BOUNDS, delta=None).plan(20, 3)
    assert planned.parameters == model.solution_.parameters
    assert planned.privacy.charges == model.privacy_.charges
    assert "n = 20 units" in planned.parameters["delta"][1]


# ------------------------------------------------------------------------------------- the search for neighbours


@functools.cache
def tuned(name):
    """The plan of a fit with tuning and training, and its units."""
    case = CASES[name]
    given = {"tasks" if name == "multitask" else "sources": PLACES}
    model = case.make(method=dpb.Tracking(steps=2), epsilon=8.0, delta=1e-3, **BOUNDS)
    prepared = model._prepare(X, case.y, units=PEOPLE, **given)
    held = {role: (unit, np.ones(len(unit.present), bool)) for role, unit in _bundled(prepared).items()}
    return prepared.planned, held


# In `make test`, units whose rows are in several sources are those of test_unit_neighbours.py.
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["weighted classifier", "multitask"])
def test_no_unit_of_several_sources_or_tasks_moves_an_answer_by_more_than_the_sensitivity(name):
    found = units.check_plan(*tuned(name), np.random.default_rng(0))
    assert len(found) >= 2
    assert max(found.values()) > 0.3, "the search is weak"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["weighted classifier", "multitask"])
def test_rows_of_sources_that_are_clipped_one_by_one_are_noticed(name, monkeypatch):
    monkeypatch.setattr(release_module, "clipped_sum", units.clipped_row_by_row)
    with pytest.raises(AssertionError):
        units.check_plan(*tuned(name), np.random.default_rng(0))


# ---------------------------------------------------------------------------------------------- one row for each unit


@pytest.mark.parametrize("name", ["logistic", "ridge", "multitask"])
def test_units_of_one_row_are_rows_bit_for_bit(name):
    """With the same roles: those of units follow from ids, those of rows from positions."""
    case, ids = CASES[name], np.arange(60)
    given = case.more() | {"units": ids}
    prepared = case.make(epsilon=8.0, delta=1e-3, rows_per_unit=1)._prepare(X, case.y, **given)
    settings = {"start": prepared.planned.start, "method": QUICK, "refit": None, "seed": 3, "progress": False}
    rows, one = (
        dpb.solve(
            prepared.planned.problem, dpb.Records(**prepared.records, **more), prepared.planned.budget, **settings
        )
        for more in ({}, prepared.units)
    )
    assert np.array_equal(rows.y, one.y)
    # Linear models are trained by steps that are preconditioned by second moments.
    assert any(charge.release == MOMENTS for charge in one.privacy.charges["lower"]) == (name != "multitask")
    assert rows.privacy.epsilon() == one.privacy.epsilon()
    assert (rows.privacy.rows_per_unit, one.privacy.rows_per_unit) == (None, 1)


@pytest.mark.parametrize("name", [WEIGHTED[0], pytest.param(WEIGHTED[1], marks=pytest.mark.heavy)])
def test_weighted_units_of_one_row_are_rows_bit_for_bit(name):
    case, clean = CASES[name], (X[:20], CASES[name].y[:20])
    rest = {"X": X[20:], "y": case.y[20:], "sources": PLACES[20:]}
    fixed = {"random_state": 0, "method": dpb.Tracking(steps=2)}
    rows = case.make(**fixed).fit(**rest, validation=clean)
    validation, ids = (*clean, np.arange(20)), np.arange(20, 60)
    one = case.make(**fixed, rows_per_unit=1).fit(**rest, validation=validation, units=ids)
    np.testing.assert_array_equal(released(rows), released(one))
    assert one.privacy_.rows_per_unit == 1


# ------------------------------------------------------------------------------------------------------------- audits

K = 8
AUDITED = dpb.Budget(4.0, 1e-3)


IDS = np.repeat(np.arange(48), K)
ONCE = dpb.Refit(steps=1, clip_norm=1.0)

two_estimators = pytest.mark.parametrize(("name", "targets"), [("logistic", (1, 0)), ("ridge", (14.0, -6.0))])


def canaries(targets, **more):
    """Eight rows of one person all say the same, or all the opposite; everybody else has a row of zeros and one."""
    rows, y = np.zeros((len(IDS), 1)), np.resize(targets, len(IDS))
    canary = IDS == 7
    rows[canary] = 1.0
    return [{"X": rows, "y": np.where(canary, target, y), **more} for target in targets]


@two_estimators
def test_audits_of_an_estimator_with_a_unit_of_eight_rows_stay_below_the_claim(name, targets):
    model = CASES[name].make(method=ONCE, rows_per_unit=K, mean_rows=1)
    case = Case.of_estimator("units", model, *canaries(targets, units=IDS))
    found = audit(case, AUDITED, runs=2000, confidence=0.999)
    assert found.passed
    assert found.lower_bound > 0.3 * found.reach, "the audit is weak"


class Rows(Case):
    """Two data sets that differ in several rows."""

    def differing(self):
        return "lower", 0


@two_estimators
def test_the_same_canary_breaks_the_claim_of_a_fit_on_rows(name, targets):
    case = Rows.of_estimator("rows", CASES[name].make(method=ONCE), *canaries(targets))
    found = audit(case, AUDITED, runs=2000, confidence=0.999)
    assert found.lower_bound > found.claimed


# ------------------------------------------------------------------------------------------------------------ refusals


@every_case
@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        (BOUNDS, None, "units: must be given"),
        ({}, PEOPLE, "rows_per_unit=None"),
        ({"rows_per_unit": 0}, PEOPLE, "rows_per_unit=0"),
        (BOUNDS, PEOPLE[1:], "another length"),
        (BOUNDS, np.where(PEOPLE > 3, PEOPLE, np.nan), "floating-point"),
        (BOUNDS, ["secret"] * 59 + [None], "none of them missing"),
        (BOUNDS, np.zeros(60, int), "at least 2 ids"),
    ],
)
def test_bad_units_are_refused_before_the_charge_and_never_quoted(case, settings, given, words):
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    with pytest.raises(dpb.InvalidArgument, match=words) as caught:
        case.make(ledger=ledger, **settings).fit(X, case.y, units=given, **case.more())
    assert "secret" not in str(caught.value)
    assert ledger.entries == ()


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize(
    ("validating", "words"),
    [
        ((), r"validation: must be \(X, y, units\)"),
        ((np.arange(20),), "an id is in two roles"),
        ((np.arange(100, 119),), "another length"),
        ((np.array(["secret"] * 20),), "integers in all roles"),
    ],
)
def test_separate_validation_rows_have_units_of_their_own(name, validating, words):
    case, ledger = CASES[name], dpb.Ledger(dpb.Budget(10.0, 1e-3))
    model, rest = case.make(ledger=ledger, **BOUNDS), {"X": X[20:], "y": case.y[20:], "sources": PLACES[20:]}
    with pytest.raises(dpb.InvalidArgument, match=words) as caught:
        model.fit(**rest, validation=(X[:20], case.y[:20], *validating), units=PEOPLE[20:])
    assert "secret" not in str(caught.value)
    assert ledger.entries == ()
    planned = case.make(**BOUNDS).plan(14, 3, validation_rows=20)
    assert planned.sizes.count("upper") == 20


@pytest.mark.parametrize("name", WEIGHTED)
def test_validation_rows_with_units_are_for_a_fit_with_units(name):
    case = CASES[name]
    with pytest.raises(dpb.InvalidArgument, match=r"validation: must be a pair \(X, y\)"):
        case.make().fit(X, case.y, sources=PLACES, validation=(X, case.y, PEOPLE))
