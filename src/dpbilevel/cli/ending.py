"""How commands end: an exit code, and one line with the error and its remedy; never a traceback.

Of an unexpected error, only the type and the place in the code are shown: its message may quote a record.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from dpbilevel.cli.wording import for_command_line
from dpbilevel.errors import BudgetExceeded, DPBilevelError

OK, INTERNAL_ERROR, WRONG_INPUT, NO_BUDGET, FAILED = 0, 1, 2, 3, 4  # and 130, of `dpbilevel.cli.signals`


class RunFailed(DPBilevelError):
    """A run failed after its charge."""


class Refuted(DPBilevelError):
    """An audit proved a lower bound on epsilon above the claim."""


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command and return its exit code."""
    try:
        command()
    except SystemExit as ending:  # raised by typer, for help and invalid options
        return ending.code if isinstance(ending.code, int) else OK if ending.code is None else WRONG_INPUT
    except BudgetExceeded as error:
        return _report(NO_BUDGET, str(error))
    except Refuted as error:
        return _report(INTERNAL_ERROR, str(error))
    except RunFailed as error:
        return _report(FAILED, str(error))
    except (
        DPBilevelError
    ) as error:  # including ledgers that cannot be used: after a charge the error would be RunFailed
        return _report(WRONG_INPUT, str(error))
    except BrokenPipeError:  # the reader of our output has exited: `dpbilevel plan … | head`
        return OK
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _report(INTERNAL_ERROR, describe_unexpected(error))
        return _report(WRONG_INPUT, f"output could not be written ({error.strerror}); free some space, and try again")
    except Exception as error:
        return _report(INTERNAL_ERROR, describe_unexpected(error))
    finally:
        _discard_stdout()
    return OK


def describe_unexpected(error: BaseException) -> str:
    """Describe an unexpected error by its type and place alone."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "dpbilevel" in Path(frame.filename).parts] or frames
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{place}: this should not happen; please report it with the command"


def _discard_stdout() -> None:
    """Discard buffered output that cannot be written; the interpreter would report it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _report(code: int, message: str) -> int:
    print(f"dpbilevel: {for_command_line(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code
