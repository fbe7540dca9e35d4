"""What `dpbilevel ledger` shows and exports: the data of its tables, without anything that prints them."""

import math
from dataclasses import dataclass
from pathlib import Path

from dpbilevel.errors import InvalidArgument
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.stores.entry import StoredEntry
from dpbilevel.privacy.stores.statement import Statement

HEADERS = ("run", "when (UTC)", "who", "what", "epsilon", "delta", "mu", "version")
_SUFFIXES = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True)
class LedgerView:
    """The ledger of one data set, as a person is shown it.

    Attributes:
        statement: everything in it; ``statement.to_json()`` is for machines.
        facts: pairs of a name and a text, to stand above the table.
        rows: the cells of the table under `HEADERS`, oldest charge first.
    """

    statement: Statement
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


def ledger_url(text: str) -> str:
    """The address of a ledger from what a person types: an address, or the path of a SQLite file.

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
            f"ledger {text}: must be a file that ends in {', '.join(_SUFFIXES)}, or an address like "
            "postgresql://user@server/database"
        )
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path)).render_as_string()


def datasets(url: str) -> tuple[str, ...]:
    """The names of the data sets in a database, in the order in which they were begun."""
    from dpbilevel.privacy.stores.database import dataset_names

    return dataset_names(ledger_url(url))


def create(url: str, dataset: str, total: Budget) -> Ledger:
    """Start the ledger of a data set; one that is there already must have the same total."""
    try:
        known = dataset in datasets(url)
    except InvalidArgument:  # there is no ledger yet
        known = False
    if known:
        there = Ledger.open(ledger_url(url), dataset=dataset)
        if there.total != total:
            fixed = f"epsilon {there.total.epsilon:g}, delta {there.total.delta or 0:g} and {there.total.adjacency}"
            raise InvalidArgument(
                f"--dataset {dataset}: has a ledger there already, of {fixed}, which are fixed for its life; "
                "`dpbilevel ledger show` shows it"
            )
        return there
    return Ledger.open(ledger_url(url), dataset=dataset, total=total)


def show(url: str, dataset: str | None = None) -> tuple[LedgerView, ...]:
    """What there is to show of one data set, or of all in the database; every line is checked first."""
    names = datasets(url) if dataset is None else (dataset,)
    return tuple(_view(Ledger.open(ledger_url(url), dataset=name).statement()) for name in names)


def export(url: str, dataset: str | None, path: str | Path) -> Path:
    """Write the ledger of a data set as .json or .csv; it need not be named where it is the only one."""
    if Path(path).suffix not in (".json", ".csv"):
        raise InvalidArgument(f"--out {path}: must end in .json or .csv; the ending says what is written")
    names = datasets(url) if dataset is None else (dataset,)
    if len(names) != 1:
        raise InvalidArgument(f"--dataset: must name one of {', '.join(names)}; each has a ledger of its own")
    return Ledger.open(ledger_url(url), dataset=names[0]).export(path)


def _view(statement: Statement) -> LedgerView:
    dataset, left = statement.dataset, statement.remaining
    delta = "" if dataset.total.delta is None else f" at delta {dataset.total.delta:g}"
    facts = (
        ("data set", dataset.name),
        ("unit of privacy", dataset.unit),
        ("relation", dataset.total.adjacency),
        ("composition", statement.snapshot.composition or "decided by the first run"),
        ("begun", f"{dataset.created} by {dataset.user}"),
        ("total", f"epsilon {dataset.total.epsilon:g}{delta}"),
        ("spent", f"epsilon {statement.spent:.6g}{delta}"),
        ("remaining", "nothing" if left is None else f"epsilon {left.epsilon:.6g} at delta {left.delta or 0:.6g}"),
        *_why(statement),
        ("digest", statement.digest),
    )
    return LedgerView(statement, facts, tuple(_row(entry) for entry in statement.entries))


def _why(statement: Statement) -> tuple[tuple[str, str], ...]:
    """Why what was spent and what remains do not add up to the total, where they do not."""
    total, entries = statement.dataset.total, statement.entries
    if statement.snapshot.composition != "gaussian" or not entries or not total.is_private:
        return ()
    spent = math.fsum((entry.mu or 0.0) ** 2 for entry in entries)
    told = (
        f"spent and remaining do not add up to the total, because runs together cost less than the sum of their "
        f"epsilons. What adds up is mu^2, of which {spent:.4g} of {total.mu**2:.4g} is spent; remaining is the epsilon "
        "that one more run may have"
    )
    return (("note", told),)


def _row(entry: StoredEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        entry.time.partition(".")[0].replace("T", " "),
        f"{entry.user} on {entry.host}",
        entry.description,
        f"{entry.epsilon:.6g}",
        f"{entry.delta:.3g}",
        "" if entry.mu is None else f"{entry.mu:.4g}",
        entry.version,
    )
