"""The ledger of a data set: what runs cost together, and that nothing gets past it."""

import contextlib
import copy
import math
import pickle
import re
import threading
import time

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import dpbilevel as dpb
from dpbilevel.errors import NotCharged
from dpbilevel.privacy import ledger as ledger_module
from dpbilevel.privacy.accounting import all_charges, gaussian_epsilon
from dpbilevel.privacy.calibration import calibrate
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.release import Release

ADJACENCIES = ("replace-one", "zero-out")
TOTAL = dpb.Budget(2.0, 1e-6)
ROUNDING = 1 + 2**-7  # what a release adds to its clip for rounding


def release(
    *, noise: float, steps: int = 1, rate: float = 1.0, adjacency: str = "replace-one", **clips: float
) -> Release:
    """A release on 1,000 records in each role, with the clip by role."""
    return dpb.Release(
        name="release",
        contributions={
            role: dpb.Contribution(lambda point, record: record, clip, 1000) for role, clip in clips.items()
        },
        noise_std=noise,
        uses=steps,
        sampling=dpb.Poisson(rate) if rate < 1 else dpb.FullBatch(),
        adjacency=adjacency,
    )


def run_of(mu: float, steps: int = 1, adjacency: str = "replace-one") -> Release:
    """A release whose uses are mu-GDP together: noise set by hand, not by calibration."""
    bare = release(noise=1.0, steps=steps, adjacency=adjacency, lower=1.0)
    return bare.scaled(bare.sensitivity("lower") * math.sqrt(steps) / mu)


def charge(ledger: dpb.Ledger, budget: dpb.Budget) -> Receipt:
    """Charge a run that is calibrated to its budget."""
    bare = release(noise=1.0, lower=1.0, adjacency=budget.adjacency)
    return ledger.charge(calibrate([bare], budget), budget, "run")


def share_of(total: dpb.Budget, share: float) -> dpb.Budget:
    """The budget whose mu^2 is a share of the total's."""
    return dpb.Budget(gaussian_epsilon(total.mu * math.sqrt(share), total.delta), total.delta, total.adjacency)


# --- what runs cost together -------------------------------------------------------------------------------------

# Runs as lists of (noise, steps, clips by role). In the two-role case another role is the most expensive in each run.
RUNS = {
    "one role": [
        [(0.02, 10, {"lower": 1.0}), (0.05, 3, {"lower": 2.0})],
        [(0.03, 1, {"lower": 4.0})],
        [(0.01, 5, {"lower": 0.5})],
    ],
    "two roles": [
        [(0.02, 5, {"upper": 2.0, "lower": 1.0})],
        [(0.02, 5, {"upper": 0.5, "lower": 1.5}), (0.03, 2, {"upper": 1.0})],
        [(0.05, 4, {"lower": 2.0})],
    ],
}


def squared_mu(declared: list[tuple[float, int, dict[str, float]]], adjacency: str) -> float:
    """mu^2 of a run by hand: the most expensive role's sum of (sensitivity/noise)^2."""
    vectors = 2 if adjacency == "replace-one" else 1
    return max(
        sum(steps * (vectors * clips.get(role, 0.0) * ROUNDING / 1000 / noise) ** 2 for noise, steps, clips in declared)
        for role in ("upper", "lower")
    )


def squared_mus(case: str, adjacency: str) -> list[float]:
    return [squared_mu(declared, adjacency) for declared in RUNS[case]]


def ledger_after(case: str, adjacency: str) -> dpb.Ledger:
    ledger = dpb.Ledger(dpb.Budget(20.0, 1e-6, adjacency))
    for declared in RUNS[case]:
        releases = [release(noise=noise, steps=steps, adjacency=adjacency, **clips) for noise, steps, clips in declared]
        ledger.charge(releases, dpb.Budget(20.0, 1e-6, adjacency), "run")
    return ledger


def spends_what_the_closed_formula_says(case: str, adjacency: str) -> bool:
    expected = gaussian_epsilon(math.sqrt(sum(squared_mus(case, adjacency))), 1e-6)
    return bool(abs(ledger_after(case, adjacency).spent() - expected) < 1e-6)


