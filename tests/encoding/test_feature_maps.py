"""Declared feature maps: curves, integers, dates, text, indicators and crosses, within the declared norm."""

import datetime
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpbilevel as dpb
from dpbilevel.encoding.encoder import BoundedEncoder
from dpbilevel.errors import InvalidArgument, InvalidRecords

MAPS = {
    "ranges": {"age": (0, 100), "pay": (0, 1e5), "size": (1.0, 2.0)},
    "categories": {"sex": ["F", "M"]},
    "ordinals": {"grade": (1, 4)},
    "dates": {"when": ("2020-01-01", "2021-12-31")},
    "texts": {"note": 8},
    "scales": {"pay": "log", "size": "sqrt"},
    "knots": {"age": 5, "pay": [0, 100, 5000, 1e5], "when": 3},
    "parts": {"when": ["year", "month", "weekday", "hour"]},
    "missing": ["age", "sex", "when", "grade", "note", "size"],
    "crosses": [("age", "pay"), ("pay", "sex"), ("size", "grade")],
}
ROWS = {
    "age": [10.0, 62.5, None],
    "pay": [0.0, 1e6, 100.0],
    "size": [1.0, 2.0, np.nan],
    "sex": ["F", None, "Zanzibar"],
    "grade": [1, 7, None],
    "when": ["2020-01-01", "2021-07-02 18:30", None],
    "note": ["good bread", "", None],
}


def encoder(**settings):
    return BoundedEncoder(**{**MAPS, **settings})


def named(rows, fitted):
    """Non-zero cells of every row, by name, in units of the common scale."""
    names = fitted.get_feature_names_out()
    return [
        {name: round(cell / fitted._scale, 3) for name, cell in zip(names, row, strict=True) if cell} for row in rows
    ]


@pytest.mark.filterwarnings("error")
def test_every_map_at_once():
    fitted = encoder().fit(ROWS)
    first, second, third = named(np.asarray(fitted.transform(ROWS)), fitted)
    words = {name: first.pop(name) for name in list(first) if name.startswith("note_")}
    assert sum(square**2 for square in words.values()) == pytest.approx(1, abs=1e-3)
    assert first == {
        **{"age_0": 0.6, "age_25": 0.4, "pay_0": 1, "size": -1, "sex_F": 1, "grade_1": 1},
        **{"when_2020-01-01": 1, "when_year 2020": 1, "when_month 1": 1, "when_weekday Wednesday": 1, "when_hour 0": 1},
        **{"age_0 x pay_0": 0.6, "age_25 x pay_0": 0.4, "pay_0 x sex_F": 1, "size x grade_1": -1},
    }
    assert second == {
        **{"age_50": 0.5, "age_75": 0.5, "pay_100000": 1, "size": 1, "sex_missing": 1, "grade_4": 1, "note_missing": 1},
        **{"when_2020-12-31": 0.497, "when_2021-12-31": 0.503, "when_year 2021": 1, "when_month 7": 1},
        **{"when_weekday Friday": 1, "when_hour 18": 1},
        **{"age_50 x pay_100000": 0.5, "age_75 x pay_100000": 0.5, "pay_100000 x sex_missing": 1, "size x grade_4": 1},
    }
    indicators = {f"{name}_missing": 1 for name in ("age", "size", "grade", "when", "note")}
    assert third == {
        **indicators,
        **{"pay_100": 1, "age_missing x pay_100": 1, "size_missing x grade_missing": 1},
    }
    assert fitted.knots_["age"] == [0, 25, 50, 75, 100]
    assert fitted.knots_["grade"] == [1, 2, 3, 4]
    assert fitted.knots_["when"] == [0, 365, 730]


def test_groups_name_columns_then_crosses_then_the_intercept():
    fitted = encoder(intercept=True).fit(ROWS)
    names, groups = fitted.get_feature_names_out(), fitted.group_of_column_
    assert len(names) == len(groups) == len(set(names))
    for number, column in enumerate(ROWS):
        assert all(name.startswith(column) for name in names[groups == number])
    assert names[groups == 7][0] == "age_0 x pay_0"
    assert list(names[groups == 10]) == ["intercept"]


