"""Pytrees as JSON and back: exact in values, types, dtypes, shapes and structure."""

import collections
import json
import math
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpbilevel.solution.trees import decoded, encoded

Point = collections.namedtuple("Point", ["weights", "rest"])


def round_trip(tree):
    """Through standard JSON text, as `Solution.save` writes it."""
    return decoded(json.loads(json.dumps(encoded(tree), allow_nan=False)))


def same(one, other):
    """Equal to the bit: types, dtypes, shapes, structure, signs of zero; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not np.issubdtype(one.dtype, np.floating):
            return np.array_equal(one, other)
        missing = np.isnan(one)
        return np.array_equal(missing, np.isnan(other)) and one[~missing].tobytes() == other[~missing].tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("<d", one) == struct.pack("<d", other)
    return one == other


ARRAYS = st.one_of(
    *[
        hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
        for dtype in (np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint64, np.bool_)
    ]
)
SPECIAL_WORDS = ("nan", "inf", "-inf")  # see test_words_for_non_finite_numbers_stay_words
STRINGS = st.text(max_size=5).filter(lambda text: text not in SPECIAL_WORDS)
TREES = st.recursive(
    st.one_of(ARRAYS, st.floats(), st.integers(), st.booleans(), st.none(), STRINGS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(TREES)
def test_every_tree_comes_back_to_the_bit(tree):
    assert same(round_trip(tree), tree)


def test_the_comparison_above_can_fail():
    assert not same((1.0,), [1.0])
    assert not same(0.0, -0.0)
    assert not same(1, 1.0)
    assert not same(1, True)
    assert not same(np.float32([0.1]), np.float64([0.1]))
    assert not same(np.zeros((1, 2)), np.zeros((2, 1)))
    assert not same(np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2.0)))


@given(st.integers(0, 2**32 - 1))
def test_every_float32_keeps_its_bits(bits):
    value = np.array(bits, dtype=np.uint32).view(np.float32)
    back = round_trip(value)
    assert back.dtype == np.float32
    assert np.isnan(back) if np.isnan(value) else back.tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_numbers_survive_as_scalars_and_in_arrays(value):
    assert same(round_trip(value), value)
    assert same(round_trip({"a": [np.float32([[1.0, value]])]}), {"a": [np.float32([[1.0, value]])]})


def test_text_on_disk_is_standard_json():
    text = json.dumps(encoded({"a": np.array([np.nan, np.inf, -np.inf]), "b": math.inf}), allow_nan=False)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    json.loads(text, parse_constant=refuse)


def test_jax_arrays_and_numpy_scalars_come_back_as_numpy_arrays():
    for value in (jnp.float32(0.1), np.float32(0.1)):
        assert same(round_trip(value), np.array(0.1, np.float32))
    assert same(round_trip(jnp.arange(3, dtype=jnp.int32)), np.arange(3, dtype=np.int32))
    assert same(round_trip(jnp.array([1.5, -2.0], jnp.bfloat16)).astype(np.float32), np.float32([1.5, -2.0]))
    assert same(round_trip(np.bool_(True)), np.array(True))
    with jax.enable_x64(True):
        assert same(round_trip(jnp.array([0.1])), np.array([0.1]))


def test_a_dict_with_the_words_of_the_encoding_is_still_a_dict():
    tree = {"array": [1.0], "dtype": "float32", "dict": {"list": [], "tuple": ()}}
    assert same(round_trip(tree), tree)


def test_other_containers_become_a_dict_of_paths():
    tree = Point(weights=np.float32([1.0, 2.0]), rest={"bias": (3.0, 4)})
    assert same(
        round_trip(tree),
        {".weights": np.float32([1.0, 2.0]), ".rest['bias'][0]": 3.0, ".rest['bias'][1]": 4},
    )
    assert same(round_trip([Point(1.0, 2.0)]), [{".weights": 1.0, ".rest": 2.0}])


def test_subclasses_of_dict_come_back_as_dicts_in_their_order():
    assert same(round_trip(collections.OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


@pytest.mark.parametrize("word", SPECIAL_WORDS)
def test_words_for_non_finite_numbers_stay_words(word):
    assert same(round_trip({"name": word}), {"name": word})


@pytest.mark.parametrize("tree", [{0: 1.0, 1: 2.0}, {("a", 1): 1.0}], ids=["integers", "tuples"])
def test_keys_that_are_not_strings_come_back_or_are_refused(tree):
    try:
        back = round_trip(tree)
    except (TypeError, ValueError):
        return
    assert same(back, tree)


def test_keys_that_collide_as_strings_lose_nothing():
    try:
        back = round_trip({1: 1.0, "1": 2.0})
    except (TypeError, ValueError):
        return
    assert len(back) == 2


def test_empty_arrays_keep_their_shape():
    assert same(round_trip(np.zeros((0, 3), np.float32)), np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("leaf", [1j, b"bytes", object(), {1.0}], ids=["complex", "bytes", "object", "set"])
def test_what_cannot_be_written_is_refused(leaf):
    with pytest.raises((TypeError, ValueError)):
        encoded({"a": leaf})
