"""The folder that a run leaves behind: made before the charge, and never without saying how the run ended.

`run.json` says "running" from before the charge on; it becomes the finished run, or says "aborted". Whoever finds it
"running" and nobody running it knows that the epsilon counts as spent.

Nothing that was paid for is lost where that can be helped. Space for `run.json` is taken before the charge, and
released values are written to it first; pages come after it, and `dpbilevel report` can write them at any time. Where
the folder fails all the same, released values go to a temporary folder, and the command says where they are.

Until it has finished, a run has a checkpoint there, and beside it the options that it was started with, from which it
can be resumed. They are removed once everything that was released is in a file.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpbilevel.checkpoint.file import exclusive
from dpbilevel.cli.ending import RunFailed, unforeseen
from dpbilevel.cli.signals import NOTHING_SPENT, SIGNALS
from dpbilevel.errors import DPBilevelError, InvalidArgument
from dpbilevel.foundation.files import Reserved, write_atomically
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import run_text, unfinished_text
from dpbilevel.report.writing import write_report
from dpbilevel.solution.solution import Solution

RUN, PAGE, TEXT, SOLUTION = "run.json", "report.html", "report.md", "solution.json"
CHECKPOINT, OPTIONS = ".checkpoint", ".options.json"
_SPACE = ".run.json.space"
_BEFORE = {RUN: ".run.json.before", CHECKPOINT: ".checkpoint.before", OPTIONS: ".options.json.before"}
_LOCK = f".{CHECKPOINT}.lock"
_OURS = (RUN, PAGE, TEXT, SOLUTION, CHECKPOINT, OPTIONS, _SPACE, *_BEFORE.values(), _LOCK)
_PART = re.compile(rf"\.({'|'.join(map(re.escape, _OURS))})\.\d+\.part")  # left by a process that was killed
_SPENT = "its epsilon is charged and counts as spent"


@dataclass
class RunFolder:
    """Where a run writes, and what is said of it in every state.

    Attributes:
        path: the folder.
        budget: what the run may spend.
        facts, command, created: as in `Review`.
        space: bytes that the finished run file may need, at most.
        options: text of the file that a run is resumed from, beside its checkpoint; None for a run without one.
        resumed: whether the folder has this run already, which was interrupted.
        solution: what the run released, from the moment that it is known.
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
        """Make the folder, take its space, and say that the run is running; raises and leaves all as it was otherwise.

        An earlier run that is to be replaced is only put aside: this one may yet be refused.
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
                "there, so make room or choose another folder"
            ) from None

    def withdraw(self) -> str:
        """Undo what `begin` did: nothing was charged."""
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
        """Remove what an earlier run left: this one is charged, and the folder is its own."""
        with contextlib.suppress(OSError):
            self._remove(*_BEFORE.values(), PAGE, TEXT, SOLUTION)

    def abort(self) -> str:
        """Say that the run was interrupted after its charge, and return that for people, and how it is resumed."""
        try:
            self._write(self._unfinished("aborted"))
        except OSError as error:
            marked = f"{self.path / RUN} could not be written ({error.strerror}) and still says that it is running"
        else:
            marked = f"{self.path / RUN} says that it was aborted"
        return f"{_SPENT}; {marked}{self._how_to_resume()}"

    def finish(self, review: Review) -> None:
        """Write the run file, which makes it a finished run, and then its pages."""
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
                f"the run finished, and {self.path / RUN} holds all that it released, the model included; its report "
                f"could not be written ({_reason(error)}). Write it with: dpbilevel report {self.path}"
            ) from None

    def save_solution(self) -> str:
        """Write what was released where the run file cannot be made of it; returns where it is, for people."""
        if self.solution is None:
            return ""
        for make in (lambda: self.path, _elsewhere):
            with contextlib.suppress(OSError):
                path = self.solution.save(make() / SOLUTION)
                remove_checkpoint(self.path)
                return f"; all that it released is in {path}, which dpb.Solution.load reads"
        return ""

    def _how_to_resume(self) -> str:
        checkpoint, name = self.checkpoint, self.command.split()[1]
        if checkpoint is None or not checkpoint.exists():
            remove_checkpoint(self.path)  # options alone are of no use
            return ""
        return f"; resume it, at no further cost, with: dpbilevel {name} --resume {self.path}"

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
        """Put a text into the run file: into the space that was taken for it, or else by the usual way."""
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
            raise RunFailed(f"{failed}, but there is no folder to save its results in{self._how_to_resume()}") from None
        remove_checkpoint(self.path)
        raise RunFailed(
            f"{failed}. All that it released, the model included, is in {other}: copy it to {self.path / RUN}, then "
            f"write its report with: dpbilevel report {self.path}"
        )

    def _unfinished(self, status: Any) -> str:
        return unfinished_text(
            status=status, budget=self.budget, facts=self.facts, command=self.command, created=self.created
        )


def write_pages(review: Review, folder: Path) -> None:
    """The report as a page and as text."""
    write_report(review, folder / PAGE)
    write_report(review, folder / TEXT)


def remove_checkpoint(folder: Path) -> None:
    """Remove what a run is resumed from: everything that it released is in a file."""
    for name in (CHECKPOINT, OPTIONS):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Raise where a run may not be written to a folder; nothing is made yet."""
    if path.is_file():
        raise InvalidArgument(f"--out {path}: is a file; name a folder for the run")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise InvalidArgument(f"--out {path}: is there already; choose another folder, or pass --force")
        names = [entry.name for entry in path.iterdir()]
        strangers = sorted(name for name in names if name not in _OURS and not _PART.fullmatch(name))
        if strangers:
            raise InvalidArgument(f"--out {path}: has {strangers[0]!r}, which no run wrote; choose another folder")
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidArgument(f"--out {path}: may not be written; choose a folder of your own")
    if (path / _LOCK).exists():
        with exclusive(path.absolute() / CHECKPOINT):  # raises while another process runs the run that is there
            pass


