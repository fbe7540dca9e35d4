"""Private trainers from elsewhere: what they declare is charged, what they say stays inside, and the paper's update."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpbilevel as dpb
from dpbilevel.privacy.accountant import composed_delta, composed_epsilon
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.sampling import FullBatch

BUDGET = dpb.Budget(1.0, 1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")  # the caveat has a test of its own

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(300, 4)) / 2
TARGETS = FEATURES @ np.array([1.0, -1.0, 0.5, 0.0]) + RNG.normal(size=300)
TRAINING, VALIDATION = (FEATURES[:200], TARGETS[:200]), (FEATURES[200:], TARGETS[200:])
RECORDS = {"lower": TRAINING, "upper": VALIDATION}


def ridge_solution(omega, lower, upper, upper_weight):
    """The exact minimiser of g + upper_weight f: least squares with the penalty (omega/2)|theta|^2."""
    parts = [(1.0, lower)] if upper is None else [(1.0, lower), (upper_weight, upper)]
    gram = sum(w * rows.T @ rows / len(rows) for w, (rows, _) in parts) + float(omega) * np.eye(4)
    moment = sum(w * rows.T @ targets / len(rows) for w, (rows, targets) in parts)
    return np.linalg.solve(gram, moment)


def squared(x, y, record):
    row, target = record
    return 0.5 * (row @ y - target) ** 2


def regularisation(domain=None) -> dpb.BilevelProblem:
    return dpb.BilevelProblem(
        upper_loss=squared,
        lower_loss=squared,
        lower_term=lambda x, y: 0.5 * x * jnp.sum(y**2),
        domain=domain or dpb.NonNegative(),
    )


def tune(train, event=dpb.ApproximateDP(0.01, 1e-9), budget=BUDGET, omega=1.0, problem=None, **settings):
    settings = {"penalty_weight": 100.0, "steps": 8, "step_size": 0.5} | settings
    method = dpb.DPBilevel(inner=dpb.BlackBox(train=train, event=event), **settings)
    start = (np.asarray(omega), np.zeros(4))
    return dpb.solve(
        problem or regularisation(), dpb.Records(**RECORDS), budget, method=method, start=start, seed=0, progress=False
    )


def hyperobjective(omega: float) -> float:
    theta = ridge_solution(omega, TRAINING, None, 0.0)
    return 0.5 * float(np.mean((VALIDATION[0] @ theta - VALIDATION[1]) ** 2))


# ------------------------------------------------------------------------------------- the paper's closed-form update


def test_the_papers_update_falls_out_of_the_general_code():
    """omega <- max{0, omega - eta lambda (R(theta^lambda) - R(theta))}, with R = |theta|^2/2, and no noise on it."""
    for start, step_size in ((1.0, 0.5), (0.05, 5.0)):  # the second run meets max{0, .}
        solution = tune(ridge_solution, omega=start, step_size=step_size)
        omega, expected = start, []
        for _ in range(8):
            theta = ridge_solution(omega, TRAINING, None, 0.0)
            penalised = ridge_solution(omega, TRAINING, VALIDATION, 1 / 100.0)
            omega = max(0.0, omega - step_size * 100.0 * 0.5 * (np.sum(penalised**2) - np.sum(theta**2)))
            expected.append(omega)
        np.testing.assert_allclose(solution.history["x"], expected, rtol=2e-3, atol=1e-5)


def test_the_update_is_the_derivative_of_the_hyperobjective_and_descends():
    """lambda (R(theta^lambda) - R(theta)) is dF/d omega by finite differences; the paper's sign climbs instead."""
    for omega in (0.05, 0.3, 1.0, 4.0):
        penalised, theta = (ridge_solution(omega, TRAINING, upper, 1e-5) for upper in (VALIDATION, None))
        update = 1e5 * 0.5 * (np.sum(penalised**2) - np.sum(theta**2))
        slope = (hyperobjective(omega + 1e-5) - hyperobjective(omega - 1e-5)) / 2e-5
        assert update == pytest.approx(slope, rel=2e-3)
    descended = tune(ridge_solution, steps=40, step_size=5.0, output="last").x
    climbed = tune(ridge_solution, steps=40, step_size=5.0, output="last", problem=_climbing()).x
    best = min(map(hyperobjective, np.geomspace(1e-3, 10, 200)))
    assert hyperobjective(descended) - best < 0.02 * (hyperobjective(1.0) - best)
    assert hyperobjective(climbed) > hyperobjective(1.0)


