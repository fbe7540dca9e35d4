"""How much of the gap between untuned and ideal training each method closes: docs/results/utility.{json,md,svg}.

    python benchmarks/utility.py --quick                    ten minutes on two cores
    python benchmarks/utility.py --tasks adult-sources,flights-shift --epsilons 1 --seeds 10 --out part.json
    python benchmarks/utility.py --merge part.json --report

Results are kept by (task, method, epsilon, repetition): runs can be made in pieces on different machines and merged;
what is there already is not run again. With ``PYTHONPATH=src`` it runs from source.

No method is told which task it works on. What differs between tasks reaches a method through the problem, the sizes
and the budget only, and a test keeps it so (`override_complaints`).
"""

import argparse
import ast
import functools
import importlib
import inspect
import json
import math
import os
import statistics
import subprocess
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tasks as task_list
from scipy.stats import t as student

import dpbilevel as dpb
from dpbilevel.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "utility.json"
FORMAT = "dpbilevel.utility/1"
DELTA = 1e-6
EPSILONS = (0.5, 1.0, 3.0)
SEEDS, MNIST_SEEDS, QUICK_SEEDS = 10, 5, 2
QUICK_TASKS = ("adult-sources", "adult-shuffled", "adult-scalar-5", "california-groups")
LEAST_GAP = 0.02  # of the untuned loss: below it a task is reported, and not counted
UNTUNED, ORACLE, OURS = "untuned", "oracle", "tracking"

# ---------------------------------------------------------------------------------------------------------- methods


def untuned(problem, records, budget, start, seed):
    """All records, the starting x, the whole budget."""
    return dpb.solve(problem, records, budget, method=dpb.Refit(), start=start, refit=None, seed=seed, progress=False)


def tracking(problem, records, budget, start, seed):
    """The library's default, as it comes."""
    return dpb.solve(problem, records, budget, method=dpb.Tracking(), start=start, seed=seed, progress=False)


def double_loop(problem, records, budget, start, seed):
    """The paper's algorithm, with the same final training."""
    # Its steps 1/(mu (t + 1)) ask for a strong convexity that these problems do not certify: 0.05 is the curvature
    # that matters in practice, and 1/4 bounds the smoothness of logistic losses on rows of norm one.
    inner = dpb.DPLocGD(strong_convexity=0.05, smoothness=0.25, radius=20.0, steps=50)
    method = dpb.DPBilevel(inner=inner, penalty=10.0, steps=20, step_size=0.1, output="last")
    return dpb.solve(problem, records, budget, method=method, start=start, refit=dpb.Refit(), seed=seed, progress=False)


def upper_records_only(problem, records, budget, start, seed):
    """Train on the clean validation records alone, with the whole budget."""
    return baselines().UpperRecordsOnly().solve(problem, records, budget, start=start, seed=seed, progress=False)


def screening(problem, records, budget, start, seed):
    """One look at every source; applies to weights of sources alone."""
    method = baselines().ScreenSources(source=lambda record: record[-1])
    return method.solve(problem, records, budget, start=start, seed=seed, progress=False)


def random_search_10(problem, records, budget, start, seed):
    """Papernot and Steinke's search, ten runs expected."""
    method = baselines().PrivateRandomSearch(candidates=prior_of(problem, start), mean_runs=10.0)
    return method.solve(problem, records, budget, start=start, seed=seed, progress=False)


def random_search_30(problem, records, budget, start, seed):
    """The same, thirty runs expected."""
    method = baselines().PrivateRandomSearch(candidates=prior_of(problem, start), mean_runs=30.0)
    return method.solve(problem, records, budget, start=start, seed=seed, progress=False)


def grid_search(problem, records, budget, start, seed):
    """Five candidates that share the budget."""
    method = baselines().NaiveGridSearch(candidates=grid_of(problem, start))
    return method.solve(problem, records, budget, start=start, seed=seed, progress=False)


