"""Jobs of two processes with a ledger in a database, one of which is killed at a chosen or a random moment; resumed.

Runs as a program of its own: it imports everything once, and forks before JAX has started. A child is the launcher of a
job, whose two processes are its own children; each is a whole `dpbilevel reweight`, or `tune`. What a job leaves behind
is compared with what its processes had done, and a job that has left a checkpoint is resumed, as in killed_runs.py.
Prints what happened as JSON.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from support.killed_runs import (
    MUTATIONS,
    PHASES,
    TUNE,
    _at_call,
    _child,
    _entries,
    _faults_of_resumed,
    _released,
    faults_of_files,
    inspected,
    prepare,
)

PROCESSES = 2
ROWS = 700  # so that each process has some
COMMANDS = {"tune": TUNE, "reweight": ("reweight", *TUNE[1:], "--source", "clinic")}
LIMIT = 900.0  # seconds after which a job is ended from outside
SLACK = 10.0  # seconds for the launcher itself, beyond those that it gives the processes


def _before_the_follower(draws: random.Random) -> None:
    from dpbilevel.privacy.ledger import Ledger

    _at_call(Ledger, "follow", 1, after=draws.random() < 0.5)


def _while_rows_are_read(draws: random.Random) -> None:
    from dpbilevel.estimators.scaled_rows import ScaledRows

    _at_call(ScaledRows, "parts", 1, after=draws.random() < 0.5)


def _at_a_message(draws: random.Random) -> None:
    from dpbilevel.foundation.processes import Job

    _at_call(Job, "exchange", draws.randint(1, 60), after=draws.random() < 0.5)


def _at_a_broadcast(draws: random.Random) -> None:
    from dpbilevel.foundation import processes

    _at_call(processes, "_of_first", draws.randint(1, 6), after=draws.random() < 0.5)


_OWN = {
    "rows": _while_rows_are_read,
    "a message": _at_a_message,
    "a broadcast": _at_a_broadcast,
    "as the first charges": _before_the_follower,
}
# Which process is killed, and when.
KILLS: tuple[tuple[int, str], ...] = (
    *((0, phase) for phase in PHASES),
    *((index, phase) for phase in ("rows", "a message", "a broadcast") for index in range(PROCESSES)),
    *((1, phase) for phase in ("start", "as the first charges", "mid-loop", "any moment", "any moment")),
)
MUTANTS: tuple[tuple[int, str], ...] = ((0, "uncharged"), (0, "forgetful"))


class Forked:
    """A child of a fork, as `subprocess.Popen` has it."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode, self._lock = pid, None, threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:  # it is not reaped before this returns
                os.kill(self.pid, number)


def _launcher(
    folder: Path, command: str, number: int, kill: tuple[int, str] | None, delay: float | None, *resume: str
) -> None:
    """A launcher with its processes; never returns."""
    from dpbilevel.cli import launch

    os.setpgid(0, 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started: list[launch.Child] = []

    def start(index: int) -> launch.Child:
        pid = os.fork()
        if pid == 0:
            member = {"coordinator": address, "processes": PROCESSES, "process": index, "is_local": True}
            os.environ[launch.MEMBER] = json.dumps(member)
            mine = kill is not None and kill[0] == index
            _member(folder, command, number, kill[1] if mine and kill else "any moment", *resume)
        said = tempfile.TemporaryFile() if index else None  # noqa: SIM115 - the launcher reads it
        started.append(launch.Child(PROCESSES, index, Forked(pid), said))
        if kill is not None and delay is not None and index == PROCESSES - 1:
            threading.Timer(delay, lambda: started[kill[0]].process.send_signal(signal.SIGKILL)).start()
        return started[-1]

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    code = launch.run(range(PROCESSES), start, [command])
    ends = [child.ended or 0.0 for child in started]
    found = {"codes": [child.process.returncode for child in started], "seconds": max(ends) - min(ends)}
    (folder / f"ended-{number}").write_text(json.dumps(found))
    os._exit(code)


def _member(folder: Path, command: str, number: int, phase: str, *resume: str) -> None:
    """A process of a job; never returns."""
    from support.compilation_cache import only_read

    if number:  # the first job fills the cache
        only_read()
    phases = PHASES | MUTATIONS | _OWN
    _child(folder, number, phase, random.Random(number), *resume, command=COMMANDS[command], phases=phases)


def job(
    folder: Path, command: str, number: int, kill: tuple[int, str] | None, delay: float | None, *resume: str
) -> dict[str, Any]:
    """Run a job, and see how it ends."""
    launcher = os.fork()
    if launcher == 0:
        _launcher(folder, command, number, kill, delay, *resume)
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        ended, status = os.waitpid(launcher, os.WNOHANG)
        if ended:
            found = json.loads((folder / f"ended-{number}").read_text())
            return {"status": os.waitstatus_to_exitcode(status), **found}
        time.sleep(0.02)
    os.killpg(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    return {"status": None, "codes": [], "seconds": LIMIT}


def killed(folder: Path, command: str, number: int, kill: tuple[int, str], delay: float | None) -> dict[str, Any]:
    """Start a job, one process of which is killed, look at what is left, and resume it."""
    before = _entries(folder)
    found = {"kill": list(kill), **job(folder, command, number, kill, delay), **inspected(folder, number, before)}
    left = (folder / f"run-{number}" / ".checkpoint").exists()
    if found["state"] == "finished" or kill[1] == "uncharged" or not left:
        return found
    resume = (command, "--resume", str(folder / f"run-{number}"), "--quiet")
    forgetful = (0, "forgetful") if kill[1] == "forgetful" else None
    end = job(folder, command, number, forgetful, None, *resume)
    same = _released(folder, number) == _released(folder, 0)
    return found | {"resumed": {**end, **inspected(folder, number, before), "same": same}}


def faults(kill: dict[str, Any]) -> list[str]:
    """What is wrong with what a killed process has left behind."""
    from dpbilevel.cli.launch import GRACE, LAST

    found = []
    if max(kill["seconds"], kill.get("resumed", kill)["seconds"]) > GRACE + LAST + SLACK:
        found.append("hang")
    found += faults_of_files(kill)
    if (kill["status"] == 0) != (kill["state"] == "finished") and -signal.SIGKILL not in kill["codes"]:
        found.append(f"ended with {kill['status']} and {kill['state']}")
    if kill["status"] == 2 and kill["charged"]:
        found.append("said that nothing was spent")
    return found + (_faults_of_resumed(kill["resumed"]) if "resumed" in kill else [])


def happened(
    folder: Path, kills: int, among: tuple[tuple[int, str], ...] = KILLS, command: str = "reweight"
) -> list[dict[str, Any]]:
    """Run this file as a program; what became of each kill, those of ``among`` in turn."""
    import dpbilevel

    sources = [str(Path(dpbilevel.__file__).parents[1]), str(Path(__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(kills), json.dumps(among), command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    folder, kills, command = Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[4]
    among: list[tuple[int, str]] = [(index, phase) for index, phase in json.loads(sys.argv[3])]
    prepare(folder, ROWS)
    import dpbilevel.foundation.joining  # noqa: F401

    started = time.monotonic()
    whole = job(folder, command, 0, None, None)
    seconds = time.monotonic() - started
    assert whole["status"] == 0, whole
    assert _entries(folder) == 1
    draws, found = random.Random(0), []
    for number in range(1, kills + 1):
        kill = among[(number - 1) % len(among)]
        delay = {"start": draws.uniform(0, 1.0), "any moment": draws.uniform(0, seconds)}.get(kill[1])
        found.append(killed(folder, command, number, kill, delay))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
