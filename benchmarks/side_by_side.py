"""Estimators with defaults, scikit-learn (no privacy), diffprivlib (pure epsilon) and DP-EBM, on the same rows.

    python benchmarks/side_by_side.py --peer PYTHON     (half an hour on two cores; make bench-estimators)

PYTHON is an interpreter with interpret and diffprivlib, which needs an older scikit-learn (benchmarks/diffprivlib.txt).
It reads features from files: for diffprivlib the encoded ones, so that all linear models use the same numbers, for
DP-EBM, which bins columns by itself, the numbers and categories with the same declared ranges. Both are run at several
settings and also reported at the best one by *test* rows, which is in their favour.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import task_data
import tasks
from rates import ROOT, machine
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from utility_results import DELTA, estimated, read_results

import dpbilevel as dpb
from dpbilevel.datasets import load_adult, load_california
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV, DPSourceWeightedClassifier
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.privacy.accounting import gaussian_epsilon, gaussian_mu

EPSILONS, SEEDS, REPETITIONS = (0.5, 1.0, 3.0, 8.0), 5, 10
CALIFORNIA_TEST = 4128  # a fifth of the rows
PEER = Path(__file__).with_name("side_by_side_peer.py")

PAGE = """# Estimators compared with scikit-learn, diffprivlib and DP-EBM

All settings are defaults, except for ε, δ = {delta:g} and the required declarations. Mean and 95% interval (Student's
t) over {seeds} seeds, the worst in brackets.

## Adult: accuracy on the 16,281 test rows

{rows:,} training rows, {columns} columns from `BoundedEncoder` (five numbers with public ranges, eight categories from
the code book, rows of norm at most one): the same features for all models.

{adult}

*Neighbours.* `DPLogisticRegressionCV`: (ε, {delta:g})-DP when the content of one row is replaced; this covers the
tuning of the penalty as well. diffprivlib: pure ε-DP (δ = 0), the stronger notion, when one row is replaced; its C
is fixed beforehand, and choosing it by test accuracy, as the last column does, is not covered by its ε.

scikit-learn's `LogisticRegressionCV` without privacy reaches {reference:.4f}. At ε = 1 `DPLogisticRegressionCV` is
{points:.2f} points below it.

DP-EBM of `interpret` fits a step function of each column, which no linear model of these features can. It has the
columns before encoding, with the same declared ranges. Its neighbours add or remove one row, which takes half of the
noise that the replacement of a row needs. The last column is for replacement: DP-EBM at the ε of μ/2, where μ is that
of the first column.

{adult_ebm}

## California: R² on {california_test:,} test rows

Eight columns with public ranges, targets with a public range.

{california}

scikit-learn's `RidgeCV` without privacy reaches {ridge:.3f}. DP-EBM on the same columns, as above:

{california_ebm}

## The adult-sources task of the utility benchmark, with `DPSourceWeightedClassifier`

Test log-loss over the {repetitions} repetitions of the [utility benchmark](utility.md), same rows, sources, wrong
labels and validation rows. *Benchmark*: the result of `dpb.solve` there; *bad weight*: the sum of the released
weights of the eight bad sources of twelve.

{sources}

