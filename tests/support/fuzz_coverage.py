"""Bad inputs that coverage chooses: atheris mutates what hypothesis draws from, and keeps what reaches new code.

Runs as a program of its own, for an instrumented library is slow, and prints counts as JSON::

    python tests/support/fuzz_coverage.py "run files" 2000

Where atheris does not install (it has no wheels for some machines), `reason_to_skip` says so.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SEED = 1


def reason_to_skip() -> str | None:
    """Why nothing can be fuzzed so; None where it can."""
    return None if importlib.util.find_spec("atheris") else "atheris is not installed"


def fuzzed(name: str, inputs: int) -> dict[str, int]:
    """Run this file as a program; counts by what became of the inputs. Raises on one that is not as it should be."""
    done = subprocess.run(
        [sys.executable, "-m", "support.fuzz_coverage", name, str(inputs)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Never returns: libFuzzer keeps the process."""
    import atheris

    name, inputs, found = sys.argv[1], int(sys.argv[2]), Counter[str]()
    with atheris.instrument_imports(include=["dpbilevel"]):
        from support.fuzz_targets import attempts
    one = attempts(name, inputs, found).hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def tried(data: bytes) -> None:
        one(data)
        if found.total() >= inputs:
            print(json.dumps(found), flush=True)
            os._exit(0)

    with (
        tempfile.TemporaryDirectory() as folder
    ):  # for the input that a fault is found with, which stderr tells as well
        options = (f"-seed={SEED}", "-max_len=4096", "-len_control=0", "-verbosity=0", f"-artifact_prefix={folder}/")
        atheris.Setup([sys.argv[0], *options], tried)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
