"""Tuning penalties: against brute force with other people's models, by groups, by columns, and privately."""

import dataclasses
import math
import warnings
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import pseudo_huber
from sklearn.linear_model import LogisticRegression, Ridge
from support.application_data import (
    COLUMNS,
    NO_PRIVACY,
    logistic_labels,
    parts,
    planned,
    softmax_labels,
    solved,
    unit_rows,
)
from support.linear_models import FEATURES
from support.linear_models import LinearModel as Draws

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.applications import regularization
from dpbilevel.applications.regularization import PENALTIES
from dpbilevel.errors import InvalidArgument
from dpbilevel.theory.glm import glm_constants, solution_radius

LEAST, MOST = np.log(PENALTIES)
GROUPS = [0, 0, 0, 1, 1, 1, -1]  # columns that matter, columns of noise, and the intercept, whose penalty is not tuned
SHAPES = (np.zeros((60, COLUMNS), np.float32), np.zeros(60, np.float32))  # of records, where only shapes matter


# ----------------------------------------------------------------------------------- one penalty, against brute force


@dataclass(frozen=True)
class OnePenalty:
    """A loss, a way to draw its targets, and the model of scikit-learn that minimises the same objective."""

    loss: str

    def data(self):
        rng = np.random.default_rng(1)
        rows = unit_rows(rng, 420)
        scores = rows @ np.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0, 0.3])
        targets = logistic_labels(rng, 3 * scores) if self.loss == "logistic" else scores + rng.normal(size=420)
        return parts(120, rows, targets)

    def fitted(self, penalty, lower):
        """mean loss + (penalty/2) ||y||^2, in the scales of scikit-learn."""
        strength = len(lower[0]) * penalty
        if self.loss == "squared":
            return Ridge(alpha=strength, fit_intercept=False).fit(*lower).coef_
        return LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-8, max_iter=1000).fit(*lower).coef_[0]

    def value(self, penalty):
        lower, (rows, targets) = self.data()
        scores = rows @ self.fitted(penalty, lower)
        if self.loss == "squared":
            return np.mean((scores - targets) ** 2) / 2
        return np.mean(np.logaddexp(0, scores) - targets * scores)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_one_penalty_is_the_best_of_a_grid(loss):
    case = OnePenalty(loss)
    grid = np.linspace(LEAST, MOST, 80)
    values = np.array([case.value(math.exp(x)) for x in grid])
    best = int(values.argmin())
    assert 5 < best < 75, "the best penalty lies inside"
    solution = solved(regularization(loss, columns=COLUMNS), *case.data(), NO_PRIVACY)
    (x,) = solution.x
    assert abs(x - grid[best]) < 1.0
    assert case.value(math.exp(x)) - values.min() < 0.02 * (values.max() - values.min())
    np.testing.assert_allclose(solution.y, case.fitted(math.exp(x), case.data()[0]), atol=0.1)
    # Equal arguments are one problem: a second run, on other records, compiles nothing.
    compiled = records_module._execute._cache_size()
    lower, upper = case.data()
    again = solved(regularization(loss, columns=COLUMNS), (lower[0], lower[1][::-1].copy()), upper, NO_PRIVACY)
    assert again.x != solution.x
    assert records_module._execute._cache_size() == compiled


# ---------------------------------------------------------------------------------------------------- many penalties


