"""Scores of units: every unit counts once, and all rows of one move a score by no more than a row does."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.pipeline import Pipeline
from support import unit_neighbours

import dpbilevel as dpb
from dpbilevel.evaluation import evaluating
from dpbilevel.evaluation.error_quantiles import ErrorQuantiles, quantile_interval
from dpbilevel.evaluation.evaluating import plan_scores
from dpbilevel.evaluation.heldout import classes_of
from dpbilevel.evaluation.means import NORM, Accuracy, mean_interval
from dpbilevel.evaluation.of_units import WithRows, among_those_with_rows, caveats_without_units
from dpbilevel.evaluation.scoring import CLASSIFIERS, METRICS, REGRESSORS, Declared, chosen_metrics, scored
from dpbilevel.methods.unit_losses import sum_over_rows
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.units import Selection

BUDGET, EXACT = dpb.Budget(1.0, 1e-4), dpb.Budget(math.inf)
K, UNITS = unit_neighbours.MOST, 40


class Classifier:
    classes_ = np.array([0, 1])

    def predict_proba(self, rows):
        positive = 1 / (1 + np.exp(-3 * rows[:, 0]))
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, rows):
        return (rows[:, 0] > 0).astype(int)


def numbers(rows):
    return rows[:, 0]


CLASSES = {"metric": ("accuracy", "loss", "group_accuracy", *CLASSIFIERS), "group_names": ["a", "b"]}
NUMBERS = {"metric": ("loss", *REGRESSORS), "target_range": (-1.0, 1.0)}
KINDS = pytest.mark.parametrize(("model", "asked"), [(Classifier(), CLASSES), (numbers, NUMBERS)], ids=["classes", "r"])


def table(model):
    """Rows, targets, groups and ids: every unit has one to four rows."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(UNITS), 1 + np.arange(UNITS) % K)
    rows = rng.normal(size=(len(ids), 1)) / 2
    noisy = rows[:, 0] + 0.3 * rng.normal(size=len(ids))
    targets = (noisy > 0).astype(int) if isinstance(model, Classifier) else np.clip(noisy, -1, 1)
    return rows, targets, rng.choice(["a", "b", "elsewhere"], len(ids)), ids


def scores(model, asked, budget, rows, targets, groups, **more):
    given = asked | ({"groups": groups} if "group_names" in asked else {})
    return dpb.evaluate(model, (rows, targets), budget, **given, **more)


