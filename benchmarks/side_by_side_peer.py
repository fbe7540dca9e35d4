"""The diffprivlib part of `side_by_side`: runs in its own environment, reads features, prints results as JSON."""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression

PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)  # C, the inverse of the penalty


def main(file: str, settings: str) -> None:
    warnings.simplefilter("ignore")
    chosen, data = json.loads(settings), np.load(file)

    def run(epsilon: float, penalty: float, seed: int) -> dict[str, float]:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=penalty, random_state=seed, max_iter=1000)
        model.fit(data["rows"], data["target"])
        return {"score": float(model.score(data["test_rows"], data["test_target"]))}

    results = {
        f"{epsilon:g}": {str(c): [run(epsilon, c, seed) for seed in range(chosen["seeds"])] for c in PENALTIES}
        for epsilon in chosen["epsilons"]
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