@pytest.mark.slow
def test_columns_of_noise_get_a_larger_penalty_and_the_intercept_keeps_the_smallest():
    """Pseudo-Huber, on targets with heavy tails, against the same objective written out for scipy."""
    rng = np.random.default_rng(2)
    rows = unit_rows(rng, 550)
    targets = rows @ np.array([2.0, -2.0, 1.5, 0.0, 0.0, 0.0, 1.0]) + 0.4 * rng.standard_t(2, size=550)
    lower, upper = parts(150, rows, targets)
    problem = regularization("pseudo-huber", columns=COLUMNS, groups=GROUPS, threshold=0.5)
    solution = solved(problem, lower, upper, NO_PRIVACY)
    useful, noise = solution.x
    assert noise > useful + 4

    def loss(y, rows, targets):
        return np.mean(pseudo_huber(0.5, rows @ y - targets))

    def fitted(useful, noise):
        penalties = np.exp([useful] * 3 + [noise] * 3 + [LEAST])
        return minimize(lambda y: loss(y, *lower) + penalties @ y**2 / 2, np.zeros(COLUMNS), tol=1e-9).x

    np.testing.assert_allclose(solution.y, fitted(useful, noise), atol=0.02)
    assert abs(fitted(useful, noise)[-1] - fitted(useful, noise + 0.1)[-1]) < 0.01
    first, tuned = loss(fitted(*problem.start[0]), *upper), loss(fitted(useful, noise), *upper)
    assert tuned < first
    best = min(loss(fitted(a, b), *upper) for a in np.linspace(-9, -3, 5) for b in np.linspace(-4, 2, 5))
    assert tuned - best < 0.1 * (first - best)


@pytest.mark.slow
def test_a_penalty_for_each_column():
    """Poisson, whose constants are e^245: the ball that tracking keeps its difference in is all of float32."""
    rng = np.random.default_rng(3)
    rows = unit_rows(rng, 550)
    counts = rng.poisson(np.exp(rows @ np.array([1.5, -1.5, 1.0, 0.0, 0.0, 0.0, 0.3]))).astype(float)
    lower, upper = parts(150, rows, counts)
    problem = regularization("poisson", columns=COLUMNS, groups=range(COLUMNS))
    assert problem.constants.upper_lipschitz > 1e100
    solution = solved(problem, lower, upper, NO_PRIVACY)
    assert solution.x.shape == (COLUMNS,)

    def loss(y, rows, counts):
        return np.mean(np.exp(rows @ y) - counts * (rows @ y))

    def fitted(x):
        return minimize(lambda y: loss(y, *lower) + np.exp(x) @ y**2 / 2, np.zeros(COLUMNS), tol=1e-9).x

    np.testing.assert_allclose(solution.y, fitted(solution.x), atol=0.02)
    values = [loss(fitted(x), *upper) for x in (solution.x, problem.start[0], np.full(COLUMNS, LEAST))]
    assert values[0] < min(values[1:]) - 0.003, "better than the start, and than no penalty"


@pytest.mark.slow
def test_groups_are_distinguished_privately():
    rng = np.random.default_rng(0)
    truth = np.zeros((COLUMNS, 3))
    truth[:3] = 4 * rng.normal(size=(3, 3))
    rows = unit_rows(rng, 12_000)
    labels = softmax_labels(rng, rows @ truth)
    lower, rest = parts(5000, rows, labels)
    upper, (test_rows, test_labels) = parts(3000, *rest)
    problem = regularization("softmax", columns=COLUMNS, classes=3, groups=GROUPS)
    solution = solved(problem, lower, upper, dpb.Budget(3.0, 1e-6), refit=None)
    useful, noise = solution.x
    assert noise > useful + 3

    def loss(y):
        scores = test_rows @ y
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), test_labels])

    assert loss(solution.y) - loss(truth) < 0.05 * (math.log(3) - loss(truth))
    assert solution.privacy.epsilon() == pytest.approx(3.0, abs=1e-6)


# --------------------------------------------------------------------------------------------------------- constants


