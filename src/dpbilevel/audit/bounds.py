"""Lower bounds on epsilon from counts of correct and wrong guesses, at a stated confidence.

**Two data sets.** If a mechanism is (epsilon, delta)-DP, then for every event and every ordered pair of neighbours

    P(event | one)  <=  e^epsilon P(event | other) + delta,     so     epsilon  >=  ln((P(one) - delta)/P(other)).

Both probabilities are bounded by exact (Clopper-Pearson) limits, one from below and one from above, each at half of the
allowed error probability. By the union bound, the result is valid for any mechanism and any number of runs. Estimates
that assume Gaussian outputs are tighter with fewer runs, but wrong if outputs are not Gaussian.

**One run** (Steinke, Nasr and Jagielski 2023). Each of m canaries is in the data in one of two versions, selected by
an independent fair coin. An adversary who sees the output guesses r of the coins and abstains from the others. If
flipping one coin is (epsilon, delta)-DP, then with p = e^epsilon/(1 + e^epsilon) and f(v) = P(Binomial(r, p) >= v)

    P(at least v guesses are right)  <=  f(v) + 2 m delta max over i = 1, ..., v of (f(v - i) - f(v))/i.

For delta = 0 the proof is short: given the output and all other coins, the odds of a coin are at most e^epsilon to one.
Each guess is therefore correct with probability at most p, independently of the others, and the number of correct
guesses is stochastically dominated by the binomial. The second term accounts for delta.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, binom

Counts = npt.NDArray[np.integer] | int

_GRID = 0.02  # step of the grid of epsilons for one-run bounds


def lower_limit(successes: Counts, trials: int, error: float) -> npt.NDArray[np.float64]:
    """Lower Clopper-Pearson limit of a probability; exceeds the true value with probability at most ``error``.

    >>> round(float(lower_limit(10, 10, 0.05)), 4)  # 0.05^(1/10)
    0.7411
    """
    successes = np.asarray(successes)
    limit = beta.ppf(error, np.maximum(successes, 1), trials - successes + 1)
    return np.asarray(np.where(successes == 0, 0.0, limit))


def upper_limit(successes: Counts, trials: int, error: float) -> npt.NDArray[np.float64]:
    """Upper Clopper-Pearson limit of a probability; is below the true value with probability at most ``error``.

    >>> round(float(upper_limit(0, 10, 0.05)), 4)  # 1 - 0.05^(1/10)
    0.2589
    """
    return np.asarray(1 - lower_limit(trials - np.asarray(successes), trials, error))


def epsilon_lower_bound(
    true_positives: Counts, false_positives: Counts, runs: int, delta: float, confidence: float
) -> npt.NDArray[np.float64]:
    """Lower bound on epsilon from the counts of an event, at a confidence level; 0 if they prove nothing.

    Args:
        true_positives: number of runs on the first data set in which the event occurred.
        false_positives: number of runs on the second data set in which it occurred.
        runs: number of runs on each data set.
        delta: delta of the claim.
        confidence: confidence level of the bound. The event must be chosen independently of these runs.

    >>> round(float(epsilon_lower_bound(900, 10, runs=1000, delta=1e-2, confidence=0.99)), 3)
    3.703
    """
    error = (1 - confidence) / 2
    one, other = lower_limit(true_positives, runs, error), upper_limit(false_positives, runs, error)
    return np.asarray(np.log(np.maximum((one - delta) / other, 1.0)))


def epsilon_upper_bound(true_positives: int, false_positives: int, runs: int, delta: float, confidence: float) -> float:
    """Upper bound on what the same event can prove with any number of further runs; may be infinite.

    It bounds this attack, not the mechanism: a better attack may prove more.
    """
    error = (1 - confidence) / 2
    one, other = upper_limit(true_positives, runs, error), lower_limit(false_positives, runs, error)
    if one <= delta:
        return 0.0
    return math.inf if other == 0 else max(0.0, math.log((one - delta) / other))


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of this many correct guesses if flipping a coin is (epsilon, delta)-DP.

    Args:
        canaries: m.
        guesses: r, the number of guesses.
        right: v, the number of correct guesses.
        epsilon, delta: the claim.

    >>> one_run_p_value(canaries=10, guesses=10, right=10, epsilon=0.0, delta=0.0) == 0.5**10
    True
    """
    p = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, p))
    if right == 0:
        return 1.0
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, p))  # f(v - i) - f(v) for i = 1, ..., v
    steepest = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, tail + 2 * canaries * delta * steepest)


def one_run_lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from the correct guesses of one run; 0 if they prove nothing.

    It is the last point of a grid up to which every epsilon is rejected. If it exceeds the true epsilon, the first grid
    point above the true epsilon has been rejected, although the claim holds there. That happens with probability at
    most 1 - confidence. The argument does not need p-values to be monotone.

    >>> one_run_lower_bound(canaries=1000, guesses=500, right=400, delta=1e-5, confidence=0.95)
    1.18
    """
    steps = 0
    while one_run_p_value(canaries, guesses, right, steps * _GRID, delta) <= 1 - confidence:
        steps += 1
    return round(max(0, steps - 1) * _GRID, 10)
