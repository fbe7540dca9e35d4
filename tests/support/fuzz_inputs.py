"""Bad inputs for fuzzing: values of every kind for arguments, and damage for the bytes and the JSON of files."""

import copy
import decimal
import fractions
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import dpbilevel as dpb


class Rude:
    """An object that answers nothing without an error."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no array")

    def __float__(self) -> float:
        raise TypeError("no number")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("nothing to compare")

    __hash__ = None  # type: ignore[assignment]


NUMBERS = (0, 1, -1, 2, 2**31, 2**63, 10**30, -(10**400), 10**400, True, False)
FLOATS = (0.0, -0.0, 0.5, 1.0, 1e-300, 1e300, 5e-324, math.nan, math.inf, -math.inf, -1.5)
OBJECTS = (
    *(None, ..., NotImplemented, object(), Rude(), type, dict, len, print, lambda: None, lambda *_: None),
    *(1j, fractions.Fraction(1, 3), decimal.Decimal("0.1"), b"", b"\x00\xff", bytearray(b"a"), range(3), Path("x")),
    *(np.float32(0.5), np.int64(3), np.bool_(True), np.datetime64("2026-01-01"), np.complex64(1j), np.str_("a")),
    *(np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(3), np.ones((3, 2)), np.full((2, 2), np.nan)),
    *(np.array(["a", "b"]), np.array([None, 1], object), np.array([1 + 1j]), np.ma.masked_equal([1, 2], 1)),
    *(np.zeros(3, "M8[s]"), np.zeros(2, [("a", "f4")]), jnp.zeros(3), jax.ShapeDtypeStruct((3,), "float32")),
    *(
        jax.random.key(0),
        dpb.Budget(1.0, 1e-6),
        dpb.Budget,
        dpb.Poisson(0.5),
        dpb.FullBatch(),
        dpb.Simplex(),
        dpb.Refit(),
    ),
    *(set(), {1}, frozenset("a"), [], (), {}, [[]], [[1], [1, 2]], {"a": 1}, {1: 2, "a": 3}, {"a": {"b": []}}),
    *("", " ", "a", "auto", "nan", "0.5", "\x00", "\ud800", "é" * 300, "a\nb", "__class__", "{}", "%s", "../x"),
)


def anything() -> st.SearchStrategy[Any]:
    """A value of any kind: plain ones, hostile ones, and containers of them."""
    leaf = st.one_of(
        st.sampled_from(OBJECTS),
        st.sampled_from(NUMBERS),
        st.sampled_from(FLOATS),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
    )
    return st.one_of(
        leaf,
        st.lists(leaf, max_size=3),
        st.tuples(leaf, leaf),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3)), leaf, max_size=3),
    )


def numbers_and_such() -> st.SearchStrategy[Any]:
    """For arguments that take a number: numbers at every edge, and other things."""
    return st.one_of(st.sampled_from(NUMBERS), st.sampled_from(FLOATS), st.integers(-3, 3), st.floats(), anything())


@st.composite
def changed(draw: st.DrawFn, valid: dict[str, Any], names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Valid arguments of which one to three are replaced by anything; ``names`` are optional ones to try as well."""
    chosen = draw(st.lists(st.sampled_from(sorted({*valid, *names})), min_size=1, max_size=3, unique=True))
    return valid | {name: affordable(name, draw(numbers_and_such())) for name in chosen}


# An array of 2^63 columns is no mistake that an argument check could name: it is more than any memory.
SIZES = {"columns", "rows", "validation_rows", "sources", "classes", "tasks", "dimension", "hidden", "bins", "repeats"}
SIZES |= {"rows_per_unit"}


def affordable(name: str, value: Any) -> Any:
    """The same, but for whole numbers that are large and valid, and would be the size of an array or of a loop."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return value % 100 if whole and 100 < value < (math.inf if name in SIZES else 2**63) else value


@st.composite
def damaged_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """A file that was cut, overwritten, extended or replaced."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "repeat", "zero"])):
            case "flip" if content:
                content[place] ^= draw(st.integers(1, 255))
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = draw(st.binary(max_size=12))
            case "remove":
                del content[place : place + draw(st.integers(1, 64))]
            case "repeat":
                content[place:place] = content[place : place + draw(st.integers(1, 64))]
            case _:
                content[place : place + 16] = bytes(min(16, len(content) - place))
    return bytes(content)


JSON_LEAVES = (None, True, 0, -1, 10**400, 1e300, 0.5, "", "nan", "x", [], {}, [[1], 2], {"float": "x"}, {"array": [1]})


@st.composite
def damaged_json(draw: st.DrawFn, good: Any) -> Any:
    """A JSON value with one to three entries replaced, removed or renamed, anywhere in it."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        place = value
        while True:
            keys = (
                list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
            )
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            action = draw(st.sampled_from(["replace", "remove", "add"]))
            if action == "remove":
                del place[key]
            elif action == "add" and isinstance(place, dict):
                place[draw(st.text(max_size=5))] = place[key]
            else:
                place[key] = copy.deepcopy(draw(st.sampled_from(JSON_LEAVES)))
            break
    return value


def damaged_text(good: str) -> st.SearchStrategy[bytes]:
    """A text file that was damaged, or another one."""
    lines = good.splitlines(keepends=True)
    shuffled = st.lists(st.sampled_from(lines), max_size=len(lines)).map(lambda chosen: "".join(chosen).encode())
    return st.one_of(damaged_bytes(good.encode()), shuffled, st.binary(max_size=40), st.text(max_size=40).map(_encoded))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")
