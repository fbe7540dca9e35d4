"""BoundedEncoder: rows of declared norm, a fit that learns nothing from records, and no word about cells.

The sentinel 987654 stands for a private value, "Zanzibar" for a private word.
"""

import pickle
import re
import time
import traceback
import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpbilevel as dpb
from dpbilevel.encoding.encoded_rows import EncodedRows
from dpbilevel.encoding.encoder import BoundedEncoder, _rounded_down
from dpbilevel.errors import InvalidArgument, InvalidRecords, PrivacyLeakWarning

RANGES = {"age": (0, 100), "income": (-10.0, 10.0)}
CATEGORIES = {"sex": ["F", "M"], "town": ["Bergen", "Oslo", "other"]}
ROWS = {
    "age": [25, 50, 150],
    "sex": ["F", "M", "Zanzibar"],
    "income": [-20.0, 0.0, 5.0],
    "town": ["Oslo", "Zanzibar", None],
}
# Columns in the order of the input, before the common factor.
ENCODED = [
    [-0.5, 1, 0, -1.0, 0, 1, 0],
    [0.0, 0, 1, 0.0, 0, 0, 1],
    [1.0, 0, 0, 0.5, 0, 0, 1],
]


def encoder(**settings):
    return BoundedEncoder(ranges=RANGES, categories=CATEGORIES, **settings)


# ---- what it computes


@pytest.mark.filterwarnings("error")
def test_declared_columns_encode_without_a_warning():
    fitted = encoder(row_norm=2.0)
    rows = fitted.fit_transform(ROWS)
    assert type(rows) is EncodedRows
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, np.array(ENCODED), atol=1e-6)  # 2 / sqrt(4 columns) = 1
    assert (rows.data_norm, rows.caveats, fitted.row_norm_, fitted.caveats_) == (2.0, (), 2.0, ())
    assert fitted.group_of_column_.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert fitted.get_feature_names_out().tolist() == [
        *("age", "sex_F", "sex_M", "income", "town_Bergen", "town_Oslo", "town_other")
    ]
    assert fitted.ranges_ == {"age": (0.0, 100.0), "income": (-10.0, 10.0)}
    assert fitted.categories_ == CATEGORIES
    assert fitted.n_features_in_ == 4
    assert fitted.feature_names_in_.tolist() == list(ROWS)


def test_the_intercept_is_the_last_column_and_group():
    fitted = encoder(intercept=True)
    rows = fitted.fit_transform(ROWS)
    np.testing.assert_allclose(rows[:, -1], 1 / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(rows[:, :-1]) * np.sqrt(5), ENCODED, atol=1e-6)
    assert fitted.group_of_column_[-1] == 4
    assert fitted.get_feature_names_out()[-1] == "intercept"


def frames():
    yield "dictionary", ROWS
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    yield "pandas", pandas.DataFrame(ROWS)
    yield "pandas, categorical", pandas.DataFrame(ROWS).astype({"sex": "category", "town": "category"})
    yield "pandas, nullable", pandas.DataFrame(ROWS).astype({"age": "Int64", "income": "Float64", "town": "string"})
    yield "polars", polars.DataFrame(ROWS)
    yield "polars, categorical", polars.DataFrame(ROWS).with_columns(polars.col("sex", "town").cast(polars.Categorical))
    yield "Arrow", arrow.table(ROWS)


@pytest.mark.filterwarnings("error")
def test_tables_of_every_kind_encode_alike():
    expected = np.asarray(encoder().fit_transform(ROWS))
    fitted = encoder().fit(ROWS)
    for name, table in frames():
        np.testing.assert_array_equal(encoder().fit_transform(table), expected, err_msg=name)
        np.testing.assert_array_equal(fitted.transform(table), expected, err_msg=name)


def test_arrays_lists_and_sparse_matrices_go_by_position():
    matrix = np.array([[0.0, 2.0, 7.0], [1.0, 0.0, 8.0], [0.0, 5.0, 9.0]])
    make = lambda: BoundedEncoder(ranges={0: (0, 1), 2: (0, 10)}, categories={1: [0, 2]}, row_norm=np.sqrt(3))  # noqa: E731
    expected = np.array([[-1, 0, 1, 0.4], [1, 1, 0, 0.6], [-1, 0, 0, 0.8]])
    for X in (matrix, matrix.tolist(), matrix.astype(object), scipy.sparse.csc_array(matrix)):
        np.testing.assert_allclose(make().fit_transform(X), expected, atol=1e-6)
    assert make().fit(matrix).get_feature_names_out().tolist() == ["x0", "x1_0", "x1_2", "x2"]


