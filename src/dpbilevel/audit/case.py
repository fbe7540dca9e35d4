"""The subject of an audit: a method, a problem, and two data sets that differ in one record."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpbilevel.audit.runs import Arrays
from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.arguments import printable
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.unit_losses import problem_of_units
from dpbilevel.planning import DEFAULT_METHOD, Method, Plan, checked_start, prepare
from dpbilevel.privacy.accounting import ROLES
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.units import Selection
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records

Tree = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A method, a problem and two neighbouring data sets. The data must be synthetic: audits charge no ledger.

    Args:
        name: the name of the case in tables.
        problem, method, refit, start: as in `dpb.solve`.
        records: a pytree of arrays by role ("upper" and "lower", or "both"), as for `dpb.Records`.
        neighbour: the same with one record replaced. Under "zero-out" that record contributes nothing instead.

    >>> import numpy as np, dpbilevel as dpb
    >>> problem = dpb.BilevelProblem(
    ...     upper_term=lambda x, y: 0.5 * (x + y) ** 2, lower_loss=lambda x, y, record: 0.5 * (y - record) ** 2
    ... )
    >>> points = np.linspace(-1, 1, 40)
    >>> case = dpb.audit.Case(
    ...     name="training, one step",
    ...     problem=problem,
    ...     method=dpb.Refit(steps=1),
    ...     start=(0.0, 0.0),
    ...     records={"lower": np.append(points, 1.0)},
    ...     neighbour={"lower": np.append(points, -1.0)},
    ... )
    >>> case
    Case(training, one step: Refit, 41 records, one of lower differs)
    """

    name: str
    problem: BilevelProblem
    method: Method
    records: Mapping[str, Tree]
    neighbour: Mapping[str, Tree]
    start: tuple[Tree, Tree] | None = None
    refit: Refit | str | None = "auto"

    def __post_init__(self) -> None:
        printable("name", self.name, "it names the case in tables")
        for name in ("records", "neighbour"):
            object.__setattr__(self, name, by_role(name, getattr(self, name)))
        self.differing()

    @classmethod
    def of_estimator(cls, name: str, estimator: Any, fit: Mapping[str, Any], neighbour: Mapping[str, Any]) -> "Case":
        """The case of an estimator, including what its ``fit`` does with a table before the run.

        Args:
            name: the name of the case in tables.
            estimator: an estimator of `dpbilevel.estimators`, with all public facts declared.
            fit: arguments of ``fit``.
            neighbour: the same with one row replaced.
        """
        if not hasattr(estimator, "_prepare"):
            raise InvalidArgument(f"estimator: {type(estimator).__name__} must be one of dpbilevel.estimators")
        # On copies: reading a table stores its columns in the estimator.
        one, other = (copy.copy(estimator)._prepare(**arguments) for arguments in (fit, neighbour))
        problem = one.planned.problem
        if problem is not other.planned.problem:
            raise InvalidArgument(
                "estimator: defines different problems for the two tables; declare classes, ranges and names"
            )
        if one.units:
            problem = problem_of_units(problem, one.units["mean_rows"])
        return cls(
            name=name,
            problem=problem,
            method=DEFAULT_METHOD if estimator.method is None else estimator.method,
            records=_bundled(one),
            neighbour=_bundled(other),
            refit=estimator._refit,
        )

    @property
    def sizes(self) -> RecordShapes:
        """The public shapes of both data sets."""
        return RecordShapes(**self.records)

    @property
    def number(self) -> int:
        """Of records."""
        return sum(map(self.sizes.count, self.sizes.roles))

    def differing(self) -> tuple[str, int]:
        """Role and index of the record that differs."""
        found = []
        for role, tree in self.records.items():
            leaves, structure = jax.tree.flatten(tree)
            others, same = jax.tree.flatten(self.neighbour.get(role))
            if [structure] != [same] or any(a.shape != b.shape for a, b in zip(leaves, others, strict=True)):
                raise InvalidArgument("neighbour: must have the roles, structure and shapes of records")
            unequal = [(a != b).reshape(len(a), -1).any(axis=1) for a, b in zip(leaves, others, strict=True)]
            found += [(role, int(index)) for index in np.flatnonzero(np.any(unequal, axis=0))]
        if len(found) != 1 or set(self.neighbour) != set(self.records):
            raise InvalidArgument("neighbour: must differ from records in exactly one record")
        return found[0]

    def planned(self, budget: Budget) -> Plan:
        """The plan of `dpb.plan`."""
        return prepare(self.problem, self.sizes, budget, self.method, self.start, self.refit)

    def starting(self) -> tuple[Tree, Tree]:
        """(x0, y0) as arrays."""
        return checked_start(self.problem, self.start)

    def data_sets(self, adjacency: str) -> tuple[Arrays, Arrays]:
        """Both data sets as arguments of the compiled loop; under "zero-out" the record is invalid in the second."""
        role, index = self.differing()
        valid = {name: np.ones(self.sizes.count(name), bool) for name in self.records}
        one = {name: (tree, valid[name]) for name, tree in self.records.items()}
        if adjacency != "zero-out":
            return one, {name: (tree, valid[name]) for name, tree in self.neighbour.items()}
        without = valid[role].copy()
        without[index] = False
        return one, one | {role: (self.records[role], without)}

    def __repr__(self) -> str:
        role, _ = self.differing()
        method = type(self.method).__name__
        return f"Case({self.name}: {method}, {self.number} records, one of {role} differs)"


def _bundled(prepared: Any) -> dict[str, Tree]:
    """Records that an estimator has prepared: rows, or units."""
    if not prepared.units:
        return dict(prepared.records)
    ids, most = prepared.units["unit"], prepared.units["rows_per_unit"]
    return {role: Selection.of(ids[role], most).bundled(tree) for role, tree in prepared.records.items()}


def by_role(name: str, given: Any) -> dict[str, Tree]:
    """A pytree of arrays by role, checked by `dpb.Records`."""
    if not isinstance(given, Mapping) or not set(given) <= set(ROLES):
        raise InvalidArgument(f"{name}: must map roles ({', '.join(map(repr, ROLES))}) to arrays")
    sizes = Records(**given).sizes  # converts to the types in which records are stored
    return {
        role: jax.tree.map(lambda leaf, kept: np.asarray(leaf).astype(kept.dtype), tree, getattr(sizes, role))
        for role, tree in given.items()
    }
