"""Scores on held-out private records: exact without noise, noisy as stated, charged first, and telling nothing else."""

import json
import math
import warnings

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    log_loss,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

import dpbilevel as dpb
from dpbilevel import records as records_module

BUDGET = dpb.Budget(1.0, 1e-5)
EXACT = dpb.Budget(math.inf)
ALL = ("accuracy", "loss", "calibration")
CLASSIFIER = ("accuracy", "loss", "brier", "auc", "group_accuracy")
REGRESSION = ("r2", "error_quantiles")


def data(classes=2, number=3000, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(number, 4))
    scores = rows @ rng.normal(size=(4, classes)) + rng.gumbel(size=(number, classes))
    return rows, np.argmax(scores, axis=1)


@pytest.fixture(scope="module")
def binary():
    """A public model, and private held-out records."""
    rows, labels = data()
    return LogisticRegression().fit(rows[:500], labels[:500]), (rows[500:], labels[500:])


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("classes", [2, 3])
def test_without_noise_the_scores_are_those_of_scikit_learn(classes):
    rows, labels = data(classes)
    model = LogisticRegression().fit(rows[:500], labels[:500])
    released = dpb.evaluate(model, (rows, labels), EXACT, metric=("accuracy", "loss"))
    assert released.values["accuracy"] == pytest.approx(accuracy_score(labels, model.predict(rows)), rel=1e-12)
    assert released.values["loss"] == pytest.approx(log_loss(labels, model.predict_proba(rows)), rel=1e-12)
    assert released.standard_errors == {"accuracy": 0.0, "loss": 0.0}


def test_without_noise_the_squared_error_is_that_of_scikit_learn():
    rows, _ = data()
    targets = rows @ np.arange(4) + 1e3
    model = LinearRegression().fit(rows[:50], np.sin(targets[:50]))
    for asked in (model, model.predict):
        released = dpb.evaluate(asked, (rows, targets), EXACT, metric="loss", loss_bound=4.0)
        assert released.values["loss"] == pytest.approx(mean_squared_error(targets, model.predict(rows)), rel=1e-12)


def test_bins_give_the_expected_calibration_error(binary):
    model, (rows, labels) = binary
    bins = dpb.evaluate(model, (rows, labels), EXACT, metric="calibration", bins=7).values["calibration"]
    likely = model.predict_proba(rows)[:, 1]
    place = np.minimum((likely * 7).astype(int), 6)
    expected = sum(abs(likely[place == b].mean() - labels[place == b].mean()) * np.mean(place == b) for b in range(7))
    error = np.abs(bins["probability"] - bins["positives"]).sum() / bins["records"].sum()
    assert error == pytest.approx(expected, rel=1e-9)


def test_bins_have_intervals_wherever_they_are_shown(binary):
    released = dpb.evaluate(*binary, dpb.Budget(3.0, 1e-4), metric="calibration", bins=4, seed=2)
    low, high = released.interval("calibration", part="0.75 to 1")
    share = released.values["calibration"]["positives"][-1] / released.values["calibration"]["records"][-1]
    assert 0 <= low < share < high <= 1
    assert f"{low:.3g} to {high:.3g}" in released.summary()
    kept = dpb.Evaluation.from_json(json.loads(json.dumps(released.to_json())))
    assert kept.interval("calibration", part="0.75 to 1") == (low, high)
    assert "calibration, 0.75 to 1" in released.to_json()["intervals"]["dict"]


def test_the_positive_class_may_be_declared(binary):
    model, (rows, labels) = binary
    bins = dpb.evaluate(model, (rows, labels), EXACT, metric="calibration", positive_class=0).values["calibration"]
    assert bins["positives"].sum() == pytest.approx(np.sum(labels == 0))
    assert bins["probability"].sum() == pytest.approx(model.predict_proba(rows)[:, 0].sum())


