"""Real runs of the command line that get Ctrl-C or SIGTERM, at chosen and at random moments.

Runs as a program of its own. For chosen moments it imports everything once and forks before JAX has started; a child
sends itself the signal, where it matters from within a destructor, in which Python's own handler does not run. For
random moments each run is a process of its own, imports included. Prints what happened as JSON.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.compilation_cache import ONLY_READ
from support.killed_runs import DATASET, EPSILON, TUNE, _entries, inspected, prepare

Signal = Callable[[], None]
# A run as `dpbilevel` starts it. It writes to a pipe when both signal handlers are installed, and when it ends.
COMMAND = """
import _signal, os, sys
pipe, true, calls = int(sys.argv.pop(1)), _signal.signal, []
def counted(*arguments):
    before = true(*arguments)
    calls.append(1)
    if len(calls) == 2:
        os.write(pipe, b"b")
    return before
_signal.signal = counted
try:
    from dpbilevel.cli.entry import main
    main()
finally:
    os.write(pipe, b"e")
"""


def _arguments(number: int) -> list[str]:
    return [*TUNE, "--epsilon", str(EPSILON), "--ledger", "people.db", "--dataset", DATASET, "--out", f"run-{number}"]


# --- chosen moments ----------------------------------------------------------------------------------------------


def _now() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _kindly() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _twice() -> None:
    _now()
    _now()


def _in_a_destructor() -> None:
    """Where an exception is printed and forgotten: in the destructor of an object, as in a callback of JAX."""

    class Dying:
        def __del__(self) -> None:
            _now()
            sum(range(1000))  # some bytecode, in which the handler runs

    Dying()


def _at(name: str, number: int, send: Signal, *, after: bool = False) -> None:
    """Send a signal at the call of that number of a function, before or after it has done its work."""
    home: Any
    path, name = name.rsplit(".", 1)
    module, _, kind = path.partition(":")
    home = __import__(module, fromlist=["*"])
    home = getattr(home, kind) if kind else home
    true, calls = getattr(home, name), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == number and not after:
            send()
        result = true(*arguments, **options)
        if len(calls) == number and after:
            send()
        return result

    setattr(home, name, counted)


# What must come of it: nothing spent and nothing left, or charged and aborted, or finished and whole.
NOTHING, ABORTED, FINISHED = (0, "nothing"), (1, "aborted"), (1, "finished")
MOMENTS: dict[str, tuple[tuple[int, str], Callable[[], None]]] = {
    "while reading": (NOTHING, lambda: _at("dpbilevel.cli.tuning._read", 1, _in_a_destructor)),
    "before the charge": (NOTHING, lambda: _at("dpbilevel.estimators.base.execute", 1, _in_a_destructor)),
    "within the charge": (ABORTED, lambda: _at("dpbilevel.privacy.stores.database.add_entry", 1, _now, after=True)),
    "at the first round": (ABORTED, lambda: _at("dpbilevel.records:Records.execute", 1, _in_a_destructor)),
    "between chunks": (ABORTED, lambda: _at("dpbilevel.records:Records.execute", 3, _kindly, after=True)),
    "while results are written": (FINISHED, lambda: _at("dpbilevel.foundation.files:Reserved.write", 1, _twice)),
    "while results are shown": (FINISHED, lambda: _at("dpbilevel.cli.commands._show_review", 1, _in_a_destructor)),
}


def _python_handles() -> None:
    """A mutation: Python's own handler, which raises wherever the program happens to be."""
    from dpbilevel.cli.signals import Signals

    Signals.receive = lambda *arguments: signal.default_int_handler(signal.SIGINT, None)  # type: ignore[method-assign]
    MOMENTS["at the first round"][1]()


MUTATIONS = {"mutant": (ABORTED, _python_handles)}


def at_moment(folder: Path, number: int, moment: str) -> dict[str, Any]:
    """A run that gets a signal at a chosen moment, and what came of it."""
    before = _entries(folder)
    said = folder / f"said-{number}"
    child = os.fork()
    if child == 0:
        try:
            from dpbilevel.cli import app

            os.chdir(folder)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            (MOMENTS | MUTATIONS)[moment][1]()
            sys.argv = ["dpbilevel", *_arguments(number)]
            app.main()
        except SystemExit as ended:
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = {"moment": moment, "status": status, "said": said.read_text("utf-8"), **inspected(folder, number, before)}
    wrong = faults(found, folder / f"run-{number}")
    if not wrong and (found["charged"], found["state"]) != (MOMENTS | MUTATIONS)[moment][0]:
        wrong.append("the signal was answered at another moment")
    return found | {"faults": wrong}


