"""Processes that race for a budget, are killed while they charge, or share a ledger across a fork.

Runs as a program of its own: it loads no JAX, so that it may fork, and forks are cheap. Prints what happened as JSON.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpbilevel.errors import BudgetExceeded, DPBilevelError
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.sampling import FullBatch, Poisson
from dpbilevel.privacy.stores import database as stores
from dpbilevel.privacy.stores import sqlite
from dpbilevel.privacy.stores.entry import MemoryStore

TOTAL = Budget(2.0, 1e-6)
OUTCOMES = {0: "charged", 3: "refused"}


@dataclass(frozen=True)
class Run:
    """What a ledger charges, with a share of the total's mu^2; no release of anything."""

    share: float
    name: str = "run"
    uses: int = 1
    adjacency: str = "replace-one"
    rate: float = 1.0

    def charges(self) -> tuple[Charge, ...]:
        sampling = FullBatch() if self.rate == 1 else Poisson(self.rate)
        return (Charge(self.name, "lower", TOTAL.mu * self.share**0.5, self.uses, sampling, 1000),)


def charge(ledger: Ledger, share: float) -> None:
    ledger.charge([Run(share)], TOTAL, f"a share of {share:g}")


def forked(body) -> int:
    """Run a function in a child; what it returns is the exit status."""
    child = os.fork()
    if child:
        return child
    try:
        status = body()
    except BaseException as error:
        print(traceback.format_exception_only(error)[-1], file=sys.stderr)
        status = 1
    os._exit(status or 0)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- races -------------------------------------------------------------------------------------------------------


def race(url: str, dataset: str, racers: int = 16, *, inherited: bool = False, mutant=None) -> list[str]:
    """Processes race for the last slice; what became of each, sorted."""
    ledger = Ledger.open(url, dataset=dataset, total=TOTAL)
    charge(ledger, 0.6)
    waiting, gate = os.pipe()
    reader, ready = os.pipe()

    def racer() -> int:
        os.close(gate)
        if mutant is not None:
            mutant()
        own = ledger if inherited else Ledger.open(url, dataset=dataset)
        os.write(ready, b".")
        os.read(waiting, 1)  # until the gate is closed
        try:
            charge(own, 0.3)
        except BudgetExceeded:
            return 3
        return 0

    children = [forked(racer) for _ in range(racers)]
    os.close(ready)
    expected = racers
    while expected and (arrived := os.read(reader, expected)):
        expected -= len(arrived)
    os.close(gate)
    statuses = [ended(child) for child in children]
    os.close(reader)
    os.close(waiting)
    return sorted(OUTCOMES.get(status, "failed") for status in statuses)


def start_together(url: str, dataset: str) -> dict:
    """Eight processes begin the same ledger, in a database that does not exist yet, and charge it."""
    waiting, gate = os.pipe()

    def starter() -> int:
        os.close(gate)
        os.read(waiting, 1)
        charge(Ledger.open(url, dataset=dataset, total=TOTAL), 1 / 32)
        return 0

    children = [forked(starter) for _ in range(8)]
    os.close(gate)
    statuses = [ended(child) for child in children]
    os.close(waiting)
    return {"statuses": statuses, "kept": len(Ledger.open(url, dataset=dataset).entries)}


def decides_before_it_locks() -> None:
    """A mutation: what was read before the lock was taken is what it decides on."""
    true = stores.DatabaseStore.writing

    @contextmanager
    def writing(self):
        page = self.read()
        time.sleep(0.3)
        with true(self) as (_, append):
            yield page, append

    stores.DatabaseStore.writing = writing


def locks_late() -> None:
    """A mutation: SQLite's default, which takes the write lock at the first write."""
    true = stores.DatabaseStore._snapshot

    def slow(self, connection, *, locked=False):
        page = true(self, connection)
        time.sleep(0.3 if locked else 0)
        return page

    stores.DatabaseStore._snapshot = slow
    sqlite.SQLiteDatabase.writing = sqlite.SQLiteDatabase.reading


# --- forks -------------------------------------------------------------------------------------------------------


def outcome(body) -> str:
    """What became of a function: "done", or the name of the error of this library."""
    try:
        body()
    except DPBilevelError as error:
        return type(error).__name__
    return "done"


def outcome_in_a_child(body) -> str:
    """Run a function in a child and return its output."""
    reader, writer = os.pipe()

    def speak() -> None:
        os.write(writer, body().encode())

    child = forked(speak)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        text = answer.read()
    return text if ended(child) == 0 else "failed"


def in_memory() -> dict:
    """Children, a grandchild among them, use a ledger that the parent keeps in memory; so does one of their own."""
    ledger = Ledger(TOTAL)
    receipt = ledger.charge([spent := Run(0.1)], TOTAL, "before the fork")
    uses = {
        "charge": lambda: charge(ledger, 0.9),
        "entries": lambda: ledger.entries,
        "spent": ledger.spent,
        "remaining": ledger.remaining,
        "receipt": lambda: receipt.redeem(spent, 1),
        "own": lambda: charge(Ledger(TOTAL), 0.9),
    }
    found = {name: outcome_in_a_child(lambda use=use: outcome(use)) for name, use in uses.items()}
    found["grandchild"] = outcome_in_a_child(lambda: outcome_in_a_child(lambda: outcome(uses["charge"])))
    found["same number"] = outcome_in_a_child(lambda: outcome_with_number(ledger._store.process[0], uses["charge"]))
    found["shown"] = outcome_in_a_child(lambda: repr(ledger))

    def forgetful() -> str:
        MemoryStore._check_process = lambda self: None
        return outcome(uses["charge"])

    found["mutant"] = outcome_in_a_child(forgetful)
    return found | {"parent": outcome(uses["charge"]), "entries of the parent": len(ledger.entries)}