def spends_what_an_independent_accountant_says(case: str, adjacency: str) -> bool:
    # PLDAccountant reads noise over one record's share, and doubles by itself under replace-one.
    relation = {"replace-one": "REPLACE_ONE", "zero-out": "REPLACE_SPECIAL"}[adjacency]
    accountant = PLDAccountant(dp_accounting.NeighboringRelation[relation])
    vectors = 2 if adjacency == "replace-one" else 1
    for squared in squared_mus(case, adjacency):
        accountant.compose(dp_accounting.GaussianDpEvent(float(vectors / math.sqrt(squared))))
    return bool(abs(ledger_after(case, adjacency).spent() - accountant.get_epsilon(1e-6)) < 1e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("case", RUNS)
def test_several_runs_cost_what_the_closed_formula_says(case, adjacency):
    assert spends_what_the_closed_formula_says(case, adjacency)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("case", RUNS)
def test_several_runs_cost_what_an_independent_accountant_says(case, adjacency):
    assert spends_what_an_independent_accountant_says(case, adjacency)


CHECKS = [spends_what_the_closed_formula_says, spends_what_an_independent_accountant_says]


@pytest.mark.parametrize("check", CHECKS)
def test_mutant_sensitivity_of_one_clip_under_replace_one_is_caught(check, monkeypatch):
    true = Release.sensitivity
    monkeypatch.setattr(Release, "sensitivity", lambda self, role: true(self, role) / 2)
    assert not check("one role", "replace-one")


@pytest.mark.parametrize("check", CHECKS)
def test_mutant_adding_epsilons_instead_of_squared_mus_is_caught(check, monkeypatch):
    monkeypatch.setattr(dpb.Ledger, "spent", lambda self: sum(entry.epsilon for entry in self.entries))
    assert not check("one role", "replace-one")


@pytest.mark.parametrize("check", CHECKS)
def test_mutant_adding_mus_instead_of_their_squares_is_caught(check, monkeypatch):
    monkeypatch.setattr(ledger_module, "_sum_of_squares", lambda entries: sum(entry.mu for entry in entries) ** 2)
    assert not check("one role", "replace-one")


@pytest.mark.parametrize("check", CHECKS)
def test_mutant_roles_in_parallel_across_runs_is_caught(check, monkeypatch):
    # Splits change between runs: who was in the cheap role yesterday may be in the expensive one today.
    def most_expensive_role_of_all_runs(self):
        everything = [used for declared in RUNS["two roles"] for used in declared]
        return gaussian_epsilon(math.sqrt(squared_mu(everything, "replace-one")), 1e-6)

    monkeypatch.setattr(dpb.Ledger, "spent", most_expensive_role_of_all_runs)
    assert not check("two roles", "replace-one")


@pytest.mark.parametrize("composition", ["gaussian", "basic"])
def test_each_run_counts_with_its_most_expensive_role(composition):
    cheap_then_expensive = [release(noise=0.01, upper=1.0, lower=2.0), release(noise=0.01, upper=2.0, lower=1.0)]
    ledger = dpb.Ledger(dpb.Budget(50.0, 1e-5), composition=composition)
    for one in cheap_then_expensive:
        ledger.charge([one], dpb.Budget(20.0, 1e-6), "run")
    mu = 2 * 2 * ROUNDING / 1000 / 0.01
    assert [entry.mu for entry in ledger.entries] == pytest.approx([mu, mu])
    by_epsilon = 2 * gaussian_epsilon(mu, 1e-6)
    by_mu = gaussian_epsilon(math.sqrt(2) * mu, 1e-5)
    assert ledger.spent() == pytest.approx(by_epsilon if composition == "basic" else by_mu)


# --- exhaustion --------------------------------------------------------------------------------------------------


def refuses(ledger: dpb.Ledger, releases: list[Release], budget: dpb.Budget) -> bool:
    try:
        ledger.charge(releases, budget, "run")
    except dpb.BudgetExceeded:
        return True
    return False


def is_exhausted_by_its_parts(total: dpb.Budget, parts: int, extra: float) -> bool:
    """Whether equal parts of mu^2 are all accepted and one more run, of an ``extra`` share of mu^2, is not."""
    ledger = dpb.Ledger(total)
    part = run_of(total.mu / math.sqrt(parts) * (1 - 1e-14))  # less by the rounding of the division
    accepted = not any(refuses(ledger, [part], total) for _ in range(parts))
    return accepted and refuses(ledger, [run_of(total.mu * math.sqrt(extra))], total)


@settings(max_examples=30)
@given(
    epsilon=st.floats(0.1, 10),
    delta=st.floats(-9, -3).map(lambda exponent: 10.0**exponent),
    parts=st.integers(1, 20),
    extra=st.floats(-12, 0).map(lambda exponent: 10.0**exponent),
)
def test_a_total_is_exhausted_exactly(epsilon, delta, parts, extra):
    assert is_exhausted_by_its_parts(dpb.Budget(epsilon, delta), parts, extra)


def test_mutant_a_ledger_that_forgets_is_caught(monkeypatch):
    true = dpb.Ledger.charge

    def forgetful(self, releases, budget, description):
        receipt = true(self, releases, budget, description)
        self._store.entries.clear()
        return receipt

    monkeypatch.setattr(dpb.Ledger, "charge", forgetful)
    assert not is_exhausted_by_its_parts(TOTAL, parts=4, extra=0.1)


def test_mutant_a_ledger_with_a_percent_of_goodwill_is_caught(monkeypatch):
    monkeypatch.setattr(
        dpb.Ledger,
        "_fits",
        lambda self, entries, composition: ledger_module._sum_of_squares(entries) <= 1.01 * self.total.mu**2,
    )
    assert not is_exhausted_by_its_parts(TOTAL, parts=4, extra=0.001)


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_calibrated_runs_fill_the_total(parts):
    ledger = dpb.Ledger(TOTAL)
    for _ in range(parts):
        charge(ledger, share_of(TOTAL, 1 / parts))
    assert ledger.spent() == pytest.approx(TOTAL.epsilon, abs=1e-6)
    assert ledger.spent() <= TOTAL.epsilon
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, share_of(TOTAL, 1e-3))


