"""Real runs of the command line with a ledger in a database, killed at chosen and at random moments, and resumed.

Runs as a program of its own: it imports everything once, forks before JAX has started, and each child is a whole
`dpbilevel tune`. A child notes, in a file of its own, that it is about to touch records; what it was charged is
compared with that. A run that has left a checkpoint is resumed, and must end with the bits of a run that nobody killed
and one charge. Prints what happened as JSON.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from support.compilation_cache import only_read

DATASET, EPSILON = "people", 0.01
SECRET = bytes(range(32))  # of the noise of every run at its start; a process that resumes draws others
TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--delta", "1e-9", "--quiet")


def kill_self(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at_call(
    home: Any, name: str, number: int, *, after: bool = False, counts: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Be killed at the call of that number of a function, before or after it has done its work."""
    true, calls = getattr(home, name), []

    def counted(*arguments: Any, **options: Any) -> Any:
        if not counts(*arguments):
            return true(*arguments, **options)
        calls.append(1)
        if len(calls) == number and not after:
            kill_self()
        result = true(*arguments, **options)
        if len(calls) == number and after:
            kill_self()
        return result

    setattr(home, name, counted)


def _before_the_charge(draws: random.Random) -> None:
    from dpbilevel.privacy.ledger import Ledger

    _at_call(Ledger, "charge", 1)


def _within_the_charge(draws: random.Random) -> None:
    from dpbilevel.privacy.stores import database

    _at_call(database, "add_entry", 1, after=draws.random() < 0.5)


def _after_the_charge(draws: random.Random) -> None:
    from dpbilevel.privacy.ledger import Ledger

    _at_call(Ledger, "charge", 1, after=True)


def _in_the_loop(draws: random.Random) -> None:
    """At one of the calls of compiled code, of which a training makes one for each of its ten steps or more."""
    from dpbilevel import records
    from dpbilevel.foundation.compilation import Compiled

    executed = records._execute
    number, after = draws.randint(1, 10), draws.random() < 0.5
    _at_call(Compiled, "__call__", number, after=after, counts=lambda compiled, *_: compiled is executed)


def _in_the_report(draws: random.Random) -> None:
    """While one of the files is written: the status of a started run, the pages, the run file."""
    _at_call(
        os, "replace", draws.randint(1, 4), after=draws.random() < 0.5, counts=lambda *paths: not _is_hidden(paths)
    )


def _in_a_save(draws: random.Random) -> None:
    """While the checkpoint is written, once for each step of a training, or the options beside it."""
    _at_call(os, "replace", draws.randint(1, 12), after=draws.random() < 0.5, counts=lambda *paths: _is_hidden(paths))


def _is_hidden(paths: tuple[Any, ...]) -> bool:
    return Path(paths[1]).name in (".checkpoint", ".options.json")


def _anywhere(draws: random.Random) -> None:
    """The parent kills."""


PHASES: dict[str, Callable[[random.Random], None]] = {
    "start": _anywhere,
    "before the charge": _before_the_charge,
    "within the charge": _within_the_charge,
    "after the charge": _after_the_charge,
    "mid-loop": _in_the_loop,
    "checkpoint write": _in_a_save,
    "report": _in_the_report,
    "any moment": _anywhere,
}


def _uncharged(draws: random.Random) -> None:
    """A mutation: receipts for nothing, so that records are touched without a charge."""
    from dpbilevel.privacy.ledger import Ledger, Receipt

    Ledger.charge = lambda *arguments, **options: Receipt(arguments[1])  # type: ignore[method-assign]
    _in_the_loop(draws)


def _forgetful(draws: random.Random) -> None:
    """A mutation: a checkpoint that does not keep the noise secret, so that a run resumes with other noise."""
    from dpbilevel.checkpoint import checkpoint
    from dpbilevel.privacy.noise import KeySchedule

    checkpoint.KeySchedule = mock.Mock(wraps=KeySchedule, restore=lambda secret: KeySchedule())  # type: ignore[misc]


MUTATIONS = {"uncharged": _uncharged, "forgetful": _in_the_loop}


def _child(
    folder: Path,
    number: int,
    phase: str,
    draws: random.Random,
    *arguments: str,
    command: tuple[str, ...] = TUNE,
    phases: Mapping[str, Callable[[random.Random], None]] = PHASES | MUTATIONS,
) -> None:
    """A whole run, as `dpbilevel` starts it; never returns."""
    from dpbilevel.cli import app
    from dpbilevel.privacy import noise
    from dpbilevel.records import Records

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(folder)
    true = Records.execute

    def noted(self: Any, *arguments: Any) -> Any:
        (folder / f"touched-{number}").touch()
        return true(self, *arguments)

    Records.execute = noted  # type: ignore[method-assign]
    if not arguments:
        # Names of runs differ, as they do among processes; the ledger knows runs by them.
        draw = noise.secrets.token_bytes
        noise.secrets.token_bytes = lambda size: SECRET if size == len(SECRET) else draw(size)
        phases[phase](draws)
    elif phase == "forgetful":
        _forgetful(draws)
    new = ("--epsilon", str(EPSILON), "--ledger", "people.db", "--dataset", DATASET, "--out", f"run-{number}")
    sys.argv = ["dpbilevel", *(arguments or (*command, *new))]
    try:
        app.main()
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        os._exit(1)


