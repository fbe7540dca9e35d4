"""Units: replacing all rows of a person moves no answer by more than is charged for, in any method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import unit_neighbours as units
from support.every_method import BUDGET, PROBLEM, START, data, solved

import dpbilevel as dpb
from dpbilevel.audit import Case, audit, of_units, standard_cases
from dpbilevel.baselines import AdaSSP
from dpbilevel.baselines.ada_ssp import PRODUCTS
from dpbilevel.methods.preconditioned import MOMENTS
from dpbilevel.methods.scale import SCALE
from dpbilevel.methods.unit_losses import problem_of_units
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy import second_moments
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.clipping import clipped


@pytest.mark.parametrize("name", units.TAKEN)
def test_no_unit_moves_an_answer_by_more_than_the_sensitivity(name):
    (found,) = units.check_units([name]).values()
    assert found > 0.3, "the search is weak"


@pytest.mark.parametrize("name", ["Tracking", "DPBilevel", "FixedDefault"])
def test_rows_that_are_clipped_one_by_one_are_noticed(name, monkeypatch):
    monkeypatch.setattr(release_module, "clipped_sum", units.clipped_row_by_row)
    with pytest.raises(AssertionError):
        units.check_units([name])


def test_a_unit_without_rows_that_contributes_is_noticed(monkeypatch):
    monkeypatch.setattr(units, "stored", units.stored_with_a_row)
    with pytest.raises(AssertionError):
        units.check_units(["Tracking"])


@pytest.mark.parametrize("kind", ["logistic", "squared", "softmax"])
def test_no_unit_moves_an_answer_of_the_training_of_a_linear_model(kind):
    """Second moments, gradients and the scale of several classes: all rows of a unit count once."""
    found = units.check_plan(*units.linear_plan(kind), np.random.default_rng(0))
    assert set(found) == {MOMENTS, "training"} | ({SCALE} if kind == "softmax" else set())
    assert min(found.values()) > 0.3, "the search is weak"


def test_no_unit_moves_a_statistic_of_a_ridge_regression():
    found = units.check_plan(*units.linear_plan("squared", AdaSSP()), np.random.default_rng(0))
    assert set(found) == {MOMENTS, PRODUCTS}
    assert min(found.values()) > 0.3, "the search is weak"


def _row_by_row(bundles, present, clip):
    _, most, columns = bundles.shape
    return clipped(bundles.reshape(-1, columns), jnp.repeat(present, most), clip).reshape(bundles.shape)


@pytest.mark.parametrize(
    ("module", "name", "broken"),
    [
        (second_moments, "clipped_bundles", _row_by_row),
        (release_module, "clipped_sum", units.clipped_row_by_row),
    ],
)
@pytest.mark.parametrize("given", [("logistic",), ("squared", AdaSSP())], ids=["training", "AdaSSP"])
def test_rows_of_a_linear_model_that_are_clipped_one_by_one_are_noticed(given, module, name, broken, monkeypatch):
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(AssertionError):
        units.check_plan(*units.linear_plan(*given), np.random.default_rng(0))


@pytest.mark.parametrize("name", ["Tracking", "DPBilevel, without replacement", "PrivateRandomSearch"])
def test_units_of_one_row_are_rows_bit_for_bit(name):
    numbers = {"upper": np.arange(units.UNITS), "lower": np.arange(units.UNITS) + 1000}
    rows = solved(name, dpb.Records(**data()), seed=3)
    one = solved(name, dpb.Records(**data(), unit=numbers, rows_per_unit=1), seed=3)
    assert jax.tree.all(jax.tree.map(np.array_equal, (rows.x, rows.y, rows.history), (one.x, one.y, one.history)))
    assert rows.privacy.epsilon() == one.privacy.epsilon()
    assert "one unit" in one.privacy.sentence()
    assert "one record" in rows.privacy.sentence()


@pytest.mark.parametrize("name", sorted(units.REFUSED))
def test_what_does_not_take_units_says_so_before_the_charge(name):
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    with pytest.raises(dpb.InvalidArgument, match="rows_per_unit"):
        solved(name, units.records(), ledger=ledger)
    assert ledger.entries == ()


def test_a_unit_with_a_broken_row_contributes_nothing_as_a_whole():
    arrays = units.table()
    arrays["upper"][5] = np.nan  # one of the three rows of unit 5
    with pytest.raises(dpb.InvalidRecords, match="finite"):
        dpb.Records(**arrays, unit=units.ids(), rows_per_unit=4)
    broken = dpb.Records(**arrays, unit=units.ids(), rows_per_unit=4, invalid="zero")
    arrays["upper"][5 :: units.UNITS] = np.inf
    worse = dpb.Records(**arrays, unit=units.ids(), rows_per_unit=4, invalid="zero")
    assert broken.seal(bytes(32)) == worse.seal(bytes(32))


# ------------------------------------------------------------------------------------------------------------ audits

K = 8
AUDITED = dpb.Budget(4.0, 1e-3)
MEAN = dpb.BilevelProblem(
    upper_term=lambda x, y: 0.5 * (x + y) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
)
ONE_STEP = dpb.DPBilevel(
    inner=dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1), steps=1, step_size=0.5, clip_norm=1.0
)


def canary(method, problem):
    """A unit of eight rows far on one side, or on the other side; everybody else is at zero."""
    rows = np.zeros((48, K), np.float32)
    one, other = rows.copy(), rows.copy()
    one[0], other[0] = 10.0, -10.0
    there = np.ones(rows.shape, bool)
    return Case(
        name="units",
        problem=problem_of_units(problem, float(K)),
        method=method,
        start=(0.0, 0.0),
        refit=None,
        records={"lower": Bundle(one, there)},
        neighbour={"lower": Bundle(other, there)},
    )


@pytest.mark.parametrize("method", [ONE_STEP, dpb.Refit(steps=1)], ids=["DPBilevel", "Refit"])
def test_audits_of_a_unit_stay_below_the_claim(method):
    found = audit(canary(method, MEAN), AUDITED, runs=2000, confidence=0.999)
    assert found.passed
    assert found.lower_bound > 0.5 * found.reach, "the audit is weak"


WORST_BUDGET = dpb.Budget(4.0, 1e-2)
WORST = {case.name: case for case in standard_cases(WORST_BUDGET) if "units" not in case.name}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.heavy) for name in WORST])
def test_audits_of_every_method_stay_below_the_claim(name):
    """The worst cases of rows, with eight rows for each: the sum over a unit is eight times that over a row."""
    found = audit(of_units(WORST[name], K), WORST_BUDGET, runs=4000)
    assert found.passed, found


def test_units_are_among_the_cases_of_the_command():
    found = {case.name: case for case in standard_cases(WORST_BUDGET) if "units of 8 rows" in case.name}
    assert len(found) == 3
    for name, case in found.items():
        (role, index), rows = case.differing(), WORST[name.removesuffix(", units of 8 rows")]
        assert (role, index) == rows.differing()
        assert case.records[role].present.shape == (rows.sizes.count(role), K)
        with pytest.raises(dpb.InvalidArgument, match="one of units already"):
            of_units(case)


def test_an_audit_of_units_notices_a_clip_of_rows(monkeypatch):
    """Eight equal rows that are clipped one by one count eight times."""
    case = of_units(WORST["DPBilevel, DPLocGD, one step"], K)
    assert audit(case, WORST_BUDGET, runs=1000).passed
    monkeypatch.setattr(release_module, "clipped_sum", units.clipped_row_by_row)
    assert not audit(case, WORST_BUDGET, runs=1000).passed


class Rows(Case):
    """Two data sets that differ in several rows."""

    def differing(self):
        return "lower", 0


@pytest.mark.parametrize("method", [ONE_STEP, dpb.Refit(steps=1)], ids=["DPBilevel", "Refit"])
def test_the_same_canary_breaks_the_claim_of_a_run_on_rows(method):
    """Eight rows of one person change together: a guarantee for rows does not cover them."""
    one = canary(method, MEAN)
    one, other = (tree["lower"].rows.reshape(-1) for tree in (one.records, one.neighbour))
    case = Rows(
        name="rows",
        problem=MEAN,
        method=method,
        start=(0.0, 0.0),
        refit=None,
        records={"lower": one},
        neighbour={"lower": other},
    )
    found = audit(case, AUDITED, runs=2000, confidence=0.999)
    assert found.lower_bound > found.claimed


# ------------------------------------------------------------------------------------------------------------ ledger


def test_a_ledger_is_one_of_rows_or_one_of_units():
    total, run = dpb.Budget(20.0, 1e-3), {"method": dpb.Refit(steps=2), "refit": None, "start": START}
    budget = dpb.Budget(BUDGET.epsilon, 1e-5)
    of_units, of_rows = dpb.Ledger(total), dpb.Ledger(total)
    dpb.solve(PROBLEM, units.records(), budget, ledger=of_units, progress=False, **run)
    dpb.solve(PROBLEM, units.records(rows_per_unit=3, mean_rows=None), budget, ledger=of_units, progress=False, **run)
    dpb.solve(PROBLEM, dpb.Records(**data()), budget, ledger=of_rows, progress=False, **run)
    for ledger, other in ((of_units, dpb.Records(**data())), (of_rows, units.records())):
        before = ledger.entries
        with pytest.raises(dpb.InvalidArgument, match="protects"):
            dpb.solve(PROBLEM, other, budget, ledger=ledger, progress=False, **run)
        assert ledger.entries == before
    assert [entry.rows_per_unit for entry in of_units.entries] == [4, 3]


# -------------------------------------------------------------------------------------- exact noise and checkpoints

SHORT = {"method": dpb.Refit(steps=2), "refit": None, "start": START, "progress": False}


def test_units_have_exact_noise_too():
    pytest.importorskip("opendp")
    solution = dpb.solve(PROBLEM, units.records(), BUDGET, noise="exact", **SHORT)
    assert solution.privacy.exact_noise
    assert solution.privacy.epsilon() <= BUDGET.epsilon * (1 + 1e-9)
    assert "one unit" in solution.privacy.sentence()


def test_a_checkpoint_is_not_resumed_with_other_units(tmp_path):
    path = tmp_path / "run"
    dpb.solve(PROBLEM, units.records(), BUDGET, checkpoint=path, **SHORT)
    for other in ({"mean_rows": 3.0}, {"rows_per_unit": 3}):
        with pytest.raises(dpb.CheckpointRefused):
            dpb.solve(PROBLEM, units.records(**other), BUDGET, checkpoint=path, **SHORT)


def test_a_solution_keeps_its_unit_in_a_file(tmp_path):
    solution = dpb.solve(PROBLEM, units.records(), BUDGET, **SHORT)
    read = dpb.Solution.load(solution.save(tmp_path / "solution.json"))
    assert read.privacy.sentence() == solution.privacy.sentence()
    assert read.privacy.rows_per_unit == units.MOST
    text = solution.report(tmp_path / "report.md").read_text(encoding="utf-8")
    assert "at most 4 are used" in text
    assert "For a person with several rows" not in text


def test_a_stored_ledger_is_one_of_rows_or_one_of_units(tmp_path):
    url, total = f"sqlite:///{tmp_path}/ledger.db", dpb.Budget(20.0, 1e-3)
    dpb.solve(PROBLEM, units.records(), BUDGET, ledger=dpb.Ledger.open(url, dataset="visits", total=total), **SHORT)
    ledger = dpb.Ledger.open(url, dataset="visits")
    assert [entry.rows_per_unit for entry in ledger.entries] == [units.MOST]
    assert ledger.entries[0].privacy().rows_per_unit == units.MOST
    with pytest.raises(dpb.InvalidArgument, match="protects rows"):
        dpb.solve(PROBLEM, dpb.Records(**data()), BUDGET, ledger=ledger, **SHORT)