def test_unknown_categories_at_transform_are_no_error():
    fitted = encoder(row_norm=2.0).fit(ROWS)
    odd = {"age": [50] * 3, "income": [0.0] * 3, "sex": [None, 3.5, ["a"]], "town": [np.nan, ("Oslo",), {"b": 1}]}
    np.testing.assert_array_equal(fitted.transform(odd), [[0, 0, 0, 0, 0, 0, 1]] * 3)


def test_numbers_and_booleans_can_be_categories():
    fitted = BoundedEncoder(categories={"month": [1, 2], "member": [False, True]}, row_norm=np.sqrt(2))
    rows = fitted.fit_transform({"month": np.array([2.0, 1.0, 3.0]), "member": [True, False, True]})
    np.testing.assert_allclose(rows, [[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 1]], atol=1e-6)


def test_invalid_zero_encodes_missing_numbers_as_the_middle():
    ages, incomes = [25, None, np.inf, "NA"], [np.nan, -np.inf, 5.0, 5.0]
    rows = {"age": ages, "sex": ["F"] * 4, "income": incomes, "town": ["Oslo"] * 4}
    encoded = encoder(invalid="zero", row_norm=2.0).fit_transform(rows)
    np.testing.assert_allclose(encoded[:, 0], [-0.5, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(encoded[:, 3], [0, 0, 0.5, 0.5], atol=1e-6)
    for text in ("old", "25,5", "2026-01-31"):  # which would be constants in the middle of the range
        with pytest.raises(dpb.InvalidRecords, match="column 'age': must hold numbers"):
            encoder(invalid="zero").fit_transform({**rows, "age": [25, text, 3, 4]})


def test_extreme_ranges_do_not_overflow():
    wide, narrow, far = (-1.7e308, 1.7e308), (0.0, 5e-324), (1e308, 1.7e308)
    cells = np.array([[-1.7e308, 0.0, 0.0], [1.7e308, 1.0, 1.7e308], [0.0, 5e-324, 1.35e308]])
    with np.errstate(all="raise", under="ignore"):
        rows = BoundedEncoder(ranges={0: wide, 1: narrow, 2: far}, row_norm=np.sqrt(3)).fit_transform(cells)
    np.testing.assert_allclose(rows[:, [0, 2]], [[-1, -1], [1, 1], [0, 0]], atol=1e-6)
    assert (np.abs(rows[:, 1]) <= 1).all()


# ---- every row has the declared norm


@given(
    ages=st.lists(st.floats() | st.integers() | st.none() | st.sampled_from(["", "NA"]), min_size=1, max_size=5),
    town=st.none() | st.text(max_size=6) | st.sampled_from(["Oslo", "other"]) | st.floats() | st.booleans(),
    norm=st.floats(1e-6, 1e6),
    intercept=st.booleans(),
)
def test_no_row_exceeds_the_norm_whatever_its_cells_are(ages, town, norm, intercept):
    rows = {"age": ages, "income": ages[::-1], "sex": ["F"] * len(ages), "town": [town] * len(ages)}
    encoded = encoder(invalid="zero", row_norm=norm, intercept=intercept).fit_transform(rows)
    assert np.isfinite(encoded).all()
    check_norm(np.asarray(encoded), norm)


def check_norm(rows, norm):
    assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= norm * (1 + 1e-14)


def test_the_norm_holds_in_every_bit_where_plain_rounding_exceeds_it():
    widths = range(1, 200)
    for width in widths:
        check_norm(np.full((1, width), _rounded_down(1.0, width)), 1.0)
    rounded = [np.full((1, width), np.float32(1 / np.sqrt(width))) for width in widths]
    with pytest.raises(AssertionError):
        [check_norm(rows, 1.0) for rows in rounded]


# ---- nothing is learnt from records


def check_learns_nothing(make, first, second):
    """The fitted state, every bit of it, is the same on two tables that have nothing in common but their columns."""
    states = [pickle.dumps(vars(make().fit(table))) for table in (first, second)]
    assert states[0] == states[1]


NEIGHBOUR = {"age": [99], "sex": ["M"], "income": [987654.0], "town": ["Bergen"]}


def test_a_declared_encoder_learns_nothing():
    check_learns_nothing(encoder, ROWS, NEIGHBOUR)


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
def test_encoders_that_learn_are_caught():
    with pytest.raises(AssertionError):
        check_learns_nothing(lambda: BoundedEncoder(ranges=RANGES), ROWS, NEIGHBOUR)
    with pytest.raises(AssertionError):
        check_learns_nothing(MinMaxScaler, np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]))


