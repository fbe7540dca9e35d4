"""Private random search: what the best of K runs costs, checked against the truth, and that K stays secret."""

import json
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare, norm
from support.problems import quadratic

import dpbilevel as dpb
from dpbilevel.baselines import NumberOfRuns, PrivateRandomSearch, run_mu, selection_epsilon
from dpbilevel.baselines.random_search import OneRun, _uniform
from dpbilevel.baselines.runs import with_mu
from dpbilevel.privacy.accounting import all_charges, gaussian_epsilon
from dpbilevel.privacy.declared import BestOfRuns, DeclaredRelease
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.selection import selection_rdp
from dpbilevel.privacy.stores.entry import standard

LAWS = [NumberOfRuns(mean, shape) for mean in (2.0, 10.0, 100.0) for shape in (-0.5, 0.0, 0.5, 1.0, 4.0, math.inf)]
QUICK = dpb.Refit(steps=20)


# ---------------------------------------------------------------------------------------------- the law of the runs


SHORT = [law for law in LAWS if law.shape > 0 or law.mean < 50]  # the other tails are too long to sum up


@pytest.mark.parametrize("law", SHORT, ids=repr)
def test_the_law_has_its_mean_and_sums_to_one(law):
    numbers = np.arange(8000)
    probabilities = np.zeros(len(numbers))
    probabilities[:2] = law.probability(0), law.probability(1)
    for k in range(1, len(numbers) - 1):  # the recurrence of the definition, independent of how draws are made
        ratio = law.mean / (k + 1) if law.is_poisson else (1 - law.gamma) * (k + law.shape) / (k + 1)
        probabilities[k + 1] = probabilities[k] * ratio
    assert probabilities.sum() == pytest.approx(1, rel=1e-9)
    assert probabilities @ numbers == pytest.approx(law.mean, rel=1e-8)
    assert law.probability(7) == pytest.approx(probabilities[7], rel=1e-9)
    for k in (1, 3, 20):
        below = probabilities[: k + 1].sum()
        if 1e-6 < below < 1 - 1e-6:
            assert law.quantile(below - 1e-9) == k
            assert law.quantile(below + 1e-9) == k + 1


def test_gamma_is_the_one_that_the_accountant_uses():
    from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial

    for law in LAWS:
        if 0 <= law.shape < math.inf:
            assert law.gamma == pytest.approx(_gamma_truncated_negative_binomial(law.shape, law.mean), rel=1e-8)


def test_draws_follow_the_law():
    law = NumberOfRuns(5.0, 0.0)
    drawn = np.array([law.quantile(_uniform(KeySchedule(seed), "noise", 0)) for seed in range(4000)])
    edges = [*range(1, 12), 10**9]
    observed = np.histogram(drawn, edges)[0]
    inner = np.array([law.probability(k) for k in range(1, 11)])
    assert chisquare(observed, 4000 * np.append(inner, 1 - inner.sum())).pvalue > 1e-4
    twin = NumberOfRuns(5.0, 1.0)  # another law with the same mean
    wrong = np.array([twin.probability(k) for k in range(1, 11)])
    assert chisquare(observed, 4000 * np.append(wrong, 1 - wrong.sum())).pvalue < 1e-10


