"""The error of a hypergradient as a function of the penalty lambda, for difference tracking and the double loop.

    python benchmarks/penalty.py                (about two minutes on two cores; writes docs/results/penalty.*)

Problem, records and exact hypergradient are those of `rates`. x is fixed, so that all steps of a run estimate the same
hypergradient. The double loop multiplies the noise of its two solves by lambda; tracking has no such factor.
"""

import functools
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter
from rates import ROOT, Arrays, Setting, drawn, fitted, hyperobjective, machine, problem
from scipy import stats

import dpbilevel as dpb
from dpbilevel.foundation.tables import markdown_table

PENALTIES, SEEDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0), 20
SETTING = Setting(4000, epsilon=1.0, d_x=4, d_y=4)
START = (np.zeros(SETTING.d_x), np.zeros(SETTING.d_y))
STILL = 1e-6  # largest change of x
POSED = problem(SETTING.d_x, SETTING.d_y, SETTING.coupled)
HELD = replace(POSED, domain=dpb.Box(START[0], START[0] + STILL))
STEP, MEAN = "one step", "mean of a run"  # whose error

PAGE = """# Error of a hypergradient and penalty weight

The double loop estimates the hypergradient by λ times the difference of two private solutions: a larger λ means less
bias, about 1/λ, and λ times the noise. Difference tracking releases curvatures along one direction and tracks the
scaled difference itself: it has no λ. Both spend ε = {epsilon:g} at δ = {delta:g}, replace-one, on the same {n:,}
records of the problem of the [measured rates](rates.md), with d_x = d_y = {dimension}: its hypergradient, of norm
{size:.2f}, is known in closed form. x is fixed, so that all steps of a run estimate the same hypergradient.

- *{step}*: the norm of the error of one step's estimate, root mean square over the steps of a run.
- *{mean}*: the norm of the error of the mean of a run's estimates, which uses the whole budget.

Tracking uses its default of {tracking_steps} steps, of which the second half is evaluated. The double loop uses its
default of {double_steps}, all of which are evaluated; each of them gets a larger share of the budget, and is therefore
more accurate at small λ. Its clip norm is 1 + λ/10: a constant one would clip the noisy difference, and the signal with
it. Tracking has no λ: its numbers are the same in every row. The error of its mean is noise and clipping bias, from
clip norms at a few medians of the records' norms.

![Error of the hypergradient against the penalty weight](penalty.svg)

{table}

Geometric means over {seeds} seeds (0, 1, 2 and so on; each has its own records and its own noise) with Student's 95%
intervals. *Bias* is the exact error of the penalty method without noise, on the records of seed 0. The last row has the
exponents in λ from {first:g} to {last:g}: least-squares slopes on logarithms, one for each seed, with the same
interval. Over these two orders of magnitude the error of one step changes by a factor of {tracking_growth:.2f} with
tracking, and of {double_growth:.3g} with the double loop.

All raw numbers: [penalty.json](penalty.json). Seeds are fixed for reproducibility, so that none of these runs is
itself private.

{made}
"""


