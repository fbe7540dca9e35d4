"""How commands end: one line that says what went wrong and what to do, and an exit code; never a traceback.

An error that nobody foresaw is told by its kind and its place in the code. Its message may quote a record.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from dpbilevel.cli.wording import in_own_words
from dpbilevel.errors import BudgetExceeded, DPBilevelError

OK, INTERNAL_ERROR, WRONG_INPUT, NO_BUDGET, FAILED = 0, 1, 2, 3, 4  # and 130, of `dpbilevel.cli.signals`


class RunFailed(DPBilevelError):
    """A run ended badly after its charge."""


class Refuted(DPBilevelError):
    """An audit proved more about epsilon than is claimed."""


def ended(command: Callable[[], object]) -> int:
    """Run a command and return its exit code."""
    try:
        command()
    except SystemExit as ending:  # typer's own, for help and for wrong options
        return ending.code if isinstance(ending.code, int) else OK if ending.code is None else WRONG_INPUT
    except BudgetExceeded as error:
        return _said(NO_BUDGET, str(error))
    except Refuted as error:
        return _said(INTERNAL_ERROR, str(error))
    except RunFailed as error:
        return _said(FAILED, str(error))
    except DPBilevelError as error:  # a ledger that cannot be used included: after a charge it would be RunFailed
        return _said(WRONG_INPUT, str(error))
    except BrokenPipeError:  # whoever read our output has gone: `dpbilevel plan … | head`
        return OK
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _said(INTERNAL_ERROR, unforeseen(error))
        return _said(WRONG_INPUT, f"output could not be written ({error.strerror}); make room, and try again")
    except Exception as error:
        return _said(INTERNAL_ERROR, unforeseen(error))
    finally:
        _let_go_of_stdout()
    return OK


def unforeseen(error: BaseException) -> str:
    """An error by its kind and place alone."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "dpbilevel" in Path(frame.filename).parts] or frames
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{place}: this should not happen; please report it with the command"


def _let_go_of_stdout() -> None:
    """Drop what stdout could not take, of which the interpreter would complain at its end; it was said already."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _said(code: int, message: str) -> int:
    print(f"dpbilevel: {in_own_words(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code
