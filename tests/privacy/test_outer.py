"""Outer products as leaves of contributions: scaled and added like arrays, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpbilevel.privacy.outer import Outer, dense, known_norms, layout, norm

ROW = jnp.array([1.0, 2.0, 2.0])


def test_an_outer_product_is_its_array():
    outer = Outer(ROW, jnp.array([1.0, -2.0]))
    assert outer.shape == (3, 2)
    assert outer.size == 6
    np.testing.assert_allclose(outer.dense(), np.outer(ROW, [1.0, -2.0]))
    np.testing.assert_allclose(outer.flat().dense(), np.outer(ROW, [1.0, -2.0]).ravel())
    np.testing.assert_allclose(outer.norm(), np.linalg.norm(outer.dense()))
    np.testing.assert_allclose(norm({"a": outer, "b": jnp.ones(4)}), np.sqrt(9 * 5 + 4))
    assert outer.astype(jnp.float16).dtype == jnp.float16


@pytest.mark.parametrize("factor", [2, 2.0, np.float32(2), np.float64(2), jnp.float32(2)])
def test_scaling_scales_once(factor):
    outer = Outer(ROW, jnp.float32(3.0))
    for scaled in (factor * outer, outer * factor, optax.tree.scale(factor, {"a": outer})["a"]):
        assert isinstance(scaled, Outer)
        np.testing.assert_allclose(scaled.dense(), 6 * ROW)


def test_sums_of_one_row_stay_outer_products():
    one, other = Outer(ROW, jnp.float32(3.0)), Outer(ROW, jnp.float32(-1.0))
    assert isinstance(one + other, Outer)
    np.testing.assert_allclose((one + other).dense(), 2 * ROW)
    elsewhere = Outer(ROW + 1, jnp.float32(1.0))
    np.testing.assert_allclose(one + elsewhere, 4 * ROW + 1)
    np.testing.assert_allclose(jnp.ones(3) + one, 3 * ROW + 1)
    np.testing.assert_allclose(optax.tree.add([one], [jnp.ones(3)])[0], 3 * ROW + 1)


@pytest.mark.parametrize(
    "operation",
    [
        lambda outer: jnp.exp(outer),
        lambda outer: outer + 1j * "a",
        lambda outer: outer**2,
        lambda outer: jnp.ones(3) * outer,
        lambda outer: outer / 2,
        lambda outer: optax.tree.norm(outer),
        lambda outer: jax.vmap(lambda record: Outer(record, jnp.sum(record)))(jnp.ones((2, 3))),
    ],
)
def test_other_operations_raise(operation):
    with pytest.raises((AttributeError, TypeError, ValueError)):
        operation(Outer(ROW, jnp.float32(1.0)))


def test_norms_that_are_known_are_used_for_their_row_alone():
    with known_norms([(ROW, jnp.float32(5.0))]):
        assert float(Outer(ROW, jnp.float32(2.0)).norm()) == 10.0
        assert float(Outer(ROW + 0, jnp.float32(2.0)).norm()) == 6.0
    assert float(Outer(ROW, jnp.float32(2.0)).norm()) == 6.0


# ---- layouts

RECORD = (jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32))


def test_a_layout_finds_the_row_in_the_record():
    found = layout(lambda record: {"b": jnp.ones(2), "a": Outer(record[0], jnp.ones((2, 2)))}, RECORD)
    assert found is not None
    assert (found.record_leaf, found.columns, found.coefficients, found.numbers) == (0, 3, 4, 6)
    assert layout(lambda record: Outer(2 * record[0], record[1]), RECORD).record_leaf is None


def test_contributions_without_a_common_row_have_no_layout():
    assert layout(lambda record: record[0], RECORD) is None
    assert layout(lambda record: [Outer(record[0], record[1]), Outer(record[0] + 0, record[1])], RECORD) is None


def test_a_sum_is_assembled_in_the_order_of_leaves():
    record = (jnp.array([1.0, 2.0, 3.0]), jnp.float32(2.0))

    def vector(record):
        row, target = record
        coefficient = jnp.arange(4.0).reshape(2, 2) * target
        return {"a": Outer(row, coefficient), "b": target * jnp.ones(2), "c": Outer(row, target).flat()}

    found = layout(vector, RECORD)
    *coefficients, others = (part.ravel() for part in found.numbers_of(vector(record)))
    products = jnp.concatenate(coefficients)[:, None] * record[0]
    expected = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(dense(vector(record)))])
    np.testing.assert_allclose(found.assemble(products, others), expected)


def test_narrow_numbers_are_summed_in_float32():
    half = (jax.ShapeDtypeStruct((3,), jnp.bfloat16), RECORD[1])
    assert layout(lambda record: Outer(record[0], record[0][0]), half).dtype == jnp.float32
