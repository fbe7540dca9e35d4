"""The guarantee of a run in words that a review can quote: what is promised, what it rests on, what it leaves out."""

from collections.abc import Iterator
from dataclasses import dataclass

from dpbilevel.foundation.tables import short
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.spend import rounded_up
from dpbilevel.report.card_parts import privacy_status
from dpbilevel.solution.solution import Solution

_GROUPS = (2, 5, 10)  # rows of one person
_FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Guarantee:
    """What a run promises.

    Attributes:
        status: "private", "private with caveats" or "not private".
        sentence: the whole guarantee in one sentence that can be quoted.
        notice: what a reader must know first; empty for a sound run.
        terms: (term, meaning) of everything in the sentence.
        meaning: the same in plain words, as far as that goes.
        groups: (rows, epsilon) for a person with several rows, at the same delta.
        clipped: (what, bound) of everything that was clipped.
        assumptions: what the guarantee rests on.
        caveats: why it may not hold as stated.
    """

    status: str
    sentence: str
    notice: str
    terms: tuple[tuple[str, str], ...]
    meaning: str
    groups: tuple[tuple[int, float], ...]
    clipped: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    caveats: tuple[str, ...]


def guarantee(solution: Solution) -> Guarantee:
    """The guarantee of a solution, from its declared charges and the numbers of its plan."""
    privacy = solution.privacy
    private = privacy.budget.is_private
    return Guarantee(
        status=privacy_status(privacy),
        sentence=_sentence(solution),
        notice=_notice(solution),
        terms=tuple(_terms(solution)),
        meaning=_meaning(solution),
        groups=tuple((rows, privacy.epsilon(group=rows)) for rows in _GROUPS) if private and privacy.charges else (),
        clipped=tuple(_clipped(solution)) if private else (),
        assumptions=tuple(_assumptions(solution)) if private else (),
        caveats=privacy.caveats,
    )


def _sentence(solution: Solution) -> str:
    privacy = solution.privacy
    if not privacy.budget.is_private:
        return (
            "NOT PRIVATE: epsilon is infinite, neither noise nor clipping was applied, and what this run released "
            f"protects no record; dpbilevel {solution.version}."
        )
    seed = (
        "NOT PRIVATE, because a fixed seed makes the noise known; with secret noise, all values that this run released "
        "would, taken together, be "
        if privacy.void
        else "All values that this run released are, taken together, "
    )
    caveats = f"subject to the caveats that {'; '.join(privacy.caveats)}; " if privacy.caveats else ""
    noise = "" if privacy.void else "no seed was fixed; "
    return (
        f"{seed}{privacy.stated()}, where a record is one row of the data, not a person; epsilon was computed by "
        f"{_accountant(solution)}; {_clipping(solution)}; this assumes that {_premises(solution)}; {caveats}{noise}"
        f"computed with dpbilevel {solution.version}."
    )


def _clipping(solution: Solution) -> str:
    trusted = _names(_taken_on_trust(solution))
    exact = solution.privacy.exact_noise
    then = "and rounded to integers before integer noise was added" if exact else "before Gaussian noise was added"
    clipped = f"each record's contribution to each release was clipped to a bounded norm {then}"
    return f"{clipped}, except that the privacy of {trusted} is taken as declared" if trusted else clipped


def _premises(solution: Solution) -> str:
    disjoint = ["no record is in two roles"] if len(solution.sizes) > 1 else []
    premises = [
        *disjoint,
        "numbers of records are public",
        "settings and declared ranges, categories and classes were chosen without looking at the records",
        "attacks on timing are out of reach"
        if solution.privacy.exact_noise
        else "attacks on the lowest bits of floating-point noise and on timing are out of reach",
    ]
    return ", that ".join(premises[:-1]) + ", and that " + premises[-1]


def _notice(solution: Solution) -> str:
    privacy = solution.privacy
    if not privacy.budget.is_private:
        return "This run is not private: epsilon is infinite. Do not publish its values as if they protected anybody."
    if privacy.void:
        return (
            "This run is not private: its noise came from a fixed seed and can be computed again by anybody who knows "
            "it. Do not publish its values as if they protected anybody. Run it again without a seed."
        )
    if privacy.caveats:
        return "The guarantee holds only as far as the caveats below allow. Read them before you rely on it."
    return ""


