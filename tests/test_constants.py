"""Constants and their formulas, against brute force on problems whose derivatives are known."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument

GOOD = {
    "upper_lipschitz": 1.0,
    "upper_smoothness": 0.25,
    "lower_lipschitz": 1.0,
    "lower_smoothness": 0.35,
    "lower_hessian_lipschitz": 0.1,
    "strong_convexity": 0.1,
}


@dataclass
class Quadratic:
    """f(w) = w'Aw/2, g(w) = w'Bw/2 with w = (x, y); the first ``x_size`` coordinates are x."""

    upper: np.ndarray
    lower: np.ndarray
    x_size: int

    @property
    def constants(self):
        return Constants(
            upper_lipschitz=1.0,  # enters only next to the Hessian's Lipschitz constant, which is zero here
            upper_smoothness=np.linalg.norm(self.upper, 2),
            lower_lipschitz=1.0,
            lower_smoothness=np.linalg.norm(self.lower, 2) * (1 + 1e-12),
            lower_hessian_lipschitz=0.0,
            strong_convexity=np.linalg.eigvalsh(self.lower[self.x_size :, self.x_size :])[0],
        )

    def minimised(self, matrix):
        """The Hessian in x of min over y of w'Mw/2: a Schur complement."""
        x, y = slice(None, self.x_size), slice(self.x_size, None)
        return matrix[x, x] - matrix[x, y] @ np.linalg.solve(matrix[y, y], matrix[y, x])

    def hyperobjective_smoothness(self, penalty):
        """Lipschitz constant of the gradient of min_y (f + penalty g) - penalty min_y g, exactly."""
        hessian = self.minimised(self.upper + penalty * self.lower) - penalty * self.minimised(self.lower)
        return np.linalg.norm(hessian, 2)


def random_quadratic(generator):
    x_size, y_size = generator.integers(1, 5, size=2)
    size = x_size + y_size
    upper = generator.normal(size=(size, size)) * 10 ** generator.uniform(-2, 1)
    lower = generator.normal(size=(size, size)) * 10 ** generator.uniform(-1, 1)
    upper, lower = (upper + upper.T) / 2, (lower + lower.T) / 2
    in_y = lower[x_size:, x_size:]
    in_y += (10 ** generator.uniform(-2, 1) - np.linalg.eigvalsh(in_y)[0]) * np.eye(y_size)
    return Quadratic(upper, lower, int(x_size))


@pytest.fixture(scope="module")
def quadratics():
    generator = np.random.default_rng(0)
    return [random_quadratic(generator) for _ in range(1500)]


def penalties(constants):
    return [constants.smallest_penalty_weight() * factor for factor in (1.0, 1.5, 30.0, 1e4)]


def test_smoothness_of_the_hyperobjective_never_exceeds_the_bound(quadratics):
    shares = [
        problem.hyperobjective_smoothness(penalty) / problem.constants.hyperobjective_smoothness(penalty)
        for problem in quadratics
        for penalty in penalties(problem.constants)
    ]
    assert max(shares) <= 1 + 1e-6
    assert max(shares) > 0.05, "the bound is loose, but not by orders of magnitude everywhere"


def test_a_bound_without_the_coupling_of_x_and_y_is_exceeded(quadratics):
    """The mutation: L1f alone bounds the curvature of f, not that of the hyperobjective."""
    assert any(
        problem.hyperobjective_smoothness(penalty) > problem.constants.upper_smoothness * 1.1
        for problem in quadratics
        for penalty in penalties(problem.constants)
    )


def smallest_curvature(problem, penalty):
    penalised = problem.upper / penalty + problem.lower
    return np.linalg.eigvalsh(penalised[problem.x_size :, problem.x_size :])[0]


def test_penalised_objective_is_as_strongly_convex_as_promised(quadratics):
    for problem in quadratics:
        constants = problem.constants
        for penalty in penalties(constants):
            promised = constants.penalised_strong_convexity(penalty)
            assert smallest_curvature(problem, penalty) >= promised - 1e-9 * (1 + constants.lower_smoothness)
            assert promised >= constants.strong_convexity / 2 * (1 - 1e-12), "what 2 L1f/mu_g is for"


def test_strong_convexity_of_the_penalised_objective_is_tight():
    problem = Quadratic(upper=-0.5 * np.eye(2), lower=np.diag([0.0, 2.0]), x_size=1)
    for penalty in (0.5, 1.0, 10.0):
        assert problem.constants.penalised_strong_convexity(penalty) == smallest_curvature(problem, penalty)


def test_the_lemma_as_printed_in_the_paper_is_false(quadratics):
    """It says mu_g - L1g/penalty. Where f is the rougher of the two, that promises more than there is."""
    assert any(
        smallest_curvature(problem, penalty)
        < problem.constants.strong_convexity - problem.constants.lower_smoothness / penalty - 1e-6
        for problem in quadratics
        for penalty in penalties(problem.constants)
    )


def test_smallest_penalty_is_the_maximum_of_three_bounds():
    assert Constants(**GOOD).smallest_penalty_weight() == 2 * 0.25 / 0.1
    assert Constants(**GOOD | {"upper_lipschitz": 70.0, "lower_lipschitz": 2.0}).smallest_penalty_weight() == 35.0
    # 2 L1f/mu_g is never below L1f/L1g, because mu_g <= L1g: the third bound never binds alone
    assert Constants(**GOOD | {"upper_smoothness": 0.0}).smallest_penalty_weight() == 1.0
    assert Constants(**GOOD | {"upper_smoothness": 0.0, "lower_lipschitz": 0.0}).smallest_penalty_weight() == 0.0


