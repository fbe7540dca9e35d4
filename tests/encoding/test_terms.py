"""Terms: declared points and the encoded cells there."""

import pickle

import numpy as np

import dpbilevel as dpb

TABLE = {
    "age": [31.0, 57.0],
    "gain": [0.0, 7688.0],
    "grade": [2, 5],
    "town": ["Oslo", "Rome"],
    "when": ["2025-07-04", "2026-01-31"],
    "note": ["two eggs", None],
}


def encoder(**more):
    return dpb.BoundedEncoder(
        ranges={"age": (17, 90), "gain": (0, 99_999)},
        ordinals={"grade": (1, 5)},
        categories={"town": ["Oslo", "Rome", "other"]},
        dates={"when": ("2025-01-01", "2026-12-31")},
        texts={"note": 4},
        scales={"gain": "log"},
        knots={"age": 5, "when": 3},
        parts={"when": ["weekday", "hour"]},
        missing=["age", "note"],
        **more,
    ).fit(TABLE)


def test_terms_are_what_the_encoder_writes_at_declared_points():
    made = encoder()
    names = ["age", "gain", "grade", "town", "when", "when, weekday", "when, hour"]
    assert [term.name for term in made.terms_] == names
    assert [term.scale for term in made.terms_] == ["linear", "log", "linear", "names", "dates", "names", "linear"]
    for term in made.terms_[:4]:
        others = {name: cells[:1] * len(term.points) for name, cells in TABLE.items()}
        rows = np.asarray(made.transform(others | {term.name: term.points.tolist()}))
        assert np.allclose(rows[:, term.columns], term.values, atol=1e-6)
    assert made.terms_[0].points.tolist() == [17, 35.25, 53.5, 71.75, 90]
    assert made.terms_[4].points.astype("datetime64[D]").astype(str).tolist() == [
        "2025-01-01",
        "2025-12-31",
        "2026-12-31",
    ]
    assert made.terms_[5].points.tolist() == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


def test_terms_do_not_depend_on_rows():
    other = {name: cells[::-1] for name, cells in TABLE.items()}
    for one, two in zip(encoder().terms_, encoder().fit(other).terms_, strict=True):
        assert one.columns == two.columns
        assert np.array_equal(one.points, two.points)
        assert np.array_equal(one.values, two.values)


def test_centred_functions_have_mean_zero_and_ignore_the_level():
    for term in encoder().terms_:
        matrix = term.centred(60)
        assert np.allclose(matrix.sum(axis=0), 0)
        if len(term.columns) > 1:
            assert np.allclose(matrix[:, term.columns] @ np.ones(len(term.columns)), 0, atol=1e-7)


def test_rows_carry_terms_until_columns_may_have_changed():
    made = encoder()
    rows = made.transform(TABLE)
    assert rows.terms is made.terms_
    for same in (rows[:1], rows[[1, 0]], rows.copy(), rows.astype(np.float64), rows.take([0], axis=0)):
        assert same.terms is made.terms_
    assert len(pickle.loads(pickle.dumps(rows)).terms) == len(made.terms_)
    for other in (rows[:, ::-1], rows[:, :3], rows + 1, rows.T, np.hstack([rows, rows]), rows[0]):
        assert other.terms == ()
    changed = rows.copy()
    changed[0, 0] = 7
    assert changed.terms == ()