# --------------------------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize(("mu", "mean"), [(0.1, 10.0), (0.5, 3.0), (1.0, 30.0)])
def test_the_geometric_law_costs_what_theorem_2_says(mu, mean):
    """eta = 1, gamma = 1/mean, one run is a mu^2/2-RDP: both orders by calculus or on a far finer grid, by hand."""
    delta = 1e-6
    # (1 + eta) min over b of (b - 1) mu^2/2 + ln(mean)/b, at b = sqrt(2 ln(mean))/mu
    best = max(math.sqrt(2 * math.log(mean)) / mu, 1.0)
    extra = 2 * ((best - 1) * mu**2 / 2 + math.log(mean) / best)
    orders = np.linspace(1.02, 200, 200_000)
    rdp = orders * mu**2 / 2 + extra + math.log(mean) / (orders - 1)
    epsilon = np.min(rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    claimed = selection_epsilon(mu, NumberOfRuns(mean, 1.0), delta)
    assert epsilon * (1 - 1e-9) <= claimed <= 1.005 * epsilon


@pytest.mark.parametrize("law", [law for law in LAWS if 0 <= law.shape < math.inf], ids=repr)
def test_the_formula_for_negative_shapes_agrees_with_the_library_where_that_has_one(law):
    from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select

    orders = 1 + np.geomspace(0.01, 1e3, 60)
    theirs = _compute_rdp_repeat_and_select(orders, orders * 0.02, law.mean, law.shape)
    ours = np.minimum.accumulate(selection_rdp(orders, orders * 0.02, law)[::-1])[::-1]  # RDP grows with the order
    np.testing.assert_allclose(ours, theirs, rtol=1e-7)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_trivial_bounds(law):
    """Dearer than one run; cheaper than all runs of a K that is exceeded with a probability of delta/2 only."""
    mu, delta = 0.1, 1e-6
    claimed = selection_epsilon(mu, law, delta)
    assert claimed > gaussian_epsilon(mu, delta)
    most = law.quantile(1 - delta / 2)
    assert claimed < gaussian_epsilon(mu * math.sqrt(most), delta / 2)
    assert selection_epsilon(0.9 * mu, law, delta) < claimed < selection_epsilon(mu, law, delta / 10)


def test_a_single_run_costs_about_what_a_gaussian_does():
    assert (
        gaussian_epsilon(0.3, 1e-6)
        < selection_epsilon(0.3, NumberOfRuns(1.0), 1e-6)
        < 1.1 * gaussian_epsilon(0.3, 1e-6)
    )


def generating(law):
    """E[s^K], exactly: the best output is at most j with probability E[F(j)^K]."""
    if law.is_poisson:
        return lambda s: np.exp(-law.mean * (1 - s))
    if law.shape == 0:
        return lambda s: np.log1p(-(1 - law.gamma) * s) / math.log(law.gamma)
    return lambda s: (
        np.expm1(-law.shape * np.log1p(-(1 - law.gamma) * s)) / math.expm1(-law.shape * math.log(law.gamma))
    )


def best_of(probabilities, generate):
    """The exact law of the best of K outputs, worst first; the last entry is that nothing was run at all."""
    below = np.concatenate([[0.0], np.cumsum(probabilities)])
    below[-1] = 1.0
    return np.append(np.diff(generate(below)), generate(np.zeros(())))


def exact_epsilon(generate, delta, pairs):
    """The smallest epsilon that holds at delta for selection from these mechanisms, in both directions."""
    worst = 0.0
    for pair in pairs:
        for p, q in (pair, pair[::-1]):
            first, second = best_of(p, generate), best_of(q, generate)
            # delta(epsilon) falls, so that bisection finds where it meets delta
            low, high = 0.0, 60.0
            for _ in range(60):
                middle = (low + high) / 2
                exceeds = np.maximum(first - math.exp(middle) * second, 0).sum() > delta
                low, high = (middle, high) if exceeds else (low, middle)
            worst = max(worst, high)
    return worst


def finite_mechanisms(mu):
    """Mechanisms with few outputs in some order of merit, all of them mu-GDP: a Gaussian seen through cells."""
    rng = np.random.default_rng(0)
    for cells in (2, 3, 5, 400):
        for centre in (-3.0, 0.0, 3.0):
            edges = np.concatenate([[-np.inf], np.linspace(centre - 2, centre + 2, cells - 1), [np.inf]])
            if cells == 400:
                edges[1:-1] = np.linspace(-8, 8, cells - 1)
            p, q = np.diff(norm.cdf(edges)), np.diff(norm.cdf(edges - mu))
            for order in (np.arange(cells), np.arange(cells)[::-1], rng.permutation(cells)):
                yield p[order], q[order]


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize(("mu", "delta"), [(0.1, 1e-6), (0.1, 1e-3), (0.8, 1e-6), (0.8, 1e-3)])
def test_no_mechanism_costs_more_than_is_claimed(law, mu, delta):
    truth = exact_epsilon(generating(law), delta, finite_mechanisms(mu))
    assert truth <= selection_epsilon(mu, law, delta)
    # The mutation that charges one run only is caught by the same truth.
    assert truth > gaussian_epsilon(mu, delta)


def searched(law, mu=0.1, delta=1e-6):
    """The privacy of a search whose runs are mu-GDP."""
    event = BestOfRuns(selection_epsilon(mu, law, delta), delta, mu=mu, mean_runs=law.mean, shape=law.shape)
    release = DeclaredRelease(name="search", roles={"lower": 100, "upper": 50}, event=event, uses=1)
    return dpb.Privacy(all_charges([release]), dpb.Budget(event.epsilon, delta))


@pytest.mark.parametrize("law", [law for law in LAWS if law.mean < 50], ids=repr)
@pytest.mark.parametrize("group", [2, 4])
def test_no_mechanism_costs_a_group_more_than_is_claimed(law, group):
    """A run that is mu-GDP for one record is (k mu)-GDP for k: the exact law of the best of K such runs."""
    privacy = searched(law)
    claimed = privacy.epsilon(group=group)
    true = exact_epsilon(generating(law), 1e-6, finite_mechanisms(group * 0.1))
    assert true <= claimed < math.inf
    if law.shape <= 1 or group > 2:  # the mutant that forgets the group; elsewhere the bound for one record is loose
        assert true > privacy.epsilon()
    assert claimed == privacy.epsilon(group=group, role="upper")


def test_the_price_of_a_search_is_known_at_other_deltas_and_survives_json():
    for law in (NumberOfRuns(10.0, 1.0), NumberOfRuns(10.0, math.inf)):
        privacy = searched(law)
        assert privacy.epsilon(1e-9) == pytest.approx(selection_epsilon(0.1, law, 1e-9), rel=1e-9)
        again = dpb.Privacy.from_json(json.loads(json.dumps(standard(privacy.to_json()))))
        assert again.charges == privacy.charges
        assert again.epsilon(group=3) == privacy.epsilon(group=3) == selection_epsilon(0.1 * 3, law, 1e-6)


def test_of_a_black_box_nothing_is_known_for_a_group_at_its_own_delta():
    release = DeclaredRelease(name="box", roles={"lower": 100}, event=dpb.ApproximateDP(1.0, 1e-6), uses=1)
    privacy = dpb.Privacy(all_charges([release]), dpb.Budget(1.0, 1e-6))
    assert privacy.epsilon(group=2) == math.inf
    assert 2.0 <= privacy.epsilon(1e-6 * (1 + math.exp(1.001)), group=2) < 2.01


@pytest.mark.parametrize(("mu", "mean", "shape"), [(0.1, 10, 1.0), (0.1, 100, 0.0), (0.5, 10, -0.5), (0.5, 100, 1.0)])
def test_a_search_that_makes_a_fixed_number_of_runs_is_caught(mu, mean, shape):
    """The mutation that ignores K's randomness: as many runs as the mean, at the price of a random number."""
    claimed = selection_epsilon(mu, NumberOfRuns(mean, shape), 1e-6)
    assert exact_epsilon(lambda s: np.asarray(s) ** mean, 1e-6, finite_mechanisms(mu)) > claimed
    assert exact_epsilon(generating(NumberOfRuns(mean, shape)), 1e-6, finite_mechanisms(mu)) <= claimed


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, math.inf])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_calibration_meets_the_budget_from_below(shape, epsilon):
    law = NumberOfRuns(10.0, shape)
    mu = run_mu(law, epsilon, 1e-6)
    assert 0.9999 * epsilon < selection_epsilon(mu, law, 1e-6) <= epsilon


