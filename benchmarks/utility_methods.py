"""The methods of the utility benchmark, the check that they are independent of the task, and the upper bound.

No method knows its task. Tasks differ only in the problem, the sizes and the budget, which a test enforces
(`override_complaints`).
"""

import ast
import functools
import importlib
import inspect
import math
import operator
import statistics
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tasks as task_list

import dpbilevel as dpb

UNTUNED, BAD_START, ORACLE, OURS = "untuned", "bad start", "oracle", "tracking"
SOURCE = operator.itemgetter(-1)  # of a lower record; one object, so that repetitions share compiled programs


def untuned(problem, records, budget, start, seed):
    """Train on all records at the x it is given, with the whole budget: as the default does its final training."""
    return dpb.solve(problem, records, budget, method=dpb.Refit(), start=start, refit=None, seed=seed, progress=False)


def tracking(problem, records, budget, start, seed):
    """The default of the library."""
    return dpb.solve(problem, records, budget, start=start, seed=seed, progress=False)


def double_loop(problem, records, budget, start, seed):
    """The paper's algorithm, with the same final training."""
    # Its steps 1/(mu (t + 1)) need a strong convexity that these problems do not certify: 0.05 is a typical curvature,
    # and 1/4 bounds the smoothness of logistic losses on rows of norm one. Of seven choices of penalty, steps and step
    # size this one was best on test data (adult-sources, adult-scalar-5, california-groups).
    inner = dpb.DPLocGD(strong_convexity=0.05, smoothness=0.25, radius=20.0, steps=100)
    method = dpb.DPBilevel(inner=inner, penalty_weight=3.0, steps=50, step_size=3.0, output="last")
    return dpb.solve(problem, records, budget, method=method, start=start, refit=dpb.Refit(), seed=seed, progress=False)


def upper_records_only(problem, records, budget, start, seed):
    """Train on the clean validation records alone, with the whole budget."""
    return baselines().UpperRecordsOnly().solve(problem, records, budget, start=start, seed=seed, progress=False)


def screening(problem, records, budget, start, seed):
    """One query per source; only for weights of sources."""
    method = baselines().ScreenSources(source=SOURCE)
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
    """Imported on use, so that other methods run without it."""
    return importlib.import_module("dpbilevel.baselines")


def prior_of(problem, start):
    """A distribution of x that only depends on its domain."""
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


# name: (problem, records, budget, start, seed) -> a solution.
METHODS: dict[str, Callable[..., Any]] = {
    UNTUNED: untuned,  # at what people would use
    BAD_START: untuned,  # where tuning starts, if nobody would train there
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
    """Reasons why a method might depend on the task: it may only pass its arguments on unchanged."""
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
            complaints.append(f"{name}: uses a part of {node.id} instead of passing it on")
        if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.Compare | ast.BoolOp):
            complaints.append(f"{name}: has a condition; settings must be the same for every task")
        if isinstance(node, ast.Name) and node.id in ("task", "tasks", "task_list"):
            complaints.append(f"{name}: refers to tasks")
    return complaints


# Trainings of the ceiling. Those that do not apply to a problem are left out.
TRAININGS: dict[str, Callable[[], Any]] = {
    "default": lambda: dpb.Refit(),
    **{
        f"objective perturbation, share {share:g}": functools.partial(
            lambda share: baselines().ObjectivePerturbation(share=share), share
        )
        for share in (0.1, 0.4)
    },
    **{
        f"Adam, {steps} steps, clip {clip:g}, rate {rate:g}": functools.partial(
            dpb.Refit, steps=steps, clip_norm=clip, learning_rate=rate * clip
        )
        for steps in (200, 600, 1500)
        for clip in (1.0, 0.3)
        for rate in (0.1, 0.3)
    },
}


class Ceiling:
    """Training at hyperparameters that are known or found without privacy, to the limit of the whole budget.

    x and training are chosen on *test* data, once per task and epsilon on the first repetitions, with noise that no
    result uses: first among candidates for x, with the default's training, then among trainings. One of them is
    converged: objective perturbation, the exact minimiser for one release of noise (models with one score). It is an
    upper bound for comparison, not a method.
    """

    def __init__(self, data: Path, repetitions: int) -> None:
        self.data, self.repetitions = data, repetitions
        self._chosen: dict[tuple[str, dpb.Budget], tuple[str, Any, str]] = {}

    def solve(self, task: task_list.Task, budget: dpb.Budget, seed: int) -> tuple[Any, dict[str, Any]]:
        name, x, training = self.choice(task.name, budget)
        return self._train(task, x, training, budget, seed), {"x": name, "training": training}

    def choice(self, name: str, budget: dpb.Budget) -> tuple[str, Any, str]:
        key = (name, budget)
        if key not in self._chosen:
            cases = [task_list.load(name, self.data, repetition) for repetition in range(self.repetitions)]
            pairs = [(case, case.records()) for case in cases]
            candidates = cases[0].oracle_candidates

            @functools.cache
            def loss(candidate: str, training: str) -> float:
                x = candidates[candidate]
                try:
                    return statistics.fmean(
                        case.test_loss(x, self._train(case, x, training, budget, 1_000_003 + at, records).y)
                        for at, (case, records) in enumerate(pairs)
                    )
                except dpb.InvalidProblem:  # the training does not apply
                    return math.inf

            first = next(iter(TRAININGS))
            best = min(candidates, key=lambda candidate: loss(candidate, first))
            training = min(TRAININGS, key=lambda training: loss(best, training))
            self._chosen[key] = (best, candidates[best], training)
        return self._chosen[key]

    @staticmethod
    def _train(task, x, training, budget, seed, records=None):
        start, method = (x, task.start[1]), TRAININGS[training]()
        records = task.records() if records is None else records
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dpb.PrivacyLeakWarning)  # objective perturbation's caveat
            return dpb.solve(
                task.problem, records, budget, method=method, start=start, refit=None, seed=seed, progress=False
            )
