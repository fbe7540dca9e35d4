"""Several vectors in one release: each with the noise of a release of its own, the whole within one clip."""

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpbilevel.methods.joint import joined, separated, shared

VECTORS = {
    "long": (lambda point, record: point * record, 3.0),
    "short": (lambda point, record: {"a": record[:2], "b": -record}, 0.5),
}
WEIGHTS = {"long": 1.0, "short": 3.0, "absent": 10.0}


def norm(tree) -> float:
    leaves = tree.values() if isinstance(tree, dict) else [tree]
    return math.sqrt(
        sum(norm(leaf) ** 2 if isinstance(leaf, dict) else float(np.sum(np.square(leaf))) for leaf in leaves)
    )


@given(st.floats(-1e6, 1e6), st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3))
def test_the_whole_has_norm_at_most_one_and_each_part_its_share(point, record):
    parts = shared(VECTORS, WEIGHTS)
    whole = joined(parts, clipped=True)(jnp.float32(point), jnp.asarray(record, jnp.float32))
    assert norm(whole) <= 1 + 1e-5
    for name, part in parts.items():
        assert norm(whole[name]) ** 2 <= part.share * (1 + 1e-5)


def test_shares_sum_to_one_over_the_parts_that_are_there():
    parts = shared(VECTORS, WEIGHTS)
    assert {name: part.share for name, part in parts.items()} == {"long": 0.25, "short": 0.75}


def test_small_vectors_come_back_as_they_were():
    parts = shared(VECTORS, WEIGHTS)
    point, record = jnp.float32(2.0), jnp.asarray([0.1, -0.2, 0.05])
    for clipped in (True, False):
        back = separated(joined(parts, clipped)(point, record), parts)
        np.testing.assert_allclose(back["long"], point * record, rtol=1e-5)
        np.testing.assert_allclose(back["short"]["b"], -record, rtol=1e-5)


def test_without_privacy_nothing_is_clipped():
    parts = shared(VECTORS, WEIGHTS)
    back = separated(joined(parts, clipped=False)(jnp.float32(1e3), jnp.ones(3)), parts)
    np.testing.assert_allclose(back["long"], 1e3, rtol=1e-5)