def test_a_run_spends_what_the_accountant_assumes_of_it():
    """Role by role, for disjoint roles, pooled ones and records in both."""
    case = quadratic()
    budget = with_mu(dpb.Budget(1.0, 1e-6), 0.111)
    both = dpb.Records(both=case.data["lower"]).sizes
    pooled = replace(case.problem, upper_trains=True)
    for problem, sizes in ((case.problem, case.records().sizes), (pooled, case.records().sizes), (case.problem, both)):
        plan = dpb.plan(problem, sizes, budget, method=OneRun(training=QUICK, score_range=(0.0, 3.0)), start=case.start)
        assert 0.111 * (1 - 1e-6) < plan.privacy.mu <= 0.111
        if problem is not pooled:  # there one Gaussian covers both roles, and lower records have no score to pay for
            for role in plan.privacy.charges:
                assert plan.privacy.epsilon(role=role) == pytest.approx(budget.epsilon, rel=1e-6)
    names = {role: [charge.release for charge in charges] for role, charges in plan.privacy.charges.items()}
    assert names == {"both": ["training", "score"]}


# -------------------------------------------------------------------------------------------------- charge, then touch


class Watch:
    """What a search does, in order: charges of the ledger, draws of K, executions on records."""

    def __init__(self, monkeypatch, ledger=None, number=None):
        self.events = []
        execute, quantile = dpb.Records.execute, NumberOfRuns.quantile

        def executed(records, *arguments):
            self.events.append(("execute", 0 if ledger is None else len(ledger.entries)))
            return execute(records, *arguments)

        def drawn(law, uniform):
            self.events.append(("draw", 0 if ledger is None else len(ledger.entries)))
            return quantile(law, uniform) if number is None else number

        monkeypatch.setattr(dpb.Records, "execute", executed)
        monkeypatch.setattr(NumberOfRuns, "quantile", drawn)


