"""The private histogram of rows per unit."""

import math

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.evaluation import unit_sizes as module
from dpbilevel.evaluation.unit_sizes import unit_sizes

BUDGET = dpb.Budget(1.0, 1e-4)
PEOPLE = np.repeat(np.arange(400), np.arange(400) % 20 + 1)


@pytest.fixture(scope="module")
def found():
    with pytest.warns(dpb.NotPrivateWarning):
        return unit_sizes(PEOPLE, BUDGET, largest=8, seed=0)


def test_bins_are_powers_of_two_and_hold_the_fractions(found):
    assert list(found.fractions) == [1, 2, 4, 8, float("inf")]
    truth = np.array([1, 1, 2, 4, 12]) / 20
    assert np.abs(np.array([*found.fractions.values()]) - truth).max() < 5 * found.noise_std
    assert found.covered(4) == pytest.approx(4 / 20, abs=9 * found.noise_std)
    assert "one unit" in repr(found)


def test_one_unit_moves_the_answer_by_no_more_than_the_sensitivity():
    """With the same seed the noise cancels: what is left is what one unit of 20 rows that becomes one row moves."""
    other = np.concatenate([PEOPLE[PEOPLE != 19], [19]])
    with pytest.warns(dpb.NotPrivateWarning):
        one, changed = (unit_sizes(ids, BUDGET, largest=8, seed=1) for ids in (PEOPLE, other))
    moved = np.subtract([*one.fractions.values()], [*changed.fractions.values()])
    assert np.linalg.norm(moved) == pytest.approx(np.sqrt(2) / 400, rel=1e-3)
    assert np.linalg.norm(moved) <= module._release(5, 400, BUDGET).sensitivity("lower")


def test_the_guarantee_says_that_all_rows_are_counted(found):
    assert "(one person, or whatever an id denotes: all of its rows);" in found.privacy.sentence()
    assert "replacing all rows of one unit" in found.privacy.sentence()
    again = dpb.Privacy.from_json(found.privacy.to_json())
    assert (again.sentence(), again.label()) == (found.privacy.sentence(), found.privacy.label())
    assert "one is used" in dpb.Privacy({}, BUDGET, rows_per_unit=1).sentence()


def test_it_is_charged_to_a_ledger_of_units():
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-3))
    unit_sizes(PEOPLE, BUDGET, ledger=ledger)
    assert [entry.rows_per_unit for entry in ledger.entries] == [1]
    with pytest.raises(dpb.InvalidArgument, match="protects rows"):
        dpb.evaluate(lambda rows: rows > 0, (np.zeros(400), np.zeros(400) > 0), BUDGET, ledger=ledger)
    with pytest.raises(dpb.BudgetExceeded):
        unit_sizes(PEOPLE, dpb.Budget(3.0, 1e-4), ledger=ledger)


def test_units_without_rows_are_in_no_bin():
    listed = np.concatenate([PEOPLE, PEOPLE.max() + 1 + np.arange(len(np.unique(PEOPLE)))])
    one = unit_sizes(PEOPLE, BUDGET, largest=4, unit_ids=np.unique(listed))
    assert one.units == 2 * len(np.unique(PEOPLE))
    assert abs(sum(one.fractions.values()) - 0.5) < 6 * one.noise_std * math.sqrt(len(one.fractions))


@pytest.mark.parametrize(
    ("ids", "options", "words"),
    [
        (np.array(["secret", "", "b"]), {}, "none of them missing"),
        (np.arange(4.0), {}, "floating"),
        (5, {}, "unit"),
        (PEOPLE, {"largest": 0}, "largest=0"),
        (PEOPLE, {"unit_ids": [1, 2]}, "unit_ids: must list all ids"),
        (PEOPLE, {"budget": dpb.Budget(float("inf"))}, "finite epsilon"),
        (PEOPLE, {"budget": dpb.Budget(1.0, 0.1)}, "delta"),
    ],
)
def test_bad_input_is_refused_before_the_charge(ids, options, words):
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-3))
    with pytest.raises(dpb.InvalidArgument, match=words) as caught:
        unit_sizes(ids, **({"budget": BUDGET, "ledger": ledger} | options))
    assert "secret" not in str(caught.value)
    assert ledger.entries == ()


def test_only_ends_of_bins_have_a_fraction(found):
    with pytest.raises(dpb.InvalidArgument, match="end of a bin"):
        found.covered(3)
