"""The epsilon of each sampling scheme for the same noise: the table of docs/results/sampling_costs.md.

python benchmarks/sampling_costs.py        (a few minutes; sampling with replacement has wide loss distributions)
"""

from pathlib import Path

import dpbilevel as dpb
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.privacy.accountant import composed_epsilon
from dpbilevel.privacy.accounting import Charge

RECORDS, DELTA = 1000, 1e-6
TARGET = Path(__file__).parent.parent / "docs" / "results" / "sampling_costs.md"


PAGE = """# Cost of each sampling scheme

Epsilon at delta = {delta:g} of 500 steps on batches of the given fraction of n = {records:,} records, for the same
noise on the sum of a batch. Made by `python benchmarks/sampling_costs.py`; no randomness is involved. Poisson batches
are accounted for by dp_accounting's privacy loss distribution, fixed-size batches by their privacy profiles
(`privacy/profiles.py`).

{table}

A Poisson batch is far cheaper than a fixed-size batch, under both relations: if a record leaves a fixed-size batch,
another one takes its place and may point in the opposite direction ([true and claimed δ](sampling_truth.md)). Sampling
with replacement (the paper's scheme) is the most expensive: a record may be drawn several times.
"""


def epsilon(sampling, noise_over_clip, steps, adjacency):
    """Epsilon of ``steps`` sums with noise in units of the clip norm, the same for all sampling schemes."""
    contributions = {"replace-one": 2.0, "zero-out": 1.0}[adjacency]
    charge = Charge("gradient", "lower", contributions / noise_over_clip, steps, sampling, RECORDS)
    return composed_epsilon([charge], DELTA, adjacency)


def main():
    rows = []
    for size in (10, 20, 50):
        schemes = [dpb.Poisson(size / RECORDS), dpb.WithoutReplacement(size), dpb.WithReplacement(size)]
        for noise in (1.0, 2.0, 4.0):
            for adjacency in ("replace-one", "zero-out"):
                costs = [f"{epsilon(scheme, noise, 500, adjacency):.3g}" for scheme in schemes]
                rows.append([f"{size / RECORDS:g}", f"{noise:g}", adjacency, *costs])
                print(*rows[-1], flush=True)
    header = ["batch / n", "noise / clip", "relation", "Poisson", "without replacement", "with replacement"]
    TARGET.write_text(PAGE.format(delta=DELTA, records=RECORDS, table=markdown_table(header, rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
