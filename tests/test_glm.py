"""Constants of generalised linear models: never falsified, nearly attained, and true where solutions really lie."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.falsify import check_constants
from dpbilevel.theory.glm import glm_constants, solution_radius

CLASSES, FEATURES = 3, 3
LOSSES = ("logistic", "softmax", "squared", "pseudo-huber")


@dataclass(frozen=True)
class Model:
    """One generalised linear model with its declared bounds, its problem and a way to draw from its domain."""

    loss: str
    coordinates: str = "linear"
    groups: int = 0  # 0: one weight, x a scalar; otherwise x a vector with one weight for each group of coordinates
    row_norm: float = 1.3
    low: float = 0.05
    high: float = 2.0
    target_bound: float = 1.5
    threshold: float = 0.7

    @property
    def options(self) -> dict[str, Any]:
        own = {
            "softmax": {"classes": CLASSES},
            "squared": {"target_bound": self.target_bound},
            "pseudo-huber": {"target_bound": self.target_bound, "threshold": self.threshold},
        }
        return own.get(self.loss, {})

    @property
    def constants(self):
        facts = {"penalty": (self.low, self.high), "coordinates": self.coordinates}
        return glm_constants(self.loss, self.row_norm, **facts, **self.options)

    @property
    def radius(self):
        return solution_radius(self.loss, self.row_norm, penalty=(self.low, self.high), **self.options)

    @property
    def shape(self):
        return (CLASSES, FEATURES) if self.loss == "softmax" else (FEATURES,)

    @property
    def bounds(self):
        return (math.log(self.low), math.log(self.high)) if self.coordinates == "log" else (self.low, self.high)

    def record_loss(self, x, y, record):
        row, target = record
        score = y @ row
        match self.loss:
            case "logistic":
                return jax.nn.softplus((1 - 2 * target) * score)
            case "softmax":
                return jax.nn.logsumexp(score) - score[target]
            case "squared":
                return (score - target) ** 2 / 2
        return self.threshold**2 * (jnp.sqrt(1 + ((score - target) / self.threshold) ** 2) - 1)

    @property
    def problem(self):
        group = np.arange(math.prod(self.shape)) % max(self.groups, 1)

        def term(x, y):
            weights = jnp.exp(x) if self.coordinates == "log" else x
            return jnp.sum((weights[group] if self.groups else weights) * y.ravel() ** 2) / 2

        return dpb.BilevelProblem(
            upper_loss=self.record_loss,
            lower_loss=self.record_loss,
            lower_term=term,
            domain=dpb.Box(*self.bounds),
            public=[group],
        )

    def draw_record(self, rng, y):
        row = rng.normal(size=FEATURES) * rng.choice([0.03, 1.0], size=FEATURES)
        if rng.uniform() < 0.3:  # the extreme scores
            row = rng.choice([-1, 1]) * (y if y.ndim == 1 else y[rng.integers(CLASSES)]) + 1e-9
        row *= self.row_norm / np.linalg.norm(row) * rng.choice([1, 1, 1, 0, rng.uniform()])
        if self.loss in ("logistic", "softmax"):
            return row, int(rng.integers(2 if self.loss == "logistic" else CLASSES))
        return row, self.target_bound * rng.choice([-1, 1, rng.uniform(-1, 1)])

    def sample(self, rng):
        x = np.array(rng.uniform(*self.bounds, size=(self.groups,) if self.groups else ()))
        x = np.clip(x + rng.choice([-1, 0, 1], size=x.shape) * 1e9, *self.bounds)
        y = rng.normal(size=self.shape) * rng.choice([0.03, 1.0], size=self.shape)
        y *= self.radius / np.linalg.norm(y) * rng.choice([1, rng.uniform()])
        return x, y, self.draw_record(rng, y), self.draw_record(rng, y)


def random_model(index):
    """Every loss in both coordinates, with one weight and with several, at random bounds."""
    rng = np.random.default_rng(index)
    low = 10 ** rng.uniform(-3, 0)
    return Model(
        loss=LOSSES[index % 4],
        coordinates=("linear", "log")[index // 4 % 2],
        groups=int((0, 2, 3)[(index + index // 4) % 3]),
        row_norm=10 ** rng.uniform(-1, 1),
        low=low,
        high=low * 10 ** rng.uniform(0, 2.5),
        target_bound=10 ** rng.uniform(-1, 1),
        threshold=10 ** rng.uniform(-1, 1),
    )


FAST = (5,)  # the others are marked slow


@pytest.mark.parametrize(
    "index", [pytest.param(index, marks=() if index in FAST else pytest.mark.slow) for index in range(24)]
)
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
        smallest = glm_constants("squared", row_norm, penalty=penalty, **options).smallest_penalty()
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
    ).smallest_penalty() == pytest.approx(1.0)
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
        inverse = 0.0 if trial % 2 else 1 / model.constants.smallest_penalty()
        count = 1 if trial < 6 else 3
        rows = [rng.normal(size=(count, FEATURES)) for _ in range(2)]
        size = model.row_norm * rng.uniform(0.2, 1)
        rows = [size * part / np.linalg.norm(part, axis=1, keepdims=True) for part in rows]
        if trial % 3 == 0:
            rows[1] = rows[0]
        labels = {"logistic": 2, "softmax": CLASSES}.get(loss)
        targets = rng.integers(labels, size=count) if labels else rng.choice([-1.0, 1.0], count) * model.target_bound
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
    planned = dpb.theory.plan(constants, 10**6, 1, 100, dpb.Budget(1.0, 1e-7), 0.05, gap=1.0)
    assert planned.penalty >= constants.smallest_penalty()


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
    "huber": ({"loss": "huber"}, "its second derivative jumps at the threshold, so that no L2g exists; use 'pseudo"),
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
    "radius negative": ({"radius": -1.0}, "radius=-1.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        glm_constants(**GOOD | change)
    assert message in str(caught.value)


def test_the_smallest_ball_is_refused_what_the_constants_are_refused():
    for name in ("low zero", "unknown loss", "no target bound"):
        change, message = BAD[name]
        with pytest.raises(InvalidArgument) as caught:
            solution_radius(**GOOD | change)
        assert message in str(caught.value)
