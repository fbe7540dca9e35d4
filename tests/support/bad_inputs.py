"""Tables and targets that estimators refuse; private cells in them are easy to find."""

import numpy as np
import pytest
import scipy.sparse
from support.estimator_cases import (
    NUMBER,
    WORD,
    X,
)


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