def _climbing() -> dpb.BilevelProblem:
    """The printed sign: the same trainer, with the gradient of the regulariser turned round."""
    return dataclasses.replace(regularisation(), lower_term=lambda x, y: -0.5 * x * jnp.sum(y**2))


def test_the_outer_step_costs_nothing():
    plan = dpb.plan(
        regularisation(),
        dpb.Records(**RECORDS).sizes,
        BUDGET,
        method=dpb.DPBilevel(
            inner=dpb.BlackBox(train=ridge_solution, event=dpb.GaussianDP(0.05)), steps=9, step_size=1.0
        ),
        start=(np.asarray(1.0), np.zeros(4)),
    )
    assert [type(release) for release in plan.releases] == [DeclaredRelease, DeclaredRelease]
    # Lower records are read by both trainings of a step, upper ones by the penalised training only.
    assert {role: sum(c.uses for c in charges) for role, charges in plan.privacy.charges.items()} == {
        "lower": 18,
        "upper": 9,
    }
    assert plan.privacy.mu == pytest.approx(0.05 * math.sqrt(18))
    assert plan.parameters["hypergradient"][0] == 0


# ------------------------------------------------------------------------------------------------------------ charging


@given(epsilon=st.floats(0.005, 0.2), delta=st.sampled_from([0.0, 1e-9, 1e-6]), steps=st.integers(1, 60))
def test_declared_calls_compose_no_worse_than_basic_and_no_better_than_one(epsilon, delta, steps):
    charges = [Charge("training", "lower", 0.0, steps, FullBatch(), 100, dpb.ApproximateDP(epsilon, delta))]
    total = 1e-4
    spent = composed_epsilon(charges, total, "replace-one")
    assert spent <= steps * epsilon + 1e-3 * steps  # the grid rounds each call up by at most 1e-4
    one = [dataclasses.replace(charges[0], uses=1)]
    assert composed_epsilon(one, total, "replace-one") <= spent + 1e-9


def test_optimal_composition_of_the_papers_split_for_black_boxes():
    """The paper's per-step (epsilon/sqrt(2T), delta/(T + 1)) does not hold up for black boxes: 3.82, not 1."""
    steps = 100
    for number, one, expected in (
        (steps, dpb.ApproximateDP(1 / math.sqrt(2 * steps), 1e-6 / (steps + 1)), 3.82),
        (3 * steps, dpb.ApproximateDP(1 / math.sqrt(18 * steps), 1e-6 / (3 * (steps + 1))), 2.16),
    ):
        charges = [Charge("solve", "lower", 0.0, number, FullBatch(), None, one)]
        assert composed_epsilon(charges, 1e-6, "replace-one") == pytest.approx(expected, abs=0.02)


def test_two_calls_against_brute_force():
    """The dominating pair of (e, d)-DP on four outcomes, composed with itself by enumeration."""
    epsilon, delta = 0.3, 0.01
    p = np.array([delta, (1 - delta) * np.exp(epsilon) / (1 + np.exp(epsilon)), (1 - delta) / (1 + np.exp(epsilon)), 0])
    q = p[::-1]
    at = 0.35
    true = sum(max(0.0, p[i] * p[j] - np.exp(at) * q[i] * q[j]) for i in range(4) for j in range(4))
    charges = [Charge("training", "lower", 0.0, 2, FullBatch(), None, dpb.ApproximateDP(epsilon, delta))]
    claimed = composed_delta(charges, at, "replace-one")
    assert true <= claimed <= true * 1.01


