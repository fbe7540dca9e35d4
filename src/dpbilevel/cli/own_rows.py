"""Which rows of a file a process of a job reads: those that it will hold, by public numbers alone.

Roles follow from positions: rows that are set aside, those that validate, and those that train. Of each role a process
holds an unbroken range, in the order of the file, so that it reads about one stretch of it.
"""

import numpy as np

from dpbilevel.cli.held_rows import read_held_rows
from dpbilevel.cli.holdout import SEED
from dpbilevel.cli.job import Job
from dpbilevel.cli.rows import Rows
from dpbilevel.cli.table_file import TableFile
from dpbilevel.encoding.encoded_rows import Held
from dpbilevel.errors import InvalidArgument
from dpbilevel.estimators.split import Positions, split
from dpbilevel.privacy.parts import own_range
from dpbilevel.privacy.shards import mesh_of
from dpbilevel.privacy.storage import Storage


def read_own_rows(job: Job, storage: Storage | None) -> tuple[Rows, Rows | None]:
    """The rows of the files that this process holds, as all rows of a table of which others hold the rest."""
    asked = job.asked
    if asked.unit is not None:
        raise InvalidArgument("--unit: is not supported with several processes yet; leave it, or launch, out")
    if storage is not None:
        job.estimator.set_params(storage=storage.folder)
    apart = job.validation is not None
    rows = _read(job, job.table, storage, is_split=not apart, holdout=None if apart else asked.holdout)
    if job.validation is None:
        return rows, None
    return rows, _read(job, job.validation, storage, is_split=False, holdout=asked.holdout, is_validation=True)


def _read(
    job: Job,
    table: TableFile,
    storage: Storage | None,
    *,
    is_split: bool,
    holdout: float | None,
    is_validation: bool = False,
) -> Rows:
    asked, number = job.asked, table.count_rows()
    job.check_rows(number)
    roles = _roles(number, holdout, job.estimator.validation_fraction if is_split else None, job.estimator.split_seed)
    mesh = mesh_of(asked.devices)
    own = np.sort(np.concatenate([role[own_range(len(role), mesh)] for role in roles]))
    known = job.encoder, job.schema, asked.target
    weight, places = (None, {}) if is_validation else (asked.weight, asked.place_columns())
    return read_held_rows(table, *known, number, storage, weight, places, Held(own, number))


def _roles(rows: int, holdout: float | None, validation_fraction: float | None, split_seed: int) -> list[Positions]:
    """The rows of each role, in the order of the file.

    >>> [len(role) for role in _roles(100, 0.1, 0.2, 0)]
    [10, 18, 72]
    """
    held, rest = (np.zeros(0, np.intp), np.arange(rows)) if holdout is None else split(rows, holdout, SEED)
    rest = np.sort(rest)
    used = [rest]
    if validation_fraction is not None:
        used = [rest[np.sort(part)] for part in split(len(rest), validation_fraction, split_seed)]
    return [*([] if holdout is None else [np.sort(held)]), *used]
