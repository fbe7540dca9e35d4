"""Which process this is: what a fork would copy, a ledger in memory say, serves the process that made it alone."""

import os

Process = tuple[int, int]

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> Process:
    """A value that no fork of this process shares with it, not even one that is given the number of a dead parent."""
    return os.getpid(), _forks
