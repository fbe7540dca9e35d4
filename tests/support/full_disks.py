"""Runs of the command line whose disk fails or fills up, at every write that they make.

One run is fitted; the others return what it released, after a charge of their own, so that a hundred take seconds. What
goes through `dpbilevel.foundation.files` is counted, step by step, and so is the charge. At one step the disk fails
("once"), it fails from there on ("broken"), or all space that is left on it is taken ("full", on a real file system, if
one can be mounted). Whatever happens: nothing is lost that was charged for, and a run that says that all is well is
whole.
"""

import builtins
import contextlib
import errno
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from support.cli_data import write_people
from support.ledger_racers import TOTAL, Run

import dpbilevel as dpb
from dpbilevel.cli import app, tuning
from dpbilevel.foundation import files
from dpbilevel.report import writing
from dpbilevel.report.html import html_report
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run, run_text

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "0.01", "--delta", "1e-9")
PAGES = {"report.html", "report.md", "run.json"}
SIZE = 600_000  # bytes of the small file system: enough for a run, and for a ledger


def _page(path: Path) -> str:
    """A file of a run, without the number of its entry in the ledger: many runs share the ledger here."""
    return re.sub(r"entry \d+ of the ledger.*?\(at delta [^)]*\)", "an entry of the ledger", path.read_text("utf-8"))