# A problem that is not quadratic, where the Hessian's Lipschitz constant and f's Lipschitz constant take part:
#     f(x, y) = b sin(p x + q y + c),     g(x, y) = m y^2/2 + a sin(x + y),     0 < a < m


def sine_constants(a, m, b, p, q):
    corners = [np.array([[-s, -s], [-s, m - s]]) for s in (-a, a)]  # the Hessian is affine in s: extremes at corners
    return Constants(
        upper_lipschitz=abs(b) * math.hypot(p, q),
        upper_smoothness=abs(b) * (p**2 + q**2),
        lower_lipschitz=abs(b) * math.hypot(p, q),
        lower_smoothness=max(np.linalg.norm(corner, 2) for corner in corners),
        lower_hessian_lipschitz=2 * math.sqrt(2) * a,
        strong_convexity=m - a,
    )


def sine_hyperobjective_gradient(x, penalty, a, m, b, p, q, c):
    def minimiser(slope):
        """The root in y of an increasing function, by bisection."""
        low, high = np.full_like(x, -1e3), np.full_like(x, 1e3)
        for _ in range(60):
            middle = (low + high) / 2
            below = slope(middle) < 0
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def lower_y(y):
        return m * y + a * np.cos(x + y)

    y = minimiser(lower_y)
    z = minimiser(lambda z: b * q * np.cos(p * x + q * z + c) / penalty + lower_y(z))
    return b * p * np.cos(p * x + q * z + c) + penalty * a * (np.cos(x + z) - np.cos(x + y))


def test_smoothness_bound_where_third_derivatives_take_part():
    generator = np.random.default_rng(1)
    x = np.linspace(-7, 7, 1500)
    largest, without_third = 0.0, 0.0
    for _ in range(40):
        m = 10 ** generator.uniform(-1, 1)
        a = m * generator.uniform(0.1, 0.95)
        b, p, q, c = generator.normal(size=4)
        b, p = b * 3, p * 10 ** generator.uniform(-1.5, 0)
        constants = sine_constants(a, m, b, p, q)
        for penalty in penalties(constants)[:3]:
            slopes = sine_hyperobjective_gradient(x, penalty, a, m, b, p, q, c)
            measured = np.max(np.abs(np.diff(slopes)) / np.diff(x))
            largest = max(largest, measured / constants.hyperobjective_smoothness(penalty))
            third_dropped = Constants(**{**vars(constants), "lower_hessian_lipschitz": 0.0})
            without_third = max(without_third, measured / third_dropped.hyperobjective_smoothness(penalty))
    assert largest <= 1 + 1e-4
    assert without_third > largest, "the term with L2g carries weight in this family"


# ------------------------------------------------------------------------------------------------- contradictions

BAD = {
    "smoother than convex": ({"lower_smoothness": 0.05}, "lower_smoothness=0.05: must be >= strong_convexity=0.1"),
    "convexity zero": ({"strong_convexity": 0.0}, "strong_convexity=0.0: must be a finite number > 0"),
    "convexity negative": ({"strong_convexity": -0.1}, "strong_convexity=-0.1: must be a finite number > 0"),
    "convexity nan": ({"strong_convexity": math.nan}, "strong_convexity=nan: must be a real number"),
    "convexity infinite": ({"strong_convexity": math.inf}, "strong_convexity=inf: must be a finite number > 0"),
    "negative": ({"upper_smoothness": -1.0}, "upper_smoothness=-1.0: must be a finite number >= 0"),
    "infinite": ({"lower_lipschitz": math.inf}, "lower_lipschitz=inf: must be a finite number >= 0"),
    "string": ({"upper_lipschitz": "1"}, "upper_lipschitz='1': must be a real number"),
    "bool": ({"lower_hessian_lipschitz": True}, "lower_hessian_lipschitz=True: must be a real number"),
    "array": ({"lower_smoothness": np.ones(2)}, "must be a real number"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_contradictory_constants_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        Constants(**GOOD | change)
    assert message in str(caught.value)


def test_all_constants_are_named_and_needed():
    with pytest.raises(TypeError):
        Constants(1.0, 0.25, 1.0, 0.35, 0.1, 0.1)
    for name in GOOD:
        with pytest.raises(TypeError, match=name):
            Constants(**{key: value for key, value in GOOD.items() if key != name})


def test_zero_is_a_legal_bound_where_nothing_contradicts_it():
    flat = Constants(**GOOD | {"upper_lipschitz": 0.0, "upper_smoothness": 0.0, "lower_hessian_lipschitz": 0.0})
    assert flat.hyperobjective_smoothness(1.0) == 0.0


@pytest.mark.parametrize("penalty", [2.5, 1.0, 0.0, -1.0], ids=["L1f/mu_g", "below", "zero", "negative"])
def test_smoothness_is_refused_for_penalties_where_the_formula_does_not_hold(penalty):
    with pytest.raises(InvalidArgument):
        Constants(**GOOD).hyperobjective_smoothness(penalty)
