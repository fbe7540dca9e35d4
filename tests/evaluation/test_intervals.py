"""Confidence intervals cover what they say they cover, and forgetting noise, the sample or the bins is noticed.

Released numbers are drawn as the release draws them: counts of a fresh sample plus Gaussian noise. That real releases
have the stated noise is tested by the last test here and in test_evaluating.py. Seeds are fixed; a sound interval would
fail with one seed in a million.
"""

import functools
import warnings

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, binom, chi2, expon, norm

import dpbilevel as dpb
from dpbilevel.evaluation import auc as auc_module
from dpbilevel.evaluation.auc import auc_interval, default_edges
from dpbilevel.evaluation.calibration import calibration_interval
from dpbilevel.evaluation.error_quantiles import LEVELS, quantile_interval
from dpbilevel.evaluation.groups import group_interval
from dpbilevel.evaluation.intervals import solve_quadratic
from dpbilevel.evaluation.r_squared import RSquared, r2_interval

RUNS, LEVEL, ALARM = 1000, 0.9, 1e-6
LEAST = binom.ppf(ALARM, RUNS, LEVEL)
MORE = 1e6  # times as many records with as many times the noise: sampling errors vanish, noise stays


def coverage(draw, interval, truth):
    """In how many runs an interval holds the truth."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(RUNS):
        low, high = interval(draw(rng))
        held += low <= truth <= high
    return held


def without_noise(released):
    return released | {name: 0.0 * value for name, value in released.items() if name.endswith("noise")}


def without_sampling(released):
    return {name: value if name in ("edges", "names") else MORE * value for name, value in released.items()}


# ---------------------------------------------------------------------------------------------------------------- AUC

HIGH, LOW = beta(3, 2), beta(2, 3)
AUC = quad(lambda x: HIGH.pdf(x) * LOW.cdf(x), 0, 1)[0]


def scores(rng, edges, number, noise, positives=0.3):
    edges = np.asarray(edges)
    cells = np.concatenate([positives * np.diff(HIGH.cdf(edges)), (1 - positives) * np.diff(LOW.cdf(edges))])
    found = rng.multinomial(number, cells / cells.sum()) + noise * rng.normal(size=cells.size)
    bins = len(edges) - 1
    return {"edges": edges, "positives": found[:bins], "negatives": found[bins:], "noise": noise}


FINE = default_edges(0.001)
FEW_RECORDS = functools.partial(scores, edges=FINE, number=600, noise=0.2)
MUCH_NOISE = functools.partial(scores, edges=FINE, number=60_000, noise=200.0)
FEW_BINS = functools.partial(scores, edges=(0.0, 0.45, 1.0), number=1_000_000, noise=10.0)


@pytest.mark.parametrize("draw", [FEW_RECORDS, MUCH_NOISE, FEW_BINS])
def test_intervals_of_the_auc_cover_noise_sampling_and_bins(draw):
    assert coverage(draw, lambda released: auc_interval(released, LEVEL), AUC) >= LEAST


AUC_MUTATIONS = [
    (MUCH_NOISE, lambda released: auc_interval(without_noise(released), LEVEL)),
    (FEW_RECORDS, lambda released: auc_interval(without_sampling(released), LEVEL)),
    (FEW_BINS, lambda released: auc_module._interval(released, 0.5, LEVEL)),
]


@pytest.mark.parametrize(("draw", "broken"), AUC_MUTATIONS, ids=["noise", "sampling", "bins"])
def test_intervals_of_the_auc_that_forget_something_are_caught(draw, broken):
    assert coverage(draw, broken, AUC) < LEAST


def test_intervals_of_the_auc_are_not_wider_than_they_need_to_be():
    """With fine bins, as wide as noise and sample make the scores differ, up to a half."""
    rng = np.random.default_rng(8)
    found = [FEW_RECORDS(rng) for _ in range(300)]
    spread = np.std([auc_module.auc_value(released) for released in found])
    widths = [np.diff(auc_interval(released, LEVEL))[0] for released in found]
    assert np.median(widths) < 1.5 * 2 * norm.isf(0.05) * spread


def test_noise_that_hides_a_class_gives_the_whole_range():
    rng = np.random.default_rng(9)
    hidden = scores(rng, FINE, 600, 100.0, positives=0.01)
    assert auc_interval(hidden, LEVEL) == (0.0, 1.0)


# ------------------------------------------------------------------------------------------------------------- groups


def grouped(rng, records=120, accuracy=0.9, noise=4.0, number=1000):
    size = rng.binomial(number, records / number)
    right = rng.binomial(size, accuracy)
    own = rng.normal(size=2) * noise
    return {"names": ("a",), "right": np.array([right + own[0]]), "wrong": np.array([size - right + own[1]])} | {
        "noise": noise
    }


@pytest.mark.parametrize(("records", "noise"), [(120, 1.0), (120, 8.0), (2000, 100.0), (10, 4.0)])
def test_intervals_of_groups_cover_noise_and_sampling(records, noise):
    draw = functools.partial(grouped, records=records, noise=noise, number=10_000)
    assert coverage(draw, lambda released: group_interval(released, "a", LEVEL), 0.9) >= LEAST


def test_intervals_of_groups_that_forget_something_are_caught():
    noisy, small = functools.partial(grouped, records=2000, noise=100.0, number=10_000), grouped
    assert coverage(noisy, lambda released: group_interval(without_noise(released), "a", LEVEL), 0.9) < LEAST
    few = functools.partial(small, noise=1.0)
    assert coverage(few, lambda released: group_interval(without_sampling(released), "a", LEVEL), 0.9) < LEAST


# -------------------------------------------------------------------------------------------------- calibration curve


def binned(rng, records=120, share=0.85, noise=4.0, number=10_000):
    size = rng.binomial(number, records / number)
    excess = rng.binomial(size, share) - size / 2
    own = rng.normal(size=2) * noise
    return {"records": np.array([size + own[0]]), "excess": np.array([excess + own[1]]), "noise": noise}


@pytest.mark.parametrize(
    ("records", "share", "noise"),
    [(120, 0.85, 1.0), (120, 0.03, 8.0), (2000, 0.85, 100.0), (2000, 0.5, 100.0), (10, 0.85, 4.0)],
)
def test_intervals_of_calibration_bins_cover_noise_and_sampling(records, share, noise):
    draw = functools.partial(binned, records=records, share=share, noise=noise)
    assert coverage(draw, lambda released: calibration_interval(released, 0, LEVEL), share) >= LEAST


def test_intervals_of_calibration_bins_that_forget_something_are_caught():
    noisy, few = functools.partial(binned, records=2000, noise=100.0), functools.partial(binned, noise=1.0)
    assert coverage(noisy, lambda released: calibration_interval(without_noise(released), 0, LEVEL), 0.85) < LEAST
    assert coverage(few, lambda released: calibration_interval(without_sampling(released), 0, LEVEL), 0.85) < LEAST


def test_intervals_of_calibration_bins_are_not_wider_than_they_need_to_be():
    rng = np.random.default_rng(8)
    found = [binned(rng, records=2000, noise=30.0) for _ in range(300)]
    spread = np.std([one["excess"][0] / one["records"][0] for one in found])
    widths = [np.diff(calibration_interval(one, 0, LEVEL))[0] for one in found]
    assert np.median(widths) < 1.1 * 2 * norm.isf(0.05) * spread
    hidden = {"records": np.array([-3.0]), "excess": np.array([1.0]), "noise": 9.0}
    assert calibration_interval(hidden, 0, LEVEL) == calibration_interval({}, 0, LEVEL) == (0.0, 1.0)


# ---------------------------------------------------------------------------------------------------------------- R^2

METRIC = RSquared(-2.0, 3.0, 4.0, True)


@functools.cache
def means():
    with jax.enable_x64(True):
        mean = jax.jit(lambda rows: jax.tree.map(lambda leaf: leaf.mean(axis=0), jax.vmap(METRIC.contribution)(rows)))
    return mean


def population(rng, number):
    targets = rng.choice([-1.0, 0.0, 2.5], number, p=[0.4, 0.4, 0.2])
    return targets, targets * 0.9 + rng.normal(0, 0.3, number) * (1 + (targets > 0))


def moments(rng, number=400, noise=0.001):
    targets, predicted = population(rng, number)
    with jax.enable_x64(True):
        answer = means()(METRIC.placed((predicted - targets) ** 2, targets))
    return METRIC.detail({name: float(part) + noise * rng.normal() for name, part in answer.items()}, noise, number)


def r_squared():
    targets, predicted = population(np.random.default_rng(10), 4_000_000)
    return 1 - np.mean(np.clip((predicted - targets) ** 2, 0, 4)) / np.var(targets)


@pytest.mark.parametrize(("number", "noise"), [(400, 0.0002), (400, 0.004), (20_000, 0.004)])
def test_intervals_of_r_squared_cover_noise_and_sampling(number, noise):
    draw = functools.partial(moments, number=number, noise=noise)
    assert coverage(draw, lambda released: r2_interval(released, number, LEVEL), r_squared()) >= LEAST


def test_intervals_of_r_squared_that_forget_something_are_caught():
    noisy, few = functools.partial(moments, number=20_000, noise=0.004), functools.partial(moments, noise=0.0002)
    truth = r_squared()
    assert coverage(noisy, lambda released: r2_interval(without_noise(released), 20_000, LEVEL), truth) < LEAST
    assert coverage(few, lambda released: r2_interval(released, 10**9, LEVEL), truth) < LEAST


def test_intervals_of_r_squared_have_a_useful_width():
    """At most 2.5 times what these scores need: errors and targets may be correlated in any way."""
    rng = np.random.default_rng(11)
    found = [moments(rng, noise=0.0002) for _ in range(300)]
    spread = np.std([1 - one["mean_squared_error"] / one["target_variance"] for one in found])
    assert np.median([np.diff(r2_interval(one, 400, LEVEL))[0] for one in found]) < 2.5 * 2 * norm.isf(0.05) * spread


# ---------------------------------------------------------------------------------------------------------- quantiles

EDGES = np.linspace(0, 6, 25)


def errors(rng, number=1000, noise=3.0):
    cells = np.append(np.diff(expon.cdf(EDGES)), expon.sf(EDGES[-1]))
    return {"edges": EDGES, "records": rng.multinomial(number, cells) + noise * rng.normal(size=25), "noise": noise}


@pytest.mark.parametrize(("number", "noise"), [(1000, 1.0), (1000, 20.0), (30_000, 400.0)])
@pytest.mark.parametrize("name", LEVELS)
def test_intervals_of_quantiles_cover_noise_sampling_and_bins(name, number, noise):
    draw = functools.partial(errors, number=number, noise=noise)
    truth = expon.ppf(LEVELS[name])
    assert coverage(draw, lambda released: quantile_interval(released, name, number, LEVEL), truth) >= LEAST


def test_intervals_of_quantiles_that_forget_something_are_caught():
    truth = expon.ppf(0.95)
    noisy, few = functools.partial(errors, number=30_000, noise=400.0), functools.partial(errors, noise=0.0)
    forget = lambda released: quantile_interval(without_noise(released), "95%", 30_000, LEVEL)  # noqa: E731
    assert coverage(noisy, forget, truth) < LEAST
    forget = lambda released: quantile_interval(without_sampling(released), "50%", int(1000 * MORE), LEVEL)  # noqa: E731
    assert coverage(few, forget, EDGES[3] + 1e-9) < LEAST


def test_one_bounded_interval_or_the_whole_line():
    assert solve_quadratic(1.0, -3.0, 2.0) == (1.0, 2.0)
    assert solve_quadratic(0.0, 1.0, 1.0) == (-np.inf, np.inf)


# --------------------------------------------------------------------------------------------------- real releases


class Public:
    classes_ = np.array([0, 1])

    def predict(self, rows):
        return (rows > 0.5).astype(int)

    def predict_proba(self, rows):
        return np.stack([1 - rows, rows], axis=1)


def released_numbers(evaluation):
    """All numbers that new metrics release, with the standard deviations that are stated for them."""
    for name, parts in (
        ("auc", ("positives", "negatives")),
        ("group_accuracy", ("right", "wrong")),
        ("calibration", ("records", "excess")),
        ("error_quantiles", ("records",)),
    ):
        for part in parts if name in evaluation.details else ():
            found = evaluation.details[name][part]
            yield from ((value, evaluation.details[name]["noise"]) for value in found)
    if "r2" in evaluation.details:
        found = evaluation.details["r2"]
        for part in ("mean_squared_error", "target_variance"):
            yield found[part], found[f"{part}_noise"]


def real(seed, budget, regression):
    rng = np.random.default_rng(3)
    likely, groups = rng.random(3000), rng.choice(["a", "b"], 3000)
    labels = (rng.random(3000) < likely).astype(int)
    if regression:
        chosen = {"metric": ("r2", "error_quantiles"), "target_range": (0, 1)}
        return dpb.evaluate(lambda rows: rows, (likely, labels), budget, seed=seed, **chosen)
    given = {"groups": groups, "group_names": ["a", "b"], "edges": np.linspace(0, 1, 5)}
    metrics = ("auc", "group_accuracy", "calibration")
    return dpb.evaluate(Public(), (likely, labels), budget, metric=metrics, seed=seed, **given)


@pytest.mark.parametrize("regression", [False, True], ids=["classifier", "regression"])
def test_released_numbers_have_the_stated_noise(regression):
    """Mean and variance, number by number; a false alarm in one of a million. 0.7 of the noise is caught."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        truth = [value for value, _ in released_numbers(real(None, dpb.Budget(np.inf), regression))]
        runs = [list(released_numbers(real(seed, dpb.Budget(1.0, 1e-5), regression))) for seed in range(150)]
    found = np.array(
        [[(value - true) / noise for (value, noise), true in zip(run, truth, strict=True)] for run in runs]
    )

    def sound(found):
        alarm = ALARM / (4 * found.shape[1])
        squares = 150 * found.var(axis=0)
        centred = np.abs(found.mean(axis=0)).max() <= norm.isf(alarm) / np.sqrt(150)
        return centred and np.all((chi2.ppf(alarm, 149) <= squares) & (squares <= chi2.isf(alarm, 149)))

    assert sound(found)
    assert not sound(0.6 * found)
    assert not sound(1.6 * found)
