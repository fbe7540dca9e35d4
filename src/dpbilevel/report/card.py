"""A solution as a compact card for notebooks: the guarantee, the spend, the result, the hyperparameters."""

import math
from collections.abc import Iterator

import numpy as np

from dpbilevel.report.card_parts import BLUE, SHOUTS, TONES, bar, faint, framed, privacy_status
from dpbilevel.report.elements import epsilon_text, number, text
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

_SHOWN = 6  # hyperparameters


def solution_card(solution: Solution) -> str:
    """The card as HTML; everything in it is released or public."""
    status = privacy_status(solution.privacy)
    return framed(TONES[status], SHOUTS[status], solution.privacy.label(), _rows(solution))


def _rows(solution: Solution) -> Iterator[str]:
    budget = solution.privacy.budget
    if budget.is_private:
        for role in solution.privacy.charges:
            spent = solution.privacy.epsilon(role=role)
            words = f"ε {epsilon_text(spent)} of {number(budget.epsilon)}, {solution.sizes[role]:,} {role} records"
            yield bar(words, spent / budget.epsilon, TONES[privacy_status(solution.privacy)])
    else:
        yield text(", ".join(f"{count:,} {role} records" for role, count in solution.sizes.items()))
    if solution.result:
        yield text(solution.result)
    told = hyperparameters(solution)
    yield f"<em>{text(told.quantity)}</em>" + "".join(_values(told))
    yield from (f"Remark: {text(remark)}." for remark in solution.remarks)
    made = f"{solution.method.partition('(')[0]}, dpbilevel {solution.version}"
    yield faint(made)


def _values(told: Hyperparameters) -> Iterator[str]:
    """The largest, each with a bar: on a logarithmic scale where they spread over orders of magnitude."""
    order = np.argsort(-told.values, kind="stable")
    sizes = np.abs(told.values)
    if told.logarithmic and (sizes > 0).all():
        sizes = np.log(sizes / sizes.min() * math.e)
    finite = sizes[np.isfinite(sizes)]
    largest = float(finite.max()) if len(finite) and finite.max() > 0 else 1.0
    for column in order[:_SHOWN].tolist():
        words = f"{number(float(told.values[column]))}  {told.names[column]}"
        yield bar(words, float(sizes[column]) / largest, BLUE)
    if len(order) > _SHOWN:
        yield faint(f"and {len(order) - _SHOWN:,} more")
