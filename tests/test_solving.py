"""The way through: charge before touching data, progress that says nothing, chunks that compile once."""

import functools
import io
import math
import sys

import numpy as np
import pytest
import rich.console
from support.problems import leak

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.execution import running


def solve_leak(**changes):
    case = leak()
    arguments = {"method": case.method(steps=4), "start": case.start, "budget": dpb.Budget(1.0, 1e-4)} | changes
    return dpb.solve(case.problem, case.records(), arguments.pop("budget"), **arguments)


def test_ledger_is_charged_before_the_first_record_is_read(monkeypatch):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    seen = []

    def touched(*args, **kwargs):
        seen.append(len(ledger.entries))
        raise RuntimeError("stop at the first touch")

    monkeypatch.setattr(dpb.Records, "execute", touched)
    with pytest.raises(RuntimeError, match="first touch"):
        solve_leak(ledger=ledger, method=leak().method(steps=3))
    assert seen == [1]
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)  # no refund for a run that failed


def test_exhausted_ledger_refuses_before_the_first_record_is_read(monkeypatch):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    solve_leak(ledger=ledger)
    monkeypatch.setattr(dpb.Records, "execute", lambda *a, **k: pytest.fail("records were touched"))
    with pytest.raises(dpb.BudgetExceeded, match="epsilon 1 of 1 spent"):
        solve_leak(ledger=ledger, budget=dpb.Budget(0.01, 1e-4))


def test_runs_share_a_ledger_down_to_the_last_drop():
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    solve_leak(ledger=ledger, budget=dpb.Budget(0.4, 1e-4))
    solve_leak(ledger=ledger, budget=ledger.remaining())
    assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
    assert len(ledger.entries) == 2


def test_infinite_budget_does_not_fit_a_finite_ledger():
    with pytest.raises(dpb.BudgetExceeded):
        solve_leak(ledger=dpb.Ledger(dpb.Budget(1.0, 1e-4)), budget=dpb.Budget(math.inf))


def test_nothing_is_printed_where_there_is_no_terminal(capfd):
    solve_leak(progress=True)
    assert capfd.readouterr() == ("", "")


def test_progress_bar_counts_rounds_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    terminal = functools.partial(rich.console.Console, file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(rich.console, "Console", lambda **_: terminal())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    solve_leak()
    assert "DPBilevel" in screen.getvalue()
    assert "4/4" in screen.getvalue()


@pytest.mark.parametrize(("rounds", "chunk"), [(1, 1), (19, 1), (40, 2), (200, 10), (211, 1), (100_000, 5000)])
def test_chunks_are_equal_so_that_they_compile_once(rounds, chunk):
    assert running.chunk_length(rounds) == chunk
    assert rounds % chunk == 0


def test_chunks_do_not_change_the_result(monkeypatch):
    whole = solve_leak(seed=3)
    monkeypatch.setattr(running, "_CHUNKS", 1)
    np.testing.assert_array_equal(solve_leak(seed=3).history["x"], whole.history["x"])


def test_second_run_does_not_compile_again():
    case = leak()
    run = {"method": case.method(steps=4), "start": case.start}
    first = dpb.solve(case.problem, case.records(), dpb.Budget(1.0, 1e-4), **run)
    compiled = records_module._execute._cache_size()
    second = dpb.solve(case.problem, case.records(), dpb.Budget(1.0, 1e-4), **run)
    assert records_module._execute._cache_size() == compiled
    assert not np.allclose(first.history["x"], second.history["x"])


def test_history_is_the_released_trajectory():
    history = solve_leak().history
    assert set(history) == {"x", "move", "hypergradient_norm", "solution_distance"}
    assert all(len(values) == 4 for values in history.values())