def outcome_with_number(number: int, body) -> str:
    """The outcome in a process that was given the number of the one that it descends from."""
    os.getpid = lambda: number
    return outcome(body)


def within_a_transaction(url: str) -> dict:
    """Fork while another thread has a transaction open, and again when it is over."""
    ledger = Ledger.open(url, dataset="forked within", total=TOTAL)
    opened, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._store.writing():
            opened.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    opened.wait(60)
    within = outcome_in_a_child(lambda: outcome(lambda: charge(ledger, 0.1)))
    over.set()
    thread.join()
    return {"within": within, "after": outcome_in_a_child(lambda: outcome(lambda: charge(ledger, 0.1)))}


# --- kills -------------------------------------------------------------------------------------------------------


def kill_self(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_spender(url: str, dataset: str, delay: float) -> dict:
    """A child charges small slices and says so after each; it is killed, and the ledger must know at least as much."""
    before = len(Ledger.open(url, dataset=dataset).entries)
    reader, writer = os.pipe()

    def spender() -> int:
        ledger = Ledger.open(url, dataset=dataset)
        while True:
            charge(ledger, 1e-4)
            os.write(writer, b".")

    child = forked(spender)
    os.close(writer)
    os.read(reader, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    ended(child)
    acknowledged = 1
    while more := os.read(reader, 4096):
        acknowledged += len(more)
    os.close(reader)
    return {"acknowledged": acknowledged, "kept": len(Ledger.open(url, dataset=dataset).entries) - before}


MOMENTS = {
    "before the lock": (sqlite.SQLiteDatabase, "writing"),
    "before the entry": (stores, "add_entry"),
    "after the entry": (stores.DatabaseStore, "_snapshot"),  # what was written is read back
    "after the commit": (stores.DatabaseStore, "writing"),
}


def killed_at(url: str, dataset: str, moment: str) -> int:
    """How many entries a charge leaves that is killed at a moment of it."""
    ledger = Ledger.open(url, dataset=dataset)
    before = len(ledger.entries)

    def body() -> None:
        home, name = MOMENTS[moment]
        true, calls = getattr(home, name), []

        @contextmanager
        def late(self):
            with true(self) as opened:
                yield opened
            kill_self()

        def second(self, connection, *, locked=False):
            calls.append(locked)
            return kill_self() if len(calls) == 2 else true(self, connection, locked=locked)

        setattr(home, name, {"after the commit": late, "after the entry": second}.get(moment, kill_self))
        charge(ledger, 1e-4)

    assert ended(forked(body)) == -signal.SIGKILL
    return len(ledger.entries) - before


def killed_while_beginning(folder: Path, moment: str) -> bool:
    """Whether a ledger can be created after a process was killed while creating it."""
    url = f"sqlite:///{folder}/{moment.replace(' ', '-')}.db"

    def body() -> None:
        if moment == "before the link":
            os.link = kill_self
        elif moment == "after the link":
            sqlite._sync_folder = kill_self
        elif moment == "within the tables":
            sqlite.make = kill_self
        else:
            stores.add_dataset = kill_self
        Ledger.open(url, dataset="created", total=TOTAL)

    assert ended(forked(body)) == -signal.SIGKILL
    return Ledger.open(url, dataset="created", total=TOTAL).entries == ()


BEGINNINGS = ("within the tables", "before the link", "after the link", "before the data set")


def all_races(url: str, races: int) -> dict:
    """Races that must be fair, and races of mutations."""
    found = {
        "start": start_together(url, "together"),
        "races": [race(url, f"race {number}") for number in range(races)],
        "inherited": race(url, "inherited", 6, inherited=True),
        "decides before it locks": race(url, "mutant of decisions", 4, mutant=decides_before_it_locks),
    }
    if url.startswith("sqlite"):
        found["locks late"] = race(url, "mutant of locks", 4, mutant=locks_late)
        found["memory"], found["transaction"] = in_memory(), within_a_transaction(url)
    return found


def all_kills(url: str, folder: Path, kills: int) -> dict:
    """Processes that are killed at any moment, at chosen moments of a charge, and while a ledger is created."""
    Ledger.open(url, dataset="killed", total=TOTAL)
    delays = random.Random(0)
    return {
        "kills": [killed_spender(url, "killed", delays.uniform(0, 0.05)) for _ in range(kills)],
        "moments": {moment: killed_at(url, "killed", moment) for moment in MOMENTS},
        "beginnings": {moment: killed_while_beginning(folder, moment) for moment in BEGINNINGS},
    }


def happened(url: str, folder: Path, *, races: int = 0, kills: int = 0) -> dict:
    """Run this file as a program and return what it saw."""
    return _ran(url, folder, races, kills)


def _ran(url: str, folder: Path, *arguments: object):
    sources = [str(Path(stores.__file__).parents[3]), *sys.path]
    done = subprocess.run(
        [sys.executable, __file__, url, str(folder), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def raced(url: str, folder: Path, races: int, first: int = 0) -> list[list[str]]:
    """Fair races alone, in a program of their own; numbered from ``first``, because each has a data set of its own."""
    return _ran(url, folder, "races", races, first)


def main() -> None:
    if sys.argv[3] == "races":
        url, races, first = sys.argv[1], int(sys.argv[4]), int(sys.argv[5])
        print(json.dumps([race(url, f"race {number}") for number in range(first, first + races)]))
        return
    url, folder, races, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    found = (all_races(url, races) if races else {}) | (all_kills(url, folder, kills) if kills else {})
    print(json.dumps(found | {"jax": "jax" in sys.modules}))


if __name__ == "__main__":
    main()
