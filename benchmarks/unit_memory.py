"""The memory and the time of units whose rows lie one after another: docs/results/unit_memory.md.

    python benchmarks/unit_memory.py     (five minutes on one core; --people 40000 is smaller)

Fits of a logistic regression run in processes of their own: of rows, of the same rows as units, and of units with k
places each. Peaks of a small and of a large fit are compared, so that Python, its libraries and JAX's compiler do not
count. A pass is a clipped sum of gradients over all units, compiled; ways to store units take turns, and the fastest
pass counts.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rates import machine

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.foundation.tables import markdown_table
from dpbilevel.methods.derivatives import gradient_in_y
from dpbilevel.methods.unit_losses import UnitLoss
from dpbilevel.privacy import preparing
from dpbilevel.privacy.clipping import clipped_sum
from dpbilevel.privacy.memory import Memory
from dpbilevel.privacy.units import Selection
from dpbilevel.records import isolated_jax_config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "unit_memory.md"
COLUMNS, MOST, MEAN = 50, 32, 2.0  # of the fits
FEW, PEOPLE = 40_000, 400_000
WAYS = ("rows", "units", "units with k places each")
PASSES = ((4, 3.0, 100), (8, 4.0, 50), (8, 2.0, 50), (32, 2.0, 50), (32, 8.0, 20))  # k, mean, columns
ENTRIES, TURNS = 2**24, 7  # of the units with k places each, and repetitions of a pass

TEXT = """# Memory of units

Units have at most k rows, and shapes are public: arrays have k places for each. On a processor, rows lie one after
another at the front of such an array, and memory behind the last one is never touched ([how](../units.md#memory)).

## A fit

`DPLogisticRegressionCV` on {few:,} and on {people:,} people with at most k = {most} rows of {columns} columns,
{mean:.2f} on average. The larger table has {rows:,} rows, {size:.0f} MiB more than the smaller one. *Memory* is how
much more the peak of the process is, with the rows that the caller holds.

{fits}

## A pass

A clipped sum of the gradients of a logistic regression over all units, with the numbers of rows of a geometric
distribution that is cut off at k.

{passes}

Made by `make bench-unit-memory` ({machine}, which did other work, too).
"""


def sizes(people: int, most: int, mean: float) -> np.ndarray:
    """How many rows people have."""
    return np.minimum(np.random.default_rng(0).geometric(1 / mean, people), most)


# ---- in a process of its own


def fit(way: str, people: int) -> dict[str, float]:
    """The peak of a fit, in MiB, and its number of rows."""
    if way == WAYS[2]:
        records_module.is_packed = preparing.is_packed = lambda *_: False
    ids = np.repeat(np.arange(people), sizes(people, MOST, MEAN))
    draws, X = np.random.default_rng(1), np.empty((len(ids), COLUMNS), np.float32)
    for first in range(0, len(ids), 2**16):
        X[first : first + 2**16] = draws.normal(size=X[first : first + 2**16].shape) / COLUMNS**0.5
    y = (X[:, 0] > 0).astype(np.int32)
    units = {"rows_per_unit": MOST, "mean_rows": MEAN} if way != WAYS[0] else {}
    settings = {"epsilon": 1.0, "delta": 1e-7, "data_norm": 1.0, "classes": [0, 1], "method": dpb.Refit(steps=5)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the noise of few steps, and the memory of k places each
        DPLogisticRegressionCV(**settings, **units).fit(X, y, **({"units": ids} if units else {}))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak": peak, "rows": len(ids), "size": X.nbytes / 2**20}


def watched(way: str, people: int) -> dict[str, float]:
    """What such a process reports."""
    command = [sys.executable, __file__, "--way", way, "--people", str(people)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


# ---- a pass


def logistic(x: Any, y: jax.Array, record: Any) -> jax.Array:
    """The loss of a row."""
    score = record[0] @ y
    return jax.nn.softplus(score) - record[1] * score


def passes(most: int, mean: float, columns: int) -> dict[str, float]:
    """Seconds of a pass by how units are stored."""
    people = ENTRIES // (most * columns)
    ids = np.repeat(np.arange(people), sizes(people, most, mean))
    draws = np.random.default_rng(1)
    rows = (draws.normal(size=(len(ids), columns)) / columns**0.5).astype(np.float32)
    table, valid = (rows, (rows[:, 0] > 0).astype(np.float32)), np.ones(people, bool)
    chosen, gradient = Selection.of(ids, most), gradient_in_y(UnitLoss(logistic, mean))
    model = draws.normal(size=columns).astype(np.float32)
    with isolated_jax_config():
        held = {
            "packed": Memory.stored(chosen.packed(table, valid), valid),
            "k places each": Memory.stored(chosen.bundled(table), valid),
        }
        summed = jax.jit(
            lambda held, y: clipped_sum(lambda unit: gradient(None, y, unit), held, jnp.ones(people, bool), 1.0)
        )
        first = {name: np.asarray(summed(source, model)) for name, source in held.items()}
        assert np.array_equal(*first.values()), "the bits of a sum must not depend on how units are stored"
        best = dict.fromkeys(held, np.inf)
        for _ in range(TURNS):
            for name, source in held.items():
                begin = time.perf_counter()
                summed(source, model).block_until_ready()
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def page(people: int) -> str:
    """The page of results."""
    fits, found = [], {}
    for way in WAYS:
        few, many = watched(way, FEW), watched(way, people)
        found[way] = many["peak"] - few["peak"]
        size = many["size"] - few["size"]
    for way, more in found.items():
        fits.append([way, f"{more:,.0f} MiB", f"{more / size:.2f}", f"{more / found[WAYS[0]]:.2f}"])
    lines = []
    for most, mean, columns in PASSES:
        best = passes(most, mean, columns)
        packed, places = best["packed"], best["k places each"]
        used = sizes(ENTRIES // (most * columns), most, mean).mean()
        lines.append(
            [
                str(most),
                f"{used:.2f}",
                str(columns),
                f"{1e3 * places:.1f} ms",
                f"{1e3 * packed:.1f} ms",
                f"{packed / places:.2f}",
            ]
        )
    return TEXT.format(
        people=people,
        most=MOST,
        columns=COLUMNS,
        mean=many["rows"] / people,
        rows=int(many["rows"]),
        size=size,
        few=FEW,
        fits=markdown_table(["a fit of", "memory", "times the rows given", "times that of rows"], fits),
        passes=markdown_table(["k", "mean of rows", "columns", "k places each", "packed", "ratio"], lines),
        machine=machine(),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the page; or one fit, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=PEOPLE, help="of the large fits")
    parser.add_argument("--way", choices=WAYS, help="only this fit, and print its peak")
    asked = parser.parse_args(arguments)
    if asked.way is not None:
        print(json.dumps(fit(asked.way, asked.people)))
        return
    PAGE.write_text(page(asked.people), encoding="utf-8")


if __name__ == "__main__":
    main()
