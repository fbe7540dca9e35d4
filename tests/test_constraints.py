"""Projections against independent computations, and the algebra every projection obeys."""

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from dpbilevel.constraints import (
    Ball,
    Box,
    NonNegative,
    Simplex,
    Unconstrained,
    check_domain,
    contains,
    into_ball,
    project,
)
from dpbilevel.errors import InvalidArgument

DIMENSION = 5
LOWER = np.array([-1.0, 0.0, -np.inf, 2.0, -3.0])
UPPER = np.array([1.0, 0.0, 0.5, np.inf, -2.0])
SETS = {
    "everything": Unconstrained(),
    "non-negative": NonNegative(),
    "box": Box(-1.0, 2.0),
    "box of arrays": Box(LOWER, UPPER),
    "ball": Ball(1.5),
    "simplex": Simplex(),
    "simplex of total 3": Simplex(3.0),
}
COMPILED = {id(convex_set): jax.jit(convex_set.project) for convex_set in SETS.values()}
every_set = pytest.mark.parametrize("convex_set", SETS.values(), ids=SETS.keys())
POINTS = st.lists(st.floats(-20, 20, width=32), min_size=DIMENSION, max_size=DIMENSION).map(np.float32)


def support(convex_set, direction):
    """sup of <direction, q> over the set: its support function, written down independently of any projection."""
    d = np.asarray(direction, np.float64)
    if isinstance(convex_set, Unconstrained):
        return 0.0 if np.allclose(d, 0, atol=1e-5) else np.inf
    if isinstance(convex_set, NonNegative):
        return 0.0 if d.max() <= 1e-5 else np.inf
    if isinstance(convex_set, Box):
        bounds = (np.broadcast_to(bound, d.shape) for bound in (convex_set.lower, convex_set.upper))
        far = [np.where(np.abs(d) < 1e-5, 0.0, bound) for bound in bounds]  # 0 * inf is 0 here
        return float(np.sum(np.maximum(d * far[0], d * far[1])))
    if isinstance(convex_set, Ball):
        return convex_set.radius * np.linalg.norm(d)
    return convex_set.total * d.max()


def is_member(convex_set, point, tolerance=1e-5):
    p = np.asarray(point, np.float64)
    if isinstance(convex_set, NonNegative):
        return p.min() >= 0
    if isinstance(convex_set, Box):
        return bool(np.all((p >= convex_set.lower) & (p <= convex_set.upper)))
    if isinstance(convex_set, Ball):
        return np.linalg.norm(p) <= convex_set.radius * (1 + tolerance)
    if isinstance(convex_set, Simplex):
        return p.min() >= 0 and abs(p.sum() - convex_set.total) <= tolerance * convex_set.total * len(p)
    return True


@every_set
@settings(max_examples=40)
@given(point=POINTS, other=POINTS)
def test_projection_is_the_nearest_point(convex_set, point, other):
    """p is the projection of v if and only if p lies in the set and <v - p, q - p> <= 0 for all q of the set."""
    nearest = COMPILED[id(convex_set)]
    projected = np.asarray(nearest(point))
    assert is_member(convex_set, projected)
    normal = point.astype(np.float64) - projected
    assert support(convex_set, normal) <= normal @ projected + 1e-4 * (1 + np.linalg.norm(point))

    again = np.asarray(nearest(projected))
    np.testing.assert_allclose(again, projected, atol=1e-6)

    there = np.asarray(nearest(other))
    moved, apart = np.linalg.norm(projected - there), np.linalg.norm(point.astype(np.float64) - other)
    assert moved <= apart * (1 + 1e-5) + 1e-5


def test_the_optimality_check_rejects_a_wrong_projection():
    point = np.float32([3.0, -1.0, 0.2, 0.1, 0.0])
    rescaled = np.maximum(point, 0) / np.maximum(point, 0).sum()  # in the simplex, but not the nearest point of it
    normal = point - rescaled
    assert is_member(Simplex(), rescaled)
    assert support(Simplex(), normal) > normal @ rescaled + 0.1


@pytest.mark.parametrize("radius", [1e10, 1e20, 1e38, 1e106, 1e300, np.float64(1e200)])
def test_a_ball_that_holds_everything_moves_nothing(radius):
    """Its radius may be a certified bound, and beyond float32: squared, it would turn points into zero or NaN."""
    point = {"a": jnp.array([3.0, -4.0]), "b": jnp.zeros(())}
    for projected in (jax.jit(Ball(radius).project)(point), into_ball(point, point, radius)):
        jax.tree.map(np.testing.assert_array_equal, projected, point)
    far = jnp.array([1e15, 0.0])
    np.testing.assert_array_equal(into_ball(far, jnp.zeros(2), max(radius, 1e16)), far)