def test_curves_are_neighbours_in_order():
    fitted = encoder().fit(ROWS)
    names = fitted.get_feature_names_out()
    curves = {curve.name: curve for curve in fitted.curves_}
    assert list(names[list(curves["age"].columns)]) == ["age_0", "age_25", "age_50", "age_75", "age_100"]
    assert curves["pay"].knots == (0, 100, 5000, 100_000)
    assert list(names[list(curves["grade"].columns)]) == [f"grade_{grade}" for grade in (1, 2, 3, 4)]
    assert len(curves["when month"].columns) == 12
    assert list(names[list(curves["age x pay_100"].columns)])[:2] == ["age_0 x pay_100", "age_25 x pay_100"]
    assert list(names[list(curves["age_25 x pay"].columns)])[:2] == ["age_25 x pay_0", "age_25 x pay_100"]
    assert list(names[list(curves["pay x sex_M"].columns)])[:2] == ["pay_0 x sex_M", "pay_100 x sex_M"]
    assert {"size", "sex", "note"}.isdisjoint(curves)


def test_a_curve_predicts_what_its_coefficients_say():
    fitted = BoundedEncoder(ranges={"age": (0, 100)}, knots=11).fit({"age": [1]})
    ages = np.linspace(0, 100, 77)
    assert np.abs(np.asarray(fitted.transform({"age": ages})) @ fitted.knots_["age"] - ages).max() < 1e-4


@pytest.mark.parametrize("rows", [10, 1000, 32_561])
def test_the_default_number_of_knots_comes_from_the_number_of_rows_alone(rows):
    made = [BoundedEncoder(ranges={0: (0, 1)}, knots="auto").fit(np.full((rows, 1), cell)) for cell in (0.1, 0.9)]
    assert pickle.dumps(vars(made[0])) == pickle.dumps(vars(made[1]))
    assert len(made[0].knots_[0]) == {10: 5, 1000: 7, 32_561: 13}[rows]


def test_knots_of_some_columns_leave_the_others_plain():
    table = {"a": [0.5], "b": [0.5]}
    ranges = {"a": (0, 1), "b": (0, 1)}
    for knots, names in {None: ["a", "b"], 2: ["a_0", "a_1", "b_0", "b_1"]}.items():
        assert BoundedEncoder(ranges=ranges, knots=knots).fit(table).get_feature_names_out().tolist() == names
    some = BoundedEncoder(ranges=ranges, knots={"b": 2, "a": None}).fit(table)
    assert some.get_feature_names_out().tolist() == ["a", "b_0", "b_1"]


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
def test_undeclared_numbers_are_curves_too_and_have_their_caveat():
    rows = BoundedEncoder(knots=3).fit_transform({"age": [0.0, 5.0, 10.0]})
    assert rows.shape == (3, 3)
    assert len(rows.caveats) == 1


# ---- every row has the declared norm, in float32

NUMBERS = st.floats() | st.integers() | st.none() | st.sampled_from([0.0, 25.0, 25.000001, 99.99999, 1e5])


@given(
    cells=st.lists(NUMBERS, min_size=1, max_size=4),
    sex=st.none() | st.text(max_size=3) | st.sampled_from(["F", "M"]) | st.floats(),
    when=st.datetimes() | st.dates() | st.none() | st.sampled_from(["2020-05-05", "NA"]),
    note=st.text(max_size=20) | st.none() | st.just("one two three four two"),
    norm=st.floats(1e-6, 1e6),
    intercept=st.booleans(),
    missing=st.booleans(),
)
def test_no_row_exceeds_the_norm_whatever_its_cells_are(cells, sex, when, note, norm, intercept, missing):
    count = len(cells)
    table = {"age": cells, "pay": cells[::-1], "size": cells, "grade": cells[::-1]}
    table |= {"sex": [sex] * count, "when": [when] * count, "note": [note] * count}
    settings = {"invalid": "zero", "row_norm": norm, "intercept": intercept, "missing": MAPS["missing"] * missing}
    rows = np.asarray(encoder(**settings).fit_transform({name: table[name] for name in ROWS}))
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    check_norm(rows, norm)


def check_norm(rows, norm):
    assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= norm * (1 + 1e-14)


@pytest.mark.parametrize("scale", ["linear", "log", "sqrt"])
def test_the_norm_holds_near_every_knot(scale):
    """Where one weight is nearly one, rounding it up must not make the row longer."""
    knots = np.array([0.0, 0.25, 0.5, 1.0])
    near = np.concatenate([knots + sign * 10.0**power for power in range(-18, -3) for sign in (1, -1)])
    made = BoundedEncoder(
        ranges={"a": (0, 1), "b": (0, 1)}, knots={"a": list(knots), "b": 5}, scales={"a": scale}, crosses=[("a", "b")]
    )
    check_norm(np.asarray(made.fit_transform({"a": near, "b": near[::-1]})), 1.0)


