"""The input of a report: a solution and public facts about the run, but no records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.solution.shapes import Shape
from dpbilevel.solution.solution import Solution


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearModel:
    """A released linear model, for reports and for prediction.

    Args:
        estimator: class name of the estimator.
        target: name of the predicted column.
        outputs: what each row of coefficients predicts: a class name or the target. Two classes have one output, the
            second class.
        columns: names of the encoded columns.
        coefficients: (outputs, columns).
        intercepts: (outputs,).
        standard_errors: (outputs, columns), of the coefficients by the noise of training, if it is known.
        shapes: the effects of the columns before encoding.

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
    standard_errors: npt.NDArray[np.float64] | None = None
    shapes: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "columns", tuple(self.columns))
        expected = {"coefficients": (len(self.outputs), len(self.columns)), "intercepts": (len(self.outputs),)}
        if self.standard_errors is not None:
            expected["standard_errors"] = expected["coefficients"]
        for name, shape in expected.items():
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.shape != shape:
                raise InvalidArgument(
                    f"{name}: have shape {array.shape}, must have {shape}: one row per entry of outputs, one column "
                    "per entry of columns"
                )
            object.__setattr__(self, name, array)


@dataclass(frozen=True, eq=False, kw_only=True)
class Review:
    """Everything that a report states about a run: released values and public facts only.

    Args:
        solution: the solution of the run.
        title: the title of the report.
        facts: public facts, such as {"data": "adult.csv", "target": "income"}.
        model: the model with named columns; without one the report only gives the shapes in y.
        schema: the column declarations, as parsed from TOML.
        command: the command that started the run.
        created: ISO time; None omits it.
        evaluation: scores on rows that the run set aside, which its guarantee covers.
    """

    solution: Solution
    title: str = "A private bilevel run"
    facts: Mapping[str, str] = field(default_factory=dict)
    model: LinearModel | None = None
    schema: Mapping[str, Any] | None = None
    command: str | None = None
    created: str | None = None
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.solution, Solution):
            raise InvalidArgument(f"solution: must be a dpb.Solution, not {type(self.solution).__name__}")
        if self.model is not None and not isinstance(self.model, LinearModel):
            raise InvalidArgument(f"model: must be a LinearModel or None, not {type(self.model).__name__}")
