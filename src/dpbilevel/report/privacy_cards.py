"""Notebook cards of a spend, a plan and a ledger: public numbers, computed without reading a record."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpbilevel.foundation.tables import short
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.spend import Privacy
from dpbilevel.privacy.stores.entry import Entry, Snapshot, StoredEntry
from dpbilevel.report.card_parts import (
    BLUE,
    HEADINGS,
    NOT_PRIVATE,
    TONES,
    bar,
    faint,
    folded,
    framed,
    privacy_status,
    records_of,
    small_table,
)
from dpbilevel.report.elements import epsilon_text, number, text

if TYPE_CHECKING:  # inspecting a ledger must not load JAX
    from dpbilevel.planning import Plan

_GROUPS = (2, 5)  # rows of one person
_SHOWN = 6  # charges of a ledger


def privacy_card(privacy: Privacy) -> str:
    """The spend by role and release and for a person with several rows, with caveats."""
    status = privacy_status(privacy)
    return framed(TONES[status], HEADINGS[status], privacy.label(), _spend_rows(privacy))


def plan_card(planned: "Plan") -> str:
    """The planned spend of a run, with every number of the plan and its reason."""
    status = privacy_status(planned.privacy)
    return framed(TONES[status], f"Plan: {HEADINGS[status]}", planned.privacy.label(), _plan_rows(planned))


def ledger_card(snapshot: Snapshot, total: Budget, spent: float, left: Budget | None) -> str:
    """The spent and remaining budget, and the latest charges."""
    head = "Ledger" if snapshot.dataset is None else f"Ledger of {snapshot.dataset.name}"
    delta = "" if total.delta is None else f" at delta {number(total.delta)}"
    label = f"ε {epsilon_text(spent)} of {number(total.epsilon)} spent{delta}, {total.adjacency}"
    tone = TONES[NOT_PRIVATE] if left is None else BLUE
    return framed(tone, head, label, _ledger_rows(snapshot, total, spent, left, tone))


def unreadable_ledger_card(error: Exception) -> str:
    """The card of a ledger that cannot be read. It omits the error message, which may quote an address."""
    return framed(TONES[NOT_PRIVATE], "Ledger", f"cannot be read: {type(error).__name__}", [])


def _spend_rows(privacy: Privacy) -> Iterator[str]:
    yield from _bars(privacy)
    yield _releases(privacy)
    # For other runs the group bound is found by a slow search.
    if privacy.rows_per_unit is not None:
        yield text(f"A record is {privacy.unit}")
    elif privacy.budget.is_private and privacy.groups_add_up and privacy.charges:
        groups = [f"{rows} rows ε {epsilon_text(privacy.epsilon(group=rows))}" for rows in _GROUPS]
        yield text(f"A record is one row. For a person with {', with '.join(groups)}")
    yield from (f"<strong>Caveat:</strong> {text(caveat)}" for caveat in privacy.caveats)
    if privacy.budget.is_private:
        yield faint(f"Accountant: {privacy.accountant}")


def _plan_rows(planned: "Plan") -> Iterator[str]:
    yield text("Nothing was read and nothing was charged.")
    yield from _bars(planned.privacy)
    yield _releases(planned.privacy)
    yield from (f"<strong>Caveat:</strong> {text(caveat)}" for caveat in planned.privacy.caveats)
    numbers = [[name, short(value), why] for name, (value, why) in planned.parameters.items()]
    if numbers:
        title = f"{len(numbers)} number{'' if len(numbers) == 1 else 's'} of the plan, with reasons"
        yield folded(title, small_table("Numbers of the plan", ["number", "value", "reason"], numbers))
    yield faint(f"{type(planned.method).__name__}, {planned.noise} noise")


def _bars(privacy: Privacy) -> Iterator[str]:
    if not privacy.budget.is_private:
        return
    for role, charges in privacy.charges.items():
        spent = privacy.epsilon(role=role)
        counts = {charge.records for charge in charges if charge.records is not None}
        who = f"{max(counts):,} {records_of(role, privacy)}" if counts else records_of(role, privacy)
        words = f"ε {epsilon_text(spent)} of {number(privacy.budget.epsilon)}, {who}"
        yield bar(words, spent / privacy.budget.epsilon, TONES[privacy_status(privacy)])


def _releases(privacy: Privacy) -> str:
    rows = [
        [charge.release, role, number(charge.uses), type(charge.sampling).__name__]
        for role, charges in privacy.charges.items()
        for charge in charges
    ]
    kind = "records" if privacy.rows_per_unit is None else "units"
    return small_table("Releases", ["release", kind, "uses", "sampling"], rows, [2]) if rows else ""


def _ledger_rows(snapshot: Snapshot, total: Budget, spent: float, left: Budget | None, tone: str) -> Iterator[str]:
    if total.is_private:
        words = (
            "budget exhausted"
            if left is None
            else f"ε {_rounded_down(left.epsilon)} remaining for one more run of the same kind"
        )
        yield bar(words, spent / total.epsilon, tone)
    if snapshot.composition == "gaussian" and snapshot.entries:
        yield faint(
            "Runs compose as Gaussian mechanisms: μ² adds up, so spent ε and remaining ε do not sum to the total."
        )
    if snapshot.entries:
        yield _charges(list(enumerate(snapshot.entries, 1))[-_SHOWN:])
    count = len(snapshot.entries)
    earlier = f", the last {_SHOWN} shown" if count > _SHOWN else ""
    yield faint(f"{count:,} run{'' if count == 1 else 's'}{earlier}")


def _charges(numbered: list[tuple[int, Entry]]) -> str:
    """The latest charges; a database also stores the user and time of each."""
    header, rows = ["no.", "run", "ε", "δ"], []
    if any(isinstance(entry, StoredEntry) for _, entry in numbered):
        header += ["who", "when"]
    for place, entry in numbered:
        known = [entry.user, f"{entry.time[:16].replace('T', ' ')} UTC"] if isinstance(entry, StoredEntry) else []
        rows.append([str(place), entry.description, epsilon_text(entry.epsilon), number(entry.delta), *known])
    return small_table("Latest charges", header, rows, [0, 2, 3])


def _rounded_down(value: float) -> str:
    """Round down to four digits, so that the ledger grants the displayed amount."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3) if 0 < value < math.inf else 1.0
    return number(math.floor(value / unit + 1e-6) * unit if math.isfinite(value) else value)