@KINDS
def test_without_noise_every_unit_counts_once(model, asked):
    """As if every unit had twelve rows: each of its own, three to twelve times."""
    rows, targets, groups, ids = table(model)
    units = scores(model, asked, EXACT, rows, targets, groups, units=ids, rows_per_unit=K)
    repeated = np.repeat(np.arange(len(ids)), 12 // np.unique(ids, return_counts=True)[1][ids])
    same = scores(model, asked, EXACT, rows[repeated], targets[repeated], groups[repeated])
    assert {*units.values} == {*asked["metric"]}
    for name in asked["metric"]:
        share = 1 / 12 if name == "calibration" else 1  # whose answer is numbers of records
        for one, other in zip(jax.tree.leaves(units.values[name]), jax.tree.leaves(same.values[name]), strict=True):
            # The edges of bins are public, not counted.
            assert np.allclose(one, share * np.asarray(other)) or np.array_equal(one, other), name
    assert units.records == UNITS


def test_every_metric_is_tried():
    assert {*CLASSES["metric"], *NUMBERS["metric"]} == {*METRICS}


@KINDS
def test_units_of_one_row_are_rows_bit_for_bit(model, asked):
    rows, targets, groups, ids = table(model)
    with pytest.warns(dpb.NotPrivateWarning):
        of_rows = scores(model, asked, BUDGET, rows, targets, groups, seed=3)
    with pytest.warns(dpb.NotPrivateWarning):
        one = scores(model, asked, BUDGET, rows, targets, groups, seed=3, units=np.arange(len(ids)), rows_per_unit=1)
    assert json.dumps(of_rows.to_json()["values"]) == json.dumps(one.to_json()["values"])
    assert of_rows.privacy.epsilon() == one.privacy.epsilon()
    assert "one unit" in one.privacy.sentence()
    assert "one record" in of_rows.privacy.sentence()


def planned(model, asked, listed=False):
    """The plan of scores, and the units that it is attacked with."""
    rows, targets, groups, ids = table(model)
    classes, names = classes_of(model), {name: value for name, value in asked.items() if name != "metric"}
    metrics = chosen_metrics(asked["metric"], model, classes, BUDGET, UNITS, Declared(**names))
    metrics = (*metrics, WithRows()) if listed else metrics
    places = np.array([["a", "b", "elsewhere"].index(group) for group in groups])
    stored = scored(metrics, model, rows, targets, classes, np.where(places < 2, places, -1))
    stored = jax.tree.map(lambda leaf: leaf.astype("float32") if leaf.dtype.kind == "f" else leaf, stored)
    held = jax.tree.map(jnp.asarray, Selection.of(ids, K).bundled(stored))
    return plan_scores(metrics, UNITS, BUDGET, "float").release, {"both": (held, jnp.ones(UNITS, bool))}


def largest(release, held):
    rng, role = np.random.default_rng(0), "both"
    return unit_neighbours.largest_ratio(unit_neighbours.compiled_answers(), release, None, rng, {role: held[role]})


@pytest.mark.parametrize("listed", [False, True])
@KINDS
def test_no_unit_moves_scores_by_more_than_the_sensitivity(model, asked, listed):
    found = largest(*planned(model, asked, listed))
    assert 0.3 < found <= 1 + 1e-6


@KINDS
def test_rows_that_are_clipped_one_by_one_are_noticed(model, asked, monkeypatch):
    monkeypatch.setattr(release_module, "clipped_sum", unit_neighbours.clipped_row_by_row)
    assert largest(*planned(model, asked)) > 1.1


def longest(release, held):
    """The largest norm of the contribution of a unit, over half of what metrics jointly have."""
    units, _ = held["both"]
    one = release.contributions["both"].per_record
    leaves = jax.tree.leaves(jax.vmap(lambda unit: one(None, unit))(units))
    squares = sum(jnp.sum(leaf.reshape(UNITS, -1) ** 2, axis=1) for leaf in leaves)
    return float(jnp.sqrt(jnp.max(squares))) / (NORM * math.sqrt(len(release.name.split(", "))))


@KINDS
def test_the_clip_leaves_every_unit_as_it_is(model, asked):
    """Otherwise scores would be of something else."""
    assert longest(*planned(model, asked)) <= 1 + 1e-6


@KINDS
def test_a_sum_over_rows_would_be_clipped(model, asked, monkeypatch):
    monkeypatch.setattr(evaluating, "mean_over_rows", sum_over_rows)
    assert longest(*planned(model, asked)) > 1.5


# --------------------------------------------------------------------------------------------- a list of all ids

LISTED = np.arange(3 * UNITS)  # two thirds of which have no rows


@KINDS
def test_without_noise_scores_are_those_of_the_units_with_rows(model, asked):
    rows, targets, groups, ids = table(model)
    of_rows = scores(model, asked, EXACT, rows, targets, groups, units=ids, rows_per_unit=K)
    found = scores(model, asked, EXACT, rows, targets, groups, units=ids, rows_per_unit=K, unit_ids=LISTED)
    assert (found.records, found.details["units with rows"]["number"]) == (len(LISTED), UNITS)
    assert {*found.values} == {*asked["metric"]} == {*found.meanings} == {*found.ranges}
    for one, other in zip(jax.tree.leaves(found.values), jax.tree.leaves(of_rows.values), strict=True):
        assert np.allclose(one, other, rtol=1e-9)
    assert "120 units, of which 40 ± 0 have rows" in found.summary()
    read = dpb.Evaluation.from_json(json.loads(json.dumps(found.to_json())))
    assert read.summary() == found.summary()


def test_a_list_changes_neighbours_and_what_is_released():
    """A unit may have no rows: that is a change of one unit, and not of their number."""
    rows, targets, _, ids = table(numbers)
    gone, asked = ids != 4, {"units": ids, "rows_per_unit": K, "unit_ids": LISTED, "metric": "loss", "loss_bound": 1.0}
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-3))
    one = dpb.evaluate(numbers, (rows, targets), BUDGET, ledger=ledger, **asked)
    other = dpb.evaluate(numbers, (rows[gone], targets[gone]), BUDGET, **asked | {"units": ids[gone]})
    assert one.records == other.records == len(LISTED)
    assert one.privacy.to_json() == other.privacy.to_json()
    assert [entry.rows_per_unit for entry in ledger.entries] == [K]
    alone = dpb.evaluate(numbers, (rows[:120], targets[:120]), BUDGET, metric="loss", loss_bound=1.0)
    assert one.privacy.epsilon() == pytest.approx(alone.privacy.epsilon())


