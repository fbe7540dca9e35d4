"""Audits: bounds are right as often as they say, attacks have teeth, and broken privacy is caught.

Seeds are fixed: a test that passes goes on passing. Coverage is tested on simulated counts, of which there are many.
"""

import functools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest, norm
from support.mutations import empty_place_in_a_batch

import dpbilevel as dpb
from dpbilevel import planning
from dpbilevel.audit import audit, bounds, canaries, one_run
from dpbilevel.audit.distinguisher import choose_rule, rows
from dpbilevel.audit.runs import released_values
from dpbilevel.audit.verdict import HEADER
from dpbilevel.privacy import accountant
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.accounting import gaussian_epsilon
from dpbilevel.privacy.noise import KeySchedule

DELTA = 1e-2
BUDGET = dpb.Budget(4.0, DELTA)
CASES = {case.name: case for case in dpb.audit.standard_cases(BUDGET)}
MEAN, DESCENT = CASES["DPBilevel, DPLocGD, one step"], CASES["Refit, one step"]


@functools.cache
def found_at_four(name):
    return audit(CASES[name], BUDGET, runs=8000, confidence=0.999)


def weaken_noise(monkeypatch, factor):
    draw = release_module.standard_normal
    monkeypatch.setattr(release_module, "standard_normal", lambda key, size: factor * draw(key, size))


# -------------------------------------------------------------------------------------------------------- the bounds


@pytest.mark.parametrize(
    ("successes", "trials", "error"), [(0, 20, 0.05), (3, 20, 0.01), (20, 20, 0.025), (700, 999, 1e-4)]
)
def test_limits_are_clopper_and_pearsons(successes, trials, error):
    exact = binomtest(successes, trials).proportion_ci(1 - 2 * error, "exact")
    assert bounds.lower_limit(successes, trials, error) == pytest.approx(exact.low, abs=1e-12)
    assert bounds.upper_limit(successes, trials, error) == pytest.approx(exact.high, abs=1e-12)


def test_the_bound_of_counts_is_the_formula():
    # 0 of 1000 and 1000 of 1000: limits 1 - e^(1/1000) and e^(1/1000) of an error of 0.5% each.
    limit = 0.005 ** (1 / 1000)
    assert bounds.epsilon_lower_bound(1000, 0, 1000, DELTA, 0.99) == pytest.approx(
        math.log((limit - DELTA) / (1 - limit))
    )
    assert bounds.epsilon_lower_bound(500, 500, 1000, DELTA, 0.99) == 0
    assert bounds.epsilon_lower_bound(0, 1000, 1000, DELTA, 0.99) == 0
    assert bounds.epsilon_upper_bound(1000, 0, 1000, DELTA, 0.99) == math.inf
    assert bounds.epsilon_upper_bound(0, 500, 1000, DELTA, 0.99) == 0


@pytest.mark.parametrize("event", [(0.3, 0.02), (0.9, 0.4), (0.05, 0.0005)])
def test_the_bound_of_counts_covers(event):
    """The epsilon of a coin of known probabilities is exceeded at most as often as stated: 20,000 times at 95%."""
    draws, (one, other), runs = np.random.default_rng(0), event, 500
    true, false = (draws.binomial(runs, p, 20_000) for p in (one, other))
    proved = bounds.epsilon_lower_bound(true, false, runs, DELTA, 0.95)
    assert np.mean(proved > math.log((one - DELTA) / other)) <= 0.05
    above = [
        bounds.epsilon_upper_bound(int(t), int(f), runs, DELTA, 0.95)
        for t, f in zip(true[:500], false[:500], strict=True)
    ]
    assert np.mean(np.array(above) < math.log((one - DELTA) / other)) <= 0.05


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_audits_of_the_gaussian_mechanism_exceed_its_epsilon_no_oftener_than_stated(mu):
    """The whole of choosing and judging, at a confidence of 80%, so that 100 audits would show it."""
    draws, truth, above = np.random.default_rng(1), gaussian_epsilon(mu, DELTA), 0
    found = []
    for _ in range(100):
        one, other = draws.normal(size=(400, 2)) + np.array([mu, 0.0]), draws.normal(size=(400, 2))
        rule = choose_rule(one[:200], other[:200], DELTA, 0.8)
        found.append(float(bounds.epsilon_lower_bound(*rule.counts(one[200:], other[200:]), 200, DELTA, 0.8)))
        above += found[-1] > truth
    assert above <= 20
    assert np.median(found) > 0.2 * truth if mu > 1 else np.median(found) < truth


