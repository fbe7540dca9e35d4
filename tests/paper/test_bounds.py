"""Every inequality of the planner against brute force, on instances whose exact quantities can be computed.

Statistical tests fix their seed; each says with what probability a correct bound would have failed it over seeds.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import binom

from dpbilevel.constants import Constants
from dpbilevel.inner.loc_gd import DPLocGD
from dpbilevel.paper import bounds, preconditions

ROUNDING = 1 + 1e-7
FALSE_ALARM = 1e-9  # of each statistical test: binomial quantiles at this level


# ------------------------------------------------------------------------------------------------------- instances


@dataclass
class Instance:
    """f(w) = b sin(p.w + c) + q.w and g(w) = w'Bw/2 + a ln cosh(r.w + s), w = (x, y): a quadratic where b = a = 0."""

    curve: np.ndarray  # B, symmetric; its part in y has least eigenvalue mu_g
    x: np.ndarray
    upper: tuple[float, np.ndarray, float, np.ndarray]  # b, p, c, q
    lower: tuple[float, np.ndarray, float]  # a, r, s

    @property
    def constants(self):
        (b, p, _, q), (a, r, _) = self.upper, self.lower
        p_norm, r_norm = np.linalg.norm(p), np.linalg.norm(r)
        return Constants(
            upper_lipschitz=abs(b) * p_norm + np.linalg.norm(q),
            upper_smoothness=max(abs(b) * p_norm**2, 1e-9),
            lower_lipschitz=1.0,  # where it takes part, tests say what it is
            lower_smoothness=(np.linalg.norm(self.curve, 2) + a * r_norm**2) * (1 + 1e-12),
            lower_hessian_lipschitz=a * r_norm**3 * 4 / (3 * math.sqrt(3)),  # the steepest slope of sech^2
            strong_convexity=np.linalg.eigvalsh(self.curve[self.x.size :, self.x.size :])[0],
        )

    def upper_parts(self, y):
        """Value, gradient and Hessian of f at (x, y)."""
        b, p, c, q = self.upper
        w = np.concatenate([self.x, y])
        angle = p @ w + c
        return b * math.sin(angle) + q @ w, b * math.cos(angle) * p + q, -b * math.sin(angle) * np.outer(p, p)

    def lower_parts(self, y):
        """The same of g."""
        a, r, s = self.lower
        w = np.concatenate([self.x, y])
        angle = r @ w + s
        t, log_cosh = math.tanh(angle), np.logaddexp(angle, -angle) - math.log(2)
        value = w @ self.curve @ w / 2 + a * log_cosh
        return value, self.curve @ w + a * t * r, self.curve + a * (1 - t**2) * np.outer(r, r)

    def minimiser(self, penalty=math.inf):
        """argmin over y of f/penalty + g: Newton with halving, as the objective is strongly convex."""
        y, here = np.zeros(self.curve.shape[0] - self.x.size), slice(self.x.size, None)

        def objective(point):
            parts = zip(self.upper_parts(point), self.lower_parts(point), strict=True)
            value, gradient, hessian = (f / penalty + g for f, g in parts)
            return value, gradient[here], hessian[here, here]

        for _ in range(100):
            value, gradient, hessian = objective(y)
            step = np.linalg.solve(hessian, gradient)
            if np.linalg.norm(step) < 1e-12 * (1 + np.linalg.norm(y)):
                return y
            size = 1.0
            while objective(y - size * step)[0] > value - 0.1 * size * gradient @ step + 1e-12 * (1 + abs(value)):
                size /= 2
            y = y - size * step
        raise AssertionError("Newton has not converged")

    def jacobian(self, y, penalty=math.inf):
        """dy/dx of the minimiser, by the implicit function theorem."""
        hessian = self.upper_parts(y)[2] / penalty + self.lower_parts(y)[2]
        k = self.x.size
        return -np.linalg.solve(hessian[k:, k:], hessian[k:, :k])

    def hypergradient(self):
        y, k = self.minimiser(), self.x.size
        gradient = self.upper_parts(y)[1]
        return gradient[:k] + self.jacobian(y).T @ gradient[k:]

    def penalised_gradient(self, penalty):
        y, z, k = self.minimiser(), self.minimiser(penalty), self.x.size
        return self.upper_parts(z)[1][:k] + penalty * (self.lower_parts(z)[1] - self.lower_parts(y)[1])[:k]

    def penalised_value(self, penalty):
        y, z = self.minimiser(), self.minimiser(penalty)
        return self.upper_parts(z)[0] + penalty * (self.lower_parts(z)[0] - self.lower_parts(y)[0])