def test_gaussian_events_compose_exactly_with_everything_gaussian():
    release = DeclaredRelease(name="training", roles={"lower": 100}, event=dpb.GaussianDP(0.05), uses=16)
    privacy = dpb.Privacy({"lower": release.charges()}, BUDGET)
    assert privacy.mu == pytest.approx(0.2)


def test_calls_are_charged_before_the_first_and_never_more_are_made():
    seen = []

    def train(x, lower, upper, upper_weight):
        seen.append((upper is None, upper_weight, len(ledger.entries)))
        return ridge_solution(x, lower, upper, upper_weight)

    ledger = dpb.Ledger(dpb.Budget(2.0, 1e-5), composition="basic")
    method = dpb.DPBilevel(
        inner=dpb.BlackBox(train=train, event=dpb.ApproximateDP(0.01, 1e-9)),
        penalty_weight=100.0,
        steps=3,
        step_size=0.5,
    )
    start = (np.asarray(1.0), np.zeros(4))
    solution = dpb.solve(regularisation(), dpb.Records(**RECORDS), BUDGET, method=method, start=start, ledger=ledger)
    assert seen == [(True, 0.0, 1), (False, 0.01, 1)] * 3
    assert 0.01 < solution.privacy.epsilon() <= 6 * 0.01 + 1e-3
    assert ledger.spent() == pytest.approx(solution.privacy.epsilon())


def test_a_budget_that_the_declared_calls_exceed_is_refused_before_any_call():
    def train(x, lower, upper, upper_weight):
        raise AssertionError("called without a charge")

    with pytest.raises(dpb.BudgetExceeded, match=r"8 calls of 'lower solve'.*cost .*spend less per call"):
        tune(train, event=dpb.ApproximateDP(0.5, 1e-9))
    with pytest.raises(dpb.InvalidArgument, match=r"adjacency='replace-one'.*declare the cost"):
        tune(train, budget=dpb.Budget(1.0, 1e-6, "zero-out"))


def test_what_is_left_goes_to_a_hypergradient_that_reads_records():
    """g_i weighs its record by x, so the outer step needs noise: it gets the budget that the calls leave."""
    problem = dpb.BilevelProblem(
        upper_loss=squared,
        lower_loss=lambda x, y, record: x * squared(x, y, record),
        lower_term=lambda x, y: 0.5 * jnp.sum(y**2),
        domain=dpb.Box(0.1, 10.0),
    )
    sizes, start = dpb.Records(**RECORDS).sizes, (np.asarray(1.0), np.zeros(4))
    noises = []
    for event in (dpb.ApproximateDP(0.001, 1e-9), dpb.ApproximateDP(0.03, 1e-9), dpb.GaussianDP(0.01)):
        method = dpb.DPBilevel(inner=dpb.BlackBox(train=ridge_solution, event=event), steps=8, step_size=0.1)
        plan = dpb.plan(problem, sizes, BUDGET, method=method, start=start)
        assert 0.985 <= plan.privacy.epsilon() <= 1.0
        noises.append(plan.releases[-1].noise_std)
    assert noises[1] > 1.1 * noises[0]
    greedy = dpb.BlackBox(train=ridge_solution, event=dpb.GaussianDP(BUDGET.mu / 3.9))  # 16 calls: too much
    with pytest.raises(dpb.BudgetExceeded, match="8 calls of 'penalised solve'"):
        dpb.plan(problem, sizes, BUDGET, method=dpb.DPBilevel(inner=greedy, steps=8, step_size=0.1), start=start)


# ------------------------------------------------------------------------------------------------- nothing gets outside