CASE = quadratic(400)
CASE = replace(CASE, problem=replace(CASE.problem, domain=dpb.Ball(0.9)))
BUDGET = dpb.Budget(3.0, 1e-5)
CANDIDATES = [np.full(3, value) for value in (-0.5, 0.0, 0.5)]
SEARCH = PrivateRandomSearch(candidates=CANDIDATES, score_range=(0.0, 3.0), training=QUICK)


def search(baseline=SEARCH, budget=BUDGET, **settings):
    settings = {"seed": 0, "progress": False, "start": CASE.start} | settings
    return baseline.solve(CASE.problem, CASE.records(), budget, **settings)


def test_everything_is_charged_before_k_is_drawn_and_a_record_is_read(monkeypatch):
    ledger = dpb.Ledger(dpb.Budget(5.0, 1e-4))
    watch = Watch(monkeypatch, ledger, number=4)
    solution = search(ledger=ledger)
    assert watch.events == [("draw", 1)] + [("execute", 1)] * 4
    (entry,) = ledger.entries
    assert entry.epsilon == pytest.approx(BUDGET.epsilon, abs=1e-8)
    assert (entry.delta, entry.mu) == (BUDGET.delta, None)
    assert solution.privacy.epsilon() == entry.epsilon
    assert ledger.spent() == entry.epsilon
    assert [round(solution.privacy.epsilon(group=rows), 1) for rows in (2, 5)] == [6.0, 14.3]


def test_a_ledger_without_budget_leaves_everything_untouched(monkeypatch):
    ledger = dpb.Ledger(dpb.Budget(2.9, 1e-4))
    watch = Watch(monkeypatch, ledger)
    with pytest.raises(dpb.BudgetExceeded, match="PrivateRandomSearch: needs epsilon 3"):
        search(ledger=ledger)
    assert watch.events == []
    assert ledger.entries == ()


def test_searches_and_other_runs_share_a_ledger():
    ledger = dpb.Ledger(dpb.Budget(5.0, 1e-4))
    search(ledger=ledger)
    dpb.solve(
        CASE.problem, CASE.records(), dpb.Budget(1.0, 1e-5), method=QUICK, start=CASE.start, refit=None, ledger=ledger
    )
    assert ledger.spent() == pytest.approx(4.0, abs=1e-6)
    with pytest.raises(dpb.BudgetExceeded):
        search(ledger=ledger)
    gaussian = dpb.Ledger(dpb.Budget(5.0, 1e-4), composition="gaussian")
    with pytest.raises(dpb.InvalidArgument, match='composition="basic"'):
        search(ledger=gaussian)