def test_all_scores_without_noise_are_those_of_scikit_learn(binary):
    model, (rows, labels) = binary
    likely, group = model.predict_proba(rows)[:, 1], np.where(rows[:, 1] > 1, "few", "many")
    asked = {"metric": CLASSIFIER, "groups": group, "group_names": ["few", "many", "none"]}
    found = dpb.evaluate(model, (rows, labels), EXACT, edges=np.linspace(0, 1, 5001), **asked)
    assert found.values["auc"] == pytest.approx(roc_auc_score(labels, likely), abs=1e-4)
    assert found.values["brier"] == pytest.approx(brier_score_loss(labels, likely), rel=1e-9)
    right = model.predict(rows) == labels
    for name in ("few", "many"):
        assert found.values["group_accuracy"][name] == pytest.approx(right[group == name].mean())
        low, high = found.interval("group_accuracy", part=name)
        assert low < found.values["group_accuracy"][name] < high
    assert found.values["group_accuracy"]["none"] == 0.5  # nothing is known about a group without records
    assert found.interval("group_accuracy", part="none") == (0.0, 1.0)


def test_all_scores_of_a_regression_without_noise_are_those_of_scikit_learn():
    rows, _ = data()
    targets = np.clip(rows @ np.arange(4), -10, 10)
    model = LinearRegression().fit(rows[:50], targets[:50] + np.sin(rows[:50, 1]))
    asked = {"metric": REGRESSION, "target_range": (-10, 10)}
    found = dpb.evaluate(model, (rows, targets), EXACT, edges=np.linspace(0, 20, 4001), **asked)
    assert found.values["r2"] == pytest.approx(r2_score(targets, model.predict(rows)), rel=1e-9)
    errors = np.abs(model.predict(rows) - targets)
    for name, level in (("50%", 0.5), ("90%", 0.9)):
        assert found.values["error_quantiles"][name] == pytest.approx(np.quantile(errors, level), abs=0.02)


def test_the_same_scores_with_noise_are_near_and_within_their_intervals(binary):
    """Intervals of 1 - 1e-6, so that a false alarm is rare; the noise of each score is about what is stated."""
    model, (rows, labels) = binary
    asked = {"metric": CLASSIFIER, "groups": rows[:, 1] > 0, "group_names": [False, True]}
    noisy = dpb.evaluate(model, (rows, labels), dpb.Budget(4.0, 1e-5), seed=5, **asked)
    exact = dpb.evaluate(model, (rows, labels), EXACT, **asked)
    for name, part in (("accuracy", None), ("brier", None), ("auc", None), ("group_accuracy", "True")):
        low, high = noisy.interval(name, 1 - 1e-6, part=part)
        true, found, error = (
            one[name] if part is None else one[name][part]
            for one in (exact.values, noisy.values, noisy.standard_errors)
        )
        assert low <= true <= high
        assert abs(found - true) <= 5 * error + (0.01 if name == "auc" else 0)  # other bins
        assert error < 0.05


def test_several_numbers_are_shown_one_per_line(binary, tmp_path):
    model, (rows, labels) = binary
    asked = {"metric": CLASSIFIER, "groups": np.where(rows[:, 1] > 0, "Oslo", "Rome"), "group_names": ["Oslo", "Rome"]}
    found = dpb.evaluate(model, (rows, labels), BUDGET, **asked)
    for words in ("group_accuracy, Oslo", "group_accuracy, Rome", "± ", "records", "brier", "bins of scores"):
        assert words in found.summary()
    assert "group_accuracy, Rome 0." in repr(found)
    content = json.loads(found.save(tmp_path / "scores.json").read_text())
    assert set(content["intervals"]["dict"]) == {
        *("accuracy", "loss", "brier", "auc", "group_accuracy, Oslo", "group_accuracy, Rome")
    }
    for words, arguments in {
        "part=None: must be one of 'Oslo', 'Rome'": ("group_accuracy",),
        "part='Paris': must be one of": ("group_accuracy", 0.9, "Paris"),
        "part='Oslo': must be left out": ("auc", 0.9, "Oslo"),
    }.items():
        with pytest.raises(dpb.InvalidArgument, match=words):
            found.interval(*arguments[:2], part=arguments[2] if len(arguments) > 2 else None)