def baselines():
    """Loaded late, so that other methods run without them."""
    return importlib.import_module("dpbilevel.baselines")


def prior_of(problem, start):
    """What somebody who knows the domain of x and nothing else would draw from."""
    number = np.size(start[0])
    if isinstance(problem.domain, dpb.Simplex):  # a random subset of sources, or all of them
        return lambda key: _kept(jax.random.bernoulli(key, 0.5, (number,)), number)
    low, high = problem.domain.lower, problem.domain.upper
    return lambda key: jax.random.uniform(key, (number,), minval=low, maxval=high)


def _kept(chosen, number):
    chosen = jnp.where(jnp.any(chosen), chosen, True).astype(jnp.float32)
    return chosen / jnp.sum(chosen)


@functools.cache  # methods with the same candidates share what is compiled
def grid_of_size(domain, number):
    if isinstance(domain, dpb.Simplex):
        subsets = [jax.random.bernoulli(jax.random.key(at), 0.5, (number,)) for at in range(4)]
        return [np.full(number, 1 / number, np.float32), *(np.asarray(_kept(subset, number)) for subset in subsets)]
    return [np.full(number, value, np.float32) for value in np.linspace(domain.lower, domain.upper, 7)[1:-1]]


def grid_of(problem, start):
    """Five public candidates: uniform weights and subsets of sources, or equal penalties across the box."""
    return grid_of_size(problem.domain, np.size(start[0]))


# name: (problem, records, budget, start, seed) -> a solution. One line for each method.
METHODS: dict[str, Callable[..., Any]] = {
    UNTUNED: untuned,
    OURS: tracking,
    "double loop": double_loop,
    "upper records only": upper_records_only,
    "screening": screening,
    "random search 10": random_search_10,
    "random search 30": random_search_30,
    "grid search": grid_search,
}
ARGUMENTS = ("problem", "records", "budget", "start", "seed")


