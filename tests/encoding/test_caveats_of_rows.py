"""What was not declared about encoded rows is a caveat of every result that rests on them, said before the charge."""

import warnings

import numpy as np
import pytest
from support.every_method import BUDGET, METHODS, N, data, solved

import dpbilevel as dpb
from dpbilevel.evaluation import evaluating

SLOW_TO_CALIBRATE = {"DPBilevel, without replacement", "Tracking, Poisson"}  # and otherwise as the same without batches
CAVEAT = "column 'value' was not declared"


def marked():
    """Records of the small problem, of which one array was encoded with a discovered range."""
    arrays = data()
    arrays["upper"] = dpb.EncodedRows(arrays["upper"], data_norm=1.0, caveats=[CAVEAT])
    return dpb.Records(**arrays)


@pytest.mark.filterwarnings("ignore::dpbilevel.NotPrivateWarning")
@pytest.mark.parametrize("name", [name for name in METHODS if name not in SLOW_TO_CALIBRATE])
def test_every_method_warns_of_them_before_the_charge(name):
    ledger = dpb.Ledger(BUDGET, composition="basic")
    records = marked()
    options = {} if name == "OracleHyperparameters" else {"ledger": ledger}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=CAVEAT, category=dpb.PrivacyLeakWarning)
        with pytest.raises(dpb.PrivacyLeakWarning, match=CAVEAT):
            solved(name, records, **options)
    assert ledger.entries == ()


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
@pytest.mark.parametrize("name", ["FixedDefault", "PrivateRandomSearch"])
def test_solutions_have_them(name):
    assert solved(name, marked()).privacy.caveats == (CAVEAT,)
    assert solved(name, dpb.Records(**data())).privacy.caveats == ()


def test_records_know_them_and_nothing_else_of_the_rows():
    assert marked().caveats == (CAVEAT,)
    assert dpb.Records(**data()).caveats == ()
    assert repr(marked()) == repr(dpb.Records(**data()))


# A table with one column that was not declared to the encoder. The last row is the one that changes.
LABELS = np.arange(N) % 2


def scored(last, budget, declared=None, ledger=None):
    """The score of a threshold in the middle of the encoded range: what one row far out does to it."""
    cells = np.where(LABELS == 1, 0.6, 0.4)
    cells[-1] = last
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.PrivacyLeakWarning)
        rows = dpb.BoundedEncoder(ranges=declared).fit_transform(cells[:, None])
    return dpb.evaluate(lambda rows: (np.asarray(rows)[:, 0] > 0).astype(int), (rows, LABELS), budget, ledger=ledger)


def test_a_discovered_range_lets_one_row_move_a_score_and_the_score_says_so():
    exact = dpb.Budget(float("inf"))
    with pytest.warns(dpb.PrivacyLeakWarning, match="was not declared"):
        moved = abs(scored(0.6, exact).values["accuracy"] - scored(1000.0, exact).values["accuracy"])
    assert moved > 0.4  # where one row can move an accuracy by 1/60
    ledger = dpb.Ledger(dpb.Budget(8.0, 1e-3))
    with pytest.warns(dpb.PrivacyLeakWarning, match="was not declared") as warned:
        released = scored(0.6, dpb.Budget(8.0, 1e-3), ledger=ledger)
    assert warned[0].filename == __file__
    assert len(released.privacy.caveats) == 1
    assert released.privacy.sentence().startswith("With caveats")
    assert "with 1 caveat" in repr(released)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dpb.PrivacyLeakWarning)
        assert scored(0.6, exact, {0: (0, 1)}).privacy.caveats == ()


def test_an_evaluation_that_warns_as_an_error_has_charged_nothing():
    ledger = dpb.Ledger(dpb.Budget(8.0, 1e-3))
    rows = dpb.EncodedRows(np.ones((N, 1)), caveats=[CAVEAT])
    with warnings.catch_warnings():
        warnings.simplefilter("error", dpb.PrivacyLeakWarning)
        with pytest.raises(dpb.PrivacyLeakWarning, match=CAVEAT):
            dpb.evaluate(lambda rows: np.zeros(len(rows)), (rows, LABELS), ledger.total, ledger=ledger)
    assert ledger.entries == ()


def test_an_evaluation_that_drops_them_is_noticed(monkeypatch):
    """The mutation: as it was, rows were scored and what they brought along was forgotten."""
    monkeypatch.setattr(evaluating, "caveats_of", lambda records: ())
    with pytest.raises(AssertionError):
        assert scored(0.6, dpb.Budget(float("inf"))).privacy.caveats
