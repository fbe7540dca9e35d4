"""Measured rates compared with those of the paper: the exact projected hypergradient at the output of DP Bilevel.

    python benchmarks/rates.py                  (about 13 minutes on one core; writes docs/results/rates.* and a figure)
    python benchmarks/rates.py --quick          (under half a minute; writes only to --output)

The problem has known constants and a hypergradient in closed form. A record is (e_i, a_i, b_i):

    f_i(x, y) = sqrt(1 + |x - e_i|^2 + |y - a_i|^2)       1-Lipschitz, 1-smooth, convex, not quadratic
    g_i(x, y) = |y - P x - b_i|^2 / 2                     mu_g = 1; P x: the first coordinates of x, or 0 (uncoupled)
    X = ball of radius 0.6                                the constraint is active at the solution

    y*(x) = P x + mean b,     grad F(x) = mean of (x - e_i)/f_i + P' mean of (y*(x) - a_i)/f_i

F and the penalised hyperobjective are 2-smooth: L = 2. Records are drawn from 64 equally likely values, so that the
hypergradient of the population is a finite sum too. All parameters of a run follow from public quantities by the
scalings of Theorems 1 and 2; mu, the Gaussian mu of (epsilon, delta), replaces the theorems' epsilon and logarithms:

    alpha = max{(sqrt(d_y)/(mu n))^(1/3), (sqrt(d_x)/(mu n))^(1/2)}       uncoupled: the second alone
    lambda = 1.4/alpha,     T = 0.5/alpha^2,     eta = 1/(2L) = 1/4,     T_GD = 2,     M = 1
    batches: b_out = 4/alpha^2, b_in = n/2, and T_GD b_in >= (lambda/alpha)^2/5 in place of the paper's T_GD = n^2
    without privacy: alpha = 0.4/sqrt(b_out), the batch term alone, and lambda = 1000
"""

import argparse
import functools
import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import matplotlib
import numpy as np
import plot_rates
from matplotlib.figure import Figure
from scipy import stats

import dpbilevel as dpb
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.plot.style import SETTINGS

ROOT = Path(__file__).parent.parent
DELTA, VALUES, RADIUS, SPREAD, STEP = 1e-6, 64, 0.6, 0.25, 0.25
Arrays = dict[str, np.ndarray]
MARK = "<!-- written by benchmarks/rates.py -->"


@functools.cache
def population(d_x: int, d_y: int) -> Arrays:
    """The equally likely values of a record: points on spheres, so that no constant depends on the dimension."""
    random = np.random.default_rng([d_x, d_y])

    def sphere(dimension: int, radius: float, axis: int, centre: float) -> np.ndarray:
        points = random.normal(size=(VALUES, dimension))
        points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
        points[:, axis] += centre
        return points.astype(np.float32)

    # x is pulled along one axis and y along another: at the solution neither gradient vanishes, so that there is bias.
    return {"e": sphere(d_x, 1.0, 1, 1.5), "a": sphere(d_y, 1.0, 0, 1.5), "b": sphere(d_y, SPREAD, 0, 0.0)}


@functools.cache
def problem(d_x: int, d_y: int, coupled: bool) -> dpb.BilevelProblem:
    """One object per shape: plans and compiled programs are cached by it."""
    shared = min(d_x, d_y)

    def upper_loss(x, y, record):
        return jnp.sqrt(1 + jnp.sum((x - record["e"]) ** 2) + jnp.sum((y - record["a"]) ** 2))

    def lower_loss(x, y, record):
        shift = jnp.zeros_like(y).at[:shared].set(x[:shared]) if coupled else 0.0
        return 0.5 * jnp.sum((y - shift - record["b"]) ** 2)

    return dpb.BilevelProblem(upper_loss=upper_loss, lower_loss=lower_loss, domain=dpb.Ball(RADIUS))


