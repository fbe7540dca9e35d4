"""Estimators with defaults on many small problems, beside a search, a constant, and baselines: docs/results/survey.*.

    python benchmarks/survey.py --processes 2                      (an hour; interrupted, it resumes)
    python benchmarks/survey.py --dev --processes 2 --seeds 8      (other problems and seeds, into build/)
    python benchmarks/survey.py --dev --problems 'logistic, 400' --epsilons 0.3,1 --seeds 8
    python benchmarks/survey.py --report                           (the page alone)

For each problem, epsilon and repetition: the test loss of

* *default*: `DPLogisticRegressionCV` or `DPRidgeCV` with all defaults, which train at a penalty from public numbers;
* *searched*: the same with a search for the penalty first, ``method=dpb.Tracking()``;
* *baseline*: `ObjectivePerturbation` for two classes, `AdaSSP` for numbers, at the penalty of the default;
* *constant*: the training rows' frequencies or mean, without privacy;
* *reference*: scikit-learn's `LogisticRegressionCV` or `RidgeCV` without privacy.

The loss is log-loss, or half the squared error in units of the variance of the test targets. Delta is the estimators'
default. Whether a `UtilityWarning` comes before the charge is that of `plan`, which reads no record. All private fits
of a repetition have the same noise seed. Settings must not be chosen by what the committed problems show: ``--dev``
runs others (`survey_problems`). With ``PYTHONPATH=src`` it runs from source.
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pieces import Cells, read_cells, run, write_cells
from survey_problems import COMMITTED, DEVELOPMENT, QUICK, Problem, Split

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "survey.json"
DEVELOPED = ROOT / "build" / "survey_dev.json"
EPSILONS, SEEDS, BLOCK = (0.3, 1.0, 3.0, 8.0), 20, 10
DEFAULT, SEARCHED, BASELINE, CONSTANT, REFERENCE = "default", "searched", "baseline", "constant", "reference"
FIRST_NOISE_SEED = 500

PROBLEMS = {problem.name: problem for problem in (*COMMITTED, *DEVELOPMENT, *QUICK)}
Task = tuple[str, tuple[float, ...], tuple[int, ...]]  # problem, epsilons, repetitions


def key_of(name: str, epsilon: float, repetition: int) -> str:
    """The key of a result."""
    return f"{name} | {epsilon:g} | {repetition}"


# -------------------------------------------------------------------------------------------------------------- losses


def log_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean log-loss of scores, one per row for two classes, otherwise one per class; labels are indices."""
    columns = np.stack([np.zeros(len(scores)), scores], axis=1) if scores.ndim == 1 else scores
    with np.errstate(over="ignore"):
        largest = columns.max(axis=1, keepdims=True)
        normalised = columns - largest - np.log(np.exp(columns - largest).sum(axis=1, keepdims=True))
    return float(-normalised[np.arange(len(labels)), labels].mean())


def half_error(predicted: Any, targets: np.ndarray) -> float:
    """Half the mean squared error over the variance of the targets: (1 - R^2)/2."""
    return float(0.5 * np.mean((targets - predicted) ** 2) / np.var(targets))


def loss_of(model: Any, split: Split) -> float:
    """The test loss of a fitted model."""
    if not split.classifies:
        return half_error(model.predict(split.test_rows), split.test_targets)
    labels = np.searchsorted(split.declared["classes"], split.test_targets)
    return log_loss(model.decision_function(split.test_rows), labels)


def constant_loss(split: Split) -> float:
    """The test loss of the best constant prediction on training rows."""
    if not split.classifies:
        return half_error(split.targets.mean(), split.test_targets)
    classes = split.declared["classes"]
    frequencies = np.array([(split.targets == one).mean() for one in classes])
    labels = np.searchsorted(classes, split.test_targets)
    return log_loss(np.tile(np.log(np.maximum(frequencies, 1e-9)), (len(labels), 1)), labels)


