"""How much memory a run takes, by public sizes, and whether its rows are on disk (``--memory``)."""

import math
from pathlib import Path

from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.memory_limit import memory_limit
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.processes import current
from dpbilevel.privacy.storage import Storage

# Measured (docs/results/large.md): Python with its libraries, the compiler, and the blocks of a file that are encoded.
_FIXED = 75 * 10**7
_PER_ROW = 24  # bytes: roles, labels and masks
_PER_NUMBER = 32  # bytes: for each row, a target that is a number, or a weight, with the copies on their way
_PER_NAME = 12  # bytes: for each row, the name of its source
_CELL = 4  # bytes of a number of an encoded row


def storage_for(asked: FitCommand, rows: int, width: int, *, has_number: bool) -> Storage | None:
    """Where encoded rows are held: None for memory, if they fit; raises if no run would fit.

    Args:
        asked: the options.
        rows: the number of rows, which is public.
        width: numbers of an encoded row, without the intercept.
        has_number: whether the target is a number.
    """
    if asked.memory is None:
        return None
    numbers, names = has_number + (asked.weight is not None), len(asked.place_columns())
    per_row = _PER_ROW + numbers * _PER_NUMBER + names * _PER_NAME
    limit, least = memory_limit(asked.memory), _FIXED + rows * per_row
    # In memory they are held up to four times: in blocks, joined, set aside, and by role. A process has its part.
    if least + 4 * -(-rows // current().count) * (width + 1) * _CELL <= limit:
        return None
    if math.isinf(asked.epsilon):
        raise InvalidArgument(
            "--memory: is for private runs; the solver of --epsilon inf holds scores of all rows in memory (leave it "
            "out)"
        )
    if least > limit:
        needed = -(-least // 10**8) / 10
        raise InvalidArgument(f"--memory {asked.memory}: must be at least {needed:.1f}GB for {rows:,} rows")
    return Storage.of(_folder(asked.out))


def _folder(out: Path) -> Path:
    """The folder of a run, or the one that it will be made in."""
    return next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
