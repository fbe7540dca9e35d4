"""R^2 of a regression, from released moments.

R^2 = 1 - A/S, with A the mean squared error and S the variance of the target. Four means of bounded numbers are
released: of s, the squared error as a fraction of its bound; of s (1 - s), from which the variance of s follows; of u,
the target as a fraction of its declared range minus 1/2; and of u^2. The last two give S, whatever the private mean is.

**Interval.** For k = A/S of the population, A - k S of the released numbers has mean zero, and a standard deviation of
at most sd(A) + k sd(S), however A and S are correlated (Minkowski). So the k within z of these lie between
(A - z sd(A))/(S + z sd(S)) and (A + z sd(A))/(S - z sd(S)). Standard deviations are of noise and of the sample:
Var(s)/n for A, and at most S (w - S)/n for S, with w the largest possible squared distance of a target from the mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.evaluation.intervals import Interval, z_score
from dpbilevel.evaluation.means import NORM, Floats, Tree, usable

# Weights of the four numbers: s determines the score, the mean of targets matters only if it is off the middle of the
# range, and the variance of s only enters the interval.
_WEIGHTS = {"error": 1.0, "error_spread": 0.5, "target": 0.5, "target_square": 1.0}
# Largest distance of each number from its centre: s from 1/2, s (1 - s) from 1/8, u from 0, u^2 from 1/8.
_HALF_RANGES = {"error": 0.5, "error_spread": 0.125, "target": 0.5, "target_square": 0.125}


@dataclass(frozen=True)
class RSquared:
    """R^2, the coefficient of determination.

    Args:
        low, high: the declared range of the target.
        bound: of the squared error; without privacy nothing is clipped, and it only replaces non-finite errors.
        clipped: whether squared errors and targets are clipped.
    """

    low: float
    high: float
    bound: float
    clipped: bool

    name: ClassVar[str] = "r2"
    # The joint norm of the four numbers at their extremes, which are reached together, divided by 1/2.
    unit: ClassVar[float] = math.sqrt(sum((_WEIGHTS[name] * _HALF_RANGES[name]) ** 2 for name in _WEIGHTS)) / NORM

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """The shapes of an answer."""
        return dict.fromkeys(_WEIGHTS, ())

    @property
    def meaning(self) -> str:
        """What errors are compared with, and the bounds."""
        clipped = f"; squared errors clipped to {self.bound:g}, targets to [{self.low:g}, {self.high:g}]"
        return "R²: 1 - mean squared error / variance of the target" + (clipped if self.clipped else "")

    @property
    def largest(self) -> float:
        """1, or infinity if nothing is clipped, so that no interval exists."""
        return 1.0 if self.clipped else math.inf

    def contribution(self, record: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The four numbers, centred and weighted."""
        s, u = record["error"] / self.bound, record["target"]
        if self.clipped:
            s, u = jnp.clip(s, 0, 1), jnp.clip(u, -0.5, 0.5)
        parts = {"error": s - 0.5, "error_spread": s * (1 - s) - 0.125, "target": u, "target_square": u**2 - 0.125}
        return {name: part * (_WEIGHTS[name] / self.unit) for name, part in parts.items()}

    def placed(self, errors: Floats, targets: npt.NDArray[Any]) -> dict[str, Floats]:
        """The stored form: squared errors, and targets as a fraction of their range."""
        with np.errstate(all="ignore"):
            share = (np.asarray(targets, np.float64) - self.low) / (self.high - self.low) - 0.5
        return {"error": usable(errors, self.bound), "target": np.clip(share, -1e15, 1e15)}

    def detail(self, answer: Tree, noise: float, number: int) -> dict[str, Any]:
        """The mean squared error, the mean and the variance of targets, and the standard deviation of their noise."""
        centres = {"error": 0.5, "error_spread": 0.125, "target": 0.0, "target_square": 0.125}
        means = {name: float(answer[name]) * self.unit / _WEIGHTS[name] + centres[name] for name in centres}
        noises = {name: noise * self.unit / _WEIGHTS[name] for name in centres}
        width, mean = self.high - self.low, means["target"]
        share = float(np.clip(means["error"], 0, 1)) if self.clipped else means["error"]
        # Clamped below by its own noise: the square of a noisy mean is too large by the variance of its noise.
        noise_of_variance = math.sqrt(
            noises["target_square"] ** 2 + (2 * mean * noises["target"]) ** 2 + 2 * noises["target"] ** 4
        )
        variance = max(means["target_square"] - mean**2 + noises["target"] ** 2, noise_of_variance)
        return {
            "mean_squared_error": share * self.bound,
            "mean_squared_error_noise": noises["error"] * self.bound,
            "error_variance": max(share - means["error_spread"] - share**2, 0.0) * self.bound**2,
            "error_variance_noise": math.hypot(noises["error"], noises["error_spread"]) * self.bound**2,
            "target_mean": self.low + (mean + 0.5) * width,
            "target_variance": variance * width**2,
            "target_variance_noise": noise_of_variance * width**2,
            "largest_square": (0.5 + min(abs(mean), 0.5)) ** 2 * width**2,
        }

    def value(self, answer: Tree, number: int) -> float:
        """R^2, at most 1."""
        return _score(self.detail(answer, 0.0, number))

    def standard_error(self, answer: Tree, noise: float, number: int) -> float:
        """The standard deviation of the noise, from the derivative of the ratio at the released moments."""
        released = self.detail(answer, noise, number)
        ratio, variance = 1 - _score(released), released["target_variance"]
        if not variance > 0:
            return math.inf
        return math.hypot(released["mean_squared_error_noise"], ratio * released["target_variance_noise"]) / variance


def _score(released: Mapping[str, float]) -> float:
    variance = released["target_variance"]
    return 1 - released["mean_squared_error"] / variance if variance > 0 else -math.inf


def r2_interval(released: Mapping[str, float], number: int, level: float) -> Interval:
    """A confidence interval for R^2 of the population, which covers noise and sampling."""
    z = z_score(level)
    error, variance = released["mean_squared_error"], released["target_variance"]
    spread = released["error_variance"] + z * released["error_variance_noise"]
    of_error = z * math.hypot(released["mean_squared_error_noise"], math.sqrt(spread / number))
    sampled = max(variance * (released["largest_square"] - variance), 0.0) / number
    of_variance = z * math.hypot(released["target_variance_noise"], math.sqrt(sampled))
    least = max(error - of_error, 0.0) / (variance + of_variance)
    most = (error + of_error) / (variance - of_variance) if variance > of_variance else math.inf
    return 1 - most, 1 - least
