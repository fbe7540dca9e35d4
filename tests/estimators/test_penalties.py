"""The upper limit of penalties: lower if validation rows have less signal than noise, so that a model remains."""

import math

import numpy as np
import pytest

from dpbilevel.applications.regularization import PENALTIES
from dpbilevel.baselines import FixedDefault
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV, penalties

MIDDLE = math.exp(-5)


def planned(rows, **settings):
    model = DPLogisticRegressionCV(epsilon=1.0, classes=[0, 1], **settings)
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
    assert DPRidgeCV(epsilon=0.1).plan(rows, 20).parameters["largest penalty"][0] == pytest.approx(MIDDLE)


def test_without_noise_and_untuned_the_whole_range_is_kept():
    assert largest(planned(2000, method=FixedDefault())) == pytest.approx(PENALTIES[1])
    free = DPRidgeCV(epsilon=math.inf).plan(100, 20)
    assert largest(free) == pytest.approx(PENALTIES[1])
    assert "the end of the range" in free.parameters["largest penalty"][1]


def strayed():
    """Fits of a linear model that 2,250 rows tell well; of these seeds some lead penalties up."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(3000, 20)) / 20
    targets = 20 * rows @ draws.normal(size=20) + 3 * draws.normal(size=3000)
    scores = []
    for seed in range(6):
        model = DPRidgeCV(epsilon=0.5, data_norm=1.0, target_range=(-20, 20), random_state=seed)
        scores.append(model.fit(rows[750:], targets[750:]).score(rows[:750], targets[:750]))
    return scores


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpbilevel.NotPrivateWarning")
@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")
def test_no_fit_loses_its_model_and_with_the_whole_range_one_does(monkeypatch):
    kept = strayed()
    assert min(kept) > 0.4, kept
    monkeypatch.setattr(penalties, "PASS_LIMIT", math.inf)
    wide = strayed()
    assert min(wide) < 0.2, wide
