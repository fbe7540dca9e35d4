"""The content of `dpbilevel ledger show` and `export`; printing is elsewhere."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.stores.entry import StoredEntry, unit_of_column
from dpbilevel.privacy.stores.statement import Statement

HEADERS = ("run", "when (UTC)", "who", "what", "epsilon", "delta", "mu", "rows per unit", "version")
_SUFFIXES = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True)
class LedgerView:
    """The ledger of one data set, formatted for display.

    Attributes:
        statement: its entire content; ``statement.to_json()`` is for programs.
        facts: pairs of a name and a text, shown above the table.
        rows: the cells of the table with `HEADERS`, oldest charge first.
    """

    statement: Statement
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


def ledger_url(text: str) -> str:
    """The URL of a ledger from the argument of a command: a URL, or the path of a SQLite file.

    >>> ledger_url("ledgers/hospital.db")
    'sqlite:///ledgers/hospital.db'
    >>> ledger_url("postgresql://officer@server/ledgers")
    'postgresql://officer@server/ledgers'
    """
    if "://" in text:
        return text
    path = Path(text).expanduser()
    if path.suffix not in _SUFFIXES:
        raise InvalidArgument(
            f"ledger {text}: must be a file that ends in {', '.join(_SUFFIXES)}, or a URL like "
            "postgresql://user@server/database"
        )
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path)).render_as_string()


def datasets(url: str) -> tuple[str, ...]:
    """The names of the data sets in a database, in the order of their creation."""
    from dpbilevel.privacy.stores.database import dataset_names

    return dataset_names(ledger_url(url))


def create(url: str, dataset: str, total: Budget, unit: str | None = None) -> Ledger:
    """Create the ledger of a data set, of the units of a column if one is given; if it exists, it must be the same."""
    protected = None if unit is None else unit_of_column(unit)
    try:
        known = dataset in datasets(url)
    except InvalidArgument:  # there is no ledger yet
        known = False
    if known:
        there = Ledger.open(ledger_url(url), dataset=dataset)
        if there.total != total:
            fixed = f"epsilon {there.total.epsilon:g}, delta {there.total.delta or 0:g} and {there.total.adjacency}"
            raise InvalidArgument(
                f"--dataset {dataset}: already has a ledger there, with {fixed}, which cannot be changed; "
                "`dpbilevel ledger show` shows it"
            )
        if protected is not None and protected != there.statement().snapshot.unit:
            raise InvalidArgument(
                f"--unit {unit}: the ledger of {dataset} is for {there.statement().snapshot.unit}, which cannot be "
                "changed; leave the option out, or choose another name"
            )
        return there
    return Ledger.open(ledger_url(url), dataset=dataset, total=total, unit=protected)


def show(url: str, dataset: str | None = None) -> tuple[LedgerView, ...]:
    """The views of one data set, or of all in the database; every entry is verified first."""
    names = datasets(url) if dataset is None else (dataset,)
    return tuple(_view(Ledger.open(ledger_url(url), dataset=name).statement()) for name in names)


def export(url: str, dataset: str | None, path: str | Path) -> Path:
    """Write the ledger of a data set as .json or .csv; the name is optional if there is only one."""
    if Path(path).suffix not in (".json", ".csv"):
        raise InvalidArgument(f"--out {path}: must end in .json or .csv; the extension selects the format")
    names = datasets(url) if dataset is None else (dataset,)
    if len(names) != 1:
        raise InvalidArgument(f"--dataset: must name one of {', '.join(names)}; each has a ledger of its own")
    return Ledger.open(ledger_url(url), dataset=names[0]).export(path)


def entry_fact(ledger: Ledger, description: str) -> dict[str, str]:
    """The entry that paid for a run, and what was left after it, for the report; empty for a ledger in memory.

    The address is left out: it may name a server, and a report may be published.
    """
    snapshot = ledger._store.read()
    numbers = [place for place, entry in enumerate(snapshot.entries, 1) if entry.description == description]
    if snapshot.dataset is None or not numbers:
        return {}
    number = numbers[-1]
    then = replace(snapshot, entries=snapshot.entries[:number])
    left, total = ledger._remaining(then), ledger.total
    rest = "nothing is left" if left is None else f"one more run may use epsilon {left.epsilon:.4g}"
    return {
        "ledger": f"entry {number} of the ledger of the data set {snapshot.dataset.name!r}; after it, epsilon "
        f"{ledger._spent(then):.4g} of {total.epsilon:g} was spent, and {rest} (at delta {total.delta or 0:g})"
    }


def _view(statement: Statement) -> LedgerView:
    dataset, left = statement.dataset, statement.remaining
    delta = "" if dataset.total.delta is None else f" at delta {dataset.total.delta:g}"
    facts = (
        ("data set", dataset.name),
        ("unit of privacy", statement.snapshot.unit),
        ("relation", dataset.total.adjacency),
        ("composition", statement.snapshot.composition or "decided by the first run"),
        ("created", f"{dataset.created} by {dataset.user}"),
        ("total", f"epsilon {dataset.total.epsilon:g}{delta}"),
        ("spent", f"epsilon {statement.spent:.6g}{delta}"),
        ("remaining", "nothing" if left is None else f"epsilon {left.epsilon:.6g} at delta {left.delta or 0:.6g}"),
        *_note(statement),
        ("digest", statement.digest),
    )
    return LedgerView(statement, facts, tuple(_row(entry) for entry in statement.entries))


def _note(statement: Statement) -> tuple[tuple[str, str], ...]:
    """The reason why spent and remaining epsilon do not add up to the total, if they do not."""
    total, entries = statement.dataset.total, statement.entries
    if statement.snapshot.composition != "gaussian" or not entries or not total.is_private:
        return ()
    spent = math.fsum((entry.mu or 0.0) ** 2 for entry in entries)
    note = (
        f"spent and remaining do not add up to the total, because runs together cost less than the sum of their "
        f"epsilons. mu^2 does add up: {spent:.4g} of {total.mu**2:.4g} is spent; remaining is the epsilon that one "
        "more run may use"
    )
    return (("note", note),)


def _row(entry: StoredEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        entry.time.partition(".")[0].replace("T", " "),
        f"{entry.user} on {entry.host}",
        entry.description,
        f"{entry.epsilon:.6g}",
        f"{entry.delta:.3g}",
        "" if entry.mu is None else f"{entry.mu:.4g}",
        "" if entry.rows_per_unit is None else f"{entry.rows_per_unit}",
        entry.version,
    )