class _RunLedger(Ledger):
    """The ledger of a run on the command line: a signal does not cut its charge, and finds the run charged after it."""

    def __init__(self, ledger: Ledger, folder: RunFolder) -> None:
        self._store, self._folder = ledger._store, folder
        self.receipt: Receipt | None = None

    def charge(self, *arguments: Any, **options: Any) -> Receipt:
        with SIGNALS.held():
            if self._folder.resumed:  # not earlier: its checkpoint is locked now, and has refused nothing
                self._folder.begin()
            receipt = self.receipt = super().charge(*arguments, **options)
            SIGNALS.ending = lambda: f"The run had begun: {self._folder.abort()}."
            self._folder.replace_earlier()
        return receipt


@contextlib.contextmanager
def running(folder: RunFolder, ledger: Ledger) -> Iterator[Ledger]:
    """Make the folder and keep its state right: nothing is left where nothing was charged, "aborted" otherwise.

    Yields the ledger to charge. What is done within must end with `finished`.
    """
    before, own = len(ledger.entries), _RunLedger(ledger, folder)
    with SIGNALS.held():
        if not folder.resumed:
            folder.begin()
        SIGNALS.ending = folder.withdraw
    try:
        yield own
    except RunFailed:  # by `finished`, which has said what there is
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
                stands += ". Its ledger cannot be asked whether that is so: look at it with `dpbilevel ledger show`"
            SIGNALS.ending = lambda: f"The run had begun: {stands}."
        raise RunFailed(f"the run failed ({_reason(error)}); {stands}") from None


def finished(folder: RunFolder, made: Callable[[], Review]) -> Review:
    """Make the review of a run that has released everything, and write it; a signal waits until that is done."""
    with SIGNALS.held():
        review = made()
        SIGNALS.ending = lambda: "The run had finished; its epsilon is spent."
        folder.finish(review)
        SIGNALS.ending = lambda: f"The run had finished: {folder.path} has what it released; its epsilon is spent."
    return review


def _charged(ledger: Ledger, before: int) -> bool | None:
    """Whether a ledger has more entries than before; None where it cannot be asked, and then it counts as charged."""
    try:
        return len(ledger.entries) > before
    except DPBilevelError:
        return None


def _reason(error: BaseException) -> str:
    """Why a run failed: in our words or the system's, which hold no record; other errors by kind and place alone."""
    if isinstance(error, DPBilevelError):
        return str(error)
    return error.strerror or "no reason given" if isinstance(error, OSError) else unforeseen(error)


def _elsewhere() -> Path:
    return Path(tempfile.mkdtemp(prefix="dpbilevel-run-"))


def now() -> str:
    """The time in UTC, to the second; SOURCE_DATE_EPOCH fixes it, as in other tools that make files."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    time = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