def run(case: dpb.BilevelProblem, method: Any, seed: int) -> dict[str, np.ndarray]:
    """The history of a run at x = 0."""
    records = dpb.Records(both=drawn(SETTING, seed))
    settings = {"start": START, "refit": None, "seed": seed, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # seeds are fixed for reproducibility
        return dpb.solve(case, records, SETTING.budget, method=method, **settings).history


def tracked(penalty: float, seed: int) -> np.ndarray:
    """Hypergradients of the second half of tracking, when model and difference have converged. It has no penalty."""
    return _tracked(seed)


@functools.cache
def _tracked(seed: int) -> np.ndarray:
    method = dpb.Tracking()
    # The last passes validate, and release no hypergradient.
    return run(HELD, method, seed)["hypergradient"][method.steps // 2 : method.steps - method.phase]


def double_loop(penalty: float, seed: int) -> np.ndarray:
    """Hypergradients of all outer steps, computed from the tiny steps of x."""
    # The noisy difference has a norm of a few hundredths, and lambda times that is below this clip norm.
    clips = {"clip_norm": 1 + penalty / 10, "upper_clip_norm": 1.0}
    method = replace(SETTING.method(), penalty_weight=penalty, steps=dpb.DPBilevel.steps, step_size=STILL, **clips)
    path = np.concatenate([START[0][None], run(POSED, method, seed)["x"]])
    return -np.diff(path, axis=0) / STILL


TRACKING, DOUBLE = "difference tracking", "double loop"
METHODS = {TRACKING: tracked, DOUBLE: double_loop}


def errors(method: str, penalty: float, seed: int) -> dict[str, float]:
    """The errors of one run: of the hypergradient of one step, and of their mean."""
    off = METHODS[method](penalty, seed) - hyperobjective(START[0], drawn(SETTING, seed), SETTING.coupled)[1]
    return {
        STEP: float(np.sqrt(np.mean(np.sum(off**2, axis=1)))),
        MEAN: float(np.linalg.norm(off.mean(axis=0))),
    }


def bias(penalty: float, records: Arrays) -> float:
    """The distance between the exact hypergradients of the penalised problem and of the problem itself."""
    exact = hyperobjective(START[0], records, True)[1]
    difference = np.zeros(SETTING.d_y)  # z - y*
    for _ in range(100):  # a contraction, because f has less curvature than g: z = y* - grad_y f(x, z)/lambda
        moved = records | {"b": records["b"] + difference}
        # At x = 0 the uncoupled problem has the same y, and no gradient through y.
        whole, direct = (hyperobjective(START[0], moved, coupled)[1] for coupled in (True, False))
        difference = (direct - whole) / penalty
    return float(np.linalg.norm(whole - exact))


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean over seeds, and the limits of its 95% interval (Student's t)."""
    logs = np.log(values)
    ends = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    return tuple(float(np.exp(value)) for value in (logs.mean(), *ends))


def measured(penalties: Sequence[float], seeds: int) -> dict[str, Any]:
    """Errors by method, measure, penalty and seed; exponent and growth over the last two decades; the bias."""
    last = [at for at, penalty in enumerate(penalties) if penalty >= penalties[-1] / 100]
    fit = [penalties[at] for at in last]
    results: dict[str, Any] = {"penalties": list(penalties), "seeds": seeds, "fitted": fit, "methods": {}}
    for method in METHODS:
        runs = [[errors(method, penalty, seed) for seed in range(seeds)] for penalty in penalties]
        for measure in (STEP, MEAN):
            values = np.array([[one[measure] for one in row] for row in runs])
            means = [interval(row)[0] for row in values]
            found = {
                "values": values.tolist(),
                "exponent": fitted(fit, values[last]),
                "growth": means[-1] / means[last[0]],
            }
            results["methods"].setdefault(method, {})[measure] = found
            print(f"{method}, {measure}: {found['exponent']} in the penalty", flush=True)
    return results | {"bias": [bias(penalty, drawn(SETTING, 0)) for penalty in penalties]}


def table(results: dict[str, Any]) -> str:
    """One row per penalty, and one with the exponents."""
    columns = [(method, measure) for measure in (STEP, MEAN) for method in METHODS]
    rows = []
    for at, (penalty, left) in enumerate(zip(results["penalties"], results["bias"], strict=True)):
        cells = [interval(np.array(results["methods"][method][measure]["values"][at])) for method, measure in columns]
        rows.append([f"{penalty:g}", *("{:.3g} [{:.3g}, {:.3g}]".format(*cell) for cell in cells), f"{left:.2g}"])
    exponents = [str(results["methods"][method][measure]["exponent"]) for method, measure in columns]
    rows.append(["exponent", *exponents, ""])
    return markdown_table(["λ", *(f"{method}, {measure}" for method, measure in columns), "bias"], rows)


def draw(results: dict[str, Any], target: Path) -> None:
    """Both measures side by side with the same axes, with the bias for comparison."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "penalty", "font.size": 10})
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    penalties, panels = results["penalties"], figure.subplots(1, 2, sharey=True)
    titles = {STEP: "One step's estimate", MEAN: "Mean of a run's estimates"}
    for panel, (measure, title) in zip(panels, titles.items(), strict=True):
        for method, marker, colour in zip(METHODS, "os", ("C0", "C3"), strict=True):
            points = np.array([interval(np.array(row)) for row in results["methods"][method][measure]["values"]])
            spread = np.abs(points[:, 1:] - points[:, :1]).T
            name = {"label": method, "color": colour, "marker": marker}
            panel.errorbar(penalties, points[:, 0], spread, markersize=5, capsize=3, linewidth=1.4, **name)
        panel.plot(penalties, results["bias"], ":", color="0.4", label="bias of the penalty, no noise")
        panel.set(xscale="log", yscale="log", xlabel="penalty λ", title=title, ylim=(0.01, None))
        panel.xaxis.set_major_locator(FixedLocator(penalties))
        panel.xaxis.set_minor_locator(FixedLocator([]))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        panel.grid(True, alpha=0.3)
    panels[0].set_ylabel("error of the hypergradient (norm)")
    panels[0].legend(loc="upper left", frameon=False)
    figure.savefig(target, metadata={"Date": None})


def main(output: Path, penalties: Sequence[float] = PENALTIES, seeds: int = SEEDS) -> dict[str, Any]:
    """Measure, and write results, page and figure."""
    begin = time.perf_counter()
    results = measured(penalties, seeds)
    made = f"Made by `python benchmarks/penalty.py` from {machine()}, in {time.perf_counter() - begin:.0f} seconds."
    (output / "penalty.json").write_text(
        json.dumps(results | {"setting": repr(SETTING), "made": made}, allow_nan=False, indent=1) + "\n",
        encoding="utf-8",
    )
    page = PAGE.format(
        epsilon=SETTING.epsilon,
        delta=SETTING.budget.delta,
        n=SETTING.n,
        dimension=SETTING.d_x,
        size=np.linalg.norm(hyperobjective(START[0], drawn(SETTING, 0), SETTING.coupled)[1]),
        step=STEP,
        mean=MEAN,
        tracking_steps=dpb.Tracking.steps,
        double_steps=dpb.DPBilevel.steps,
        table=table(results),
        seeds=seeds,
        first=results["fitted"][0],
        last=results["fitted"][-1],
        tracking_growth=results["methods"][TRACKING][STEP]["growth"],
        double_growth=results["methods"][DOUBLE][STEP]["growth"],
        made=made,
    )
    (output / "penalty.md").write_text(page, encoding="utf-8")
    draw(results, output / "penalty.svg")
    return results


if __name__ == "__main__":
    main(ROOT / "docs" / "results")
