"""The folder that a run leaves behind: made before the first release, and never without saying how the run ended.

`run.json` says "running" from before the charge on; it becomes the finished run, or says "aborted". Whoever finds it
"running" and nobody running it knows that the epsilon counts as spent.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from dpbilevel.cli.ending import Interrupted, RunFailed, unforeseen
from dpbilevel.errors import DPBilevelError, InvalidArgument
from dpbilevel.privacy.budget import Budget
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import write_unfinished
from dpbilevel.report.writing import write_report

RUN, PAGE, TEXT = "run.json", "report.html", "report.md"
_OURS = (RUN, PAGE, TEXT)


@dataclass(frozen=True)
class RunFolder:
    """Where a run writes, and what is said of it in every state."""

    path: Path
    budget: Budget
    facts: Mapping[str, str]
    command: str
    created: str

    def state(self, status: Literal["running", "aborted"]) -> None:
        """Say that the run is "running" or was "aborted"."""
        write_unfinished(
            self.path / RUN,
            status=status,
            budget=self.budget,
            facts=self.facts,
            command=self.command,
            created=self.created,
        )

    def finish(self, review: Review) -> None:
        """Write the reports, and last the run file, which makes it a finished run."""
        write_pages(review, self.path)
        write_report(review, self.path / RUN)


def write_pages(review: Review, folder: Path) -> None:
    """The report as a page and as text."""
    write_report(review, folder / PAGE)
    write_report(review, folder / TEXT)


def check_free(path: Path, *, force: bool) -> None:
    """Raise where a run may not be written to a folder; nothing is made yet."""
    if path.is_file():
        raise InvalidArgument(f"--out {path}: is a file; name a folder for the run")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise InvalidArgument(f"--out {path}: is there already; choose another folder, or pass --force")
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in _OURS)
        if strangers:
            raise InvalidArgument(f"--out {path}: has {strangers[0]!r}, which no run wrote; choose another folder")
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidArgument(f"--out {path}: may not be written; choose a folder of your own")


@contextlib.contextmanager
def running(folder: RunFolder, charged: Callable[[], bool]) -> Iterator[None]:
    """Make the folder and keep its state right: nothing is left where nothing was charged, "aborted" otherwise."""
    made = not folder.path.exists()
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        for name in _OURS:
            (folder.path / name).unlink(missing_ok=True)
        folder.state("running")
    except OSError:
        raise InvalidArgument(f"--out {folder.path}: cannot be written; check the disk and permissions") from None
    try:
        yield
    except BaseException as error:  # Ctrl-C included: the state must be right whatever ended the run
        if not _counts(charged):
            _remove(folder.path, whole=made)
            raise
        folder.state("aborted")
        stands = f"its epsilon is charged and counts as spent; {folder.path / RUN} says that it was aborted"
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"The run had begun: {stands}") from None
        raise RunFailed(f"the run failed ({unforeseen(error)}); {stands}") from None


def _counts(charged: Callable[[], bool]) -> bool:
    """Whether a run counts as charged: it does where its ledger cannot be asked."""
    try:
        return charged()
    except DPBilevelError:
        return True


def _remove(path: Path, *, whole: bool) -> None:
    if whole:
        shutil.rmtree(path)
    else:
        (path / RUN).unlink(missing_ok=True)


def now() -> str:
    """The time in UTC, to the second; SOURCE_DATE_EPOCH fixes it, as in other tools that make files."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    time = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
