"""The hash chain of a ledger: every row stores a digest of its own content and of the previous row's digest.

Editing, deleting, inserting or moving a row breaks the chain. Rows missing at the end are detected by the row count and
the last digest, which are stored separately.

The digest is SHA-256 without a key, over public facts only: names, times and charges. It never covers records: an
unkeyed hash of *data* would let anyone test guesses about them, and this library computes none. Without a key the chain
protects against faults and accidental edits, but not against someone with write access who recomputes the entire
chain. Keep exports elsewhere to detect that.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from dpbilevel.errors import LedgerCorrupt
from dpbilevel.privacy.stores.entry import DataSet, StoredEntry

START = "dpbilevel.ledger/1"  # the digest before that of the first data set

RESTORE = "restore its latest backup, and do not create a new ledger in its place (see docs/ledger.md)"


def dataset_digest(previous: str, dataset: DataSet) -> str:
    """The digest of a data set's row, chained to the digest of the previous data set."""
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
    """The digest of an entry, chained to the digest of the previous entry."""
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
    """Raise unless the data sets are complete, unchanged and in their original order."""
    previous = START
    for number, dataset in enumerate(datasets, start=1):
        if dataset.number != number or dataset_digest(previous, dataset) != dataset.digest:
            raise LedgerCorrupt(f"ledger: the row of data set {number} is not as it was written; {RESTORE}")
        previous = dataset.digest
    if (len(datasets), previous) != (count, head):
        raise LedgerCorrupt(f"ledger: holds {len(datasets)} data sets where {count} were created; {RESTORE}")


def check_entries(dataset: DataSet, entries: Sequence[StoredEntry], count: int, head: str) -> None:
    """Raise unless the entries are complete, unchanged and in their original order."""
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
