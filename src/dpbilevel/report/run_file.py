"""run.json: a run in the machine-readable format "dpbilevel.run/1" (schema: run.schema.json, guide: docs/run_file.md).

A run that has started has spent its epsilon, whatever its outcome. The file records this from the start: its status is
"running" before the first release, "aborted" if the run was interrupted, and "finished" once everything is released.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from dpbilevel.errors import InvalidArgument
from dpbilevel.evaluation.result import Evaluation
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.files import write_atomically
from dpbilevel.planning import Plan
from dpbilevel.privacy.budget import Budget
from dpbilevel.report.content import content, plain
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.solution.shapes import Shape
from dpbilevel.solution.solution import Solution

FORMAT = "dpbilevel.run/1"
_DIGITS = 40  # bytes of a number with its indentation, comma and newline
_REST = 200_000  # bytes: a generous bound on the text of the guarantee, the spend and the plan
_FAMILY = "dpbilevel.run/"
_NOTICES = {
    "running": "This run has started and has not finished. Its epsilon counts as spent.",
    "aborted": "This run was interrupted. Its epsilon counts as spent.",
}


def write_run(review: Review, path: str | Path) -> Path:
    """Write a finished run: the content of the report and the solution. The same review gives the same bytes."""
    return write_atomically(path, run_text(review))


def run_text(review: Review) -> str:
    """The text that `write_run` writes."""
    document = _finite(content(review))
    return _text({"format": FORMAT, "status": "finished", **document, "solution": review.solution.to_json()})


def unfinished_text(
    *,
    status: Literal["running", "aborted"],
    budget: Budget,
    facts: Mapping[str, str],
    command: str | None = None,
    created: str | None = None,
) -> str:
    """The run file of a run that is running or was interrupted: its whole budget counts as spent.

    Args:
        status: "running" or "aborted".
        budget: the budget that the run was charged.
        facts, command, created: as in `Review`; public.
    """
    one_of("status", status, tuple(_NOTICES), "it is the state of the run")
    allowed = {"epsilon": budget.epsilon, "delta": budget.delta, "adjacency": budget.adjacency}
    return _text(
        {
            "format": FORMAT,
            "status": status,
            "notice": _NOTICES[status],
            "version": version(),
            "budget": _finite(allowed),
            "facts": {str(name): str(fact) for name, fact in facts.items()},
            "command": command,
            "created": created,
        }
    )


def run_file_space(
    planned: Plan, facts: Mapping[str, str], schema: Mapping[str, Any] | None, columns: Sequence[str], command: str
) -> int:
    """An upper bound on the bytes of a finished run's file, from its plan and the texts that go into it."""
    x, y = planned.start
    state = jax.eval_shape(planned.program.start, x, y)
    seen = jax.eval_shape(planned.program.observe, state)
    rounds = planned.program.rounds * (_numbers(seen) + _numbers(x))  # the history, and the trajectory of x beside it
    if planned.training is not None:
        rounds += _numbers(jax.eval_shape(planned.training.observe, jax.eval_shape(planned.training.start, x, y)))
    texts = json.dumps([dict(facts), plain(schema), list(columns), command], indent=1)
    return _DIGITS * (rounds + 4 * (_numbers(x) + _numbers(y))) + 4 * len(texts) + _REST


def _numbers(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def read_run(path: str | Path) -> Review:
    """Read a finished run. Derived numbers are recomputed from the solution's charges, not taken from the file.

    Raises:
        InvalidArgument: the file is not a run.json of this version, is damaged, or belongs to an unfinished run.
    """
    shown = f"path={str(path)!r}"
    document = _read(path, shown)
    status = document.get("status")
    if isinstance(status, str) and status in _NOTICES:
        raise InvalidArgument(
            f"{shown}: the run did not finish (its status is {status!r}), so nothing was released; its epsilon still "
            "counts as spent. Resume it if it has a checkpoint (`dpbilevel tune --resume RUN`), or start a new run "
            "within the remaining budget"
        )
    try:
        return Review(
            solution=Solution.from_json(document["solution"]),
            title=document["title"],
            facts=dict(document["facts"]),
            model=_model(document["model"]),
            schema=document["schema"],
            command=document["command"],
            created=document["created"],
            evaluation=_evaluation(document.get("evaluation")),
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:  # InvalidArgument is a ValueError
        raise InvalidArgument(f"{shown}: is damaged; pass a run.json as it was written") from error


def run_status(path: str | Path) -> str:
    """The status in a run file: "running", "aborted" or "finished"."""
    return str(_read(path, f"path={str(path)!r}").get("status"))


def _read(path: str | Path, shown: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{shown}: is not a JSON file; pass the run.json of a run") from error
    _check_format(document, shown)
    return dict(document)


def _check_format(document: Any, shown: str) -> None:
    format_name = document.get("format") if isinstance(document, dict) else None
    if format_name == FORMAT:
        return
    if isinstance(format_name, str) and format_name.startswith(_FAMILY):
        raise InvalidArgument(f"{shown}: has format {format_name!r}, which this version cannot read; upgrade dpbilevel")
    if isinstance(format_name, str) and format_name.startswith("dpbilevel.solution/"):
        raise InvalidArgument(f"{shown}: is a solution, not a run; dpb.Solution.load reads it")
    raise InvalidArgument(f"{shown}: is not a {FORMAT} file; pass the run.json of a run")


def _evaluation(document: Mapping[str, Any] | None) -> Evaluation | None:
    return None if document is None else Evaluation.from_json(document)


def _model(document: Mapping[str, Any]) -> LinearModel | None:
    if document["kind"] != "linear":
        return None
    noise = document.get("noise")  # older runs have neither noise nor shapes
    return LinearModel(
        estimator=document["estimator"],
        target=document["target"],
        outputs=tuple(document["outputs"]),
        columns=tuple(document["columns"]),
        coefficients=[[float(number) for number in row] for row in document["coefficients"]],  # type: ignore[arg-type]
        intercepts=[float(number) for number in document["intercepts"]],  # type: ignore[arg-type]
        standard_errors=None if noise is None else [[float(number) for number in row] for row in noise],  # type: ignore[arg-type]
        shapes=tuple(map(Shape.from_json, document.get("effects", ()))),
    )


def _finite(value: Any) -> Any:
    """Replace non-finite numbers, which standard JSON cannot represent, by the strings "inf", "-inf" and "nan"."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else plain(value)


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
