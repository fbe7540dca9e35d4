"""Does the default solve its problem with noise? The problems of `solver.py` at epsilon 1 and 3.

    python benchmarks/solver_private.py --records 1e3,1e4 --processes 16 --out part.json        (a part)
    python benchmarks/solver_private.py --merge part.json other.json --report                   (docs/results)

*Left* is (F(x) - F*)/(F(x0) - F*), as in `solver.py`. A cell is a problem at one epsilon and one number of records,
over several seeds of the noise. Results that are already in the file are not computed again, so that parts can run on
several machines. With ``PYTHONPATH=src`` it runs from source; only the report needs Matplotlib.

Three measures keep it affordable. The final training does not affect x and is skipped: tuning gets exactly the budget
that `dpb.solve` would give it (`Refit.budgets`). All sizes use the first records of one draw, so that only their number
changes. F and F* are evaluated on the same records, but on at most 20,000 of them.

The paper's double loop runs for comparison on quadratics in a ball, the problems with certified constants, up to 10^5
records: it makes ten times as many passes over the data.
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pieces import Cells, read_cells, run, write_cells
from solver_problems import PLAIN, Entry, Posed, quadratic, table
from solver_reference import Reference

import dpbilevel as dpb

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "solver_private.json"
EPSILONS, RECORDS, SEEDS = (1.0, 3.0), (10**3, 10**4, 10**5, 10**6), 8
DELTA = 1e-7
DATA_SEED = 41
# Rescaled problems have other noise: the comparison with the original problems assumes independence.
NOISE_SEEDS = {"plain": 51, "rescaled": 151}
REFERENCE_RECORDS = 20_000
DEFAULT, DOUBLE_LOOP = "default", "double loop"
MOST_FOR_DOUBLE_LOOP = 10**5
RECORD_NORM = 4.0  # declared norm of the records of quadratics: centres of norm about 1.7, and spread 0.3
LOST = 1e12  # the fraction left of a run that ends with NaN or infinity

Task = tuple[int, int, tuple[str, ...], int]  # entry, records, keys of missing cells, seeds


def key_of(name: str, epsilon: float, records: int, method: str) -> str:
    """The key of a cell."""
    return f"{name} | {epsilon:g} | {records} | {method}"


def plain_name(entry: Entry) -> str:
    """The name of the same problem in original units."""
    return replace(entry, units=PLAIN).name


def front(posed: Posed, records: int) -> Posed:
    """The same problem on the first lower records, and half as many upper ones."""

    def cut(role: str, leaf: np.ndarray) -> np.ndarray:
        return np.array(leaf[: records // 2 if role == "upper" else records])

    data = {role: jax.tree.map(lambda leaf: cut(role, leaf), tree) for role, tree in posed.data.items()}  # noqa: B023
    return replace(posed, data=data)


# ------------------------------------------------------------------------------------------------------------- methods


def tuning_budget(epsilon: float, sizes: dpb.RecordShapes) -> dpb.Budget:
    """The budget of tuning in `dpb.solve` with defaults."""
    budget, _, _ = dpb.Tracking().default_refit.budgets(dpb.Budget(epsilon, DELTA), sizes, gaussian=True)
    return budget


def certified(posed: Posed) -> Posed:
    """A quadratic in a ball with its constants, for all records of norm at most `RECORD_NORM`."""
    curvature, coupling = (np.asarray(matrix, np.float64) for matrix in posed.problem.public)
    both = np.hstack([-coupling, np.eye(len(coupling))])  # g = |both (x, y) - b|_A^2 / 2, and y* = B x + mean of b
    reach = posed.problem.domain.radius * np.linalg.norm(coupling, 2)
    constants = dpb.Constants(
        upper_lipschitz=reach + 2 * RECORD_NORM,
        upper_smoothness=1.0,
        lower_lipschitz=2 * RECORD_NORM * np.linalg.norm(curvature, 2),
        lower_smoothness=np.linalg.norm(both.T @ curvature @ both, 2),
        lower_hessian_lipschitz=0.0,
        strong_convexity=np.linalg.eigvalsh(curvature)[0],
    )
    return replace(posed, problem=replace(posed.problem, constants=constants))


def double_loop(constants: dpb.Constants) -> dpb.DPBilevel:
    """Algorithm 1 with penalty, step, radii and clips from certified constants."""
    inner = dpb.DPLocGD(clip_norm=constants.lower_lipschitz, upper_clip_norm=constants.upper_lipschitz)
    return dpb.DPBilevel(inner=inner, penalty_weight=constants.smallest_penalty_weight(), clip_norm="certified")


def methods_of(entry: Entry, records: int) -> tuple[str, ...]:
    """The methods that run on a problem."""
    in_ball = entry.family is quadratic and entry.settings.get("domain") == "ball"
    known = in_ball and entry.units == PLAIN and entry.settings.get("reads", True)
    return (DEFAULT, DOUBLE_LOOP) if known and records <= MOST_FOR_DOUBLE_LOOP else (DEFAULT,)


def solved(posed: Posed, method: str, epsilon: float, seeds: Sequence[int]) -> list[Any]:
    """x for each seed of the noise; with one problem object, so that it is compiled once."""
    if method == DEFAULT:
        budget = tuning_budget(epsilon, dpb.Records(**posed.data).sizes)
        options: dict[str, Any] = {"refit": None}
    else:
        posed, budget = certified(posed), dpb.Budget(epsilon, DELTA)
        options = {"method": double_loop(posed.problem.constants)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the fixed seed and about large noise
        records = dpb.Records(**posed.data)
        return [
            dpb.solve(posed.problem, records, budget, start=posed.start, seed=seed, progress=False, **options).x
            for seed in seeds
        ]


# ----------------------------------------------------------------------------------------------------------- measuring


def left_by(x: Any, reference: Reference, first: float, best: float) -> float:
    """The remaining fraction of F(x0) - F* at x."""
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(x)):
        return LOST
    return min((reference.value(x) - best) / (first - best), LOST)


def measure(task: Task) -> Cells:
    """Measure the missing cells of a problem at one number of records."""
    index, records, keys, seeds = task
    entry = table()[index]
    posed = front(entry.posed(max(RECORDS), DATA_SEED), records)
    reference = Reference(front(posed, REFERENCE_RECORDS))
    first, best = reference.value(posed.start[0]), reference.best()
    begin = NOISE_SEEDS["plain" if entry.units == PLAIN else "rescaled"]
    cells: Cells = {}
    for key in keys:
        _, epsilon, _, method = key.split(" | ")
        start = time.perf_counter()
        xs = solved(posed, method, float(epsilon), range(begin, begin + seeds))
        seconds = time.perf_counter() - start
        cells[key] = {
            "left": [left_by(x, reference, first, best) for x in xs],
            "gap": first - best,
            "seconds": round(seconds, 2),
            "device": jax.devices()[0].platform,
        }
    jax.clear_caches()  # compiled programs of all problems would exceed the limit of memory maps on Linux
    return cells


def missing(
    there: Cells, indices: Sequence[int], epsilons: Sequence[float], records: Sequence[int], seeds: int
) -> list[Task]:
    """Tasks for missing cells, largest first."""
    entries = table()
    tasks = []
    for number in sorted(records, reverse=True):
        for index in indices:
            entry = entries[index]
            wanted = [
                key_of(entry.name, epsilon, number, method)
                for method in methods_of(entry, number)
                for epsilon in epsilons
            ]
            keys = tuple(key for key in wanted if key not in there)
            if keys:
                tasks.append((index, number, keys, seeds))
    return tasks


def numbers(text: str) -> list[int]:
    """Parse numbers and ranges.

    >>> numbers("0-2,7")
    [0, 1, 2, 7]
    """
    ranges = [part.split("-") for part in text.split(",")]
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, or merge and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=numbers, default=list(range(len(table()))), help="entries of the table: 0-64")
    parser.add_argument("--epsilons", type=lambda text: [float(part) for part in text.split(",")], default=EPSILONS)
    parser.add_argument("--records", type=lambda text: [int(float(part)) for part in text.split(",")], default=RECORDS)
    parser.add_argument("--seeds", type=int, choices=range(2, 27), default=SEEDS, metavar="2...26")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="add the cells of these files")
    parser.add_argument("--report", action="store_true", help="write page and figure from the results")
    asked = parser.parse_args(arguments)
    if asked.merge:
        write_cells(asked.out, read_cells(asked.out, *asked.merge))
    elif not asked.report:
        tasks = missing(read_cells(asked.out), asked.entries, asked.epsilons, asked.records, asked.seeds)
        run(measure, tasks, asked.out, asked.processes)
    if asked.report:
        from solver_private_report import report  # needs Matplotlib

        report(asked.out)


if __name__ == "__main__":
    main()
