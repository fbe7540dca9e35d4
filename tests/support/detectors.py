"""Detectors of broken privacy: each passes on the true code and raises AssertionError on a mutant that breaks it.

They run what people run and look at what it releases, or compare what is charged with a brute-force sum. Seeds are
fixed; the false-alarm rate says how lucky a seed had to be for the true code to fail.
"""

import contextlib
import functools
import math
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.stats import bernoulli, binom, binomtest, norm
from support.batch_checks import check_public_division, taken_by_role
from support.buffer_cases import Case
from support.hockey_stick import hockey_stick
from support.neighbours import CASES, check_sensitivity
from support.noise_checks import check_independent, check_moments, check_scale
from support.unit_neighbours import check_units

import dpbilevel as dpb
from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy import accountant
from dpbilevel.privacy.accountant import composed_delta
from dpbilevel.privacy.accounting import all_charges
from dpbilevel.privacy.calibration import calibrate
from dpbilevel.privacy.clipping import ROUNDING
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.records import Records

DIMENSION, STEPS, COUNT, CLIP = 256, 100, 40, 10.0
BUDGET = dpb.Budget(1.0, 1e-5)


def _record(point, record):
    return record


def _asking(*releases: Release) -> Program:
    """One use of each release a round; the history keeps all answers."""

    def stage(position: int, release: Release) -> Stage:
        return Stage(
            release=release,
            uses_per_round=1,
            query=lambda state, carry, step: 0.0,
            update=lambda state, carry, answer, step: carry.at[position].set(answer),
            begin=lambda state: state,
            end=lambda state, carry: carry,
        )

    return Program(
        rounds=releases[0].uses,
        stages=[stage(position, release) for position, release in enumerate(releases)],
        start=lambda x, y: y,
        observe=lambda state: {"answers": state},
        finish=lambda state: (jnp.zeros(()), state),
    )


@dataclass(frozen=True)
class Means:
    """A method that does nothing but release the mean of all records, again and again."""

    seed_of_mutant: int  # equal methods share a compiled program, and a mutant must not use that of the true code

    def program(self, context):
        contributions = {"lower": Contribution(_record, CLIP, COUNT)}
        declared = Release(name="mean", contributions=contributions, noise_std=1.0, uses=STEPS)
        return _asking(*calibrate([declared], context.budget)), {}


@functools.cache
def deviation() -> float:
    """The noise that the budget asks for, from the textbook: mu-GDP by root finding, sensitivity 2C/n, T uses."""

    def excess(mu: float) -> float:
        tail = math.exp(BUDGET.epsilon) * norm.cdf(-BUDGET.epsilon / mu - mu / 2)
        return float(norm.cdf(-BUDGET.epsilon / mu + mu / 2) - tail - BUDGET.delta)

    return 2 * CLIP * (1 + ROUNDING) / COUNT * math.sqrt(STEPS) / brentq(excess, 1e-3, 10.0, xtol=1e-14)


def released_noise() -> np.ndarray:
    """What a whole `solve` releases, less what is known of the records, in units of the noise that it should have."""
    centre = np.linspace(-0.05, 0.05, DIMENSION)
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: jnp.sum(x * y), lower_loss=lambda x, y, record: jnp.sum((y - record) ** 2)
    )
    solution = dpb.solve(
        problem,
        dpb.Records(lower=np.tile(centre, (COUNT, 1))),
        BUDGET,
        method=Means(id(problem)),
        start=(0.0, np.zeros((1, DIMENSION))),
        seed=0,
        progress=False,
    )
    answers = np.asarray(solution.history["answers"], np.float64)[:, 0]
    return (answers - centre.astype(np.float32)) / deviation()


def noise_has_the_law_that_the_budget_asks_for() -> None:
    """Kolmogorov-Smirnov and four moments of 25,600 released values; false-alarm rate 1.1e-4."""
    noise = released_noise()
    check_scale(noise)
    check_moments(noise)


def steps_have_noise_of_their_own() -> None:
    """Correlations of all pairs of 100 steps, Bonferroni; false-alarm rate 1e-4."""
    check_independent(released_noise())


def no_record_moves_an_answer_too_far() -> None:
    """Neighbour search over 300 extreme records, compared with the charged sensitivity; deterministic, no false
    alarms.
    """
    for name in ("squared", "both", "singular"):
        check_sensitivity(CASES[name])


def no_unit_moves_an_answer_too_far() -> None:
    """Search over 120 units of one to four extreme rows, for every release of a training, compared with the charged
    sensitivity; deterministic, no false alarms.
    """
    check_units(["FixedDefault"])


def batches_are_divided_by_public_numbers() -> None:
    """Neighbour search on a Poisson batch, and the contribution of each record to it; deterministic, no false
    alarms.
    """
    check_sensitivity(CASES["poisson"])
    check_public_division(0.5, taken_by_role(0.5, steps=5))


