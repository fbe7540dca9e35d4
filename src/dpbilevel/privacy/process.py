"""Process identity: an object that a fork would copy, such as a ledger in memory, serves only its own process."""

import os

Process = tuple[int, int]

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> Process:
    """A value that differs in every fork of this process, even in one that reuses the process id of a dead parent."""
    return os.getpid(), _forks