def override_complaints(name: str, method: Callable[..., Any]) -> list[str]:
    """Why a method might treat tasks differently: it may only hand its arguments on, whole."""
    if tuple(inspect.signature(method).parameters) != ARGUMENTS:
        return [f"{name}: must take ({', '.join(ARGUMENTS)}) and nothing else"]
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    handed_on, complaints = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            passed = [*node.args, *(keyword.value for keyword in node.keywords)]
            handed_on |= {id(value) for value in passed if isinstance(value, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ARGUMENTS and id(node) not in handed_on:
            complaints.append(f"{name}: looks into {node.id} instead of handing it on")
        if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.Compare | ast.BoolOp):
            complaints.append(f"{name}: decides something; settings are the same for every task")
        if isinstance(node, ast.Name) and node.id in ("task", "tasks", "task_list"):
            complaints.append(f"{name}: knows of tasks")
    return complaints


class Ceiling:
    """Training at hyperparameters that are known or found without privacy, with the whole budget.

    What is best at a given noise is chosen on *test* data, once for each task and epsilon on the first repetitions,
    with noise that no result uses: first among candidates for x, then among clips and learning rates. It is a bound
    to compare with and no method: nobody has these x.
    """

    GRID = tuple((clip, rate) for clip in (1.0, 0.5) for rate in (0.1, 0.2, 0.3))

    def __init__(self, data: Path, repetitions: int) -> None:
        self.data, self.repetitions = data, repetitions
        self._chosen: dict[tuple[str, dpb.Budget], tuple[str, Any, float, float]] = {}

    def solve(self, task: task_list.Task, budget: dpb.Budget, seed: int) -> tuple[Any, dict[str, Any]]:
        name, x, clip, rate = self.choice(task.name, budget)
        solution = self._train(task, x, clip, rate, budget, seed)
        return solution, {"x": name, "clip_norm": clip, "learning_rate": rate}

    def choice(self, name: str, budget: dpb.Budget) -> tuple[str, Any, float, float]:
        key = (name, budget)
        if key not in self._chosen:
            cases = [task_list.load(name, self.data, repetition) for repetition in range(self.repetitions)]
            pairs = [(case, case.records()) for case in cases]
            candidates = cases[0].oracle_candidates

            @functools.cache
            def loss(candidate: str, clip: float, rate: float) -> float:
                x = candidates[candidate]
                return statistics.fmean(
                    case.test_loss(x, self._train(case, x, clip, rate, budget, 1_000_003 + at, records).y)
                    for at, (case, records) in enumerate(pairs)
                )

            best = min(candidates, key=lambda candidate: loss(candidate, 1.0, 0.2))
            clip, rate = min(self.GRID, key=lambda pair: loss(best, *pair))
            self._chosen[key] = (best, candidates[best], clip, rate)
        return self._chosen[key]

    @staticmethod
    def _train(task, x, clip, rate, budget, seed, records=None):
        method = dpb.Refit(clip_norm=clip, learning_rate=rate)
        start = (x, task.start[1])
        records = task.records() if records is None else records
        return dpb.solve(
            task.problem, records, budget, method=method, start=start, refit=None, seed=seed, progress=False
        )


# ------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run: everything that the tables need."""

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


def key_of(task: str, method: str, epsilon: float, seed: int) -> str:
    return f"{task}|{method}|{epsilon:g}|{seed}"


def passes_of(solution: Any) -> float:
    """Passes over the data: each use of a release reads its roles' records, or a batch of them."""
    if "runs" in solution.numbers:  # random search: one charge for all runs, of which the expected number is public
        scored = solution.sizes["upper"] / sum(solution.sizes.values())
        return solution.numbers["runs"][0] * (solution.numbers["training: steps"][0] + scored)
    charges = [charge for charges in solution.privacy.charges.values() for charge in charges]
    total = sum(solution.sizes.values())

    def read(charge: Any) -> float:
        return charge.sampling.divisor(charge.records) if not charge.sampling.takes_everybody else charge.records

    return sum(charge.steps * read(charge) / total for charge in charges)


def noise_seed(repetition: int) -> int:
    """Of the privacy noise of a repetition: a stream apart from the one that splits and corrupts data."""
    return int(np.random.SeedSequence([9, repetition]).generate_state(1)[0])


def run_one(
    task: task_list.Task, method: str, epsilon: float, repetition: int, ceiling: Ceiling, commit: str
) -> Outcome:
    budget, seed, note = dpb.Budget(epsilon, DELTA), noise_seed(repetition), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # repetitions must repeat
        if method == ORACLE:
            ceiling.choice(task.name, budget)  # not part of the time
        began = time.perf_counter()
        if method == ORACLE:
            solution, note = ceiling.solve(task, budget, seed)
        else:
            solution = METHODS[method](task.problem, task.records(), budget, task.start, seed)
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
    """Run what is missing, and write after every run."""
    methods, epsilons = tuple(methods), tuple(epsilons)
    results, commit, ceiling = read_results(target), current_commit(), Ceiling(data, choosing)
    for name in names:
        for epsilon in epsilons:
            for method in methods:  # seeds innermost: they share what is compiled
                for seed in seeds or range(MNIST_SEEDS if name.startswith("mnist") else SEEDS):
                    if not again and key_of(name, method, epsilon, seed) in results:
                        continue
                    try:
                        outcome = run_one(task_list.load(name, data, seed), method, epsilon, seed, ceiling, commit)
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
    """The commit that made a result; machines without git are told by $DPBILEVEL_COMMIT."""
    if told := os.environ.get("DPBILEVEL_COMMIT"):
        return told
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---------------------------------------------------------------------------------------------------------- results

Results = dict[str, dict[str, Any]]


def read_results(path: Path) -> Results:
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{path.name}: is not a {FORMAT} file; pass one that this script wrote")
    return content["results"]


def write_results(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(results[key])}" for key in sorted(results))
    unfinished = path.with_suffix(".part")
    unfinished.write_text(f'{{"format": "{FORMAT}", "results": {{\n{lines}\n}}}}\n', encoding="utf-8")
    unfinished.replace(path)  # at once, so that a run that is stopped leaves a whole file


def merged(*parts: Results) -> Results:
    """All results together; of two with the same key the later part's."""
    return {key: outcome for part in parts for key, outcome in part.items()}


# ------------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions, the half-width of its 95% interval (Student's t), and the worst repetition."""

    mean: float
    half_width: float
    worst: float

    def text(self, digits: int = 3) -> str:
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} ({self.worst:.{digits}f})"

    __str__ = text


