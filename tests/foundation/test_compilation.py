"""Compiled functions read their operands only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.foundation import compilation
from dpbilevel.foundation.compilation import Compiled, compiler_options

ROWS = np.random.default_rng(0).normal(size=(1408, 226)).astype(np.float32)
# Reductions of products with one number in every entry, as losses are at models that are constants.
REDUCTIONS = {
    "maximum": lambda scores: scores.max(axis=1),
    "sum": lambda scores: scores.sum(axis=1),
    "classes": lambda scores: jnp.exp(scores - scores.max(axis=1, keepdims=True)),
}


def scores_of(entry, reduction):
    def program(rows):
        return REDUCTIONS[reduction](jnp.matmul(rows, jnp.full((rows.shape[1], 8), entry, rows.dtype)))

    return program


def products_are_alone(program, jit):
    """Whether no kernel of the compiled program has a product together with a reduction of it."""
    kernels = jit(program).lower(ROWS).compile().as_text().split("\n}\n")
    fused = [kernel for kernel in kernels if " dot(" in kernel and "ENTRY" not in kernel]
    return not any(" reduce(" in kernel for kernel in fused)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("entry", [0.0, 1.0])
def test_products_with_a_broadcast_number_are_those_of_a_matrix(entry, reduction):
    program = scores_of(entry, reduction)
    np.testing.assert_allclose(Compiled(program)(ROWS), program(jnp.asarray(ROWS)), rtol=1e-3, atol=1e-3)
    assert products_are_alone(program, Compiled)


@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="another compiler may be right")
def test_a_fusion_that_may_read_beyond_the_number_is_noticed():
    """A mutation: the compiler fuses as it likes. What it then reads depends on what lies there."""
    assert not products_are_alone(scores_of(0.0, "classes"), jax.jit)


def test_a_compiler_without_these_fusions_needs_no_options(monkeypatch):
    assert compiler_options()
    monkeypatch.setattr(compilation, "_OPTIONS", {"xla_no_such_option": "1"})
    compiler_options.cache_clear()
    try:
        assert compiler_options() == {}
        assert int(Compiled(lambda number: number + 1)(1)) == 2
    finally:
        compiler_options.cache_clear()