def check_rows_apart(transform, table, count):
    """A row's encoding depends on no other row."""
    together = np.asarray(transform(table))
    for row in range(count):
        alone = np.asarray(transform({name: cells[row : row + 1] for name, cells in table.items()}))
        np.testing.assert_array_equal(alone, together[row : row + 1])


def test_rows_are_encoded_apart():
    check_rows_apart(encoder().fit(ROWS).transform, ROWS, 3)
    with pytest.raises(AssertionError):
        check_rows_apart(lambda table: encoder().fit_transform(table) / len(table["age"]), ROWS, 3)


def test_pickles_hold_no_records():
    pickled = pickle.dumps(encoder(invalid="zero").fit({**ROWS, "income": [987654.0, None, 987654.0]}))
    assert b"Zanzibar" not in pickled
    for number in (987654.0, 987654):
        assert pickle.dumps(number)[3:-1] not in pickled
    assert np.float64(987654.0).tobytes() not in pickled
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again.transform(ROWS), encoder().fit_transform(ROWS))


# ---- what is not declared is said so


def test_undeclared_columns_warn_and_mark_encoder_and_rows():
    made = BoundedEncoder(ranges={"age": (0, 100)}, categories=CATEGORIES)
    with pytest.warns(PrivacyLeakWarning, match="column 'income' was not declared: its range comes from") as caught:
        made.fit(ROWS)
    assert [warning.filename for warning in caught] == [__file__]
    assert made.caveats_ == tuple(str(warning.message) for warning in caught)
    rows = made.transform(ROWS)
    assert rows.caveats == rows[:2].caveats == made.caveats_
    assert made.ranges_["income"] == (-20.0, 5.0)
    np.testing.assert_allclose(rows[:, 3] * 2, [-1.0, 0.6, 1.0], atol=1e-6)


def test_every_undeclared_column_has_one_warning():
    with pytest.warns(PrivacyLeakWarning) as caught:
        rows = BoundedEncoder().fit_transform(ROWS)
    assert len(caught) == len(rows.caveats) == 4
    for column in ROWS:
        assert sum(f"column {column!r}" in str(warning.message) for warning in caught) == 1
    assert rows.shape[1] == 1 + 3 + 1 + 2


@pytest.mark.filterwarnings("error::dpbilevel.PrivacyLeakWarning")
def test_a_warning_that_is_an_error_stops_the_fit():
    made = BoundedEncoder(ranges=RANGES)
    with pytest.raises(PrivacyLeakWarning):
        made.fit(ROWS)
    with pytest.raises(NotFittedError):
        made.transform(ROWS)
    fitted = encoder().fit(ROWS)
    with pytest.raises(PrivacyLeakWarning):
        fitted.set_params(ranges=None, categories=None).fit({"more": [1.0]})
    np.testing.assert_array_equal(fitted.transform(ROWS), encoder().fit_transform(ROWS))


# ---- errors


def check_silent(error):
    text = "".join(traceback.format_exception_only(error))
    while error is not None:
        text += str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not re.search("987654|Zanzibar", text)


REFUSED = {
    "missing": {"income": [987654.0, None, 1.0]},
    "NaN": {"income": [987654.0, np.nan, 1.0]},
    "infinite": {"age": [987654.0, np.inf, 1.0]},
    "words": {"age": ["Zanzibar", 987654, 1]},
    "objects": {"age": [{"Zanzibar": 987654}, 1, 2]},
    "too long": {"age": [987654, 2, 3, 4]},
    "nested": {"age": [[987654, 1], [2, 3], [4, 5]]},
    "two dimensions": {"age": np.full((3, 2), 987654)},
}


@pytest.mark.parametrize("columns", REFUSED.values(), ids=REFUSED)
def test_refusals_quote_no_cell(columns):
    fitted = encoder().fit(ROWS)
    for refuse in (encoder().fit, fitted.transform):
        with pytest.raises(InvalidRecords) as caught:
            refuse({**ROWS, **columns})
        check_silent(caught.value)


def test_a_refusal_that_quotes_a_cell_is_caught():
    with pytest.raises(ValueError, match="convert") as caught:
        MinMaxScaler().fit([["Zanzibar"], ["987654"]])
    with pytest.raises(AssertionError):
        check_silent(caught.value)