@pytest.mark.slow
def test_constants_are_not_refuted_and_wrong_ones_are():
    """Two groups and an untuned column; squared, whose bounds one record comes near."""
    draws, bounds = Draws("squared"), (0.3, 2.0)
    declared = {"row_norm": draws.row_norm, "target_bound": draws.target_bound}
    problem = regularization("squared", columns=FEATURES, groups=[0, 1, -1], penalties=bounds, **declared)
    radius = solution_radius("squared", penalty=bounds, fixed=bounds[0], **declared)

    def sample(rng):
        y = draws.draw_lower(rng, radius)
        x = np.where(rng.uniform(size=2) < 0.7, rng.choice(np.log(bounds), size=2), rng.uniform(*np.log(bounds), 2))
        return x, y, draws.draw_record(rng, y), draws.draw_record(rng, y)

    report = dpb.theory.check_constants(problem, problem.constants, sample)
    assert report.holds, report
    own = problem.constants
    mistakes = {
        "the penalty's own block in x": ("lower_smoothness", bounds[1] + own.record_lower_smoothness),
        "weights are exponentials": ("lower_hessian_lipschitz", 2 / math.sqrt(3)),
        "an untuned column has the smallest penalty": ("strong_convexity", 1.1 * bounds[0]),
        "targets twice as large": ("lower_lipschitz", own.lower_lipschitz / 2),
    }
    for why, (name, value) in mistakes.items():
        assert not replace(report[name], declared=value).holds, f"{why}\n{report}"


@pytest.mark.parametrize(
    ("loss", "declared"),
    [
        ("logistic", {}),
        ("softmax", {"classes": 4}),
        ("squared", {"target_bound": 2.0}),
        ("poisson", {"target_bound": 2.0}),
        ("pseudo-huber", {"threshold": 0.5, "target_bound": 2.0}),
    ],
)
def test_every_loss_has_the_constants_of_its_model(loss, declared):
    problem = regularization(loss, columns=3, penalties=(0.1, 1.0), row_norm=0.5, **declared)
    expected = glm_constants(loss, 0.5, penalty=(0.1, 1.0), coordinates="log", fixed=0.1, **declared)
    assert problem.constants == expected


def test_where_no_constants_fit_a_float_there_are_none():
    assert regularization("poisson", columns=3, target_bound=10.0).constants is None
    assert regularization("poisson", columns=3, target_bound=10.0, penalties=(1.0, 2.0)).constants is not None


# ------------------------------------------------------------------------------------------------------- the problem


def test_the_penalty_by_hand():
    problem = regularization("squared", columns=4, groups=[1, -1, 0, 1], penalties=(0.5, 8.0))
    y = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    x = np.log(np.array([2.0, 3.0], np.float32))
    assert float(problem.lower_term(x, y)) == pytest.approx((3 * 1 + 0.5 * 4 + 2 * 9 + 3 * 16) / 2)
    np.testing.assert_allclose(jax.grad(problem.lower_term)(jnp.asarray(x), y), [2 * 9 / 2, 3 * 17 / 2], rtol=1e-6)
    matrix = regularization("softmax", columns=2, classes=3, groups=[0, -1], penalties=(0.5, 8.0))
    assert float(matrix.lower_term(x[:1], np.ones((2, 3), np.float32))) == pytest.approx((2 * 3 + 0.5 * 3) / 2)


def test_tuning_starts_half_way_between_the_logarithms():
    x, y = regularization("squared", columns=3, groups=[0, -1, 1], penalties=(0.1, 10.0)).start
    np.testing.assert_allclose(x, [0.0, 0.0], atol=1e-6)
    np.testing.assert_array_equal(y, np.zeros(3))


def test_equal_arguments_give_the_same_problem():
    same = [[0, 0, 1], (0, 0, 1), np.array([0, 0, 1]), np.array([0, 0, 1], np.uint8)]
    assert len({id(regularization("squared", columns=3, groups=groups)) for groups in same}) == 1
    assert regularization(columns=3) is regularization("logistic", columns=np.int64(3), groups=None, row_norm=None)
    assert regularization(columns=3, row_norm=1) is regularization(columns=3, row_norm=1.0)
    assert regularization(columns=3) is regularization(columns=3, groups=[0, 0, 0])
    assert regularization(columns=3) is not regularization(columns=3, groups=range(3))
    assert regularization("squared", columns=3) is not regularization("squared", columns=3, target_bound=2.0)


