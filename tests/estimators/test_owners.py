"""Rows of one person in an estimator: all of them have one role, and are one record."""

import pickle
import re

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.audit import Case
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV
from dpbilevel.estimators.owners import Owners
from dpbilevel.estimators.split import split_by_hash
from dpbilevel.methods.preconditioned import MOMENTS

PEOPLE, K = 400, 5


def table(seed=0):
    """Four rows on average for each person, with a direction that separates two classes."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(PEOPLE), rng.integers(0, PEOPLE, size=3 * PEOPLE)])
    rows = rng.normal(size=(len(ids), 3)) / 3
    return rows, (rows[:, 0] > 0).astype(int), np.char.add("person ", ids.astype(str))


def model(**settings):
    known = {"epsilon": 8.0, "delta": 1e-4, "data_norm": 1.0, "classes": [0, 1], "rows_per_unit": K, "mean_rows": 4}
    return DPLogisticRegressionCV(**(known | settings))


def roles(ids, seed=0):
    """The validation units."""
    names = np.unique(ids)
    return set(names[split_by_hash(names, 0.2, seed)[0]].tolist())


def test_all_rows_of_a_unit_have_one_role_and_sizes_count_units():
    rows, _, ids = table()
    records, sizes, bundled = Owners(ids, K, 4.0, 0.2, 0).split((rows,), (rows,))
    assert not set(bundled["unit"]["upper"]) & set(bundled["unit"]["lower"])
    assert (sizes.count("upper"), sizes.count("lower")) == (80, 320)
    assert len(records["upper"][0]) + len(records["lower"][0]) == len(rows)
    assert dpb.Records(**records, **bundled).sizes == sizes


def test_a_role_depends_on_the_set_of_ids_alone():
    *_, ids = table()
    shuffled = np.random.default_rng(1).permutation(np.concatenate([ids, ids[:50], ids[:7]]))
    assert roles(ids) == roles(shuffled)
    assert roles(ids) != roles(ids, seed=1)


def test_another_id_moves_at_most_one_other_unit():
    ids = np.arange(500)
    for one in range(50):
        other = np.where(ids == one, 10_000 + one, ids)
        assert len((roles(ids) ^ roles(other)) - {one, 10_000 + one}) <= 1


def test_a_fit_names_its_units_and_is_what_was_planned():
    rows, labels, ids = table()
    fitted = model().fit(rows, labels, units=ids)
    assert fitted.score(rows, labels) > 0.8
    assert fitted.solution_.sizes == {"upper": 80, "lower": 320}
    assert fitted.privacy_.rows_per_unit == K
    assert "all of its rows, of which at most 5 are used" in fitted.privacy_.sentence()
    planned = model().plan(rows=PEOPLE, columns=3)
    assert planned.privacy.charges == fitted.privacy_.charges
    assert "400 units" in model(delta=None).plan(rows=PEOPLE, columns=3).parameters["delta"][1]


def test_a_regression_of_units():
    rows, _, ids = table()
    fitted = DPRidgeCV(epsilon=50.0, delta=1e-4, data_norm=1.0, target_range=(-1, 1), rows_per_unit=K, mean_rows=4).fit(
        rows, rows[:, 1], units=ids
    )
    assert fitted.score(rows, rows[:, 1]) > 0.5


def test_an_audit_of_an_estimator_compares_units():
    rows, labels, ids = table()
    other = rows.copy()
    other[ids == ids[3]] *= -1
    assert (ids == ids[3]).sum() > 1
    fits = [{"X": X, "y": labels, "units": ids} for X in (rows, other)]
    case = Case.of_estimator("units", model(), *fits)
    assert case.number == PEOPLE
    assert case.planned(dpb.Budget(1.0, 1e-4)).privacy.epsilon() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "units", "words"),
    [
        ({}, None, "units: must be given"),
        ({"rows_per_unit": None, "mean_rows": None}, "ids", "rows_per_unit=None"),
        ({"rows_per_unit": 0, "mean_rows": None}, "ids", "rows_per_unit=0"),
        ({"rows_per_unit": None}, None, "mean_rows"),
        ({}, "short", "another length"),
        ({}, "one", "at least 2 ids"),
        ({"unit_ids": ["person 1"]}, "ids", "unit_ids: must list all ids"),
        ({"unit_ids": ["person 1"], "rows_per_unit": None, "mean_rows": None}, None, "unit_ids: must be left out"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_charge(settings, units, words):
    rows, labels, ids = table()
    given = {"ids": ids, "short": ids[1:], "one": np.zeros(len(ids), int), None: None}[units]
    ledger = dpb.Ledger(dpb.Budget(10.0, 1e-3))
    with pytest.raises(dpb.InvalidArgument, match=words) as caught:
        model(ledger=ledger, **settings).fit(rows, labels, units=given)
    assert "person" not in str(caught.value)
    assert ledger.entries == ()


@pytest.mark.parametrize("groups", [None, [0, 1, 2]])
def test_a_fit_of_units_takes_the_same_releases_as_one_of_rows(groups):
    of_units = model(groups=groups, rows_per_unit=K).plan(rows=PEOPLE, columns=3)
    of_rows = model(groups=groups, rows_per_unit=None, mean_rows=None).plan(rows=PEOPLE, columns=3)
    names = [[release.name for release in planned.releases] for planned in (of_units, of_rows)]
    assert names[0] == names[1]
    assert MOMENTS in names[0]
    assert "second moments: clip" in of_units.parameters
    assert "second moments: clip" not in of_rows.parameters


def test_a_declared_list_fixes_the_units_and_their_roles():
    """Also of those without rows: who has rows changes neither numbers nor the roles of others."""
    rows, labels, ids = table()
    listed = [f"person {one}" for one in range(PEOPLE + 100)]
    gone = ids != "person 3"
    made = [model(unit_ids=listed)._prepare(rows[mine], labels[mine], units=ids[mine]) for mine in (ids == ids, gone)]
    for prepared in made:
        records = dpb.Records(**prepared.records, **prepared.units)
        assert records.sizes == prepared.planned.sizes
        assert [records.sizes.count(role) for role in ("upper", "lower")] == [100, 400]
    one, other = (prepared.units["unit_ids"] for prepared in made)
    assert all(np.array_equal(one[role], other[role]) for role in one)
    fitted = model(unit_ids=listed, method=dpb.Refit(steps=2)).fit(rows, labels, units=ids)
    assert fitted.solution_.sizes == {"upper": 100, "lower": 400}


def test_no_repr_has_an_id_or_a_cell():
    rows, labels, ids = table()
    prepared = model()._prepare(rows, labels, units=ids)
    owners = Owners.of(ids, rows, len(rows), model())
    for made in (prepared, owners, owners.split((rows, labels), (rows, labels))):
        assert "person" not in repr(made)
        assert not re.search(r"\d\.\d{4}", repr(made))


@pytest.mark.parametrize("wrong", ["labels", "no columns", "ids"])
def test_no_message_has_the_private_number_of_rows(wrong):
    rows, labels, ids = table()
    given = {
        "labels": (rows, labels[1:], ids),
        "no columns": (rows[:, :0], labels, ids),
        "ids": (rows, labels, ids[1:]),
    }
    with pytest.raises(dpb.InvalidRecords) as caught:
        model().fit(*given[wrong][:2], units=given[wrong][2])
    assert not {str(len(rows)), str(len(rows) - 1)} & set(re.findall(r"\d+", str(caught.value)))


@pytest.mark.parametrize("knots", ["auto", {0: "auto", 1: 3}])
@pytest.mark.parametrize("derived", [lambda rows: rows, lambda rows: rows[:, :2], lambda rows: np.hstack([rows, rows])])
def test_rows_whose_columns_follow_from_their_private_number_are_refused(knots, derived):
    rows, labels, ids = table()
    ledger, ranges = dpb.Ledger(dpb.Budget(10.0, 1e-3)), dict.fromkeys(range(3), (-1, 1))
    encoded = derived(dpb.BoundedEncoder(ranges=ranges, knots=knots).fit_transform(rows))
    for given in (encoded, pickle.loads(pickle.dumps(encoded)), encoded.astype(np.float64), encoded * 1.0):
        with pytest.raises(dpb.InvalidRecords, match='knots="auto": encoded these rows'):
            model(ledger=ledger, data_norm=None).fit(given, labels, units=ids)
        with pytest.raises(dpb.InvalidRecords, match='knots="auto": encoded these rows'):
            dpb.Records(lower=(given, labels), unit=ids, rows_per_unit=K)
    assert ledger.entries == ()
    declared = derived(dpb.BoundedEncoder(ranges=ranges, knots={0: 3}).fit_transform(rows))
    model(data_norm=None)._prepare(declared, labels, units=ids)
