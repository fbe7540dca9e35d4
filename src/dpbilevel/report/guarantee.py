"""The privacy guarantee of a run in words that a review can quote, with its assumptions and its limits."""

from collections.abc import Iterator
from dataclasses import dataclass

from dpbilevel.foundation.tables import short
from dpbilevel.privacy.accounting import Charge
from dpbilevel.privacy.spend import rounded_up
from dpbilevel.report.card_parts import privacy_status
from dpbilevel.report.elements import of_role
from dpbilevel.solution.solution import Solution

_GROUPS = (2, 5, 10)  # rows of one person
_FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Guarantee:
    """The privacy guarantee of a run.

    Attributes:
        status: "private", "private with caveats" or "not private".
        sentence: the complete guarantee in one sentence that can be quoted.
        notice: a warning that readers must see first; empty for a private run without caveats.
        terms: (term, meaning) for every term of the sentence.
        meaning: the guarantee in plain words.
        groups: (rows, epsilon) for a person with several rows, at the same delta.
        clipped: (name, bound) for everything that was clipped.
        assumptions: the assumptions of the guarantee.
        caveats: reasons why it may not hold as stated.
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
        groups=tuple(_groups(solution)) if private else (),
        clipped=tuple(_clipped(solution)) if private else (),
        assumptions=tuple(_assumptions(solution)) if private else (),
        caveats=privacy.caveats,
    )


def _sentence(solution: Solution) -> str:
    privacy = solution.privacy
    if not privacy.budget.is_private:
        return (
            "NOT PRIVATE: epsilon is infinite, neither noise nor clipping was applied, and the values that this run "
            f"released protect no record; dpbilevel {solution.version}."
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
        f"{seed}{privacy.stated()}, where {_record(solution)}; epsilon was computed by "
        f"{_accountant(solution)}; {_clipping(solution)}; this assumes that {_premises(solution)}; {caveats}{noise}"
        f"computed with dpbilevel {solution.version}."
    )


def _record(solution: Solution) -> str:
    most = solution.privacy.rows_per_unit
    if most is None:
        return "a record is one row of the data, not a person"
    used = "one is" if most == 1 else f"at most {most} are"
    return f"a record is a unit, one person or whatever an id denotes: all of its rows, of which {used} used"


def _groups(solution: Solution) -> Iterator[tuple[int, float]]:
    """Epsilons for several rows of one person; a unit has all of them."""
    if solution.privacy.charges and solution.privacy.rows_per_unit is None:
        for rows in _GROUPS:
            yield rows, solution.privacy.epsilon(group=rows)


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
        *(["the set of ids does not change"] if solution.privacy.rows_per_unit is not None else []),
        "settings and declared ranges, categories and classes were chosen without looking at the records",
        "attacks on timing are out of reach"
        if solution.privacy.exact_noise
        else "attacks on the lowest bits of floating-point noise and on timing are out of reach",
    ]
    return ", that ".join(premises[:-1]) + ", and that " + premises[-1]


def _notice(solution: Solution) -> str:
    privacy = solution.privacy
    if not privacy.budget.is_private:
        return "This run is not private: epsilon is infinite. Do not publish its values as if they were private."
    if privacy.void:
        return (
            "This run is not private: its noise came from a fixed seed, and anyone who knows the seed can compute it. "
            "Do not publish its values as if they were private. Run it again without a seed."
        )
    if privacy.caveats:
        return "The guarantee is subject to the caveats below. Read them before you rely on it."
    return ""


def _terms(solution: Solution) -> Iterator[tuple[str, str]]:
    privacy = solution.privacy
    budget = privacy.budget
    relation = {
        "replace-one": "replace-one: two data sets are neighbours if they differ in the content of one record",
        "zero-out": "zero-out: two data sets are neighbours if one record of the first contributes nothing in the "
        "second",
    }[budget.adjacency]
    yield "Neighbours", f"{relation}. The number of records is the same in both"
    if privacy.rows_per_unit is None:
        yield "Unit", "one record, that is, one row of the data; not a person, who may have several rows"
    else:
        yield "Unit", f"{privacy.unit}. In both data sets the ids are the same; the number of rows may differ"
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
        return "drawn from a fixed seed: anyone who knows the seed can compute it, so it protects no record"
    if privacy.exact_noise:
        return (
            "discrete Gaussian: integers that OpenDP samples exactly, with a generator seeded by the operating system, "
            "and that are added to sums of integers; no seed can be fixed"
        )
    return "Gaussian, drawn in float64 from keys generated by the operating system; no seed was fixed, none is stored"


def _meaning(solution: Solution) -> str:
    privacy = solution.privacy
    if privacy.void or not privacy.charges:
        return ""
    power = 1 - float(privacy.tradeoff(_FALSE_ALARMS))
    return (
        f"Consider an attacker who knows every other record and tests, from everything that was released, whether one "
        f"record was exchanged. At a false alarm rate of {100 * _FALSE_ALARMS:g}%, any such test detects the exchange "
        f"with probability at most {rounded_up(100 * power, 3)}%. Without any release it would be "
        f"{100 * _FALSE_ALARMS:g}%."
    )


def _clipped(solution: Solution) -> Iterator[tuple[str, str]]:
    """Bounds that the plan explains, then the bounds of all other releases from their charges."""
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
        uses = ", ".join(of_role(role, solution.privacy) for role in solution.sizes)
        yield f"No record is in two roles ({uses}), so the total is the largest spend of a role."
    yield "The number of records of each role is public."
    if solution.privacy.rows_per_unit is not None:
        units = "three" if "heldout" in solution.sizes else "two"  # one more at each boundary between roles
        rounding = "" if solution.privacy.exact_noise else ", up to rounding of sums"
        yield (
            f"The set of ids does not change: to replace one may change {units} units{rounding}. Each has at least one "
            "row, unless a public list declares all ids. The number of rows is private."
        )
    yield (
        "Settings, the starting point and all declarations about columns, targets and classes were chosen without "
        "looking at these records."
    )
    if any(not charge.sampling.is_full_batch for charge in _charges(solution)):
        yield "Which records were in which batch stays secret, as does the noise."
    trusted = _names(_taken_on_trust(solution))
    if trusted:
        yield f"The declared privacy of {trusted} is correct: it was not computed here."
    if solution.privacy.exact_noise:
        yield "OpenDP samples the discrete Gaussian exactly, independently and secretly."
    else:
        yield (
            "Noise is drawn in float64. Its lowest bits are not protected against attacks on floating-point arithmetic "
            '(noise="exact" is).'
        )
    yield "The run time and the memory use are not protected."
    yield "Epsilon covers this run only. Other runs on the same records add to it: see the ledger of the data set."


def _charges(solution: Solution) -> list[Charge]:
    return [charge for charges in solution.privacy.charges.values() for charge in charges]


def _accountant(solution: Solution) -> str:
    """The accountant of the plan if it names one, otherwise that of the charges."""
    kind, reason = solution.parameters.get("accountant", ("", ""))
    return f"the {kind} accountant ({reason})" if kind else solution.privacy.accountant


def _taken_on_trust(solution: Solution) -> list[Charge]:
    """Charges declared by a black box. A search that the plan accounts for is declared by the library itself."""
    if "accountant" in solution.parameters:
        return []
    return [charge for charge in _charges(solution) if charge.clip is None]


def _names(charges: list[Charge]) -> str:
    return ", ".join(dict.fromkeys(f"“{charge.release}”" for charge in charges))