@pytest.mark.parametrize("epsilon", [1.0, 1 / 3, 0.99995, 7.123456])
def test_any_epsilon_can_be_charged_in_full(epsilon):
    budget = dpb.Budget(epsilon, 1e-5)
    planned, charged = SEARCH._plan(CASE.problem, CASE.records(), budget, CASE.start)
    ledger = dpb.Ledger(budget)
    ledger.charge(charged, budget, "search")
    assert epsilon - 1e-4 <= ledger.spent() <= epsilon * (1 + 1e-12)
    assert selection_epsilon(planned.budget.mu, SEARCH.runs, 1e-5) <= ledger.spent()


def test_runs_of_a_search_have_noise_of_their_own(monkeypatch):
    """Two runs at one and the same candidate differ, with a fixed seed too; the same seed repeats the whole search."""
    Watch(monkeypatch, number=1)
    alone = PrivateRandomSearch(candidates=CANDIDATES[:1], score_range=(0.0, 3.0), training=QUICK)
    one = search(alone)
    np.testing.assert_array_equal(one.y, search(alone).y)
    assert not np.array_equal(one.y, search(alone, seed=1).y)
    Watch(monkeypatch, number=12)
    twelve = search(alone)
    assert twelve.history["score"] < one.history["score"]


# ------------------------------------------------------------------------------------------------------- K stays secret


def visible(solution, path):
    """All that a solution shows, but for the values of x, y and the score."""
    content = json.loads(solution.save(path).read_text())
    for name in ("x", "y"):
        del content[name]["array"]
    del content["history"]["dict"]["score"]["array"]
    report = re.sub(r"\| x\S* \| .* \|", "", solution.report(path.with_suffix(".md")).read_text())
    return content, repr(solution), solution.summary(), re.sub(r"(\| score \| \d+ \|) .* \|", r"\1", report)


def test_nothing_in_a_solution_depends_on_the_number_of_runs(monkeypatch, tmp_path):
    seen = []
    for number in (1, 7):
        Watch(monkeypatch, number=number)
        solution = search()
        seen.append(visible(solution, tmp_path / "solution.json"))
    assert seen[0] == seen[1]
    mutant = replace(solution, parameters={**solution.parameters, "runs made": (7, "a mutation")})
    assert visible(mutant, tmp_path / "solution.json") != seen[0]
    longer = replace(solution, history={"score": np.zeros(7)})
    assert visible(longer, tmp_path / "solution.json") != seen[0]


