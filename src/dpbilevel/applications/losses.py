"""Losses of generalised linear models: ``loss(score, target)`` for one record, with score = row . y."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpbilevel.constants import Constants
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import count
from dpbilevel.linear_loss import LinearBounds
from dpbilevel.theory.losses import loss_shape

OfScore = Callable[[Any, Any], jax.Array]


@jax.custom_jvp
def _softplus(score: jax.Array) -> jax.Array:
    return jax.nn.softplus(score)


# With one exponential; JAX's own derivatives take a logarithm and several exponentials, for every record in every step.
_softplus.defjvps(lambda change, _, score: change * jax.nn.sigmoid(score))


def _logistic(score: jax.Array, label: jax.Array) -> jax.Array:
    return _softplus(jnp.where(label > 0, -1.0, 1.0) * score)


def _softmax(scores: jax.Array, label: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(scores)[label]


def _squared(score: jax.Array, target: jax.Array) -> jax.Array:
    return 0.5 * (score - target) ** 2


def _poisson(score: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.exp(score) - target * score


def _pseudo_huber(threshold: float, score: jax.Array, target: jax.Array) -> jax.Array:
    return threshold**2 * (jnp.sqrt(1 + ((score - target) / threshold) ** 2) - 1)


_OF_SCORES = {"logistic": _logistic, "softmax": _softmax, "squared": _squared, "poisson": _poisson}
LOSSES = (*_OF_SCORES, "pseudo-huber")
_DEFAULTS_TO_ONE = {"squared": "target_bound", "poisson": "target_bound", "pseudo-huber": "threshold"}


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """A linear model, described by public numbers.

    Args:
        loss: "logistic" (labels above zero are positive), "softmax" (labels 0 to classes - 1), "squared", "poisson"
            (counts, with a logarithmic link) or "pseudo-huber" (squared up to about ``threshold``, then linear).
        columns: length of a row, including an intercept's column of ones.
        classes: number of classes, for "softmax".
        row_norm: declared bound on the norm of rows, for the final training and for constants; privacy does not need
            it. None if it is unknown: then constants are those of rows of norm one.
        target_bound: declared bound on targets, for "squared" and "poisson" (1 by default).
        threshold: of "pseudo-huber" (1 by default).
    """

    loss: str
    columns: int
    classes: int | None = None
    row_norm: float | None = None
    target_bound: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        count("columns", self.columns, "it is the length of a row, including the intercept's column")
        name = _DEFAULTS_TO_ONE.get(self.loss) if isinstance(self.loss, str) else None
        if name is not None and getattr(self, name) is None:
            object.__setattr__(self, name, 1.0)
        loss_shape(**self.shape())  # raises for parameters that are missing, unknown or invalid for the loss

    def of_score(self) -> OfScore:
        """The loss of a score and a target."""
        return _OF_SCORES.get(self.loss) or functools.partial(_pseudo_huber, self.threshold or 1.0)

    def start(self) -> npt.NDArray[np.float32]:
        """The starting point y0, all zeros."""
        shape = (self.columns,) if self.classes is None else (self.columns, self.classes)
        return np.zeros(shape, np.float32)

    def shape(self) -> Mapping[str, Any]:
        """The parameters from which `theory` computes constants."""
        return {
            "loss": self.loss,
            "row_norm": 1.0 if self.row_norm is None else self.row_norm,
            "target_bound": self.target_bound,
            "threshold": self.threshold,
            "classes": self.classes,
        }

    def bounds(self) -> LinearBounds | None:
        """Bounds of the loss for the final training; None where none are declared, or where there are none."""
        if self.row_norm is None or self.loss == "poisson":
            return None
        suprema = loss_shape(**self.shape()).suprema(math.inf)
        classes = self.classes or 1
        first = suprema.curvature if classes == 1 else (1 - 1 / classes) / classes
        return LinearBounds(
            row_norm=self.row_norm, curvature=suprema.curvature, first_curvature=first, derivative=suprema.derivative
        )

    def certified(self, constants: Callable[..., Constants], **declared: Any) -> Constants | None:
        """Constants of the model; None if they overflow a float: those of "poisson" grow as e^(norm of y)."""
        try:
            return constants(**self.shape(), **declared)
        except InvalidArgument:  # all arguments were checked before, so the constants overflow
            return None
