"""Runs that are killed, with kill -9 at chosen and at random moments, and resumed until they end.

Runs as a program of its own and prints what happened as JSON::

    python tests/support/killed_solves.py --kills 200

A run solves a small problem with a checkpoint and a ledger in SQLite, then writes its solution and a report. It is
killed again and again, and must end with the bits of a run that nobody killed, one charge, and a sound ledger. The
parent imports JAX and computes nothing, so that it may fork: children start quickly.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import jax
import numpy as np

import dpbilevel as dpb
from dpbilevel.checkpoint import checkpoint
from dpbilevel.foundation import files
from dpbilevel.privacy import noise
from dpbilevel.privacy.stores import database
from dpbilevel.records import Records
from dpbilevel.solution.solution import Solution

SECRET = bytes(range(32))
TOTAL = dpb.Budget(2.0, 1e-4)
BUDGET = dpb.Budget(1.0, 1e-4)
PHASES = {"start": 2, "charge": 6, "loop": 40, "checkpoint write": 40, "report": 4}  # moments of a run, at least


def moments(kill):
    """Wrap what a run does, so that ``kill(phase)`` is called at every moment between two effects."""

    def around(home, name, phase):
        plain = getattr(home, name)

        def wrapped(*arguments, **settings):
            kill(phase)
            result = plain(*arguments, **settings)
            kill(phase)
            return result

        setattr(home, name, wrapped)

    around(database, "add_entry", "charge")  # after it the entry is written and not yet committed
    around(checkpoint, "fingerprint", "start")
    around(dpb.Ledger, "charge", "charge")
    around(Records, "seal", "charge")  # after the charge, and before it is noted
    around(Records, "execute", "loop")
    around(checkpoint.Checkpoint, "save", "loop")
    around(Solution, "save", "report")
    around(Solution, "report", "report")
    plain_sync, plain_replace = os.fsync, os.replace

    def fsync(handle):  # what is in the file before this may be a half of it
        with contextlib.suppress(OSError):
            os.ftruncate(handle, os.fstat(handle).st_size // 2) if kill("checkpoint write", ask=True) else None
        kill("checkpoint write")
        return plain_sync(handle)

    def replaced(source, target):
        kill("checkpoint write")
        result = plain_replace(source, target)
        kill("checkpoint write")
        return result

    files.os = type("System", (), {**vars(os), "fsync": staticmethod(fsync), "replace": staticmethod(replaced)})


def run(folder: Path) -> Solution:
    """One attempt: all that a user's script does."""
    path = folder / "run.checkpoint"
    if not path.exists():  # noise drawn again by a later attempt would be noticed
        noise.secrets.token_bytes = lambda size: SECRET[:size]
    import jax.numpy as jnp

    points = np.clip(np.random.default_rng(0).normal(size=(60, 2)) * 0.3 + 0.2, -1, 1)
    problem = dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * jnp.sum((y - record) ** 2),
    )
    solution = dpb.solve(
        problem,
        dpb.Records(lower=points),
        BUDGET,
        start=(np.zeros(2), np.zeros(2)),
        method=dpb.Tracking(steps=6),
        refit=dpb.Refit(steps=4),
        ledger=dpb.Ledger.open(f"sqlite:///{folder}/ledger.db", dataset="points"),
        checkpoint=path,
        progress=False,
    )
    solution.save(folder / "run.json")
    solution.report(folder / "report.md")
    return solution


def attempt(folder: Path, phase: str | None, after: int, seconds: float | None) -> bool:
    """Whether an attempt came to its end; it is killed at a moment of a phase, or after some seconds."""
    child = os.fork()
    if not child:
        try:
            if phase is not None or seconds is not None:  # JAX does not write its cache atomically
                jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
            if phase is not None:
                moments(_killer(phase, after))
            run(folder)
            (folder / "ended").touch()
            os._exit(0)
        except BaseException:
            (folder / "error").write_text(traceback.format_exc())
            os._exit(1)
    if seconds is not None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.002)
        else:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    else:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"an attempt failed:\n{(folder / 'error').read_text()}")
    return code == 0


def _killer(phase: str, after: int):
    left = after

    def kill(now: str, ask: bool = False) -> bool:
        nonlocal left
        if now != phase:
            return False
        if ask:
            return left == 0
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return False

    return kill


def created(folder: Path) -> Path:
    folder.mkdir()
    dpb.Ledger.open(f"sqlite:///{folder}/ledger.db", dataset="points", total=TOTAL)
    return folder


def released(folder: Path) -> dict:
    """What must be the same: everything that is published."""
    return json.loads((folder / "run.json").read_text()) | {"report": (folder / "report.md").read_text()}


def trial(
    folder: Path, whole: dict, draws: random.Random, phase: str, kills: int, seconds: float
) -> tuple[list[str], list[str]]:
    """Kill one run up to ``kills`` times, first in a phase and then anywhere; where it was, and what is wrong."""
    created(folder)
    done: list[str] = []
    faults: list[str] = []
    while len(done) < kills:
        now = phase if not done else draws.choice((*PHASES, *["any time"] * len(PHASES)))
        if now == "any time":
            ended = attempt(folder, None, 0, draws.uniform(0, seconds))
        else:
            ended = attempt(folder, now, draws.randrange(PHASES[now] if not done else 6), None)
        if ended:
            break
        done.append(now)
    if not (folder / "ended").exists() and not attempt(folder, None, 0, None):
        faults.append("did not end")
    try:
        entries = dpb.Ledger.open(f"sqlite:///{folder}/ledger.db", dataset="points").entries
    except dpb.DPBilevelError as error:
        return done, [*faults, f"ledger: {type(error).__name__}"]
    # One charge for the one run: a run that died before its checkpoint was there has not charged either.
    if len(entries) != 1:
        faults.append(f"{len(entries)} charges")
    if released(folder) != whole:
        faults.append("other bits")
    left = sorted(path.name for path in folder.iterdir() if path.suffix == ".part" and "checkpoint" in path.name)
    if left:
        faults.append(f"left behind: {left}")
    return done, faults


def survey(kills: int, seed: int = 0) -> dict:
    """Kill runs until ``kills`` kills are reached: one run in every phase, then in turn some of them twice."""
    warnings.simplefilter("ignore")
    draws, faults, phases, trials = random.Random(seed), [], Counter(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if jax.config.jax_compilation_cache_dir is None:  # tests have one
            jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        reference = created(folder / "reference")
        attempt(reference, None, 0, None)
        shutil.rmtree(reference)
        began = time.monotonic()
        attempt(created(folder / "again"), None, 0, None)
        seconds, whole = time.monotonic() - began, released(folder / "again")
        while phases.total() < kills:
            phase = list(PHASES)[trials % len(PHASES)]
            times = min(kills - phases.total(), 1 if trials < len(PHASES) else draws.randint(1, 2))
            place = folder / f"run-{trials}"
            killed, wrong = trial(place, whole, draws, phase, times, seconds)
            phases.update(killed)
            faults += [f"run {trials} (killed in {', '.join(killed)}): {fault}" for fault in wrong]
            trials += 1
            shutil.rmtree(place)
    return {"kills": phases.total(), "runs": trials, "killed in": dict(phases), "faults": faults}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    happened = survey(arguments.kills, arguments.seed)
    print(json.dumps(happened, indent=1))
    sys.exit(1 if happened["faults"] else 0)
