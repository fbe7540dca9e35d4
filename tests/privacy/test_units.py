"""Units: which rows they hold, and that nothing about a unit depends on the rows of another."""

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.privacy.bundles import Bundle
from dpbilevel.privacy.units import Selection, read_ids

IDS = np.array(["b", "a", "c", "a", "b", "a", "a"])


def chosen(ids, most):
    """The kept rows of each unit, in the order of ids."""
    selection = Selection.of(np.asarray(ids), most)
    return [places[present].tolist() for places, present in zip(*selection.places, strict=True)]


def test_units_are_in_the_order_of_ids_and_hold_their_rows():
    assert chosen(IDS, 4) == [[1, 3, 5, 6], [0, 4], [2]]


def test_absent_rows_repeat_a_row_of_the_same_unit():
    places, present = Selection.of(IDS, 4).places
    assert places.tolist() == [[1, 3, 5, 6], [0, 4, 0, 0], [2, 2, 2, 2]]
    assert present.sum(axis=1).tolist() == [4, 2, 1]


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_a_unit_keeps_at_most_so_many_rows_and_all_that_fit(most):
    ids = np.random.default_rng(0).integers(0, 30, size=200)
    for unit, rows in zip(np.unique(ids), chosen(ids, most), strict=True):
        own = np.flatnonzero(ids == unit)
        assert len(rows) == min(most, len(own)) == len(set(rows))
        assert set(rows) <= set(own)


def test_the_kept_rows_are_not_the_first_ones():
    """The order of a table may have a meaning, such as time; positions are hashed."""
    (kept,) = chosen(np.zeros(1000, int), 100)
    assert 400 < np.mean(kept) < 600
    assert kept == sorted(kept)


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("seed", range(20))
def test_other_rows_of_one_unit_change_no_other_unit(most, seed):
    """Rows of one unit are removed, added or moved anywhere: shapes and the bundles of all others stay."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(9), rng.integers(0, 9, size=40)])
    values = rng.normal(size=49)
    others = ids != 4
    fresh = rng.integers(1, 12)
    places = np.sort(rng.integers(0, others.sum() + 1, size=fresh))
    other_ids, other_values = (
        np.insert(array[others], places, new) for array, new in ((ids, 4), (values, rng.normal(size=fresh)))
    )
    one, other = (Selection.of(i, most).bundled(v) for i, v in ((ids, values), (other_ids, other_values)))
    same = np.arange(9) != 4
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape
        assert np.array_equal(a[same], b[same])


LISTED = np.arange(12)  # of which 9, 10 and 11 never have rows


def check_others_stay(most, seed, listed):
    """One unit has all of its rows removed, or 0 to 11 others anywhere: shapes and the bundles of all others stay."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(9), rng.integers(0, 9, size=40)])
    values, changed = rng.normal(size=49), seed % 9
    others, fresh = ids != changed, int(rng.integers(0, 12)) * (seed % 3 > 0)
    places = np.sort(rng.integers(0, others.sum() + 1, size=fresh))
    tables = (ids, values), (np.insert(ids[others], places, changed), np.insert(values[others], places, 7.0))
    made = [(Selection.of(i, most, listed), v) for i, v in tables]
    one, other = ((s.bundled(v), s.usable(np.ones(len(v), bool))) for s, v in made)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape
        assert np.array_equal(np.delete(a, changed, axis=0), np.delete(b, changed, axis=0))
    assert other[1].tolist() == [unit < 9 and (unit != changed or fresh > 0) for unit in range(12)]
    for leaf in jax.tree.leaves(other[0]):
        assert not leaf[~other[1]].any()  # no row of another unit


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("seed", range(18))
def test_with_a_list_of_ids_a_unit_may_have_no_rows_and_changes_no_other(most, seed):
    check_others_stay(most, seed, LISTED)


def test_ids_that_are_read_off_the_rows_are_noticed():
    """The mutation: who has rows decides how many units there are."""
    with pytest.raises(AssertionError):
        check_others_stay(2, 0, None)


def test_units_of_one_row_are_rows_without_a_mask():
    rows = Selection.of(np.arange(5), 1).bundled({"a": np.arange(10.0).reshape(5, 2)})
    assert np.array_equal(rows["a"], np.arange(10.0).reshape(5, 2))


