"""Conjugate gradients: few products, whatever the guess, the units and the scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpbilevel.methods.noiseless.conjugate_gradients import solve


def system(size=20, seed=0):
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(size, size)) / size**0.5
    matrix = root @ root.T + np.diag(10.0 ** np.linspace(-1, 4, size))
    return jnp.asarray(matrix, jnp.float32), jnp.asarray(draws.normal(size=size), jnp.float32)


def counted(matrix, right, scales, tolerance, guess=None):
    """The solution, and the number of products with the matrix."""
    products = []

    def along(v):
        jax.debug.callback(lambda: products.append(1))
        return matrix @ v

    found = jax.block_until_ready(solve(along, right, scales, tolerance, 100, guess))
    jax.effects_barrier()
    return found, len(products)


def test_the_solution_is_found_to_the_tolerance():
    matrix, right = system()
    scales = 1 / jnp.diag(matrix)
    found, _ = counted(matrix, right, scales, 1e-5)
    residual = right - matrix @ found
    assert jnp.vdot(residual, scales * residual) <= (2e-5) ** 2 * jnp.vdot(right, scales * right)
    np.testing.assert_allclose(found, np.linalg.solve(np.asarray(matrix, float), right), rtol=1e-3, atol=1e-5)


def test_a_solve_from_zero_needs_no_product_for_its_first_residual():
    """One product solves a system whose preconditioner is its inverse."""
    weights = jnp.asarray(10.0 ** np.linspace(-3, 3, 9), jnp.float32)
    found, products = counted(jnp.diag(weights), jnp.ones(9), 1 / weights, 1e-4)
    assert products == 1
    np.testing.assert_allclose(found, 1 / weights, rtol=1e-5)


@pytest.mark.parametrize("factor", [0.0, 1e-3, 1.0, -1e4, np.nan])
def test_the_length_of_a_guess_does_not_matter(factor):
    matrix, right = system()
    scales, tolerance = 1 / jnp.diag(matrix), 1e-4
    exact = jnp.asarray(np.linalg.solve(np.asarray(matrix, float), right), jnp.float32)
    found, products = counted(matrix, right, scales, tolerance, factor * exact)
    np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-4)
    _, from_zero = counted(matrix, right, scales, tolerance)
    # One product measures the guess; a multiple of the solution leaves nothing to do, zero leaves everything.
    assert products == (from_zero + 1 if factor == 0 or np.isnan(factor) else 1)


def test_units_of_coordinates_change_nothing_where_scales_follow_them():
    matrix, right = system()
    scales = 1 / jnp.diag(matrix)
    units = jnp.asarray(2.0 ** np.arange(-10, 10), jnp.float32)
    plain, products = counted(matrix, right, scales, 1e-4)
    other, same = counted(matrix * jnp.outer(units, units), right * units, scales / units**2, 1e-4)
    assert products == same
    np.testing.assert_allclose(other * units, plain, rtol=1e-3)


def test_without_curvature_the_first_direction_remains():
    right = jnp.asarray([1.0, -2.0])
    found, products = counted(-jnp.eye(2), right, jnp.ones(2), 1e-4)
    assert products == 1
    np.testing.assert_array_equal(found, right)
