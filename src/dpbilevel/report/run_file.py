"""run.json: a run as a file for machines, format "dpbilevel.run/1" (run.schema.json here, docs/run_file.md for people).

A run that has begun has spent its epsilon, whatever becomes of it. The file says so from the first moment: "running"
before the first release, "aborted" where it was cut off, "finished" with everything that was released.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.about import version
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.files import write_atomically
from dpbilevel.planning import Plan, checked_start
from dpbilevel.privacy.budget import Budget
from dpbilevel.report.content import content, plain
from dpbilevel.report.review import LinearModel, Review
from dpbilevel.solution.solution import Solution

FORMAT = "dpbilevel.run/1"
_DIGITS = 40  # bytes of a number with its blanks, comma and end of line
_REST = 200_000  # bytes: the guarantee, the spend and the plan in words, a few times over
_FAMILY = "dpbilevel.run/"
_NOTICES = {
    "running": "This run has begun and has not finished. Its epsilon counts as spent.",
    "aborted": "This run was cut off. Its epsilon counts as spent.",
}


def write_run(review: Review, path: str | Path) -> Path:
    """Write a finished run: what the report says, and the whole solution. The same review gives the same bytes."""
    return write_atomically(path, run_text(review))


def run_text(review: Review) -> str:
    """What `write_run` writes."""
    told = _finite(content(review))
    return _text({"format": FORMAT, "status": "finished", **told, "solution": review.solution.to_json()})


def unfinished_text(
    *,
    status: Literal["running", "aborted"],
    budget: Budget,
    facts: Mapping[str, str],
    command: str | None = None,
    created: str | None = None,
) -> str:
    """The run file of a run that has begun, or was cut off: what it was allowed counts as spent.

    Args:
        status: "running" or "aborted".
        budget: what the run was charged.
        facts, command, created: as in `Review`; public.
    """
    one_of("status", status, tuple(_NOTICES), "it says what became of the run")
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
    """Bytes that the run file of a finished run may take, at most, from its plan and the texts that go into it."""
    x, y = checked_start(planned.problem, None)
    state = jax.eval_shape(planned.program.start, x, y)
    seen = jax.eval_shape(planned.program.observe, state)
    rounds = planned.program.rounds * (_numbers(seen) + _numbers(x))  # the history, and the trajectory of x beside it
    texts = json.dumps([dict(facts), plain(schema), list(columns), command], indent=1)
    return _DIGITS * (rounds + 4 * (_numbers(x) + _numbers(y))) + 4 * len(texts) + _REST


def _numbers(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def read_run(path: str | Path) -> Review:
    """Read a finished run back. Derived numbers are computed anew from the solution's charges, not trusted.

    Raises:
        InvalidArgument: the file is no run.json of this version, is damaged, or is that of a run that did not finish.
    """
    shown = f"path={str(path)!r}"
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{shown}: is not a JSON file; pass the run.json of a run") from error
    _check_format(told, shown)
    status = told.get("status")
    if isinstance(status, str) and status in _NOTICES:
        raise InvalidArgument(
            f"{shown}: the run did not finish (it is {status}), so that nothing was released; its epsilon counts as "
            "spent all the same. Start a new run, within what is left"
        )
    try:
        return Review(
            solution=Solution.from_json(told["solution"]),
            title=told["title"],
            facts=dict(told["facts"]),
            model=_model(told["model"]),
            schema=told["schema"],
            command=told["command"],
            created=told["created"],
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:  # InvalidArgument is a ValueError
        raise InvalidArgument(f"{shown}: is damaged; pass a run.json as it was written") from error


def _check_format(told: Any, shown: str) -> None:
    found = told.get("format") if isinstance(told, dict) else None
    if found == FORMAT:
        return
    if isinstance(found, str) and found.startswith(_FAMILY):
        raise InvalidArgument(f"{shown}: has format {found!r}, which this version cannot read; upgrade dpbilevel")
    if isinstance(found, str) and found.startswith("dpbilevel.solution/"):
        raise InvalidArgument(f"{shown}: is a solution, not a run; dpb.Solution.load reads it")
    raise InvalidArgument(f"{shown}: is not a {FORMAT} file; pass the run.json of a run")


def _model(told: Mapping[str, Any]) -> LinearModel | None:
    if told["kind"] != "linear":
        return None
    return LinearModel(
        estimator=told["estimator"],
        target=told["target"],
        outputs=tuple(told["outputs"]),
        columns=tuple(told["columns"]),
        coefficients=[[float(number) for number in row] for row in told["coefficients"]],  # type: ignore[arg-type]
        intercepts=[float(number) for number in told["intercepts"]],  # type: ignore[arg-type]
    )


def _finite(value: Any) -> Any:
    """Standard JSON has no word for numbers that are not finite: they become the strings "inf", "-inf" and "nan"."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else plain(value)


def _text(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, allow_nan=False) + "\n"