def test_into_a_ball_around_another_point():
    centre = jnp.array([1.0, 1.0])
    np.testing.assert_allclose(into_ball(jnp.array([4.0, 5.0]), centre, 2.5), [2.5, 3.0], rtol=1e-6)
    np.testing.assert_allclose(into_ball(jnp.array([1.5, 1.0]), centre, 2.5), [1.5, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(into_ball(centre, centre, jnp.float32(2.5)), centre)


def simplex_by_enumeration(point, total):
    """The quadratic program over the simplex, by trying every face: exact, and exponential in the dimension."""
    best, nearest = None, np.inf
    for size in range(1, len(point) + 1):
        for face in map(list, itertools.combinations(range(len(point)), size)):
            candidate = np.zeros(len(point))
            candidate[face] = point[face] - (point[face].sum() - total) / size
            distance = np.linalg.norm(candidate - point)
            if candidate.min() >= 0 and distance < nearest:
                best, nearest = candidate, distance
    return best


@pytest.mark.parametrize("name", ["simplex", "simplex of total 3"])
@settings(max_examples=40)
@given(point=POINTS)
def test_simplex_against_every_face(name, point):
    projected = COMPILED[id(SETS[name])](point)
    expected = simplex_by_enumeration(point.astype(np.float64), SETS[name].total)
    np.testing.assert_allclose(projected, expected, atol=2e-5)


def test_simplex_in_high_dimension_against_the_root_of_its_optimality_condition():
    point = np.random.default_rng(0).normal(size=2000) * 3
    shift = brentq(lambda theta: np.maximum(point - theta, 0).sum() - 1.0, point.min() - 1, point.max())
    projected = jax.jit(Simplex().project)(point.astype(np.float32))
    np.testing.assert_allclose(projected, np.maximum(point - shift, 0), atol=1e-5)


@pytest.mark.parametrize("length", [0.5, 1.5, 4.0])
def test_ball_against_a_general_solver(length):
    point = np.random.default_rng(1).normal(size=DIMENSION)
    point *= length / np.linalg.norm(point)
    solved = minimize(
        lambda q: np.sum((q - point) ** 2),
        np.zeros(DIMENSION),
        jac=lambda q: 2 * (q - point),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda q: 1.5**2 - q @ q, "jac": lambda q: -2 * q},
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(COMPILED[id(SETS["ball"])](point.astype(np.float32)), solved.x, atol=1e-4)


def test_box_and_non_negative_coordinate_by_coordinate():
    point = np.float32([-2.0, 3.0, 0.3, 1.0, 9.0])
    np.testing.assert_array_equal(
        Box(LOWER, UPPER).project(jnp.asarray(point)), np.float32([-1.0, 0.0, 0.3, 2.0, -2.0])
    )
    np.testing.assert_array_equal(Box(0, 1).project(jnp.asarray(point)), np.float32([0.0, 1.0, 0.3, 1.0, 1.0]))
    np.testing.assert_array_equal(NonNegative().project(jnp.asarray(point)), np.float32([0.0, 3.0, 0.3, 1.0, 9.0]))


@every_set
def test_projection_eager_and_compiled_agree(convex_set):
    point = jnp.asarray(np.float32([3.0, -1.0, 0.2, 0.1, 0.0]))
    np.testing.assert_allclose(convex_set.project(point), COMPILED[id(convex_set)](point), rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------- pytrees


@pytest.mark.parametrize("convex_set", [SETS["ball"], SETS["simplex"], SETS["simplex of total 3"]], ids=repr)
def test_ball_and_simplex_act_on_all_leaves_jointly(convex_set):
    flat = np.float32([3.0, -1.0, 0.2, 1.1, 0.4])
    tree = {"scalar": jnp.asarray(flat[0]), "nested": [jnp.asarray(flat[1:3]), (jnp.asarray(flat[3:].reshape(2, 1)),)]}
    joint = jax.jit(convex_set.project)(tree)
    assert jax.tree.structure(joint) == jax.tree.structure(tree)
    assert [leaf.shape for leaf in jax.tree.leaves(joint)] == [leaf.shape for leaf in jax.tree.leaves(tree)]
    order = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    expected = np.asarray(COMPILED[id(convex_set)](order))
    np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(joint)]), expected, atol=1e-6)
    alone = jax.jit(lambda point: jax.tree.map(convex_set.project, point))(tree)
    assert not np.allclose(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(alone)]), expected, atol=1e-2)


