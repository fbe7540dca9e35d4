"""The notebook card of a solution: guarantee, spend, result and hyperparameters."""

import math
from collections.abc import Iterator

import numpy as np

from dpbilevel.report.card_parts import BLUE, HEADINGS, TONES, bar, faint, framed, privacy_status
from dpbilevel.report.elements import epsilon_text, number, text
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

_SHOWN = 6  # hyperparameters


def solution_card(solution: Solution) -> str:
    """The card as HTML. It contains released values and public facts only."""
    status = privacy_status(solution.privacy)
    return framed(TONES[status], HEADINGS[status], solution.privacy.label(), _rows(solution))


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
    parameters = hyperparameters(solution)
    yield f"<em>{text(parameters.quantity)}</em>" + "".join(_values(parameters))
    yield from (f"Remark: {text(remark)}." for remark in solution.remarks)
    made = f"{solution.method.partition('(')[0]}, dpbilevel {solution.version}"
    yield faint(made)


def _values(parameters: Hyperparameters) -> Iterator[str]:
    """The largest values, each with a bar; bars are logarithmic for hyperparameters on a logarithmic scale."""
    order = np.argsort(-parameters.values, kind="stable")
    sizes = np.abs(parameters.values)
    if parameters.logarithmic and (sizes > 0).all():
        sizes = np.log(sizes / sizes.min() * math.e)
    finite = sizes[np.isfinite(sizes)]
    largest = float(finite.max()) if len(finite) and finite.max() > 0 else 1.0
    for column in order[:_SHOWN].tolist():
        words = f"{number(float(parameters.values[column]))}  {parameters.names[column]}"
        yield bar(words, float(sizes[column]) / largest, BLUE)
    if len(order) > _SHOWN:
        yield faint(f"and {len(order) - _SHOWN:,} more")
