"""Hashes of all released values of every method and estimator at a fixed seed, to compare two checkouts.

    make golden BASE=<revision>                            (minutes: runs the script of that revision, and this one)
    python benchmarks/golden.py --out values.json
    python benchmarks/golden.py --compare before.json after.json

A refactoring must leave every bit unchanged. Bits differ between processors, so no reference is stored: both checkouts
run on one machine, each with its own copy of this script. Names of cases never change. Names inside a case may change:
a value with the same bits under another name counts as unchanged.
"""

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import opendp.measurements
from golden_cases import CASES, Values

import dpbilevel as dpb

ROOT = Path(__file__).resolve().parents[1]


def digest(value: Any) -> str:
    """SHA-256 of the type, the shape and the bits of an array or of another value."""
    array = np.asarray(value)
    content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + content).hexdigest()


def seeded_gaussian(*space: Any, scale: float, **options: Any) -> Callable[[list[int]], list[int]]:
    """Replaces OpenDP's sampler, which cannot be seeded: integers that depend only on the scale and their number."""
    draws = np.random.default_rng(int(np.float64(scale).view(np.uint64)))
    return lambda zeros: np.rint(scale * draws.normal(size=len(zeros))).astype(np.int64).tolist()


def hashed(case: Callable[[], Values]) -> dict[str, str]:
    try:
        values = case()
    except Exception as error:  # an error is part of the behaviour of a case
        return {"raised": f"{type(error).__name__}: {error}"}
    leaves = jax.tree_util.tree_flatten_with_path(values, is_leaf=lambda leaf: leaf is None)[0]
    return {jax.tree_util.keystr(path): digest(leaf) for path, leaf in leaves}


def run(out: Path) -> None:
    if not Path(dpb.__file__).resolve().is_relative_to(ROOT):
        sys.exit(f"dpbilevel comes from another checkout than this script: set PYTHONPATH={ROOT / 'src'}")
    opendp.measurements.make_gaussian = seeded_gaussian
    warnings.simplefilter("ignore")
    found = {}
    for at, (name, case) in enumerate(CASES.items(), 1):
        began = time.perf_counter()
        found[name] = hashed(case)
        raised = f"  {found[name]['raised']}" if "raised" in found[name] else ""
        print(f"{at:3}/{len(CASES)} {time.perf_counter() - began:5.1f} s  {name}{raised}", flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def difference(before: dict[str, str] | None, after: dict[str, str] | None) -> list[str]:
    """The differences between two runs of a case; a value may have another name."""
    if before is None or after is None:
        return ["missing before" if before is None else "missing after"]
    changed = [f"{name} differs" for name in before if name in after and before[name] != after[name]]
    gone, new = ({n: one[n] for n in one if n not in other} for one, other in ((before, after), (after, before)))
    lost, added = (Counter(one.values()) - Counter(other.values()) for one, other in ((gone, new), (new, gone)))
    changed += [f"{name} is gone" for name, value in gone.items() if value in lost]
    return changed + [f"{name} is new" for name, value in new.items() if value in added]


def compare(before: Path, after: Path) -> int:
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    names = list(dict.fromkeys([*one, *other]))
    found = {name: changed for name in names if (changed := difference(one.get(name), other.get(name)))}
    for name, changed in found.items():
        print(f"{name}: {'; '.join(changed)}")
    print(f"{len(names) - len(found)} of {len(names)} cases are the same, bit for bit.")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hash all released values, or compare two such files.")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    given = parser.parse_args()
    sys.exit(run(given.out) if given.compare is None else compare(*given.compare))
