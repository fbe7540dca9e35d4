"""Tuning without privacy: hyperparameters that minimise the exact validation loss of a linear model.

They are candidates for the upper bound of the utility benchmark. Models are exact minimisers, by Newton's method, and
hyperparameters are found by steps along exact hypergradients.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize
from task_data import FLIGHTS_CARRIERS, Arrays
from task_problems import PENALTY_BOX, SMALL_PENALTY, logistic, pseudo_huber


# First and second derivative of a loss with respect to the prediction.
def _logistic_slopes(prediction: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probability = 1 / (1 + np.exp(-prediction))
    return probability - label, probability * (1 - probability)


def _pseudo_huber_slopes(prediction: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = np.sqrt(1 + (prediction - target) ** 2)
    return (prediction - target) / length, 1 / length**3


_SLOPES = {logistic: _logistic_slopes, pseudo_huber: _pseudo_huber_slopes}
_LOSSES = {
    logistic: lambda prediction, label: np.logaddexp(0, prediction) - label * prediction,
    pseudo_huber: lambda prediction, target: np.sqrt(1 + (prediction - target) ** 2) - 1,
}


class _Exact:
    """A linear model with row weights and penalties, solved exactly by Newton's method, and its hypergradient."""

    def __init__(self, loss: Callable[..., Any], lower: Arrays, upper: Arrays) -> None:
        self.lower, self.upper = ([part.astype(np.float64) for part in level[:2]] for level in (lower, upper))
        self.slopes, self.loss = _SLOPES[loss], _LOSSES[loss]
        self.y = np.zeros(self.lower[0].shape[1])  # warm start: x changes little between solves

    def solve(self, weights: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y*(x), stored, and the derivatives and the Hessian there."""
        rows, targets = self.lower
        for _ in range(30):
            slopes, curvatures = self.slopes(rows @ self.y, targets)
            gradient = rows.T @ (weights * slopes) / len(rows) + penalties * self.y
            hessian = (rows.T * (weights * curvatures / len(rows))) @ rows + np.diag(penalties)
            if np.linalg.norm(gradient) < 1e-9:
                break
            step = np.linalg.solve(hessian, gradient)
            self.y = self.y - step * min(1.0, 20 / np.linalg.norm(step))
        return slopes, hessian

    def validation(self, hessian: np.ndarray) -> tuple[float, np.ndarray]:
        """The validation loss at y*(x), and the adjoint (grad^2 g)^-1 grad f."""
        rows, targets = self.upper
        prediction = rows @ self.y
        gradient = rows.T @ self.slopes(prediction, targets)[0] / len(rows)
        return float(np.mean(self.loss(prediction, targets))), np.linalg.solve(hessian, gradient)


def tuned_weights(
    rows: np.ndarray, labels: np.ndarray, source: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Weights of sources that minimise the exact validation loss of a logistic model."""
    model = _Exact(logistic, (rows[lower], labels[lower]), (rows[upper], labels[upper]))
    source, number = source[lower], FLIGHTS_CARRIERS
    penalties = np.full(rows.shape[1], SMALL_PENALTY)

    def weights_of(logits: np.ndarray) -> np.ndarray:
        x = np.exp(logits - logits.max())
        return x / x.sum()

    def objective(logits: np.ndarray) -> tuple[float, np.ndarray]:
        x = weights_of(logits)
        slopes, hessian = model.solve(number * x[source], penalties)
        value, adjoint = model.validation(hessian)
        each = np.bincount(source, slopes * (model.lower[0] @ adjoint), number)
        gradient = -number / len(source) * each
        return value, x * (gradient - x @ gradient)

    found = minimize(objective, np.zeros(number), jac=True, method="L-BFGS-B", options={"maxiter": 25})
    return weights_of(found.x).astype(np.float32)


def tuned_penalties(loss: Callable[..., Any], lower: Arrays, upper: Arrays, groups: np.ndarray) -> np.ndarray:
    """Logarithms of penalties that minimise the exact validation loss."""
    model, number = _Exact(loss, lower, upper), int(groups.max()) + 1

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        penalties = np.exp(x[groups])
        _, hessian = model.solve(np.ones(len(lower[0])), penalties)
        value, adjoint = model.validation(hessian)
        return value, -np.bincount(groups, penalties * model.y * adjoint, number)

    start = np.full(number, -8.0)
    options = {"maxiter": 25}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[PENALTY_BOX] * number, options=options)
    return found.x.astype(np.float32)