@pytest.mark.parametrize(("epsilon", "delta", "parts"), [(0.02, 1e-6, 2), (0.1, 1e-6, 50), (0.01, 1e-12, 7)])
def test_calibrated_runs_fill_a_small_total(epsilon, delta, parts):
    total = dpb.Budget(epsilon, delta)
    ledger = dpb.Ledger(total)
    for _ in range(parts):
        charge(ledger, share_of(total, 1 / parts))


def test_the_refusal_says_what_is_asked_what_is_left_and_what_to_do():
    ledger = dpb.Ledger(TOTAL)
    charge(ledger, dpb.Budget(1.5, 1e-6))
    with pytest.raises(dpb.BudgetExceeded, match=r"run: needs epsilon 1\.5 .*1\.5 of 2 spent.* would fit"):
        charge(ledger, dpb.Budget(1.5, 1e-6))


@pytest.mark.parametrize("composition", ["gaussian", "basic"])
@pytest.mark.parametrize("delta", [1e-6, 4e-7, 1e-9])
@pytest.mark.parametrize("before", [(), (0.8,), (0.3, 0.3, 1.1)], ids=str)
def test_the_refusal_names_a_budget_that_fits_and_hardly_more_does(composition, delta, before):
    ledger = dpb.Ledger(TOTAL, composition=composition)
    for epsilon in before:
        charge(ledger, dpb.Budget(epsilon, 2e-7))
    with pytest.raises(dpb.BudgetExceeded) as raised:
        charge(ledger, dpb.Budget(5.0, delta))
    named = re.search(r"epsilon (\S+) at delta (\S+) would fit$", str(raised.value))
    epsilon, at = float(named[1]), float(named[2])
    assert at <= delta
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, dpb.Budget(1.002 * epsilon, at))
    charge(ledger, dpb.Budget(epsilon, at))
    with pytest.raises(dpb.BudgetExceeded, match=r"budget is exhausted|would fit"):
        charge(ledger, dpb.Budget(epsilon, at))


def test_a_run_without_noise_fits_no_finite_total():
    for composition in ("gaussian", "basic"):
        ledger = dpb.Ledger(TOTAL, composition=composition)
        assert refuses(ledger, [release(noise=0.0, lower=1.0)], dpb.Budget(math.inf))
        assert refuses(ledger, [release(noise=0.0, lower=math.inf)], TOTAL)
        assert ledger.entries == ()


def test_an_infinite_total_accepts_everything():
    ledger = dpb.Ledger(dpb.Budget(math.inf))
    ledger.charge([release(noise=0.0, lower=1.0)], dpb.Budget(math.inf), "run")
    ledger.charge([release(noise=0.1, lower=1.0)], TOTAL, "run")
    assert ledger.spent() == math.inf
    assert ledger.remaining() == dpb.Budget(math.inf)


