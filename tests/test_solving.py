"""The way through: charge before touching data, progress that says nothing, chunks that compile once."""

import functools
import io
import math
import sys

import jax
import numpy as np
import pytest
import rich.console
from support.problems import leak

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel import solving
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


def test_progress_bar_counts_releases_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    terminal = functools.partial(rich.console.Console, file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(rich.console, "Console", lambda **_: terminal())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    solve_leak()
    assert "DPBilevel" in screen.getvalue()
    uses = sum(release.uses for release in planned_leak().releases)
    assert f"{uses}/{uses}" in screen.getvalue()


@pytest.mark.parametrize(("rounds", "chunk"), [(1, 1), (19, 1), (40, 2), (200, 10), (211, 11), (100_000, 5000)])
def test_there_are_about_twenty_chunks_and_the_last_may_be_shorter(rounds, chunk):
    assert running.chunk_length(rounds) == chunk
    assert 1 <= -(-rounds // chunk) <= 20


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


# ------------------------------------------------------------------------------------------------ plans are executed


def planned_leak(**changes):
    case = leak()
    budget = changes.pop("budget", dpb.Budget(1.0, 1e-4))
    return dpb.plan(case.problem, case.records().sizes, budget, **{"method": METHOD, "start": case.start} | changes)


METHOD = leak().method(steps=4)


def bits(solution):
    return [(leaf.dtype, leaf.tobytes()) for leaf in jax.tree.leaves((solution.x, solution.y, solution.history))]


@pytest.mark.parametrize("changes", [{}, {"refit": dpb.Refit(steps=3)}, {"budget": dpb.Budget(math.inf)}])
def test_a_plan_runs_to_the_bits_of_its_problem(changes):
    case = leak()
    by_plan = dpb.solve(planned_leak(**changes), case.records(), seed=3)
    by_problem = solve_leak(seed=3, method=METHOD, **changes)
    assert bits(by_plan) == bits(by_problem)
    assert by_plan.privacy.to_json() == by_problem.privacy.to_json()
    assert (by_plan.parameters, by_plan.remarks, by_plan.result) == (
        by_problem.parameters,
        by_problem.remarks,
        by_problem.result,
    )


def test_a_plan_is_not_made_again(monkeypatch):
    planned = planned_leak()
    monkeypatch.setattr(solving, "prepare", lambda *_: pytest.fail("planned again"))
    assert dpb.solve(planned, leak().records()).history["x"].shape[0] == 4


def test_each_run_of_a_plan_has_its_own_noise_and_its_own_charge():
    planned, ledger = planned_leak(budget=dpb.Budget(0.4, 1e-4)), dpb.Ledger(dpb.Budget(1.0, 1e-4))
    one, other = (dpb.solve(planned, leak().records(), ledger=ledger) for _ in range(2))
    assert not np.allclose(one.history["x"], other.history["x"])
    assert len(ledger.entries) == 2
    with pytest.raises(dpb.BudgetExceeded):
        dpb.solve(planned_leak(budget=dpb.Budget(0.9, 1e-4)), leak().records(), ledger=ledger)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", dpb.Budget(2.0, 1e-4)),
        ("start", (np.zeros(3), np.zeros(3))),
        ("method", dpb.Tracking()),
        ("refit", None),
        ("noise", "exact"),
    ],
)
def test_what_a_plan_has_cannot_be_given_again(name, value):
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    with pytest.raises(dpb.InvalidArgument, match=rf"^{name}: must be left out, .* plan again with .*{name}="):
        dpb.solve(planned_leak(), leak().records(), ledger=ledger, **{name: value})
    assert not ledger.entries


def other_records():
    values = np.asarray(leak().data["lower"])
    return {
        "fewer": {"lower": values[:-1]},
        "more": {"lower": np.concatenate([values, values[:1]])},
        "wider": {"lower": np.concatenate([values, values], axis=1)},
        "integers": {"lower": values.astype(int)},
        "another role": {"both": values},
    }


def refused(records):
    """Whether a plan refuses records, before anything is charged."""
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    try:
        dpb.solve(planned_leak(), dpb.Records(**records), ledger=ledger)
    except Exception as error:
        expected = str(error).startswith("records: must have the shapes and dtypes that the plan was made for")
        return expected and not ledger.entries
    return False


@pytest.mark.parametrize("kind", other_records())
def test_records_of_other_shapes_are_refused_before_the_charge(kind):
    assert refused(other_records()[kind])


def test_a_twin_that_takes_any_records_is_noticed(monkeypatch):
    monkeypatch.setattr(solving, "for_records", lambda planned, records: planned)
    assert not any(map(refused, other_records().values()))


def test_a_plan_of_another_precision_is_refused():
    planned, records = planned_leak(), leak().records()
    with jax.enable_x64(True), pytest.raises(dpb.InvalidArgument, match="another setting of jax_enable_x64"):
        dpb.solve(planned, records)


def test_caveats_of_records_join_those_of_the_plan():
    values = np.asarray(leak().data["lower"])
    with pytest.warns(dpb.PrivacyLeakWarning):
        encoded = dpb.BoundedEncoder().fit_transform(values)
    planned = dpb.plan(leak().problem, dpb.RecordShapes(lower=encoded), dpb.Budget(1.0, 1e-4), start=leak().start)
    assert planned.privacy.caveats == ()
    records = dpb.Records(lower=encoded)
    with pytest.warns(dpb.PrivacyLeakWarning), pytest.raises(KeyError):
        dpb.solve(planned, records, ledger=Refusing(dpb.Budget(1.0, 1e-4)))
    assert solving.for_records(planned, records).privacy.caveats == records.caveats != ()


class Refusing(dpb.Ledger):
    """A ledger that ends a run at its charge."""

    def charge(self, *arguments, **options):
        raise KeyError


def test_a_solution_reports_what_was_charged_whatever_became_of_the_plans_statement():
    planned = planned_leak()
    planned.privacy.charges.clear()
    ledger = dpb.Ledger(dpb.Budget(1.0, 1e-4))
    solution = dpb.solve(planned, leak().records(), ledger=ledger)
    assert solution.privacy.epsilon() == pytest.approx(1.0)
    assert ledger.spent() == pytest.approx(1.0)


def test_a_run_without_a_budget_is_refused():
    with pytest.raises(dpb.InvalidArgument, match=r"^budget: must be dpb\.Budget"):
        dpb.solve(leak().problem, leak().records(), start=leak().start)
