"""What a report is made from: a solution, and the public facts around it. No record, and nothing computed from one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.solution.solution import Solution


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearModel:
    """A released linear model, for people and for prediction.

    Args:
        estimator: class name of the estimator.
        target: name of the column that is predicted.
        outputs: what each row of coefficients is for: class names, or the target. Two classes have one output, the
            second class.
        columns: names of the encoded columns.
        coefficients: (outputs, columns).
        intercepts: (outputs,).

    >>> LinearModel(
    ...     estimator="DPRidgeCV",
    ...     target="dose",
    ...     outputs=("dose",),
    ...     columns=("age", "weight"),
    ...     coefficients=[[0.1, 0.2]],
    ...     intercepts=[1.0],
    ... ).coefficients.shape
    (1, 2)
    """

    estimator: str
    target: str
    outputs: tuple[str, ...]
    columns: tuple[str, ...]
    coefficients: npt.NDArray[np.float64]
    intercepts: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "columns", tuple(self.columns))
        expected = {"coefficients": (len(self.outputs), len(self.columns)), "intercepts": (len(self.outputs),)}
        for name, shape in expected.items():
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.shape != shape:
                raise InvalidArgument(
                    f"{name}: have shape {array.shape}, must have {shape}, one row for each of outputs and one column "
                    "for each of columns"
                )
            object.__setattr__(self, name, array)


@dataclass(frozen=True, eq=False, kw_only=True)
class Review:
    """Everything that a report says of a run: released values and public facts only.

    Args:
        solution: of the run.
        title: of the report.
        facts: public facts, such as {"data": "adult.csv", "target": "income"}.
        model: the model as people read it; without one the report counts the numbers of y.
        schema: what was declared about the columns, as parsed from TOML.
        command: how the run was made.
        created: ISO time; None leaves it out.
    """

    solution: Solution
    title: str = "A private bilevel run"
    facts: Mapping[str, str] = field(default_factory=dict)
    model: LinearModel | None = None
    schema: Mapping[str, Any] | None = None
    command: str | None = None
    created: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.solution, Solution):
            raise InvalidArgument(f"solution: must be a dpb.Solution, not {type(self.solution).__name__}")
        if self.model is not None and not isinstance(self.model, LinearModel):
            raise InvalidArgument(f"model: must be a LinearModel or None, not {type(self.model).__name__}")
