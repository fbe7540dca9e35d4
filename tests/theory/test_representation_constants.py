"""Constants of a shared linear representation: attained to the digit by one record, and true where solutions lie."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.falsify import check_constants
from dpbilevel.theory.representation import representation_constants, solution_radius

FEATURES, SIZE, TASKS = 3, 2, 2


@dataclass(frozen=True)
class Representation:
    """The declared bounds, the problem and a way to draw from its domain."""

    row_norm: float = 1.3
    map_norm: float = 0.8
    target_bound: float = 1.5
    ridge: float = 0.7

    @property
    def constants(self):
        return representation_constants(**vars(self))

    @property
    def radius(self):
        return solution_radius(**vars(self))

    @property
    def problem(self):
        def loss(x, y, record):
            row, task, target = record
            return (row @ x @ y[task] - target) ** 2 / 2

        return dpb.BilevelProblem(
            upper_loss=loss,
            lower_loss=loss,
            lower_term=lambda x, y: self.ridge * (y**2).sum() / 2,
            domain=dpb.Ball(self.map_norm),
        )

    def sample(self, rng):
        shared, heads = rng.normal(size=(FEATURES, SIZE)), rng.normal(size=(TASKS, SIZE))
        row = rng.normal(size=FEATURES)
        if rng.uniform() < 0.5:  # one direction of rows, through the map into one head
            heads *= np.eye(TASKS)[rng.integers(TASKS)][:, None]
            shared = np.outer(row, heads.sum(axis=0))
        shared *= self.map_norm / np.linalg.norm(shared) * rng.choice([1, 1, rng.uniform()])
        heads *= self.radius / np.linalg.norm(heads) * rng.choice([1, 1, rng.uniform()])
        return shared, heads, self._record(rng, row), self._record(rng, row)

    def _record(self, rng, row):
        row = row if rng.uniform() < 0.5 else rng.normal(size=FEATURES)
        row = self.row_norm * row / np.linalg.norm(row) * rng.choice([-1, 1, 1, 0, rng.uniform()])
        return row, int(rng.integers(TASKS)), self.target_bound * rng.choice([-1, 1, rng.uniform(-1, 1)])


def random_model(index):
    return Representation(*(10 ** np.random.default_rng(index).uniform(-1, 1, size=4)))


def marks(index):
    """A few in every run, some more in CI, all of them by `make test-heavy`."""
    if index == 3:
        return ()
    return pytest.mark.slow if index < 4 else (pytest.mark.slow, pytest.mark.heavy)


@pytest.mark.parametrize("index", [pytest.param(index, marks=marks(index)) for index in range(12)])
def test_random_models_are_not_falsified(index):
    model = random_model(index)
    report = check_constants(model.problem, model.constants, model.sample, seed=index)
    assert report.holds, f"{model}\n{report}"
    assert min(check.ratio for check in report.checks) > 0.8, f"{model}\n{report}"


def test_a_tenth_less_of_any_constant_is_refuted():
    model = Representation(ridge=2.0)
    report = check_constants(model.problem, model.constants, model.sample)
    assert report.holds, report
    for check in report.checks:  # the search never looks at what is declared, so that it need not be repeated
        factor = 1 / 0.9 if check.name == "strong_convexity" else 0.9
        assert not replace(check, declared=check.declared * factor).holds, f"{check}\n{report}"
    own = model.constants
    mistakes = {
        "a record's smoothness is not that of g with its ridge": ("lower_smoothness", own.record_lower_smoothness),
        "f moves with the map too": ("upper_lipschitz", own.lower_lipschitz),
        "the curvature in the heads alone": ("upper_smoothness", (model.row_norm * model.map_norm) ** 2),
    }
    for why, (name, value) in mistakes.items():
        assert not replace(report[name], declared=value).holds, why


# ----------------------------------------------------------------------------------------- values, written out by hand


@pytest.mark.parametrize("model", [Representation(), Representation(2.0, 0.1, 3.0, 0.05)], ids=["plain", "small map"])
def test_one_record_attains_every_bound(model):
    """Along (a, b) the score of the extreme record is R (rho + a t) (r + b t): everything in one variable, t."""
    constants, radius = model.constants, model.radius
    angles = np.linspace(0, math.pi / 2, 2001)
    a, b = np.cos(angles), np.sin(angles)
    # The loss along the direction as a polynomial in t: residual c0 + c1 t + c2 t^2, squared and halved.
    c0 = model.row_norm * model.map_norm * radius + model.target_bound
    c1, c2 = model.row_norm * (a * radius + b * model.map_norm), model.row_norm * a * b
    first, second, third = c0 * c1, c1**2 + 2 * c0 * c2, 6 * c1 * c2
    assert first.max() == pytest.approx(constants.upper_lipschitz, rel=1e-6)
    assert first[-1] == pytest.approx(constants.lower_lipschitz)
    assert second.max() == pytest.approx(constants.upper_smoothness, rel=1e-6)
    assert second.max() == pytest.approx(constants.record_lower_smoothness, rel=1e-6)
    assert (second + model.ridge * b**2).max() == pytest.approx(constants.lower_smoothness, rel=1e-6)
    assert third.max() == pytest.approx(constants.lower_hessian_lipschitz, rel=1e-6)
    assert constants.record_upper_lipschitz == constants.upper_lipschitz
    assert constants.strong_convexity == model.ridge


def test_derivatives_by_finite_differences_stay_below():
    """Random points and directions in float64, against first, second and third differences of g0 + g_1."""
    rng = np.random.default_rng(0)
    step, largest = 1e-3, np.zeros(3)
    model = Representation()
    constants = model.constants
    for _ in range(3000):
        (shared, heads, record, _), (p, q, _, _) = model.sample(rng), model.sample(rng)
        norm = math.hypot(np.linalg.norm(p), np.linalg.norm(q))

        def value(t, shared=shared, heads=heads, record=record, p=p / norm, q=q / norm):
            row, task, target = record
            moved = heads + t * q
            residual = row @ (shared + t * p) @ moved[task] - target
            return np.array([residual**2 / 2, residual**2 / 2 + model.ridge * (moved**2).sum() / 2])

        far, near, here, back, behind = (value(multiple * step) for multiple in (2, 1, 0, -1, -2))
        differences = [
            ((near - back) / (2 * step))[0] / constants.upper_lipschitz,
            ((near - 2 * here + back) / step**2)[1] / constants.lower_smoothness,
            ((far - 2 * near + 2 * back - behind) / (2 * step**3))[1] / constants.lower_hessian_lipschitz,
        ]
        largest = np.maximum(largest, np.abs(differences))
    assert np.all(largest <= 1 + 1e-4), largest
    assert np.all(largest > 0.5), largest


# ----------------------------------------------------------------------------------------------- where solutions lie


def test_solutions_lie_in_the_ball_and_some_near_its_edge():
    rng = np.random.default_rng(1)
    shares = []
    for trial in range(1500):
        model = Representation(*(10 ** rng.uniform(-1, 1, size=4)))
        smallest = model.constants.smallest_penalty_weight()
        shared = rng.normal(size=(FEATURES, SIZE))
        shared *= model.map_norm * rng.uniform() / np.linalg.norm(shared)
        size = int(rng.integers(1, 4))
        rows = rng.normal(size=(2, size, FEATURES))
        rows *= model.row_norm * rng.uniform() / np.linalg.norm(rows, axis=-1, keepdims=True)
        tasks = rng.integers(TASKS, size=(2, size))
        targets = model.target_bound * rng.choice([-1.0, 1.0], size=(2, size))
        if trial % 2:
            rows[1], tasks[1], targets[1] = rows[0], tasks[0], targets[0]
        heads = []
        for task in range(TASKS):
            gram, moment = model.ridge * np.eye(SIZE), np.zeros(SIZE)
            for level, share in ((1, 1.0), (0, rng.choice([0.0, 1.0]) / smallest)):
                own = rows[level][tasks[level] == task] @ shared
                gram = gram + share * own.T @ own / size
                moment = moment + share * own.T @ targets[level][tasks[level] == task] / size
            heads.append(np.linalg.solve(gram, moment))
        shares.append(np.linalg.norm(heads) / model.radius)
    assert 0.9 < max(shares) <= 1 + 1e-9


def test_constants_feed_the_planner():
    constants = dpb.theory.representation_constants(1.0, map_norm=1.0, target_bound=1.0, ridge=0.5)
    planned = dpb.paper.plan(constants, 10**6, 10, 100, dpb.Budget(1.0, 1e-7), 0.05, gap=1.0)
    assert planned.penalty_weight >= constants.smallest_penalty_weight()


# ------------------------------------------------------------------------------------------------------- bad input

BAD = {
    "row norm zero": ({"row_norm": 0.0}, "row_norm=0.0: must be a finite number > 0"),
    "map norm infinite": ({"map_norm": math.inf}, "map_norm=inf: must be a finite number > 0; it bounds the Frobenius"),
    "no target bound": ({"target_bound": None}, "target_bound=None: required with loss='squared'; declare it"),
    "target bound negative": ({"target_bound": -1.0}, "target_bound=-1.0: must be a finite number > 0"),
    "ridge zero": ({"ridge": 0.0}, "ridge=0.0: must be a finite number > 0; it is mu_g"),
    "too large": ({"row_norm": 1e200}, "must be a finite number >= 0; it bounds every possible record"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        representation_constants(**vars(Representation()) | change)
    assert message in str(caught.value)
