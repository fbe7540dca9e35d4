"""The one loop: whatever runs is charged first, by every way to run something."""

import numpy as np
import pytest
from support.problems import leak

import dpbilevel as dpb
from dpbilevel import baselines
from dpbilevel.estimators import DPRidgeCV
from dpbilevel.execution import running
from dpbilevel.privacy.ledger import Receipt

BUDGET = dpb.Budget(1.0, 1e-4)
ROWS = np.linspace(-0.5, 0.5, 120).reshape(60, 2)
PROBLEM = dpb.BilevelProblem(
    upper_loss=lambda x, y, record: 0.5 * (y - record) ** 2,
    lower_loss=lambda x, y, record: 0.5 * (y - x * record) ** 2,
)


def solve(ledger):
    case = leak(60)
    dpb.solve(case.problem, case.records(), BUDGET, start=case.start, method=case.method(steps=2), ledger=ledger)


def solve_a_plan(ledger):
    case = leak(60)
    planned = dpb.plan(case.problem, case.records().sizes, BUDGET, start=case.start, method=case.method(steps=2))
    dpb.solve(planned, case.records(), ledger=ledger)


def evaluate(ledger):
    dpb.evaluate(lambda rows: rows[:, 0] > 0, (ROWS, ROWS[:, 0] > 0.1), BUDGET, ledger=ledger)


def search(ledger):
    records = dpb.Records(upper=np.full(60, 0.5), lower=np.full(60, 0.5))
    searched = baselines.PrivateRandomSearch(candidates=[0.0, 1.0], mean_runs=3.0, training=dpb.Refit(steps=2))
    for seed in range(20):  # until one has at least one run
        searched.solve(PROBLEM, records, BUDGET, start=(0.0, 0.0), ledger=ledger, seed=seed)


def fit(ledger):
    model = DPRidgeCV(delta=1e-4, data_norm=1.0, target_range=(-1, 1), method=dpb.Refit(steps=2), ledger=ledger)
    model.fit(ROWS, ROWS[:, 0])


class Touched(Exception):
    """The first access to a record."""


@pytest.fixture(autouse=True)
def _few_rows_are_fine():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.UtilityWarning)
        yield


def charged_at_first_touch(way, monkeypatch):
    """The number of charges when the first record is read."""
    ledger = dpb.Ledger(BUDGET)
    monkeypatch.setattr(dpb.Records, "execute", lambda *_: (_ for _ in ()).throw(Touched))
    with pytest.raises(Touched):
        way(ledger)
    return len(ledger.entries)


WAYS = (solve, solve_a_plan, evaluate, search, fit)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_run_charges_before_the_first_record_is_read(way, monkeypatch):
    assert charged_at_first_touch(way, monkeypatch) == 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_loop_that_charges_nothing_is_noticed(way, monkeypatch):
    monkeypatch.setattr(running.Ledger, "charge", lambda self, releases, *_, **__: Receipt(releases))
    assert charged_at_first_touch(way, monkeypatch) == 0


def test_a_loop_runs_what_was_charged_and_nothing_else(monkeypatch):
    """A receipt is for its releases: a program that was not charged is refused."""
    case = leak(60)
    records = case.records()
    plans = [
        dpb.plan(case.problem, records.sizes, BUDGET, start=case.start, method=case.method(steps=steps))
        for steps in (2, 3)
    ]
    monkeypatch.setattr(running, "charge", lambda *_: Receipt(plans[1].releases))
    with pytest.raises(dpb.DPBilevelError, match=r"charge"):
        dpb.solve(plans[0], records)
