"""The guarantees of the theorems: alpha as a function of n, epsilon, d_x and d_y, with explicit constants.

python benchmarks/theory_curves.py        (a minute; writes docs/results/theory_curves.md and theory_curves.svg)
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import dpbilevel as dpb
from dpbilevel.foundation.tables import markdown_table

TARGET = Path(__file__).parent.parent / "docs" / "results"
CONSTANTS = dpb.Constants(
    upper_lipschitz=1.0,
    upper_smoothness=0.25,
    lower_lipschitz=1.0,
    lower_smoothness=0.75,
    lower_hessian_lipschitz=0.1,
    strong_convexity=0.5,
)
N, D_X, D_Y, BUDGET, GAMMA, GAP = 10**7, 10, 100, dpb.Budget(1.0, 1e-12), 0.05, 1.0
BATCH = 10**5
SETTINGS = {"erm": {}, "minibatch": {"batch": BATCH}, "population": {"diameter": 2.0}}
GRIDS = {
    "n": [10**power for power in range(5, 12)],
    "epsilon": [float(epsilon) for epsilon in np.geomspace(0.1, 10.0, 9)],
    "d_x": [10**power for power in range(5)],
    "d_y": [10**power for power in range(7)],
}

PAGE = """# Guarantees of the theorems

The smallest α, the norm of the projected hypergradient that Theorems 1 to 3 guarantee with probability {certain}, with
explicit constants (`dpb.paper.plan`; each constant names its lemma in `paper/bounds.py`). Constants: L0f = 1,
L1f = 0.25, L0g = 1, L1g = 0.75, L2g = 0.1, mu_g = 0.5, ΔF = 1, a benign problem; n = {n:,}, d_x = {d_x}, d_y = {d_y},
ε = 1, δ = {delta:g}, replace-one, batches of {batch:,}, unless varied. No randomness is involved. Made by
`python benchmarks/theory_curves.py`.

{table}

The bound is informative only if α is below C = L0f (1 + L1g/mu_g) = {vacuous:g}: every hypergradient is smaller than C
anyway. **The theorems are worst-case statements: they need about {needed:,} records to be informative here**, while the
method itself works with thousands (`rates.md` has measurements). The planner reports "vacuous" in all other cases.

![Alpha against n, epsilon, d_x and d_y](theory_curves.svg)
"""


def main():
    plans = {
        setting: dpb.paper.plan(
            CONSTANTS, n=N, d_x=D_X, d_y=D_Y, budget=BUDGET, gamma=GAMMA, gap=GAP, setting=setting, **extra
        )
        for setting, extra in SETTINGS.items()
    }
    rows = [
        [
            name,
            f"{plan.alpha:.3g}",
            plan.binds,
            f"{plan.penalty_weight:.3g}",
            f"{plan.steps:,}",
            f"{plan.records_needed(1.0):,}",
        ]
        for name, plan in plans.items()
    ]
    header = ["setting", "α", "largest term", "λ", "T", "records needed for α = 1"]
    figure, panels = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for (against, values), axes in zip(GRIDS.items(), panels.flat, strict=True):
        for plan in plans.values():
            dpb.paper.plot(plan, against, values, axes)
        lines = axes.get_lines()
        for line in lines[3::2]:
            line.remove()  # one line "vacuous above" is enough
        axes.legend()
    figure.savefig(TARGET / "theory_curves.svg", metadata={"Date": None})
    page = PAGE.format(
        certain=f"{1 - GAMMA:g}",
        n=N,
        batch=BATCH,
        d_x=D_X,
        d_y=D_Y,
        delta=BUDGET.delta,
        table=markdown_table(header, rows),
        vacuous=plans["erm"].clip_norm,
        needed=plans["erm"].records_needed(0.99 * plans["erm"].clip_norm),
    )
    (TARGET / "theory_curves.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