def estimated(values: Sequence[float], worst: Callable[[Sequence[float]], float] = max) -> Estimate:
    return Estimate(statistics.fmean(values), _half_width(values), worst(values))


def gap_closed(untuned: Sequence[float], method: Sequence[float], oracle: Sequence[float]) -> Estimate:
    """(untuned - method)/(untuned - oracle), losses of the same repetitions in the same order.

    The ratio of means; its interval is that of a ratio estimator, by the residuals of pairs, so that the uncertainty
    of the denominator counts too. The worst repetition is the one that closes least of its own gap.
    """
    closed = [before - after for before, after in zip(untuned, method, strict=True)]
    gap = [before - best for before, best in zip(untuned, oracle, strict=True)]
    ratio = statistics.fmean(closed) / statistics.fmean(gap)
    residuals = [c - ratio * g for c, g in zip(closed, gap, strict=True)]
    half_width = _half_width(residuals) / abs(statistics.fmean(gap))
    return Estimate(ratio, half_width, min(c / g for c, g in zip(closed, gap, strict=True)))


def is_counted(untuned: Sequence[float], oracle: Sequence[float]) -> bool:
    """Whether there is anything to win: untuned and oracle differ by at least `LEAST_GAP` of the untuned loss."""
    before = statistics.fmean(untuned)
    return before - statistics.fmean(oracle) >= LEAST_GAP * before


