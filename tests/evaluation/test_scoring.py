"""Metrics: one record moves the answer by no more than was charged, and the answer without noise is the score."""

import functools
import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from sklearn.metrics import r2_score, roc_auc_score

import dpbilevel as dpb
from dpbilevel.evaluation.auc import Auc
from dpbilevel.evaluation.calibration import Calibration
from dpbilevel.evaluation.error_quantiles import LEVELS, ErrorQuantiles, quantile_interval
from dpbilevel.evaluation.evaluating import _program
from dpbilevel.evaluation.groups import GroupAccuracy, group_records
from dpbilevel.evaluation.means import Accuracy, Brier, Loss, brier_scores, log_losses, squared_errors
from dpbilevel.evaluation.r_squared import RSquared
from dpbilevel.privacy import release as release_module

N = 6
LOSS = Loss("squared error", bound=3.0, clipped=True)
CALIBRATION = Calibration(bins=4, place=1, positive_class="1")
BRIER, AUC, GROUPS = Brier(1.0), Auc((0.0, 0.25, 0.5, 1.0), 1, "1"), GroupAccuracy(("a", "b"))
R_SQUARED, QUANTILES = RSquared(-2.0, 2.0, 3.0, True), ErrorQuantiles((0.0, 0.5, 1.0, 2.0))
TOGETHER = (Accuracy(), LOSS, CALIBRATION)
CHOICES = [
    *((metric,) for metric in (Accuracy(), LOSS, CALIBRATION, BRIER, AUC, GROUPS, R_SQUARED, QUANTILES)),
    (Accuracy(), LOSS),
    TOGETHER,
    (Accuracy(), BRIER, AUC, GROUPS),
    (LOSS, R_SQUARED, QUANTILES),
]
# Two records of different cells are at a right angle, where the sensitivity counts them as opposite.
AT_A_RIGHT_ANGLE = (CALIBRATION, AUC, GROUPS, QUANTILES)
ADJACENCIES = ["replace-one", "zero-out"]


@dataclass(frozen=True)
class AccuracyWithoutCentre(Accuracy):
    def contribution(self, record):
        return jnp.where(record, 1.0, 0.0)


@dataclass(frozen=True)
class LossWithoutRange(Loss):
    def contribution(self, record):
        return record / self.bound - 0.5


@dataclass(frozen=True)
class CalibrationWithoutCentre(Calibration):
    def contribution(self, record):
        mine = jax.nn.one_hot(record["bin"], self.bins, dtype=jnp.float64) / self.unit
        probability = record["offset"] + jnp.asarray(self.middles)[record["bin"]]
        return {"records": mine, "offset": probability * mine, "excess": record["positive"] * mine}


@dataclass(frozen=True)
class AucByClassCounts(Auc):
    """The histogram of each class as a fraction of 3 records of that class: a private count as a divisor."""

    def contribution(self, record):
        return super().contribution(record) * N / 3


@dataclass(frozen=True)
class GroupsWithTotals(GroupAccuracy):
    """A second count for every group, which is not charged for."""

    def contribution(self, record):
        own = super().contribution(record)
        return {"own": own, "totals": own[:2] + own[2:]}


@dataclass(frozen=True)
class RSquaredWithoutRange(RSquared):
    def contribution(self, record):
        return RSquared(self.low, self.high, self.bound, False).contribution(record)


@dataclass(frozen=True)
class QuantilesOfCumulativeCounts(ErrorQuantiles):
    """Every record counts at all edges beyond its error."""

    def contribution(self, record):
        return jnp.cumsum(super().contribution(record))


@dataclass(frozen=True)
class BrierWithoutCentre(Brier):
    def contribution(self, record):
        return record / self.bound