def _entries(folder: Path) -> int:
    from dpbilevel.privacy.ledger import Ledger

    return len(Ledger.open(f"sqlite:///{folder}/people.db", dataset=DATASET).entries)


def killed(folder: Path, number: int, phase: str, delay: float | None) -> dict[str, Any]:
    """Start a run, see it killed, and look at what is left."""
    draws = random.Random(number)
    before = _entries(folder)
    child = os.fork()
    if child == 0:
        if delay is not None:
            only_read()
        _child(folder, number, phase, draws)
    if delay is not None:
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)  # its own child, which is not reaped before the next line
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = {"phase": phase, "status": status, **inspected(folder, number, before)}
    left = (folder / f"run-{number}" / ".checkpoint").exists()
    if found["state"] == "finished" or phase == "uncharged" or not left:  # that mutation has shown itself by now
        return found
    return found | {"resumed": _resumed(folder, number, phase, before)}


def _resumed(folder: Path, number: int, phase: str, before: int) -> dict[str, Any]:
    """Resume a run, from another folder than it was started in, and look at what it leaves."""
    child = os.fork()
    if child == 0:
        only_read()
        resume = ("tune", "--resume", str(folder / f"run-{number}"), "--quiet")
        _child(folder.parent, number, phase, random.Random(number), *resume)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {
        "status": status,
        **inspected(folder, number, before),
        "same": _released(folder, number) == _released(folder, 0),
    }


def _released(folder: Path, number: int) -> Any:
    """All that a run released, as its file has it."""
    document = json.loads((folder / f"run-{number}" / "run.json").read_text("utf-8"))
    return [document.get("solution"), document.get("model")]


def inspected(folder: Path, number: int, before: int) -> dict[str, Any]:
    """What a killed run leaves: a ledger that opens, with the charge if records were touched, and whole files."""
    from dpbilevel.errors import DPBilevelError

    try:
        charged: int | None = _entries(folder) - before
    except DPBilevelError:
        charged = None
    touched = (folder / f"touched-{number}").exists()
    reported = folder / f"run-{number}" / "run.json"
    try:
        state = json.loads(reported.read_text("utf-8"))["status"] if reported.exists() else "nothing"
    except ValueError:
        state = "half a file"
    return {"charged": charged, "touched": touched, "state": state}


def faults_of_files(kill: dict[str, Any]) -> list[str]:
    """What is wrong with the ledger and the files that a kill left behind."""
    found = []
    if kill["charged"] is None:
        found.append("unreadable ledger")
    elif kill["charged"] not in (0, 1):
        found.append("charged more than once")
    elif not kill["charged"] and (kill["touched"] or kill["state"] == "finished"):
        found.append("under-counted budget")
    if kill["state"] == "half a file":
        found.append("half a file")
    return found


def faults(kill: dict[str, Any]) -> list[str]:
    """What is wrong with what a kill left behind."""
    found = faults_of_files(kill)
    if kill["status"] not in (0, -signal.SIGKILL):
        found.append(f"ended with {kill['status']}")
    if "resumed" in kill:
        found += _faults_of_resumed(kill["resumed"])
    return found


def _faults_of_resumed(end: dict[str, Any]) -> list[str]:
    """What is wrong with a killed run that was resumed."""
    if (end["status"], end["state"]) != (0, "finished"):
        return [f"resumed, ended with {end['status']}"]
    charged = [] if end["charged"] == 1 else ["resumed, not charged once"]
    return charged + ([] if end["same"] else ["resumed to other bits"])


def happened(folder: Path, kills: int, phases: tuple[str, ...] = tuple(PHASES)) -> list[dict[str, Any]]:
    """Run this file as a program; what became of each kill, phases in turn."""
    import dpbilevel

    sources = [str(Path(dpbilevel.__file__).parents[1]), str(Path(__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(kills), json.dumps(phases)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        timeout=6 * 3600,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def prepare(folder: Path, rows: int = 200) -> None:
    """Rows and a ledger for runs in that folder, and all imports of a run, once for all children."""
    import dp_accounting.pld  # noqa: F401
    import jax._src.xla_bridge
    import matplotlib.figure  # noqa: F401
    import pyarrow.csv  # noqa: F401
    from support.cli_data import write_people

    from dpbilevel.cli import commands  # noqa: F401
    from dpbilevel.privacy.budget import Budget
    from dpbilevel.privacy.ledger import Ledger
    from dpbilevel.report import html, pictures  # noqa: F401

    write_people(folder, rows=rows)
    Ledger.open(f"sqlite:///{folder}/people.db", dataset=DATASET, total=Budget(1e3, 0.5), composition="basic")
    assert not jax._src.xla_bridge._backends, "JAX has started, and what has started cannot be forked"


def main() -> None:
    folder, kills, phases = Path(sys.argv[1]).absolute(), int(sys.argv[2]), json.loads(sys.argv[3])
    prepare(folder)
    started = time.monotonic()
    whole = killed(folder, 0, "any moment", None)  # left alone: how long a run takes
    seconds = time.monotonic() - started
    assert whole == {"phase": "any moment", "status": 0, "charged": 1, "touched": True, "state": "finished"}, whole
    draws, found = random.Random(0), []
    for number in range(1, kills + 1):
        phase = phases[(number - 1) % len(phases)]
        delay = {"start": draws.uniform(0, 0.3), "any moment": draws.uniform(0, seconds)}.get(phase)
        found.append(killed(folder, number, phase, delay))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
