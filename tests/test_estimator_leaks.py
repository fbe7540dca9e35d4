"""Estimators keep and tell nothing of records: no shape, attribute, pickle, report, error or warning has them."""

import json
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from estimator_cases import (
    CASES,
    LABELS,
    NUMBER,
    NUMBERS,
    PLACES,
    QUICK,
    WORD,
    X,
    check_silent,
    every_case,
    fitted,
)
from sklearn.linear_model import LogisticRegression

import dpbilevel as dpb
from dpbilevel import records
from dpbilevel.encoding.columns import read_table
from dpbilevel.errors import InvalidRecords
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV
from dpbilevel.estimators.rows import with_intercept

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.PrivacyLeakWarning")


# ---- no shape


def check_compiles_once(first, second):
    first()
    before = records._execute._cache_size()
    second()
    assert records._execute._cache_size() == before, "a shape depends on records"


def sparse(zeros: int):
    rows = np.where(np.arange(60)[:, None] < zeros, 0.0, X)
    return scipy.sparse.csr_array(rows)


@every_case
def test_the_number_of_non_zeros_is_no_shape(case):
    assert sparse(10).nnz != sparse(50).nnz
    check_compiles_once(lambda: case.fit(sparse(10)), lambda: case.fit(sparse(50)))


def test_a_fit_on_rows_that_have_entries_is_caught():
    case = CASES["ridge"]

    def fit(rows):
        kept = rows.sum(axis=1) != 0
        return case.fit(rows[kept], case.y[kept])

    with pytest.raises(AssertionError, match="shape depends"):
        check_compiles_once(lambda: fit(sparse(0)), lambda: fit(sparse(10)))


# ---- nothing is kept


def check_holds_no_record(model, tmp_path):
    """Neither the private number, as given or as scaled, nor the private word is in anything that a model holds."""
    saved = model.solution_.save(tmp_path / "solution.json").read_text("utf-8")
    report = model.solution_.report(tmp_path / "report.md").read_text("utf-8")
    json.loads(saved)
    shown = [repr(model), repr(vars(model)), model.solution_.summary(), repr(model.solution_), saved, report]
    held = pickle.dumps(model) + "".join(shown).encode()
    patterns = [WORD.encode(), b"987654"]
    scaled = model._scaling_.rows(read_table([[NUMBER, 0.5, 0.25]]))
    numbers = [NUMBER, *scaled[0], *with_intercept(scaled)[0, :-1]]
    patterns += [np.array(number, dtype).tobytes() for number in numbers for dtype in ("<f4", "<f8", ">f8")]
    for pattern in patterns:
        assert pattern not in held, "a record is kept"


def private_table():
    """Numbers and words that are private, in rows and targets that count and in rows that do not."""
    rows = X.astype(object)
    rows[7] = [NUMBER, 0.5, 0.25]
    rows[9] = [str(NUMBER), 0.5, 0.25]
    rows[11, 1] = str(NUMBER)  # other words are refused
    rows[13, 2] = np.nan
    return rows


@every_case
def test_models_hold_no_record(case, tmp_path):
    y = case.y
    settings = {"data_norm": None, "bounds": (-1e6, [1e6, 2.0, 2.0]), "invalid": "zero"}
    if case.y is NUMBERS:
        y = np.where(np.arange(60) == 7, NUMBER, case.y)
    if case.places:
        settings[case.places[:-1] + "_names"] = ["east", "other"]  # as many as elsewhere
    model = case.make(random_state=0, **settings)
    more = {name: np.where(np.arange(60) == 5, WORD, places) for name, places in case.more().items()}
    model.fit(private_table(), y, **more)
    check_holds_no_record(model, tmp_path)


class KeepsRows(DPLogisticRegressionCV):
    def fit(self, X, y):
        super().fit(X, y)
        self.seen_ = X[7:8]
        return self


class KeepsScaledRows(DPLogisticRegressionCV):
    def fit(self, X, y):
        super().fit(X, y)
        self.seen_ = self._scaling_.rows(read_table(X))
        return self


class KeepsWord(DPLogisticRegressionCV):
    def fit(self, X, y):
        super().fit(X, y)
        self.solution_.parameters["last"] = (X[11, 1], "what was seen last")
        return self


@pytest.mark.parametrize("kind", [KeepsRows, KeepsScaledRows, KeepsWord])
def test_models_that_keep_records_are_caught(kind, tmp_path):
    model = kind(method=QUICK, bounds=(-1e6, [1e6, 2.0, 2.0]), invalid="zero", classes=[0, 1], random_state=0)
    with pytest.raises(AssertionError, match="a record is kept"):
        check_holds_no_record(model.fit(private_table(), LABELS), tmp_path)