def _terms(solution: Solution) -> Iterator[tuple[str, str]]:
    privacy = solution.privacy
    budget = privacy.budget
    relation = {
        "replace-one": "replace-one: two data sets are neighbours if they differ in the content of one record",
        "zero-out": "zero-out: two data sets are neighbours if one record of one contributes nothing in the other",
    }[budget.adjacency]
    yield "Neighbours", f"{relation}. The number of records is the same in both"
    yield "Unit", "one record, that is one row of the data; not a person, who may have several"
    if budget.is_private:
        spent = rounded_up(privacy.epsilon())
        yield "Spent", f"epsilon {spent} of a budget of {budget.epsilon:g}, at delta {budget.delta:g}"
        yield "Accountant", _accountant(solution)
    yield "Noise", _noise(solution)
    yield "Software", f"dpbilevel {solution.version}"


def _noise(solution: Solution) -> str:
    privacy = solution.privacy
    if not privacy.budget.is_private:
        return "none"
    if privacy.void:
        return "from a fixed seed: it can be computed again, and protects nobody"
    if privacy.exact_noise:
        return (
            "discrete Gaussian: integers, drawn exactly by OpenDP with a generator that the operating system seeds, "
            "and added to sums of integers; there is no seed to fix"
        )
    return "Gaussian, drawn in float64 from keys that the operating system made; no seed was fixed, none is kept"


def _meaning(solution: Solution) -> str:
    privacy = solution.privacy
    if privacy.void or not privacy.charges:
        return ""
    power = 1 - float(privacy.tradeoff(_FALSE_ALARMS))
    return (
        f"Somebody who knows every other record, and tests from all that was released whether one record was "
        f"exchanged, with a false alarm in {100 * _FALSE_ALARMS:g} of 100 cases, notices it in at most "
        f"{rounded_up(100 * power, 3)} of 100. Without any release it would be {100 * _FALSE_ALARMS:g}."
    )


def _clipped(solution: Solution) -> Iterator[tuple[str, str]]:
    """Bounds that the plan explains; and the bound of every other release, which its charge has."""
    explained = set()
    for name, (value, reason) in solution.parameters.items():
        release, _, what = name.rpartition(": ")
        kind, _, part = what.partition(" ")
        if release and kind in ("clip", "range"):
            explained.add(release)
            bound = f"norm at most {short(value)}" if kind == "clip" else f"from {' to '.join(map(short, value))}"
            yield f"{release} {part.replace('of the', '–', 1)}".strip(), f"{bound} ({reason})"
    for charge in _charges(solution):
        if charge.clip is not None and charge.release not in explained:
            explained.add(charge.release)
            yield charge.release, f"each record's vector to norm {charge.clip:g}"
    for name in dict.fromkeys(charge.release for charge in _taken_on_trust(solution)):
        yield name, "bounded by the black box itself, as it declares"


def _assumptions(solution: Solution) -> Iterator[str]:
    if len(solution.sizes) > 1:
        yield f"No record is in two roles ({', '.join(solution.sizes)}): the total is the largest spend of a role."
    yield "The number of records of each role is public."
    yield (
        "Settings, the starting point and everything that was declared about columns, targets and classes were chosen "
        "without looking at these records."
    )
    if any(not charge.sampling.is_full_batch for charge in _charges(solution)):
        yield "Which records were in which batch stays secret, as does the noise."
    trusted = _names(_taken_on_trust(solution))
    if trusted:
        yield f"What is declared of {trusted} is true: its privacy was not computed here."
    if solution.privacy.exact_noise:
        yield "OpenDP draws what it says: integers of the discrete Gaussian, independent and secret."
    else:
        yield (
            "Noise is drawn in float64; its lowest bits are not hardened against attacks on floating-point arithmetic "
            '(noise="exact" is).'
        )
    yield "How long the run took, and how much memory, is not protected."
    yield (
        "Epsilon is that of this run. Other runs on the same records add to it: the ledger of the data set has the "
        "total."
    )


def _charges(solution: Solution) -> list[Charge]:
    return [charge for charges in solution.privacy.charges.values() for charge in charges]


def _accountant(solution: Solution) -> str:
    """The plan's own accountant, where it has one, or that of the charges."""
    kind, reason = solution.parameters.get("accountant", ("", ""))
    return f"the {kind} accountant ({reason})" if kind else solution.privacy.accountant


def _taken_on_trust(solution: Solution) -> list[Charge]:
    """Charges that a black box declares. A search that the plan accounts for is declared by the library itself."""
    if "accountant" in solution.parameters:
        return []
    return [charge for charge in _charges(solution) if charge.clip is None]


def _names(charges: list[Charge]) -> str:
    return ", ".join(dict.fromkeys(f"“{charge.release}”" for charge in charges))