def hyperobjective(x: np.ndarray, records: Arrays, coupled: bool) -> tuple[float, np.ndarray]:
    """F(x) and its gradient in closed form, in float64."""
    e, a, b = (records[name].astype(np.float64) for name in "eab")
    shared = min(len(x), a.shape[1])
    y = b.mean(axis=0)
    y[:shared] += x[:shared] if coupled else 0.0
    losses = np.sqrt(1 + np.sum((x - e) ** 2, axis=1) + np.sum((y - a) ** 2, axis=1))
    gradient = np.mean((x - e) / losses[:, None], axis=0)
    if coupled:
        gradient[:shared] += np.mean((y - a) / losses[:, None], axis=0)[:shared]
    return float(losses.mean()), gradient


def gradient_mapping(x: np.ndarray, gradient: np.ndarray) -> float:
    """|x - Proj_X(x - eta grad F(x))|/eta, the quantity that the theorems bound."""
    moved = x - STEP * gradient
    moved *= min(1.0, RADIUS / max(np.linalg.norm(moved), RADIUS))
    return float(np.linalg.norm(x - moved) / STEP)


@dataclass(frozen=True)
class Setting:
    """Public quantities of one run; all parameters of the algorithm follow from them."""

    n: int
    epsilon: float = 8.0
    d_x: int = 16
    d_y: int = 16
    coupled: bool = True
    scheme: str = "full"  # or "poisson", "replacement": how batches are drawn
    batch: int | None = None  # b_out; with privacy it follows from alpha

    @property
    def budget(self) -> dpb.Budget:
        return dpb.Budget(self.epsilon, DELTA if math.isfinite(self.epsilon) else None)

    @property
    def alpha(self) -> float:
        if self.batch is not None:
            return 0.4 / math.sqrt(self.batch)
        inner, outer = (math.sqrt(dimension) / (self.budget.mu * self.n) for dimension in (self.d_y, self.d_x))
        return max(inner ** (1 / 3) if self.coupled else 0.0, outer ** (1 / 2))

    def method(self) -> dpb.DPBilevel:
        """Algorithm 1, or with batches Algorithm 3, with the scalings above."""
        # Clip norms exceed every contribution at the exact solutions, so that clipping causes no bias.
        inner = {"strong_convexity": 1.0, "smoothness": 1.0, "clip_norm": 2 * SPREAD, "upper_clip_norm": 1.0}
        # M is fixed: by its formula it would become two within a grid, and the noise would jump by sqrt(2).
        inner |= {"radius": 4 * SPREAD, "rounds": 1, "steps": 2}
        penalty = 1.4 / self.alpha if self.budget.is_private else 1000.0
        steps, size = round(0.5 / self.alpha**2), self.batch or 4 / self.alpha**2
        solver, sampling = dpb.DPLocGD(**inner), dpb.FullBatch()
        if self.scheme != "full":
            poisson = self.scheme == "poisson"
            sampling = dpb.Poisson(size / self.n) if poisson else dpb.WithReplacement(round(size))
        if self.scheme != "full" and self.budget.is_private:
            inner["steps"] = math.ceil((penalty / self.alpha) ** 2 / 5 / (self.n / 2))
            solver = dpb.DPLocSGD(**inner, sampling=dpb.Poisson(0.5))
        return dpb.DPBilevel(inner=solver, penalty_weight=penalty, steps=steps, step_size=STEP, sampling=sampling)


def drawn(setting: Setting, seed: int) -> Arrays:
    """n records from the population; each seed has its own records and its own noise."""
    chosen = np.random.default_rng([seed, setting.n]).integers(0, VALUES, setting.n)
    return {name: values[chosen] for name, values in population(setting.d_x, setting.d_y).items()}


