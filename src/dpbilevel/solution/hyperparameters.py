"""The x of a solution in readable form: named numbers and their trajectory."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpbilevel.solution.solution import Solution

Tree = Any
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Hyperparameters:
    """Named numbers.

    Attributes:
        quantity: the quantity that each number is, such as "penalty".
        names: one name per number.
        values: the returned values, or exp(x) if x holds logarithms.
        logarithmic: whether a logarithmic scale is appropriate.
        trajectory: array (rounds, numbers) of the values after every round; None if the method releases no trajectory.
        chosen: the round, counted from one, whose iterate was returned; None if it was no single one.
        returned: description of the returned values; empty if the method gives none.
    """

    quantity: str
    names: tuple[str, ...]
    values: Numbers
    logarithmic: bool
    trajectory: Numbers | None
    chosen: int | None
    returned: str


def hyperparameters(solution: Solution) -> Hyperparameters:
    """The x of a solution, which may be any pytree, with the names of its legend if there is one.

    >>> from dpbilevel.solution.solution import Legend
    >>> import dpbilevel as dpb
    >>> solution = Solution(
    ...     x=np.array([0.0, np.log(2.0)]),
    ...     y=0.0,
    ...     privacy=dpb.Privacy({}, dpb.Budget(1.0, 1e-6)),
    ...     history={},
    ...     parameters={},
    ...     sizes={},
    ...     method="",
    ...     version="",
    ...     legend=Legend("penalty", ("age", "sex"), logarithmic=True),
    ... )
    >>> penalties = hyperparameters(solution)
    >>> dict(zip(penalties.names, penalties.values.round(3).tolist()))
    {'age': 1.0, 'sex': 2.0}
    """
    named = named_numbers("x", solution.x)
    names, values = tuple(name for name, _ in named), np.array([value for _, value in named], np.float64)
    quantity, logarithmic = "hyperparameter", False
    if solution.legend is not None and len(solution.legend.names) == len(names):
        quantity, names, logarithmic = solution.legend.quantity, solution.legend.names, solution.legend.logarithmic
    trajectory = _trajectory(solution.history.get("x"), len(names))
    output, reason = solution.parameters.get("output", ("", ""))
    chosen = None if trajectory is None or output == "average" else _round_of(trajectory, values)

    def shown(numbers: Numbers) -> Numbers:
        with np.errstate(over="ignore"):  # an infinite penalty is shown as such
            return np.exp(numbers) if logarithmic else numbers

    return Hyperparameters(
        quantity=quantity,
        names=names,
        values=shown(values),
        logarithmic=logarithmic,
        trajectory=None if trajectory is None else shown(trajectory),
        chosen=chosen,
        returned=reason,
    )


def named_numbers(root: str, tree: Tree) -> list[tuple[str, float]]:
    """Every number of a pytree with its path.

    >>> named_numbers("y", {"w": np.array([1.0, 2.0]), "b": 3.0})
    [("y['b']", 3.0), ("y['w'][0]", 1.0), ("y['w'][1]", 2.0)]
    """
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf, np.float64)
        name = root + jax.tree_util.keystr(path)
        for place in itertools.product(*map(range, array.shape)):
            where = f"[{', '.join(map(str, place))}]" if place else ""
            named.append((name + where, float(array[place])))
    return named


def _trajectory(history: Tree, numbers: int) -> Numbers | None:
    """One row per round and one column per number of x, in the order of its leaves."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(history)]
    if not leaves or any(leaf.size == 0 or leaf.ndim == 0 for leaf in leaves) or len(set(map(len, leaves))) != 1:
        return None
    trajectory = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    return trajectory if trajectory.shape[1] == numbers else None


def _round_of(trajectory: Numbers, values: Numbers) -> int | None:
    """The first round that ended at exactly these values."""
    (same,) = np.nonzero((trajectory == values).all(axis=1))
    return int(same[0]) + 1 if len(same) else None
