"""A snapshot of a ledger in a database, for display and for export as JSON or CSV."""

import csv
import io
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.stores.entry import DataSet, Snapshot, StoredEntry, standard

FORMAT = "dpbilevel.ledger/1"

_COLUMNS = (
    *("number", "time", "user", "host", "pid", "description", "epsilon", "delta", "mu", "version", "plan", "digest"),
)


@dataclass(frozen=True)
class Statement:
    """The entire content of a data set's ledger.

    Attributes:
        snapshot: the data set and its entries.
        spent: the spent epsilon, at the total's delta.
        remaining: the largest budget that one more run of the same kind may use; None if the budget is exhausted.
    """

    snapshot: Snapshot
    spent: float
    remaining: Budget | None

    @property
    def dataset(self) -> DataSet:
        """The declarations with which the ledger was created."""
        if self.snapshot.dataset is None:
            raise InvalidArgument("snapshot: must come from a ledger in a database")
        return self.snapshot.dataset

    @property
    def entries(self) -> tuple[StoredEntry, ...]:
        """All charges, oldest first."""
        return tuple(entry for entry in self.snapshot.entries if isinstance(entry, StoredEntry))

    @property
    def digest(self) -> str:
        """The digest of the last row: a stored copy later proves that no earlier row was changed."""
        return (self.entries or (self.dataset,))[-1].digest

    def to_json(self) -> dict[str, Any]:
        """The statement as plain values; numbers are exact, and the plan of each entry is expanded."""
        total, left = self.dataset.total, self.remaining
        return standard(
            {
                "format": FORMAT,
                "dataset": self.dataset.name,
                "unit": self.snapshot.unit,
                "adjacency": total.adjacency,
                "composition": self.snapshot.composition,
                "created": self.dataset.created,
                "created_by": self.dataset.user,
                "total": {"epsilon": total.epsilon, "delta": total.delta},
                "spent": {"epsilon": self.spent},
                "remaining": None if left is None else {"epsilon": left.epsilon, "delta": left.delta},
                "entries": [{**row, "plan": json.loads(row["plan"])} for row in self._rows()],
                "digest": self.digest,
            }
        )

    def to_csv(self) -> str:
        """One line per charge, with its plan as JSON."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in self._rows())
        return text.getvalue()

    def _rows(self) -> list[dict[str, Any]]:
        return [{name: getattr(entry, name) for name in _COLUMNS} for entry in self.entries]


def write_statement(statement: Statement, path: Path) -> Path:
    """Write a statement atomically as .json or .csv, selected by the file name."""
    if path.suffix == ".json":
        text = json.dumps(statement.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    elif path.suffix == ".csv":
        text = statement.to_csv()
    else:
        raise InvalidArgument(f"path={str(path)!r}: must end in .json or .csv; the ending selects the format")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            with fresh.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
    except OSError as error:
        raise InvalidArgument(
            f"path={str(path)!r}: cannot be written ({error.strerror}); name a file in a folder that you can write to"
        ) from error
    return path


def _cell(value: Any) -> Any:
    # A spreadsheet would execute text that starts like a formula; an apostrophe marks it as text.
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