class Disk:
    """A disk that counts steps and misbehaves at one of them."""

    def __init__(self, folder: Path, at: int, misbehave: Callable[[], None], *, lasting: bool = False) -> None:
        self._folder, self._at, self._misbehave, self._lasting = folder, at, misbehave, lasting
        self.steps = 0

    def step(self, path: Any = None) -> None:
        """One more step, on a file of the folder or on any."""
        if path is not None and not str(path).startswith(str(self._folder)):
            return
        self.steps += 1
        if self.steps == self._at or (self._lasting and self.steps > self._at):
            self._misbehave()

    def opened(self, path: Any, *arguments: Any, **options: Any) -> Any:
        self.step(path)
        return _Wrapped(builtins.open(path, *arguments, **options), self, path)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Everything that `dpbilevel.foundation.files` does to this disk, and the charge, are steps."""
        fsync, replace, allocate, mkdir = os.fsync, os.replace, os.posix_fallocate, Path.mkdir
        charge = dpb.Ledger.charge

        def synced(handle: int) -> None:
            self.step(os.readlink(f"/proc/self/fd/{handle}"))
            fsync(handle)

        def replaced(source: Any, target: Any) -> None:
            self.step(target)
            replace(source, target)

        def allocated(handle: int, first: int, size: int) -> None:
            self.step(os.readlink(f"/proc/self/fd/{handle}"))
            allocate(handle, first, size)

        def made(path: Path, *arguments: Any, **options: Any) -> None:
            self.step(path)
            mkdir(path, *arguments, **options)

        def charged(*arguments: Any, **options: Any) -> Any:
            if not self._lasting and self._misbehave is not _fail:
                self.step()  # a database writes by itself: only its space can be limited
            return charge(*arguments, **options)

        with (
            mock.patch.object(files, "open", self.opened, create=True),
            mock.patch.object(os, "fsync", synced),
            mock.patch.object(os, "replace", replaced),
            mock.patch.object(os, "posix_fallocate", allocated),
            mock.patch.object(Path, "mkdir", made),
            mock.patch.object(dpb.Ledger, "charge", charged),
        ):
            yield


class _Wrapped:
    """A file whose writes are steps; half of a write arrives before one that fails."""

    def __init__(self, file: Any, disk: Disk, path: Any) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, content: Any) -> int:
        half = len(content) // 2
        done: int = self._file.write(content[:half]) or 0
        self._disk.step(self._path)
        return done + int(self._file.write(content[half:]) or 0)

    def flush(self) -> None:
        self._disk.step(self._path)
        self._file.flush()

    def truncate(self, size: int) -> None:
        self._disk.step(self._path)
        self._file.truncate(size)

    def fileno(self) -> int:
        return int(self._file.fileno())

    def __enter__(self) -> "_Wrapped":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fill(folder: Path) -> None:
    """Take all space that is left."""
    with contextlib.suppress(OSError), builtins.open(folder / "filler", "ab", buffering=0) as filler:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while filler.write(bytes(size)) == size:
                    pass


# --- runs --------------------------------------------------------------------------------------------------------


class Runs:
    """Runs in a folder of their own, all of which release what the first did.

    Args:
        home: where the data and the ledger are.
        disk: where runs are written to.
    """

    def __init__(self, home: Path, disk: Path) -> None:
        self.home, self.disk, self.number = home, disk, 0
        write_people(home, rows=200)
        self.url = f"sqlite:///{home}/people.db"
        dpb.Ledger.open(self.url, dataset="people", total=dpb.Budget(1e3, 0.5), composition="basic")
        self.fitted: dict[str, Any] = {}
        self.drawn: dict[str, str] = {}
        (self.home / "elsewhere").mkdir(exist_ok=True)
        first = self.run(Disk(disk, 0, _fail))
        assert first["code"] == 0, first
        assert (disk / "run" / "run.json").stat().st_size < self.space, "too little space is taken before the charge"
        self.pages = {name: _page(disk / "run" / name) for name in PAGES}
        self.steps = first["steps"]

    def _fit(self, model: Any, prepared: Any, checkpoint: Any) -> None:
        if not self.fitted:
            TRUE_FIT(model, prepared, checkpoint)
            self.space = model.ledger._folder.space
            self.fitted = {name: value for name, value in vars(model).items() if name.endswith("_")}
            return
        planned = prepared.planned
        model.ledger.charge(planned.releases, planned.budget, "the same again")
        vars(model).update(self.fitted)

    def _snapshot(self, review: Review) -> str:
        """The same page for the same content: drawing it is what takes time."""
        content = run_text(review)
        if content not in self.drawn:
            self.drawn[content] = html_report(review)
        return self.drawn[content]

    def run(self, disk: Disk) -> dict[str, Any]:
        """One run of `dpbilevel tune` to the disk: its exit code, what it said, what was charged and what is left."""
        before = self._entries()
        with disk.used():
            code, said = self._command(*TUNE, "--ledger", "people.db", "--out", str(self.disk / "run"), "--quiet")
        (self.disk / "filler").unlink(missing_ok=True)
        return {"code": code, "said": said, "charged": self._entries() - before, "steps": disk.steps, **self._left()}

    def _command(self, *arguments: str) -> tuple[int, str]:
        """A command in this process, at a fixed time, with temporary files where they can be looked at."""
        spoken, here = io.StringIO(), os.getcwd()
        os.chdir(self.home)
        try:
            with (
                contextlib.redirect_stderr(spoken),
                mock.patch.object(sys, "argv", ["dpbilevel", *arguments]),
                mock.patch.dict(os.environ, {"SOURCE_DATE_EPOCH": "0"}),
                mock.patch.object(tempfile, "tempdir", str(self.home / "elsewhere")),
                mock.patch.object(tuning, "_fit", self._fit),
                mock.patch.dict(writing._KINDS, {".html": self._snapshot}),
            ):
                app.main()
        except SystemExit as ended:
            return int(ended.code or 0), spoken.getvalue()
        finally:
            os.chdir(here)
        raise AssertionError("a command ends with an exit code")

    def _entries(self) -> int:
        return len(dpb.Ledger.open(self.url, dataset="people").entries)

    def _left(self) -> dict[str, Any]:
        folder = self.disk / "run"
        there = sorted(path.name for path in folder.iterdir()) if folder.exists() else None
        return {"files": there, "released": _readable(folder / "run.json")}

    def faults(self, found: dict[str, Any]) -> list[str]:
        """What is wrong with how a run ended; looks at its folder, reports on it, and clears it away."""
        wrong, folder = [], self.disk / "run"
        if "should not happen" in found["said"] or "Traceback" in found["said"]:
            wrong.append("an error that nobody foresaw")
        if "could not be read" in found["said"]:  # a ledger on the same disk: it counts as charged, and nothing is lost
            if found["code"] != 4 or found["charged"] not in (0, 1) or found["files"] != ["run.json"]:
                wrong.append("a run whose ledger cannot be asked did not count as charged")
        elif found["charged"] == 0:
            if found["code"] != 2 or found["files"] is not None:
                wrong.append("a run that was not charged left something, or did not say so")
        elif found["charged"] != 1:
            wrong.append("charged more than once")
        elif found["code"] not in (0, 4):
            wrong.append(f"ended with {found['code']}")
        else:
            if not found["released"]:
                wrong += self._moved(found["said"], folder)
            if found["code"] == 0 and set(found["files"] or ()) != PAGES:
                wrong.append("said that all is well, and files are missing or too many")
            if found["code"] == 4 and f"dpbilevel report {folder}" not in found["said"]:
                wrong.append("does not say how to go on")
            code, said = self._command("report", str(folder), "--quiet")
            if code != 0 or any(_page(folder / name) != text for name, text in self.pages.items()):
                wrong.append(f"`report` does not finish it: {said}")
        stray = {*(found["files"] or ())} - PAGES
        if stray:
            wrong.append(f"left {sorted(stray)}")
        for path in folder.iterdir() if folder.exists() else ():
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        return wrong

    def _moved(self, said: str, folder: Path) -> list[str]:
        """Do what the command says: copy what was saved elsewhere."""
        named = re.search(r"are in (\S+): copy that file to (\S+),", said)
        if named is None or not _readable(Path(named[1])) or Path(named[2]) != folder / "run.json":
            return ["lost what it had released"]
        (folder / "run.json").write_text(Path(named[1]).read_text("utf-8"), "utf-8")
        return []


TRUE_FIT = tuning._fit


def _readable(path: Path) -> bool:
    try:
        return bool(read_run(path).solution.x is not None)
    except (OSError, ValueError):
        return False


# --- every step --------------------------------------------------------------------------------------------------


def injected(home: Path, mode: str) -> tuple[int, dict[str, list[str]]]:
    """Let the disk fail at every step, "once" or "broken" from there on: the number of runs, and faults by step."""
    disk = home / "disk"
    disk.mkdir(parents=True)
    runs = Runs(home, disk)
    return _every_step(runs, lambda at: Disk(disk, at, _fail, lasting=mode == "broken"))


def filled(home: Path) -> tuple[int, dict[str, list[str]]]:
    """Fill a small file system before every step of a run, and look whether runs fit into it at all sizes."""
    disk = home / "disk"
    disk.mkdir(parents=True)
    with mounted(disk, SIZE):
        runs = Runs(disk, disk)
        return _every_step(runs, lambda at: Disk(disk, at, lambda: _fill(disk)))


def charges_on_little_space(folder: Path) -> list[str]:
    """What became of charges to a ledger on a small disk with more and more room: "charged", "refused", or at odds."""
    outcomes = []
    with mounted(folder, SIZE):
        ledger = dpb.Ledger.open(
            f"sqlite:///{folder}/l.db", dataset="a", total=dpb.Budget(1e3, 0.5), composition="basic"
        )
        for pages in range(40):
            _fill(folder)
            os.truncate(folder / "filler", max(0, (folder / "filler").stat().st_size - 4096 * pages))
            try:
                ledger.charge([Run(0.1)], TOTAL, "a run")
                outcome = "charged"
            except dpb.LedgerUnavailable:
                outcome = "refused"
            (folder / "filler").unlink()
            kept = len(ledger.entries) - outcomes.count("charged")
            outcomes.append(outcome if kept == (outcome == "charged") else f"{outcome}, and {kept} kept")
    return outcomes


def _every_step(runs: Runs, disk: Callable[[int], Disk]) -> tuple[int, dict[str, list[str]]]:
    runs.faults(runs.run(Disk(runs.disk, 0, _fail)))  # clears the first run away
    wrong, at, ended = {}, 0, False
    while not ended:
        at += 1
        found = runs.run(disk(at))
        ended = found["steps"] < at
        faults = runs.faults(found)
        if faults:
            wrong[f"step {at}"] = [*faults, found["said"]]
    return at, wrong


@contextlib.contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A small file system in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


def reason_to_skip() -> str | None:
    """Why no small file system can be mounted here; None where one can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "only root on Linux can mount a small file system"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), 4096):
                return None
        except (OSError, subprocess.SubprocessError):
            return "no file system can be mounted here"