@pytest.mark.parametrize("rare", [0.02, 0.5])
def test_bins_of_the_auc_are_public_and_serve_rare_classes(rare):
    """They depend on the number of records and the budget alone; a rare class has low scores, in bins of their own."""
    rng = np.random.default_rng(6)
    labels = (rng.random(20_000) < rare).astype(int)
    odds = rng.normal(size=20_000) + 1.5 * labels + np.log(rare / (1 - rare))
    rows, budget = 1 / (1 + np.exp(-odds)), dpb.Budget(2.0, 1e-6)
    found = dpb.evaluate(Scores(), (rows, labels), budget, metric="auc", seed=1)
    fewer = np.sin(np.linspace(0, np.pi / 2, 31)) ** 2
    fewer = dpb.evaluate(Scores(), (rows, labels), budget, metric="auc", edges=[0, *fewer[1:-1], 1], seed=1)
    for one, width in ((found, 0.03 if rare == 0.5 else 0.25), (fewer, 0.07 if rare == 0.5 else 0.2)):
        low, high = one.interval("auc")
        assert low < roc_auc_score(labels, odds) < high
        assert high - low < width
    others = dpb.evaluate(Scores(), (rng.random(20_000), labels), dpb.Budget(2.0, 1e-6), metric="auc", seed=1)
    np.testing.assert_array_equal(found.details["auc"]["edges"], others.details["auc"]["edges"])


class Scores:
    """A classifier whose rows are its probabilities."""

    classes_ = np.array([0, 1])

    def predict(self, rows):
        return (rows > 0.5).astype(int)

    def predict_proba(self, rows):
        return np.stack([1 - rows, rows], axis=1)


def test_a_label_that_the_model_does_not_know_is_wrong_at_the_bound(binary):
    model, (rows, labels) = binary
    unknown = np.where(np.arange(len(labels)) < 100, 9, labels)
    known = dpb.evaluate(model, (rows[100:], labels[100:]), EXACT, metric=("accuracy", "loss"))
    right = known.values["accuracy"] * (len(labels) - 100)
    sure = dpb.Budget(1e7, 1e-5)  # noise of no size, with clipping
    released = dpb.evaluate(model, (rows, unknown), sure, metric=("accuracy", "loss"), loss_bound=30.0)
    assert released.values["accuracy"] == pytest.approx(right / len(labels), abs=1e-4)
    clean = known.values["loss"] * (len(labels) - 100)
    assert released.values["loss"] == pytest.approx((clean + 100 * 30.0) / len(labels), abs=1e-3)


def test_losses_are_clipped_to_the_public_bound():
    targets = np.array([0.0] * 900 + [100.0] * 100)
    released = dpb.evaluate(
        lambda rows: 0 * rows, (targets, targets), dpb.Budget(1e7, 1e-5), metric="loss", loss_bound=2.0
    )
    assert released.values["loss"] == pytest.approx(0.2, abs=1e-5)


# -------------------------------------------------------------------------------------------------------------- noise


def numbers(evaluation):
    """All released numbers in a row, and all standard errors in the same order."""
    parts = [(evaluation.values[name], evaluation.standard_errors[name]) for name in ("accuracy", "loss")]
    bins, errors = evaluation.values["calibration"], evaluation.standard_errors["calibration"]
    parts += [(bins[name], errors[name]) for name in errors]
    return (np.concatenate([np.atleast_1d(part) for part in column]) for column in zip(*parts, strict=True))


def deviations(runs=300):
    """Noise over stated standard error, runs in rows, released numbers in columns; none is near its range's end."""
    rng = np.random.default_rng(3)
    likely = rng.random(6_000)
    labels = (rng.random(6_000) < likely).astype(int)

    class Public:
        classes_ = np.array([0, 1])

        def predict(self, rows):
            return (rows > 0.5).astype(int)

        def predict_proba(self, rows):
            return np.stack([1 - rows, rows], axis=1)

    ask = {"metric": ALL, "bins": 4, "loss_bound": 20.0}
    truth, _ = numbers(dpb.evaluate(Public(), (likely, labels), EXACT, **ask))
    found = []
    for seed in range(runs):
        values, errors = numbers(dpb.evaluate(Public(), (likely, labels), BUDGET, seed=seed, **ask))
        found.append((values - truth) / errors)
    return np.array(found)


