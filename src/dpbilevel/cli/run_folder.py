"""The output folder of a run: created before the charge, and always with the state of the run.

`run.json` has the status "running" from before the charge. It is replaced by the finished run, or by the status
"aborted". If it says "running" and no process runs it, its epsilon counts as spent.

Released values are paid for and must not be lost. Disk space for `run.json` is reserved before the charge, and released
values are written to it first. Reports are written afterwards, and `dpbilevel report` can write them again at any time.
If writing to the folder still fails, released values are saved in a temporary folder, and the command prints its path.

Until it has finished, a run has a checkpoint there and the options that it was started with, from which it can be
resumed. They are removed once all released values are in a file.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpbilevel.checkpoint.file import exclusive
from dpbilevel.cli.ending import RunFailed, describe_unexpected
from dpbilevel.cli.signals import NOTHING_SPENT, SIGNALS
from dpbilevel.errors import DPBilevelError, InvalidArgument
from dpbilevel.foundation.files import Reserved, write_atomically
from dpbilevel.privacy.accounting import Chargeable
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import run_text, unfinished_text
from dpbilevel.report.writing import write_report
from dpbilevel.solution.solution import Solution

RUN, PAGE, TEXT, SOLUTION = "run.json", "report.html", "report.md", "solution.json"
SCORES = "evaluation.json"  # of `dpbilevel evaluate`
CHECKPOINT, OPTIONS = ".checkpoint", ".options.json"
_SPACE = ".run.json.space"
_BEFORE = {RUN: ".run.json.before", CHECKPOINT: ".checkpoint.before", OPTIONS: ".options.json.before"}
_LOCK = f".{CHECKPOINT}.lock"
_FILES = (RUN, PAGE, TEXT, SOLUTION, SCORES, f".{SCORES}.space", CHECKPOINT, OPTIONS, _SPACE, *_BEFORE.values(), _LOCK)
_PART = re.compile(rf"\.({'|'.join(map(re.escape, _FILES))})\.\d+\.part")  # left by a process that was killed
_SPENT = "its epsilon is charged and counts as spent"


@dataclass
class RunFolder:
    """The output folder of a run, and its state.

    Attributes:
        path: the folder.
        budget: the budget of the run.
        facts, command, created: as in `Review`.
        space: maximum size of the finished run file, in bytes.
        options: text of the file from which a run is resumed, beside its checkpoint; None for a run without one.
        resumed: whether the folder has this run already, which was interrupted.
        solution: the released values, once they are known.
    """

    path: Path
    budget: Budget
    facts: Mapping[str, str]
    command: str
    created: str
    space: int
    options: str | None = None
    resumed: bool = False
    solution: Solution | None = None
    _reserved: Reserved | None = field(default=None, init=False, repr=False)
    _made: bool = field(default=False, init=False, repr=False)

    @property
    def checkpoint(self) -> Path | None:
        """The path of the run's checkpoint; None for a run without one."""
        return None if self.options is None else self.path / CHECKPOINT

    def begin(self) -> None:
        """Create the folder, reserve space, and write the status "running"; restores everything if that fails.

        An earlier run that will be replaced is only moved aside: this run may still be refused.
        """
        self._made = not self.path.exists()
        try:
            if not self.resumed:
                self.path.mkdir(parents=True, exist_ok=True)
                self._put_aside()
                if self.options is not None:
                    write_atomically(self.path / OPTIONS, self.options, owner_only=True)
            self._reserved = Reserved(self.path / _SPACE, self.space)
            write_atomically(self.path / RUN, self._unfinished("running"))
        except OSError as error:
            self.withdraw()
            raise InvalidArgument(
                f"--out {self.path}: cannot be written ({error.strerror}); a run needs {self.space / 1e6:.1f} MB "
                "there; free some space or choose another folder"
            ) from None

    def withdraw(self) -> str:
        """Undo `begin`: nothing was charged."""
        if self.resumed:
            if self._reserved is not None:
                self._reserved.release()
            return "Nothing more was spent."
        with contextlib.suppress(OSError):
            if self._made:
                shutil.rmtree(self.path)
            else:
                self._remove(RUN, _SPACE, CHECKPOINT, OPTIONS, _LOCK)
                for name, before in _BEFORE.items():
                    if (self.path / before).exists():
                        os.replace(self.path / before, self.path / name)
        return NOTHING_SPENT

    def replace_earlier(self) -> None:
        """Remove the files of an earlier run: this run is charged now."""
        with contextlib.suppress(OSError):
            self._remove(*_BEFORE.values(), PAGE, TEXT, SOLUTION, SCORES)

    def abort(self) -> str:
        """Write that the run was interrupted after its charge; returns the message, with the way to resume."""
        try:
            self._write(self._unfinished("aborted"))
        except OSError as error:
            marked = f"{self.path / RUN} could not be written ({error.strerror}) and still says that it is running"
        else:
            marked = f"{self.path / RUN} says that it was aborted"
        return f"{_SPENT}; {marked}{self._how_to_resume()}"

    def finish(self, review: Review) -> None:
        """Write the run file, which completes the run, and then its reports."""
        text = run_text(review)
        try:
            self._write(text)
        except OSError as error:
            self._write_elsewhere(text, error)
        remove_checkpoint(self.path)
        try:
            write_pages(review, self.path)
        except Exception as error:
            raise RunFailed(
                f"the run finished, and {self.path / RUN} contains all released values and the model; its report "
                f"could not be written ({_reason(error)}). Write it with: dpbilevel report {self.path}"
            ) from None

    def save_solution(self) -> str:
        """Save the released values if the run file cannot be created; returns the message."""
        if self.solution is None:
            return ""
        for make in (lambda: self.path, _elsewhere):
            with contextlib.suppress(OSError):
                path = self.solution.save(make() / SOLUTION)
                remove_checkpoint(self.path)
                return f"; all released values are in {path}, which dpb.Solution.load reads"
        return ""

    def _how_to_resume(self) -> str:
        checkpoint = self.checkpoint
        if checkpoint is None or not checkpoint.exists():
            remove_checkpoint(self.path)  # options alone are of no use
            return ""
        words = self.command.split()
        started = words[: 5 if words[1] == "launch" else 2]  # dpbilevel launch --processes N tune
        return f"; resume it, at no further cost, with: {' '.join(started)} --resume {self.path}"

    def _put_aside(self) -> None:
        """Put an earlier run aside; one that was put aside by a run that was then killed stays there instead."""
        taken = (self.path / _BEFORE[RUN]).exists()
        for name, before in _BEFORE.items():
            if taken:
                self._remove(name)
            elif (self.path / name).exists():
                os.replace(self.path / name, self.path / before)

    def _remove(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        """Write the run file: into the reserved space, or as a new file if that fails."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            with contextlib.suppress(OSError):
                reserved.write(self.path / RUN, text)
                return
            reserved.release()
        write_atomically(self.path / RUN, text)

    def _write_elsewhere(self, text: str, error: OSError) -> None:
        failed = f"{self.path / RUN} could not be written ({error.strerror}); the run finished, and {_SPENT}"
        try:
            other = write_atomically(_elsewhere() / RUN, text)
        except OSError:
            raise RunFailed(
                f"{failed}, but no folder could be found to save its results in{self._how_to_resume()}"
            ) from None
        remove_checkpoint(self.path)
        raise RunFailed(
            f"{failed}. All released values and the model are in {other}: copy that file to {self.path / RUN}, then "
            f"write its report with: dpbilevel report {self.path}"
        )

    def _unfinished(self, status: Any) -> str:
        return unfinished_text(
            status=status, budget=self.budget, facts=self.facts, command=self.command, created=self.created
        )


def write_pages(review: Review, folder: Path) -> None:
    """Write the report as HTML and as Markdown."""
    write_report(review, folder / PAGE)
    write_report(review, folder / TEXT)


def remove_checkpoint(folder: Path) -> None:
    """Remove what a run is resumed from: everything that it released is in a file."""
    for name in (CHECKPOINT, OPTIONS):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Raise if a run cannot be written to a folder; nothing is created yet."""
    if path.is_file():
        raise InvalidArgument(f"--out {path}: is a file; name a folder for the run")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise InvalidArgument(f"--out {path}: already exists; choose another folder, or pass --force")
        names = [entry.name for entry in path.iterdir()]
        others = sorted(name for name in names if name not in _FILES and not _PART.fullmatch(name))
        if others:
            raise InvalidArgument(
                f"--out {path}: contains {others[0]!r}, which is not a file of a run; choose another folder"
            )
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidArgument(f"--out {path}: is not writable; choose another folder")
    if (path / _LOCK).exists():
        with exclusive(path.absolute() / CHECKPOINT):  # raises while another process runs the run that is there
            pass


class RunLedger(Ledger):
    """The ledger of a run on the command line: a signal never interrupts its charge, and is handled after it."""

    def __init__(self, ledger: Ledger, folder: RunFolder, also: Sequence[Chargeable], unit: str | None) -> None:
        self._store, self._folder, self._also, self._unit = ledger._store, folder, also, unit
        self.receipt: Receipt | None = None
        self.description = ""

    def charge(
        self,
        releases: Sequence[Chargeable],
        budget: Budget,
        description: str,
        *,
        once: bool = False,
        rows_per_unit: int | None = None,
        unit: str | None = None,
    ) -> Receipt:
        with SIGNALS.held():
            if self._folder.resumed:  # not earlier: its checkpoint is locked now, and has refused nothing
                self._folder.begin()
            receipt = self.receipt = super().charge(
                [*releases, *self._also],
                budget,
                description,
                once=once,
                rows_per_unit=rows_per_unit,
                unit=unit or self._unit,
            )
            self.description = description
            SIGNALS.ending = lambda: f"The run had started: {self._folder.abort()}."
            self._folder.replace_earlier()
        return receipt


class FollowingLedger(Ledger):
    """The ledger of a process of a job that is not the first: it charges nothing, and follows the first one's."""

    def __init__(self, budget: Budget, also: Sequence[Chargeable]) -> None:
        super().__init__(budget)
        self._also = also
        self.receipt: Receipt | None = None

    def follow(self, releases: Sequence[Chargeable]) -> Receipt:
        self.receipt = super().follow([*releases, *self._also])
        return self.receipt


class HeldLedger(Ledger):
    """The ledger of a command without a run folder: a signal never interrupts its charge, and is handled after it.

    Args:
        ledger: the ledger to charge.
        unit: what a unit is; None if rows are protected.
        ending: called if a signal ends the command after the charge; returns the message.
    """

    def __init__(self, ledger: Ledger, unit: str | None, ending: Callable[[], str]) -> None:
        self._store, self._unit, self._ending = ledger._store, unit, ending
        self.receipt: Receipt | None = None

    def charge(self, *arguments: Any, **options: Any) -> Receipt:
        with SIGNALS.held():
            receipt = self.receipt = super().charge(*arguments, **{"unit": self._unit} | options)
            SIGNALS.ending = self._ending
        return receipt


@contextlib.contextmanager
def running(
    folder: RunFolder, ledger: Ledger, also: Sequence[Chargeable] = (), unit: str | None = None
) -> Iterator["RunLedger"]:
    """Create the folder and maintain its state: removed if nothing was charged, "aborted" if the run fails later.

    Yields the ledger to charge, which charges the releases ``also`` together with the run, and names its unit. The body
    must end with `finished`.
    """
    before, own = len(ledger.entries), RunLedger(ledger, folder, also, unit)
    with SIGNALS.held():
        if not folder.resumed:
            folder.begin()
        SIGNALS.ending = folder.withdraw
    try:
        yield own
    except RunFailed:  # raised by `finished`, with a complete message
        raise
    except BaseException as error:
        with SIGNALS.held():
            charged = own.receipt is not None or (False if folder.resumed else _charged(ledger, before))
            if charged is False:
                folder.withdraw()
                SIGNALS.ending = lambda: NOTHING_SPENT
                raise
            stands = folder.abort() + folder.save_solution()
            if charged is None:
                stands += ". The ledger could not be read to confirm this: check it with `dpbilevel ledger show`"
            SIGNALS.ending = lambda: f"The run had started: {stands}."
        raise RunFailed(f"the run failed ({_reason(error)}); {stands}") from None


def finished(folder: RunFolder, made: Callable[[], Review]) -> Review:
    """Create and write the review of a finished run; a signal is handled after that."""
    with SIGNALS.held():
        review = made()
        SIGNALS.ending = lambda: "The run had finished; its epsilon is spent."
        folder.finish(review)
        SIGNALS.ending = lambda: (
            f"The run had finished: {folder.path} contains the released values; its epsilon is spent."
        )
    return review


def _charged(ledger: Ledger, before: int) -> bool | None:
    """Whether a ledger has more entries than before; None if it cannot be read, which counts as charged."""
    try:
        return len(ledger.entries) > before
    except DPBilevelError:
        return None


def _reason(error: BaseException) -> str:
    """Why a run failed: messages of ours or the system's, without records; other errors by type and place alone."""
    if isinstance(error, DPBilevelError):
        return str(error)
    return error.strerror or "no reason given" if isinstance(error, OSError) else describe_unexpected(error)


def _elsewhere() -> Path:
    return Path(tempfile.mkdtemp(prefix="dpbilevel-run-"))


def now() -> str:
    """The time in UTC, to the second; SOURCE_DATE_EPOCH overrides it, as in other tools."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    time = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