def test_a_broken_weight_is_caught(monkeypatch):
    monkeypatch.setattr("dpbilevel.encoding.crosses.Cross.units", 0)  # a cross that is not counted
    with pytest.raises(AssertionError):
        check_norm(np.asarray(encoder(invalid="zero").fit_transform(ROWS)), 1.0)


# ---- nothing is learnt, and nothing is quoted


def test_maps_learn_nothing():
    other = {"age": [99.0], "pay": [987654.0], "size": [1.5], "sex": ["M"], "grade": [3], "note": ["Zanzibar"]}
    other["when"] = ["2021-05-05"]
    states = [pickle.dumps(vars(encoder().fit(table))) for table in (ROWS, {name: other[name] for name in ROWS})]
    assert states[0] == states[1]


def test_rows_are_encoded_apart_and_in_chunks(monkeypatch):
    fitted = encoder(invalid="zero").fit(ROWS)
    together = np.asarray(fitted.transform(ROWS))
    monkeypatch.setattr("dpbilevel.encoding.columns._CELLS", 1)
    np.testing.assert_array_equal(fitted.transform(ROWS), together)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(ROWS), together)
    np.testing.assert_array_equal(clone(fitted).fit_transform(ROWS), together)


WRONG = [
    ({"scales": {"age": "logarithm"}}, "scales: column 'age' has 'logarithm'; must be one of linear, log, sqrt"),
    ({"scales": {"sex": "log"}}, "scales: column 'sex' has no range"),
    ({"scales": ["log"]}, "scales: must be a dictionary"),
    ({"knots": {"age": [0, 50, 25]}}, "knots: those of column 'age' must increase, and lie within"),
    ({"knots": {"age": [0, 50, 50]}}, "must increase"),
    ({"knots": {"age": [0, 101]}}, "within its declared range"),
    ({"knots": {"age": [0, np.nan]}}, "within its declared range"),
    ({"knots": {"age": [0, "x"]}}, "within its declared range"),
    ({"knots": {"when": ["2020-01-01", "soon"]}}, "must be dates"),
    ({"knots": {"age": 1}}, "must be a number from 2"),
    ({"knots": {"age": True}}, "must be a number from 2"),
    ({"knots": {"age": 10**6}}, "must be a number from 2 to 1000"),
    ({"knots": "many"}, "must be a number from 2"),
    ({"knots": {"sex": 3}}, "knots: column 'sex' has no range"),
    ({"knots": {"height": 3}}, "column 'height' has no range"),
    ({"ordinals": {"grade": (1, 4.5)}}, "must be two integers"),
    ({"ordinals": {"grade": (4, 1)}}, "must be two integers"),
    ({"ordinals": {"grade": (0, 256)}}, "at most 256"),
    ({"ordinals": {"grade": (1, 4), "age": (0, 9)}}, "ranges, ordinals: column 'age' is in both"),
    ({"dates": {"when": ("2020-01-01", "2020-02-30")}}, "must be two dates"),
    ({"dates": {"when": ("2021-01-01", "2020-01-01")}}, "first < last"),
    ({"dates": {"when": "2020"}}, "must be two dates"),
    ({"parts": {"when": ["minute"]}}, "some of year, month, weekday, hour"),
    ({"parts": {"when": []}}, "some of year, month, weekday, hour"),
    ({"parts": {"age": ["year"]}}, "column 'age' is no date"),
    ({"dates": {"when": ("2020-01-01", "2020-12-31")}}, "must span more than one year"),
    ({"texts": {"note": 0}}, "must be a whole number >= 1"),
    ({"texts": {"note": 10**9}}, "must be at most 65536"),
    ({"missing": "age"}, "missing: must be a list of columns"),
    ({"missing": ["height"]}, "missing: column 'height' is not in the data"),
    ({"categories": {"sex": ["F", "missing"]}}, "rename it"),
    ({"crosses": [("age", "height")]}, "crosses: column 'height' is not in the data"),
    ({"crosses": [("age", "age")]}, "two different columns"),
    ({"crosses": [("age", "pay"), ("pay", "age")]}, "each pair once"),
    ({"crosses": ["age"]}, "must be a pair of columns"),
    ({"crosses": "age"}, "must be a list of pairs"),
    ({"crosses": [("age", "when")]}, "column 'when' is a date"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_maps_are_refused_by_fit(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        encoder(**settings).fit(ROWS)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("pay", "Zanzibar", "must hold numbers"),
        ("pay", None, "must hold finite numbers"),
        ("grade", "Zanzibar", "must hold numbers"),
        ("when", "Zanzibar", "must hold dates"),
        ("when", 987654, "must hold dates"),
    ],
)
def test_wrong_cells_are_refused_without_a_word_of_them(column, cell, message):
    fitted = encoder().fit(ROWS)
    with pytest.raises(InvalidRecords, match=f"column '{column}': {message}") as caught:
        fitted.transform({**ROWS, column: [cell] * 3})
    assert "Zanzibar" not in str(caught.value)
    assert "987654" not in str(caught.value)


def test_missing_dates_are_refused_unless_they_are_indicated_or_zeroed():
    only = {"when": ["2020-01-01", None]}
    made = {"dates": MAPS["dates"], "parts": {"when": ["month"]}}
    with pytest.raises(InvalidRecords, match="column 'when': must hold dates and no missing values"):
        BoundedEncoder(**made).fit(only).transform(only)
    assert not np.asarray(BoundedEncoder(**made, invalid="zero").fit_transform(only))[1].any()


# ---- tables of other libraries


def test_dates_of_data_frames():
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    days = [datetime.datetime(2020, 1, 1), datetime.datetime(2021, 7, 2, 18, 30), None]
    made = BoundedEncoder(dates=MAPS["dates"], parts=MAPS["parts"], knots=4, missing=["when"])
    expected = np.asarray(made.fit_transform({"when": days}))
    tables = [pandas.DataFrame({"when": pandas.to_datetime(days)}), polars.DataFrame({"when": days})]
    for table in (*tables, arrow.table({"when": days}), {"when": np.array(days, "datetime64[ms]")}):
        np.testing.assert_array_equal(clone(made).fit_transform(table), expected)
        with pytest.raises(InvalidRecords, match=r"holds dates; .*declare dates="):
            BoundedEncoder().fit(table)
    zoned = [tables[0].apply(lambda day: day.dt.tz_localize("UTC"))]
    zoned += [polars.DataFrame({"when": polars.Series(days).dt.replace_time_zone("UTC")})]
    zoned += [arrow.table({"when": arrow.array(days, arrow.timestamp("s", "UTC"))})]
    for table in zoned:
        with pytest.raises(InvalidRecords, match="time zone"):
            clone(made).fit(table)


def test_days_of_polars_and_arrow_are_dates():
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    made = BoundedEncoder(dates=MAPS["dates"], knots=4)
    expected = np.asarray(made.fit_transform({"when": ["2020-05-05"]}))
    for table in (polars.DataFrame, arrow.table):
        np.testing.assert_array_equal(made.fit_transform(table({"when": [datetime.date(2020, 5, 5)]})), expected)
    with pytest.raises(InvalidRecords, match="time differences"):
        made.fit(polars.DataFrame({"when": [datetime.timedelta(days=1)]}))


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
@parametrize_with_checks([BoundedEncoder(knots="auto"), BoundedEncoder(knots=4, invalid="zero", row_norm=3.0)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def test_curves_and_crosses_are_quick():
    draws = np.random.default_rng(0)
    columns = {f"number {k}": draws.normal(size=100_000) for k in range(8)}
    made = BoundedEncoder(ranges=dict.fromkeys(columns, (-3, 3)), knots=12, crosses=[("number 0", "number 1")])
    start = time.perf_counter()
    made.fit_transform(columns)
    assert time.perf_counter() - start < 5.0  # 0.2 s on an idle machine


def test_a_model_of_curves_fits_a_wave():
    draws = np.random.default_rng(0)
    at = draws.uniform(0, 1, 4000)
    target = np.sin(2 * np.pi * at)
    settings = {"epsilon": 3.0, "delta": 1e-5, "target_range": (-1, 1)}
    scores = {}
    for knots in (None, "auto"):
        rows = BoundedEncoder(ranges={"at": (0, 1)}, knots=knots).fit_transform({"at": at})
        scores[knots] = dpb.estimators.DPRidgeCV(**settings).fit(rows, target).score(rows, target)
    assert scores["auto"] > 0.9 > scores[None]