{made}
"""


def quietly(estimator: Any, *data: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # seeds are fixed for reproducibility
        return estimator.fit(*data, **more)


def adult(data: Path) -> dict[str, Any]:
    loaded = load_adult(data)
    encoder = dpb.BoundedEncoder(ranges=loaded.ranges, categories=loaded.categories)
    rows, test_rows = encoder.fit_transform(loaded.X), encoder.transform(loaded.test_X)
    return {"rows": rows, "target": loaded.target, "test_rows": test_rows, "test_target": loaded.test_target} | {
        "classes": list(loaded.classes)
    }


def california(data: Path) -> dict[str, Any]:
    loaded = load_california(data)
    rows = dpb.BoundedEncoder(ranges=loaded.ranges).fit_transform(loaded.X)
    order = np.random.default_rng(0).permutation(len(rows))
    test, train = order[:CALIFORNIA_TEST], order[CALIFORNIA_TEST:]
    parts = {"rows": rows[train], "target": loaded.target[train]}
    return parts | {"test_rows": rows[test], "test_target": loaded.target[test], "range": loaded.target_range}


def ours(data: Path) -> dict[str, Any]:
    results: dict[str, Any] = {"adult": {}, "california": {}, "sources": {}}
    given, houses = adult(data), california(data)
    for epsilon in EPSILONS:
        budget = {"epsilon": epsilon, "delta": DELTA}
        runs = []
        for seed in range(SEEDS):
            begin = time.perf_counter()
            model = DPLogisticRegressionCV(**budget, classes=given["classes"], random_state=seed)
            quietly(model, given["rows"], given["target"])
            probabilities = model.predict_proba(given["test_rows"])
            runs.append(
                {
                    "score": model.score(given["test_rows"], given["test_target"]),
                    "log_loss": log_loss(given["test_target"], probabilities, labels=model.classes_),
                    "penalty": float(model.penalties_[0]),
                    "seconds": round(time.perf_counter() - begin, 1),
                }
            )
        results["adult"][f"{epsilon:g}"] = runs
        regressors = [DPRidgeCV(**budget, target_range=houses["range"], random_state=seed) for seed in range(SEEDS)]
        fitted = [quietly(model, houses["rows"], houses["target"]) for model in regressors]
        results["california"][f"{epsilon:g}"] = [
            {"score": model.score(houses["test_rows"], houses["test_target"])} for model in fitted
        ]
        if epsilon == 1:
            results["sources"]["1"] = [sources(data, budget, seed) for seed in range(REPETITIONS)]
        print(f"epsilon {epsilon:g}: {results['adult'][f'{epsilon:g}']}", flush=True)
    return results


def sources(data: Path, budget: dict[str, float], seed: int) -> dict[str, float]:
    """One repetition of adult-sources, through the estimator alone."""
    task = tasks.load("adult-sources", data, seed)
    (rows, labels, source), number = task.lower, task.facts["sources"]
    model = DPSourceWeightedClassifier(
        **budget, data_norm=1.0, classes=[0, 1], source_names=range(number), random_state=seed
    )
    quietly(model, rows, labels, sources=source, validation=task.upper)
    _, _, test_rows, test_labels = task_data.adult(data)
    return {
        "test_loss": log_loss(test_labels, model.predict_proba(test_rows), labels=[0, 1]),
        "bad": float(model.source_weights_[: task.facts["bad sources"]].sum()),
    }


def references(data: Path) -> dict[str, float]:
    """scikit-learn without privacy."""
    given, houses = adult(data), california(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logistic = LogisticRegressionCV(max_iter=1000).fit(np.asarray(given["rows"]), given["target"])
    ridge = RidgeCV(np.logspace(-6, 3, 10)).fit(np.asarray(houses["rows"]), houses["target"])
    return {
        "adult": float(logistic.score(np.asarray(given["test_rows"]), given["test_target"])),
        "california": float(ridge.score(np.asarray(houses["test_rows"]), houses["test_target"])),
    }


def peers(data: Path, python: str) -> dict[str, Any]:
    """diffprivlib in its own environment, on the same arrays."""
    given = adult(data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npz"
        positive = given["classes"][1]
        np.savez(
            file,
            **{key: np.asarray(given[key]) for key in ("rows", "test_rows")},
            **{key: np.asarray(given[key]) == positive for key in ("target", "test_target")},
        )
        return asked(python, "diffprivlib", file, {"epsilons": EPSILONS, "seeds": SEEDS})


def asked(python: str, peer: str, file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The results of a peer."""
    command = [python, str(PEER), peer, str(file), json.dumps(settings)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def comparable(epsilon: float) -> float:
    """The epsilon under add-or-remove that epsilon under replace-one is worth: half of mu."""
    return round(gaussian_epsilon(gaussian_mu(epsilon, DELTA) / 2, DELTA), 4)


def boosted(data: Path, python: str) -> dict[str, Any]:
    """DP-EBM in the peers' environment, at its own epsilons and at comparable ones."""
    people, homes, split = load_adult(data), load_california(data), california(data)
    order = np.random.default_rng(0).permutation(len(homes.target))
    test, train = order[:CALIFORNIA_TEST], order[CALIFORNIA_TEST:]
    nothing = {"categories": np.zeros((len(train), 0)), "test_categories": np.zeros((len(test), 0))}
    tables = {
        "adult": {
            **{f"{part}numbers": columns(table, people.ranges) for part, table in parts(people).items()},
            **{
                f"{part}categories": columns(table, people.categories).astype(str)
                for part, table in parts(people).items()
            },
            "target": people.target == people.classes[1],
            "test_target": people.test_target == people.classes[1],
        },
        "california": {
            "numbers": columns(homes.X, homes.ranges)[train],
            "test_numbers": columns(homes.X, homes.ranges)[test],
            **nothing,
            **{name: split[name] for name in ("target", "test_target")},
        },
    }
    settings = {
        "adult": {"bounds": list(people.ranges.values())},
        "california": {"bounds": list(homes.ranges.values())},
    }
    settings["california"]["target_range"] = homes.target_range
    epsilons = [*EPSILONS, *map(comparable, EPSILONS)]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arrays in tables.items():
            file = Path(folder) / f"{name}.npz"
            np.savez(file, **arrays)
            chosen = settings[name] | {"epsilons": epsilons, "seeds": SEEDS, "delta": DELTA}
            found[name] = asked(python, "ebm", file, chosen)
    return found


def parts(loaded: Any) -> dict[str, Any]:
    """Tables of training and test rows."""
    return {"": loaded.X, "test_": loaded.test_X}


def columns(table: Any, names: Any) -> np.ndarray:
    """Columns of a table as a matrix."""
    return np.stack([np.asarray(table[name]) for name in names], axis=1)


def page(content: dict[str, Any], data: Path) -> str:
    mine, peer, reference = content["ours"], content["peers"], content["references"]
    given = adult(data)

    def scores(runs: list[dict[str, float]], digits: int = 4) -> str:
        return estimated([run["score"] for run in runs], min).text(digits)

    def at_best(tried: dict[str, list[dict[str, float]]], digits: int) -> str:
        best = max(tried, key=lambda name: statistics.fmean(run["score"] for run in tried[name]))
        return f"{scores(tried[best], digits)}, {best}"

    def boosted_table(results: dict[str, Any], digits: int) -> str:
        rows = [
            [
                f"{epsilon:g}",
                scores(results[f"{epsilon:g}"]["defaults"], digits),
                at_best(results[f"{epsilon:g}"], digits),
                at_best(results[f"{comparable(epsilon):g}"], digits),
            ]
            for epsilon in EPSILONS
        ]
        heads = ["ε", "DP-EBM, defaults", "best setting by test rows", "the same for the replacement of a row"]
        return markdown_table(heads, rows)

    adult_rows = []
    for epsilon in mine["adult"]:
        tried = {f"C = {c}": runs for c, runs in peer[epsilon].items()}
        adult_rows.append([epsilon, scores(mine["adult"][epsilon]), scores(tried["C = 1.0"]), at_best(tried, 4)])
    houses = [[epsilon, scores(runs, 3)] for epsilon, runs in mine["california"].items()]
    benchmark = read_results(ROOT / "docs" / "results" / "utility.json")
    rows = []
    for epsilon, runs in mine["sources"].items():
        there = [benchmark[f"adult-sources|tracking|{epsilon}|{seed}"]["test_loss"] for seed in range(REPETITIONS)]
        rows.append(
            [
                epsilon,
                estimated([run["test_loss"] for run in runs]).text(4),
                estimated(there).text(4),
                estimated([run["bad"] for run in runs]).text(4),
            ]
        )
    at_one = statistics.fmean(run["score"] for run in mine["adult"]["1"])
    return PAGE.format(
        delta=DELTA,
        seeds=SEEDS,
        rows=len(given["rows"]),
        columns=given["rows"].shape[1],
        adult=markdown_table(
            [
                "ε",
                "`DPLogisticRegressionCV`",
                "diffprivlib, C = 1 (its default)",
                "diffprivlib, best C by test rows",
            ],
            adult_rows,
        ),
        adult_ebm=boosted_table(content["ebm"]["adult"], 4),
        california_ebm=boosted_table(content["ebm"]["california"], 3),
        reference=reference["adult"],
        points=100 * (reference["adult"] - at_one),
        california_test=CALIFORNIA_TEST,
        california=markdown_table(["ε", "`DPRidgeCV`"], houses),
        ridge=reference["california"],
        repetitions=REPETITIONS,
        sources=markdown_table(["ε", "`DPSourceWeightedClassifier`", "benchmark", "bad weight"], rows),
        made=content["made"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="an interpreter with diffprivlib and interpret")
    parser.add_argument("--data", type=Path, default=tasks.default_data_directory())
    options = parser.parse_args()
    begin, made_on = time.perf_counter(), machine()  # the commit at the start, not at the end
    content: dict[str, Any] = {"references": references(options.data)}
    content |= {"peers": peers(options.data, options.peer), "ebm": boosted(options.data, options.peer)}
    content |= {"ours": ours(options.data)}
    minutes = (time.perf_counter() - begin) / 60
    content["made"] = (
        f"Made by `make bench-estimators`, {made_on}, in {minutes:.1f} minutes. Seeds are fixed for "
        "reproducibility, so that none of these runs is itself private."
    )
    target = ROOT / "docs" / "results"
    (target / "estimators.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (target / "estimators.md").write_text(page(content, options.data), encoding="utf-8")


if __name__ == "__main__":
    main()