def test_sizes_are_numbers_of_units():
    records = dpb.Records(lower=np.zeros((7, 3)), unit=IDS, rows_per_unit=4, mean_rows=2.5)
    assert records.sizes.count("lower") == 3
    assert isinstance(records.sizes.record("lower"), Bundle)
    assert records.sizes.row("lower").shape == (3,)
    planned = dpb.RecordShapes(lower=np.zeros((3, 3)), rows_per_unit=4, mean_rows=2.5)
    assert records.sizes == planned
    assert records.sizes != dpb.RecordShapes(lower=np.zeros((3, 3)), rows_per_unit=4)
    assert records.sizes != dpb.RecordShapes(lower=np.zeros((3, 3)))
    assert repr(records) == "Records(lower=3 units of at most 4 rows; values hidden)"


SECRET = "id-4711"
BAD = {
    "another length": IDS[:-1],
    "two columns": np.stack([IDS, IDS]),
    "none": [None, *IDS[1:]],
    "an empty string": ["", *IDS[1:]],
    "nan": np.array([np.nan, *range(6)]),
    "nan among strings": np.array([float("nan"), *IDS[1:].tolist()], dtype=object),
    "nan in a list": [SECRET, float("nan"), "c", "d", "e", "f", "g"],
    "nan in a tuple": (SECRET, float("nan"), "c", "d", "e", "f", "g"),
    "NumPy's nan in a list": [SECRET, np.nan, *IDS[2:]],
    "nan that became text": np.array([SECRET, float("nan"), *IDS[2:].tolist()]),
    "None that became text": np.array([SECRET, None, *IDS[2:].tolist()], dtype=object).astype(str),
    "nan that became bytes": np.array([b"nan", *IDS[1:].astype("S")]),
    "a list of numbers and strings": [SECRET, "1", 1, 2, 3, 4, 5],
    "a list of integers and booleans": [1, True, 2, 3, 4, 5, 6],
    "floats": np.arange(7.0),
    "a list of floats": [float(one) for one in range(7)],
    "booleans": np.zeros(7, bool),
    "mixed": np.array([SECRET, 1, 2, 3, 4, 5, 6], dtype=object),
    "objects": [object()] * 7,
    "ragged": [[SECRET], [SECRET, SECRET], 1, 2, 3, 4, 5],
    "masked": np.ma.masked_array(np.arange(7), mask=np.arange(7) == 3),
    "too large": np.full(7, 2**63, np.uint64),
    "too large to convert": np.array([2**70] * 7, dtype=object),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ids_are_refused_and_never_quoted(name):
    with pytest.raises(dpb.InvalidRecords, match="unit: must") as caught:
        dpb.Records(lower=np.zeros((7, 3)), unit=BAD[name], rows_per_unit=2)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None  # NumPy's errors may quote an id


@pytest.mark.parametrize(
    "ids", [IDS, list(IDS), tuple(IDS), IDS.astype(object), np.arange(7, dtype=np.uint8), range(7), list(range(7))]
)
def test_ids_are_integers_or_strings(ids):
    assert read_ids(ids, 7).tolist() == list(ids)


def test_ids_may_be_bytes_and_short():
    assert read_ids([b"b", b"a"], 2).tolist() == [b"b", b"a"]
    assert read_ids(["n", "N"], 2).tolist() == ["n", "N"]


LIST = ["a", "b", "c", SECRET]


def test_a_declared_list_is_the_units():
    records = dpb.Records(lower=np.ones((7, 3)), unit=IDS, rows_per_unit=4, mean_rows=2.5, unit_ids=LIST)
    assert records.sizes == dpb.RecordShapes(lower=np.zeros((4, 3)), rows_per_unit=4, mean_rows=2.5)
    same = dpb.Records(lower=np.ones((7, 3)), unit=IDS, rows_per_unit=4, unit_ids=LIST[::-1])
    assert same.seal(bytes(32)) == records.seal(bytes(32))
    found = dpb.Records(lower=np.ones((7, 3)), unit=IDS, rows_per_unit=4)
    listed = dpb.Records(lower=np.ones((7, 3)), unit=IDS, rows_per_unit=4, unit_ids=["a", "b", "c"])
    assert listed.seal(bytes(32)) == found.seal(bytes(32))


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (["a", "b"], "unit_ids: must list all ids"),
        ([1, 2, 3], "unit_ids: must list all ids"),
        (["a", "b", "c", SECRET, SECRET], "an id is listed twice"),
        (["a", "b", "c", None], "unit_ids: must list"),
        ([1.0, 2.0], "unit_ids: must list"),
        (5, "unit_ids: must list"),
        ({"upper": LIST}, "unit_ids: must have the ids of the roles 'lower'"),
    ],
)
def test_lists_that_do_not_fit_are_refused_and_no_id_is_quoted(listed, words):
    ids = [SECRET, *IDS[1:]] if listed == ["a", "b"] else IDS
    with pytest.raises(dpb.InvalidRecords, match=words) as caught:
        dpb.Records(lower=np.zeros((7, 3)), unit=ids, rows_per_unit=2, unit_ids=listed)
    assert SECRET not in str(caught.value)


