"""Remarks on a returned x that lies on the boundary of its domain.

They follow from released values and public facts such as the domain, and are post-processing.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.constraints import Ball, Box, ConvexSet, NonNegative, Simplex
from dpbilevel.planning import Plan
from dpbilevel.solution.hyperparameters import named_numbers
from dpbilevel.solution.solution import Legend

Tree = Any
Numbers = npt.NDArray[np.float64]

_NEAR = 1e-3  # relative to the width of a range: an average of iterates is near the bound if most of them are at it
_ZERO = 1e-6  # relative to the largest number of x, for ranges of infinite width
_NAMED = 3
_MEANING = "; the optimum may lie outside, or noise may have led there"


def result_remarks(planned: Plan, x: Tree, legend: Legend | None = None) -> tuple[str, ...]:
    """Remarks on a returned x, without a full stop.

    Args:
        planned: the plan of the run.
        x: the returned x.
        legend: names of its numbers, if known.
    """
    remarks: list[str] = []
    names = [name for name, _ in named_numbers("x", x)]
    if legend is not None and len(legend.names) == len(names):
        names = [f"{legend.quantity} “{name}”" for name in legend.names]
    logarithmic = legend is not None and legend.logarithmic
    parts: list[tuple[ConvexSet, Tree]] = []
    jax.tree.map(lambda convex_set, part: parts.append((convex_set, part)), planned.problem.domain, x)
    for convex_set, part in parts:
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(part)]
        own, names = names[: (count := sum(leaf.size for leaf in leaves))], names[count:]
        remarks += _edges(convex_set, leaves, own, logarithmic)
    return tuple(remarks)


def _edges(convex_set: ConvexSet, leaves: Sequence[Numbers], names: Sequence[str], logarithmic: bool) -> Iterator[str]:
    """Remarks on numbers at the boundary of a set; none for sets that are not the library's own."""
    values = np.concatenate([leaf.ravel() for leaf in leaves])
    if isinstance(convex_set, Box):
        low, high = (
            np.concatenate([np.broadcast_to(np.asarray(bound, np.float64), leaf.shape).ravel() for leaf in leaves])
            for bound in (convex_set.lower, convex_set.upper)
        )
        bounded = np.isfinite(high - low)
        near = np.where(bounded, _NEAR * np.where(bounded, high - low, 0.0), _ZERO * np.maximum(np.abs(values), 1))
        with np.errstate(invalid="ignore"):  # infinite bounds
            at_low, at_high = (values <= low + near) & (low < high), (values >= high - near) & (low < high)
        yield from _at("the lower end", at_low, low, names, logarithmic)
        yield from _at("the upper end", at_high, high, names, logarithmic)
    elif isinstance(convex_set, NonNegative):
        at_zero = values <= _ZERO * np.abs(values).max()
        yield from _at("the lower end", at_zero, np.zeros_like(values), names, logarithmic=False)
    elif isinstance(convex_set, Ball) and math.hypot(*values) >= (1 - _NEAR) * convex_set.radius:
        yield f"At the edge of its ball, of radius {convex_set.radius:.4g}: x{_MEANING}"
    elif isinstance(convex_set, Simplex) and len(values) > 1 and values.max() >= (1 - _NEAR) * convex_set.total:
        yield f"At a corner of its simplex: x; all weights but {names[int(values.argmax())]} are zero"


def _at(
    end: str, mask: npt.NDArray[np.bool_], bounds: Numbers, names: Sequence[str], logarithmic: bool
) -> Iterator[str]:
    places = np.flatnonzero(mask).tolist()
    if len(places) == 1:
        bound = np.exp(bounds[places[0]]) if logarithmic else bounds[places[0]]
        yield f"At {end} of its range, {bound:.4g}: {names[places[0]]}{_MEANING}"
    elif places:
        more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
        named = ", ".join(names[place] for place in places[:_NAMED])
        yield f"At {end} of their range: {len(places):,} of {len(names):,} numbers of x ({named}{more}){_MEANING}"
