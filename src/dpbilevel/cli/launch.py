"""`dpbilevel launch`: run a command as several processes, watch them, and let none outlive the others.

Without an address, all of them are started here, and meet at an address that this machine alone has. With one, this
machine has one of them; mpirun, Slurm or Kubernetes start a launcher for each. Either way a process is a child of its
launcher, which notices how it ends. JAX ends processes without an exception where it misses another one.

The first process speaks for all: the output of the others is left out, except for errors that they could not tell it.
This module does not import JAX.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from dpbilevel.cli.ending import FAILED
from dpbilevel.cli.fit_command import COMMANDS
from dpbilevel.cli.signals import INTERRUPTED
from dpbilevel.errors import InvalidArgument

MEMBER = "DPBILEVEL_MEMBER"  # the environment variable that tells a child which process of which job it is
LOST = getattr(signal, "SIGUSR1", signal.SIGTERM)  # tells the other processes that one was killed
GRACE = 20.0  # seconds that processes have to end by themselves, once one has ended
LAST = 10.0  # and that they have to end when they are told to
_POLLING, _REPEATED = 0.02, 0.5
# Number of processes, and which of them this is, by what started it.
_STARTERS = (
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    (None, "JOB_COMPLETION_INDEX"),  # Kubernetes
)


@dataclass(eq=False)
class Child:
    """A process of the job that runs here.

    Args:
        count, index: how many processes there are, and which of them this is.
        process: the running process.
        said: what it writes to standard error; None for the first one, which writes to that of the launcher.
    """

    count: int
    index: int
    process: Any
    said: IO[bytes] | None = None
    ended: float | None = field(default=None, init=False)

    @classmethod
    def start(cls, coordinator: str, count: int, index: int, command: Sequence[str], *, is_local: bool) -> "Child":
        """Start a process of a job."""
        member = {"coordinator": coordinator, "processes": count, "process": index, "is_local": is_local}
        said = None if index == 0 else tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dpbilevel", *command],
            env=os.environ | {MEMBER: json.dumps(member)},
            stdin=subprocess.DEVNULL,
            stdout=None if index == 0 else subprocess.DEVNULL,
            stderr=said,
            process_group=0,  # Ctrl-C reaches the launcher, which passes it on
        )
        return cls(count, index, process, said)

    def has_ended(self) -> bool:
        """Whether it has, and notes when."""
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()
        return self.ended is not None

    def name(self) -> str:
        """As messages have it."""
        return f"process {self.index} of {self.count}"

    def complaints(self) -> list[str]:
        """Errors that it could not tell the first process."""
        if self.said is None:
            return []
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith("dpbilevel: ") and not line.startswith("dpbilevel: interr")]


def member() -> str | None:
    """Which process of which job this is, as JSON; None outside of a job. Said once: children of it are none."""
    return os.environ.pop(MEMBER, None)


def launch(command: Sequence[str], processes: int | None, coordinator: str | None, process: int | None) -> int:
    """Run a command as several processes; returns the exit code."""
    if os.name != "posix":
        raise InvalidArgument("launch: is for Linux and macOS; start processes that call dpb.join_job instead")
    if command[0] not in COMMANDS:
        raise InvalidArgument(f"launch {command[0]}: must be one of {', '.join(COMMANDS)}, with its options after it")
    if coordinator is not None:
        count, index = _place(processes, process, os.environ)
        return run([index], lambda index: Child.start(coordinator, count, index, command, is_local=False), command)
    if process is not None:
        raise InvalidArgument("--process: is for several machines; give --coordinator too, or leave it out")
    if processes is None or processes < 1:
        raise InvalidArgument("--processes: must be 1 or more (or name this machine's --coordinator HOST:PORT)")
    with socket.socket() as reserved:
        # Bound until the end, so that no other program gets it; it never listens.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        where, count = f"127.0.0.1:{reserved.getsockname()[1]}", processes
        return run(range(count), lambda index: Child.start(where, count, index, command, is_local=True), command)


def run(indices: Iterable[int], start: Callable[[int], Child], command: Sequence[str]) -> int:
    """Start processes, wait until all have ended, and see to it that they do; returns the exit code of the job."""
    children: list[Child] = []
    with _signals_for(children) as received:
        try:
            for index in indices:
                children.append(start(index))
        except OSError as error:
            _send(children, signal.SIGKILL)
            raise InvalidArgument(f"--processes: they cannot be started ({error.strerror})") from None
        _wait(children)
    return _reported(children, command, bool(received))


@contextlib.contextmanager
def _signals_for(children: Sequence[Child]) -> Iterator[list[int]]:
    """Pass Ctrl-C and SIGTERM on to all processes. Those that start ignore the signal that one is lost."""
    received: list[int] = []

    def pass_on(number: int, *_: object) -> None:
        received.append(number)
        _send(children, number)

    own = {number: pass_on for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in (own | {LOST: signal.SIG_IGN}).items()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[Child]) -> None:
    spoken = 0.0
    while True:
        ended = [child for child in children if child.has_ended()]
        if len(ended) == len(children):
            return
        now = time.monotonic()
        since = now - min(child.ended or 0.0 for child in ended) if ended else 0.0
        if now - spoken > _REPEATED:  # a process that is still starting does not listen
            spoken = now
            if since > GRACE:
                _send(children, signal.SIGKILL if since > GRACE + LAST else signal.SIGTERM)
            elif any(child.process.returncode < 0 for child in ended):
                _send(children, LOST)
        time.sleep(_POLLING)


def _send(children: Sequence[Child], number: int) -> None:
    for child in children:
        if not child.has_ended():
            child.process.send_signal(number)


def _reported(children: Sequence[Child], command: Sequence[str], interrupted: bool) -> int:
    """Say how the job has ended, if no process could; returns its exit code."""
    spoken = children[0]
    for line in dict.fromkeys(line for child in children for line in child.complaints()):
        print(line, file=sys.stderr)
    killed = [child for child in children if child.process.returncode < 0]
    if killed and spoken.process.returncode != 0:
        first = min(killed, key=lambda child: child.ended or 0.0)
        print(f"dpbilevel: {_end_of(first)}, and with it the job{_advice(spoken, command)}", file=sys.stderr)
    if spoken.process.returncode >= 0:
        return int(spoken.process.returncode)
    return INTERRUPTED if interrupted else FAILED


def _end_of(child: Child) -> str:
    number = -child.process.returncode
    if number == signal.SIGABRT:
        return f"JAX ended {child.name()}, because another process had ended or could not be reached"
    return f"{child.name()} was killed (signal {number})"


def _advice(spoken: Child, command: Sequence[str]) -> str:
    if spoken.process.returncode >= 0:  # it has said what was spent
        return ""
    return (
        ". If the run has a folder, its epsilon counts as spent; resume it, at no further cost, with: "
        f"dpbilevel launch --processes {spoken.count} {command[0]} --resume RUN"
    )


def _place(processes: int | None, process: int | None, environment: Mapping[str, str]) -> tuple[int, int]:
    """How many processes there are, and which of them this is: as given, or as what started it says."""
    for count, index in _STARTERS:
        if process is None and index in environment:
            process = int(environment[index])
            if processes is None and count is not None:
                processes = int(environment[count])
    if processes is None or process is None:
        raise InvalidArgument(
            "--processes, --process: must be given with --coordinator, unless mpirun, Slurm or Kubernetes start it"
        )
    return processes, process
