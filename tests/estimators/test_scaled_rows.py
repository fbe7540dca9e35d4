"""Rows on their way into records: the same as those scaled at once, read once, and not copied again."""

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.encoding import columns
from dpbilevel.encoding.columns import read_table
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators import scaled_rows
from dpbilevel.estimators.prepared import split_levels
from dpbilevel.estimators.rows import norm_scaling, with_intercept
from dpbilevel.estimators.scaled_rows import ScaledRows, whole
from dpbilevel.estimators.split import split
from dpbilevel.privacy.memory import Reserved
from dpbilevel.privacy.storage import Storage


def scaled(number=50, **options):
    table = read_table(np.random.default_rng(0).normal(size=(number, 3)))
    return ScaledRows(norm_scaling(3, 1.0), table, **options)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("cells", [10, 10_000])
def test_parts_are_selections_of_all_rows(monkeypatch, intercept, cells):
    monkeypatch.setattr(columns, "_CELLS", cells)  # several chunks
    made = scaled(intercept=intercept)
    expected = made.scaling.rows(made.table)
    expected = with_intercept(expected) if intercept else expected
    selections = np.array([7, 3, 40]), np.array([0, 49, 8, 1])
    for part, selection in zip(made.parts(selections), selections, strict=True):
        np.testing.assert_array_equal(part, expected[selection])
    np.testing.assert_array_equal(whole([made, 5])[0], expected)


BASIS = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 22)))[0]


def depends_on_others(product):
    """Whether a row has other bits beside others than alone."""
    rows = np.random.default_rng(0).normal(size=(301, 24)).astype(np.float32)
    alone = np.concatenate([product(rows[at : at + 1], BASIS) for at in range(len(rows))])
    return not np.array_equal(alone, product(rows, BASIS))


def test_no_bit_of_a_row_in_another_basis_depends_on_other_rows():
    assert not depends_on_others(scaled_rows.in_basis)
    assert depends_on_others(np.matmul)  # the mutation


@pytest.mark.parametrize("cells", [100, 10_000])
def test_rows_in_another_basis_are_those_that_a_product_gives(monkeypatch, cells):
    monkeypatch.setattr(columns, "_CELLS", cells)
    basis = np.array([[0.6, 0.0], [0.8, 0.0], [0.0, 1.0]])
    made = scaled().in_basis(basis)
    expected = made.scaling.rows(made.table) @ basis
    np.testing.assert_allclose(made.parts([np.arange(50)])[0], expected, rtol=0, atol=1e-7)


def test_a_missing_cell_stays_missing_in_another_basis():
    rows = np.array([[1.0, 2.0, np.nan], [1.0, np.inf, 2.0], [3.0, 4.0, 5.0]])
    found = scaled_rows.in_basis(rows, np.array([[1.0], [0.0], [0.0]]))
    np.testing.assert_array_equal(found, [[np.nan], [np.nan], [3.0]])


def test_levels_read_the_table_once_and_split_every_column_alike():
    made, labels = scaled(), np.arange(50)
    reads = []
    true = made.table.read
    object.__setattr__(made.table, "read", lambda rows: reads.append(rows) or true(rows))
    found = split_levels((made, labels), (made, labels), 0.2, 0)
    assert len(reads) == 1
    for role, selection in zip(("upper", "lower"), split(50, 0.2, 0), strict=True):
        np.testing.assert_array_equal(found[role][1], selection)
        np.testing.assert_array_equal(found[role][0], made.scaling.rows(made.table)[selection])


def test_records_take_the_rows_without_a_copy():
    rows = scaled(300).with_intercept()
    (part,) = rows.parts([np.arange(300)])
    assert isinstance(part, Reserved)
    assert part.whole is not None
    records = dpb.Records(both=part)
    assert records.sizes.count("both") == 300


def test_missing_cells_are_refused_when_rows_are_read():
    bad = ScaledRows(norm_scaling(1, 1.0), read_table(np.array([[1.0], [np.nan]])), refuse=True)
    with pytest.raises(InvalidRecords, match="clean"):
        bad.parts([np.arange(2)])


def test_a_plan_needs_shapes_only():
    shape = jax.ShapeDtypeStruct((10, 4), np.float32)
    assert split_levels((shape,), (shape,), 0.2, 0)["lower"][0].shape == (8, 4)


def test_rows_on_disk_are_in_the_order_of_the_table(tmp_path):
    made, labels = scaled(storage=Storage(tmp_path)), np.arange(50)
    found = split_levels((made, labels), (made, labels), 0.2, 0)
    for role, selection in zip(("upper", "lower"), split(50, 0.2, 0), strict=True):
        np.testing.assert_array_equal(found[role][1], np.sort(selection))
        np.testing.assert_array_equal(found[role][0], made.scaling.rows(made.table)[np.sort(selection)])
