"""The released result of a run, with its privacy spend. It is safe to publish as a whole."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.files import write_atomically
from dpbilevel.foundation.tables import text_table
from dpbilevel.methods.preconditioned_steps import STANDARD_ERRORS
from dpbilevel.privacy.spend import Privacy
from dpbilevel.solution.trees import decoded, encoded

Tree = Any
_FORMAT = "dpbilevel.solution/1"


@dataclass(frozen=True)
class Legend:
    """The meaning of the numbers of x, for display.

    Args:
        quantity: the quantity that each number is, such as "penalty" or "weight".
        names: one name per number, in their order.
        logarithmic: whether x holds logarithms; exp(x) is then displayed.
    """

    quantity: str
    names: tuple[str, ...]
    logarithmic: bool = False


@dataclass(frozen=True, eq=False)
class Solution:
    """The released result of a run.

    Attributes:
        x: hyperparameters (upper variable).
        y: model (lower variable), trained at ``x``.
        privacy: the spend for each role, the budget and the adjacency relation.
        history: the released trajectory, one entry per round; of a final training, its standard errors at the end.
        parameters: every parameter of the plan with the reason for its value.
        sizes: number of records by role (public).
        method: the method and its settings, as text.
        version: version of the library.
        legend: names of the numbers of x; estimators set it, `solve` does not.
        remarks: sentences on the result: noise that dominates by plan, an x at the edge of its range. They follow from
            released values and public facts.
        result: the outcome of the run in one sentence, from the same: whether it tuned anything, whether it converged,
            and what to try if not. Empty in files of earlier versions.
    """

    x: Tree
    y: Tree
    privacy: Privacy
    history: Mapping[str, Tree]
    parameters: Mapping[str, tuple[Any, str]]
    sizes: Mapping[str, int]
    method: str
    version: str
    legend: Legend | None = None
    remarks: tuple[str, ...] = ()
    result: str = ""

    def summary(self) -> str:
        """The guarantee, the outcome of the run, the spend by role and release, the size of x and y, and remarks."""
        rows = [
            [
                role,
                f"{self.sizes[role]:,}",
                charge.release,
                f"{charge.uses:,}",
                f"{charge.ratio:.3g}",
                f"{charge.mu:.4g}",
            ]
            for role, charges in self.privacy.charges.items()
            for charge in charges
        ]
        last = "sqrt(2 rho)" if self.privacy.exact_noise else "mu"
        kind = "records" if self.privacy.rows_per_unit is None else "units"
        table = text_table(["role", kind, "release", "uses", "sensitivity/noise", last], rows)
        spends = [f"epsilon of {role} {kind}: {self.privacy.epsilon(role=role):.4g}" for role in self.privacy.charges]
        shapes = f"x: {_shape(self.x)}, y: {_shape(self.y)}"
        if STANDARD_ERRORS in self.history:
            errors = np.asarray(self.history[STANDARD_ERRORS])[-1]
            shapes += f" (standard errors of y by the noise of training: {errors.min():.2g} to {errors.max():.2g})"
        remarks = [f"Remark: {remark}." for remark in self.remarks]
        result = [self.result] if self.result else []
        return "\n".join([self.privacy.sentence(), *result, "", table, "", *spends, shapes, *remarks])

    def save(self, path: str | Path) -> Path:
        """Write everything as JSON (released values only); `load` reads it back."""
        return write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The solution as a value of standard JSON, without loss: floats keep every bit."""
        return {
            "format": _FORMAT,
            "version": self.version,
            "method": self.method,
            "sizes": dict(self.sizes),
            "privacy": encoded(self.privacy.to_json()),
            "x": encoded(self.x),
            "y": encoded(self.y),
            "history": encoded(dict(self.history)),
            "legend": None if self.legend is None else {**asdict(self.legend), "names": list(self.legend.names)},
            "numbers": encoded({name: list(pair) for name, pair in self.parameters.items()}),
            "remarks": list(self.remarks),
            "result": self.result,
        }

    @classmethod
    def load(cls, path: str | Path) -> "Solution":
        """Read a file that `save` wrote; the spend is recomputed from the charges."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # not JSON, or no text at all
            raise InvalidArgument(
                f"path={str(path)!r}: is not a JSON file; pass one that Solution.save wrote"
            ) from error
        try:
            return cls.from_json(content)
        except InvalidArgument as error:
            raise InvalidArgument(f"path={str(path)!r}: {error}") from error

    @classmethod
    def from_json(cls, content: Any) -> "Solution":
        """The inverse of `to_json`."""
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise InvalidArgument(f"is not a {_FORMAT} file; pass one that Solution.save wrote")
        try:
            return cls._of(content)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InvalidArgument(f"is a damaged {_FORMAT} file; pass one as Solution.save wrote it") from error

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Solution":
        return cls(
            x=decoded(content["x"]),
            y=decoded(content["y"]),
            privacy=Privacy.from_json(decoded(content["privacy"])),
            history=decoded(content["history"]),
            parameters={name: (pair[0], pair[1]) for name, pair in decoded(content["numbers"]).items()},
            sizes=content["sizes"],
            method=content["method"],
            version=content["version"],
            legend=_legend(content.get("legend")),
            remarks=tuple(content.get("remarks", ())),
            result=str(content.get("result", "")),
        )

    def report(self, path: str | Path) -> Path:
        """Write a report for a privacy review: one self-contained HTML page, or the same as .md or .json."""
        from dpbilevel.report.writing import write_report

        return write_report(self, path)

    def _repr_html_(self) -> str:
        """A compact card, for notebooks."""
        from dpbilevel.report.card import solution_card

        return solution_card(self)

    def __repr__(self) -> str:
        return f"Solution(x: {_shape(self.x)}, y: {_shape(self.y)}; {self.privacy.label()})"


def _legend(content: Mapping[str, Any] | None) -> Legend | None:
    return None if content is None else Legend(**{**content, "names": tuple(content["names"])})


def _shape(tree: Tree) -> str:
    leaves = jax.tree.leaves(tree)
    numbers = sum(int(np.size(leaf)) for leaf in leaves)
    return f"{numbers:,} number{'' if numbers == 1 else 's'}"
