"""The examples of the page on extending: they keep what they promise, by closed forms and by brute force."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import dpbilevel as dpb
from dpbilevel.privacy.accountant import composed_delta
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.records import isolated_jax_config

PAGE = next(Path(folder, "docs", "extending.md") for folder in Path(__file__).parents if Path(folder, "docs").exists())


def defined(name):
    """What the block of the page defines that has this class in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (block,) = [block for block in blocks if f"class {name}(" in block]
    names = {"__name__": "page"}
    exec(compile(block, "extending.md", "exec"), names)
    return names[name]


@pytest.fixture(scope="module")
def heavy_ball():
    return defined("HeavyBall")


@pytest.fixture(scope="module")
def systematic():
    return defined("Systematic")


# ------------------------------------------------------------------------------------------------ an inner solver

PROBLEM = dpb.BilevelProblem(
    upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
)


@pytest.mark.parametrize("budget", [dpb.Budget(1.0, 1e-4), dpb.Budget(1.0, 1e-4, "zero-out"), dpb.Budget(math.inf)])
def test_a_solver_of_a_newcomer_finds_the_solution_and_spends_the_budget(heavy_ball, budget):
    records = dpb.Records(lower=np.linspace(-1, 1, 5000) + 0.25)
    method = dpb.DPBilevel(inner=heavy_ball(), step_size=0.5, steps=10)
    solution = dpb.solve(PROBLEM, records, budget, method=method, start=(0.0, 0.0))
    assert solution.privacy.epsilon() == pytest.approx(budget.epsilon, abs=1e-6)
    assert float(solution.y) == pytest.approx(0.25, abs=0.15 if budget.is_private else 0.01)
    uses = {charge.release: charge.uses for charge in solution.privacy.charges["lower"]}
    assert uses == {"lower solve": 200, "penalised solve": 200}


def test_a_solver_has_exact_noise_without_knowing_of_it(heavy_ball):
    pytest.importorskip("opendp", reason='exact noise needs the extra "exact"')
    sizes = dpb.Records(lower=np.linspace(-1, 1, 500)).sizes
    method = dpb.DPBilevel(inner=heavy_ball(), step_size=0.5, steps=3)
    planned = dpb.plan(PROBLEM, sizes, dpb.Budget(1.0, 1e-4), method=method, start=(0.0, 0.0), noise="exact")
    assert planned.privacy.exact_noise
    assert planned.privacy.epsilon() == pytest.approx(1.0, abs=1e-4)


def test_a_solver_that_asks_more_often_than_it_declares_is_refused(heavy_ball):
    class Greedy(heavy_ball):
        def declare(self, problem, declare):
            return declare(problem.rounds, dpb.FullBatch())

    sizes = dpb.Records(lower=np.linspace(-1, 1, 500)).sizes
    method = dpb.DPBilevel(inner=Greedy(), step_size=0.5, steps=3)
    with pytest.raises(dpb.InvalidProblem, match="declares 3 uses, the program makes 60"):
        dpb.plan(PROBLEM, sizes, dpb.Budget(1.0, 1e-4), method=method, start=(0.0, 0.0))


def test_a_solver_whose_release_has_another_name_is_refused(heavy_ball):
    class Renamed(heavy_ball):
        def declare(self, problem, declare):
            return replace(super().declare(problem, declare), name="elsewhere")

    sizes = dpb.Records(lower=np.linspace(-1, 1, 500)).sizes
    method = dpb.DPBilevel(inner=Renamed(), step_size=0.5, steps=3)
    with pytest.raises(dpb.InvalidArgument, match="DeclaredRelease named 'lower solve'"):
        dpb.plan(PROBLEM, sizes, dpb.Budget(1.0, 1e-4), method=method, start=(0.0, 0.0))


@pytest.mark.parametrize("inner", [None, "DPLocGD", dpb.DPLocGD, dpb.Tracking()])
def test_what_is_no_solver_is_refused(inner):
    with pytest.raises(dpb.InvalidArgument, match=r"inner=.*must be dpb.DPLocGD\(...\).*dpb.InnerSolver"):
        dpb.DPBilevel(inner=inner)


# ------------------------------------------------------------------------------------------------ DPBilevel()


@pytest.mark.filterwarnings("ignore::dpbilevel.errors.UtilityWarning")
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_without_arguments_it_takes_what_an_application_certifies(loss):
    problem = dpb.applications.regularization(loss, columns=3)
    rows = np.eye(3, dtype=np.float32)[np.arange(300) % 3]
    target = np.zeros(300, np.int32) if loss == "logistic" else np.zeros(300, np.float32)
    sizes = dpb.Records(upper=(rows[:100], target[:100]), lower=(rows[100:], target[100:])).sizes
    planned = dpb.plan(problem, sizes, dpb.Budget(1.0, 1e-4), method=dpb.DPBilevel())
    assert planned.privacy.epsilon() == pytest.approx(1.0, abs=1e-6)
    assert planned.parameters["penalty"][0] == max(10.0, problem.constants.smallest_penalty_weight())