def test_choosing_and_judging_on_the_same_runs_would_be_wrong():
    """The mutation of the test above: without a half of their own, audits of nothing find something."""
    draws, found = np.random.default_rng(2), []
    for _ in range(20):
        one, other = draws.normal(size=(300, 40)), draws.normal(size=(300, 40))
        rule = choose_rule(one, other, 0.0, 0.8)
        found.append(float(bounds.epsilon_lower_bound(*rule.counts(one, other), 300, 0.0, 0.8)) > 0)
    assert np.mean(found) > 0.5


def test_the_rule_finds_what_only_one_side_or_a_combination_shows():
    draws = np.random.default_rng(3)
    noise = draws.normal(size=(2000, 3))
    rare = np.where(draws.random(2000) < 0.3, 1.0, 0.0)[:, None]
    one = np.hstack([noise[:1000], rare[:1000]])
    other = np.hstack([noise[1000:], np.zeros((1000, 1))])
    for pair, swapped in (((one, other), False), ((other, one), True)):
        rule = choose_rule(*pair, DELTA, 0.99)
        assert rule.counts(*pair)[1] == 0
        assert rule.counts(*pair)[0] == pytest.approx(300, abs=60)
        # A low value of the first speaks for the second data set just as well as a high one of the second.
        assert rule.swapped == swapped
    hidden = np.hstack([noise, noise + 0.1 * draws.normal(size=(2000, 3))])
    hidden[:1000, 3] += 1.0  # seen in the difference of two numbers alone
    rule = choose_rule(hidden[:1000], hidden[1000:], DELTA, 0.99)
    assert rule.counts(hidden[:1000], hidden[1000:])[0] > 990


# ---------------------------------------------------------------------------------------------------- every method


ONE_STEP = [name for name in CASES if "one step" in name]
NOT_HERE = (
    "Poisson",
    "SGD",
    "FixedDefault",
    "UpperRecordsOnly",
)  # a minute to calibrate, or the same training as another


@pytest.mark.parametrize("name", [name for name in ONE_STEP if not any(word in name for word in NOT_HERE)])
def test_one_step_of_every_method_keeps_its_claim_and_the_audit_has_teeth(name):
    """At epsilon 4; benchmarks/audits.py has all cases at all epsilons."""
    found = found_at_four(name)
    assert found.passed
    assert found.claimed == pytest.approx(4.0, abs=1e-6)
    assert 1.0 <= found.lower_bound <= found.upper_bound
    assert found.reach <= found.claimed


@pytest.mark.parametrize("name", ["Tracking, training record, 20 steps"])
def test_several_steps_keep_their_claim(name):
    found = audit(CASES[name], BUDGET, runs=400)
    assert found.passed
    assert found.releases > 1


def test_zero_out_is_audited_as_well():
    budget = dpb.Budget(4.0, DELTA, "zero-out")
    (case,) = [case for case in dpb.audit.standard_cases(budget) if case.name == "Refit, one step"]
    found = audit(case, budget, runs=4000)
    assert found.adjacency == "zero-out"
    assert 1.0 <= found.lower_bound <= found.claimed


SAMPLED = [name for name in ONE_STEP if "Poisson" in name or "SGD" in name]


@pytest.fixture
def _fresh_accounting():
    """What a mutant plans and composes is not kept, nor is what the true code did before."""
    caches = (accountant._loss_distribution, planning._planned)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_every_sampling_is_among_the_standard_cases(adjacency):
    methods = [case.method for case in dpb.audit.standard_cases(dpb.Budget(4.0, DELTA, adjacency))]
    samplings = [getattr(part, "sampling", None) for m in methods for part in (m, getattr(m, "inner", None))]
    assert {dpb.FullBatch, dpb.Poisson, dpb.WithoutReplacement, dpb.WithReplacement} <= set(map(type, samplings))


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        # Where a record that leaves a batch is replaced by another one, which was once forgotten.
        (name, adjacency)
        if "without" in name and adjacency == "zero-out"
        else pytest.param(name, adjacency, marks=pytest.mark.heavy)
        for name in SAMPLED
        for adjacency in ("replace-one", "zero-out")
    ],
)
def test_every_sampling_keeps_its_claim(name, adjacency):
    """At epsilon 1, where the noise is large and a loss distribution is quickly made."""
    budget = dpb.Budget(1.0, DELTA, adjacency)
    (case,) = [case for case in dpb.audit.standard_cases(budget) if case.name == name]
    found = audit(case, budget, runs=8000)
    assert found.passed
    assert 0.98 < found.claimed <= 1.0