def looks_standard(found):
    """Mean zero and variance one, column by column; a false alarm in one of a million sound releases."""
    runs, columns = found.shape
    alarm = 1e-6 / (4 * columns)
    squares = runs * found.var(axis=0)
    centred = np.all(np.abs(found.mean(axis=0)) <= norm.isf(alarm) / math.sqrt(runs))
    return centred and np.all((chi2.ppf(alarm, runs - 1) <= squares) & (squares <= chi2.isf(alarm, runs - 1)))


@pytest.fixture(scope="module")
def noise():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        return deviations()


def test_noise_has_the_stated_mean_and_standard_deviation(noise):
    assert looks_standard(noise)


@pytest.mark.parametrize("broken", [lambda z: 0.7 * z, lambda z: 1.4 * z, lambda z: z + 0.4], ids=["-", "+", "shift"])
def test_the_noise_test_sees_a_wrong_scale_and_a_shift(noise, broken):
    assert not looks_standard(broken(noise))


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("metric", ["accuracy", "loss", ("accuracy", "loss"), ALL], ids=str)
def test_stated_errors_follow_from_the_budget_by_hand(binary, metric, adjacency):
    """sigma = sensitivity/mu; k metrics share mu^2 equally, and each has its own range."""
    budget = dpb.Budget(1.0, 1e-5, adjacency)
    released = dpb.evaluate(*binary, budget, metric=metric, loss_bound=3.0, bins=5)
    shares = math.sqrt(1 if isinstance(metric, str) else len(metric))
    one = (1.0 if adjacency == "replace-one" else 0.5) * (1 + 2**-7) / (len(binary[1][1]) * budget.mu) * shares
    expected = {"accuracy": one, "loss": 3.0 * one}
    for name in set(expected) & set(released.values):
        assert released.standard_errors[name] == pytest.approx(expected[name], rel=1e-6)
    if "calibration" in released.values:
        largest = math.sqrt(1 + 0.1**2 + 0.25)
        records = 2 * largest * one * len(binary[1][1])
        np.testing.assert_allclose(released.standard_errors["calibration"]["records"], records, rtol=1e-6)
    assert released.privacy.epsilon() == pytest.approx(1.0, abs=1e-6)


