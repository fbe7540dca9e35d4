"""The peers of `side_by_side`: runs in their own environment, reads features, prints results as JSON.

python side_by_side_peer.py diffprivlib|ebm FILE SETTINGS
"""

import json
import sys
import warnings
from typing import Any

import numpy as np

PENALTIES = (0.03, 0.1, 0.3, 1.0)  # C of diffprivlib, the inverse of the penalty
# Of DP-EBM, beside its defaults (300 rounds, rate 0.01, 3 leaves): steps that are longer, fewer, and of more leaves.
BOOSTING = {
    "defaults": {},
    **{
        f"{rounds} rounds, rate {rate:g}, {leaves} leaves": {
            "max_rounds": rounds,
            "learning_rate": rate,
            "max_leaves": leaves,
        }
        for rounds, rate, leaves in (
            (300, 0.03, 3),
            (100, 0.1, 3),
            (100, 0.3, 3),
            (100, 0.3, 8),
            (100, 1.0, 3),
            (30, 1.0, 8),
        )
    },
}


def diffprivlib(data: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Scores by epsilon and setting: features, and for classes C. Regression has no other setting."""
    from diffprivlib.models import LinearRegression, LogisticRegression

    def classes(epsilon: float, features: str, penalty: float, seed: int) -> float:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=penalty, random_state=seed, max_iter=1000)
        model.fit(data[f"{features}_rows"], data["target"])
        return float(model.score(data[f"{features}_test_rows"], data["test_target"]))

    def numbers(epsilon: float, features: str, seed: int) -> float:
        bounds = data[f"{features}_low"], data[f"{features}_high"]
        model = LinearRegression(
            epsilon=epsilon, bounds_X=bounds, bounds_y=tuple(chosen["target_range"]), random_state=seed
        )
        model.fit(data[f"{features}_rows"], data["target"])
        return float(model.score(data[f"{features}_test_rows"], data["test_target"]))

    def runs(epsilon: float) -> dict[str, Any]:
        seeds = range(chosen["seeds"])
        if "target_range" in chosen:
            return {name: [{"score": numbers(epsilon, name, seed)} for seed in seeds] for name in chosen["features"]}
        return {
            f"{name}, C = {c:g}": [{"score": classes(epsilon, name, c, seed)} for seed in seeds]
            for name in chosen["features"]
            for c in PENALTIES
        }

    return {f"{epsilon:g}": runs(epsilon) for epsilon in chosen["epsilons"]}


def ebm(data: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Accuracies or R squared by epsilon and setting, with declared bounds of numbers and of targets."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    bounds = dict(enumerate(map(tuple, chosen["bounds"])))
    kinds = ["continuous"] * len(bounds) + ["nominal"] * data["categories"].shape[1]
    tables = [
        np.concatenate([data[f"{part}numbers"].astype(object), data[f"{part}categories"].astype(object)], axis=1)
        for part in ("", "test_")
    ]

    def run(epsilon: float, setting: dict[str, Any], seed: int) -> dict[str, float]:
        common = {"epsilon": epsilon, "delta": chosen["delta"], "random_state": seed, "n_jobs": 1} | setting
        common |= {"feature_types": kinds, "privacy_bounds": bounds}
        if "target_range" in chosen:
            low, high = chosen["target_range"]
            model = DPExplainableBoostingRegressor(**common, privacy_target_min=low, privacy_target_max=high)
        else:
            model = DPExplainableBoostingClassifier(**common)
        model.fit(tables[0], data["target"])
        found = {"score": float(model.score(tables[1], data["test_target"]))}
        if "target_range" not in chosen:
            likely = model.predict_proba(tables[1])[np.arange(len(tables[1])), data["test_target"].astype(int)]
            found["log_loss"] = float(-np.log(np.maximum(likely, 1e-15)).mean())
        return found

    return {
        f"{epsilon:g}": {
            name: [run(epsilon, setting, seed) for seed in range(chosen["seeds"])] for name, setting in BOOSTING.items()
        }
        for epsilon in chosen["epsilons"]
    }


def main(peer: str, file: str, settings: str) -> None:
    """Run one of the peers."""
    warnings.simplefilter("ignore")
    print(json.dumps({"diffprivlib": diffprivlib, "ebm": ebm}[peer](np.load(file), json.loads(settings))))


if __name__ == "__main__":
    main(*sys.argv[1:])