@pytest.mark.parametrize("composition", ["gaussian", "basic"])
def test_a_refused_charge_changes_nothing(composition):
    ledger = dpb.Ledger(TOTAL, composition=composition)
    charge(ledger, dpb.Budget(1.9, 5e-7))
    before = (ledger.entries, ledger.spent(), ledger.remaining(), ledger.composition, repr(ledger))
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, dpb.Budget(1.9, 5e-7))
    assert (ledger.entries, ledger.spent(), ledger.remaining(), ledger.composition, repr(ledger)) == before
    charge(ledger, dpb.Budget(0.05, 5e-8))  # and what still fits is still accepted


def test_a_refused_first_charge_does_not_fix_the_composition():
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, dpb.Budget(5.0, 1e-6))
    assert ledger.composition is None


def test_the_total_cannot_be_changed():
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises(AttributeError):
        ledger.total = dpb.Budget(100.0, 1e-6)
    with pytest.raises(AttributeError):
        ledger.total.epsilon = 100.0
    assert ledger.total == TOTAL


def test_entries_cannot_be_taken_out():
    ledger = dpb.Ledger(TOTAL)
    charge(ledger, dpb.Budget(1.0, 1e-6))
    with pytest.raises(AttributeError):
        ledger.entries.clear()
    with pytest.raises(AttributeError):
        ledger.entries = ()


def test_a_total_must_be_a_budget():
    with pytest.raises(dpb.InvalidArgument, match="total="):
        dpb.Ledger(2.0)


# --- what remains ------------------------------------------------------------------------------------------------


def test_everything_remains_at_first():
    assert dpb.Ledger(TOTAL).remaining() == TOTAL


@settings(max_examples=20)
@given(first=st.floats(0.05, 0.95), epsilon=st.floats(0.5, 10), adjacency=st.sampled_from(ADJACENCIES))
def test_what_remains_can_be_spent_and_then_next_to_nothing_is_left(first, epsilon, adjacency):
    total = dpb.Budget(epsilon, 1e-6, adjacency)
    ledger = dpb.Ledger(total)
    charge(ledger, share_of(total, first))
    charge(ledger, ledger.remaining())
    assert ledger.spent() == pytest.approx(total.epsilon, abs=1e-6)
    left = ledger.remaining()
    assert left is None or left.epsilon < 1e-3 * epsilon  # what calibration keeps as headroom
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, share_of(total, 1e-3))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-8), (1.5, 2e-9), (7.0, 1e-10)])
def test_nothing_is_left_when_what_remains_has_been_spent(epsilon, delta):
    ledger = dpb.Ledger(dpb.Budget(epsilon, delta))
    charge(ledger, dpb.Budget(epsilon / 2, delta))
    charge(ledger, ledger.remaining())
    assert ledger.remaining() is None


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-6), (0.01, 1e-12)])
def test_what_remains_of_a_small_total_can_be_spent(epsilon, delta):
    ledger = dpb.Ledger(dpb.Budget(epsilon, delta))
    charge(ledger, dpb.Budget(0.95 * epsilon, delta))
    charge(ledger, ledger.remaining())


def test_what_remains_keeps_the_relation():
    total = dpb.Budget(2.0, 1e-6, "zero-out")
    ledger = dpb.Ledger(total)
    charge(ledger, share_of(total, 0.5))
    assert ledger.remaining().adjacency == "zero-out"


def test_what_remains_under_basic_composition_is_the_difference():
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-5), composition="basic")
    charge(ledger, dpb.Budget(0.5, 1e-6))
    assert ledger.remaining().epsilon == pytest.approx(1.5, abs=1e-6)
    assert ledger.remaining().delta == pytest.approx(9e-6)
    charge(ledger, ledger.remaining())
    assert refuses(ledger, [run_of(0.1)], dpb.Budget(1.0, 1e-9))


# --- composition -------------------------------------------------------------------------------------------------


def sampled(noise: float = 0.2) -> Release:
    return release(noise=noise, steps=5, rate=0.1, lower=1.0)


def test_the_first_charge_fixes_the_composition():
    gaussian, basic = dpb.Ledger(TOTAL), dpb.Ledger(TOTAL)
    assert gaussian.composition is None
    charge(gaussian, dpb.Budget(0.5, 1e-7))
    basic.charge([sampled()], dpb.Budget(0.5, 1e-7), "run")
    assert (gaussian.composition, basic.composition) == ("gaussian", "basic")