@pytest.mark.usefixtures("_fresh_accounting")
@pytest.mark.parametrize(("name", "runs"), [("without", 8000), pytest.param("with", 40_000, marks=pytest.mark.heavy)])
def test_mutant_an_empty_place_in_a_batch_is_refuted(name, runs, monkeypatch):
    """Zero-out as if no record replaced the one removed from a batch of fixed size, as charged by earlier versions."""
    empty_place_in_a_batch(monkeypatch)
    budget = dpb.Budget(1.0, DELTA, "zero-out")
    cases = dpb.audit.standard_cases(budget)
    (case,) = [case for case in cases if case.name == f"DPBilevel, DPLocSGD {name} replacement, one step"]
    found = audit(case, budget, runs=runs)
    assert found.lower_bound > 1.2 > found.claimed


@pytest.mark.parametrize("name", ["weighted regressor"])  # benchmarks/audits.py has all
def test_estimators_keep_their_claim(name):
    """Through all that fit does with a table; the row that differs is one of validation or training by position."""
    from support.estimator_cases import CASES as ESTIMATORS
    from support.estimator_cases import X

    estimator = ESTIMATORS[name]
    model = estimator.make(method=dpb.Refit(steps=1))
    fit = {"X": X[:40], "y": estimator.y[:40]} | {key: value[:40] for key, value in estimator.more().items()}
    turned = fit["y"].copy()
    turned[3] = 1 - turned[3] if "class" in name or name == "logistic" else -turned[3] - 100
    case = dpb.audit.Case.of_estimator(name, model, fit, fit | {"y": turned})
    found = audit(case, BUDGET, runs=400)
    assert found.passed
    assert found.records == 40


def test_the_runs_are_those_of_solve_with_its_final_training():
    case = CASES["Tracking, training record, 20 steps"]
    records = dpb.Records(**case.records)
    with pytest.warns(dpb.NotPrivateWarning):
        solution = dpb.solve(
            case.problem, records, BUDGET, method=case.method, refit=case.refit, start=case.start, seed=7
        )
    data = case.data_sets("replace-one")[:1]
    ((x, y, history),) = released_values(case.planned(BUDGET), data, case.starting(), KeySchedule(7), 2)
    np.testing.assert_allclose(x[0], solution.x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y[0], solution.y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history["x"][0], solution.history["x"], rtol=1e-4, atol=1e-5)
    assert y[0] != y[1]
    assert rows((x, y, history)).shape == (2, 2 + 6 * 20)


# ------------------------------------------------------------------------------------------------------ mutations


def test_noise_off_is_caught_with_few_runs(monkeypatch):
    weaken_noise(monkeypatch, 0.0)
    found = audit(MEAN, BUDGET, runs=1000)
    assert not found.passed
    assert found.lower_bound > found.claimed


def test_noise_at_seven_tenths_is_caught(monkeypatch):
    weaken_noise(monkeypatch, 0.7)
    found = audit(MEAN, BUDGET, runs=40_000)
    assert not found.passed


def test_a_clip_that_does_not_clip_is_caught(monkeypatch):
    real = release_module.clipped_sum
    monkeypatch.setattr(
        release_module, "clipped_sum", lambda vector, records, present, clip: real(vector, records, present, math.inf)
    )
    loud = {role: 10 * values for role, values in MEAN.records.items()}
    quiet = {role: -values for role, values in loud.items()}
    case = dpb.audit.Case(
        name="loud", problem=MEAN.problem, method=MEAN.method, start=MEAN.start, records=loud, neighbour=quiet
    )
    assert not audit(case, BUDGET, runs=1000).passed


# ---------------------------------------------------------------------------------------------------------- one run


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3)])
def test_the_p_value_of_one_run_covers(epsilon, delta):
    """Randomised response on every coin, which with probability delta tells the truth outright: as bad as can be."""
    draws, m = np.random.default_rng(0), 200
    p = delta + (1 - delta) / (1 + math.exp(-epsilon))
    right = draws.binomial(m, p, 4000)
    values = {int(v): bounds.one_run_p_value(m, m, int(v), epsilon, delta) for v in np.unique(right)}
    drawn = np.array([values[int(v)] for v in right])
    for level in (0.01, 0.05, 0.2):
        assert np.mean(drawn <= level) <= level + 3 * math.sqrt(level / 4000)