def possible(metric):
    """Every kind of record that a metric can meet, extremes included."""
    if isinstance(metric, Accuracy):
        return [np.array([right]) for right in (True, False)]
    losses = (0.0, 1.0, 3.0, 1e6, 1e25, np.inf, np.nan)
    if isinstance(metric, Loss | Brier):
        return [metric.usable(np.array([loss])) for loss in losses]
    if isinstance(metric, RSquared):
        targets = (-2.0, 0.0, 1.0, 2.0, -1e9, 1e300, np.inf)
        return [metric.placed(np.array([loss]), np.array([target])) for loss in losses for target in targets]
    if isinstance(metric, ErrorQuantiles):
        return [metric.placed(np.array([loss])) for loss in losses]
    if isinstance(metric, GroupAccuracy):
        return [metric.placed(np.array([group]), np.array([right])) for group in (-1, 0, 1) for right in (True, False)]
    likely = (0.0, 0.1, 0.25, 0.25 - 1e-12, 0.6, 1.0, -3.0, 7.0, np.nan)
    return [metric.placed(np.array([p]), np.array([positive])) for p in likely for positive in (True, False)]


def moves(metrics, adjacency, monkeypatch=None):
    """The largest move of the answer, without noise, over all pairs of one record; and what is charged for."""
    if monkeypatch is not None:  # the mutant: the same release without clipping
        summed = release_module.clipped_sum
        monkeypatch.setattr(release_module, "clipped_sum", lambda *arguments: summed(*arguments[:3], float("inf")))
    with jax.enable_x64(True):
        _, release = _program(metrics, N, dpb.Budget(1.0, 1e-3, adjacency))
        silent = release.scaled(0.0)

        @jax.jit
        def answer(arrays, present):
            return ravel_pytree(silent.answer({"both": (arrays, present)}, None, jnp.zeros((2, 2), jnp.uint32)))[0]

        candidates = [
            {metric.name: part for metric, part in zip(metrics, parts, strict=True)}
            for parts in itertools.product(*map(possible, metrics))
        ]
        others = jax.tree.map(lambda leaf: jnp.concatenate([jnp.asarray(leaf)] * (N - 1)), candidates[0])
        everyone, all_but_one = jnp.ones(N, bool), jnp.arange(N) > 0

        def with_first(record):
            return jax.tree.map(lambda one, rest: jnp.concatenate([jnp.asarray(one), rest]), record, others)

        answers = np.array([answer(with_first(record), everyone) for record in candidates])
        if adjacency == "replace-one":
            far = max(np.linalg.norm(answers - one, axis=1).max() for one in answers)
        else:
            far = np.linalg.norm(answers - np.array(answer(with_first(candidates[0]), all_but_one)), axis=1).max()
    return float(far), release.sensitivity("both")


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("metrics", CHOICES, ids=lambda metrics: "+".join(metric.name for metric in metrics))
def test_the_worst_record_moves_the_answer_by_at_most_what_is_charged(metrics, adjacency):
    far, charged = moves(metrics, adjacency)
    assert far <= charged
    apart = adjacency == "replace-one" and any(metric in AT_A_RIGHT_ANGLE for metric in metrics)
    # Of the four numbers of R^2, two are equal at its two extremes.
    assert far >= (0.7 if apart else 0.95 if R_SQUARED in metrics else 0.99) * charged


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("metrics", CHOICES, ids=lambda metrics: "+".join(metric.name for metric in metrics))
def test_clipping_changes_nothing_for_the_norms_are_exact(metrics, adjacency, monkeypatch):
    far, charged = moves(metrics, adjacency, monkeypatch)
    assert far <= charged