def covers(metric, interval, truth, contributions, factor=1.0, runs=2000, level=0.9):
    """How often an interval of a list of units has the truth in it; ``contributions`` are of units with rows."""
    rng, number, fraction, noise = np.random.default_rng(0), 3000, 0.25, 0.002
    held = 0
    for _ in range(runs):
        having = rng.binomial(number, fraction)
        drawn = contributions[rng.integers(0, len(contributions), having)].sum(axis=0) / number
        answer = {metric.name: drawn + noise * rng.normal(size=drawn.shape)}
        answer[WithRows.name] = NORM * having / number + noise * rng.normal()
        own, own_noise, size = among_those_with_rows(answer, noise, number)
        low, high = interval(metric, own[metric.name], factor * own_noise, size, level)
        held += low <= truth <= high
    return held / runs


def of_accuracy(metric, answer, noise, number, level):
    return mean_interval(metric.value(answer, number), metric.standard_error(answer, noise, number), 1.0, number, level)


def of_quantiles(metric, answer, noise, number, level):
    return quantile_interval(metric.detail(answer, noise, number), "75%", number, level)


RIGHT = np.where(np.arange(100) < 93, NORM, -NORM)
ERRORS = ErrorQuantiles((0.0, 0.1, 0.2, 0.3, 0.4))
CELLS = NORM * np.eye(5)[np.repeat(np.arange(5), [30, 25, 20, 15, 10])]  # three quarters of errors are up to 0.3
COVERED = pytest.mark.parametrize(
    ("metric", "interval", "truth", "contributions"),
    [(Accuracy(), of_accuracy, 0.93, RIGHT), (ERRORS, of_quantiles, 0.3, CELLS)],
    ids=["accuracy", "quantiles"],
)


@COVERED
def test_intervals_among_units_with_rows_cover_the_noise_of_their_number(metric, interval, truth, contributions):
    assert covers(metric, interval, truth, contributions) > 0.88  # 0.9 less three deviations


def test_intervals_that_forget_the_noise_of_the_number_of_units_are_noticed():
    assert covers(Accuracy(), of_accuracy, 0.93, RIGHT, factor=0.5) < 0.88


# ------------------------------------------------------------------------------------- the charge, words, refusals


@pytest.mark.parametrize("most", [1, 2, K])
def test_the_model_is_called_on_a_public_number_of_rows_in_public_places(most):
    """A compiled model has the shape of its rows. One unit has 1 to 9 other rows, anywhere: no other call changes."""
    rows, targets, _, ids = table(numbers)
    rng, seen = np.random.default_rng(0), []

    def model(given):
        seen.append(given)
        return numbers(given)

    for fresh in (1, 2, 9):
        others = ids != 4
        places = np.sort(rng.integers(0, others.sum() + 1, size=fresh))
        pair = (
            np.insert(rows[others], places, rng.normal(size=(fresh, 1)), axis=0),
            np.insert(targets[others], places, 0),
        )
        dpb.evaluate(
            model,
            pair,
            EXACT,
            units=np.insert(ids[others], places, 4),
            rows_per_unit=most,
            metric="loss",
            loss_bound=1.0,
        )
    same = np.repeat(np.arange(UNITS), most) != 4
    for given in seen:
        assert given.shape == (UNITS * most, 1)
        assert np.array_equal(given[same], seen[0][same])


def frame(rows):
    return pytest.importorskip("pandas").DataFrame(rows, index=np.arange(len(rows))[::-1])


@pytest.mark.parametrize(
    "form", [frame, scipy.sparse.csr_matrix, scipy.sparse.coo_array, np.ndarray.tolist, dpb.EncodedRows, jnp.asarray]
)
def test_rows_of_units_keep_their_form(form):
    rows, targets, _, ids = table(numbers)
    asked = {"units": ids, "rows_per_unit": K, "metric": "loss", "loss_bound": 1.0}
    wanted = dpb.evaluate(numbers, (rows.astype(np.float32), targets), EXACT, **asked)
    given, seen = form(rows.astype(np.float32)), []

    def model(taken):
        seen.append(taken)
        return numbers(np.asarray(taken.toarray() if scipy.sparse.issparse(taken) else taken))

    found = dpb.evaluate(model, (given, targets), EXACT, **asked)
    assert found.values == wanted.values
    assert isinstance(seen[0], scipy.sparse.csr_array if form is scipy.sparse.coo_array else type(given))


