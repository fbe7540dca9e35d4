"""The notebook card of a solution: guarantee, spend, result, hyperparameters; and the shapes of an additive model."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpbilevel.errors import MissingExtra
from dpbilevel.plot.shapes import drawn_shapes
from dpbilevel.report.card_parts import BLUE, HEADINGS, TONES, bar, faint, framed, privacy_status, records_of
from dpbilevel.report.elements import epsilon_text, number, text
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

_SHOWN = 6  # hyperparameters
_PICTURES = 6  # shapes


def solution_card(solution: Solution) -> str:
    """The card as HTML. It contains released values and public facts only."""
    status = privacy_status(solution.privacy)
    return framed(TONES[status], HEADINGS[status], solution.privacy.label(), _rows(solution))


def shapes_card(model: Any) -> str:
    """The effects of the columns of a fitted model, the largest ones; empty if it has none, or without matplotlib."""
    own = sorted(getattr(model, "shapes_", ()), key=lambda one: -one.size)
    if not own:
        return ""
    classes = list(map(str, getattr(model, "classes_", ())))
    try:
        figure = drawn_shapes(own[:_PICTURES], classes, "log-odds" if classes else "effect")
    except MissingExtra:
        return ""
    left = len(own) - _PICTURES
    more = f"<div>{faint(f'and {left:,} more columns: dpb.plot.shapes draws all of them')}</div>" if left > 0 else ""
    return str(figure._repr_html_()) + more


def _rows(solution: Solution) -> Iterator[str]:
    budget = solution.privacy.budget
    if budget.is_private:
        for role in solution.privacy.charges:
            spent = solution.privacy.epsilon(role=role)
            who = f"{solution.sizes[role]:,} {records_of(role, solution.privacy)}"
            words = f"ε {epsilon_text(spent)} of {number(budget.epsilon)}, {who}"
            yield bar(words, spent / budget.epsilon, TONES[privacy_status(solution.privacy)])
    else:
        counted = [f"{count:,} {records_of(role, solution.privacy)}" for role, count in solution.sizes.items()]
        yield text(", ".join(counted))
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
