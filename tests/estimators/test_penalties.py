"""Where penalties are searched for, and their upper limit: lower if validation rows have less signal than noise."""

import math

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.applications.regularization import PENALTIES
from dpbilevel.baselines import FixedDefault
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV, penalties

MIDDLE = math.exp(-5)


def planned(rows, **settings):
    model = DPLogisticRegressionCV(epsilon=1.0, classes=[0, 1], **{"method": dpb.Tracking()} | settings)
    return model.plan(rows=rows, columns=20)


def largest(plan):
    return plan.parameters["largest penalty"][0]


def test_few_rows_keep_to_the_lower_half_of_the_range():
    few, many = planned(2000), planned(50_000)
    assert few.parameters["validation pass: noise to signal"][0] > penalties.PASS_LIMIT
    assert many.parameters["validation pass: noise to signal"][0] < penalties.PASS_LIMIT
    assert [largest(few), largest(many)] == pytest.approx([MIDDLE, PENALTIES[1]])
    assert "more noise than signal" in few.parameters["largest penalty"][1]


def test_more_privacy_needs_more_rows():
    rows = 20_000
    assert largest(planned(rows)) > MIDDLE * 1.01
    assert DPRidgeCV(epsilon=0.1, method=dpb.Tracking()).plan(rows, 20).parameters["largest penalty"][
        0
    ] == pytest.approx(MIDDLE)


def test_without_noise_and_untuned_the_whole_range_is_kept():
    assert largest(planned(2000, method=FixedDefault())) == pytest.approx(PENALTIES[1])
    free = DPRidgeCV(epsilon=math.inf).plan(100, 20)
    assert largest(free) == pytest.approx(PENALTIES[1])
    assert "the end of the range" in free.parameters["largest penalty"][1]


def strayed(method):
    """Fits of a linear model that 2,250 rows tell well; of these seeds some lead penalties up."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(3000, 20)) / 20
    targets = 20 * rows @ draws.normal(size=20) + 3 * draws.normal(size=3000)
    scores = []
    for seed in range(6):
        model = DPRidgeCV(epsilon=0.5, data_norm=1.0, target_range=(-20, 20), random_state=seed, method=method)
        scores.append(model.fit(rows[750:], targets[750:]).score(rows[:750], targets[:750]))
    return scores


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpbilevel.NotPrivateWarning")
@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
def test_no_fit_loses_its_model_and_with_the_whole_range_one_does(monkeypatch):
    assert min(strayed(None)) > 0.4
    kept = strayed(dpb.Tracking())
    assert min(kept) > 0.4, kept
    monkeypatch.setattr(penalties, "PASS_LIMIT", math.inf)
    wide = strayed(dpb.Tracking())
    assert min(wide) < min(kept) - 0.2, wide


@pytest.mark.parametrize(
    ("classes", "groups", "columns", "searched"),
    [
        ([0, 1], None, 20, False),  # training stops where noise outweighs what is left to learn
        ([0, 1], range(20), 20, False),
        ([0, 1], None, 3000, False),  # too many columns for second moments: steps of Adam, one penalty
        ([0, 1], [0, 1] * 1500, 3000, True),
    ],
)
def test_penalties_are_searched_for_where_it_can_pay(classes, groups, columns, searched):
    model = DPLogisticRegressionCV(epsilon=3.0, classes=classes, groups=groups)
    plan = model.plan(rows=100_000, columns=columns)
    assert isinstance(plan.method, dpb.Tracking) == searched
    assert ("penalties" in plan.parameters) != searched
    assert plan.privacy.epsilon() == pytest.approx(3.0)


def test_several_penalties_are_not_searched_for_with_more_noise_than_signal():
    plan = DPLogisticRegressionCV(epsilon=0.3, classes=list(range(10)), groups=[0, 1] * 1500).plan(2000, 3000)
    assert isinstance(plan.method, dpb.Refit)
    assert "more noise than signal" in plan.parameters["penalties"][1]