def test_rows_that_have_no_places_are_refused():
    _, targets, _, ids = table(numbers)
    with pytest.raises(dpb.InvalidRecords, match="X must be an array, a data frame or a list to be scored by units"):
        dpb.evaluate(numbers, (set(range(len(ids))), targets), BUDGET, units=ids, rows_per_unit=K, **NUMBERS)


def test_the_charge_and_the_summary_name_the_unit():
    rows, targets, _, ids = table(numbers)
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-3))
    found = dpb.evaluate(numbers, (rows, targets), BUDGET, units=ids, rows_per_unit=K, ledger=ledger, **NUMBERS)
    assert [entry.rows_per_unit for entry in ledger.entries] == [K]
    assert "40 units" in found.summary()
    assert "a unit counts once, by the mean over its rows" in found.summary()
    assert "at most 4 are used" in found.summary()
    read = dpb.Evaluation.from_json(json.loads(json.dumps(found.to_json())))
    assert read.summary() == found.summary()
    with pytest.raises(dpb.InvalidArgument, match="protects rows"):
        dpb.evaluate(numbers, (rows, targets), BUDGET, ledger=ledger, **NUMBERS)


def test_scores_on_rows_of_a_model_that_protects_units_have_a_caveat():
    model, asked, budget = Classifier(), {"metric": "accuracy"}, dpb.Budget(8.0, 1e-4)
    rows, targets, groups, ids = table(model)
    model.privacy_ = dpb.Privacy({}, BUDGET, rows_per_unit=K)
    with pytest.warns(dpb.PrivacyLeakWarning, match="protected units .* protect single rows"):
        of_rows = scores(model, asked, budget, rows, targets, groups)
    assert "CAVEAT: the training of the model protected units" in of_rows.privacy.sentence()
    assert not scores(model, asked, budget, rows, targets, groups, units=ids, rows_per_unit=K).privacy.caveats
    assert len(caveats_without_units(Pipeline([("encoder", None), ("model", model)]), None)) == 1
    model.privacy_ = dpb.Privacy({}, BUDGET)
    assert not scores(model, asked, budget, rows, targets, groups).privacy.caveats


def test_noise_is_that_of_as_many_rows_whatever_the_bound():
    rows, targets, _, ids = table(numbers)
    pair, noises = (rows, targets), []
    for most in (1, 2, 64):
        found = dpb.evaluate(numbers, pair, BUDGET, units=ids, rows_per_unit=most, metric="loss", loss_bound=1.0)
        noises.append(found.standard_errors["loss"])
    first = slice(0, UNITS)
    alone = dpb.evaluate(numbers, (rows[first], targets[first]), BUDGET, metric="loss", loss_bound=1.0)
    assert set(noises) == {alone.standard_errors["loss"]}


def test_units_have_exact_noise_too():
    pytest.importorskip("opendp")
    rows, targets, _, ids = table(numbers)
    found = dpb.evaluate(numbers, (rows, targets), BUDGET, units=ids, rows_per_unit=K, noise="exact", **NUMBERS)
    assert found.privacy.exact_noise
    assert found.privacy.epsilon() <= BUDGET.epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rows_per_unit": 3}, "units: must be given"),
        ({"units": "ids"}, "rows_per_unit=None"),
        ({"units": "ids", "rows_per_unit": 0}, "rows_per_unit=0"),
        ({"unit_ids": ["a"]}, "unit_ids: must be left out without units"),
        ({"units": "ids", "rows_per_unit": 3, "unit_ids": ["secret 1"]}, "unit_ids: must list all ids"),
        ({"units": "ids", "rows_per_unit": 3, "unit_ids": ["secret 1"] * 2}, "an id is listed twice"),
        ({"units": "short", "rows_per_unit": 3}, "another length"),
        ({"units": "missing", "rows_per_unit": 3}, "none of them missing"),
        ({"units": "floats", "rows_per_unit": 3}, "floating-point"),
    ],
)
def test_bad_units_are_refused_before_the_charge_and_never_quoted(given, words):
    rows, targets, _, ids = table(numbers)
    names = np.char.add("secret ", ids.astype(str))
    kinds = {"ids": names, "short": names[1:], "missing": ["", *names[1:]], "floats": np.where(ids > 3, ids, np.nan)}
    given = given | ({"units": kinds[given["units"]]} if "units" in given else {})
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-3))
    with pytest.raises(dpb.InvalidArgument, match=words) as caught:
        dpb.evaluate(numbers, (rows, targets), BUDGET, ledger=ledger, metric="loss", loss_bound=1.0, **given)
    assert "secret" not in str(caught.value)
    assert ledger.entries == ()