def random_instance(generator, quadratic=False):
    x_size, y_size = generator.integers(1, 4, size=2)
    size = x_size + y_size
    curve = generator.normal(size=(size, size))
    curve = (curve + curve.T) / 2 * 10 ** generator.uniform(-1, 1)
    in_y = curve[x_size:, x_size:]
    in_y += (10 ** generator.uniform(-1, 1) - np.linalg.eigvalsh(in_y)[0]) * np.eye(y_size)
    scales = 10 ** generator.uniform(-1, 0.5, size=2) * (not quadratic)
    return Instance(
        curve,
        generator.normal(size=x_size),
        (scales[0], generator.normal(size=size), generator.uniform(0, 7), generator.normal(size=size)),
        (scales[1], generator.normal(size=size), generator.normal()),
    )


@pytest.fixture(scope="module")
def instances():
    generator = np.random.default_rng(7)
    return [random_instance(generator, quadratic=index % 3 == 0) for index in range(240)]


def with_penalties(instances):
    for instance in instances:
        smallest = 2 * instance.constants.upper_smoothness / instance.constants.strong_convexity
        for factor in (1.0, 4.0, 300.0):
            yield instance, instance.constants, max(smallest, 0.1) * factor


# ----------------------------------------------------------------------------------------------- the penalised problem


def test_penalised_solution_is_as_close_and_its_value_as_good_as_promised(instances):
    distances, losses = [], []
    for instance, constants, penalty in with_penalties(instances):
        y, z = instance.minimiser(), instance.minimiser(penalty)
        distances.append(np.linalg.norm(z - y) / bounds.solution_distance(constants, penalty))
        value = instance.upper_parts(y)[0]
        loss = value - instance.penalised_value(penalty)
        assert loss >= -1e-7 * (1 + abs(value))
        losses.append(loss / bounds.value_loss(constants, penalty))
    assert 0.9 < max(distances) <= ROUNDING, "true, and nearly attained"
    assert 0.5 < max(losses) <= ROUNDING


def bias_share(instance, constants, penalty):
    bias = np.linalg.norm(instance.penalised_gradient(penalty) - instance.hypergradient())
    return bias / (bounds.bias_constant(constants) / penalty)


def test_bias_of_the_penalty_never_exceeds_its_bound(instances):
    shares = [bias_share(*case) for case in with_penalties([i for i in instances if i.lower[0] > 0])]
    assert 0.02 < max(shares) <= ROUNDING


def test_bias_of_the_penalty_grows_with_the_coupling_of_the_levels():
    """g = y^2/2 + 10 x y, f = sin(y) at 45 degrees: half of the bound, and five times one without sqrt(1 + k^2)."""
    nothing = np.zeros(2)
    coupled = Instance(
        np.array([[0.0, 10.0], [10.0, 1.0]]),
        np.array([0.1]),
        (1.0, np.array([0.0, 1.0]), 1 + math.pi / 4, nothing),
        (0.0, nothing, 0.0),
    )
    constants = coupled.constants
    share = bias_share(coupled, constants, 100.0)
    assert 0.45 < share <= 1
    assert share * math.hypot(1, constants.lower_smoothness / constants.strong_convexity) > 4


def test_bias_vanishes_where_f_is_linear_and_g_quadratic(instances):
    for instance, _, penalty in with_penalties([i for i in instances if i.lower[0] == 0]):
        gradient = instance.hypergradient()
        assert instance.penalised_gradient(penalty) == pytest.approx(gradient, abs=1e-6 * (1 + np.abs(gradient).max()))


def test_penalised_solution_is_lipschitz_as_promised(instances):
    shares = [
        np.linalg.norm(instance.jacobian(instance.minimiser(penalty), penalty), 2)
        / bounds.solution_lipschitz(constants, penalty)
        for instance, constants, penalty in with_penalties(instances)
    ]
    assert 0.2 < max(shares) <= ROUNDING