@pytest.mark.filterwarnings("error::dpbilevel.PrivacyLeakWarning")
def test_missing_numbers_are_refused_before_anything_else():
    with pytest.raises(InvalidRecords, match=r"column 'age': must hold finite numbers.*invalid=\"zero\""):
        BoundedEncoder(ranges=RANGES).fit({**ROWS, "age": [None, 1, 2]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
        ({"row_norm": 1e300}, "row_norm=1e.300: must fit float32"),
        ({"row_norm": 1e-300}, "row_norm=1e-300: must fit float32"),
        ({"intercept": 1}, "intercept=1: must be True or False"),
        ({"invalid": "drop"}, "invalid='drop': must be one of"),
        ({"ranges": {"weight": (0, 1)}}, "column 'weight' is not in the data"),
    ],
)
def test_wrong_settings_are_refused_by_fit(settings, message):
    made = BoundedEncoder(**settings)
    with pytest.raises(InvalidArgument, match=message):
        made.fit({"age": [1.0]})


def test_columns_must_be_those_of_fit():
    pandas = pytest.importorskip("pandas")
    fitted = encoder().fit(ROWS)
    frame = pandas.DataFrame(ROWS)
    shuffled = dict(reversed(ROWS.items()))
    np.testing.assert_array_equal(fitted.transform(shuffled), fitted.transform(ROWS))
    for wrong in ({"age": [1]}, {**ROWS, "more": [1, 2, 3]}):
        with pytest.raises(InvalidRecords, match="must have the columns of fit, 'age', 'sex', 'income', 'town'"):
            fitted.transform(wrong)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(frame[list(shuffled)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, that the array has no names
        with pytest.raises(ValueError, match="X has 3 features, but BoundedEncoder is expecting 4"):
            fitted.transform(np.zeros((2, 3)))
    by_number = BoundedEncoder(ranges={0: (0, 1), 1: (0, 1)}).fit(pandas.DataFrame([[0.0, 1.0]]))
    assert not hasattr(by_number, "feature_names_in_")
    with pytest.raises(InvalidRecords, match="in the same order"):
        by_number.transform(pandas.DataFrame([[0.0, 1.0]], columns=[1, 0]))


# ---- scikit-learn


EXPECTED_FAILURES: dict[str, str] = {}  # by name of check, with the reason; there is none


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
@parametrize_with_checks(
    [BoundedEncoder(), BoundedEncoder(invalid="zero", intercept=True, row_norm=3.0)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def test_clones_have_the_settings_alone():
    fitted = encoder(row_norm=2.0, intercept=True).fit(ROWS)
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert not hasattr(copied, "caveats_")
    assert dpb.BoundedEncoder is BoundedEncoder


def test_settings_that_change_after_fit_change_nothing():
    fitted = encoder().fit(ROWS)
    before = fitted.transform(ROWS)
    fitted.set_params(intercept=True, row_norm=7.0, ranges=None)
    np.testing.assert_array_equal(fitted.transform(ROWS), before)
    assert len(fitted.get_feature_names_out()) == before.shape[1]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_set_output(library):
    frames = pytest.importorskip(library)
    fitted = encoder(intercept=True).set_output(transform=library)
    table = frames.DataFrame(ROWS)
    rows = fitted.fit_transform(table)
    assert isinstance(rows, frames.DataFrame)
    assert list(rows.columns) == fitted.get_feature_names_out().tolist()
    np.testing.assert_array_equal(rows.to_numpy(), encoder(intercept=True).fit_transform(ROWS))


def test_rows_keep_norm_and_caveats_through_a_pipeline():
    seen = []

    def note(rows):
        seen.append((type(rows), rows.data_norm, rows.caveats))
        return rows

    made = make_pipeline(encoder(row_norm=1.5), FunctionTransformer(note))
    made.fit_transform(ROWS)
    assert set(seen) == {(EncodedRows, 1.5, ())}


def test_it_encodes_within_cross_validation():
    pandas = pytest.importorskip("pandas")
    draws = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": draws.integers(0, 100, 300), "sex": draws.choice(["F", "M"], 300)})
    model = make_pipeline(
        BoundedEncoder(ranges={"age": (0, 100)}, categories={"sex": ["F", "M"]}, intercept=True),
        LogisticRegression(C=100.0),
    )
    assert cross_val_score(model, frame, frame["age"] > 50).mean() > 0.95


def test_encoding_is_quick():
    draws = np.random.default_rng(0)
    towns = np.array([f"town {k}" for k in range(40)], dtype=object)
    columns = {f"number {k}": draws.normal(size=48_842) for k in range(5)}
    columns |= {f"town {k}": towns[draws.integers(0, 40, 48_842)] for k in range(8)}
    made = BoundedEncoder(
        ranges={f"number {k}": (-3, 3) for k in range(5)}, categories={f"town {k}": list(towns) for k in range(8)}
    )
    start = time.perf_counter()
    made.fit_transform(columns)
    assert time.perf_counter() - start < 5.0  # 0.1 s on an idle machine