MUTATIONS = [
    ((AccuracyWithoutCentre(),), "zero-out"),
    ((LossWithoutRange("squared error", 3.0, True),), "replace-one"),
    ((LossWithoutRange("squared error", 3.0, True),), "zero-out"),
    ((CalibrationWithoutCentre(4, 1, "1"),), "zero-out"),
    ((AccuracyWithoutCentre(), LOSS), "zero-out"),
    ((Accuracy(), LossWithoutRange("squared error", 3.0, True)), "replace-one"),
    ((BrierWithoutCentre(1.0),), "zero-out"),
    ((AucByClassCounts(AUC.edges, 1, "1"),), "replace-one"),
    ((AucByClassCounts(AUC.edges, 1, "1"),), "zero-out"),
    ((GroupsWithTotals(GROUPS.names),), "zero-out"),
    ((RSquaredWithoutRange(-2.0, 2.0, 3.0, True),), "replace-one"),
    ((RSquaredWithoutRange(-2.0, 2.0, 3.0, True),), "zero-out"),
    ((QuantilesOfCumulativeCounts(tuple(np.arange(9.0))),), "replace-one"),
    ((QuantilesOfCumulativeCounts(QUANTILES.edges),), "zero-out"),
    ((Accuracy(), BRIER, AucByClassCounts(AUC.edges, 1, "1")), "replace-one"),
]


@pytest.mark.parametrize(("metrics", "adjacency"), MUTATIONS)
def test_mutations_without_centre_or_range_move_further_than_is_charged(metrics, adjacency, monkeypatch):
    far, charged = moves(metrics, adjacency, monkeypatch)
    assert far > 1.05 * charged


def mean_vector(metric, records):
    vectors = jax.vmap(metric.contribution)(records)
    return jax.tree.map(functools.partial(np.mean, axis=0), vectors)


def test_values_are_read_off_the_mean_vector_and_a_mutation_without_centre_is_not():
    right = np.array([True] * 3 + [False] * 5)
    assert Accuracy().value(mean_vector(Accuracy(), right), 8) == pytest.approx(3 / 8)
    assert AccuracyWithoutCentre().value(mean_vector(AccuracyWithoutCentre(), right), 8) != pytest.approx(3 / 8)
    losses = np.array([0.0, 1.0, 2.0, 50.0])
    assert LOSS.value(mean_vector(LOSS, losses), 4) == pytest.approx(6 / 4)  # 50 counts as 3


def answered(metric, records):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, mean_vector(metric, records))


def test_brier_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(2)
    for classes in (2, 3):
        probability = rng.dirichlet(np.ones(classes), 50)
        known = rng.integers(0, classes, 50)
        brier = Brier(1.0 if classes == 2 else 2.0)
        found = brier.value(answered(brier, brier.usable(brier_scores(probability, known))), 50)
        labels = np.eye(classes)[known]
        expected = np.mean(np.sum((probability - labels) ** 2, axis=1)) / (2 if classes == 2 else 1)
        assert found == pytest.approx(expected, rel=1e-12)


def test_the_histogram_gives_the_auc_up_to_its_bins():
    rng = np.random.default_rng(3)
    positive = rng.random(400) < 0.3
    likely = np.clip(rng.normal(0.4 + 0.2 * positive, 0.2), 0, 1)
    coarse = Auc(tuple(np.linspace(0, 1, 6)), 1, "1")
    released = coarse.detail(answered(coarse, coarse.placed(likely, positive)), 0.0, 400)
    np.testing.assert_allclose(released["positives"], np.histogram(likely[positive], coarse.edges)[0], atol=1e-9)
    np.testing.assert_allclose(released["negatives"], np.histogram(likely[~positive], coarse.edges)[0], atol=1e-9)
    binned = np.minimum((likely * 5).astype(int), 4)
    for edges, scores in ((coarse.edges, binned), (tuple(np.linspace(0, 1, 20_001)), likely)):
        metric = Auc(edges, 1, "1")
        found = metric.value(answered(metric, metric.placed(likely, positive)), 400)
        assert found == pytest.approx(roc_auc_score(positive, scores), abs=1e-4)


def test_groups_hold_what_numpy_counts():
    rng = np.random.default_rng(4)
    group, right = rng.integers(-1, 2, 300), rng.random(300) < 0.8
    answer = answered(GROUPS, GROUPS.placed(group, right))
    for place, name in enumerate(GROUPS.names):
        assert GROUPS.value(answer, 300)[name] == pytest.approx(right[group == place].mean())
        assert group_records(GROUPS.detail(answer, 0.0, 300), name)[0] == pytest.approx(np.sum(group == place))


