"""Runs that resume: what a run folder keeps beside its checkpoint, and what may be given with ``--resume``.

All options are stored when a run is started, so that ``--resume RUN`` needs none of them. They can be given again, and
must then be the same; only files may have moved, and what is printed is up to the caller. What cannot be compared here,
the rows, is compared by the checkpoint. Everything in the file is public, except perhaps the address of a ledger, whose
password is left out.
"""

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbilevel.checkpoint.file import exclusive
from dpbilevel.cli.fit_command import FitCommand, options
from dpbilevel.cli.run_folder import CHECKPOINT, OPTIONS, RUN, remove_checkpoint
from dpbilevel.errors import InvalidArgument
from dpbilevel.report.run_file import run_status

_MOVABLE = (
    "data",
    "schema",
    "validation",
    "unit_ids",
    "ledger",
)  # where something is; that it is the same is checked otherwise
_OUTPUT = ("json", "quiet")
_NEW_RUNS = ("force", "dry_run", "rows")  # options that mean something for a new run only
_PASSWORD = r"(?<=://)([^:@/]*):[^@]*(?=@)"


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredRun:
    """What is kept of a run until it has finished.

    Attributes:
        command: name of the command that started it.
        options: name of an option to its value, as JSON has it; paths are absolute.
        facts, typed, created: as the run file has them: facts, command and time.
        schema: content of the schema.
    """

    command: str
    options: Mapping[str, Any]
    facts: Mapping[str, str]
    schema: Mapping[str, Any]
    typed: str
    created: str

    @classmethod
    def of(cls, asked: FitCommand, **known: Any) -> "StoredRun":
        """What to store of a run that is about to start."""
        return cls(command=asked.command, options=_kept(asked), **known)

    def text(self) -> str:
        """As a file has it."""
        return json.dumps(dict(vars(self)), indent=1) + "\n"

    @classmethod
    def parsed(cls, text: str) -> "StoredRun":
        """The inverse of `text`."""
        return cls(**json.loads(text))

    def fit_command(self, kind: type[FitCommand], folder: Path, given: Mapping[str, Any]) -> FitCommand:
        """The command that the run was started with; raises for options that are given and differ."""
        resume = f"leave it out: --resume {folder} resumes with the options that the run was started with"
        for name, value in given.items():
            option = f"--{name.replace('_', '-')}"
            if name in _NEW_RUNS:
                raise InvalidArgument(f"{option}: is for new runs; {resume}")
            if name == "out" and Path(value).resolve() != folder.resolve():
                raise InvalidArgument(f"--out {value}: must be {folder}, the folder of the run; {resume}")
            if _is_kept(name) and name not in _MOVABLE and _stored(name, value) != self.options[name]:
                raise InvalidArgument(f"{option} {value}: the run was started with {self.options[name]}; {resume}")
        moved = {name: value for name, value in given.items() if name in (*_MOVABLE, *_OUTPUT)}
        if "***" in (self.options["ledger"] or "") and "ledger" not in moved:
            raise InvalidArgument(f"--ledger: give {self.options['ledger']} again, because its password is not stored")
        paths = {o.name for o in options(kind) if Path in (_kind(o.annotation), *typing.get_args(_kind(o.annotation)))}
        kept: dict[str, Any] = {n: Path(v) if n in paths and v is not None else v for n, v in self.options.items()}
        return kind(**kept | moved, out=folder)

    def check_schema(self, path: Path, schema: Mapping[str, Any]) -> None:
        """Raise if the schema declares something else than at the start of the run."""
        if json.loads(json.dumps(schema)) != self.schema:
            raise InvalidArgument(
                f"--schema {path}: declares something else than when the run was started; resume with the same schema, "
                "or start a new run, which is charged again"
            )


def stored_run(kind: type[FitCommand], folder: Path) -> StoredRun:
    """What is stored of a run that can be resumed; raises, and says what to do, for any other."""
    if not (folder / RUN).is_file():
        raise InvalidArgument(f"--resume {folder}: has no run.json; name the folder of a run that was interrupted")
    with exclusive(folder.resolve() / CHECKPOINT):  # raises while another process runs it
        if run_status(folder / RUN) == "finished":
            remove_checkpoint(folder)
            raise InvalidArgument(
                f"--resume {folder}: the run has finished; `dpbilevel report {folder}` shows what it released"
            )
        if not (folder / OPTIONS).is_file() or not (folder / CHECKPOINT).is_file():
            raise InvalidArgument(
                f"--resume {folder}: has no checkpoint, so that it cannot be resumed (runs with --noise exact have "
                "none); start a new run, with --force for the same folder. It is charged again"
            )
        stored = _read(folder)
    if stored.command != kind.command:
        raise InvalidArgument(
            f"--resume {folder}: is a run of `dpbilevel {stored.command}`; resume it with "
            f"`dpbilevel {stored.command} --resume {folder}`"
        )
    return stored


def comparable(asked: FitCommand) -> dict[str, Any]:
    """The options that all processes of a job have alike, as JSON has them: where a file is may differ."""
    return {name: value for name, value in _kept(asked).items() if name not in _MOVABLE}


def _kept(asked: FitCommand) -> dict[str, Any]:
    return {o.name: _stored(o.name, getattr(asked, o.name)) for o in options(type(asked)) if _is_kept(o.name)}


def _read(folder: Path) -> StoredRun:
    try:
        stored = StoredRun.parsed((folder / OPTIONS).read_text("utf-8"))
        complete = {"ledger", *_MOVABLE[:2]} <= set(stored.options)
    except (ValueError, TypeError):
        complete = False
    if not complete:
        raise InvalidArgument(
            f"--resume {folder}: {OPTIONS} is damaged; start a new run with --force, which is charged again"
        )
    return stored


def _is_kept(name: str) -> bool:
    return name not in (*_NEW_RUNS, *_OUTPUT, "out", "resume")


def _stored(name: str, value: Any) -> Any:
    """A value as JSON has it: absolute where it is a path, because a run may be resumed from another folder."""
    if name == "ledger" and value is not None:
        return without_password(value) if "://" in value else str(Path(value).expanduser().absolute())
    return str(value.absolute()) if isinstance(value, Path) else value


def without_password(address: str) -> str:
    """An address without the password in it.

    >>> without_password("postgresql://officer:secret@server/ledgers")
    'postgresql://officer:***@server/ledgers'
    """
    return re.sub(_PASSWORD, r"\1:***", address)


def _kind(annotation: Any) -> Any:
    return getattr(annotation, "__origin__", annotation)