def test_hypergradients_are_free_and_nothing_is_closed_over():
    for problem in (
        regularization("squared", columns=COLUMNS),
        regularization("squared", columns=COLUMNS, groups=GROUPS),
        regularization("pseudo-huber", columns=COLUMNS, groups=range(COLUMNS)),
    ):
        plan = planned(problem, SHAPES, SHAPES)
        assert plan.parameters["hypergradient"][0] == 0
        assert plan.parameters["hypergradient"][1].startswith("free")
        assert set(plan.releases[-1].contributions) == {"upper", "lower"}, "validation records train too"


def test_the_mutant_that_does_not_declare_its_groups_is_marked():
    problem = dataclasses.replace(regularization("squared", columns=COLUMNS, groups=GROUPS), public=())
    with pytest.raises(dpb.PrivacyLeakWarning, match="lower_term closes over an array"):
        planned(problem, SHAPES, SHAPES)


def test_the_mutant_whose_records_are_weighted_pays_for_its_hypergradient():
    problem = regularization("squared", columns=COLUMNS)
    weighted = dataclasses.replace(
        problem, lower_loss=lambda x, y, record: jnp.exp(x[0]) * problem.lower_loss(x, y, record)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "hypergradient" not in planned(weighted, SHAPES, SHAPES).parameters


# --------------------------------------------------------------------------------------------------------- bad input

WHOLE = "groups: must give one whole number for each of the 3 columns"
NUMBERED = "groups: must be numbered 0, 1, 2, … without gaps"
BAD = {
    "too few groups": ({"groups": [0, 1]}, WHOLE),
    "too many groups": ({"groups": range(4)}, WHOLE),
    "groups of groups": ({"groups": [[0], [1], [2]]}, WHOLE),
    "groups a number": ({"groups": 3}, WHOLE),
    "groups of floats": ({"groups": [0.0, 1.0, 2.0]}, WHOLE),
    "groups of flags": ({"groups": [True, False, True]}, WHOLE),
    "groups of names": ({"groups": ["a", "b", "c"]}, WHOLE),
    "a gap": ({"groups": [0, 2, 2]}, f"{NUMBERED} (-1 for columns whose penalty is not tuned); got the numbers [0, 2]"),
    "from one on": ({"groups": [1, 2, 3]}, NUMBERED),
    "negative": ({"groups": [0, -2, 1]}, NUMBERED),
    "nothing to tune": ({"groups": [-1, -1, -1]}, NUMBERED),
    "penalties swapped": ({"penalties": (1.0, 0.1)}, "penalties=(1.0, 0.1): the smallest must be below the largest"),
    "penalties equal": ({"penalties": (1.0, 1.0)}, "penalties=(1.0, 1.0): the smallest must be below"),
    "penalty zero": ({"penalties": (0.0, 1.0)}, "penalties=0.0: must be a finite number > 0"),
    "penalty infinite": ({"penalties": (0.1, math.inf)}, "penalties=inf: must be a finite number > 0"),
    "one penalty": ({"penalties": 1.0}, "penalties=1.0: must be (smallest, largest)"),
    "three penalties": ({"penalties": (0.1, 1.0, 2.0)}, "penalties=(0.1, 1.0, 2.0): must be (smallest, largest)"),
    "unknown loss": ({"loss": "hinge"}, "loss='hinge': must be one of"),
    "no columns": ({"columns": 0}, "columns=0: must be a whole number >= 1"),
    "classes missing": ({"loss": "softmax"}, "classes=None: required"),
    "row norm": ({"row_norm": -1.0}, "row_norm=-1.0: must be a finite number > 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(InvalidArgument) as caught:
        regularization(**{"columns": 3} | change)
    assert str(caught.value).startswith(message)