def test_noise_that_hides_the_score_is_said_with_the_rows_it_would_need(binary):
    model, (rows, labels) = binary
    small = (rows[:100], labels[:100])
    budget = dpb.Budget(0.1, 1e-5)
    with pytest.warns(dpb.UtilityWarning, match="would need") as heard:
        noisy = dpb.evaluate(model, small, budget)
    assert heard[0].filename == __file__
    needed = int(str(heard[0].message).split("would need ")[1].split(" rows")[0].replace(",", ""))
    assert needed == math.ceil(100 * noisy.standard_errors["accuracy"] / 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dpb.evaluate(lambda rows: rows, (np.zeros(needed), np.zeros(needed)), budget)


# ----------------------------------------------------------------------------------------------------------- interval


def coverage(metric, interval, runs=400):
    """In how many of fresh samples, with fresh noise, an interval of level 0.9 holds the mean of the population."""
    rng = np.random.default_rng(5)
    budget, held = dpb.Budget(0.7, 1e-4), 0  # noise about as large as the spread of samples
    for seed in range(runs):
        if metric == "accuracy":
            truth, targets = 0.93, (rng.random(250) < 0.93).astype(float)
            released = dpb.evaluate(np.ones_like, (targets, targets), budget, seed=seed)
        else:  # errors of 0 or the bound: the law for which the bound on the variance is exact
            truth, targets = 0.3, 1.5 * (rng.random(250) < 0.3 / 1.5**2)
            released = dpb.evaluate(
                np.zeros_like, (targets, targets), budget, metric="loss", loss_bound=1.5**2, seed=seed
            )
        low, high = interval(released, metric)
        held += low <= truth <= high
    return held


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_intervals_cover_noise_and_sampling(metric):
    """A false alarm in one of a million; and no wider than they need to be."""
    held = coverage(metric, lambda released, name: released.interval(name, 0.9))
    assert binom.ppf(1e-6, 400, 0.9) <= held <= binom.isf(1e-6, 400, 0.95)


def noise_alone(released, name):
    half = norm.isf(0.05) * released.standard_errors[name]
    return released.values[name] - half, released.values[name] + half


def sampling_alone(released, name):
    silent = dict(released.standard_errors) | {name: 0.0}
    return dpb.Evaluation(**(vars(released) | {"standard_errors": silent})).interval(name, 0.9)


@pytest.mark.parametrize("broken", [noise_alone, sampling_alone])
def test_intervals_that_forget_noise_or_sampling_are_caught(broken):
    assert coverage("accuracy", broken) < binom.ppf(1e-6, 400, 0.9)


def test_intervals_stay_within_the_possible_range_and_grow_with_the_level():
    sure = dpb.evaluate(np.ones_like, (np.ones(200), np.ones(200)), dpb.Budget(1.0, 1e-4), seed=1)
    low, high = sure.interval("accuracy")
    assert 0 <= low < sure.values["accuracy"] <= high <= 1
    wider = sure.interval("accuracy", 0.999)
    assert wider[0] < low
    assert wider[1] == 1.0


def test_intervals_that_make_no_sense_are_refused(binary):
    released = dpb.evaluate(*binary, BUDGET, metric=("accuracy", "calibration"))
    for name in ("loss", 3):
        with pytest.raises(dpb.InvalidArgument, match="must be one of 'accuracy'"):
            released.interval(name)
    for part in (None, "0 to 1"):
        with pytest.raises(dpb.InvalidArgument, match=r"must be one of '0 to 0\.1', '0\.1 to 0\.2'"):
            released.interval("calibration", part=part)
    for level in (0.0, 1.0, 95, "0.95"):
        with pytest.raises(dpb.InvalidArgument, match="level="):
            released.interval("accuracy", level)
    with pytest.raises(dpb.InvalidArgument, match="no interval without privacy"):
        dpb.evaluate(*binary, EXACT, metric="loss").interval("loss")


# ------------------------------------------------------------------------------------------------------------- charge


class Asked:
    """A model that counts how often it is asked, and what the ledger held then."""

    def __init__(self, ledger):
        self.ledger, self.entries = ledger, []

    def predict(self, rows):
        self.entries.append(len(self.ledger.entries))
        return rows


def test_the_ledger_is_charged_before_the_release_is_evaluated(monkeypatch):
    ledger, seen = dpb.Ledger(BUDGET), []

    def touched(*args, **kwargs):
        seen.append(len(ledger.entries))
        raise RuntimeError("stop at the first touch")

    monkeypatch.setattr(dpb.Records, "execute", touched)
    with pytest.raises(RuntimeError, match="first touch"):
        dpb.evaluate(np.ones_like, (np.ones(500), np.ones(500)), BUDGET, ledger=ledger)
    assert seen == [1]
    assert ledger.entries[0].description == "evaluation"
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)  # no refund


def test_an_exhausted_ledger_refuses_and_nothing_is_released(monkeypatch):
    ledger = dpb.Ledger(BUDGET)
    rows, model = np.ones(500), Asked(ledger)
    dpb.evaluate(model, (rows, rows), BUDGET, ledger=ledger)
    monkeypatch.setattr(dpb.Records, "execute", lambda *a, **k: pytest.fail("records were touched"))
    with pytest.raises(dpb.BudgetExceeded, match="epsilon 1 of 1 spent"):
        dpb.evaluate(model, (rows, rows), dpb.Budget(0.5, 1e-5), ledger=ledger)
    assert model.entries == [0, 1]  # predictions come first, so that a model which fails costs nothing
    with pytest.raises(dpb.BudgetExceeded):
        dpb.evaluate(model, (rows, rows), EXACT, ledger=ledger)


def test_a_joint_release_is_one_charge_and_cheaper_than_two(binary):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-5))
    joint = dpb.evaluate(*binary, BUDGET, metric=("accuracy", "loss"), ledger=ledger)
    assert len(ledger.entries) == 1
    assert [len(charges) for charges in joint.privacy.charges.values()] == [1]
    alone = dpb.evaluate(*binary, BUDGET, metric="accuracy")
    assert joint.standard_errors["accuracy"] == pytest.approx(math.sqrt(2) * alone.standard_errors["accuracy"])


