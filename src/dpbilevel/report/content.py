"""The content of every report as plain values. HTML, Markdown and run.json are three renderings of it."""

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

import jax
import numpy as np

from dpbilevel.foundation.tables import short
from dpbilevel.privacy.accounting import Charge
from dpbilevel.report.elements import of_role
from dpbilevel.report.guarantee import guarantee
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.solution.hyperparameters import hyperparameters
from dpbilevel.solution.solution import Solution

Content = dict[str, Any]


def content(review: Review) -> Content:
    """Everything that a report contains, as dictionaries, lists, strings and numbers."""
    solution = review.solution
    plan = [
        {"name": name, "value": short(plain(value)), "reason": reason}
        for name, (value, reason) in solution.parameters.items()
    ]
    return {
        "title": review.title,
        "created": review.created,
        "version": solution.version,
        "method": solution.method,
        "command": review.command,
        "guarantee": _guarantee(solution),
        "spend": [_role(solution, role) for role in solution.privacy.charges],
        "result": solution.result,
        "remarks": list(solution.remarks),
        **_hyperparameters(solution),
        "model": _numbers_of_y(solution) if review.model is None else _linear(review.model),
        "other_releases": _other_releases(solution),
        "noise_to_signal": [entry for entry in plan if entry["name"].endswith("noise to signal")],
        "plan": plan,
        "facts": {str(name): str(fact) for name, fact in review.facts.items()},
        "evaluation": None if review.evaluation is None else review.evaluation.to_json(),
        "schema": None if review.schema is None else plain(review.schema),
    }


def plain(value: Any) -> Any:
    """Convert a value from TOML or NumPy to dictionaries, lists, strings and numbers.

    >>> plain({"range": (np.float32(0.5), 2), "since": date(2026, 1, 1)})
    {'range': [0.5, 2], 'since': '2026-01-01'}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _guarantee(solution: Solution) -> Content:
    privacy, made = solution.privacy, guarantee(solution)
    return {
        "status": made.status,
        "label": privacy.label(),
        "sentence": made.sentence,
        "notice": made.notice,
        "epsilon": privacy.epsilon(),
        "delta": privacy.budget.delta,
        "mu": privacy.mu,
        "budget": {"epsilon": privacy.budget.epsilon, "delta": privacy.budget.delta},
        "adjacency": privacy.budget.adjacency,
        "unit": privacy.unit,
        "accountant": privacy.accountant,
        "noise": "exact" if privacy.exact_noise else "float",
        "void": privacy.void,
        "terms": [{"term": term, "meaning": meaning} for term, meaning in made.terms],
        "meaning": made.meaning,
        "groups": [{"rows": rows, "epsilon": epsilon} for rows, epsilon in made.groups],
        "clipped": [{"what": what, "bound": bound} for what, bound in made.clipped],
        "assumptions": list(made.assumptions),
        "caveats": list(made.caveats),
    }


def _role(solution: Solution, role: str) -> Content:
    privacy = solution.privacy
    charges = zip(privacy.charges[role], privacy.shares(role), strict=True)
    return {
        "role": role,
        "use": of_role(role, privacy),
        "records": solution.sizes.get(role),
        "epsilon": privacy.epsilon(role=role),
        "releases": [_charge(charge, share) for charge, share in charges],
    }


def _charge(charge: Charge, share: float) -> Content:
    return {
        "release": charge.release,
        "uses": charge.uses,
        "sampling": repr(charge.sampling),
        "sensitivity_over_noise": None if charge.declared is not None else charge.ratio,
        "noise_multiplier": charge.noise_multiplier,
        "mu": charge.mu if charge.is_gaussian else None,
        "clip": charge.clip,
        "declared": None if charge.declared is None else repr(charge.declared),
        "share": share,
    }


def _hyperparameters(solution: Solution) -> Content:
    parameters = hyperparameters(solution)
    rounds = 0 if parameters.trajectory is None else len(parameters.trajectory)
    values = [
        {"name": name, "value": value} for name, value in zip(parameters.names, parameters.values.tolist(), strict=True)
    ]
    return {
        "hyperparameters": {
            "quantity": parameters.quantity,
            "logarithmic": parameters.logarithmic,
            "returned": parameters.returned,
            "chosen_round": parameters.chosen,
            "rounds": rounds,
            "values": values,
        },
        "trajectory": None if parameters.trajectory is None else parameters.trajectory.tolist(),
    }


def _linear(model: LinearModel) -> Content:
    return {
        "kind": "linear",
        "estimator": model.estimator,
        "target": model.target,
        "outputs": list(model.outputs),
        "columns": list(model.columns),
        "coefficients": model.coefficients.tolist(),
        "intercepts": model.intercepts.tolist(),
        "noise": None if model.standard_errors is None else model.standard_errors.tolist(),
        "effects": [shape.to_json() for shape in model.shapes],
    }


def _numbers_of_y(solution: Solution) -> Content:
    leaves = jax.tree_util.tree_flatten_with_path(solution.y)[0]
    shapes = {f"y{jax.tree_util.keystr(path)}": list(np.shape(leaf)) for path, leaf in leaves}
    return {"kind": "numbers", "count": sum(int(np.size(leaf)) for _, leaf in leaves), "shapes": shapes}


def _other_releases(solution: Solution) -> list[Content]:
    """Released values of the history other than x: their number, and the values themselves if they are few."""
    releases = []
    for name, tree in solution.history.items():
        if name != "x":
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
            numbers = [number for leaf in leaves for number in leaf.ravel().tolist()] if len(leaves) == 1 else []
            count = sum(leaf.size for leaf in leaves)
            releases.append({"name": name, "numbers": count, "values": numbers if len(numbers) <= _FEW else None})
    return releases


_FEW = 40