def _half_width(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


class Table:
    """Results by task, method and epsilon."""

    def __init__(self, results: Results) -> None:
        self.cells: dict[tuple[str, str, float], dict[int, dict[str, Any]]] = {}
        for outcome in results.values():
            cell = (outcome["task"], outcome["method"], outcome["epsilon"])
            self.cells.setdefault(cell, {})[outcome["seed"]] = outcome
        known = list(task_list.NAMES)
        present = {task for task, _, _ in self.cells}
        self.tasks = [name for name in known if name in present] + sorted(present - set(known))
        self.epsilons = sorted({epsilon for _, _, epsilon in self.cells})
        registered, ran = [UNTUNED, *METHODS, ORACLE], {method for _, method, _ in self.cells}
        self.methods = list(dict.fromkeys(m for m in [*registered, *sorted(ran)] if m in ran))

    def values(self, task: str, method: str, epsilon: float, field: str = "test_loss") -> list[Any]:
        cell = self.cells.get((task, method, epsilon), {})
        return [cell[seed][field] for seed in sorted(cell)]

    def gap(self, task: str, method: str, epsilon: float) -> Estimate | None:
        """The gap that a method closes, on the repetitions that all three have."""
        cells = [self.cells.get((task, name, epsilon), {}) for name in (UNTUNED, method, ORACLE)]
        seeds = sorted(set(cells[0]) & set(cells[1]) & set(cells[2]))
        if not seeds:
            return None
        return gap_closed(*([cell[seed]["test_loss"] for seed in seeds] for cell in cells))

    def counted(self, task: str, epsilon: float) -> bool:
        losses = [self.values(task, name, epsilon) for name in (UNTUNED, ORACLE)]
        return all(losses) and is_counted(*losses)

    def median_gap(self, method: str, epsilon: float) -> float | None:
        gaps = [self.gap(task, method, epsilon) for task in self.tasks if self.counted(task, epsilon)]
        found = [gap.mean for gap in gaps if gap is not None]
        return statistics.median(found) if found else None


# ---------------------------------------------------------------------------------------------------------- targets

LEAST_CLOSED = {
    ("adult-sources", 0.5): 0.9,
    ("adult-sources", 1.0): 0.95,
    ("adult-sources", 3.0): 0.98,
    ("adult-sources-1000", 1.0): 0.93,
    ("mnist-sources", 1.0): 0.97,
    **{(f"adult-{kind}-{start}", 1.0): 0.93 for kind in ("groups", "scalar") for start in (5, 3, 0)},
}
LEAST_CLOSED_ELSEWHERE, LEAST_MEDIAN = 0.8, 0.95
RIVALS = {  # to be ahead of, and the most passes over the data that this may take, as a part of the rival's
    "double loop": 1 / 20,
    "random search 10": 1 / 5,
    "random search 30": 1 / 10,
    "grid search": None,
    "upper records only": None,
}
SCREENING, SHUFFLED = "screening", "adult-shuffled"
LARGEST_FACTOR, LARGEST_HARM = 1.5, 0.02


def verdicts(table: Table) -> list[list[str]]:
    """Every target beside what was measured: target, measured, and whether it is met."""
    rows = [*_gap_verdicts(table), *_rival_verdicts(table), *_shuffled_verdicts(table)]
    return [[target, measured, {True: "met", False: "**missed**"}[met]] for target, measured, met in rows]


def _gap_verdicts(table: Table) -> Iterable[tuple[str, str, bool]]:
    elsewhere = {(task, 1.0): LEAST_CLOSED_ELSEWHERE for task in table.tasks if table.counted(task, 1.0)}
    for (task, epsilon), least in (elsewhere | LEAST_CLOSED).items():
        gap = table.gap(task, OURS, epsilon)
        if gap is not None and (table.counted(task, epsilon) or (task, epsilon) in LEAST_CLOSED):
            yield f"{task}, ε = {epsilon:g}: gap closed at least {least:g}", str(gap), gap.mean >= least
    median = table.median_gap(OURS, 1.0)
    if median is not None:
        yield f"median over counted tasks, ε = 1: at least {LEAST_MEDIAN:g}", f"{median:.3f}", median >= LEAST_MEDIAN


def _rival_verdicts(table: Table) -> Iterable[tuple[str, str, bool]]:
    cells = [(task, epsilon) for task in table.tasks for epsilon in table.epsilons if table.counted(task, epsilon)]
    for rival, part in RIVALS.items():
        shared = [c for c in cells if table.values(c[0], rival, c[1]) and table.values(c[0], OURS, c[1])]
        if not shared:
            continue
        lost = [
            f"{task} ε = {epsilon:g}"
            for task, epsilon in shared
            if statistics.fmean(table.values(task, OURS, epsilon))
            >= statistics.fmean(table.values(task, rival, epsilon))
        ]
        told = f"{len(shared) - len(lost)} of {len(shared)}" + (f"; not on {', '.join(lost)}" if lost else "")
        yield f"ahead of {rival} on every counted task and ε", told, not lost
        if part is not None:
            ratio = max(
                statistics.fmean(table.values(task, OURS, epsilon, "passes"))
                / statistics.fmean(table.values(task, rival, epsilon, "passes"))
                for task, epsilon in shared
            )
            yield f"passes at most {part:g} of those of {rival}", f"{ratio:.3f}", ratio <= part
    for task, epsilon in cells:
        theirs, ours = table.values(task, SCREENING, epsilon), table.values(task, OURS, epsilon)
        if theirs and ours:
            bound = estimated(theirs)
            level = statistics.fmean(ours) <= bound.mean + (0 if math.isnan(bound.half_width) else bound.half_width)
            yield (
                f"{task}, ε = {epsilon:g}: level with screening",
                f"{estimated(ours).text(4)} against {bound.text(4)}",
                level,
            )


def _shuffled_verdicts(table: Table) -> Iterable[tuple[str, str, bool]]:
    for epsilon in table.epsilons:
        weights, losses = (table.values(SHUFFLED, OURS, epsilon, field) for field in ("x", "test_loss"))
        before = table.values(SHUFFLED, UNTUNED, epsilon)
        if not weights or not before:
            continue
        factors = [max(max(x) * len(x), 1 / max(min(x) * len(x), 1e-12)) for x in weights]
        text = f"{SHUFFLED}, ε = {epsilon:g}: every weight within a factor {LARGEST_FACTOR:g} of uniform"
        yield text, f"{max(factors):.3f}", max(factors) <= LARGEST_FACTOR
        harm = statistics.fmean(losses) / statistics.fmean(before) - 1
        text = f"{SHUFFLED}, ε = {epsilon:g}: loss at most {LARGEST_HARM:.0%} above untuned"
        yield text, f"{harm:+.2%}", harm <= LARGEST_HARM


# ----------------------------------------------------------------------------------------------------------- report

PAGE = """# Utility: how much of the tuning gap each method closes

Made by `python benchmarks/utility.py`; tasks are in `benchmarks/tasks.py`. Every method spends the same ε in total at
δ = {delta:g}, replace-one, with one set of settings for all tasks: no method is told which task it works on. *Untuned*
trains at the starting hyperparameters with the whole budget. *Oracle* trains with the whole budget at hyperparameters
that are known or were found without privacy, and its clip and learning rate are chosen on test data: a ceiling and no
method. Repetitions draw splits, corruption and noise anew; {repetitions}. Noise has fixed seeds so that the numbers
repeat, so that none of these runs is private itself.

Gap closed = (untuned − method)/(untuned − oracle). Cells: mean ± half of the 95% interval (worst repetition). Tasks
where oracle and untuned differ by less than {least:.0%} are reported, marked †, and not counted.

## Targets

{targets}

{gaps}

![Gap closed by task and method](utility.svg)

{losses}

## Cost

Median over tasks, repetitions and ε of passes over the data (each use of a release reads its records once) and of wall
seconds (with compilation, where it was needed; devices: {devices}).

{costs}

Commits: {commits}.
"""


def report(results: Results, target: Path) -> None:
    """Write the page and the figure beside the results."""
    table = Table(results)
    gaps, losses = [], []
    for epsilon in table.epsilons:
        gaps += [f"## Gap closed at ε = {epsilon:g}", "", _gap_table(table, epsilon), ""]
        losses += [f"## Test loss and accuracy at ε = {epsilon:g}", "", _loss_table(table, epsilon), ""]
    counts = sorted({len(cell) for cell in table.cells.values()})
    page = PAGE.format(
        delta=DELTA,
        repetitions=f"{counts[0]} of them" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} of them by cell",
        least=LEAST_GAP,
        targets=markdown_table(["target", "measured", ""], verdicts(table)),
        gaps="\n".join(gaps).strip(),
        losses="\n".join(losses).strip(),
        costs=_cost_table(table),
        devices=", ".join(sorted({outcome["device"] for outcome in results.values()})),
        commits=", ".join(sorted({outcome["commit"] for outcome in results.values()})),
    )
    target.with_suffix(".md").write_text(page, encoding="utf-8")
    _figure(table, target.with_suffix(".svg"))