def test_without_arguments_and_constants_it_says_all_that_is_missing():
    sizes = dpb.Records(lower=np.linspace(-1, 1, 500)).sizes
    with pytest.raises(dpb.InvalidArgument) as raised:
        dpb.plan(PROBLEM, sizes, dpb.Budget(1.0, 1e-4), method=dpb.DPBilevel(), start=(0.0, 0.0))
    for words in ("step_size=None, inner.strong_convexity=None", "constants=...", "(w/2)||y||^2", "a tenth of"):
        assert words in str(raised.value)


# ------------------------------------------------------------------------------------------------ a sampling scheme


def test_systematic_batches_hold_every_kth_record_and_each_equally_often(systematic):
    number, stride, steps = 11, 4, 2000
    scheme = systematic(stride)
    keys = jnp.asarray(KeySchedule(1).keys("batch", 0, steps))
    with isolated_jax_config(), jax.enable_x64(True):
        ((indices, counts),) = jax.vmap(lambda key: scheme.draw(key, [number]))(keys)
    batches = [tuple(row[mine].tolist()) for row, mine in zip(np.asarray(indices), np.asarray(counts), strict=True)]
    expected = {tuple(range(first, number, stride)) for first in range(stride)}
    assert set(batches) == expected
    for batch in expected:
        assert abs(batches.count(batch) / steps - 1 / stride) < 4.5 * math.sqrt(1 / stride / steps)


@pytest.mark.parametrize(("adjacency", "clips"), [("replace-one", 2.0), ("zero-out", 1.0)])
def test_what_a_systematic_batch_costs_is_never_below_the_truth_and_is_met_by_distant_batches(
    systematic, adjacency, clips
):
    """Sums of the other batches anywhere on a line, also so far away that the answer tells which was drawn."""
    stride, deviation, epsilon = 3, 1.5, 0.4
    axis, cell = np.linspace(-60, 60, 60_001, retstep=True)
    charge = Charge("sum", "lower", clips / deviation, 1, systematic(stride), 30)
    claimed = composed_delta([charge], epsilon, adjacency)
    worst = 0.0
    for others in itertools.product((-30.0, -1.0, 0.0, 1.0, 30.0), repeat=stride - 1):
        common = sum(norm.pdf(axis, at, deviation) for at in others)
        pair = [(common + norm.pdf(axis, at, deviation)) / stride for at in (1.0, 1.0 - clips)]
        for one, other in itertools.permutations(pair):
            worst = max(worst, float(np.sum(np.maximum(one - math.exp(epsilon) * other, 0)) * cell))
    assert worst <= claimed * (1 + 1e-6)
    assert worst >= claimed * 0.98


def test_a_scheme_that_could_change_after_its_charge_is_refused():
    @dataclass
    class Changing(dpb.Sampling):
        size: int = 3
        divisor, draw, loss_distribution = (
            getattr(dpb.WithReplacement, name) for name in ("divisor", "draw", "loss_distribution")
        )

    with pytest.raises(dpb.InvalidArgument, match="sampling=Changing: must be a frozen dataclass"):
        dpb.Tracking(sampling=Changing())


def test_a_run_with_systematic_batches_is_calibrated_kept_and_read_again(systematic):
    release = dpb.Release(
        name="mean",
        contributions={"lower": dpb.Contribution(lambda point, record: record, 1.0, 300)},
        noise_std=0.5,
        uses=5,
        sampling=systematic(10),
    )
    privacy = dpb.Privacy({"lower": release.charges()}, dpb.Budget(1.0, 1e-4))
    assert 0 < privacy.epsilon() < math.inf
    again = dpb.Privacy.from_json(privacy.to_json())
    assert again.charges["lower"][0].sampling.stride == 10
    assert again.epsilon() == privacy.epsilon()
    with pytest.raises(dpb.InvalidArgument, match="stride=301: must be at most n = 300"):
        dpb.Release(name="mean", contributions=release.contributions, noise_std=0.5, uses=5, sampling=systematic(301))


def test_a_scheme_from_elsewhere_is_a_caveat_of_the_guarantee_and_the_own_ones_are_not(systematic):
    sizes = dpb.Records(lower=np.linspace(-1, 1, 500)).sizes

    def caveats(sampling):
        method = dpb.DPBilevel(
            inner=dpb.DPLocSGD(sampling=sampling, steps=3, strong_convexity=1.0), step_size=0.5, steps=2
        )
        planned = dpb.plan(PROBLEM, sizes, dpb.Budget(1.0, 1e-4), method=method, start=(0.0, 0.0))
        return [caveat for caveat in planned.privacy.caveats if "sampling scheme" in caveat]

    (caveat,) = caveats(systematic(5))
    assert "Systematic is not part of the library" in caveat
    assert [caveats(own) for own in (dpb.Poisson(0.1), dpb.FullBatch())] == [[], []]