@pytest.mark.parametrize("fixed_by", ["argument", "first charge"])
def test_a_gaussian_ledger_refuses_sampled_runs_and_names_the_remedy(fixed_by):
    ledger = dpb.Ledger(TOTAL, composition="gaussian" if fixed_by == "argument" else None)
    if fixed_by == "first charge":
        charge(ledger, dpb.Budget(0.5, 1e-6))
    before = ledger.entries
    with pytest.raises(dpb.InvalidArgument, match=r'composition="basic"'):
        ledger.charge([sampled()], dpb.Budget(0.5, 1e-6), "run")
    assert ledger.entries == before


def test_a_basic_ledger_adds_epsilons_and_deltas():
    ledger = dpb.Ledger(dpb.Budget(3.0, 1e-5), composition="basic")
    charge(ledger, dpb.Budget(0.5, 1e-6))
    ledger.charge([sampled()], dpb.Budget(2.0, 3e-6), "sampled")
    one = dpb.Privacy(all_charges([sampled()]), dpb.Budget(2.0, 3e-6)).epsilon()
    assert ledger.spent() == pytest.approx(0.5 + one, abs=1e-6)
    assert [entry.delta for entry in ledger.entries] == [1e-6, 3e-6]
    assert [entry.mu is None for entry in ledger.entries] == [False, True]


def test_a_basic_ledger_stays_basic_for_gaussian_runs():
    # Taking the better of two filters after the fact is covered by neither proof.
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-5), composition="basic")
    charge(ledger, dpb.Budget(1.2, 1e-6))
    assert refuses(ledger, calibrate([release(noise=1.0, lower=1.0)], dpb.Budget(1.2, 1e-6)), dpb.Budget(1.2, 1e-6))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 6e-6), (1.5, 1e-6)])
def test_a_basic_ledger_refuses_where_either_sum_is_too_large(epsilon, delta):
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-5), composition="basic")
    charge(ledger, dpb.Budget(1.0, 5e-6))
    with pytest.raises(dpb.BudgetExceeded):
        charge(ledger, dpb.Budget(epsilon, delta))


@pytest.mark.parametrize("parts", [5, 10, 20])
def test_a_basic_ledger_is_filled_by_equal_parts(parts):
    total = dpb.Budget(1.0, 1e-5)
    ledger = dpb.Ledger(total, composition="basic")
    for _ in range(parts):
        charge(ledger, dpb.Budget(total.epsilon / parts, total.delta / parts))


def test_an_unknown_composition_is_refused():
    with pytest.raises(dpb.InvalidArgument, match="composition="):
        dpb.Ledger(TOTAL, composition="advanced")


@pytest.mark.parametrize(("ours", "theirs"), [ADJACENCIES, ADJACENCIES[::-1]])
def test_a_run_of_another_relation_is_refused(ours, theirs):
    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-6, ours))
    with pytest.raises(dpb.InvalidArgument, match=f"adjacency='{theirs}'.*'{ours}'"):
        charge(ledger, dpb.Budget(1.0, 1e-6, theirs))
    assert ledger.entries == ()


def test_a_release_of_another_relation_is_refused():
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises(dpb.InvalidArgument, match="adjacency"):
        ledger.charge([release(noise=0.01, lower=1.0, adjacency="zero-out")], TOTAL, "run")


# --- copies ------------------------------------------------------------------------------------------------------


def test_a_copy_is_the_same_ledger():
    ledger = dpb.Ledger(TOTAL)
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy(ledger) is ledger
    assert copy.deepcopy({"ledger": [ledger]})["ledger"][0] is ledger  # as in an estimator's parameters


def test_a_ledger_in_memory_cannot_be_pickled():
    with pytest.raises(TypeError, match=r"cannot be pickled.*Ledger\.open"):
        pickle.dumps(dpb.Ledger(TOTAL))


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_receipt_cannot_be_duplicated(duplicate):
    receipt = charge(dpb.Ledger(TOTAL), TOTAL)
    with pytest.raises(TypeError, match="Receipt"):
        duplicate(receipt)


# --- receipts ----------------------------------------------------------------------------------------------------


