"""Estimators with defaults, scikit-learn (no privacy), diffprivlib (pure epsilon) and DP-EBM, on the same rows.

    python benchmarks/side_by_side.py --peer PYTHON     (an hour on one core; make bench-estimators)

PYTHON is an interpreter with interpret and diffprivlib, which needs an older scikit-learn (benchmarks/diffprivlib.txt).
It reads features from files. All have the same declared facts: linear models the columns encoded from them, as curves
and (diffprivlib) as plain numbers too, DP-EBM, which bins columns by itself, the numbers and categories with the same
ranges. Peers are run at several settings and reported at the best one by *test* rows, which is in their favour.

``--parts`` runs some of the parts again, and keeps the other results.
"""

import argparse
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import task_data
import tasks
from rates import ROOT, machine
from side_by_side_report import page
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from utility_results import DELTA

import dpbilevel as dpb
from dpbilevel.datasets import load_adult, load_california
from dpbilevel.datasets.dataset import Dataset
from dpbilevel.estimators import DPLogisticRegressionCV, DPRidgeCV, DPSourceWeightedClassifier
from dpbilevel.privacy.accounting import gaussian_epsilon, gaussian_mu

EPSILONS, SEEDS, REPETITIONS = (0.5, 1.0, 3.0, 8.0), 5, 10
PEER_SEEDS = 3  # for each of their settings
CALIFORNIA_TEST = 4128  # a fifth of the rows
PEER = Path(__file__).with_name("side_by_side_peer.py")
Split = dict[str, Any]


def quietly(estimator: Any, *data: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)  # seeds are fixed for reproducibility
        return estimator.fit(*data, **more)


def splits(data: Path) -> dict[str, tuple[Dataset, Split]]:
    """Declarations, and columns and targets of training and test rows."""
    people, homes = load_adult(data), load_california(data)
    order = np.random.default_rng(0).permutation(len(homes.target))
    test, train = order[:CALIFORNIA_TEST], order[CALIFORNIA_TEST:]
    given = {"X": people.X, "target": people.target, "test_X": people.test_X, "test_target": people.test_target}
    parts = {"": train, "test_": test}
    chosen = {f"{part}X": {name: cells[at] for name, cells in homes.X.items()} for part, at in parts.items()}
    chosen |= {f"{part}target": homes.target[at] for part, at in parts.items()}
    return {"adult": (people, given), "california": (homes, chosen)}


def encoded(declared: Dataset, given: Split, features: str) -> tuple[Any, Any]:
    """Training and test rows: numbers as "curves" (with crosses and scales), or "plain"."""
    maps = declared.maps if features == "curves" else {}
    encoder = dpb.BoundedEncoder(ranges=declared.ranges, categories=declared.categories, **maps)
    return encoder.fit_transform(given["X"]), encoder.transform(given["test_X"])


