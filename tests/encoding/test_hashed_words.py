"""Hashed words: the same columns everywhere, and rows of norm at most one in float32."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.encoding.hashed_words import column_of, write_words


def test_the_hash_is_fnv_1a():
    # Published test vectors of FNV-1a with 32 bits (www.isthe.com/chongo/tech/comp/fnv).
    for word, number in {"": 0x811C9DC5, "a": 0xE40C292C, "foobar": 0xBF9CF968}.items():
        assert column_of(word, 2**32) == number


@given(
    cells=st.lists(st.text(max_size=30) | st.none() | st.integers(), min_size=1, max_size=5), width=st.integers(1, 9)
)
def test_no_row_is_longer_than_one(cells, width):
    out = np.zeros((len(cells), width), np.float32)
    write_words(cells, out, 1.0)
    norms = np.linalg.norm(out.astype(np.float64), axis=1)
    assert norms.max() <= 1.0
    assert ((norms > 0.999999) | (norms == 0)).all()


def test_case_order_and_marks_do_not_matter():
    out = np.zeros((3, 32), np.float32)
    write_words(["Eggs, flour & milk", "MILK eggs\nFlour", 7], out, 1.0)
    np.testing.assert_array_equal(out[0], out[1])
    assert not out[2].any()