@pytest.mark.parametrize("middle", [0.0, 1.2])
def test_moments_give_r_squared(middle):
    rng = np.random.default_rng(5)
    targets = np.clip(rng.normal(middle, 0.4, 500), -2, 2)
    predicted = targets + rng.normal(0, 0.2, 500)
    answer = answered(R_SQUARED, R_SQUARED.placed((predicted - targets) ** 2, targets))
    released = R_SQUARED.detail(answer, 0.0, 500)
    assert R_SQUARED.value(answer, 500) == pytest.approx(r2_score(targets, predicted), rel=1e-9)
    assert released["target_mean"] == pytest.approx(targets.mean())
    assert released["error_variance"] == pytest.approx(np.var((predicted - targets) ** 2), rel=1e-6)


def test_histograms_give_quantiles_up_to_their_bins():
    errors = np.random.default_rng(6).exponential(1.0, 2000)
    fine = ErrorQuantiles(tuple(np.linspace(0, 12, 1201)))
    answer = answered(fine, fine.placed(errors**2))
    for name, level in LEVELS.items():
        assert fine.value(answer, 2000)[name] == pytest.approx(np.quantile(errors, level), abs=0.02)
        low, high = quantile_interval(fine.detail(answer, 0.0, 2000), name, 2000, 0.95)
        assert low < np.quantile(errors, level) < high
    beyond = QUANTILES.value(answered(QUANTILES, QUANTILES.placed(np.full(50, 9.0))), 50)
    assert set(beyond.values()) == {np.inf}


def test_bins_hold_what_numpy_counts():
    rng = np.random.default_rng(0)
    likely, positive = rng.random(500), rng.random(500) < 0.3
    likely[:2] = 0.0, 1.0
    with jax.enable_x64(True):
        answer = mean_vector(CALIBRATION, CALIBRATION.placed(likely, positive))
    bins = CALIBRATION.value(answer, 500)
    for name, weights in (("records", None), ("probability", likely), ("positives", positive.astype(float))):
        np.testing.assert_allclose(bins[name], np.histogram(likely, bins["edges"], weights=weights)[0], atol=1e-9)


def test_released_bins_are_within_their_ranges_whatever_the_noise():
    rng = np.random.default_rng(1)
    for _ in range(50):
        answer = {name: rng.normal(scale=2, size=4) for name in ("records", "offset", "excess")}
        bins = CALIBRATION.value(answer, 100)
        assert np.all((bins["records"] >= 0) & (bins["records"] <= 100))
        assert np.all((bins["positives"] >= 0) & (bins["positives"] <= bins["records"]))
        assert np.all(bins["probability"] >= bins["edges"][:-1] * bins["records"] - 1e-12)
        assert np.all(bins["probability"] <= bins["edges"][1:] * bins["records"] + 1e-12)
    assert Accuracy().value(np.float64(9.0), 100) == 1.0
    assert LOSS.value(np.float64(-9.0), 100) == 0.0


def test_what_is_not_finite_counts_as_the_worst():
    assert LOSS.usable(np.array([np.nan, np.inf, 1.0])).tolist() == [3.0, 3.0, 1.0]
    placed = CALIBRATION.placed(np.array([np.nan, np.inf]), np.array([True, False]))
    assert placed["bin"].tolist() == [0, 3]  # zero for a positive, one for a negative
    probability = np.array([[0.2, 0.8], [np.nan, 0.5], [0.0, 1.0]])
    losses = log_losses(probability, np.array([1, 0, -1]))
    assert losses[0] == pytest.approx(-np.log(0.8))
    assert np.isnan(losses[1])
    assert losses[2] == pytest.approx(-np.log(np.finfo(float).eps))
    assert squared_errors(np.array([1e200, 1.0]), np.array([0.0, 3.0])).tolist() == [np.inf, 4.0]
