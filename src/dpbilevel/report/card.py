"""A solution as a compact card for notebooks: the guarantee, the spend, the hyperparameters, the records.

Notebooks are light or dark and have styles of their own: the card inherits text and background, brings no stylesheet,
and its few colours are seen on both.
"""

import math
from collections.abc import Iterator

import numpy as np

from dpbilevel.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.report.elements import epsilon_text, number, text
from dpbilevel.report.guarantee import CAVEATS, NOT_PRIVATE, PRIVATE, status
from dpbilevel.solution import Solution

_TONES = {PRIVATE: "#2a9461", CAVEATS: "#b9770e", NOT_PRIVATE: "#d64545"}
_SHOUTS = {PRIVATE: "Private", CAVEATS: "Private, with caveats", NOT_PRIVATE: "NOT PRIVATE"}
_BLUE = "#2f86c1"
_LINE = "rgba(128, 128, 128, .35)"
_SHOWN = 6  # hyperparameters


def solution_card(solution: Solution) -> str:
    """The card as HTML; everything in it is released or public."""
    tone = _TONES[status(solution)]
    frame = (
        f"border: 1px solid {_LINE}; border-left: 5px solid {tone}; border-radius: 6px; padding: .6em 1em; "
        "margin: .4em 0; max-width: 38em; line-height: 1.45; font-size: 13px; color: inherit"
    )
    rows = "".join(f"<div style='margin-top: .45em'>{row}</div>" for row in _rows(solution))
    head = f"<strong style='color: {tone}'>{text(_SHOUTS[status(solution)])}</strong>"
    label = text(solution.privacy.label())
    return f"<div style='{frame}' role='group' aria-label='{label}'>{head}<br>{label}{rows}</div>"


def _rows(solution: Solution) -> Iterator[str]:
    budget = solution.privacy.budget
    if budget.is_private:
        for role in solution.privacy.charges:
            spent = solution.privacy.epsilon(role=role)
            words = f"ε {epsilon_text(spent)} of {number(budget.epsilon)}, {solution.sizes[role]:,} {role} records"
            yield _bar(words, spent / budget.epsilon, _TONES[status(solution)])
    else:
        yield text(", ".join(f"{count:,} {role} records" for role, count in solution.sizes.items()))
    told = hyperparameters(solution)
    yield f"<em>{text(told.quantity)}</em>" + "".join(_values(told))
    yield from (f"Remark: {text(remark)}." for remark in solution.remarks)
    made = f"{solution.method.partition('(')[0]}, dpbilevel {solution.version}"
    yield f"<span style='opacity: .75'>{text(made)}</span>"


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
        yield _bar(words, float(sizes[column]) / largest, _BLUE)
    if len(order) > _SHOWN:
        yield f"<span style='opacity: .75'>and {len(order) - _SHOWN:,} more</span>"


def _bar(words: str, part: float, colour: str) -> str:
    width = 100 * min(max(part, 0.0), 1.0) if math.isfinite(part) else 0.0
    track = f"flex: 0 0 8em; height: .55em; border-radius: 2px; background: {_LINE}; overflow: hidden"
    bar = f"<span style='display: block; height: 100%; width: {width:.1f}%; background: {colour}'></span>"
    return (
        "<div style='display: flex; align-items: center; gap: .8em'>"
        f"<span style='{track}' aria-hidden='true'>{bar}</span><span>{text(words)}</span></div>"
    )
