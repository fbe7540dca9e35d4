"""Bilevel problems with known solutions, one table for every method.

Each case knows its solution without bilevel machinery: in closed form, or by an independent solver on the
hyperobjective written out by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize, minimize_scalar

import dpbilevel as dpb


@dataclass(frozen=True)
class Case:
    problem: dpb.BilevelProblem
    data: dict[str, Any]  # arrays by role
    start: tuple[Any, Any]
    solution: Any  # x*
    value: Callable[[Any], float]  # F(x), the hyperobjective on these data
    inner: dict[str, Any]  # settings of DPLocGD: public numbers of the problem
    outer: dict[str, Any]  # settings of DPBilevel

    def records(self) -> dpb.Records:
        return dpb.Records(**self.data)

    def method(self, **changes: Any) -> dpb.DPBilevel:
        inner = dpb.DPLocGD(**(self.inner | changes.pop("inner", {})))
        return dpb.DPBilevel(inner=inner, **(self.outer | changes))

    def solve(self, budget: dpb.Budget, **changes: Any) -> dpb.Solution:
        seed = changes.pop("seed", 0)
        return dpb.solve(
            self.problem, self.records(), budget, method=self.method(**changes), start=self.start, seed=seed
        )


def _points(n: int, centre: list[float], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(size=(n, len(centre))) * 0.3 + centre, -1, 1)


def quadratic(n: int = 200) -> Case:
    """y*(x) = Bx + mean(b), F(x) = |y*(x) - mean(a)|^2/2 + 0.1 x.mean(a) + 0.05 |x|^2: all releases, both roles."""
    curvature = np.diag([1.0, 2.0, 4.0]).astype(np.float32)
    coupling = np.array([[1.2, 0.1, -0.2], [0.0, 0.9, 0.3], [0.2, -0.1, 1.1]], np.float32)
    upper, lower = _points(n, [0.5, -0.3, 0.2], 0), _points(2 * n, [-0.2, 0.4, 0.1], 1)
    a, b = upper.mean(0), lower.mean(0)

    def lower_loss(x, y, record):
        residual = y - coupling @ x - record
        return 0.5 * residual @ curvature @ residual

    return Case(
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2) + 0.1 * x @ record,
            upper_term=lambda x, y: 0.05 * jnp.sum(x**2),
            lower_loss=lower_loss,
            public=[curvature, coupling],
        ),
        data={"upper": upper, "lower": lower},
        start=(np.zeros(3), np.zeros(3)),
        solution=np.linalg.solve(coupling.T @ coupling + 0.1 * np.eye(3), coupling.T @ (a - b) - 0.1 * a),
        value=lambda x: 0.5 * np.sum((coupling @ x + b - a) ** 2) + 0.1 * x @ a + 0.05 * np.sum(x**2),
        inner={"strong_convexity": 1.0, "smoothness": 4.0, "radius": 3.0, "clip_norm": 4.0, "steps": 20, "rounds": 2},
        outer={"penalty_weight": 1000.0, "steps": 40, "step_size": 0.4, "clip_norm": 4.0},
    )


def quadratic_both(n: int = 200) -> Case:
    """The same records feed both levels."""
    both = _points(n, [0.3, -0.6], 2)
    mean = both.mean(0)
    return Case(
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - 2 * record) ** 2),
            lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - x - record) ** 2),
        ),
        data={"both": both},
        start=(np.zeros(2), np.zeros(2)),
        solution=mean,
        value=lambda x: 0.5 * np.sum((x - mean) ** 2),
        inner={"strong_convexity": 1.0, "smoothness": 1.0, "radius": 3.0, "clip_norm": 4.0, "steps": 10, "rounds": 2},
        outer={"penalty_weight": 1000.0, "steps": 30, "step_size": 0.5, "clip_norm": 4.0},
    )


def leak(n: int = 200) -> Case:
    """The paper's warm-up (as a mean): f reads no record, yet the exact solution is minus the mean of the data."""
    lower = _points(n, [0.4, -0.1, 0.2], 3)
    mean = lower.mean(0)
    return Case(
        problem=dpb.BilevelProblem(
            upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
            lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
        ),
        data={"lower": lower},
        start=(np.zeros(3), np.zeros(3)),
        solution=-mean,
        value=lambda x: 0.5 * np.sum((x + mean) ** 2),
        inner={"strong_convexity": 1.0, "smoothness": 1.0, "radius": 3.0, "clip_norm": 2.0, "steps": 10, "rounds": 2},
        outer={"penalty_weight": 100.0, "steps": 30, "step_size": 0.5, "clip_norm": 2.0},
    )


