"""Constants of generalised linear models: never falsified, nearly attained, and true where solutions really lie."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from support.linear_models import CLASSES, FEATURES, LOSSES, LinearModel

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.falsify import check_constants
from dpbilevel.theory.glm import glm_constants, solution_radius


@dataclass(frozen=True)
class Model(LinearModel):
    """One generalised linear model with its declared bounds, its problem and a way to draw from its domain."""

    coordinates: str = "linear"
    groups: int = 0  # 0: one weight, x a scalar; otherwise x a vector with one weight for each group of coordinates
    low: float = 0.05
    high: float = 2.0
    fixed: float | None = None  # the weight of the first coordinate of y, which then is in no group

    @property
    def options(self) -> dict[str, Any]:
        return self.declared | {"fixed": self.fixed}

    @property
    def constants(self):
        facts = {"penalty": (self.low, self.high), "coordinates": self.coordinates}
        return glm_constants(self.loss, self.row_norm, **facts, **self.options)

    @property
    def radius(self):
        return solution_radius(self.loss, self.row_norm, penalty=(self.low, self.high), **self.options)

    @property
    def bounds(self):
        return (math.log(self.low), math.log(self.high)) if self.coordinates == "log" else (self.low, self.high)

    @property
    def problem(self):
        group = np.arange(math.prod(self.shape)) % max(self.groups, 1)
        group[0] = group[0] if self.fixed is None else max(self.groups, 1)

        def term(x, y):
            weights = jnp.atleast_1d(jnp.exp(x) if self.coordinates == "log" else x)
            weights = weights if self.fixed is None else jnp.append(weights, self.fixed)
            return jnp.sum(weights[group] * y.ravel() ** 2) / 2

        return dpb.BilevelProblem(
            upper_loss=lambda x, y, record: self.record_loss(y, *record),
            lower_loss=lambda x, y, record: self.record_loss(y, *record),
            lower_term=term,
            domain=dpb.Box(*self.bounds),
            public=[group],
        )

    def sample(self, rng):
        x = np.array(rng.uniform(*self.bounds, size=(self.groups,) if self.groups else ()))
        x = np.clip(x + rng.choice([-1, 0, 1], size=x.shape) * 1e9, *self.bounds)
        y = self.draw_lower(rng, self.radius)
        return x, y, self.draw_record(rng, y), self.draw_record(rng, y)


def random_model(index):
    """Every loss in both coordinates, with one weight, with several and with a fixed one, at random bounds."""
    rng = np.random.default_rng(index)
    loss, low = LOSSES[index % 4 if index < 24 else 4], 10 ** rng.uniform(-3, 0)
    model = Model(
        loss=loss,
        coordinates=("linear", "log")[index // 4 % 2],
        groups=int((0, 2, 3)[(index + index // 4) % 3]),
        row_norm=10 ** rng.uniform(-1, 1),
        low=low,
        high=low * 10 ** rng.uniform(0, 2.5),
        target_bound=10 ** rng.uniform(-1, 1),
        threshold=10 ** rng.uniform(-1, 1),
        fixed=None if index % 2 else low * 10 ** rng.uniform(-1, 0),
    )
    # Beside rates of e^8 float32 would have no digits left for what else there is.
    while loss == "poisson" and model.row_norm * model.radius > 8:
        model = replace(model, row_norm=model.row_norm / 2)
    return model


FAST = (5, 25)  # the others are marked slow
SLOW = (0, 2, 3)  # with these, every loss; `TIGHT` has more combinations


def marks(index):
    """A few in every run, some more in CI, all of them by `make test-heavy`."""
    if index in FAST:
        return ()
    return pytest.mark.slow if index in SLOW else (pytest.mark.slow, pytest.mark.heavy)


@pytest.mark.parametrize("index", [pytest.param(index, marks=marks(index)) for index in range(30)])
def test_random_models_are_not_falsified(index):
    model = random_model(index)
    report = check_constants(model.problem, model.constants, model.sample, seed=index)
    assert report.holds, f"{model}\n{report}"
    assert report["strong_convexity"].ratio > 0.99
    assert report["lower_smoothness"].ratio > 0.7
    assert report["lower_hessian_lipschitz"].ratio > 0.7


TIGHT = [
    Model("logistic", "log", 2),
    Model("softmax", "linear", 2),
    Model("squared", "log", 3),
    Model("pseudo-huber", "linear"),
    Model("poisson", "linear", 2, low=0.5, fixed=0.2),
]


@pytest.mark.parametrize("model", TIGHT, ids=lambda model: model.loss)
def test_constants_are_nearly_attained_and_half_of_any_is_refuted(model):
    report = check_constants(model.problem, model.constants, model.sample)
    assert report.holds, report
    assert min(check.ratio for check in report.checks) > 0.8, f"\n{report}"
    for check in report.checks:  # the search never looks at what is declared, so that it need not be repeated
        factor = 2 if check.name == "strong_convexity" else 0.5
        assert not replace(check, declared=check.declared * factor).holds
    mistaken = replace(report["lower_smoothness"], declared=model.constants.record_lower_smoothness)
    assert not mistaken.holds, "a record's smoothness is not that of g with its penalty"


def test_broken_constants_are_refuted_by_a_search_of_their_own():
    model, constants = Model("squared", "linear"), Model("squared", "linear").constants
    halved = {name: value / 2 for name, value in vars(constants).items()} | {"strong_convexity": 2 * model.low}
    report = check_constants(model.problem, dpb.Constants(**halved), model.sample)
    assert not any(check.holds for check in report.checks), report


@pytest.mark.parametrize(
    "model",
    [
        Model("squared", "log", 2, fixed=20.0),
        pytest.param(Model("logistic", "linear", 2, fixed=0.001), marks=pytest.mark.slow),
        pytest.param(Model("poisson", "linear", 0, low=0.5, fixed=20.0), marks=pytest.mark.slow),
    ],
    ids=lambda model: f"{model.loss} {model.fixed}",
)
def test_fixed_weights_outside_the_range_of_the_tuned_ones(model):
    report = check_constants(model.problem, model.constants, model.sample)
    assert report.holds, report
    assert min(report[name].ratio for name in ("strong_convexity", "lower_smoothness")) > 0.95, report
    # Forgetting the fixed weight is caught: mu_g where it is small, L1g where it is large.
    forgotten = replace(model, fixed=None).constants
    name = "strong_convexity" if model.fixed < model.low else "lower_smoothness"
    assert not replace(report[name], declared=getattr(forgotten, name)).holds


# ----------------------------------------------------------------------------------------- values, written out by hand


def test_ridge_constants_by_hand():
    """low = 1, R = 1: lambda >= 2, so r = min(2 * 1.5, sqrt(1.5) * 2/2); the Hessian of g is [[0, y'], [y, A + w]]."""
    constants = glm_constants("squared", 1.0, penalty=(1.0, 3.0), target_bound=2.0)
    radius = math.sqrt(1.5)
    assert solution_radius("squared", 1.0, penalty=(1.0, 3.0), target_bound=2.0) == pytest.approx(radius)
    assert constants.upper_lipschitz == pytest.approx(radius + 2)
    assert constants.lower_lipschitz == constants.record_upper_lipschitz == constants.upper_lipschitz
    assert constants.upper_smoothness == constants.record_lower_smoothness == 1.0
    assert constants.lower_smoothness == pytest.approx(np.linalg.norm([[0, radius], [radius, 4]], 2))
    assert constants.lower_hessian_lipschitz == pytest.approx(2 / math.sqrt(3))
    assert constants.strong_convexity == 1.0
    logs = glm_constants("squared", 1.0, penalty=(1.0, 3.0), target_bound=2.0, coordinates="log")
    blocks = [[3 * radius**2 / 2, 3 * radius], [3 * radius, 4]]
    assert logs.lower_smoothness == pytest.approx(np.linalg.norm(blocks, 2))
    angles = np.linspace(0, math.pi / 2, 10**6)
    a, b = np.cos(angles), np.sin(angles)
    third = 3 * (a**3 * radius**2 / 2 + 3 * a**2 * b * radius + 3 * a * b**2)
    assert logs.lower_hessian_lipschitz == pytest.approx(third.max())


def test_derivatives_of_the_losses_by_brute_force():
    scores = np.linspace(-30, 30, 600_001)
    sigmoid = 1 / (1 + np.exp(-scores))
    logistic = glm_constants("logistic", 2.0, penalty=(0.1, 0.1))
    assert logistic.upper_lipschitz == pytest.approx(2 * sigmoid.max())
    assert logistic.upper_smoothness == pytest.approx(4 * (sigmoid * (1 - sigmoid)).max())
    third = 8 * (sigmoid * (1 - sigmoid) * (1 - 2 * sigmoid)).max()
    radius = math.sqrt((scores * (1 - sigmoid)).max() * (1 + 0.1 / 2) / 0.1)
    assert solution_radius("logistic", 2.0, penalty=(0.1, 0.1)) == pytest.approx(radius)
    angles = np.linspace(0, math.pi / 2, 10**6)
    bent = 3 * np.cos(angles) * np.sin(angles) ** 2 + third * np.sin(angles) ** 3
    assert logistic.lower_hessian_lipschitz == pytest.approx(bent.max())
    huber = glm_constants("pseudo-huber", 1.0, penalty=(0.1, 0.1), threshold=0.5)
    curvature = (1 + (scores / 0.5) ** 2) ** -1.5
    bent = 3 * np.cos(angles) * np.sin(angles) ** 2 + np.abs(np.gradient(curvature, scores)).max() * np.sin(angles) ** 3
    assert huber.lower_hessian_lipschitz == pytest.approx(bent.max(), rel=1e-6)
    assert (huber.upper_lipschitz, huber.upper_smoothness) == (0.5, 1.0)


def test_poisson_constants_by_brute_force():
    """low = 1: 1/lambda is ridge/(2 e^(R r)) at the ball of y*; every derivative is largest at a corner of the ball."""
    row_norm, target, low = 1.2, 6.0, 1.0
    scores = np.linspace(-10, 10, 400_001)
    pull = max(((bound - np.exp(scores)) * scores).max() for bound in (0.0, target))

    def radius_at(inverse):
        return min((target - 1) * row_norm * (1 + inverse), math.sqrt(pull * (1 + inverse)))

    curvature = math.exp(row_norm * radius_at(0)) * row_norm**2
    radius = solution_radius("poisson", row_norm, penalty=(low, low), target_bound=target)
    assert radius == pytest.approx(radius_at(low / (2 * curvature)))
    constants = glm_constants("poisson", row_norm, penalty=(low, low), target_bound=target)
    rate = math.exp(row_norm * radius)
    assert constants.upper_lipschitz == pytest.approx(rate * row_norm)
    assert constants.upper_smoothness == constants.record_lower_smoothness == pytest.approx(rate * row_norm**2)
    angles = np.linspace(0, math.pi / 2, 10**6)
    bent = 3 * np.cos(angles) * np.sin(angles) ** 2 + rate * row_norm**3 * np.sin(angles) ** 3
    assert constants.lower_hessian_lipschitz == pytest.approx(bent.max())
    # On a small ball the steepest slope is that of a large target: T - e^-(R r).
    near = glm_constants("poisson", 1.0, penalty=(low, low), target_bound=target, radius=0.1)
    assert near.upper_lipschitz == pytest.approx(target - math.exp(-0.1))


@pytest.mark.parametrize(("target", "score"), [(0.5, -1.0), (6.0, None)])
def test_one_poisson_record_comes_up_to_the_ball_of_y_star(target, score):
    """Target 0 pulls hardest at score -1, target T where (1 + s) e^s = T; y* then is sqrt(p/low) for a row of s/y*."""
    low, row_norm = 0.01, 1.0
    if score is None:
        score = next(s for s in np.linspace(0, 5, 10**6) if (1 + s) * math.exp(s) >= target)
    pull = ((target if score > 0 else 0.0) - math.exp(score)) * score
    solution = math.sqrt(pull / low)
    row = score / solution
    assert abs(row) <= row_norm
    gradient = (math.exp(row * solution) - (target if score > 0 else 0.0)) * row + low * solution
    assert abs(gradient) < 1e-5
    radius = solution_radius("poisson", row_norm, penalty=(low, low), target_bound=target)
    assert 0.999 < solution / radius <= 1 + 1e-9


def test_poisson_constants_are_finite_or_refused():
    facts = {"loss": "poisson", "row_norm": 1.0, "target_bound": 20.0}
    large = glm_constants(**facts, penalty=(1e-3, 1.0))
    assert 1e50 < large.upper_smoothness < math.inf
    assert all(math.isfinite(value) for value in vars(large).values())
    with pytest.raises(InvalidArgument) as caught:
        glm_constants(**facts, penalty=(1e-5, 1.0))
    assert "loss='poisson': exp(row_norm * radius) = exp(" in str(caught.value)
    assert "must fit float64" in str(caught.value)
    assert glm_constants(**facts, penalty=(1e-5, 1.0), radius=2.0).upper_smoothness == pytest.approx(math.exp(2))
    with pytest.raises(InvalidArgument, match="must be a finite number"):  # e^709 fits, 100 times it does not
        glm_constants("poisson", 10.0, penalty=(1.0, 1.0), target_bound=1.0, radius=70.9)


def test_a_fixed_weight_is_the_floor_where_it_is_the_least():
    facts = {"loss": "squared", "row_norm": 1.0, "target_bound": 2.0}
    plain, lower, upper = (glm_constants(**facts, penalty=(0.1, 1.0), fixed=fixed) for fixed in (None, 0.02, 5.0))
    assert (plain.strong_convexity, lower.strong_convexity, upper.strong_convexity) == (0.1, 0.02, 0.1)
    wide = solution_radius(**facts, penalty=(0.1, 1.0), fixed=0.02)
    assert wide == pytest.approx(solution_radius(**facts, penalty=(0.02, 1.0)))
    assert lower == glm_constants(**facts, penalty=(0.02, 1.0))
    radius = solution_radius(**facts, penalty=(0.1, 1.0))
    assert plain.lower_smoothness == pytest.approx(np.linalg.norm([[0, radius], [radius, 2]], 2))
    assert (plain.lower_smoothness < 6, upper.lower_smoothness) == (True, 6.0)
    assert upper.lower_hessian_lipschitz == plain.lower_hessian_lipschitz
    assert glm_constants(**facts, penalty=(0.1, 1.0), fixed=0.5) == plain


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_softmax_bounds_on_random_scores(classes):
    rng = np.random.default_rng(classes)
    constants = glm_constants("softmax", 1.0, penalty=(1e-3, 1e-3), classes=classes)
    radius = solution_radius("softmax", 1.0, penalty=(1e-3, 1e-3), classes=classes)
    pulls, slopes, bends = [], [], []
    for _ in range(500):
        scores = rng.normal(size=classes) * 10 ** rng.uniform(-1, 1) * rng.choice([0.0, 1.0], size=classes)
        scores[0] += rng.uniform(-8, 8)  # the label is class 0; equal scores elsewhere are the worst case
        p = np.exp(scores - scores.max())
        p /= p.sum()
        gradient = p - np.eye(classes)[0]
        pulls.append(-gradient @ scores)
        slopes.append(np.linalg.norm(gradient))
        direction = rng.normal(size=classes) * p**0.5
        direction -= p @ direction
        direction /= np.linalg.norm(direction)
        bends.append(abs(p @ (direction - p @ direction) ** 3))
    assert 0.9 < max(pulls) * (1 + 1e-3) / 1e-3 / radius**2 <= 1
    assert 0.9 < max(slopes) / constants.upper_lipschitz <= 1
    twist = math.sqrt(2) / (3 * math.sqrt(3))
    assert max(bends) <= twist
    q = (1 - 1 / math.sqrt(3)) / 2  # two classes share the mass: the third moment attains its bound
    assert (2**0.5) ** 3 * q * (1 - q) * (1 - 2 * q) == pytest.approx(twist)


# ----------------------------------------------------------------------------------------------- where solutions lie


def ridge_solution(upper, lower, inverse_penalty, weights):
    gram, moment = np.diag(weights), np.zeros(len(weights))
    for (rows, targets), share in ((lower, 1.0), (upper, inverse_penalty)):
        gram = gram + share * rows.T @ rows / len(rows)
        moment = moment + share * rows.T @ targets / len(rows)
    return np.linalg.solve(gram, moment)


def test_ridge_solutions_lie_in_the_ball_and_some_at_its_edge():
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(1500):
        row_norm, low, target = 10 ** rng.uniform(-2, 1, size=3)
        penalty, options = (low, low * 10 ** rng.uniform(0, 2)), {"target_bound": target}
        smallest = glm_constants("squared", row_norm, penalty=penalty, **options).smallest_penalty_weight()
        size, dimension = rng.integers(1, 4, size=2)
        sets = []
        for _ in range(2):
            rows = rng.normal(size=(size, dimension))
            rows *= row_norm * rng.choice([1, rng.uniform()]) / np.linalg.norm(rows, axis=1, keepdims=True)
            sets.append((rows, target * rng.choice([-1.0, 1.0], size=size)))
        weights = np.where(rng.uniform(size=dimension) < 0.5, low, rng.uniform(*penalty, size=dimension))
        radius = solution_radius("squared", row_norm, penalty=penalty, **options)
        for inverse in (0.0, 1 / smallest, rng.uniform() / smallest):
            same = sets[1] if rng.uniform() < 0.5 else sets[0]
            largest = max(largest, np.linalg.norm(ridge_solution(same, sets[1], inverse, weights)) / radius)
    assert 0.9 < largest <= 1 + 1e-12


def test_the_ball_of_y_star_alone_does_not_hold_y_lambda():
    """One record with ||row||^2 = low/2 at the smallest penalty, 1: y^lambda comes up to the ball; y*'s is smaller."""
    low, target = 0.3, 2.0
    row_norm = math.sqrt(low / 2)
    record = (np.array([[row_norm]]), np.array([target]))
    assert glm_constants(
        "squared", row_norm, penalty=(low, low), target_bound=target
    ).smallest_penalty_weight() == pytest.approx(1.0)
    solution = ridge_solution(record, record, 1.0, np.array([low]))[0]
    assert solution == pytest.approx(solution_radius("squared", row_norm, penalty=(low, low), target_bound=target))
    assert solution > 1.1 * min(target * row_norm / low, target / (2 * math.sqrt(low)))


@pytest.mark.parametrize("loss", LOSSES)
def test_solutions_of_every_loss_lie_in_the_ball(loss):
    rng = np.random.default_rng(1)
    shares = []
    for trial in range(12):
        model = replace(
            Model(loss), row_norm=10 ** rng.uniform(-0.5, 0.7), low=10 ** rng.uniform(-2, 0), high=1.0, groups=0
        )
        inverse = 0.0 if trial % 2 else 1 / model.constants.smallest_penalty_weight()
        count = 1 if trial < 6 else 3
        rows = [rng.normal(size=(count, FEATURES)) for _ in range(2)]
        size = model.row_norm * rng.uniform(0.2, 1)
        rows = [size * part / np.linalg.norm(part, axis=1, keepdims=True) for part in rows]
        if trial % 3 == 0:
            rows[1] = rows[0]
        labels = {"logistic": 2, "softmax": CLASSES}.get(loss)
        signs = (0.0, 1.0) if loss == "poisson" else (-1.0, 1.0)
        targets = rng.integers(labels, size=count) if labels else rng.choice(signs, count) * model.target_bound
        records = [(row, target) for row, target in zip(rows[0], targets, strict=True)]
        others = [(row, target) for row, target in zip(rows[1], targets, strict=True)]

        def objective(flat, model=model, records=records, others=others, inverse=inverse, count=count):
            y = flat.reshape(model.shape)
            value, slope = model.low * flat @ flat / 2, model.low * flat
            for group, share in ((records, 1.0), (others, inverse)):
                for row, target in group:
                    own, own_slope = value_and_slope(model, y, row, target)
                    value, slope = value + share * own / count, slope + share * own_slope.ravel() / count
            return value, slope

        found = minimize(objective, np.zeros(math.prod(model.shape)), jac=True, tol=1e-10).x
        shares.append(np.linalg.norm(found) / model.radius)
    assert 0.5 < max(shares) <= 1 + 1e-6


def value_and_slope(model, y, row, target):
    """The losses once more, in float64 and without JAX."""
    score = y @ row
    match model.loss:
        case "logistic":
            sign = 1 - 2 * target
            return np.logaddexp(0, sign * score), sign * row / (1 + np.exp(-sign * score))
        case "softmax":
            p = np.exp(score - score.max())
            value = math.log(p.sum()) + score.max() - score[target]
            return value, np.outer(p / p.sum() - np.eye(CLASSES)[target], row)
        case "squared":
            return (score - target) ** 2 / 2, (score - target) * row
        case "poisson":
            return np.exp(score) - target * score, (np.exp(score) - target) * row
    root = math.hypot(1, (score - target) / model.threshold)
    return model.threshold**2 * (root - 1), (score - target) / root * row


def test_a_larger_ball_loosens_and_a_declared_one_is_taken():
    wide, narrow = (glm_constants("logistic", 1.0, penalty=(0.1, 1.0), radius=radius) for radius in (10.0, 0.1))
    own = glm_constants("logistic", 1.0, penalty=(0.1, 1.0))
    assert narrow.lower_smoothness < own.lower_smoothness < wide.lower_smoothness
    assert narrow.upper_lipschitz == wide.upper_lipschitz
    squared = glm_constants("squared", 2.0, penalty=(0.1, 1.0), target_bound=3.0, radius=10.0)
    assert squared.upper_lipschitz == 2 * (2 * 10 + 3)


def test_a_bound_on_targets_shrinks_the_ball_of_pseudo_huber():
    facts = {"loss": "pseudo-huber", "row_norm": 1.0, "penalty": (0.01, 1.0), "threshold": 2.0}
    assert solution_radius(**facts, target_bound=1.0) < solution_radius(**facts) / 10


def test_constants_feed_the_planner():
    constants = dpb.theory.glm_constants("softmax", 1.0, penalty=(0.5, 1.0), classes=10)
    planned = dpb.paper.plan(constants, 10**6, 1, 100, dpb.Budget(1.0, 1e-7), 0.05, gap=1.0)
    assert planned.penalty_weight >= constants.smallest_penalty_weight()


# ------------------------------------------------------------------------------------------------------- bad input

GOOD = {"loss": "squared", "row_norm": 1.0, "penalty": (0.1, 1.0), "target_bound": 1.0}
BAD = {
    "low zero": ({"penalty": (0.0, 1.0)}, "the lower level is not strongly convex at weight 0"),
    "low integer zero": ({"penalty": (0, 1)}, "the lower level is not strongly convex at weight 0"),
    "low negative": ({"penalty": (-1.0, 1.0)}, "penalty=-1.0: must be a finite number > 0"),
    "high infinite": ({"penalty": (0.1, math.inf)}, "penalty=inf: must be a finite number > 0"),
    "low above high": ({"penalty": (1.0, 0.1)}, "penalty=(1.0, 0.1): low must not exceed high; swap"),
    "penalty a number": ({"penalty": 0.1}, "penalty=0.1: must be (low, high)"),
    "penalty of three": ({"penalty": (0.1, 1.0, 2.0)}, "must be (low, high)"),
    "penalty of words": ({"penalty": ("a", 1.0)}, "penalty='a': must be a real number"),
    "unknown loss": ({"loss": "hinge"}, "loss='hinge': must be one of 'logistic', 'softmax', 'squared'"),
    "huber": ({"loss": "huber"}, "its second derivative jumps at the threshold, so no L2g exists; use 'pseudo"),
    "row norm zero": ({"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
    "row norm a word": ({"row_norm": "1"}, "row_norm='1': must be a real number"),
    "unknown coordinates": ({"coordinates": "square"}, "coordinates='square': must be one of 'linear', 'log'"),
    "no target bound": ({"target_bound": None}, "target_bound=None: required with loss='squared'; declare it"),
    "target bound zero": ({"target_bound": 0.0}, "target_bound=0.0: must be a finite number > 0"),
    "target bound of labels": ({"loss": "logistic"}, "target_bound=1.0: must be None with loss='logistic'"),
    "no threshold": ({"loss": "pseudo-huber"}, "threshold=None: required with loss='pseudo-huber'"),
    "threshold negative": ({"loss": "pseudo-huber", "threshold": -1.0}, "threshold=-1.0: must be a finite number > 0"),
    "threshold elsewhere": ({"threshold": 1.0}, "threshold=1.0: must be None with loss='squared'"),
    "no classes": ({"loss": "softmax", "target_bound": None}, "classes=None: required with loss='softmax'"),
    "one class": ({"loss": "softmax", "target_bound": None, "classes": 1}, "classes=1: must be at least 2"),
    "half a class": ({"loss": "softmax", "target_bound": None, "classes": 2.5}, "classes=2.5: must be a whole number"),
    "classes elsewhere": ({"classes": 3}, "classes=3: must be None with loss='squared'"),
    "no rate bound": ({"loss": "poisson", "target_bound": None}, "target_bound=None: required with loss='poisson'"),
    "fixed zero": ({"fixed": 0.0}, "fixed=0.0: must be a finite number > 0"),
    "fixed a word": ({"fixed": "1"}, "fixed='1': must be a real number"),
    "radius negative": ({"radius": -1.0}, "radius=-1.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        glm_constants(**GOOD | change)
    assert message in str(caught.value)


def test_the_smallest_ball_is_refused_what_the_constants_are_refused():
    for name in ("low zero", "unknown loss", "no target bound", "fixed zero"):
        change, message = BAD[name]
        with pytest.raises(InvalidArgument) as caught:
            solution_radius(**GOOD | change)
        assert message in str(caught.value)