def test_a_tree_of_sets_may_be_a_prefix_of_the_point():
    domain = {"weights": Simplex(), "rest": (Ball(1.0), Unconstrained()), "penalty": Box(0.0, 1.0)}
    point = {
        "weights": jnp.array([2.0, 0.0]),
        "rest": ({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}, [jnp.array(-7.0)]),
        "penalty": jnp.array(5.0),
    }
    projected = jax.jit(lambda tree: project(domain, tree))(point)
    assert jax.tree.structure(projected) == jax.tree.structure(point)
    np.testing.assert_allclose(projected["weights"], [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(projected["rest"][0]["a"], [0.6], rtol=1e-6)
    np.testing.assert_allclose(projected["rest"][0]["b"], [[0.8]], rtol=1e-6)
    assert float(projected["rest"][1][0]) == -7.0
    assert float(projected["penalty"]) == 1.0


@pytest.mark.parametrize(
    "domain",
    [
        {"a": Simplex()},
        {"a": Simplex(), "c": Simplex()},
        (Simplex(), Simplex()),
        {"a": Simplex(), "b": {"c": Ball(1.0)}},
    ],
    ids=["missing", "misnamed", "tuple", "deeper than the point"],
)
def test_a_tree_of_sets_that_does_not_fit_is_an_error(domain):
    with pytest.raises((TypeError, ValueError)):
        project(domain, {"a": jnp.ones(2), "b": jnp.ones(2)})


# ------------------------------------------------------------------------------------------------------------ dtypes

DTYPE_CASES = [
    *[pytest.param(s, x64, "float32") for s in SETS.values() for x64 in (False, True)],
    *[pytest.param(s, True, "float64") for s in SETS.values()],
    pytest.param(Ball(np.float64(1.5)), False, "float32"),
    pytest.param(Ball(np.float64(1.5)), True, "float32"),
]


@pytest.mark.parametrize(("convex_set", "x64", "dtype"), DTYPE_CASES)
def test_projection_keeps_the_dtype_of_the_point(convex_set, x64, dtype):
    with jax.enable_x64(True) if x64 else contextlib.nullcontext():
        point = jax.ShapeDtypeStruct((DIMENSION,), dtype)
        assert jax.eval_shape(lambda p: project(convex_set, p), point).dtype == dtype


@pytest.mark.parametrize("convex_set", [Ball(1.5), Simplex()], ids=["ball", "simplex"])
def test_leaves_of_different_precision_keep_theirs(convex_set):
    with jax.enable_x64(True):
        point = {"a": jax.ShapeDtypeStruct((2,), "float32"), "b": jax.ShapeDtypeStruct((), "float64")}
        projected = jax.eval_shape(lambda p: project(convex_set, p), point)
        assert jax.tree.map(lambda leaf: str(leaf.dtype), projected) == {"a": "float32", "b": "float64"}


# ---------------------------------------------------------------------------------------------------------- contains


@dataclass
class Membership:
    domain: Any
    inside: Any
    outside: Any


MEMBERSHIPS = {
    "everything": Membership(Unconstrained(), jnp.array([1e9, -1e9]), jnp.array([jnp.nan, 0.0])),
    "non-negative": Membership(NonNegative(), jnp.array([0.0, 2.0]), jnp.array([-0.01, 2.0])),
    "box": Membership(Box(-1, 2), jnp.array([-1.0, 2.0]), jnp.array([-1.0, 2.01])),
    "ball": Membership(Ball(5.0), jnp.array([3.0, 4.0]), jnp.array([3.0, 4.1])),
    "simplex": Membership(Simplex(2.0), jnp.array([0.5, 1.5]), jnp.array([0.5, 1.0])),
    "simplex, negative": Membership(Simplex(), jnp.array([0.0, 1.0]), jnp.array([-0.5, 1.5])),
    "product": Membership(
        (Simplex(), Ball(1.0)),
        (jnp.array([0.5, 0.5]), jnp.array([0.0, -1.0])),
        (jnp.array([0.5, 0.5]), jnp.array([0.0, -1.1])),
    ),
}


@pytest.mark.parametrize("case", MEMBERSHIPS.values(), ids=MEMBERSHIPS.keys())
def test_contains(case):
    assert contains(case.domain, case.inside) is True
    assert contains(case.domain, case.outside) is False


@every_set
def test_contains_what_was_projected(convex_set):
    for seed in range(5):
        point = np.float32(np.random.default_rng(seed).normal(size=DIMENSION) * 10)
        assert contains(convex_set, COMPILED[id(convex_set)](point))


def test_contains_forgives_rounding_and_no_more():
    assert contains(Simplex(), jnp.array([0.3, 0.7]))
    assert contains(Ball(1.0), jnp.array([1.00001, 0.0]))
    assert not contains(Ball(1.0), jnp.array([1.00001, 0.0]), tolerance=1e-7)
    assert not contains(Ball(1.0), jnp.array([1.001, 0.0]))


@pytest.mark.parametrize("convex_set", [Ball(1.0), Box(-1.0, 1.0), NonNegative(), Simplex()], ids=repr)
def test_a_point_whose_square_overflows_is_outside(convex_set):
    assert not contains(convex_set, jnp.array([-1e20, 1e20], jnp.float32))


# ---------------------------------------------------------------------------------------------------- bad arguments

BAD_ARGUMENTS = {
    "radius zero": (lambda: Ball(0.0), "radius=0.0: must be a finite number > 0"),
    "radius negative": (lambda: Ball(-1.0), "radius=-1.0: must be a finite number > 0"),
    "radius infinite": (lambda: Ball(np.inf), "radius=inf: must be a finite number > 0"),
    "radius nan": (lambda: Ball(np.nan), "radius=nan: must be a real number"),
    "radius bool": (lambda: Ball(True), "radius=True: must be a real number"),
    "radius string": (lambda: Ball("1"), "radius='1': must be a real number"),
    "radius array": (lambda: Ball(np.ones(2)), "must be a real number"),
    "total zero": (lambda: Simplex(0.0), "total=0.0: must be a finite number > 0"),
    "total negative": (lambda: Simplex(-2), "total=-2: must be a finite number > 0"),
    "total none": (lambda: Simplex(None), "total=None: must be a real number"),
    "bounds crossed": (lambda: Box(1.0, 0.0), "lower must not exceed upper"),
    "bounds crossed somewhere": (lambda: Box([0.0, 0.0], [1.0, -1.0]), "lower must not exceed upper"),
    "bounds strings": (lambda: Box("a", "b"), "must be real numbers"),
    "bounds none": (lambda: Box(None, 1.0), "must be real numbers"),
    "bounds bool": (lambda: Box(False, True), "must be real numbers"),
    "bounds tree": (lambda: Box({"a": 0.0}, {"a": 1.0}), "must be real numbers"),
    "bounds nan": (lambda: Box(np.nan, 1.0), "Box"),
}


@pytest.mark.parametrize(("build", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(InvalidArgument) as caught:
        build()
    assert message in str(caught.value)


def test_nan_bounds_are_named_as_such():
    with pytest.raises(InvalidArgument, match=r"(?i)nan"):
        Box(np.nan, 1.0)


def test_bounds_of_different_shapes_are_refused():
    with pytest.raises(InvalidArgument):
        Box(np.zeros(3), np.ones(2))


def test_complex_bounds_are_refused():
    with pytest.raises(InvalidArgument):
        Box(-1j, 1j)


def test_bounds_that_do_not_fit_the_point_are_an_error():
    with pytest.raises((TypeError, ValueError)):
        project(Box(np.zeros(3), np.ones(3)), jnp.array(0.5))


class Halfspace:
    """A set of the user's own: anything with a projection."""

    def project(self, tree):
        return jax.tree.map(lambda leaf: jnp.minimum(leaf, 1.0), tree)


GOOD_DOMAINS = [Unconstrained(), {"a": Simplex(), "b": [Ball(1.0)]}, (NonNegative(),), Halfspace(), {"a": Halfspace()}]
BAD_DOMAINS = [None, {}, (), 1.0, "simplex", Simplex, {"a": Simplex}, {"a": Simplex(), "b": 3.0}, [Ball(1.0), "ball"]]


@pytest.mark.parametrize("domain", GOOD_DOMAINS, ids=range(len(GOOD_DOMAINS)))
def test_check_domain_accepts(domain):
    check_domain("domain", domain)


@pytest.mark.parametrize("domain", BAD_DOMAINS, ids=repr)
def test_check_domain_refuses_and_says_what_it_wants(domain):
    with pytest.raises(InvalidArgument) as caught:
        check_domain("lower_domain", domain)
    message = str(caught.value)
    assert message.startswith("lower_domain=")
    assert "Simplex()" in message


def test_sets_are_immutable():
    for convex_set, field in ((Ball(1.0), "radius"), (Simplex(), "total"), (Box(0, 1), "upper")):
        with pytest.raises(AttributeError):
            setattr(convex_set, field, 2.0)