def test_hypergradient_is_bounded_and_lipschitz_as_the_population_bound_supposes(instances):
    generator, largest = np.random.default_rng(3), 0.0
    for instance in instances[:120]:
        constants, gradient = instance.constants, instance.hypergradient()
        assert np.linalg.norm(gradient) <= bounds.record_bound(constants) * ROUNDING
        rough = constants.upper_smoothness + constants.lower_hessian_lipschitz * constants.upper_lipschitz / (
            constants.strong_convexity
        )
        smoothness = rough * (1 + constants.lower_smoothness / constants.strong_convexity) ** 2
        moved = replace(instance, x=instance.x + 1e-2 * generator.normal(size=instance.x.size))
        slope = np.linalg.norm(moved.hypergradient() - gradient) / np.linalg.norm(moved.x - instance.x)
        largest = max(largest, (slope - 1e-6) / smoothness)
    assert 0.01 < largest <= 1


# ------------------------------------------------------------------------------------- one record, and inner solves


def mean_problem(data):
    """g_i = ||y - xi_i||^2/2: y* is the mean, and mu_g = L1g = 1."""
    return Constants(
        upper_lipschitz=1.0,
        upper_smoothness=0.0,
        lower_lipschitz=max(np.linalg.norm(data - data.mean(0), axis=1)),
        lower_smoothness=1.0,
        lower_hessian_lipschitz=0.0,
        strong_convexity=1.0,
    )


def test_lower_solution_moves_with_one_record_as_promised_and_no_less():
    data = np.zeros((1000, 3))
    data[0] = [1.0, 0.0, 0.0]
    neighbour = data.copy()
    neighbour[0] *= -1
    moved = np.linalg.norm(data.mean(0) - neighbour.mean(0))
    constants = mean_problem(data)
    assert 0.99 < moved / bounds.lower_sensitivity(constants, 1000) <= 1.002  # L0g is read at one mean, not at all
    removed = np.linalg.norm(data.mean(0) - np.zeros(3))
    assert 0.99 < removed / bounds.lower_sensitivity(constants, 1000, multiple=1.0) <= 1.002


def scalar_family(n, a, share):
    """g_i = (m + s_i a) y^2/2 with s_i = -1 or 1, f = -y: y* = 0 for all data sets, so that Y = {0} and L0g = 0."""
    m = 1.0
    constants = Constants(
        upper_lipschitz=1.0,
        upper_smoothness=0.0,
        lower_lipschitz=0.0,
        lower_smoothness=m + a,
        lower_hessian_lipschitz=0.0,
        strong_convexity=m - a,
    )
    signs = np.where(np.arange(n) < share * n, 1.0, -1.0)
    return constants, lambda s, penalty: 1 / (penalty * (m + a * np.mean(s))), signs


