"""Every public entry point and file format, called with bad inputs: typed errors only, nothing charged or written."""

import inspect
import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from support import fuzz_calls, fuzz_files
from support.fuzz_calls import Call, Charged

import dpbilevel as dpb

# NotFittedError is scikit-learn's word for predict before fit, and part of its contract.
TYPED = (dpb.DPBilevelError, NotFittedError)


TARGETS: dict[str, tuple[Callable[..., Call], int]] = {  # with a weight: how many of all inputs
    "arguments of functions": (fuzz_calls.arguments_of_functions, 5),
    "records": (fuzz_calls.records, 2),
    "plans": (fuzz_calls.plans, 1),
    "runs": (fuzz_calls.runs, 1),
    "losses": (fuzz_calls.losses, 1),
    "evaluations": (fuzz_calls.evaluations, 2),
    "fits": (fuzz_calls.fits, 1),
    "plans of estimators": (fuzz_calls.plans_of_estimators, 1),
    "predictions": (fuzz_calls.predictions, 1),
    "encoders": (fuzz_calls.encoders, 1),
    "accounts": (fuzz_calls.accounts, 1),
    "audits": (fuzz_calls.audits, 1),
    "solutions": (fuzz_files.solutions, 1),
    "run files": (fuzz_files.run_files, 1),
    "schemas": (fuzz_files.schemas, 1),
    "tables": (fuzz_files.tables, 1),
    "checkpoints": (fuzz_files.checkpoints, 1),
    "ledger files": (fuzz_files.ledger_files, 1),
    "ledger arguments": (fuzz_files.ledger_arguments, 1),
    "pictures": (fuzz_files.pictures, 1),
    "data sets": (fuzz_files.data_sets, 1),
    "commands": (fuzz_files.commands, 1),
}


def fuzz(name: str, inputs: int, start: int = 0) -> Counter[str]:
    """Call a target with a number of inputs; returns counts by outcome. Raises on a wrong outcome."""
    found: Counter[str] = Counter()
    seed(start)(attempts(name, inputs, found))()
    return found


def attempts(name: str, inputs: int, found: Counter[str]) -> Callable[[], None]:
    """A test of hypothesis that calls a target with one input after the other, and counts them in ``found``."""
    make = TARGETS[name][0]
    wanted = list(inspect.signature(make).parameters)[1:]

    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def one(drawn: st.DataObject) -> None:
        charged = Charged()
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = Path(place)
            context = {"charged": charged, "folder": folder}
            call = make(drawn.draw, **{parameter: context[parameter] for parameter in wanted})
            before = _listing(folder)
            try:
                call()
            except TYPED as error:
                found[type(error).__name__] += 1
                assert charged.entries == (), "refused, and charged"
                assert _listing(folder) == before, "refused, and something was written"
            else:
                found["accepted"] += 1

    return one


def _listing(folder: Path) -> dict[str, bytes]:
    # SQLite's own files beside a database (of its log and its lock) come and go when it is read.
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def shares(total: int) -> dict[str, int]:
    """How many inputs each target gets of a total."""
    weight = sum(weight for _, weight in TARGETS.values())
    return {name: math.ceil(total * mine / weight) for name, (_, mine) in TARGETS.items()}
