"""Does tuning many penalties of smoothness beat one? Additive models on simulated curves, whose truth is known.

    python benchmarks/smoothness.py     (a quarter of an hour on one core; make bench-smoothness)

Eight columns, uniform on [0, 1], add up to a target with noise. In *different*, their curves are lines, a parabola,
waves of one and of three periods, a steep step and nothing: each needs a smoothness of its own. In *alike*, all are
waves of one period with different phases: one smoothness is right for all.
"""

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rates import ROOT, machine
from utility_results import DELTA, estimated

import dpbilevel as dpb
from dpbilevel.estimators import DPRidgeCV
from dpbilevel.foundation.tables import markdown_table

ROWS, SEEDS, EPSILONS = 20_000, 5, (1.0, 8.0, math.inf)
Curve = Callable[[np.ndarray], np.ndarray]

DIFFERENT: dict[str, Curve] = {
    "rising": lambda u: u,
    "falling": lambda u: -2 * u,
    "parabola": lambda u: 4 * (u - 0.5) ** 2,
    "wave": lambda u: 0.5 * np.sin(2 * np.pi * u),
    "shifted wave": lambda u: 0.5 * np.cos(2 * np.pi * u),
    "three waves": lambda u: 0.5 * np.sin(6 * np.pi * u),
    "step": lambda u: np.tanh(20 * (u - 0.6)) / 2,
    "nothing": lambda u: 0 * u,
}
ALIKE: dict[str, Curve] = {f"phase {k}": lambda u, k=k: 0.5 * np.sin(2 * np.pi * (u + k / 8)) for k in range(8)}
PROBLEMS = {"different": DIFFERENT, "alike": ALIKE}
# Without privacy all penalties are tuned; with it, the default makes no search, and Tracking does.
MODELS: dict[str, dict[str, Any]] = {
    "no smoothness": {"smooth": False},
    "one penalty, from public numbers": {"smooth": "shared"},
    "many penalties, from public numbers": {"smooth": True},
    "one penalty, tuned": {"smooth": "shared", "method": dpb.Tracking()},
    "many penalties, tuned": {"smooth": True, "method": dpb.Tracking()},
}
TUNED = "one penalty, tuned", "many penalties, tuned"
PAGE = """# Penalties of smoothness: does tuning many beat one?

[Additive models](../additive.md#smoothness) of eight simulated curves, {rows:,} rows, {seeds} seeds (each with its own
rows and its own noise), δ = {delta:g}. The number is the mean squared error of the fitted function against the true
one, in percent of the variance of the latter (less is better), with a 95% interval (Student's t). Targets have noise of
the same variance as the true function.

{tables}

**Many tuned penalties beside one tuned penalty**, the mean of the ratio of errors in the same repetition (below one:
many are better):

{ratios}

*Different*: a line up, a line down, a parabola, two waves, three waves in one, a step, and nothing. *Alike*: eight
waves of one period. Where the table says *from public numbers*, no search is made, which is the
default with privacy. Without privacy (ε = ∞) all penalties are tuned.

{made}
"""


def drawn(curves: dict[str, Curve], rows: int, seed: int, part: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A table, and the true function of its rows."""
    draws = np.random.default_rng([7, seed, part])
    table = {name: draws.uniform(size=rows) for name in curves}
    return table, sum((curve(table[name]) for name, curve in curves.items()), np.zeros(rows))


def error(problem: str, model: str, epsilon: float, seed: int, rows: int = ROWS) -> float:
    """The squared error of a fitted function, in percent of the variance of the true one."""
    curves = PROBLEMS[problem]
    (table, truth), (new, exact) = drawn(curves, rows, seed, 0), drawn(curves, 4000, seed, 1)
    target = truth + np.sqrt(_variance(curves)) * np.random.default_rng([8, seed]).normal(size=rows)
    encoder = dpb.BoundedEncoder(ranges=dict.fromkeys(curves, (0.0, 1.0)), knots="auto")
    settings = MODELS[model] if math.isfinite(epsilon) else {"smooth": MODELS[model]["smooth"]}
    fitted = DPRidgeCV(
        epsilon=epsilon,
        delta=DELTA if math.isfinite(epsilon) else None,
        target_range=(-8.0, 8.0),
        random_state=seed,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeds are fixed for reproducibility
        fitted.fit(encoder.fit_transform(table), target)
    wrong = fitted.predict(encoder.transform(new)) - exact
    return 100 * float(np.mean(wrong**2) / _variance(curves))


def _variance(curves: dict[str, Curve]) -> float:
    """Of the true function: that of each curve on a fine grid, because columns are independent."""
    grid = (np.arange(10_000) + 0.5) / 10_000
    return float(sum(np.var(curve(grid)) for curve in curves.values()))


def run(seeds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Errors by problem, epsilon and model."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for epsilon in EPSILONS:
        for model in MODELS:
            if not math.isfinite(epsilon) and "public" in model:
                continue
            for problem in PROBLEMS:
                errors = [error(problem, model, epsilon, seed) for seed in range(seeds)]
                found.setdefault(problem, {}).setdefault(f"{epsilon:g}", {})[model] = errors
                print(f"epsilon {epsilon:g}, {model}, {problem}: {statistics.fmean(errors):.2f}%", flush=True)
    return found


def page(content: dict[str, Any]) -> str:
    """The page of results."""
    tables = []
    for problem, by_epsilon in content["errors"].items():
        rows = [
            [model, *(_cell(by_epsilon[epsilon].get(model)) for epsilon in by_epsilon)]
            for model in MODELS
            if any(model in own for own in by_epsilon.values())
        ]
        heads = [f"*{problem}*", *(f"ε = {epsilon.replace('inf', '∞')}" for epsilon in by_epsilon)]
        tables.append(markdown_table(heads, rows))
    ratios = [
        [f"*{problem}*", *(_ratio(by_epsilon[epsilon]) for epsilon in by_epsilon)]
        for problem, by_epsilon in content["errors"].items()
    ]
    heads = ["", *(f"ε = {epsilon:g}".replace("inf", "∞") for epsilon in EPSILONS)]
    return PAGE.format(
        rows=ROWS,
        seeds=content["seeds"],
        delta=DELTA,
        tables="\n\n".join(tables),
        ratios=markdown_table(heads, ratios),
        made=content["made"],
    )


def _cell(errors: list[float] | None) -> str:
    if errors is None:
        return ""
    found = estimated(errors)
    return f"{found.mean:.2f} ± {found.half_width:.2f}"


def _ratio(own: dict[str, list[float]]) -> str:
    one, many = (own[name] for name in TUNED)
    return _cell([second / first for first, second in zip(one, many, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    made_on, begin = machine(), (time.perf_counter(), time.process_time())
    content: dict[str, Any] = {"errors": run(options.seeds), "seeds": options.seeds}
    minutes = [(now - then) / 60 for now, then in zip((time.perf_counter(), time.process_time()), begin, strict=True)]
    content["made"] = (
        f"Made by `make bench-smoothness`, {made_on}, in {minutes[0]:.0f} minutes ({minutes[1]:.0f} of processor "
        "time). Seeds are fixed for reproducibility, so that none of these runs is itself private."
    )
    (options.out / "smoothness.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (options.out / "smoothness.md").write_text(page(content), encoding="utf-8")


if __name__ == "__main__":
    main()
