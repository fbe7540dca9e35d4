"""The chain of a ledger: every line carries a digest of itself and of the line before it.

A line that is edited, deleted, inserted or moved breaks the chain, and lines that are missing at the end are noticed
by the count and the digest that are kept apart from them.

The digest is SHA-256 without a key, over public facts only: names, times and what was charged. Records never come near
it: an unkeyed hash of *data* would let anybody test a guess of them, and there is none in this library. Without a key
it guards against faults and careless hands, not against somebody who may write to the database and computes the whole
chain again: against that, keep exports elsewhere.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from dpbilevel.errors import LedgerCorrupt
from dpbilevel.privacy.stores.entry import DataSet, StoredEntry

START = "dpbilevel.ledger/1"  # what the first data set continues from

RESTORE = "restore its latest backup, and do not start a new one in its place (docs/ledger.md says what else to do)"


def dataset_digest(previous: str, dataset: DataSet) -> str:
    """The digest of a data set's line, after the ``previous`` data set's."""
    total = dataset.total
    return _sha256(
        previous,
        dataset.number,
        dataset.name,
        dataset.unit,
        _exact(total.epsilon),
        _exact(total.delta),
        total.adjacency,
        dataset.composition,
        dataset.created,
        dataset.user,
        dataset.version,
    )


def entry_digest(previous: str, entry: StoredEntry) -> str:
    """The digest of an entry, after the ``previous`` one's."""
    return _sha256(
        previous,
        entry.number,
        entry.description,
        _exact(entry.epsilon),
        _exact(entry.delta),
        _exact(entry.mu),
        entry.user,
        entry.host,
        entry.pid,
        entry.time,
        entry.version,
        entry.plan,
    )


def check_datasets(datasets: Sequence[DataSet], count: int, head: str) -> None:
    """Raise unless the data sets are those, all of those, and in the order, that were begun here."""
    previous = START
    for number, dataset in enumerate(datasets, start=1):
        if dataset.number != number or dataset_digest(previous, dataset) != dataset.digest:
            raise LedgerCorrupt(f"ledger: the line of data set {number} is not as it was written; {RESTORE}")
        previous = dataset.digest
    if (len(datasets), previous) != (count, head):
        raise LedgerCorrupt(f"ledger: holds {len(datasets)} data sets where {count} were begun; {RESTORE}")


def check_entries(dataset: DataSet, entries: Sequence[StoredEntry], count: int, head: str) -> None:
    """Raise unless the entries are those, all of those, and in the order, that were charged."""
    previous = dataset.digest
    for number, entry in enumerate(entries, start=1):
        if entry.number != number or entry_digest(previous, entry) != entry.digest:
            raise LedgerCorrupt(
                f"ledger of {dataset.name!r}: entry {number} is not as it was written, or is missing; {RESTORE}"
            )
        previous = entry.digest
    if (len(entries), previous) != (count, head):
        raise LedgerCorrupt(
            f"ledger of {dataset.name!r}: holds {len(entries)} entries where {count} were charged; {RESTORE}"
        )


def _exact(number: float | None) -> str | None:
    return None if number is None else float(number).hex()


def _sha256(*parts: Any) -> str:
    # JSON keeps parts apart: ("ab", "c") and ("a", "bc") have different digests.
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