def test_the_p_value_of_one_run_is_the_formula():
    tail = [sum(math.comb(4, k) * 0.75**k * 0.25 ** (4 - k) for k in range(v, 5)) for v in range(5)]
    expected = tail[3] + 2 * 10 * 1e-3 * max((tail[3 - i] - tail[3]) / i for i in (1, 2, 3))
    assert bounds.one_run_p_value(10, 4, 3, math.log(3), 1e-3) == pytest.approx(expected, rel=1e-12)
    assert bounds.one_run_p_value(10, 4, 0, 1.0, 0.0) == 1.0


def test_guesses_on_a_known_gaussian_mechanism_keep_within_its_epsilon():
    """m independent coins, each with Gaussian noise of its own: 25 audits at 80%."""
    draws, mu, m = np.random.default_rng(4), 2.0, 200
    truth, found = gaussian_epsilon(mu, 1e-4), []
    for _ in range(25):
        coins = draws.random(m) < 0.5
        scores = np.where(coins, mu / 2, -mu / 2) + draws.normal(size=m)
        found.append(canaries.epsilon_from_guesses(scores, coins, 1e-4, 0.8))
    assert np.mean(np.array(found) > truth) <= 0.2
    assert np.median(found) > 0.7
    coins = draws.random(m) < 0.5
    assert canaries.epsilon_from_guesses(draws.normal(size=m), coins, 1e-4, 0.95) == 0
    # Noise of mu = 8 where epsilon = 2 is claimed: a mutation, and caught.
    assert canaries.epsilon_from_guesses(np.where(coins, 4.0, -4.0) + draws.normal(size=m), coins, 1e-6, 0.95) > 2.0


LINEAR = dpb.BilevelProblem(upper_term=lambda x, y: 0.5 * x**2, lower_loss=lambda x, y, record: -(y @ record))


def one_run_audit(epsilon=6.0, adjacency="replace-one"):
    spikes, inner = np.eye(500, 500), dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1)
    method, budget = dpb.DPBilevel(inner=inner, steps=1, step_size=0.1), dpb.Budget(epsilon, 1e-4, adjacency)
    return one_run(LINEAR, {"lower": spikes}, -spikes[:300], budget, start=(0.0, np.zeros(500)), method=method)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_one_run_proves_something_and_keeps_the_claim(adjacency):
    found = one_run_audit(adjacency=adjacency)
    assert 0.5 < found.lower_bound <= found.claimed
    assert (found.runs, found.canaries, found.records) == (1, 300, 500)


def test_one_run_without_noise_is_caught(monkeypatch):
    weaken_noise(monkeypatch, 0.05)
    found = one_run_audit(epsilon=1.0)
    assert found.claimed == pytest.approx(1.0, abs=1e-6)
    assert not found.passed


# -------------------------------------------------------------------------------------------------------- the words


def test_an_audit_tells_its_numbers():
    found = found_at_four(MEAN.name)
    assert dpb.audit.Audit.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    assert audit(MEAN, BUDGET, runs=8000, confidence=0.999) == found  # repeatable
    assert "compatible with the claim of 4" in str(found)
    lines = dpb.audit.table([found]).splitlines()
    assert len(lines) == 2
    assert lines[0].split()[0] == HEADER[0]
    refuted = dpb.audit.Audit.from_json(found.to_json() | {"lower_bound": 5.0, "upper_bound": None})
    assert not refuted.passed
    assert "REFUTES the claim" in str(refuted)
    assert refuted.upper_bound == math.inf
    assert "∞" in refuted.row()


def test_lower_bounds_are_never_rounded_up():
    found = dpb.audit.Audit.from_json(found_at_four(MEAN.name).to_json() | {"lower_bound": 1.9999})
    assert "1.99" in found.row()


