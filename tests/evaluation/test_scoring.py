"""Metrics: one record moves the answer by no more than was charged, and the answer without noise is the score."""

import functools
import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dpbilevel as dpb
from dpbilevel.evaluation.evaluating import _program
from dpbilevel.evaluation.scoring import Accuracy, Calibration, Loss, log_losses, squared_errors
from dpbilevel.privacy import release as release_module

N = 6
LOSS = Loss("squared error", bound=3.0, clipped=True)
CALIBRATION = Calibration(bins=4, place=1, positive_class="1")
TOGETHER = (Accuracy(), LOSS, CALIBRATION)
CHOICES = [(Accuracy(),), (LOSS,), (CALIBRATION,), (Accuracy(), LOSS), TOGETHER]
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


def possible(metric):
    """Every kind of record that a metric can meet, extremes included."""
    if isinstance(metric, Accuracy):
        return [np.array([right]) for right in (True, False)]
    if isinstance(metric, Loss):
        return [metric.usable(np.array([loss])) for loss in (0.0, 1.0, metric.bound, 1e6, 1e25, np.inf, np.nan)]
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
    # Two records of different bins are at a right angle, where the sensitivity counts them as opposite.
    assert far >= (0.7 if CALIBRATION in metrics and adjacency == "replace-one" else 0.99) * charged


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