def reference_loss(split: Split) -> float:
    """The test loss of scikit-learn without privacy, on columns of unit variance."""
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = RidgeCV(np.logspace(-2, 4, 13))
    if split.classifies:
        model = LogisticRegressionCV(Cs=np.logspace(-4, 2, 7), cv=3, scoring="neg_log_loss", max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loss_of(make_pipeline(StandardScaler(), model).fit(split.rows, split.targets), split)


# ---------------------------------------------------------------------------------------------------------------- runs


def estimator(split: Split, epsilon: float, seed: int | None, method: Any = None) -> Any:
    """The estimator of a problem with its declarations; defaults otherwise."""
    from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV

    kind = DPLogisticRegressionCV if split.classifies else DPRidgeCV
    return kind(epsilon=epsilon, random_state=seed, method=method, **split.declared)


def methods(split: Split) -> dict[str, Any]:
    """What is fitted, by name."""
    import dpbilevel as dpb
    from dpbilevel.baselines import AdaSSP, ObjectivePerturbation

    known: dict[str, Any] = {DEFAULT: None, SEARCHED: dpb.Tracking()}
    if not split.classifies:
        known[BASELINE] = AdaSSP(target_bound=3.0)  # the estimator scales targets to [-3, 3]
    elif len(split.declared["classes"]) == 2:
        known[BASELINE] = ObjectivePerturbation()
    return known


def warned(split: Split, epsilon: float) -> bool:
    """Whether the plan of the default, which is made before any charge, warns about utility."""
    import dpbilevel as dpb

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator(split, epsilon, None).plan(*split.rows.shape)
    return any(issubclass(warning.category, dpb.UtilityWarning) for warning in caught)


def measure(task: Task) -> Cells:
    """Some repetitions of a problem: all epsilons share what is compiled."""
    from utility import current_commit

    name, epsilons, repetitions = task
    commit, cells = current_commit(), {}
    for repetition in repetitions:
        split = PROBLEMS[name].draw(repetition)
        shared = {CONSTANT: constant_loss(split), REFERENCE: reference_loss(split)}
        for epsilon in epsilons:
            losses, seconds = dict(shared), {}
            for method, setting in methods(split).items():
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # fixed seeds, large noise and declared bounds
                    model = estimator(split, epsilon, FIRST_NOISE_SEED + repetition, setting)
                    losses[method] = loss_of(model.fit(split.rows, split.targets), split)
                seconds[method] = time.perf_counter() - begin
            cells[key_of(name, epsilon, repetition)] = {
                **{method: float(f"{loss:.6g}") for method, loss in losses.items()},
                "warned": warned(split, epsilon),
                "seconds": round(seconds[DEFAULT], 2),
                "commit": commit,
            }
    return cells


def tasks_of(problems: Sequence[Problem], epsilons: Sequence[float], seeds: Sequence[int], there: Cells) -> list[Task]:
    """What is missing, in blocks; problems of the same shapes follow each other."""
    blocks = [tuple(seeds[first : first + BLOCK]) for first in range(0, len(seeds), BLOCK)]
    found = []
    for problem in sorted(problems, key=lambda problem: problem.group):
        for block in blocks:
            lacking = tuple(e for e in epsilons if any(key_of(problem.name, e, seed) not in there for seed in block))
            if lacking:
                found.append((problem.name, lacking, block))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="each has one core")
    parser.add_argument(
        "--out", type=Path, help=f"results; {RESULTS.relative_to(ROOT)} by default, in build/ for --dev"
    )
    parser.add_argument("--dev", action="store_true", help="problems on which settings may be chosen")
    parser.add_argument("--quick", action="store_true", help="two tiny problems, epsilon 1, three seeds")
    parser.add_argument("--problems", help="only those whose name has this text, or one of several separated by ';'")
    parser.add_argument("--epsilons", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--seeds", type=int, help=f"number of repetitions, {SEEDS} by default")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="add results of other files")
    parser.add_argument("--report", action="store_true", help="write the page, without running anything")
    given = parser.parse_args(arguments)
    out = given.out or (DEVELOPED if given.dev or given.quick else RESULTS)
    problems = QUICK if given.quick else DEVELOPMENT if given.dev else COMMITTED
    if given.problems:
        texts = [text.strip() for text in given.problems.split(";")]
        problems = tuple(problem for problem in problems if any(text in problem.name for text in texts))
    epsilons = given.epsilons or ((1.0,) if given.quick else EPSILONS)
    seeds = range(given.seeds or (3 if given.quick else SEEDS))
    if given.merge:
        write_cells(out, read_cells(out, *given.merge))
    if not given.report and not given.merge:
        run(measure, tasks_of(problems, epsilons, seeds, read_cells(out)), out, given.processes)
    from survey_report import report

    print(report(out, [problem.name for problem in problems]))


if __name__ == "__main__":
    main()