def solve(setting: Setting, seed: int, method: dpb.DPBilevel | None = None, private: bool = True) -> Any:
    """Run the method of the setting, or another one, or without noise."""
    case, records = problem(setting.d_x, setting.d_y, setting.coupled), dpb.Records(both=drawn(setting, seed))
    budget, start = setting.budget if private else dpb.Budget(math.inf), (np.zeros(setting.d_x), np.zeros(setting.d_y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # seeds are fixed for reproducibility
        method = method or setting.method()
        return dpb.solve(case, records, budget, method=method, start=start, seed=seed, progress=False)


@functools.cache
def of_one_run(setting: Setting, seed: int) -> dict[str, float]:
    """Gradient mappings of the empirical F and of the population's F_P at the output, and along the trajectory."""
    solution, records = solve(setting, seed), drawn(setting, seed)
    x, iterates = np.asarray(solution.x, np.float64), solution.history["x"].astype(np.float64)
    gradient, expected = (
        hyperobjective(x, data, setting.coupled)[1] for data in (records, population(setting.d_x, setting.d_y))
    )
    late = iterates[len(iterates) // 2 :: max(1, len(iterates) // 64)]  # 32 or more are enough
    norms = [gradient_mapping(x, hyperobjective(x, records, setting.coupled)[1]) for x in late]
    return {
        "x_out": gradient_mapping(x, gradient),
        "x_out, F_P": gradient_mapping(x, expected),
        "F_S - F_P": float(np.linalg.norm(gradient - expected)),
        "trajectory rms": float(np.sqrt(np.mean(np.square(norms)))),
    }


def batch_deviation(setting: Setting, seed: int) -> float:
    """The distance between the first mini-batch and full-batch hypergradients, with the same exact inner solves."""
    batch = replace(setting.method(), steps=1)
    both = (batch, replace(batch, sampling=dpb.FullBatch()))
    first, second = (solve(setting, seed, method).history["x"][0] for method in both)
    return float(np.linalg.norm(first - second) / STEP)


def sources(setting: Setting) -> dict[str, float]:
    """The errors of one hypergradient by source, from the plan, and the error at the output without noise."""
    parameters, penalty = solve(setting, 0).parameters, setting.method().penalty_weight
    names = ("lower solve", "penalised solve", "hypergradient")
    lower, penalised, outer = (parameters[f"{name}: noise"][0] for name in names)
    # Averaging two steps, of sizes 1 and 1/2, leaves 3/4 of the noise of the first answer and 1/4 of the second.
    solves = math.hypot(0.75, 0.25) * math.hypot(lower, penalised) * math.sqrt(setting.d_y)
    x = np.asarray(solve(setting, 0, private=False).x, np.float64)
    bias = gradient_mapping(x, hyperobjective(x, drawn(setting, 0), setting.coupled)[1])
    inner = penalty * solves if setting.coupled else solves
    return {"inner error": inner, "outer noise": outer * math.sqrt(setting.d_x), "bias": bias}


def measured(setting: Setting, seed: int, metric: str) -> float:
    return batch_deviation(setting, seed) if metric == "one batch's error" else of_one_run(setting, seed)[metric]


class Exponent(NamedTuple):
    """A slope on log-log axes with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def fitted(points: Sequence[float], values: np.ndarray) -> Exponent:
    """Least squares on logarithms, seed by seed (columns); then Student's t-interval of the slopes."""
    slopes = np.polyfit(np.log(points), np.log(values), 1)[0]
    half = stats.t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / math.sqrt(len(slopes))
    return Exponent(float(slopes.mean()), float(slopes.mean() - half), float(slopes.mean() + half))


def verdict(exponent: Exponent, bound: str) -> str:
    """Compare with the theorem, an upper bound: a smaller exponent is as good or better."""
    if exponent.high < Fraction(bound):
        return "below the bound"
    return "agrees" if exponent.low <= Fraction(bound) else "ABOVE the bound"


@dataclass(frozen=True)
class Experiment:
    """One quantity varies, everything else is fixed; ``bound`` is the exponent of the theorem."""

    name: str
    against: str  # a field of Setting; or mu, of the epsilons in the grid
    grid: tuple[float, ...]
    base: Setting
    bound: str
    metric: str = "x_out"
    seeds: int = 12
    printed: str | None = None  # the exponent printed in the paper, if it is wrong

    def run(self) -> dict[str, Any]:
        """All values, by grid point and seed, and the exponent."""
        field = "epsilon" if self.against == "mu" else self.against
        settings = [replace(self.base, **{field: point}) for point in self.grid]
        points = [s.budget.mu if self.against == "mu" else point for s, point in zip(settings, self.grid, strict=True)]
        values = np.array([[measured(s, seed, self.metric) for seed in range(self.seeds)] for s in settings])
        exponent = fitted(points, values)
        print(f"{self.name}, {self.metric}, in {self.against}: {exponent}", flush=True)
        plans = [{"alpha": s.alpha, "penalty": s.method().penalty_weight, "steps": s.method().steps} for s in settings]
        parameters = {"grid": points, "plans": plans, "values": values.tolist(), "exponent": exponent}
        return vars(self) | {"base": repr(self.base)} | parameters | {"verdict": verdict(exponent, self.bound)}


def grid(first: float, points: int, factor: int = 2) -> tuple[float, ...]:
    return tuple(first * factor**k for k in range(points))


SQUARE, APART = Setting(0, d_x=32, d_y=32), Setting(6400, d_x=64, d_y=4, coupled=False)
TALL, FREE = Setting(500, 32.0, d_y=4, coupled=False), Setting(1024, math.inf, scheme="replacement")
BATCHES, BASE = replace(SQUARE, scheme="poisson"), Setting(0, 32.0, d_x=4, d_y=4)


def experiments() -> list[Experiment]:
    """The experiments of the page. Scalings depend on mu n only, so that few records with a larger epsilon suffice."""
    free, poisson = replace(FREE, n=4096), replace(FREE, n=4096, scheme="poisson")
    return [
        Experiment("ERM", "n", grid(2000, 5), SQUARE, "-1/3"),
        Experiment("ERM", "n", grid(2000, 5), SQUARE, "-1/3", "trajectory rms"),
        Experiment("ERM", "epsilon", grid(0.25, 5), Setting(32_000), "-1/3", seeds=6),
        Experiment("ERM", "epsilon", grid(0.25, 5), Setting(32_000), "-1/3", "trajectory rms", seeds=6),
        Experiment("ERM, d_x = 256", "d_y", grid(32, 4), Setting(2000, 16.0, d_x=256), "1/6"),
        Experiment("ERM, d_x = 32", "d_y", grid(32, 4), Setting(2000, 16.0, d_x=32), "1/6"),
        Experiment("uncoupled", "n", grid(400, 5), APART, "-1/2"),
        Experiment("uncoupled", "epsilon", grid(0.25, 5), APART, "-1/2"),
        Experiment("uncoupled", "mu", grid(0.25, 5), APART, "-1/2"),
        Experiment("uncoupled", "d_x", grid(128, 4), TALL, "1/4"),
        Experiment("uncoupled, small d_x", "d_x", grid(16, 4), TALL, "1/4"),
        Experiment("uncoupled, small d_x", "d_x", grid(16, 4), TALL, "1/4", "trajectory rms"),
        Experiment("population", "n", grid(2000, 5), SQUARE, "-1/3", "x_out, F_P", printed="-1/4"),
        Experiment("population", "n", grid(2000, 5), SQUARE, "-1/2", "F_S - F_P", printed="-1/4"),
        Experiment("mini-batch, Poisson", "n", grid(1000, 5), BATCHES, "-1/3", seeds=8),
        Experiment("no privacy, replacement", "batch", grid(8, 5), FREE, "-1/2", printed="-1"),
        Experiment("no privacy, replacement", "batch", grid(16, 4, 4), free, "-1/2", "one batch's error", 32, "-1"),
        Experiment("no privacy, Poisson", "batch", grid(16, 4, 4), poisson, "-1/2", "one batch's error", 32, "-1"),
    ]


def quick_experiments() -> list[Experiment]:
    """A few small experiments, to check that everything runs."""
    return [
        Experiment("ERM", "n", (500, 2000), BASE, "-1/3", seeds=2),
        Experiment("population", "n", (500, 2000), BASE, "-1/3", "x_out, F_P", 2, "-1/4"),
        Experiment("no privacy, replacement", "batch", (16, 64), FREE, "-1/2", "one batch's error", 2, "-1"),
    ]


def draw(results: list[dict[str, Any]], target: Path) -> None:
    """One panel per varying quantity."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(11, 9.6), layout="constrained")
        for panel, against in zip(figure.subplots(2, 2).flat, ("n", "epsilon", "d_", "batch"), strict=True):
            if any(result["against"].startswith(against) for result in results):
                plot_rates.rates({"experiments": results}, panel, against)
        title = "Measured exponents (in brackets and dashed: theorem; dotted: paper, if it differs)"
        figure.suptitle(title, fontsize=11)
        figure.savefig(target, metadata={"Date": None})


def tables(results: list[dict[str, Any]], errors: list[dict[str, Any]]) -> tuple[str, str]:
    """The exponents, one row per experiment, and the errors of one hypergradient at the ends of two grids."""
    rows, names = [], ("inner error", "outer noise", "bias")
    for result in results:
        theorem = result["bound"] + (f" (the paper prints {result['printed']})" if result["printed"] else "")
        first, last = (f"{round(result['grid'][end], 3):g}" for end in (0, -1))
        span = f"{first} to {last}, {len(result['grid'])} points"
        row = [result["against"], f"{result['name']}: {result['metric']}", span, str(result["seeds"])]
        rows.append([*row, theorem, str(result["exponent"]), result["verdict"]])
    header = ["in", "setting: measured", "grid", "seeds", "theorem", "exponent, 95% interval", "verdict"]
    parts = [[row["setting"], *(f"{row[name]:.4f}" for name in names)] for row in errors]
    return markdown_table(header, rows), markdown_table(["setting", *names], parts)


def machine() -> str:
    """Commit and processor, without the host name."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = [line.split(": ")[1] for line in lines if "model name" in line] or [platform.machine()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"commit {commit.strip() or 'unknown'} on {cores} core(s) of {model[0]}"


def main(quick: bool = False, output: Path | None = None) -> list[dict[str, Any]]:
    """Run all experiments; write results and a figure, and update the generated part of the page."""
    begin = time.perf_counter()
    results = [experiment.run() for experiment in (quick_experiments() if quick else experiments())]
    ends = [(BASE, 500)] if quick else [(SQUARE, 2000), (SQUARE, 32_000), (APART, 400), (APART, 6400)]
    words = {True: "coupled", False: "uncoupled"}
    errors = [{"setting": f"{words[base.coupled]}, n = {n:,}"} | sources(replace(base, n=n)) for base, n in ends]
    content: dict[str, Any] = {"experiments": results, "errors": errors}
    if not quick:  # the sampling scheme of the paper, at one point: its accounting takes a minute
        one = replace(BATCHES, n=1000, scheme="replacement")
        content["with replacement"] = [of_one_run(one, seed)["x_out"] for seed in range(8)]
    if output is not None:
        minutes = [f"{seconds / 60:.1f}" for seconds in (time.perf_counter() - begin, time.process_time())]
        content["made"] = f"Made from {machine()}, in {minutes[0]} minutes ({minutes[1]} of processor time)."
        draw(results, output / "rates_exponents.svg")
        (output / "rates.json").write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        page = output / "rates.md"
        before, after = page.read_text("utf-8").split(MARK)[::2] if page.exists() else ("", "")
        parts = [before + MARK, *tables(results, errors), content["made"], MARK + after]
        page.write_text("\n\n".join(parts), encoding="utf-8")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny version, under half a minute")
    parser.add_argument("--output", type=Path, help="folder for the results; docs/results without --quick")
    given = parser.parse_args()
    main(given.quick, given.output or (None if given.quick else ROOT / "docs" / "results"))
