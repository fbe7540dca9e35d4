"""The pictures of a report as inline SVG, each with words for who cannot see it."""

from typing import Any

import numpy as np

from dpbilevel.plot.dots import dots
from dpbilevel.plot.spending import spend
from dpbilevel.plot.svg import inline_svg
from dpbilevel.plot.trajectories import trajectory
from dpbilevel.report.elements import epsilon_text, number, text
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

_MANY = 5  # hyperparameters, from which a picture says more than a table
_TOLD = 6  # of them in words


def spend_picture(solution: Solution) -> str:
    """The stacked bar of every role; nothing where epsilon is infinite."""
    privacy = solution.privacy
    if not privacy.budget.is_private or not privacy.charges:
        return ""
    described = []
    for role, charges in privacy.charges.items():
        parts = zip(charges, privacy.shares(role), strict=True)
        shares = ", ".join(f"{share:.0%} by {charge.release}" for charge, share in parts)
        described.append(f"Records of role {role} spend epsilon {epsilon_text(privacy.epsilon(role=role))}: {shares}.")
    figure = spend(solution).figure
    caption = "What each release costs the records of each role."
    return _framed(figure, "spend-picture", "Spend by role and release", " ".join(described), caption)


def course_picture(solution: Solution) -> str:
    """The trajectory with the returned values; nothing where a method releases none."""
    told = hyperparameters(solution)
    if told.trajectory is None:
        return ""
    rounds = f"{len(told.trajectory):,} round{'' if len(told.trajectory) == 1 else 's'}"
    description = f"Trajectory of {len(told.names):,} numbers over {rounds}. {_in_words(told)}"
    caption = f"Every {told.quantity}, as released after each of {rounds}. Rings: what was returned."
    if len(told.names) > 1:
        caption += " Lines that end together share a name (+: and so many others); unnamed ones are grey."
    return _framed(
        trajectory(solution).figure, "trajectory-picture", f"Trajectory of every {told.quantity}", description, caption
    )


def values_picture(solution: Solution) -> str:
    """The returned hyperparameters as dots, where there are many."""
    told = hyperparameters(solution)
    if len(told.names) < _MANY or not np.isfinite(told.values).any():
        return ""
    title, caption = f"Every returned {told.quantity}", f"Every returned {told.quantity}, the largest on top."
    if len(told.names) > len(dots(told).get_yticks()):
        caption = f"The largest and the smallest of {len(told.names):,} returned values."
    return _framed(dots(told).figure, "values-picture", title, _in_words(told), caption)


def _in_words(told: Hyperparameters) -> str:
    order = np.argsort(-told.values, kind="stable")
    named = [f"{told.names[column]} {number(float(told.values[column]))}" for column in order]
    if len(named) > 2 * _TOLD:
        return f"Returned, largest first: {', '.join(named[:_TOLD])}; smallest: {', '.join(named[-_TOLD:])}."
    return f"Returned, largest first: {', '.join(named)}."


def _framed(figure: Any, name: str, title: str, description: str, caption: str) -> str:
    picture = inline_svg(figure, name=name, title=title, description=description)
    return f"<figure>\n{picture}\n<figcaption>{text(caption)}</figcaption>\n</figure>"
