"""Constants of data weights on the simplex: never falsified, attained where that is claimed, and true at solutions."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import brentq
from support.linear_models import LOSSES, LinearModel

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory import glm
from dpbilevel.theory.falsify import check_constants
from dpbilevel.theory.weighted import solution_radius, weighted_constants


@dataclass(frozen=True)
class Weighted(LinearModel):
    """A linear model with a weight for each source of records."""

    weights: int = 3
    ridge: float = 0.5

    @property
    def constants(self):
        return weighted_constants(self.loss, self.row_norm, weights=self.weights, ridge=self.ridge, **self.declared)

    @property
    def radius(self):
        return solution_radius(self.loss, self.row_norm, weights=self.weights, ridge=self.ridge, **self.declared)

    def lower_loss(self, x, y, record):
        row, target, source = record
        return self.weights * x[source] * self.record_loss(y, row, target)

    @property
    def problem(self):
        return dpb.BilevelProblem(
            upper_loss=lambda x, y, record: self.record_loss(y, *record),
            lower_loss=self.lower_loss,
            lower_term=lambda x, y: self.ridge * (y**2).sum() / 2,
            domain=dpb.Simplex(),
        )

    def sample(self, rng):
        vertex = np.eye(self.weights)[rng.integers(self.weights)]
        x = vertex if rng.uniform() < 0.5 else rng.dirichlet(np.full(self.weights, 0.5))
        y = self.draw_lower(rng, self.radius)
        source = int(rng.choice([np.argmax(x), rng.integers(self.weights)]))
        return x, y, self.draw_record(rng, y), (*self.draw_record(rng, y), source)


def random_model(index):
    rng = np.random.default_rng(index)
    model = Weighted(
        loss=LOSSES[index % 5],
        weights=int(rng.integers(1, 8)),
        ridge=10 ** rng.uniform(-2, 1),
        row_norm=10 ** rng.uniform(-1, 0.7),
        target_bound=10 ** rng.uniform(-1, 1),
        threshold=10 ** rng.uniform(-1, 1),
    )
    # Beside rates of e^8 float32 would have no digits left for what else there is.
    while model.loss == "poisson" and model.row_norm * model.radius > 8:
        model = replace(model, row_norm=model.row_norm / 2)
    return model


def marks(index):
    """A few in every run, some more in CI, all of them by `make test-heavy`."""
    if index == 2:
        return ()
    return pytest.mark.slow if index < len(LOSSES) else (pytest.mark.slow, pytest.mark.heavy)


@pytest.mark.parametrize("index", [pytest.param(index, marks=marks(index)) for index in range(20)])
def test_random_models_are_not_falsified(index):
    model = random_model(index)
    report = check_constants(model.problem, model.constants, model.sample, seed=index)
    assert report.holds, f"{model}\n{report}"
    assert report["strong_convexity"].ratio > 0.99
    if model.loss in ("squared", "poisson"):
        assert min(check.ratio for check in report.checks) > 0.8, f"{model}\n{report}"


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_where_bounds_are_attained_a_tenth_less_is_refuted(loss):
    model = Weighted(loss, ridge=2.0)
    report = check_constants(model.problem, model.constants, model.sample)
    assert report.holds, report
    for check in report.checks:  # the search never looks at what is declared, so that it need not be repeated
        factor = 1 / 0.9 if check.name == "strong_convexity" else 0.9
        assert not replace(check, declared=check.declared * factor).holds, f"{check}\n{report}"
    own, block = model.constants, model.weights * model.constants.upper_smoothness + model.ridge
    mistakes = {
        "a record's smoothness is not that of g with its ridge": ("lower_smoothness", own.record_lower_smoothness),
        "the block in y alone leaves out how g moves with the weights": ("lower_smoothness", block),
        "a record may count K times": ("lower_lipschitz", own.upper_lipschitz),
    }
    for why, (name, value) in mistakes.items():
        assert not replace(report[name], declared=value).holds, why


# ----------------------------------------------------------------------------------------- values, written out by hand


def worst_case(model, target, sign):
    """g0 + g_1 in float64, of (x, y) in one vector, at the corner of simplex and ball where the score is largest."""

    def lower(point):
        x, y = point[: model.weights], point[model.weights :]
        score = model.row_norm * y[0]
        value = (score - target) ** 2 / 2 if model.loss == "squared" else math.exp(score) - target * score
        return model.weights * x[0] * value + model.ridge * y @ y / 2

    return lower, np.concatenate([np.eye(model.weights)[0], [sign * model.radius, 0.0]])


def hessian(function, point, step=1e-3):
    shifts = step * np.eye(len(point))
    return np.array(
        [
            [
                (function(point + a + b) - function(point + a - b) - function(point - a + b) + function(point - a - b))
                for b in shifts
            ]
            for a in shifts
        ]
    ) / (4 * step**2)


def third_along(function, point, direction, step=3e-3):
    values = [function(point + multiple * step * direction) for multiple in (2, 1, -1, -2)]
    return (values[0] - 2 * values[1] + 2 * values[2] - values[3]) / (2 * step**3)


@pytest.mark.parametrize(("loss", "target", "sign"), [("squared", 1.5, -1.0), ("poisson", 0.0, 1.0)])
def test_one_record_attains_every_bound(loss, target, sign):
    model = Weighted(loss)
    lower, corner = worst_case(model, target, sign)
    bent = hessian(lower, corner)
    assert np.linalg.norm(bent, 2) == pytest.approx(model.constants.lower_smoothness, rel=1e-4)
    record = bent - np.diag([0.0] * model.weights + [model.ridge] * 2)
    assert np.linalg.norm(record, 2) == pytest.approx(model.constants.record_lower_smoothness, rel=1e-4)
    unit_x, unit_y = np.eye(len(corner))[0], np.eye(len(corner))[model.weights]
    directions = [a * unit_x + math.sqrt(1 - a * a) * unit_y for a in np.linspace(0, 1, 400)]
    thirds = [abs(third_along(lower, corner, direction)) for direction in directions]
    assert max(thirds) == pytest.approx(model.constants.lower_hessian_lipschitz, rel=1e-3)
    slope = abs(bent[0, model.weights])  # K loss' R: what the gradient in y is at x_s = 1, without the ridge
    assert slope == pytest.approx(model.constants.lower_lipschitz, rel=1e-4)


def test_logistic_constants_by_hand():
    constants = weighted_constants("logistic", 2.0, weights=5, ridge=0.3)
    assert (constants.upper_lipschitz, constants.record_upper_lipschitz, constants.lower_lipschitz) == (2.0, 2.0, 10.0)
    assert constants.upper_smoothness == 1.0
    assert constants.lower_smoothness == pytest.approx(np.linalg.norm([[0, 10], [10, 5.3]], 2))
    assert constants.record_lower_smoothness == pytest.approx(np.linalg.norm([[0, 10], [10, 5]], 2))
    angles = np.linspace(0, math.pi / 2, 10**6)
    a, b = np.cos(angles), np.sin(angles)
    third = 5 * (3 * 0.25 * 4 * a * b**2 + 8 / (6 * math.sqrt(3)) * b**3)
    assert constants.lower_hessian_lipschitz == pytest.approx(third.max())
    assert constants.strong_convexity == 0.3
    assert constants.smallest_penalty_weight() == pytest.approx(2 / 0.3)


# ----------------------------------------------------------------------------------------------- where solutions lie

SLOPES = {
    "logistic": lambda s, target, model: 1 / (1 + math.exp(-s)) - target,
    "squared": lambda s, target, model: s - target,
    "pseudo-huber": lambda s, target, model: (s - target) / math.hypot(1, (s - target) / model.threshold),
    "poisson": lambda s, target, model: math.exp(s) - target,
}


@pytest.mark.parametrize("loss", SLOPES)
def test_solutions_lie_in_the_ball_and_some_near_its_edge(loss):
    rng = np.random.default_rng(2)
    shares = []
    for trial in range(400):
        model = Weighted(
            loss,
            weights=int(rng.integers(1, 6)),
            ridge=10 ** rng.uniform(-2, 1),
            row_norm=10 ** rng.uniform(-1, 0.5),
            target_bound=10 ** rng.uniform(-0.5, 0.7),
        )
        size = int(rng.integers(1, 4))
        x = rng.dirichlet(np.full(model.weights, 0.2))
        x = np.eye(model.weights)[0] if trial % 2 else x
        sources = np.zeros(size, int) if trial % 2 else rng.integers(model.weights, size=size)
        rows = model.row_norm * rng.uniform(0, 1) * rng.choice([0.5, 1.0], size=(2, size))
        targets = rng.choice([0.0, 1.0], size=(2, size)) * (1 if loss == "logistic" else model.target_bound)
        if trial % 3 == 0:  # all pull one way
            rows, targets = np.full((2, size), rows[0, 0]), np.full((2, size), targets[0, 0])
        inverse = rng.choice([0.0, 1.0]) / model.constants.smallest_penalty_weight()

        def gradient(y, model=model, rows=rows, targets=targets, x=x, sources=sources, inverse=inverse, size=size):
            slopes = [
                [SLOPES[loss](row * y, target, model) * row for row, target in zip(*level, strict=True)]
                for level in zip(rows, targets, strict=True)
            ]
            lower = model.weights * x[sources] @ slopes[1] / size
            return model.ridge * y + lower + inverse * sum(slopes[0]) / size

        edge = 1.2 * model.radius
        shares.append(abs(brentq(gradient, -edge, edge, xtol=1e-12)) / model.radius)
    assert 0.9 < max(shares) <= 1 + 1e-9


def test_the_ball_of_unweighted_records_does_not_hold_the_solutions():
    """All records are of the source that has all the weight: K times the pull, and sqrt(K) times the radius."""
    ridge, target, sources = 0.1, 2.0, 9
    row = math.sqrt(ridge / sources)
    solution = sources * row * target / (sources * row * row + ridge)
    radius = solution_radius("squared", 1.0, weights=sources, ridge=ridge, target_bound=target)
    assert 0.95 < solution / radius <= 1
    assert solution > 2.5 * glm.solution_radius("squared", 1.0, penalty=(ridge, ridge), target_bound=target)


def test_one_source_is_a_plain_model():
    facts = {"target_bound": 2.0}
    alone = weighted_constants("squared", 1.5, weights=1, ridge=0.2, **facts)
    plain = glm.glm_constants("squared", 1.5, penalty=(0.2, 0.2), **facts)
    for name in ("upper_lipschitz", "upper_smoothness", "lower_lipschitz", "strong_convexity"):
        assert getattr(alone, name) == pytest.approx(getattr(plain, name))


def test_constants_feed_the_planner():
    constants = dpb.theory.weighted_constants("softmax", 1.0, weights=10, ridge=0.5, classes=10)
    planned = dpb.paper.plan(constants, 10**6, 10, 100, dpb.Budget(1.0, 1e-7), 0.05, gap=1.0)
    assert planned.penalty_weight >= constants.smallest_penalty_weight()


# ------------------------------------------------------------------------------------------------------- bad input

BAD = {
    "no weights": ({"weights": 0}, "weights=0: must be a whole number >= 1; it is the number of sources"),
    "half a weight": ({"weights": 2.5}, "weights=2.5: must be a whole number"),
    "ridge zero": ({"ridge": 0.0}, "ridge=0.0: must be a finite number > 0; it is mu_g"),
    "ridge a word": ({"ridge": "1"}, "ridge='1': must be a real number"),
    "row norm zero": ({"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
    "unknown loss": ({"loss": "hinge"}, "loss='hinge': must be one of 'logistic'"),
    "no target bound": ({"target_bound": None}, "target_bound=None: required with loss='squared'"),
    "radius zero": ({"radius": 0.0}, "radius=0.0: must be a finite number > 0"),
    "too large a rate": ({"loss": "poisson", "ridge": 1e-9}, "exp(row_norm * radius) = exp("),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    good = {"loss": "squared", "row_norm": 1.0, "weights": 3, "ridge": 0.1, "target_bound": 1.0}
    with pytest.raises(InvalidArgument) as caught:
        weighted_constants(**good | change)
    assert message in str(caught.value)