def test_lists_of_two_roles_are_disjoint():
    arrays = {"upper": np.zeros(7), "lower": np.zeros(3)}
    given = {"unit": {"upper": IDS, "lower": ["d", "e", "f"]}, "rows_per_unit": 2}
    with pytest.raises(dpb.InvalidRecords, match="unit_ids: must map the roles"):
        dpb.Records(**arrays, **given, unit_ids=LIST)
    with pytest.raises(dpb.InvalidRecords, match="unit_ids: an id is in two roles"):
        dpb.Records(**arrays, **given, unit_ids={"upper": LIST, "lower": ["d", "e", "f", "a"]})
    records = dpb.Records(**arrays, **given, unit_ids={"upper": LIST, "lower": ["d", "e", "f", "g", "h"]})
    assert [records.sizes.count(role) for role in ("upper", "lower")] == [4, 5]
    with pytest.raises(dpb.InvalidArgument, match="rows_per_unit"):
        dpb.Records(lower=np.zeros(7), unit_ids=LIST)


def test_a_selection_does_not_show_its_places():
    assert repr(Selection.of(IDS, 4)) == "Selection(3 units of at most 4 rows; places hidden)"


def test_a_unit_in_two_roles_is_refused():
    arrays = {"upper": np.zeros(7), "lower": np.zeros(3)}
    with pytest.raises(dpb.InvalidRecords, match="two roles"):
        dpb.Records(**arrays, unit={"upper": IDS, "lower": ["d", "e", "a"]}, rows_per_unit=2)
    with pytest.raises(dpb.InvalidRecords, match="all roles"):
        dpb.Records(**arrays, unit={"upper": IDS, "lower": [1, 2, 3]}, rows_per_unit=2)
    dpb.Records(**arrays, unit={"upper": IDS, "lower": ["d", "e", "f"]}, rows_per_unit=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows_per_unit": 0}, "rows_per_unit=0"),
        ({"rows_per_unit": True}, "rows_per_unit"),
        ({"rows_per_unit": 2.5}, "rows_per_unit"),
        ({}, "rows_per_unit=None"),
        ({"rows_per_unit": 2, "mean_rows": 3}, "mean_rows"),
        ({"rows_per_unit": 2, "mean_rows": 0}, "mean_rows"),
        ({"rows_per_unit": 2, "unit": None}, "unit: must be given"),
        ({"mean_rows": 2, "unit": None}, "rows_per_unit=None"),
        ({"rows_per_unit": 2, "unit": {"upper": IDS}}, "roles 'lower'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, words):
    with pytest.raises(dpb.InvalidArgument, match=words):
        dpb.Records(lower=np.zeros((7, 3)), **({"unit": IDS} | options))


def test_two_roles_need_ids_by_role():
    with pytest.raises(dpb.InvalidRecords, match="map the roles"):
        dpb.Records(upper=np.zeros(7), lower=np.zeros(7), unit=IDS, rows_per_unit=2)


def test_held_out_records_may_be_units():
    records = dpb.Records(heldout=np.zeros(7), unit=IDS, rows_per_unit=2)
    assert records.sizes == dpb.RecordShapes(heldout=np.zeros(3), rows_per_unit=2)
    assert repr(records) == "Records(heldout=3 units of at most 2 rows; values hidden)"