def test_training_and_evaluation_share_a_ledger():
    from support.problems import leak

    case, ledger = leak(), dpb.Ledger(dpb.Budget(1.0, 1e-5))
    half = dpb.Budget(0.5, 1e-5)
    dpb.solve(case.problem, case.records(), half, method=case.method(steps=2), start=case.start, ledger=ledger)
    dpb.evaluate(np.ones_like, (np.ones(500), np.ones(500)), ledger.remaining(), ledger=ledger)
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
    assert len(ledger.entries) == 2


def test_the_relation_must_be_that_of_the_ledger():
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-5, "zero-out"))
    with pytest.raises(dpb.InvalidArgument, match="adjacency='replace-one'"):
        dpb.evaluate(np.ones_like, (np.ones(500), np.ones(500)), BUDGET, ledger=ledger)


def test_a_second_score_of_the_same_kind_does_not_compile_again(binary):
    first = dpb.evaluate(*binary, BUDGET)
    compiled = records_module._execute._cache_size()
    second = dpb.evaluate(*binary, BUDGET)
    assert records_module._execute._cache_size() == compiled
    assert first.values != second.values


# ----------------------------------------------------------------------------------------------------- what it tells


def test_a_fixed_seed_repeats_the_noise_and_voids_privacy(binary, tmp_path):
    with pytest.warns(dpb.NotPrivateWarning, match="NOT private") as heard:
        released = dpb.evaluate(*binary, BUDGET, seed=4)
    assert heard[0].filename == __file__
    assert released.values == dpb.evaluate(*binary, BUDGET, seed=4).values
    for one in (released, dpb.evaluate(*binary, EXACT)):
        assert one.privacy.void
        assert "NOT PRIVATE" in repr(one)
        assert "NOT PRIVATE" in one.summary()
        assert json.loads(one.save(tmp_path / "run.json").read_text())["privacy"]["dict"]["private"] is False


def test_a_private_evaluation_states_its_guarantee(binary):
    released = dpb.evaluate(*binary, BUDGET, metric=ALL)
    assert not released.privacy.void
    assert not released.privacy.caveats
    assert repr(released).startswith("Evaluation(accuracy 0.")
    assert repr(released).endswith("on 2,500 records; (1, 1e-05)-DP, replace-one, one record)")
    for words in ("(1, 1e-05)-differentially private", "mean log-loss", "0.9 to 1 ", "95% interval"):
        assert words in released.summary()
    with pytest.raises(AttributeError):
        released.values = {}


def test_only_released_values_are_reported(tmp_path):
    """A sentinel in a row and in a target, a model that hands it on: it appears nowhere."""
    rows = np.where(np.arange(1000) == 7, 0.7654321, np.linspace(0, 1, 1000))
    released = dpb.evaluate(lambda rows: rows, (rows, rows**2), BUDGET, metric=("loss", "accuracy"), loss_bound=1.0)
    content = released.save(tmp_path / "run.json").read_text()
    for text in (content, repr(released), released.summary(), str(vars(released))):
        assert "0.76543" not in text
    assert set(json.loads(content)) == {
        *("format", "version", "records", "privacy"),
        *("values", "standard_errors", "intervals", "ranges", "meanings", "details"),
    }
    exact = dpb.evaluate(lambda rows: rows, (rows, rows**2), EXACT, metric="loss", loss_bound=1.0).values["loss"]
    assert f"{exact:.12f}"[:-1] not in content


def test_saved_numbers_keep_every_bit(binary, tmp_path):
    from dpbilevel.solution.trees import decoded

    for budget in (BUDGET, EXACT):
        released = dpb.evaluate(*binary, budget, metric=ALL)
        content = json.loads(released.save(tmp_path / "run.json").read_text())
        values = decoded(content["values"])
        assert values["loss"] == released.values["loss"]
        np.testing.assert_array_equal(
            values["calibration"]["records"], released.values["calibration"]["records"], strict=True
        )
        assert dpb.Privacy.from_json(decoded(content["privacy"])).epsilon() == released.privacy.epsilon()
        assert decoded(content["ranges"]) == dict(released.ranges)