# ---- nothing is quoted


def bad_tables():
    rows = np.where(np.arange(60)[:, None] == 4, NUMBER, X)
    words = rows.astype(object)
    words[3, 1] = WORD
    yield "words in a list", words.tolist()
    yield "words in an array", words
    yield "strings", words.astype(str)
    yield "a dictionary in a cell", np.where(words == WORD, {WORD: NUMBER}, words)
    yield "NaN", np.where(X[3, 1] == X, np.nan, rows)
    yield "infinity", np.where(X[3, 1] == X, -np.inf, rows)
    yield "sparse NaN", scipy.sparse.csc_matrix(np.where(X[3, 1] == X, np.nan, rows))
    yield "one dimension", rows.ravel()
    yield "three dimensions", rows[None]
    yield "no dimension", NUMBER
    yield "a word", WORD
    yield "ragged", [*rows.tolist(), [NUMBER]]
    yield "dictionary", {WORD: rows[:, 0]}
    yield "masked", np.ma.masked_greater(rows, 1e3)
    yield "complex", rows + 1j
    yield "dates", rows.astype("datetime64[s]")
    yield "empty", rows[:0]
    yield "None", None
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pandas.DataFrame(words, columns=["a", "b", "c"])
    yield "pandas", frame
    yield "pandas, categories", frame.astype({"b": "category"})
    yield "polars", polars.DataFrame({"a": rows[:, 0], "b": [WORD] * 60, "c": rows[:, 2]})


@every_case
@pytest.mark.filterwarnings("ignore:X (does not have|has) ")
def test_refusals_of_tables_quote_no_cell_and_spend_nothing(case):
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    for name, table in bad_tables():
        fit = partial(case.make(ledger=ledger).fit, table, case.y, **case.more())
        for function in (fit, partial(fitted(case).predict, table)):
            assert isinstance(check_silent(function), InvalidRecords), name
    assert ledger.entries == ()


def bad_targets():
    yield "too few", [NUMBER] * 59
    yield "words", [WORD] * 60
    yield "mixed", [NUMBER, WORD] * 30
    yield "NaN", [NUMBER, np.nan] * 30
    yield "infinity", [np.inf, NUMBER] * 30
    yield "missing", [None, NUMBER] * 30
    yield "two columns", np.full((60, 2), NUMBER)
    yield "a complex column", np.full((60, 1), NUMBER + 1j)
    yield "a masked column", np.ma.masked_array(np.full((60, 1), NUMBER), mask=True)
    yield "nested", [[NUMBER], [WORD]] * 30
    yield "dates", np.full(60, 987654, "datetime64[s]")
    yield "None", None


@every_case
def test_refusals_of_targets_quote_no_cell_and_spend_nothing(case):
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    for name, y in bad_targets():
        fit = partial(case.make(ledger=ledger).fit, X, y, **case.more())
        for function in (fit, partial(fitted(case).score, X, y)):
            assert isinstance(check_silent(function), InvalidRecords), name
    assert ledger.entries == ()


@pytest.mark.parametrize("name", ["weighted classifier", "weighted regressor", "multitask"])
def test_refusals_of_places_quote_no_cell_and_spend_nothing(name):
    case = CASES[name]
    ledger = dpb.Ledger(dpb.Budget(2.0, 0.01))
    for places in ([*PLACES[:59], WORD], *(wrong for _, wrong in bad_targets() if wrong is not None)):
        fit = partial(case.make(ledger=ledger).fit, X, case.y, **{case.places: places})
        assert isinstance(check_silent(fit), InvalidRecords)
    assert ledger.entries == ()


class Quotes(DPRidgeCV):
    def fit(self, X, y):
        try:
            return super().fit(X, y)
        except InvalidRecords as error:
            raise InvalidRecords("X: see the cause") from ValueError(f"a row is {X[3]}") if self.epsilon > 1 else error


def test_refusals_that_quote_are_caught():
    rows = dict(bad_tables())["words in a list"]
    for quoting in (
        lambda: Quotes(epsilon=2.0).fit(rows, NUMBERS),
        lambda: LogisticRegression().fit(rows, LABELS),
        lambda: warnings.warn(f"a row has {NUMBER}", stacklevel=1),
    ):
        with pytest.raises(AssertionError, match="a cell is quoted"):
            check_silent(quoting)
    check_silent(lambda: Quotes().fit(rows, NUMBERS))