# --- random moments ----------------------------------------------------------------------------------------------


def at_random(folder: Path, number: int, delay: float | None, sent: signal.Signals, again: bool) -> dict[str, Any]:
    """A run in a process of its own that gets a signal some time after its first line, or none."""
    before = _entries(folder)
    reader, writer = os.pipe()
    program = [sys.executable, "-c", COMMAND, str(writer), *_arguments(number)]
    surroundings = os.environ | (ONLY_READ if delay is not None else {})
    run = subprocess.Popen(program, cwd=folder, pass_fds=[writer], stderr=subprocess.PIPE, text=True, env=surroundings)
    os.close(writer)
    assert os.read(reader, 1) == b"b", "the run ended before it took over the signals"
    started = time.monotonic()
    if delay is not None:
        time.sleep(delay)
        for _ in range(2 if again else 1):
            run.send_signal(sent)
            time.sleep(0.02 if again else 0)
    late = bool(delay is not None and select.select([reader], [], [], 0)[0] and os.read(reader, 1) == b"e")
    _, said = run.communicate(timeout=600)
    os.close(reader)
    seconds = time.monotonic() - started
    left = inspected(folder, number, before)
    found = {"delay": delay, "late": late, "status": run.returncode, "said": said, "seconds": seconds, **left}
    return found | {"faults": [] if late or delay is None else faults(found, folder / f"run-{number}")}


def faults(found: dict[str, Any], run: Path) -> list[str]:
    """What is wrong with how a run that got a signal ended."""
    wrong = []
    said = (found["said"].strip().splitlines() or [""])[-1]
    outcome = (found["charged"], found["state"])
    messages = {
        NOTHING: "dpbilevel: interrupted. Nothing was spent.",
        ABORTED: "dpbilevel: interrupted. The run had started: its epsilon is charged and counts as spent;",
        FINISHED: "dpbilevel: interrupted. The run had finished: ",
    }
    if found["status"] == 0:
        wrong.append("lost signal")
    elif found["status"] != 130:
        wrong.append(f"ended with {found['status']}")
    if outcome not in messages:
        wrong.append(f"left {outcome}")
    elif not said.startswith(messages[outcome]):
        wrong.append("another message")
    if "Traceback" in found["said"]:
        wrong.append("a traceback")
    if outcome == NOTHING and run.exists():
        wrong.append("left a folder")
    if outcome == FINISHED and {path.name for path in run.iterdir()} != {"run.json", "report.html", "report.md"}:
        wrong.append("results that are not whole")
    return wrong


# --- the program -------------------------------------------------------------------------------------------------


def happened(folder: Path, *, random: int = 0, moments: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run this file as a program; what became of each signal."""
    import dpbilevel

    sources = [str(Path(dpbilevel.__file__).parents[1]), str(Path(__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(random), json.dumps(moments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        timeout=6 * 3600,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    folder, number, moments = Path(sys.argv[1]).absolute(), int(sys.argv[2]), json.loads(sys.argv[3])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore it
    prepare(folder)
    found = [at_moment(folder, index, moment) for index, moment in enumerate(moments)]
    if number:
        alone = at_random(folder, 1000, None, signal.SIGINT, False)
        assert (alone["status"], alone["charged"], alone["state"]) == (0, 1, "finished"), alone
        draws, counted = random.Random(0), 0
        for index in range(2 * number):
            if counted == number:
                break
            # One moment in each of as many parts of a run as there are signals.
            delay = alone["seconds"] * (counted + draws.random()) / number
            sent = draws.choice([signal.SIGINT, signal.SIGTERM])
            found.append(at_random(folder, 1001 + index, delay, sent, index % 4 == 3))
            counted += not found[-1]["late"]
            if found[-1]["late"]:  # the machine is less busy than it was when the first run was timed
                alone["seconds"] *= 0.8
    print(json.dumps(found))


if __name__ == "__main__":
    main()
