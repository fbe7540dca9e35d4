"""The report of a run in Markdown: the guarantee, the spend, every number with its reason."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpbilevel.solution import Solution
from dpbilevel.tables import markdown_table, short


def write_report(solution: Solution, path: Path) -> Path:
    """Write the report and return its path."""
    path.write_text(markdown_report(solution), encoding="utf-8")
    return path


def markdown_report(solution: Solution) -> str:
    """The report as text. It contains released values and public facts only."""
    privacy = solution.privacy
    parts = ["# Report of a private bilevel run", f"**{privacy.sentence()}**"]
    if privacy.void:
        parts.append("> This run is **not private**. Do not publish its values as if it were.")
    spend = [
        [
            role,
            f"{solution.sizes[role]:,}",
            charge.release,
            f"{charge.steps:,}",
            f"{charge.ratio:.6g}",
            f"{charge.mu:.6g}",
        ]
        for role, charges in privacy.charges.items()
        for charge in charges
    ]
    totals = [[role, f"{privacy.epsilon(role=role):.6g}"] for role in privacy.charges]
    parts += [
        "## Spend",
        markdown_table(["role", "records", "release", "uses", "sensitivity / noise", "mu"], spend),
        markdown_table(["role", "epsilon"], totals),
        "Roles hold disjoint records: the total is the maximum over roles. Full-batch uses compose as mu^2 = sum of "
        "uses * (sensitivity / noise)^2, and "
        "delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2).",
        "## Released hyperparameters",
        _values(solution.x),
        "## Numbers of the plan",
        markdown_table(
            ["number", "value", "why"], [[name, short(value), why] for name, (value, why) in solution.numbers.items()]
        ),
        "## How it was made",
        f"Method: `{solution.method}`, dpbilevel {solution.version}.",
    ]
    return "\n\n".join(parts) + "\n"


def _values(tree: Any) -> str:
    rows = [
        [
            jax.tree_util.keystr(path) or "x",
            np.array2string(np.asarray(leaf), precision=6, threshold=40).replace("\n", " "),
        ]
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    return markdown_table(["name", "value"], rows)