def test_errors_of_a_trainer_never_carry_what_it_says_about_records():
    secret = "the target of row 17 is 123.456"

    def train(x, lower, upper, upper_weight):
        raise RuntimeError(secret)

    with pytest.raises(dpb.TrainerFailed, match="type and message are withheld") as caught:
        tune(train)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert secret not in str(error)
    assert "RuntimeError" not in str(error), "which error it was may depend on records"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.zeros(5), r"shape \(5,\) where y0 has \(4,\)"),
        ({"theta": np.zeros(4)}, "another structure"),
        (np.full(4, np.nan), "not finite"),
    ],
)
def test_what_a_trainer_returns_is_checked(returned, message):
    with pytest.raises(dpb.TrainerFailed, match=message):
        tune(lambda x, lower, upper, upper_weight: returned)


def test_a_trainer_gets_copies_and_invalid_records_as_zeros():
    rows = np.ones((6, 4))
    rows[2, 1] = np.nan
    seen = []

    def train(x, lower, upper, upper_weight):
        seen.append(lower[0].copy())
        lower[0][:] = 7.0  # must not reach the next call
        return np.zeros(4)

    records = dpb.Records(lower=(rows, np.ones(6)), upper=VALIDATION, invalid="zero")
    method = dpb.DPBilevel(inner=dpb.BlackBox(train=train, event=dpb.GaussianDP(0.01)), steps=2, step_size=0.1)
    budget = dpb.Budget(1.0, 1e-4)
    dpb.solve(regularisation(), records, budget, method=method, start=(np.asarray(1.0), np.zeros(4)), progress=False)
    expected = np.ones((6, 4))
    expected[2] = 0.0
    for rows_seen in seen:
        np.testing.assert_array_equal(rows_seen, expected)


# --------------------------------------------------------------------------------------------------------------- units

PEOPLE, MOST, CLIP = 50, 3, 1.0
VISITS = np.random.default_rng(1).normal(size=2 * PEOPLE)
MEAN = dpb.BilevelProblem(
    upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
)


def sum_of_units(units):
    """The statistic that a trainer adds noise to: sums over the rows of a person, clipped whole."""
    sums = np.where(units.present, units.rows, 0.0).sum(axis=1)
    return np.clip(sums, -CLIP, CLIP).sum()


def sum_of_rows(units):
    """A broken one, which clips row by row."""
    return np.where(units.present, np.clip(units.rows, -CLIP, CLIP), 0.0).sum()


def trained_on_units(visits, people, seen, statistic=sum_of_units, most=MOST, declared=MOST, ledger=None):
    def train(x, lower, upper, upper_weight):
        seen.append((lower, statistic(lower)))
        return np.asarray(statistic(lower) / PEOPLE, np.float32)

    method = dpb.DPBilevel(
        inner=dpb.BlackBox(train=train, event=dpb.GaussianDP(0.1), rows_per_unit=declared), steps=1, step_size=0.1
    )
    records = dpb.Records(lower=visits, unit=people, rows_per_unit=most, unit_ids=range(PEOPLE))
    budget = dpb.Budget(4.0, 1e-3)
    return dpb.solve(MEAN, records, budget, method=method, start=(0.0, 0.0), ledger=ledger, progress=False)


def furthest(statistic):
    """The largest movement of a trainer's statistic if all rows of one person are others, from none to more than k."""
    people, seen, draws = np.tile(np.arange(PEOPLE), 2), [], np.random.default_rng(0)
    for rows in (0, 1, 2, 3, 5):
        for scale in (0.3, 1e3):
            for sign in (-1, 1):
                own = sign * scale * np.abs(draws.normal(size=rows))
                others = np.insert(VISITS[people != 7], 20, own), np.insert(people[people != 7], 20, np.full(rows, 7))
                trained_on_units(*others, seen, statistic)
    bundles, values = zip(*seen, strict=True)
    for bundle in bundles:
        assert bundle.rows.shape == bundle.present.shape == (PEOPLE, MOST)
        np.testing.assert_array_equal(np.delete(bundle.rows, 7, axis=0), np.delete(bundles[0].rows, 7, axis=0))
    return max(values) - min(values)