def charged(steps: int = 5) -> tuple[Release, Receipt]:
    (one,) = calibrate([release(noise=1.0, steps=steps, lower=1.0)], TOTAL)
    return one, dpb.Ledger(TOTAL).charge([one], TOTAL, "run")


def test_a_receipt_is_redeemed_as_often_as_was_charged_and_no_more():
    one, receipt = charged(steps=5)
    receipt.redeem(one, 3)
    receipt.redeem(one, 2)
    with pytest.raises(NotCharged, match="0 left"):
        receipt.redeem(one, 1)


def test_more_uses_than_are_left_take_none():
    one, receipt = charged(steps=5)
    with pytest.raises(NotCharged, match="6 uses requested, 5 left"):
        receipt.redeem(one, 6)
    receipt.redeem(one, 5)


def test_a_release_that_was_not_charged_is_never_redeemed():
    one, receipt = charged()
    for other in (one.scaled(0.1), one.scaled(1.0)):  # an equal release is another release
        with pytest.raises(NotCharged):
            receipt.redeem(other, 1)


def test_a_receipt_knows_each_release_apart():
    many, once = (release(noise=0.1, steps=steps, lower=1.0) for steps in (5, 1))
    receipt = dpb.Ledger(TOTAL).charge([many, once], TOTAL, "run")
    receipt.redeem(once, 1)
    with pytest.raises(NotCharged):
        receipt.redeem(once, 1)
    receipt.redeem(many, 5)


def test_uses_cannot_be_put_back():
    one, receipt = charged(steps=5)
    with contextlib.suppress(dpb.DPBilevelError):
        receipt.redeem(one, -100)
    with pytest.raises(NotCharged):
        receipt.redeem(one, 6)


# --- threads -----------------------------------------------------------------------------------------------------


def winners(attempts: int, attempt) -> int:
    """How many of several threads that start together get through."""
    barrier, passed = threading.Barrier(attempts), []

    def body() -> None:
        barrier.wait()
        try:
            attempt()
        except (dpb.BudgetExceeded, NotCharged):
            return
        passed.append(True)

    threads = [threading.Thread(target=body) for _ in range(attempts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(passed)


def winners_of_the_last_slice() -> int:
    ledger = dpb.Ledger(TOTAL)
    ledger.charge([run_of(TOTAL.mu * math.sqrt(0.6))], TOTAL, "first")
    last = run_of(TOTAL.mu * math.sqrt(0.3))
    return winners(8, lambda: ledger.charge([last], TOTAL, "last"))


def test_of_threads_that_race_for_the_last_slice_exactly_one_wins():
    assert [winners_of_the_last_slice() for _ in range(50)] == [1] * 50


def slow_down(monkeypatch) -> None:
    """Widen the gap between the check and the entry, so that a missing lock shows every time."""
    true = dpb.Ledger._fits

    def slow(self, entries, composition):
        fits = true(self, entries, composition)
        time.sleep(0.02)
        return fits

    monkeypatch.setattr(dpb.Ledger, "_fits", slow)


def test_exactly_one_wins_where_the_check_takes_long(monkeypatch):
    slow_down(monkeypatch)
    assert winners_of_the_last_slice() == 1


def test_mutant_a_ledger_without_a_lock_is_caught(monkeypatch):
    slow_down(monkeypatch)
    true = dpb.Ledger.__init__

    def without_a_lock(self, total):
        true(self, total)
        self._store.lock = contextlib.nullcontext()

    monkeypatch.setattr(dpb.Ledger, "__init__", without_a_lock)
    assert winners_of_the_last_slice() > 1


class SlowToCompare(int):
    """A number of uses that takes its time to be compared with what is left."""

    def __gt__(self, other: int) -> bool:
        larger = int(self) > other
        time.sleep(0.02)
        return larger


def test_of_threads_that_race_for_the_last_use_exactly_one_wins():
    one, receipt = charged(steps=1)
    assert winners(8, lambda: receipt.redeem(one, SlowToCompare(1))) == 1


# --- what it shows -----------------------------------------------------------------------------------------------


def test_a_ledger_shows_what_was_spent():
    ledger = dpb.Ledger(TOTAL)
    charge(ledger, dpb.Budget(0.5, 1e-6))
    assert repr(ledger) == "Ledger(epsilon 0.5 of 2 spent at delta 1e-06, replace-one, 1 run)"
    assert [entry.description for entry in ledger.entries] == ["run"]