def test_the_progress_bar_counts_nothing(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", True)
    search(progress=True)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "PrivateRandomSearch" in shown
    assert not re.search(r"\d", shown)


def test_no_run_at_all_gives_the_starting_point(monkeypatch):
    Watch(monkeypatch, number=0)
    solution = search(replace(SEARCH, shape=math.inf), start=(np.full(3, 0.25), np.full(3, 0.125)))
    np.testing.assert_array_equal(solution.x, np.full(3, 0.25))
    np.testing.assert_array_equal(solution.y, np.full(3, 0.125))
    assert solution.history["score"].tolist() == [math.inf]


# -------------------------------------------------------------------------------------------------------- what it finds


def test_without_privacy_it_finds_the_best_candidate():
    candidates = [CASE.solution + shift for shift in (0.0, 0.5, -0.5, 1.0)]
    baseline = PrivateRandomSearch(candidates=candidates, mean_runs=30, shape=math.inf, training=dpb.Refit(steps=150))
    case = quadratic(400)
    solution = baseline.solve(case.problem, case.records(), dpb.Budget(math.inf), start=case.start, seed=0)
    np.testing.assert_allclose(solution.x, CASE.solution, rtol=1e-6)
    # The released score is F(x) itself where nothing is noised: upper term and all.
    assert float(solution.history["score"][0]) == pytest.approx(
        CASE.value(CASE.solution) + 0.5 * np.mean(np.sum((CASE.data["upper"] - CASE.data["upper"].mean(0)) ** 2, 1)),
        abs=2e-3,
    )
    assert solution.privacy.void


@pytest.mark.slow
def test_privately_it_finds_the_best_of_three():
    case = quadratic(1500)
    candidates = [case.solution, case.solution + 1.0, case.solution - 1.0]
    baseline = PrivateRandomSearch(
        candidates=candidates, mean_runs=12, shape=math.inf, score_range=(0.0, 4.0), training=dpb.Refit(steps=40)
    )
    solution = baseline.solve(case.problem, case.records(), dpb.Budget(5.0, 1e-5), start=case.start, seed=0)
    np.testing.assert_allclose(solution.x, case.solution, rtol=1e-6)
    assert solution.privacy.void  # a seed


def test_a_prior_may_be_a_function_of_a_key(monkeypatch):
    drawn = []

    def prior(key):
        x = jax.random.uniform(key, (3,), minval=0.3, maxval=1.0)
        drawn.append(np.asarray(x))
        return x

    Watch(monkeypatch, number=6)
    norms = [np.linalg.norm(search(replace(SEARCH, candidates=prior), seed=seed).x) for seed in range(6)]
    assert max(norms) == pytest.approx(0.9, abs=1e-6)  # projected into the domain
    assert len(np.unique(np.stack(drawn), axis=0)) == len(drawn) == 6 * 7  # one of them before the charge


def test_a_secret_search_is_private_and_differs_from_run_to_run():
    with pytest.warns(dpb.NotPrivateWarning, match="seed is fixed"):
        search()
    one, other = search(seed=None), search(seed=None)
    assert not one.privacy.void
    assert not np.array_equal(one.y, other.y)


def test_a_score_of_ones_own_replaces_the_upper_loss_and_what_is_no_number_loses():
    baseline = PrivateRandomSearch(
        candidates=CANDIDATES,
        mean_runs=40,
        training=QUICK,
        score=lambda x, y, record: jnp.where(x[0] < 0.4, jnp.nan, 1.9) + 0 * record[0],
    )
    solution = search(baseline, budget=dpb.Budget(50.0, 1e-5))
    np.testing.assert_allclose(solution.x, 0.5)
    assert float(solution.history["score"][0]) == pytest.approx(1.9, abs=0.01)  # without the upper term, 0.0375


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SEARCH, candidates=[]), "candidates: must be a list"),
        (lambda: replace(SEARCH, mean_runs=0.5), "mean_runs=0.5: must lie between 1"),
        (lambda: replace(SEARCH, mean_runs="ten"), "mean_runs='ten'"),
        (lambda: replace(SEARCH, shape=-1.0), "shape=-1.0: must be above -1"),
        (lambda: replace(SEARCH, shape=math.nan), "shape=nan"),
        (lambda: replace(SEARCH, shape=-0.999999), "too close to -1"),
        (lambda: replace(SEARCH, score_range=(1.0, 0.0)), "score_range"),
        (lambda: replace(SEARCH, score_share=1.0), "score_share=1.0"),
        (lambda: replace(SEARCH, training="adam"), "training='adam': must be dpb.Refit"),
        (lambda: replace(SEARCH, score=3), "score: must be a function"),
        (lambda: search(replace(SEARCH, candidates=[np.zeros(2)])), "shapes of x0"),
        (lambda: search(replace(SEARCH, candidates=[{"a": 1.0}])), "structure of x0"),
        (lambda: search(replace(SEARCH, candidates=lambda key: np.zeros(5))), "shapes of x0"),
        (lambda: search(budget=dpb.Budget(1e-5, 1e-6)), "must be at least 0.0001"),
        (lambda: search(ledger=3), "ledger: must be dpb.Ledger"),
        (lambda: SEARCH.solve(CASE.problem, CASE.data, BUDGET, start=CASE.start), "records: must be dpb.Records"),
        (
            lambda: search(replace(SEARCH, score=lambda x, y, record: jnp.sum(record * np.arange(3.0)))),
            "closes over an array",
        ),
        (
            lambda: search(replace(SEARCH, score=lambda x, y, record: record)),
            "score: must return one real number",
        ),
    ],
)
def test_bad_arguments_are_named_before_anything_is_charged(monkeypatch, make, message):
    watch = Watch(monkeypatch)
    with pytest.raises(dpb.InvalidArgument, match=message):
        make()
    assert watch.events == []
