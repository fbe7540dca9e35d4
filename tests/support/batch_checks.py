"""Who is in Poisson batches and how much each adds: what the accountant assumes, checked on answers."""

import numpy as np
from scipy.stats import binomtest
from support.neighbours import executed, identity

from dpbilevel.privacy.release import Contribution, Release
from dpbilevel.privacy.sampling import Poisson
from dpbilevel.records import Records


def taken_by_role(rate, upper=50, lower=60, steps=400):
    """Answers that show who took part in which step: without noise, record i adds a vector of its own."""
    rows = np.eye(upper + lower, dtype=np.float32)
    parts = {"upper": Contribution(identity, 2.0, upper), "lower": Contribution(identity, 2.0, lower)}
    release = Release(name="who", contributions=parts, noise_std=0.0, uses=steps, sampling=Poisson(rate))
    answers = executed(release, Records(upper=rows[:upper], lower=rows[upper:]), upper + lower)
    return answers[:, :upper], answers[:, upper:]


def check_public_division(rate, answers_by_role):
    """A record adds exactly its vector over the public rate * n, or nothing."""
    for answers in answers_by_role:
        assert set(np.unique(answers)) == {np.float32(0), np.float32(1 / (rate * answers.shape[1]))}


def check_rate(rate, answers_by_role):
    """Frequencies in total, by record and by step: 912 binomial tests at 1e-7 each, so false alarms below 1e-4."""
    for answers in answers_by_role:
        taken = answers > 0
        for axis in (0, 1, None):
            counts = np.atleast_1d(taken.sum(axis=axis))
            draws = taken.size // counts.size
            assert min(binomtest(int(k), draws, rate).pvalue for k in np.unique(counts)) > 1e-7


def check_roles_are_sampled_independently(rate, answers_by_role):
    """The share of (upper i, lower i) pairs taken together is rate^2; 20,000 pairs, false-alarm rate 1e-6."""
    upper, lower = answers_by_role
    together = (upper > 0) & (lower[:, : upper.shape[1]] > 0)
    assert binomtest(int(together.sum()), together.size, rate**2).pvalue > 1e-6


def check_steps_are_sampled_independently(rate, answers_by_role):
    """The share of records taken twice in a row is rate^2; 43,890 pairs, false-alarm rate 1e-6."""
    taken = np.concatenate(answers_by_role, axis=1) > 0
    together = taken[1:] & taken[:-1]
    assert binomtest(int(together.sum()), together.size, rate**2).pvalue > 1e-6
