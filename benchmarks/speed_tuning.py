"""Time to the same hyperobjective without privacy: this library with an infinite epsilon, jaxopt, and a plain F2SA.

Logistic regression with a log-penalty for each column; a fifth of the columns carry signal. Each side keeps its points,
with the time at which it had them. They are evaluated afterwards, by a solver of its own in float64. The target is an F
that both the library and jaxopt reach, the larger of their smallest F, to 1e-4; the time of a side is that of its first
point within it.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import speed_worker

Run = Callable[..., Any]
LOW, HIGH, START = -12.0, 2.0, -5.0  # of the log-penalties
TOLERANCE = 1e-4
LIMIT = 20.0  # seconds of one run, after which a side stops
LONG_LIMIT = 40.0  # the same with many penalties, where no side has converged after LIMIT
ROUNDS = (1, 15)  # of the library in one call: as few as possible, and as `solve` has it
INNER_TOLERANCES = {50: (1e-4, 1e-5), 2000: (1e-6, 1e-7)}  # of jaxopt's lower solver: coarser ones stop L-BFGS-B early
UPPER_STEPS = (1.0, 10.0, 100.0)  # tried for F2SA; the best one is measured


def data(number: int, columns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and validation rows with labels."""
    draws = np.random.default_rng(0)
    truth = 5 * draws.standard_normal(columns) * (np.arange(columns) < max(1, columns // 5))
    made = []
    for _ in range(2):
        rows = draws.standard_normal((number, columns), np.float32) / np.float32(np.sqrt(columns))
        labels = np.where(draws.random(number) < 1 / (1 + np.exp(-rows @ truth)), 1, -1).astype(np.float32)
        made.append((rows, labels))
    return made


def limit(columns: int) -> float:
    """Seconds of one run."""
    return LIMIT if columns < 1000 else LONG_LIMIT


class Trajectory:
    """Points of a run, with the time since its start and the run's own value of F.

    Args:
        most: points after which the run stops.
        limit: seconds after which it stops.
    """

    def __init__(self, most: int | None, limit: float) -> None:
        self.begin, self.most, self.limit = time.perf_counter(), most, limit
        self.points: list[tuple[float, float, list[float]]] = []

    def add(self, x: Any, value: Any) -> bool:
        """Keep a point; True once the run has to stop."""
        own, point = float(value), np.asarray(x, float).tolist()  # waits until they are there
        seconds = time.perf_counter() - self.begin
        self.points.append((seconds, own, point))
        return seconds > self.limit or len(self.points) == self.most

    def result(self) -> dict[str, Any]:
        """What a side answers."""
        return {"points": self.points}


def library(number: int, columns: int, chunk: int) -> Run:
    """What `solve` does with an infinite epsilon, ``chunk`` rounds in one call."""
    import dpbilevel as dpb
    from dpbilevel.execution.running import _plain
    from dpbilevel.privacy.noise import KeySchedule

    training, validation = data(number, columns)
    problem = dpb.applications.regularization(columns=columns, groups=range(columns), row_norm=2.0)
    records = dpb.Records(lower=training, upper=validation)
    budget = dpb.Budget(float("inf"))

    def run(most: int | None = 1) -> dict[str, Any]:
        kept = Trajectory(most, limit(columns))
        planned = dpb.plan(problem, records.sizes, budget, refit=None)
        receipt = dpb.Ledger(budget).charge(planned.releases, budget, "speed")
        schedule, search = KeySchedule(None), planned.program.start(*problem.start)
        for _ in range(planned.program.rounds // chunk):
            search, _ = records.execute(planned.program, receipt, schedule, _plain(search), chunk)
            x, value, _ = search.best
            if kept.add(x, value) or bool(search.done):
                break
        return kept.result()

    return run


def implicit(number: int, columns: int, tolerance: float) -> Run:
    """jaxopt: warm-started L-BFGS at the lower level, implicit differentiation by plain conjugate gradients.

    SciPy's L-BFGS-B moves x, as jaxopt's own wrapper of it would, which has no room for a warm start.
    """
    import jax
    import jax.numpy as jnp
    import jaxopt
    from scipy.optimize import minimize

    training, validation = (jax.tree.map(jnp.asarray, part) for part in data(number, columns))

    def mean(y: Any, part: Any) -> Any:
        rows, labels = part
        return jnp.mean(jax.nn.softplus(-labels * (rows @ y)))

    def lower(y: Any, x: Any, part: Any) -> Any:
        return mean(y, part) + jnp.sum(jnp.exp(x) * y**2) / 2

    solve = jaxopt.linear_solve.solve_cg
    solver = jaxopt.LBFGS(fun=lower, tol=tolerance, maxiter=500, implicit_diff_solve=solve)

    @jax.jit
    def hyperobjective(x: Any, y: Any, training: Any, validation: Any) -> Any:
        def value(x: Any) -> Any:
            solution = solver.run(y, x, training).params
            return mean(solution, validation), solution

        return jax.value_and_grad(value, has_aux=True)(x)

    def run(most: int | None = 1) -> dict[str, Any]:
        kept, warm = Trajectory(most, limit(columns)), {"y": jnp.zeros(columns), "scale": 0.0}

        def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
            point = jnp.asarray(x, jnp.float32)
            (value, warm["y"]), gradient = hyperobjective(point, warm["y"], training, validation)
            if kept.add(x, value):
                raise StopIteration
            slope = np.asarray(gradient, float)
            # L-BFGS-B's first step is no longer than the gradient, which is tiny here: scaled, it has length one.
            warm["scale"] = warm["scale"] or 1 / max(float(np.linalg.norm(slope)), 1e-30)
            return warm["scale"] * float(value), warm["scale"] * slope

        try:
            start, bounds = np.full(columns, START), [(LOW, HIGH)] * columns
            options = {"ftol": 1e-7, "gtol": 0.0}
            minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        except StopIteration:
            pass
        return kept.result()

    return run


def f2sa(number: int, columns: int) -> Run:
    """A minimal F2SA (Kwon et al. 2023) with exact gradients: three steps per iteration, with a growing penalty."""
    import jax
    import jax.numpy as jnp

    training, validation = (jax.tree.map(jnp.asarray, part) for part in data(number, columns))
    chunk = 50

    def slope(y: Any, part: Any) -> Any:
        rows, labels = part
        return (labels * (jax.nn.sigmoid(labels * (rows @ y)) - 1)) @ rows / labels.size

    def largest(rows: Any) -> Any:
        """The largest curvature of the mean loss: a quarter of the largest eigenvalue, by power iteration."""
        vector = jnp.ones(columns)
        for _ in range(20):
            vector = (rows @ vector) @ rows / rows.shape[0]
            vector = vector / jnp.linalg.norm(vector)
        return jnp.linalg.norm((rows @ vector) @ rows / rows.shape[0]) / 4

    curvature = float(largest(training[0]))

    @jax.jit
    def iterate(state: Any, step: Any, training: Any, validation: Any) -> Any:
        def iteration(state: Any, _: None) -> tuple[Any, None]:
            x, y, z, count = state
            weight, penalty = 10 + 0.1 * count, jnp.exp(x)
            pace = 1 / (curvature + penalty)
            z = z - pace * (slope(z, training) + penalty * z)
            y = y - pace * (slope(y, validation) / weight + slope(y, training) + penalty * y)
            x = jnp.clip(x - step * weight * penalty * (y**2 - z**2) / 2, LOW, HIGH)
            return (x, y, z, count + 1), None

        state = jax.lax.scan(iteration, state, None, length=chunk)[0]
        rows, labels = validation
        return state, jnp.mean(jax.nn.softplus(-labels * (rows @ state[2])))

    zeros = jnp.zeros(columns)
    start = (jnp.full(columns, START), zeros, zeros, jnp.asarray(0.0))

    def trajectory(step: float, most: int | None, limit: float) -> Trajectory:
        kept, state = Trajectory(most, limit), start
        while True:
            state, value = iterate(state, step, training, validation)
            if kept.add(state[0], value):
                return kept

    ends = {step: trajectory(step, None, LIMIT / 12).points[-1][1] for step in UPPER_STEPS}
    best = min(ends, key=lambda step: ends[step])

    def run(most: int | None = 1) -> dict[str, Any]:
        return trajectory(best, most, LIMIT / 2).result() | {"setting": f"step {best:g}"}

    return run


class Evaluator:
    """F(x) in float64, independent of all sides: SciPy's L-BFGS-B on scaled coefficients."""

    def __init__(self, number: int, columns: int) -> None:
        self.training, self.validation = ((rows.astype(float), labels) for rows, labels in data(number, columns))
        self.solution = np.zeros(columns)

    def __call__(self, x: Any) -> float:
        from scipy.optimize import minimize

        (rows, labels), penalty = self.training, np.exp(np.asarray(x))
        scale = 1 / np.sqrt(0.1 / penalty.size + penalty)

        def lower(scaled: np.ndarray) -> tuple[float, np.ndarray]:
            y = scale * scaled
            margins = labels * (rows @ y)
            slope = -labels * np.exp(-np.logaddexp(0, margins))
            value = np.mean(np.logaddexp(0, -margins)) + np.sum(penalty * y**2) / 2
            return value, scale * (slope @ rows / labels.size + penalty * y)

        options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-7}
        found = minimize(lower, self.solution / scale, jac=True, method="L-BFGS-B", options=options)
        self.solution = scale * found.x
        rows, labels = self.validation
        return float(np.mean(np.logaddexp(0, -labels * (rows @ self.solution))))


def first_within(points: list[Any], target: float, evaluate: Callable[[Any], float]) -> int | None:
    """The first point with F at most ``target``. Its own value guides the search; only candidates are evaluated."""
    for index, (_, value, x) in enumerate(points):
        if value <= target * (1 + TOLERANCE) and evaluate(x) <= target:
            return index
    return None


def tuning(columns: int, tiny: bool) -> Callable[[Any], dict[str, Any]]:
    """The line of the benchmark for so many penalties."""
    sizes = {"number": 200 if tiny else 20_000, "columns": columns}
    script = "speed_tuning.py"

    def measure(settings: Any) -> dict[str, Any]:
        sides = {
            f"library, {chunk} rounds at a time": settings.side("library", script, chunk=chunk, **sizes)
            for chunk in (ROUNDS if columns < 1000 else ROUNDS[:1])  # one call may not exceed the limit of a run
        }
        for tolerance in INNER_TOLERANCES.get(columns, (1e-4,)):
            name = f"jaxopt, tolerance {tolerance:g}"
            sides[name] = settings.peer_side("implicit", script, tolerance=tolerance, **sizes)
        sides["F2SA"] = settings.side("f2sa", script, **sizes)
        load, evaluate, reached = [os.getloadavg()[0]], Evaluator(**sizes), {}
        with ExitStack() as stack:
            workers, first, whole = {}, {}, {}
            for name, make in sides.items():
                workers[name] = stack.enter_context(make())
                first[name] = workers[name].first()  # one point, with compilation
                whole[name] = workers[name].run(most=None)
            best = {name: min(run["points"], key=lambda point: point[1])[2] for name, run in whole.items()}
            ends = {name: evaluate(x) for name, x in best.items()}
            tools = [[end for name, end in ends.items() if name.startswith(tool)] for tool in ("library", "jaxopt")]
            target = max(map(min, tools)) * (1 + TOLERANCE)
            for name, run in whole.items():
                index = first_within(run["points"], target, evaluate)
                if index is not None:
                    reached[name] = index + 1
            # Runs of a side are equal but for the last bits: further ones stop at the point that is within the target.
            runs = [
                {name: workers[name].run(most=points)["points"][-1][0] for name, points in reached.items()}
                for _ in range(settings.repeats(5 if columns < 1000 else 3))
            ]
        found = {
            name: {
                "end": end,
                "first": first[name]["seconds"],
                "compile seconds": first[name]["compile seconds"],
                "points": reached.get(name),
                "runs": [run[name] for run in runs] if name in reached else [],
            }
            for name, end in ends.items()
        }
        return {"sides": found, "target": target, "load": [*load, os.getloadavg()[0]]}

    return measure


SIDES = {side.__name__: side for side in (library, implicit, f2sa)}

if __name__ == "__main__":
    speed_worker.serve(SIDES)
