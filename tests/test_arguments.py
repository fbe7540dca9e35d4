"""Checks of public arguments: what passes, what is refused, and how the refusal reads."""

import decimal
import fractions
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.errors import DPBilevelError, InvalidArgument
from dpbilevel.foundation.arguments import count, in_the_form_of, non_negative, one_of, positive, printable

NOT_REAL = {
    "bool": True,
    "numpy bool": np.True_,
    "string": "1.0",
    "none": None,
    "nan": math.nan,
    "numpy nan": np.float32("nan"),
    "complex": 1.0 + 0j,
    "list": [1.0],
    "array": np.array(1.0),
    "decimal": decimal.Decimal(1),
    "type": float,
}


@pytest.mark.parametrize("value", [1, 0.5, 1e-300, np.float32(0.25), np.float64(3.0), np.int64(2), np.uint8(1)])
def test_positive_returns_a_float(value):
    result = positive("clip_norm", value, "why")
    assert type(result) is float
    assert result == value


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_positive_keeps_every_positive_float_exactly(value):
    assert positive("clip_norm", value, "why") == value


@given(st.floats(max_value=0, allow_nan=False))
def test_positive_refuses_every_other_float(value):
    with pytest.raises(InvalidArgument, match=r"^clip_norm=.*: must be a finite number > 0; why$"):
        positive("clip_norm", value, "why")


@pytest.mark.parametrize("check", [positive, non_negative])
@pytest.mark.parametrize("value", NOT_REAL.values(), ids=NOT_REAL.keys())
def test_what_is_not_a_real_number_is_refused(check, value):
    with pytest.raises(InvalidArgument, match=r"^clip_norm=.*: must be a real number; it bounds \(try 1\.0\)$"):
        check("clip_norm", value, "it bounds (try 1.0)")


def test_infinity_passes_only_where_it_is_allowed():
    assert positive("epsilon", math.inf, "why", infinite=True) == math.inf
    with pytest.raises(InvalidArgument, match="must be a finite number > 0"):
        positive("epsilon", math.inf, "why")
    with pytest.raises(InvalidArgument, match="must be > 0; why"):
        positive("epsilon", -math.inf, "why", infinite=True)
    with pytest.raises(InvalidArgument, match="must be a finite number >= 0"):
        non_negative("noise", math.inf, "why")


@pytest.mark.parametrize("value", [0, 0.0, -0.0, 1, 2.5, np.float32(0.0)])
def test_non_negative_returns_a_float(value):
    result = non_negative("noise", value, "why")
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize("value", [-1, -1e-300, -math.inf])
def test_non_negative_refuses_what_is_below_zero(value):
    with pytest.raises(InvalidArgument, match=r"^noise=.*: must be a finite number >= 0; why$"):
        non_negative("noise", value, "why")


@pytest.mark.parametrize("check", [positive, non_negative])
def test_a_fraction_is_refused_because_jax_knows_none(check):
    with pytest.raises(InvalidArgument, match="must be a real number"):
        check("clip_norm", fractions.Fraction(1, 2), "why")


@pytest.mark.parametrize("check", [positive, non_negative])
def test_an_integer_beyond_float64_is_refused_with_a_typed_error(check):
    with pytest.raises(InvalidArgument):
        check("clip_norm", 10**400, "why")


@pytest.mark.parametrize("value", [1, 7, 10**30, np.int32(3), np.uint64(2**63)])
def test_count_returns_an_int(value):
    result = count("steps", value, "why")
    assert type(result) is int
    assert result == int(value)


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, np.float64(2.0), "3", None, np.array(3), math.inf])
def test_count_refuses_everything_else(value):
    with pytest.raises(InvalidArgument, match=r"^steps=.*: must be a whole number >= 1; why$"):
        count("steps", value, "why")


def test_one_of_returns_its_choice_and_lists_the_choices_when_refusing():
    choices = ("replace-one", "zero-out")
    assert one_of("adjacency", "zero-out", choices, "why") == "zero-out"
    for value in ("replace", "", None, 1, ["zero-out"], b"zero-out", choices):
        with pytest.raises(InvalidArgument) as caught:
            one_of("adjacency", value, choices, "why")
        assert str(caught.value) == f"adjacency={value!r}: must be one of 'replace-one', 'zero-out'; why"


def test_printable_takes_a_line_of_text_and_nothing_else():
    assert printable("dataset", "Süd 数 2026", "why") == "Süd 数 2026"
    for value in ("", " ", "a\nb", "nul\0", "lone \ud800", "x" * 201, None, 1, b"bytes"):
        with pytest.raises(
            InvalidArgument, match=r"^dataset=.*: must be one line of text of at most 200 characters; why$"
        ):
            printable("dataset", value, "why")


def test_refusals_can_be_caught_as_value_errors_and_as_errors_of_the_library():
    for family in (ValueError, DPBilevelError):
        with pytest.raises(family):
            positive("clip_norm", -1.0, "why")


def test_content_that_lacks_something_has_one_typed_error():
    @in_the_form_of("results", "rates.json")
    def mean(content):
        return sum(content["values"]) / len(content["values"])

    assert mean({"values": [1, 3]}) == 2
    for lacking in ({}, {"values": []}, {"values": ["a"]}, None):
        with pytest.raises(InvalidArgument, match=r"^results: must hold what rates.json holds"):
            mean(lacking)


def test_typed_errors_pass_through_as_they_are():
    with pytest.raises(DPBilevelError, match=r"^x: my own$"), in_the_form_of("results", "rates.json"):
        raise InvalidArgument("x: my own")
