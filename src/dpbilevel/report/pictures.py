"""The pictures of a report as inline SVG, each with a text alternative."""

from typing import Any

import numpy as np

from dpbilevel.evaluation.result import Evaluation
from dpbilevel.plot.calibration_curve import calibration
from dpbilevel.plot.dots import dots
from dpbilevel.plot.shapes import shape
from dpbilevel.plot.spending import spend
from dpbilevel.plot.style import shorten
from dpbilevel.plot.svg import inline_svg
from dpbilevel.plot.trajectories import trajectory
from dpbilevel.report.elements import epsilon_text, number, of_role, text
from dpbilevel.report.review import LinearModel
from dpbilevel.solution.hyperparameters import Hyperparameters, hyperparameters
from dpbilevel.solution.solution import Solution

_MANY = 5  # hyperparameters: from this number on, a picture is clearer than a table
_NAMED = 6  # largest and smallest hyperparameters that the text alternative names


def spend_picture(solution: Solution) -> str:
    """A stacked bar per role; empty if epsilon is infinite."""
    privacy = solution.privacy
    if not privacy.budget.is_private or not privacy.charges:
        return ""
    described = []
    for role, charges in privacy.charges.items():
        parts = zip(charges, privacy.shares(role), strict=True)
        shares = ", ".join(f"{share:.0%} by {charge.release}" for charge, share in parts)
        described.append(
            f"{of_role(role, privacy).capitalize()} spend epsilon {epsilon_text(privacy.epsilon(role=role))}: {shares}."
        )
    figure = spend(solution).figure
    caption = "Cost of each release for the rows of each use (lower: training, upper: validation)."
    return _framed(figure, "spend-picture", "Spend by role and release", " ".join(described), caption)


def trajectory_picture(solution: Solution) -> str:
    """The trajectory with the returned values; empty if the method releases no trajectory."""
    parameters = hyperparameters(solution)
    if parameters.trajectory is None:
        return ""
    rounds = f"{len(parameters.trajectory):,} round{'' if len(parameters.trajectory) == 1 else 's'}"
    description = f"Trajectory of {len(parameters.names):,} numbers over {rounds}. {_in_words(parameters)}"
    caption = f"Every {parameters.quantity}, as released after each of {rounds}. Rings mark the returned values."
    if len(parameters.names) > 1:
        caption += " Lines that end close together share a label (+ counts the others); unlabelled lines are grey."
    return _framed(
        trajectory(solution).figure,
        "trajectory-picture",
        f"Trajectory of every {parameters.quantity}",
        description,
        caption,
    )


def values_picture(solution: Solution) -> str:
    """The returned hyperparameters as dots; empty if there are few."""
    parameters = hyperparameters(solution)
    if len(parameters.names) < _MANY or not np.isfinite(parameters.values).any():
        return ""
    title, caption = (
        f"Every returned {parameters.quantity}",
        f"Every returned {parameters.quantity}, the largest on top.",
    )
    if len(parameters.names) > len(dots(parameters).get_yticks()):
        caption = f"The largest and the smallest of {len(parameters.names):,} returned values."
    return _framed(dots(parameters).figure, "values-picture", title, _in_words(parameters), caption)


def shape_pictures(model: LinearModel) -> list[str]:
    """A small plot for each column before encoding, those of the largest effect first."""
    unit = "log-odds" if "Classifier" in model.estimator or "Logistic" in model.estimator else shorten(model.target)
    pictures = []
    for place, own in enumerate(sorted(model.shapes, key=lambda one: -one.size)):
        low, high = float(own.effect.min()), float(own.effect.max())
        noise = "" if own.error is None else f", with a standard deviation of up to {number(float(own.error.max()), 2)}"
        title, described = f"Effect of {own.name}", f"From {number(low, 3)} to {number(high, 3)} {unit}{noise}."
        figure = shape(own, outputs=model.outputs, unit=unit).figure
        picture = inline_svg(figure, name=f"shape-{place}", title=title, description=described)
        pictures.append(f"<figure>\n{picture}\n</figure>")
    return pictures


def calibration_picture(evaluation: Evaluation) -> str:
    """The calibration curve with its intervals; empty if it was not among the scores."""
    if "calibration" not in evaluation.values:
        return ""
    _, rows = evaluation.bin_rows()
    described = "; ".join(f"{row[0]}: {row[-2]}, {row[-1]}" for row in rows)
    caption = f"Share of positives by predicted probability, {evaluation.meanings['calibration']}. Lines are intervals."
    title = "Calibration curve"
    return _framed(
        calibration(evaluation).figure,
        "calibration-picture",
        title,
        f"Share and interval by bin: {described}.",
        caption,
    )


def _in_words(parameters: Hyperparameters) -> str:
    order = np.argsort(-parameters.values, kind="stable")
    named = [f"{parameters.names[column]} {number(float(parameters.values[column]))}" for column in order]
    if len(named) > 2 * _NAMED:
        return f"Returned, largest first: {', '.join(named[:_NAMED])}; smallest: {', '.join(named[-_NAMED:])}."
    return f"Returned, largest first: {', '.join(named)}."


def _framed(figure: Any, name: str, title: str, description: str, caption: str) -> str:
    picture = inline_svg(figure, name=name, title=title, description=description)
    return f"<figure>\n{picture}\n<figcaption>{text(caption)}</figcaption>\n</figure>"
