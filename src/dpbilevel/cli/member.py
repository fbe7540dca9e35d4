"""One process of a job on the command line, started by `dpbilevel launch`: it joins the others and runs the command."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from dpbilevel.cli.ending import FAILED, exit_code_of
from dpbilevel.cli.launch import LOST
from dpbilevel.cli.signals import SIGNALS


def take_part(member: str, command: Callable[[], object]) -> NoReturn:
    """Run a command as one process of a job; ends with the exit code of the first one.

    Args:
        member: arguments of `join_job`, as JSON.
        command: the command.
    """
    described = json.loads(member)
    if described["process"]:
        SIGNALS.ending = lambda: "The first process says whether anything was spent."
    from dpbilevel.foundation.joining import join_job
    from dpbilevel.foundation.processes import current, lose

    signal.signal(LOST, lambda *_: lose())

    def run() -> None:
        join_job(**described)
        try:
            command()
        except Exception as error:
            if not current().is_first and current().knows(error):
                sys.exit(FAILED)  # the first process reports it
            raise

    code = exit_code_of(run)
    SIGNALS.answer()
    code = current().leave(code)
    sys.stderr.flush()
    # JAX would wait for the others once more, and end this process with a signal if one is missing.
    os._exit(code)
