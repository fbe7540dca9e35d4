"""Structure and numbers: what is compared, and what compiled code can read."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from dpbilevel.foundation.structure import function, key_of, numbers_as_bytes, passing


@passing("rate", "limits", structure=("name", "sizes"))
@dataclass(frozen=True, eq=False)
class Rule:
    rate: float
    limits: dict[str, float]
    name: str = "rule"
    sizes: dict[str, int] | None = None
    secret: float = 0.0


def structure(tree):
    return jax.tree.structure(tree)


def scaled(factor, value):
    return factor * value


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (Rule(0.2, {"b": 3.0, "a": 2.0}), True),
        (Rule(0.1, {"a": 2.0, "b": 1.0}), False),  # mappings keep their order
        (Rule(0.1, {"b": 1.0, "a": 2.0}, name="other"), False),
        (Rule(0.1, {"b": 1.0, "a": 2.0}, sizes={"a": 1}), False),
        (Rule(0.1, {"b": 1.0, "a": 2.0}, secret=1.0), True),
    ],
)
def test_structures_are_equal_whatever_the_numbers(other, equal):
    assert (structure(Rule(0.1, {"b": 1.0, "a": 2.0})) == structure(other)) == equal


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1,), [1])])
def test_values_of_different_kinds_are_different_structures(one, other):
    assert structure(Rule(0.1, {}, sizes={"a": one})) != structure(Rule(0.1, {}, sizes={"a": other}))
    assert structure(Rule(0.1, {}, sizes={"a": one})) == structure(Rule(0.1, {}, sizes={"a": one}))


def test_what_cannot_be_compared_by_value_is_compared_by_identity():
    array = np.arange(3)
    assert structure(Rule(0.1, {}, sizes={"a": array})) == structure(Rule(0.1, {}, sizes={"a": array}))
    assert structure(Rule(0.1, {}, sizes={"a": array})) != structure(Rule(0.1, {}, sizes={"a": array.copy()}))
    assert structure(function(lambda value: value)) != structure(function(lambda value: value))


def test_compiled_code_reads_numbers_and_structure_and_nothing_else():
    rule = Rule(0.5, {"a": 2.0}, sizes={"a": 3})
    assert jax.jit(lambda rule: rule.rate * rule.limits["a"] * rule.sizes["a"])(rule) == 3.0
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda rule: 1.0 if rule.rate > 0 else 0.0)(rule)
    made = jax.tree.unflatten(structure(rule), jax.tree.leaves(rule))
    assert "secret" not in vars(made)


def test_a_function_is_structure_and_its_arguments_are_numbers():
    compiled = jax.jit(lambda called, value: called(value))
    assert compiled(function(scaled, 2.0), 3.0) == 6.0
    assert compiled(function(scaled, 4.0), 3.0) == 12.0
    assert compiled._cache_size() == 1
    assert compiled(function(lambda value: 5 * value), 3.0) == 15.0
    assert compiled._cache_size() == 2
    assert jax.tree.leaves(function(scaled, function(scaled, 2.0))) == [2.0]


def test_a_callable_without_a_hash_is_compared_by_identity():
    @dataclass
    class Doubled:
        by: float

        def __call__(self, value):
            return self.by * value

    doubled = Doubled(2.0)
    assert function(doubled)(3.0) == 6.0
    assert structure(function(doubled)) == structure(function(doubled)) != structure(function(Doubled(2.0)))


def test_keys_of_shapes_are_equal_by_value():
    shape = {"a": jax.ShapeDtypeStruct((3,), np.float32)}
    assert key_of(shape) == key_of(dict(shape)) != key_of({"a": jax.ShapeDtypeStruct((4,), np.float32)})


def test_bytes_of_numbers_differ_where_numbers_or_their_types_do():
    one = numbers_as_bytes(Rule(1.0, {"a": 2.0}))
    assert one == numbers_as_bytes(Rule(1.0, {"a": 2.0}, name="other"))
    assert len({one, numbers_as_bytes(Rule(1, {"a": 2.0})), numbers_as_bytes(Rule(1.0, {"a": -2.0}))}) == 3