def _label(table: Table, task: str, epsilon: float) -> str:
    return task if table.counted(task, epsilon) else f"{task} †"


def _gap_table(table: Table, epsilon: float) -> str:
    methods = [method for method in table.methods if method not in (UNTUNED, ORACLE)]
    rows = []
    for task in table.tasks:
        found = [table.gap(task, method, epsilon) for method in methods]
        rows.append([_label(table, task, epsilon), *("" if gap is None else str(gap) for gap in found)])
    medians = [table.median_gap(method, epsilon) for method in methods]
    rows.append(["median of counted tasks", *("" if median is None else f"{median:.3f}" for median in medians)])
    return markdown_table(["task", *methods], rows)


def _loss_table(table: Table, epsilon: float) -> str:
    rows = []
    for task in table.tasks:
        cells = []
        for method in table.methods:
            losses, accuracies = (table.values(task, method, epsilon, field) for field in ("test_loss", "accuracy"))
            cells.append(f"{estimated(losses).text(4)}; {statistics.fmean(accuracies):.3f}" if losses else "")
        rows.append([_label(table, task, epsilon), *cells])
    return markdown_table(["task", *table.methods], rows)


def _cost_table(table: Table) -> str:
    rows = []
    for method in table.methods:
        mine = [o for (_, name, _), cell in table.cells.items() if name == method for o in cell.values()]
        medians = [statistics.median(outcome[field] for outcome in mine) for field in ("passes", "wall_seconds")]
        rows.append([method, f"{medians[0]:,.0f}", f"{medians[1]:.1f}"])
    return markdown_table(["method", "passes", "seconds"], rows)


