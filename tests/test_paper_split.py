"""The paper's split: claimed 1, by its own lemma 5.29, exactly 0.250 (T = 100, epsilon = 1, delta = 1e-6)."""

import math

import pytest
from problems import quadratic_both

import dpbilevel as dpb
from dpbilevel.paper.split import PaperSplit
from dpbilevel.privacy.accounting import gaussian_epsilon


def test_claimed_by_its_own_lemma_and_exact():
    split = PaperSplit(dpb.Budget(1.0, 1e-6), steps=100)
    assert split.epsilon == pytest.approx(1 / math.sqrt(1800))
    assert split.delta == pytest.approx(1e-6 / 303)
    assert split.epsilon_by_its_own_lemma == pytest.approx(5.29, abs=0.005)
    assert split.exact_epsilon == pytest.approx(0.250, abs=0.0005)
    assert split.excess_noise == pytest.approx(3.64, abs=0.005)


def test_a_run_with_the_papers_split_reports_the_true_epsilon_beside_the_claimed():
    case = quadratic_both(200)
    budget = dpb.Budget(1.0, 1e-6)
    arguments = {"start": case.start, "method": case.method(steps=7, penalty_weight=10.0, split="paper")}
    planned = dpb.plan(case.problem, case.records().sizes, budget, **arguments)
    split = PaperSplit(budget, 7)
    assert planned.privacy.epsilon(role="both") == pytest.approx(split.exact_epsilon, rel=1e-6)
    assert planned.privacy.epsilon() < 1.0
    claimed, reason = planned.parameters["epsilon claimed by the paper's split"]
    assert claimed == 1.0
    assert f"{split.exact_epsilon:.4g}" in reason
    assert f"{split.epsilon_by_its_own_lemma:.4g}" in reason


def test_exact_calibration_needs_that_much_less_noise():
    case = quadratic_both(200)
    budget = dpb.Budget(1.0, 1e-6)
    sizes = case.records().sizes
    noises = []
    for split in ((1.0, 1.0, 1.0), "paper"):
        method = case.method(steps=7, penalty_weight=10.0, split=split)
        planned = dpb.plan(case.problem, sizes, budget, method=method, start=case.start)
        noises.append(planned.releases[0].noise_std)
    assert noises[1] / noises[0] == pytest.approx(PaperSplit(budget, 7).excess_noise, rel=1e-6)


def test_it_spends_less_for_any_number_of_steps():
    for steps in (1, 10, 1000):
        split = PaperSplit(dpb.Budget(1.0, 1e-6), steps)
        assert split.exact_epsilon < 1.0 < split.epsilon_by_its_own_lemma
        assert split.exact_epsilon == gaussian_epsilon(split.mu * math.sqrt(3 * steps), 1e-6)


def test_refusals():
    with pytest.raises(dpb.InvalidArgument, match="split"):
        PaperSplit(dpb.Budget(math.inf), 5)
    case = quadratic_both(200)
    with pytest.raises(dpb.InvalidArgument, match="split="):
        case.method(split="exact")
