"""The fraction of the gap between untuned and ideal training that each method closes: docs/results/utility.*.

    python benchmarks/utility.py --quick                    ten minutes on two cores
    python benchmarks/utility.py --tasks adult-sources,flights-shift --epsilons 1 --seeds 10 --out part.json
    python benchmarks/utility.py --merge part.json --report

Results are stored by (task, method, epsilon, repetition): parts can run on different machines and be merged, and
existing results are not computed again. With ``PYTHONPATH=src`` it runs from source.

Methods are in `utility_methods`, tasks in `tasks`; `utility_results` stores results and compares them with targets, and
`utility_report` writes the page.
"""

import argparse
import os
import subprocess
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tasks as task_list
from utility_methods import BAD_START, METHODS, ORACLE, OURS, UNTUNED, Ceiling
from utility_report import report
from utility_results import DELTA, key_of, merged, read_results, write_results

import dpbilevel as dpb

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "utility.json"
EPSILONS = (0.5, 1.0, 3.0)
SEEDS, MNIST_SEEDS, QUICK_SEEDS = 10, 5, 2
QUICK_TASKS = ("adult-sources", "adult-shuffled", "adult-scalar-5", "california-groups")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run, with everything that the tables need."""

    task: str
    method: str
    epsilon: float
    seed: int
    test_loss: float
    accuracy: float
    passes: float
    wall_seconds: float
    x: list[float]
    device: str
    commit: str
    note: dict[str, Any]

    @property
    def key(self) -> str:
        return key_of(self.task, self.method, self.epsilon, self.seed)


def passes_of(solution: Any) -> float:
    """Passes over the data: each use of a release reads the records of its roles, or a batch of them."""
    if "runs" in solution.parameters:  # random search: one charge for all runs, of which the expected number is public
        scored = solution.sizes["upper"] / sum(solution.sizes.values())
        return solution.parameters["runs"][0] * (solution.parameters["training: steps"][0] + scored)
    charges = [charge for charges in solution.privacy.charges.values() for charge in charges]
    total = sum(solution.sizes.values())

    def read(charge: Any) -> float:
        return charge.sampling.divisor(charge.records) if not charge.sampling.is_full_batch else charge.records

    return sum(charge.uses * read(charge) / total for charge in charges)


def noise_seed(repetition: int) -> int:
    """The seed of the privacy noise of a repetition, independent of splits and corruption."""
    return int(np.random.SeedSequence([9, repetition]).generate_state(1)[0])


def run_one(
    task: task_list.Task, method: str, epsilon: float, repetition: int, ceiling: Ceiling, commit: str
) -> Outcome:
    budget, seed, note = dpb.Budget(epsilon, DELTA), noise_seed(repetition), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # seeds are fixed for reproducibility
        if method == ORACLE:
            ceiling.choice(task.name, budget)  # not part of the measured time
        began = time.perf_counter()
        if method == ORACLE:
            solution, note = ceiling.solve(task, budget, seed)
        else:
            start = (task.usual, task.start[1]) if method == UNTUNED else task.start
            solution = METHODS[method](task.problem, task.records(), budget, start, seed)
        took = time.perf_counter() - began
    return Outcome(
        task=task.name,
        method=method,
        epsilon=epsilon,
        seed=repetition,
        test_loss=float(task.test_loss(solution.x, solution.y)),
        accuracy=float(task.test_accuracy(solution.x, solution.y)),
        passes=passes_of(solution),
        wall_seconds=round(took, 3),
        x=[round(float(value), 6) for value in np.ravel(solution.x)],
        device=jax.devices()[0].device_kind,
        commit=commit,
        note=note,
    )


def run(
    names: Iterable[str],
    methods: Iterable[str],
    epsilons: Iterable[float],
    seeds: Iterable[int] | None,
    *,
    data: Path,
    target: Path,
    again: bool = False,
    choosing: int = 2,
) -> None:
    """Compute missing results, and write after every run."""
    methods, epsilons = tuple(methods), tuple(epsilons)
    results, commit, ceiling = read_results(target), current_commit(), Ceiling(data, choosing)
    for name in names:
        for epsilon in epsilons:
            for method in methods:  # seeds innermost: they share compiled programs
                for seed in seeds or range(MNIST_SEEDS if name.startswith("mnist") else SEEDS):
                    if not again and key_of(name, method, epsilon, seed) in results:
                        continue
                    task = task_list.load(name, data, seed)
                    if method == BAD_START and not task.starts_badly:
                        break  # tuning starts where people would train
                    try:
                        outcome = run_one(task, method, epsilon, seed, ceiling, commit)
                    except dpb.InvalidProblem as refusal:
                        print(f"{name} {method}: does not apply ({refusal})", flush=True)
                        break
                    results = merged(read_results(target), {outcome.key: asdict(outcome)})
                    write_results(target, results)
                    print(
                        f"{name} {method} epsilon {epsilon:g} seed {seed}: loss {outcome.test_loss:.4f} "
                        f"accuracy {outcome.accuracy:.4f} passes {outcome.passes:.0f} {outcome.wall_seconds:.1f} s "
                        f"{outcome.note or ''}",
                        flush=True,
                    )


def current_commit() -> str:
    """The commit of a result; $DPBILEVEL_COMMIT on machines without git."""
    if commit := os.environ.get("DPBILEVEL_COMMIT"):
        return commit
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ------------------------------------------------------------------------------------------------------ command line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Methods x tasks x epsilon x seeds at equal total privacy.")
    parser.add_argument("--data", type=Path, default=task_list.default_data_directory(), help="directory of the data")
    parser.add_argument("--quick", action="store_true", help="few tasks, epsilon 1, two seeds")
    parser.add_argument("--tasks", type=_names, help=f"some of {', '.join(task_list.NAMES)}")
    parser.add_argument("--methods", type=_names, help=f"some of {', '.join([*METHODS, ORACLE])}")
    parser.add_argument("--epsilons", type=lambda text: tuple(map(float, _names(text))))
    parser.add_argument("--seeds", type=_seeds, help="number of repetitions, or a range such as 5-9")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results are added to this file")
    parser.add_argument("--again", action="store_true", help="compute existing results again")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=[], help="add the results of other files, without running anything"
    )
    parser.add_argument("--report", action="store_true", help="write the page and the figure, without running anything")
    given = parser.parse_args(arguments)
    if given.merge:
        write_results(given.out, merged(read_results(given.out), *map(read_results, given.merge)))
    for wanted, known in ((given.tasks, task_list.available()), (given.methods, (*METHODS, ORACLE))):
        if unknown := set(wanted or ()) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: must be among {', '.join(known)}")
    if not given.merge and not given.report:
        quick = given.quick
        run(
            given.tasks or (QUICK_TASKS if quick else task_list.NAMES),
            given.methods or ((UNTUNED, BAD_START, OURS, ORACLE) if quick else (*METHODS, ORACLE)),
            given.epsilons or ((1.0,) if quick else EPSILONS),
            given.seeds or (range(QUICK_SEEDS) if quick else None),
            data=given.data,
            target=given.out,
            again=given.again,
            choosing=1 if quick else 2,
        )
    if given.report:
        report(read_results(given.out), given.out)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else range(int(first))


if __name__ == "__main__":
    main()