def ridge(n: int = 200) -> Case:
    """One penalty of a ridge regression, in logarithms: the x-gradient reads no record, so the outer step is free."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(3 * n, 4)) / 3
    targets = features @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.normal(size=3 * n) * 4.0
    training, validation = slice(0, 2 * n), slice(2 * n, 3 * n)
    gram = features[training].T @ features[training] / (2 * n)
    moment = features[training].T @ targets[training] / (2 * n)

    def value(x) -> float:
        weights = np.linalg.solve(gram + np.exp(float(np.asarray(x).item())) * np.eye(4), moment)
        return 0.5 * np.mean((features[validation] @ weights - targets[validation]) ** 2)

    def loss(x, y, record):
        row, target = record
        return 0.5 * (row @ y - target) ** 2

    return Case(
        problem=dpb.BilevelProblem(
            upper_loss=loss,
            lower_loss=loss,
            lower_term=lambda x, y: 0.5 * jnp.exp(x) * jnp.sum(y**2),
            domain=dpb.Box(-4.0, 1.0),
        ),
        data={
            "upper": (features[validation], targets[validation]),
            "lower": (features[training], targets[training]),
        },
        start=(np.array(0.0), np.zeros(4)),
        solution=minimize_scalar(value, bounds=(-4.0, 1.0), method="bounded").x,
        value=value,
        inner={"strong_convexity": 0.1, "smoothness": 1.2, "radius": 3.0, "clip_norm": 3.0, "steps": 40, "rounds": 2},
        outer={"penalty_weight": 3000.0, "steps": 60, "step_size": 20.0},
    )


def sources(n: int = 300) -> Case:
    """Weights of three sources on the simplex, in a pytree: y* is the weighted mean of the sources' means."""
    centres = np.array([[1.0, 0.0], [-1.0, 0.2], [0.0, -0.9]])
    source = np.arange(n) % 3
    lower = np.clip(centres[source] + 0.1 * np.random.default_rng(5).normal(size=(n, 2)), -1, 1)
    upper = _points(n, [0.2, -0.1], 6)
    means, target = np.stack([lower[source == k].mean(0) for k in range(3)]), upper.mean(0)

    def value(x) -> float:
        weights = np.asarray(x["weights"] if isinstance(x, dict) else x)
        return 0.5 * np.sum((weights @ means - target) ** 2) + 0.02 * np.sum(weights**2)

    best = minimize(
        value, np.ones(3) / 3, bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, tol=1e-12
    )
    return Case(
        problem=dpb.BilevelProblem(
            upper_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
            upper_term=lambda x, y: 0.02 * jnp.sum(x["weights"] ** 2),
            lower_loss=lambda x, y, record: 1.5 * x["weights"][record[1]] * jnp.sum((y - record[0]) ** 2),
            domain={"weights": dpb.Simplex()},
        ),
        data={"upper": upper, "lower": (lower, source)},
        start=({"weights": np.ones(3) / 3}, np.zeros(2)),
        solution={"weights": best.x},
        value=value,
        inner={"strong_convexity": 1.0, "smoothness": 1.0, "radius": 2.0, "clip_norm": 6.0, "steps": 10, "rounds": 2},
        outer={"penalty_weight": 1000.0, "steps": 120, "step_size": 0.3, "clip_norm": 8.0},
    )


CASES = {case.__name__: case for case in (quadratic, quadratic_both, leak, ridge, sources)}
