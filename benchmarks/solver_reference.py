"""The hyperobjective and its minimiser in float64, by dense implicit differentiation: the reference for `solver.py`.

It uses only the losses of the problem, and no other part of the library: the lower level is solved by Newton's method
with a dense Hessian, the hypergradient by a dense solve, and x by SciPy's SLSQP, with the domain as bounds and
constraints.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from solver_problems import Posed

import dpbilevel as dpb


class Reference:
    """F, its gradient and its minimiser on given data."""

    def __init__(self, posed: Posed) -> None:
        self.posed = posed
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, _wide(leaf)), (posed.start, posed.data))
            (x, y), data = wide
            self.x, self._to_x = ravel_pytree(x)
            self.y, self._to_y = ravel_pytree(y)
            lower, upper = (self._level(level, data) for level in ("lower", "upper"))
            self._slope, self._hessian = (jax.jit(of(lower, 1)) for of in (jax.grad, jax.hessian))
            self._value = jax.jit(lower)
            self._upper = jax.jit(jax.value_and_grad(upper, (0, 1)))
            self._cross = jax.jit(jax.jacobian(jax.grad(lower, 1), 0))
        self.x, self.y = np.asarray(self.x), np.asarray(self.y)

    def _level(self, level: str, data: dict[str, Any]) -> Callable[..., Any]:
        problem = self.posed.problem
        loss, term = problem.loss(level), problem.term(level)
        records = data.get("both", data.get(level))

        def value(x: Any, y: Any) -> Any:
            x, y = self._to_x(x), self._to_y(y)
            mean = 0.0 if loss is None else jnp.mean(jax.vmap(lambda record: loss(x, y, record))(records))
            return mean + term(x, y)

        return value

    def model(self, x: np.ndarray) -> np.ndarray:
        """y*(x), by damped Newton steps."""
        y = self.y
        with jax.enable_x64(True):
            for _ in range(100):
                slope, value = np.asarray(self._slope(x, y)), float(self._value(x, y))
                by = np.linalg.solve(np.asarray(self._hessian(x, y)), slope)
                length = 1.0
                while (
                    length > 1e-6 and not float(self._value(x, y - length * by)) <= value - 1e-4 * length * slope @ by
                ):
                    length /= 2
                y = y - length * by
                if np.linalg.norm(by) <= 1e-11 * max(np.linalg.norm(y), 1e-30) or length <= 1e-6:
                    break
        self.y = y
        return y

    def objective(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """F and its gradient."""
        y = self.model(x)
        with jax.enable_x64(True):
            value, (slope, pull) = self._upper(x, y)
            adjoint = np.linalg.solve(np.asarray(self._hessian(x, y)), np.asarray(pull))
            return float(value), np.asarray(slope) - np.asarray(self._cross(x, y)).T @ adjoint

    def value(self, x: Any) -> float:
        """F at a point with the structure of the problem."""
        return self.objective(np.asarray(ravel_pytree(jax.tree.map(np.float64, x))[0], np.float64))[0]

    def best(self) -> float:
        """The smallest F that SLSQP finds from the start, in units in which start and gradient have size one."""
        first, slope = self.objective(self.x)
        size = np.max(np.abs(self.x)) or self._size()
        unit = max(abs(first), size * np.linalg.norm(slope)) or 1.0
        bounds, constraints = self._constraints(size)

        def scaled(point: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.objective(point * size)
            return value / unit, gradient * size / unit

        x, found = self.x / size, first
        for _ in range(5):  # restarted, because SLSQP may stop early
            options = {"maxiter": 500, "ftol": 1e-14}
            result = minimize(
                scaled, x, jac=True, method="SLSQP", bounds=bounds, constraints=constraints, options=options
            )
            if not result.fun * unit < found - 1e-9 * abs(first - found):
                break
            x, found = result.x, result.fun * unit
        return found

    def _size(self) -> float:
        """The scale of x if the start is zero: that of the ball or the box."""
        for convex_set in jax.tree.leaves(self.posed.problem.domain):
            if isinstance(convex_set, dpb.Ball):
                return convex_set.radius
            if isinstance(convex_set, dpb.Box):
                return float(np.max(np.abs(convex_set.upper)))
        # One Newton-like step: to where the gradient of F would vanish if it decreased linearly.
        _, slope = self.objective(self.x)
        probe = 1e-6 * slope / np.linalg.norm(slope)
        for _ in range(60):
            change = self.objective(self.x - probe)[1] - slope
            if np.linalg.norm(change) > 0.3 * np.linalg.norm(slope):
                break
            probe *= 2
        return float(np.linalg.norm(probe))

    def _constraints(self, size: float) -> tuple[list[tuple[float | None, float | None]], list[dict[str, Any]]]:
        domain, point = self.posed.problem.domain, self.posed.start[0]
        sets, structure = jax.tree.flatten(domain)
        bounds: list[tuple[float | None, float | None]] = []
        constraints: list[dict[str, Any]] = []
        for convex_set, part in zip(sets, structure.flatten_up_to(point), strict=True):
            number = ravel_pytree(part)[0].size
            mine = slice(len(bounds), len(bounds) + number)
            low: float | None = 0.0 if isinstance(convex_set, dpb.NonNegative | dpb.Simplex) else None
            high: float | None = None
            if isinstance(convex_set, dpb.Box):
                low, high = float(np.min(convex_set.lower)) / size, float(np.max(convex_set.upper)) / size
            if isinstance(convex_set, dpb.Ball):
                radius = convex_set.radius / size
                constraints.append(
                    {
                        "type": "ineq",
                        "fun": lambda p, m=mine, r=radius: r**2 - np.sum(p[m] ** 2),
                        "jac": lambda p, m=mine: _placed(-2 * p[m], m, p.size),
                    }
                )
            if isinstance(convex_set, dpb.Simplex):
                total = convex_set.total / size
                constraints.append(
                    {
                        "type": "eq",
                        "fun": lambda p, m=mine, t=total: np.sum(p[m]) - t,
                        "jac": lambda p, m=mine: _placed(np.ones(m.stop - m.start), m, p.size),
                    }
                )
            bounds += [(low, high)] * number
        return bounds, constraints


def _placed(values: np.ndarray, at: slice, size: int) -> np.ndarray:
    row = np.zeros(size)
    row[at] = values
    return row


def _wide(leaf: Any) -> Any:
    return np.float64 if np.issubdtype(np.asarray(leaf).dtype, np.floating) else np.int32