@pytest.fixture
def command(monkeypatch, capfd):
    """Run `dpbilevel audit` on one case; returns its exit code, stdout and stderr."""
    from dpbilevel.cli import app

    monkeypatch.setattr("dpbilevel.audit.worst_cases.standard_cases", lambda budget: [MEAN])

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["dpbilevel", "audit", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return (ended.value.code, *capfd.readouterr())

    return run


def test_the_command_shows_a_table_and_names_what_is_wrong(command):
    code, stdout, _ = command("--epsilon", "4", "--runs", "100")
    assert code == 0
    assert MEAN.name in stdout
    assert "No lower bound exceeds the claim" in stdout
    code, _, stderr = command("--epsilon", "-1")
    assert code == 2
    assert "epsilon" in stderr


def test_the_command_fails_where_a_claim_is_refuted(command, monkeypatch):
    weaken_noise(monkeypatch, 0.0)
    code, stdout, error = command("--epsilon", "0.5", "--runs", "400", "--json")
    assert code == 1
    assert "the lower bound exceeds the claim" in error
    reported = json.loads(stdout)
    assert (reported["passed"], len(reported["audits"])) == (False, 1)
    assert reported["audits"][0]["confidence"] == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 39}, "^runs=39"),
        ({"runs": 0}, "^runs=0"),
        ({"confidence": 1.0}, "^confidence=1.0"),
        ({"seed": -1}, "^seed=-1"),
        ({"budget": dpb.Budget(math.inf)}, "^budget"),
        ({"budget": 1.0}, "^budget"),
        ({"case": "Tracking"}, "^case"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(dpb.InvalidArgument, match=message):
        audit(**{"case": MEAN, "budget": BUDGET, "runs": 40} | change)


def test_cases_must_differ_in_one_record():
    arguments = {"name": "x", "problem": MEAN.problem, "method": MEAN.method, "start": (0.0, 0.0)}
    points = np.zeros(5)
    for neighbour in ({"lower": points}, {"lower": points + 1}, {"lower": points[:4]}, {"both": points}):
        with pytest.raises(dpb.InvalidArgument, match=r"^neighbour"):
            dpb.audit.Case(**arguments, records={"lower": points}, neighbour=neighbour)


def test_whole_numbers_are_narrowed_as_records_are():
    """NumPy's int64 as an index beside JAX's int32 would not trace."""
    one = {"value": np.linspace(0, 1, 20), "source": np.arange(20) % 2}
    other = one | {"value": np.append(one["value"][:-1], -1.0)}
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * (y[record["source"]] - record["value"]) ** 2,
    )
    start = (np.zeros(2), np.zeros(2))
    case = dpb.audit.Case(
        name="x",
        problem=problem,
        method=dpb.Refit(steps=1),
        start=start,
        records={"lower": one},
        neighbour={"lower": other},
    )
    assert audit(case, BUDGET, runs=40).passed


@pytest.mark.parametrize("records", [None, {"middle": np.zeros(5)}, {"lower": object()}, {"lower": np.array(["a"])}])
def test_records_of_cases_are_checked_as_records_are(records):
    with pytest.raises(dpb.DPBilevelError, match=r"^(records|lower)"):
        dpb.audit.Case(name="x", problem=MEAN.problem, method=MEAN.method, records=records, neighbour=records)


def test_tables_are_of_audits():
    for wrong in ([], [1], "x", None):
        with pytest.raises(dpb.InvalidArgument, match=r"^audits"):
            dpb.audit.table(wrong)


def test_estimators_of_others_are_refused():
    linear_model = pytest.importorskip("sklearn.linear_model")
    table = {"X": np.zeros((4, 1)), "y": np.arange(4.0)}
    with pytest.raises(dpb.InvalidArgument, match=r"^estimator"):
        dpb.audit.Case.of_estimator("x", linear_model.LinearRegression(), table, table)


def test_canaries_must_fit_the_records():
    spikes = np.eye(4)
    for wrong in (spikes[:1], np.eye(5), np.eye(4, 3), (spikes, spikes)):
        with pytest.raises(dpb.InvalidArgument, match=r"^alternatives"):
            one_run(LINEAR, {"lower": spikes}, wrong, dpb.Budget(1.0, 1e-3), start=(0.0, np.zeros(4)))


def test_the_reach_is_that_of_the_best_test_against_gaussian_noise():
    found = found_at_four(MEAN.name)
    false = np.arange(1, 400)
    true = np.floor(4000 * norm.cdf(BUDGET.mu - norm.isf(false / 4000))).astype(int)
    best = bounds.epsilon_lower_bound(true, false, 4000, DELTA, 0.999)
    assert found.reach == pytest.approx(float(best.max()), abs=0.2)
    # Nearly everything that is charged reaches the released values, and the attack finds it.
    assert found.lower_bound == pytest.approx(found.reach, abs=0.5)
