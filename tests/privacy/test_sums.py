"""Sums over parts of the records, merged: the sum over all of them, and compensated across the merge too."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.privacy.clipping import compensated_sum
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.sums import compensated, exact
from dpbilevel.records import isolated_jax_config


def folded(total, rows, parts):
    """The value of a sum over parts of the records that are folded apart and merged."""
    with isolated_jax_config():
        ends = np.linspace(0, len(rows), parts + 1).astype(int)
        carries = [
            Memory(rows[a:b]).fold(lambda row: row, total, jnp.ones(b - a, bool)) for a, b in itertools.pairwise(ends)
        ]
        carry = carries[0]
        for other in carries[1:]:
            carry = total.merge(carry, other)
        return np.asarray(total.value(carry))


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_merged_parts_have_the_sum_of_all_records(parts):
    rows = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float32)
    whole, merged = (folded(compensated_sum(1.0), rows, number) for number in (1, parts))
    np.testing.assert_allclose(merged, whole, rtol=1e-6)
    assert whole.dtype == np.float64


def test_merging_keeps_the_compensation():
    """1 + 10^4 times 2^-54: without compensation every addend is lost, before the merge and in it."""

    def merged(total):
        with isolated_jax_config():
            one, other = (total.add(total.start(1), jnp.ones(1), None) for _ in "ab")
            add = jax.jit(lambda carry: jax.lax.fori_loop(0, 5000, lambda _, c: total.add(c, 2.0**-54, None), carry))
            return float(total.value(total.merge(add(one), add(other)))[0])

    def zero(size):
        return jnp.zeros(size, jnp.float64)

    expected = 2 + 10_000 * 2.0**-54
    assert merged(compensated(lambda block, taken: block, zero)) == pytest.approx(expected, abs=2.0**-50)
    lost = exact(lambda block, taken: block, zero)  # the sum of integers, which has no need of compensation
    assert merged(lost) == 2.0


def test_integers_merge_exactly():
    total = exact(lambda block, taken: jnp.sum(block, axis=0), lambda size: jnp.zeros(size, jnp.int64))
    with isolated_jax_config():
        parts = [total.add(total.start(1), jnp.full((3, 1), 2**61 - 1 - k), None) for k in (0, 5)]
        merged = total.merge(parts[0] - parts[1], parts[1])
        np.testing.assert_array_equal(total.value(merged), total.value(parts[0]))