def releases_cost_what_their_batches_leak() -> None:
    """Two releases per round: the members of their batches (8,000 pairs, false-alarm rate 1e-6), then the true delta
    by quadrature in the plane, compared with the charge.
    """
    rate, spread, epsilon, count, rounds = 0.2, 1.0, 2.0, 40, 200
    share = (1 + ROUNDING) / (rate * count)  # what one record adds, at most
    parts = {"lower": Contribution(_record, 1.0, count)}
    pair = [
        Release(name=name, contributions=parts, noise_std=spread * share, uses=1, sampling=dpb.Poisson(rate))
        for name in ("first", "second")
    ]
    quiet = [
        Release(name=r.name, contributions=parts, noise_std=1e-9, uses=rounds, sampling=dpb.Poisson(rate)) for r in pair
    ]
    state = np.zeros((2, count), np.float32)
    _, seen = Records(lower=np.eye(count)).execute(_asking(*quiet), Receipt(quiet), KeySchedule(0), state, rounds)
    first, second = np.moveaxis(np.asarray(seen["answers"]) > share / 2, 1, 0)
    together = int((first & second).sum())
    alone = binomtest(together, first.size, rate**2).pvalue > 1e-6
    true = _delta_of_two(rate, spread, epsilon, one_batch=not alone)
    claimed = composed_delta(all_charges(pair)["lower"], epsilon, "replace-one")
    assert claimed >= true * (1 - 1e-3), f"claimed {claimed:.3g}, true {true:.3g}"


def _delta_of_two(rate: float, spread: float, epsilon: float, *, one_batch: bool) -> float:
    """The true delta of two releases with a record at +1 or at -1 in a batch of their own, or in one for both."""
    axis, cell = np.linspace(-1 - 7 * spread, 1 + 7 * spread, 801, retstep=True)

    def density(at: float) -> np.ndarray:
        absent, present = norm.pdf(axis, 0, spread), norm.pdf(axis, at, spread)
        if one_batch:
            return (1 - rate) * np.outer(absent, absent) + rate * np.outer(present, present)
        mixed = (1 - rate) * absent + rate * present
        return np.outer(mixed, mixed)

    return hockey_stick(density(1.0), density(-1.0), epsilon, cell**2)


def fixed_batches_cost_what_they_leak() -> None:
    """One record is removed from fixed-size batches in which all others point in the opposite direction: the true
    delta by quadrature, compared with the charge; deterministic, no false alarms.
    """
    count, size, epsilon = 10, 2, 1.0
    axis, cell = np.linspace(-10, 14, 24_001, retstep=True)
    for kind, draws in (
        (dpb.WithoutReplacement, bernoulli(size / count)),
        (dpb.WithReplacement, binom(size, 1 / count)),
    ):
        release = Release(
            name="sum",
            contributions={"lower": Contribution(_record, 1.0, count)},
            noise_std=(1 + ROUNDING) / size,
            uses=1,
            sampling=kind(size),
            adjacency="zero-out",
        )
        times = np.arange(size + 1)
        there, gone = (draws.pmf(times) @ norm.pdf(axis, shift * times[:, None]) for shift in (2.0, 1.0))
        true = hockey_stick(there, gone, epsilon, cell)
        accountant._loss_distribution.cache_clear()  # a mutant must not use cached results of the true code
        claimed = composed_delta(release.charges(), epsilon, "zero-out")
        accountant._loss_distribution.cache_clear()
        assert claimed >= true * (1 - 1e-3), f"claimed {claimed:.3g}, true {true:.3g}"


def data_that_a_loss_closes_over_is_reported() -> None:
    """Two runs with the same noise whose loss closes over neighbouring data: if x differs, data has leaked, and the
    result must have a caveat; deterministic, no false alarms.
    """
    rows = np.linspace(-1, 1, 50)
    found = [_closing_run(data) for data in (rows, np.where(rows == rows[0], 30.0, rows))]
    if found[0].x == found[1].x:
        raise RuntimeError("the attack has no teeth: x must move with the data")
    assert all(solution.privacy.caveats for solution in found), "data moved x, and the result does not say so"


def _closing_run(data: np.ndarray) -> dpb.Solution:
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x + y - 1) ** 2,
        lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2 + x * y * jnp.mean(jnp.asarray(data, jnp.float32)),
    )
    method = dpb.DPBilevel(inner=dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1), step_size=0.1, steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.PrivacyLeakWarning)
        return dpb.solve(
            problem,
            dpb.Records(lower=np.zeros(50)),
            dpb.Budget(1.0, 1e-3),
            method=method,
            start=(0.0, 0.5),
            seed=0,
            progress=False,
        )


def a_resumed_run_is_in_the_ledger() -> None:
    """A run is interrupted after its charge and resumes with a new ledger, as in another process; no false alarms."""
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * (x + y) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    )
    records = dpb.Records(lower=np.linspace(-1, 1, 40))
    execute = Records.execute

    def solved(ledger: dpb.Ledger) -> None:
        method = dpb.Tracking(steps=4)
        dpb.solve(problem, records, BUDGET, method=method, refit=None, start=(0.0, 0.0), ledger=ledger, checkpoint=path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        Records.execute = interrupt
        try:
            with contextlib.suppress(KeyboardInterrupt):
                solved(dpb.Ledger(BUDGET))
        finally:
            Records.execute = execute
        ledger = dpb.Ledger(BUDGET)
        solved(ledger)
        assert len(ledger.entries) == 1, "a run that goes on is not in the ledger"


def what_is_measured_is_what_is_summed() -> None:
    """The optimised HLO of a release: every path from records to the answer goes through the buffer whose entries
    and norms are tested, with float and exact noise; deterministic, no false alarms.
    """
    assert Case("gradient", "one block", "full batch").is_measured_once()
    assert Case("gradient", "one block", "exact").is_measured_once()