def ours(data: Path, _: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, (declared, given) in splits(data).items():
        rows, test_rows = encoded(declared, given, "curves")
        results[name] = {"columns": rows.shape[1], "rows": len(rows), "test rows": len(test_rows)}
        for epsilon in EPSILONS:
            runs = []
            for seed in range(SEEDS):
                budget = {"epsilon": epsilon, "delta": DELTA, "random_state": seed}
                if declared.classes is None:
                    model: Any = DPRidgeCV(**budget, target_range=declared.target_range)
                else:
                    model = DPLogisticRegressionCV(**budget, classes=list(declared.classes))
                quietly(model, rows, given["target"])
                found = {"score": model.score(test_rows, given["test_target"])}
                if declared.classes is not None:
                    likely = model.predict_proba(test_rows)
                    found["log_loss"] = log_loss(given["test_target"], likely, labels=model.classes_)
                runs.append(found)
            results[name][f"{epsilon:g}"] = runs
            print(f"{name}, epsilon {epsilon:g}: {runs}", flush=True)
    return results


def sources(data: Path, _: str) -> list[dict[str, float]]:
    """The repetitions of adult-sources, through the estimator alone."""
    _, _, test_rows, test_labels = task_data.adult(data)
    found = []
    for seed in range(REPETITIONS):
        task = tasks.load("adult-sources", data, seed)
        (rows, labels, source), number = task.lower, task.facts["sources"]
        model = DPSourceWeightedClassifier(
            epsilon=1.0,
            delta=DELTA,
            data_norm=1.0,
            classes=[0, 1],
            source_names=range(number),
            random_state=seed,
        )
        quietly(model, rows, labels, sources=source, validation=task.upper)
        loss = log_loss(test_labels, model.predict_proba(test_rows), labels=[0, 1])
        found.append({"test_loss": loss, "bad": float(model.source_weights_[: task.facts["bad sources"]].sum())})
    return found


def references(data: Path, _: str) -> dict[str, Any]:
    """scikit-learn without privacy, on both kinds of features."""
    found: dict[str, Any] = {}
    for name, (declared, given) in splits(data).items():
        found[name] = {}
        for features in ("curves", "plain"):
            rows, test_rows = map(np.asarray, encoded(declared, given, features))
            model: Any = RidgeCV(np.logspace(-6, 3, 10))
            if declared.classes is not None:
                model = LogisticRegressionCV(Cs=np.logspace(-1, 4, 6), max_iter=1000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(rows, given["target"])
            found[name][features] = float(model.score(test_rows, given["test_target"]))
    return found


def peers(data: Path, python: str) -> dict[str, Any]:
    """diffprivlib in its own environment, on the same arrays: curves, and plain columns."""
    found = {}
    for name, (declared, given) in splits(data).items():
        arrays: dict[str, Any] = _targets(declared, given)
        for features in ("curves", "plain"):
            rows, test_rows = map(np.asarray, encoded(declared, given, features))
            size = float(np.float32(1 / np.sqrt(len(declared.X) + len(declared.maps.get("crosses", ())))))
            size = size if features == "curves" else 1 / np.sqrt(len(declared.X))
            arrays |= {f"{features}_rows": rows, f"{features}_test_rows": test_rows}
            low = np.zeros(rows.shape[1]) if features == "curves" else np.full(rows.shape[1], -size)
            arrays |= {f"{features}_low": low, f"{features}_high": np.full(rows.shape[1], size)}
        settings = {"epsilons": EPSILONS, "seeds": PEER_SEEDS, "features": ["curves", "plain"]}
        if declared.classes is None:
            settings["target_range"] = declared.target_range
        found[name] = _asked(python, "diffprivlib", arrays, settings)
        print(f"diffprivlib, {name}: done", flush=True)
    return found


def comparable(epsilon: float) -> float:
    """The epsilon under add-or-remove that epsilon under replace-one is worth: half of mu."""
    return round(gaussian_epsilon(gaussian_mu(epsilon, DELTA) / 2, DELTA), 4)


def boosted(data: Path, python: str) -> dict[str, Any]:
    """DP-EBM in the peers' environment, with its own neighbours: rows are added or removed."""
    return _boosted(data, python, {epsilon: epsilon for epsilon in EPSILONS})


def boosted_for_replacement(data: Path, python: str) -> dict[str, Any]:
    """DP-EBM at the epsilons at which it protects the replacement of a row as well as the others do."""
    return _boosted(data, python, {epsilon: comparable(epsilon) for epsilon in EPSILONS})


def _boosted(data: Path, python: str, epsilons: dict[float, float]) -> dict[str, Any]:
    """Results by table and by the keys of ``epsilons``, whose values are those of DP-EBM."""
    found = {}
    for name, (declared, given) in splits(data).items():
        arrays = _targets(declared, given)
        for part in ("", "test_"):
            arrays[f"{part}numbers"] = _columns(given[f"{part}X"], declared.ranges)
            categories = declared.categories or {}
            arrays[f"{part}categories"] = _columns(given[f"{part}X"], categories).astype(str)
        settings = {
            "epsilons": list(epsilons.values()),
            "seeds": PEER_SEEDS,
            "delta": DELTA,
            "bounds": list(declared.ranges.values()),
        }
        if declared.classes is None:
            settings["target_range"] = declared.target_range
        results = _asked(python, "ebm", arrays, settings)
        found[name] = {f"{epsilon:g}": results[f"{own:g}"] for epsilon, own in epsilons.items()}
        print(f"DP-EBM, {name}: done", flush=True)
    return found


def _asked(python: str, peer: str, arrays: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The results of a peer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npz"
        np.savez(file, **arrays)
        command = [python, str(PEER), peer, str(file), json.dumps(settings)]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return found


def _targets(declared: Dataset, given: Split) -> dict[str, Any]:
    targets = {name: given[name] for name in ("target", "test_target")}
    if declared.classes is None:
        return targets
    return {name: values == declared.classes[1] for name, values in targets.items()}


def _columns(table: Any, names: Any) -> np.ndarray:
    """Columns of a table as a matrix."""
    rows = len(next(iter(table.values())))
    return np.stack([np.asarray(table[name]) for name in names], axis=1) if names else np.zeros((rows, 0))


PARTS: dict[str, Callable[[Path, str], Any]] = {
    "references": references,
    "ours": ours,
    "sources": sources,
    "diffprivlib": peers,
    "ebm": boosted,
    "ebm-replacement": boosted_for_replacement,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="an interpreter with diffprivlib and interpret")
    parser.add_argument("--data", type=Path, default=tasks.default_data_directory())
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to run (all of them by default)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    file = options.out / "estimators.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    content |= {"epsilons": EPSILONS, "delta": DELTA, "seeds": SEEDS, "peer_seeds": PEER_SEEDS}
    for part in options.parts.split(","):
        begin, made_on = time.perf_counter(), machine()  # the commit at the start, not at the end
        content[part] = PARTS[part](options.data, options.peer)
        minutes = (time.perf_counter() - begin) / 60
        content.setdefault("made", {})[part] = f"{made_on}, {minutes:.1f} minutes"
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if set(PARTS) <= set(content):
        (options.out / "estimators.md").write_text(page(content), encoding="utf-8")


if __name__ == "__main__":
    main()