def _figure(table: Table, target: Path) -> None:
    import matplotlib  # only here: a machine that runs the benchmark need not have it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = [method for method in table.methods if method not in (UNTUNED, ORACLE)]
    size = (4.2 * len(table.epsilons) + 1, 0.42 * len(table.tasks) + 1.8)
    with plt.rc_context({"svg.hashsalt": "utility"}):  # the same figure for the same results
        figure, panels = plt.subplots(
            1, len(table.epsilons), figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
        for epsilon, axes in zip(table.epsilons, panels[0], strict=True):
            for at, method in enumerate(methods):
                found = [(row, table.gap(task, method, epsilon)) for row, task in enumerate(table.tasks)]
                shown = [
                    (row, gap) for row, gap in found if gap is not None and table.counted(table.tasks[row], epsilon)
                ]
                heights = [row + 0.6 * ((at + 0.5) / len(methods) - 0.5) for row, _ in shown]
                widths = [0 if math.isnan(gap.half_width) else gap.half_width for _, gap in shown]
                means = [gap.mean for _, gap in shown]
                axes.errorbar(means, heights, xerr=widths, fmt="o", markersize=4, linewidth=1, label=method)
            axes.axvline(1, color="grey", linewidth=0.8)
            axes.axvline(0, color="grey", linewidth=0.8, linestyle=":")
            axes.set(title=f"ε = {epsilon:g}", xlabel="gap closed", xlim=(-0.25, 1.15))
            axes.set_yticks(range(len(table.tasks)), table.tasks)
        panels[0][0].invert_yaxis()
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=max(1, len(methods)))
        figure.savefig(target, metadata={"Date": None})
        plt.close(figure)


# ------------------------------------------------------------------------------------------------------ command line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Methods x tasks x epsilon x seeds at equal total privacy.")
    parser.add_argument("--data", type=Path, default=task_list.default_data_directory(), help="directory of the data")
    parser.add_argument("--quick", action="store_true", help="few tasks, epsilon 1, two seeds")
    parser.add_argument("--tasks", type=_names, help=f"some of {', '.join(task_list.NAMES)}")
    parser.add_argument("--methods", type=_names, help=f"some of {', '.join([*METHODS, ORACLE])}")
    parser.add_argument("--epsilons", type=lambda text: tuple(map(float, _names(text))))
    parser.add_argument("--seeds", type=_seeds, help="how many repetitions, or a range such as 5-9")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results are added to this file")
    parser.add_argument("--again", action="store_true", help="run what is in the file already, too")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="add other files' results, run nothing")
    parser.add_argument("--report", action="store_true", help="write the page and the figure, run nothing")
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
            given.methods or ((UNTUNED, OURS, ORACLE) if quick else (*METHODS, ORACLE)),
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