def test_no_person_moves_what_a_trainer_of_units_computes_by_more_than_it_may():
    assert 1.9 * CLIP < furthest(sum_of_units) <= 2 * CLIP + 1e-6


def test_a_trainer_that_clips_rows_of_units_is_noticed():
    assert furthest(sum_of_rows) > 3 * CLIP


def test_a_trainer_that_declares_the_cost_of_units_is_charged_for_them():
    ledger = dpb.Ledger(dpb.Budget(9.0, 1e-2))
    solution = trained_on_units(VISITS, np.tile(np.arange(PEOPLE), 2), [], most=2, ledger=ledger)
    assert [entry.rows_per_unit for entry in ledger.entries] == [2]
    assert any("as declared, for all rows of a unit of at most 3" in caveat for caveat in solution.privacy.caveats)
    assert "of which at most 2 are used" in solution.privacy.sentence()


@pytest.mark.parametrize(
    ("most", "declared", "words"),
    [
        (3, None, r"rows_per_unit=3: must be at most 1 for 'lower solve', whose declared cost is that of a record"),
        (
            4,
            3,
            "rows_per_unit=4: must be at most 3 for 'lower solve', whose declared cost is that of a unit of at most 3",
        ),
        (1, 3, "rows_per_unit=3: must be left out of 'lower solve' for records that are rows"),
    ],
)
def test_a_trainer_of_other_units_is_refused_before_the_charge(most, declared, words):
    ledger, seen = dpb.Ledger(dpb.Budget(9.0, 1e-2)), []
    with pytest.raises(dpb.InvalidArgument, match=words):
        trained_on_units(VISITS, np.tile(np.arange(PEOPLE), 2), seen, most=most, declared=declared, ledger=ledger)
    assert ledger.entries == ()
    assert seen == []


def test_models_are_projected_into_the_lower_domain():
    problem = dataclasses.replace(regularisation(), lower_domain=dpb.Ball(0.5))
    solution = tune(lambda x, lower, upper, upper_weight: np.full(4, 10.0), problem=problem)
    assert np.linalg.norm(solution.y) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.filterwarnings("default::dpbilevel.PrivacyLeakWarning")
def test_the_guarantee_says_what_it_takes_on_trust():
    with pytest.warns(dpb.PrivacyLeakWarning, match=r"lower solve is a black box.*ApproximateDP\(epsilon=0.01"):
        solution = tune(ridge_solution)
    assert "CAVEAT: penalised solve is a black box" in solution.privacy.sentence()
    again = dpb.Privacy.from_json(solution.privacy.to_json())
    assert again.epsilon() == solution.privacy.epsilon()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dpb.BlackBox(train=None, event=dpb.GaussianDP(0.1)), "train: must be a function"),
        (lambda: dpb.BlackBox(train=ridge_solution, event=0.1), "event=0.1: must be dpb.GaussianDP"),
        (lambda: dpb.BlackBox(train=ridge_solution, event=dpb.GaussianDP(0.1), adjacency="rows"), "adjacency='rows'"),
        (
            lambda: dpb.BlackBox(train=ridge_solution, event=dpb.GaussianDP(0.1), rows_per_unit=0),
            "rows_per_unit=0: must be",
        ),
        (lambda: dpb.GaussianDP(0.0), "mu=0.0"),
        (lambda: dpb.ApproximateDP(-1.0), "epsilon=-1.0"),
        (lambda: dpb.ApproximateDP(1.0, 1.0), "delta=1.0: must be below 1"),
        (
            lambda: dpb.DPBilevel(inner=dpb.BlackBox(train=ridge_solution, event=dpb.GaussianDP(0.1)), split="paper"),
            "a black box adds its own",
        ),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        make()
