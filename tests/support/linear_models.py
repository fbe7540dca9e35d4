"""Losses of linear scores in JAX, and draws from their declared domain, extremes included: for tests of constants."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LOSSES = ("logistic", "softmax", "squared", "pseudo-huber", "poisson")
CLASSES, FEATURES = 3, 3


@dataclass(frozen=True)
class LinearModel:
    """A loss with the bounds that are declared of its records."""

    loss: str
    _: KW_ONLY
    row_norm: float = 1.3
    target_bound: float = 1.5
    threshold: float = 0.7

    @property
    def declared(self) -> dict[str, Any]:
        own = {
            "softmax": {"classes": CLASSES},
            "squared": {"target_bound": self.target_bound},
            "pseudo-huber": {"target_bound": self.target_bound, "threshold": self.threshold},
            "poisson": {"target_bound": self.target_bound},
        }
        return own.get(self.loss, {})

    @property
    def shape(self):
        return (CLASSES, FEATURES) if self.loss == "softmax" else (FEATURES,)

    def record_loss(self, y, row, target):
        score = y @ row
        match self.loss:
            case "logistic":
                return jax.nn.softplus((1 - 2 * target) * score)
            case "softmax":
                return jax.nn.logsumexp(score) - score[target]
            case "squared":
                return (score - target) ** 2 / 2
            case "poisson":
                return jnp.exp(score) - target * score
        return self.threshold**2 * (jnp.sqrt(1 + ((score - target) / self.threshold) ** 2) - 1)

    def draw_lower(self, rng, radius):
        """A point of the ball, often at its edge and along few coordinates."""
        y = rng.normal(size=self.shape) * rng.choice([0.03, 1.0], size=self.shape)
        return y * radius / np.linalg.norm(y) * rng.choice([1, rng.uniform()])

    def draw_record(self, rng, y):
        row = rng.normal(size=FEATURES) * rng.choice([0.03, 1.0], size=FEATURES)
        if rng.uniform() < 0.3:  # the extreme scores
            row = rng.choice([-1, 1]) * (y if y.ndim == 1 else y[rng.integers(CLASSES)]) + 1e-9
        row *= self.row_norm / np.linalg.norm(row) * rng.choice([1, 1, 1, 0, rng.uniform()])
        if self.loss in ("logistic", "softmax"):
            return row, int(rng.integers(2 if self.loss == "logistic" else CLASSES))
        least = 0 if self.loss == "poisson" else -1
        return row, self.target_bound * rng.choice([least, 1, rng.uniform(least, 1)])
