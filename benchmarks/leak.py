"""A membership attack on exact bilevel optimisation and on the private methods.

python benchmarks/leak.py        (about a minute; writes docs/results/leak.json, leak.md and leak.svg)
"""

import json
from pathlib import Path

import plot_leak

import dpbilevel as dpb
from dpbilevel.audit.leak import exact_attack, private_attack
from dpbilevel.foundation.tables import markdown_table

TARGET = Path(__file__).parent.parent / "docs" / "results"
N, DIMENSION, TRIALS, DELTA = 100, 3, 20_000, 1e-3

PAGE = """# The membership attack

The paper's warm-up example: f(x, y) = |x + y|²/2, and g(x, y) is the mean of |y − ξ_i|²/2. The exact hypergradient at 0
is the mean of the data, so that a single release of it reveals membership. An adversary who knows all other records
attacks {trials:,} runs with and {trials:,} runs without the target, n = {n}, δ = {delta:g}, replace-one; the decision
rule is chosen on one half of the runs and evaluated on the other. Intervals have 99% confidence. Made by
`python benchmarks/leak.py`, seed 0.

{table}

"Allowed" is the largest advantage of any attack: the tight bound for Gaussian noise, and the bound for any (ε, δ)-DP
mechanism.

![Advantage of the attack against ε](leak.svg)
"""


def main():
    results = [exact_attack(N, DIMENSION, trials=TRIALS, seed=0)]
    inner = dpb.DPLocGD(strong_convexity=1.0, steps=1, rounds=1)  # clip 1: the norm of the target's gradient
    method = dpb.DPBilevel(inner=inner, steps=1, step_size=0.5)
    for epsilon in (0.5, 1.0, 3.0):
        budget = dpb.Budget(epsilon, DELTA)
        results.append(private_attack(method, N, DIMENSION, budget, trials=TRIALS, seed=0))
    rows = []
    for result in results:
        print(result, flush=True)
        low, high = result.interval
        private = result.budget.is_private
        rows.append(
            [
                result.method,
                f"{result.budget.epsilon:g}",
                f"{result.advantage:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{result.tight_bound:.3f}" if private else "1",
                f"{result.bound:.3f}" if private else "1",
            ]
        )
    header = ["method", "ε", "advantage (TPR − FPR)", "99% interval", "allowed (Gaussian)", "allowed ((ε, δ)-DP)"]
    page = PAGE.format(trials=TRIALS, n=N, delta=DELTA, table=markdown_table(header, rows))
    (TARGET / "leak.md").write_text(page, encoding="utf-8")
    content = {"format": "dpbilevel.leak/1", "attacks": [result.to_json() for result in results]}
    (TARGET / "leak.json").write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    plot_leak.leak(results).figure.savefig(TARGET / "leak.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