@pytest.mark.parametrize("a", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_penalised_solution_moves_with_one_record_as_promised(a, share):
    n, penalty = 500, 3.0
    constants, solution, signs = scalar_family(n, a, share)
    neighbour = signs.copy()
    neighbour[-1] *= -1
    moved = abs(solution(signs, penalty) - solution(neighbour, penalty))
    assert moved <= bounds.penalised_sensitivity(constants, penalty, n)


def test_lipschitz_constant_of_the_set_y_alone_would_be_too_small():
    """The mutation: L0g + L0f/lambda forgets that y^lambda may lie outside Y, where g_i is steeper."""
    n, penalty = 500, 3.0
    constants, solution, signs = scalar_family(n, 0.9, 0.0)
    neighbour = signs.copy()
    neighbour[-1] *= -1
    moved = abs(solution(signs, penalty) - solution(neighbour, penalty))
    forgetful = 2 * (constants.lower_lipschitz + 1 / penalty) / (constants.strong_convexity * n)
    assert moved > 4 * forgetful


@dataclass
class Records:
    """f_i = b sin(p_i.w + c_i) and g_i = w'B_iw/2 + a_i.w, a row per kind of record; weights say how many of each."""

    curves: np.ndarray
    slopes: np.ndarray
    waves: np.ndarray
    phases: np.ndarray
    height: float
    x_size: int
    weights: np.ndarray

    def mean(self, rows):
        return np.tensordot(self.weights / self.weights.sum(), rows, axes=1)

    @property
    def constants(self):
        """For every record, hence for every data set; L0g is set where it is needed."""
        norms = np.linalg.norm(self.waves, axis=1)
        k = self.x_size
        return Constants(
            upper_lipschitz=self.height * norms.max(),
            upper_smoothness=self.height * (norms**2).max(),
            lower_lipschitz=1.0,
            lower_smoothness=np.linalg.norm(self.curves, 2, axis=(1, 2)).max(),
            lower_hessian_lipschitz=0.0,
            strong_convexity=np.linalg.eigvalsh(self.curves[:, k:, k:])[:, 0].min(),
        )

    def upper_gradients(self, w):
        return self.height * np.cos(self.waves @ w + self.phases)[:, None] * self.waves

    def lower_gradients(self, w):
        return self.curves @ w + self.slopes

    def minimiser(self, x, penalty=math.inf):
        k, curve, slope = self.x_size, self.mean(self.curves), self.mean(self.slopes)
        y = -np.linalg.solve(curve[k:, k:], curve[k:, :k] @ x + slope[k:])
        if math.isinf(penalty):
            return y
        for _ in range(50):
            w = np.concatenate([x, y])
            wave = -self.height * np.sin(self.waves @ w + self.phases)
            hessian = self.mean(wave[:, None, None] * self.waves[:, :, None] * self.waves[:, None, :]) / penalty + curve
            gradient = self.mean(self.upper_gradients(w)) / penalty + curve @ w + slope
            y = y - np.linalg.solve(hessian[k:, k:], gradient[k:])
        assert np.linalg.norm(gradient[k:]) < 1e-9
        return y

    def hypergradient(self, x):
        k, curve = self.x_size, self.mean(self.curves)
        gradient = self.mean(self.upper_gradients(np.concatenate([x, self.minimiser(x)])))
        return gradient[:k] - curve[:k, k:] @ np.linalg.solve(curve[k:, k:], gradient[k:])

    def vectors(self, x, y, z, penalty):
        """What each record adds to the hypergradient."""
        at_y, at_z = np.concatenate([x, y]), np.concatenate([x, z])
        pull = self.lower_gradients(at_z) - self.lower_gradients(at_y)
        return (self.upper_gradients(at_z) + penalty * pull)[:, : self.x_size]


def random_records(generator, n, x_size=2, y_size=3):
    size = x_size + y_size
    curves = generator.normal(size=(n, size, size)) * 0.3
    curves = (curves + curves.transpose(0, 2, 1)) / 2
    in_y = curves[:, x_size:, x_size:]
    in_y += (0.5 - np.linalg.eigvalsh(in_y)[:, 0])[:, None, None] * np.eye(y_size)
    return Records(
        curves,
        generator.normal(size=(n, size)),
        generator.normal(size=(n, size)) * 0.5,
        generator.uniform(0, 7, size=n),
        float(10 ** generator.uniform(-1, 0)),
        x_size,
        np.ones(n),
    )


def clipped(vectors, largest):
    return vectors * np.minimum(1, largest / np.linalg.norm(vectors, axis=1))[:, None]


def test_inexact_solves_and_clipping_cost_no_more_than_beta():
    generator = np.random.default_rng(5)
    shares, without_lower, cut = [], [], 0
    for trial in range(150):
        records, x = random_records(generator, 12), generator.normal(size=2)
        constants = records.constants
        penalty = 2 * constants.upper_smoothness / constants.strong_convexity * 10 ** generator.uniform(0, 2)
        y, z = records.minimiser(x), records.minimiser(x, penalty)
        exact, largest = records.vectors(x, y, z, penalty), bounds.record_bound(constants)
        assert np.linalg.norm(exact, axis=1).max() <= largest * ROUNDING
        errors = 10 ** generator.uniform(-4, 0, size=2) * ([1, 1], [1, 0], [0, 1])[trial % 3]
        moves = [error * v / np.linalg.norm(v) for error, v in zip(errors, generator.normal(size=(2, 3)), strict=True)]
        vectors = records.vectors(x, y + moves[0], z + moves[1], penalty)
        cut += bool(np.any(np.linalg.norm(vectors, axis=1) > largest))
        beta = bounds.inexactness(constants, penalty, *errors)
        for given in (vectors, clipped(vectors, largest)):
            off = np.linalg.norm(given.mean(0) - exact.mean(0))
            shares.append((off - 1e-7) / beta)
            forgetful = bounds.inexactness(constants, penalty, 0.0, errors[1])
            without_lower.append(off > 1.01 * forgetful + 1e-7)
    assert cut > 10, "clipping takes part"
    assert 0.1 < max(shares) <= 1
    assert any(without_lower), "the mutation: the error of the lower solve counts"


# ---------------------------------------------------------------------------------------------------------------- tails


def exceeds(samples, bound, probability):
    """Whether more samples lie above the bound than its probability explains, at the level FALSE_ALARM."""
    return np.sum(np.asarray(samples) > bound) > binom.isf(FALSE_ALARM, len(samples), probability)


@pytest.mark.parametrize("dimension", [1, 5, 60])
@pytest.mark.parametrize("probability", [0.5, 0.05, 0.001])
def test_gaussian_vectors_are_as_short_as_promised(dimension, probability):
    lengths = np.linalg.norm(np.random.default_rng(dimension).normal(size=(100_000, dimension)), axis=1)
    assert not exceeds(lengths, bounds.gaussian_norm(dimension, probability), probability)
    # The mutation: half of the deviation is not enough for long vectors.
    if dimension == 60 and probability < 0.5:
        root = math.sqrt(dimension)
        assert exceeds(lengths, root + 0.4 * (bounds.gaussian_norm(dimension, probability) - root), probability)


def test_output_perturbation_errs_by_no_more_than_promised_in_all_steps_at_once():
    """A plan of 20 steps: in at most a share gamma of runs may any of its 3 * 20 Gaussian vectors be longer."""
    generator, steps, gamma, runs = np.random.default_rng(11), 20, 0.2, 4000
    for dimension, noise in ((3, 0.1), (40, 2.0)):
        longest = np.linalg.norm(generator.normal(size=(runs, 3 * steps, dimension)) * noise, axis=2).max(axis=1)
        assert not exceeds(longest, noise * bounds.gaussian_norm(dimension, gamma / (3 * steps)), gamma)
        # The mutation: gamma is spent on each vector separately.
        assert exceeds(longest, noise * bounds.gaussian_norm(dimension, 0.5) * 0.98, gamma)


def batches(generator, kind, n, size, repetitions):
    """How often each record counts, a row per batch."""
    if kind == "Poisson":
        return (generator.random((repetitions, n)) < size / n).astype(float)
    if kind == "with replacement":
        return generator.multinomial(size, np.full(n, 1 / n), size=repetitions).astype(float)
    return (generator.random((repetitions, n)).argsort(axis=1) < size).astype(float)


@pytest.mark.parametrize("kind", ["Poisson", "with replacement", "without replacement"])
def test_batches_deviate_as_promised_and_like_one_over_the_root_of_their_size(kind):
    generator, n, probability = np.random.default_rng(2), 400, 0.05
    vectors = generator.normal(size=(n, 3))
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    constants = replace(mean_problem(vectors), upper_lipschitz=0.5)  # so that C = 1
    assert bounds.record_bound(constants) == 1.0
    typical = []
    for size in (4, 16, 64):
        means = batches(generator, kind, n, size, 4000) @ vectors / size
        deviations = np.linalg.norm(means - vectors.mean(0), axis=1)
        assert not exceeds(deviations, bounds.batch_deviation(constants, size, probability), probability)
        typical.append(np.mean(deviations))
        if size > 4:
            # The mutation is the paper's: C/b times the same logarithm.
            assert exceeds(deviations, math.log(2 / probability) / size, probability)
    slope = np.polyfit(np.log([4, 16, 64]), np.log(typical), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_hypergradients_of_samples_are_as_close_to_the_population_as_promised():
    """A population of 60 kinds of records; the bound holds for all x of a grid at once."""
    generator, n, probability = np.random.default_rng(9), 4000, 0.05
    population = random_records(generator, 60, x_size=1, y_size=2)
    grid = np.linspace(-2, 2, 9)[:, None]
    solutions = [population.minimiser(x) for x in grid]
    largest = max(
        np.linalg.norm(population.lower_gradients(np.concatenate([x, y]))[:, 1:], axis=1).max()
        for x, y in zip(grid, solutions, strict=True)
    )
    constants = replace(population.constants, lower_lipschitz=largest)
    truth = np.array([population.hypergradient(x) for x in grid])
    worst, moved = {}, {}
    for size in (250, n):
        samples = [replace(population, weights=w) for w in generator.multinomial(size, np.full(60, 1 / 60), size=200)]
        off = [[np.linalg.norm(s.hypergradient(x) - t) for x, t in zip(grid, truth, strict=True)] for s in samples]
        worst[size] = np.max(off, axis=1)
        moved[size] = np.mean([np.linalg.norm(s.minimiser(grid[0]) - solutions[0]) for s in samples])
    uniform = bounds.generalisation(constants, n, 1, 2.0, probability / 2)
    assert not exceeds(worst[n], uniform, probability)
    pointwise = bounds.pointwise_generalisation(constants) * (1 + math.sqrt(2 * math.log(2 / probability)))
    assert pointwise / math.sqrt(n) < uniform
    assert np.median(worst[n]) > 1e-4 * uniform, "loose, but not absurd"
    slope = math.log(moved[n] / moved[250]) / math.log(n / 250)
    assert slope == pytest.approx(-0.5, abs=0.1), "no n^(-1/4)"


# ----------------------------------------------------------------------------------------------------- the outer loop


def descend(steps, error, start, box, attack):
    """Projected descent on h(x) = sum of 1 - cos(x_j), L = 1, eta = 1/2, with an oracle that is off by ``error``."""
    x, best = np.array(start), (math.inf, None)
    for t in range(steps):
        gradient = np.sin(x)
        off = attack(t, gradient)
        moved = np.clip(x - 0.5 * (gradient + error * off / np.linalg.norm(off)), -box, box)
        length = np.linalg.norm(moved - x)
        if length < best[0]:
            best = (length, x)
        x = moved
    x = best[1]
    return np.linalg.norm((x - np.clip(x - 0.5 * np.sin(x), -box, box)) / 0.5)


@pytest.mark.parametrize("box", [100.0, 1.0], ids=["free", "constrained"])
def test_outer_loop_reaches_what_is_promised_whatever_the_oracle_does(box):
    generator, shares, ignorant = np.random.default_rng(4), [], []
    for steps, error in itertools.product((1, 3, 10, 100, 400), (0.0, 0.01, 0.1, 0.4, 0.8)):
        for attack in (
            lambda t, gradient: -gradient,  # hides the slope
            lambda t, gradient: gradient,
            lambda t, gradient: generator.normal(size=gradient.size),
        ):
            start = generator.uniform(0.2, min(2.5, box), size=3)
            gap = np.sum(1 - np.cos(start))
            reached = descend(steps, error, start, box, attack)
            shares.append(reached / bounds.gradient_mapping(error, gap / steps))
            ignorant.append(reached / bounds.gradient_mapping(0.0, gap / steps))
    assert 0.3 < max(shares) <= 1
    if box > 1:
        assert max(ignorant) > 1, "the mutation: errors of the oracle count"


def test_outer_loop_contains_the_paper_as_a_special_case():
    for alpha in (0.01, 1.0, 30.0):
        curvature = 15 / 128 * alpha**2  # T = (128/15) L Delta_L/alpha^2
        assert bounds.gradient_mapping(alpha / 4, curvature) == pytest.approx(alpha)
        assert bounds.gradient_mapping(alpha / 4, curvature * 1.01) > alpha
    assert bounds.gradient_mapping(3.0, 0.0) == pytest.approx(7.0)


# ------------------------------------------------------------------------------------------- all terms at one lambda

CONSTANTS = bounds._EXAMPLE
FACTS = {
    "constants": CONSTANTS,
    "penalty_weight": 20.0,
    "n": 10**6,
    "d_x": 10,
    "d_y": 100,
    "gamma": 0.05,
    "gap": 1.0,
    "mu": 0.2,
    "shares": (1.0, 1.0, 1.0),
    "multiple": 2.0,
    "batch": None,
    "noise_ratio": None,
    "population": False,
    "diameter": None,
}
CHANGES = {
    "erm": {},
    "few records": {"n": 300},
    "batch": {"batch": 5000, "noise_ratio": 1.0},
    "batch without amplification": {"batch": 5000},
    "population": {"population": True, "n": 10**8},
    "population, bounded, batch": {"population": True, "diameter": 2.0, "batch": 10**5},
    "shares": {"shares": (5.0, 5.0, 1.0)},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_best_number_of_steps_is_the_best_of_all(change):
    guarantee = bounds.Guarantee(**FACTS | change)
    steps, alpha = guarantee.best()
    everywhere = [guarantee.alpha(t) for t in [*range(1, 3000), *(int(10**e) for e in np.arange(3.5, 9, 0.05))]]
    assert alpha <= min(everywhere) * (1 + 1e-9)
    assert alpha == pytest.approx(sum(guarantee.terms(steps).values()))


def test_noises_spend_the_budget_exactly():
    guarantee = bounds.Guarantee(**FACTS | {"shares": (3.0, 2.0, 1.0)})
    steps = 17
    lower, penalised, outer = guarantee.noises(steps)
    ratios = (
        bounds.lower_sensitivity(CONSTANTS, 10**6) / lower,
        bounds.penalised_sensitivity(CONSTANTS, 20.0, 10**6) / penalised,
        2 * bounds.record_bound(CONSTANTS) / 10**6 / outer,
    )
    assert steps * sum(ratio**2 for ratio in ratios) == pytest.approx(0.2**2)
    assert ratios[0] ** 2 == pytest.approx(3 * ratios[2] ** 2)


def test_section_4_of_the_method_is_met_with_little_to_spare():
    """Solving its inequalities as they stand, errors at most alpha/4 and T = (128/15) L Delta/alpha^2, is 1% worse."""
    guarantee = bounds.Guarantee(**FACTS)
    fall = guarantee.smoothness * (1.0 + bounds.value_loss(CONSTANTS, 20.0))

    def steps_for(alpha):
        return max(1, math.ceil(128 / 15 * fall / alpha**2))

    def errors(steps):
        lower, penalised, outer = guarantee.noises(steps)
        length, width = (bounds.gaussian_norm(d, 0.05 / (3 * steps)) for d in (100, 10))
        return bounds.inexactness(CONSTANTS, 20.0, lower * length, penalised * length) + outer * width

    low, high = 1e-6, 1e6
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if 4 * errors(steps_for(middle)) <= middle else (middle, high)
    bias = bounds.bias_constant(CONSTANTS) / 20.0
    assert guarantee.best()[1] <= bias + high <= guarantee.best()[1] * 1.01


def test_localisation_agrees_with_the_solver_that_uses_it():
    for start, scale, dimension in ((20.0, 1e-3, 4), (5.0, 1e-6, 1000), (1.0, 0.9, 3), (1.0, 2.0, 3)):
        solver = DPLocGD(radius=start, steps=10**16)  # enough steps that only noise limits the radii
        expected = solver.localise(1.0, scale, dimension, None).radii
        assert bounds.localisation_radii(start, scale, dimension) == pytest.approx(expected)
    assert bounds.localisation_radii(0.0, 0.0, 3) == (0.0,)


def test_preconditions_of_theorem_1_say_which_fails_and_by_how_much():
    constants = replace(CONSTANTS, lower_lipschitz=0.01)
    largest, kappa = 1.0, 10.0
    sides = {
        "1/(2 kappa)": 50.0,
        "L0g/L0f": largest * kappa**3 * 0.01,
        "L1g/L1f": largest * kappa**3 * 0.35 / 0.25,
        "gap/(l kappa)": kappa**2 * 3.0,
    }
    conditions = preconditions.theorem_preconditions(constants, gap=3.0, alpha=20.0)
    assert [condition.right for condition in conditions] == pytest.approx(list(sides.values()))
    assert [condition.holds for condition in conditions] == [True, False, True, True]
    assert str(conditions[1]) == "alpha <= l kappa^3 L0g/L0f fails: 20 > 10, by a factor 2 (Theorem 1)"
    free = preconditions.theorem_preconditions(replace(CONSTANTS, upper_smoothness=0.0, lower_lipschitz=0.0), 3.0, 20.0)
    assert [condition.factor for condition in free[1:3]] == [math.inf, 0.0]
