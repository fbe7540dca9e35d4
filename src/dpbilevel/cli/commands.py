"""The implementation of all commands, and their output."""

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpbilevel.cli import ledger as ledger_files
from dpbilevel.cli.console import Console, show_warnings_as_lines
from dpbilevel.cli.demo import demonstrate
from dpbilevel.cli.ending import Refuted, RunFailed
from dpbilevel.cli.evaluation import Wanted, check_file, score
from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.forecast import forecast, planned_for
from dpbilevel.cli.forecast_output import ROLES, counted_records, show_forecast
from dpbilevel.cli.job import prepared
from dpbilevel.cli.layout import Layout, layout
from dpbilevel.cli.options import check_invalid, check_options, warn_if_weak
from dpbilevel.cli.prediction import check_output, predict, remove_unfinished
from dpbilevel.cli.resuming import StoredRun, stored_run
from dpbilevel.cli.run_folder import PAGE, RUN, SCORES, SOLUTION, check_free, write_pages
from dpbilevel.cli.schema import template
from dpbilevel.cli.score_output import scores_json, show_scores, show_table
from dpbilevel.cli.signals import SIGNALS
from dpbilevel.cli.table_file import open_table
from dpbilevel.cli.tuning import run
from dpbilevel.cli.unit_sizes import WantedSizes, release_sizes, show_sizes
from dpbilevel.cli.wording import for_command_line
from dpbilevel.errors import InvalidArgument, UtilityWarning
from dpbilevel.execution.progress import set_display, show_progress
from dpbilevel.foundation.files import write_atomically
from dpbilevel.foundation.processes import current
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.report.registry import registry_entry
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run
from dpbilevel.solution.hyperparameters import hyperparameters
from dpbilevel.solving import check_noise

_MANY = 10**9  # rows, for the default delta of a budget that is only checked
_SHOWN = 15  # maximum number of hyperparameters in the terminal; the report has all of them


@contextlib.contextmanager
def _console(as_json: bool, quiet: bool) -> Iterator[Console]:
    show_warnings_as_lines()
    with set_display("none" if quiet or not current().is_first else "lines"):
        yield Console(as_json, quiet)


def resume(kind: type[FitCommand], folder: Path, given: dict[str, Any], command: str) -> None:
    """Resume a run with the options that it was started with; those that are ``given`` again must be the same."""
    with current().telling():
        stored = StoredRun.parsed(current().first("stored options", lambda: stored_run(kind, folder).text()))
        asked = stored.fit_command(kind, folder, given)
    fit(asked, command, stored)


def fit(asked: FitCommand, command: str, stored: StoredRun | None = None) -> None:
    """Fit the model of an application, or show its plan (``--dry-run``); with ``stored``, resume a run.

    Of the processes of a job, the first has the ledger and the folder, and speaks.
    """
    with current().barrier("end of the run"):
        _fit(asked, command, stored, is_first=current().is_first)


def _fit(asked: FitCommand, command: str, stored: StoredRun | None, *, is_first: bool) -> None:
    out, rows = asked.out, asked.rows
    with _console(asked.json, asked.quiet) as console:
        check_options(asked)
        if not asked.dry_run and stored is None and is_first:
            check_free(out, force=asked.force)
        run_ledger = _ledger(asked.ledger, asked.dataset, asked.adjacency) if is_first else None
        job = prepared(asked)
        if asked.dry_run:
            tables = (job.table, *([] if job.validation is None else [job.validation]))
            # The number of rows of a file says nothing about units.
            counts = [table.rows if job.asked.unit is None else None for table in tables]
            counts[0] = (counts[0] if job.listed is None else len(job.listed)) if rows is None else rows
            if None in counts:
                raise InvalidArgument(
                    "--dry-run: reads no records and cannot count the rows of a CSV, or units; add --rows N, the "
                    "number of rows or of units (or use `dpbilevel plan` if --validation is a CSV, or with units)"
                )
            validating = counts[1] if len(counts) > 1 else None
            show_forecast(console, forecast(job.plan(counts[0] or 0, validating)))
            return
        finished = run(job, ledger=run_ledger, command=command, stored=stored)
        if finished is None:
            return
        try:
            _show_review(console, finished.review, finished.folder)
        except BrokenPipeError:
            raise
        except OSError as error:  # of stdout, for example if it is redirected to a full disk
            raise RunFailed(
                f"the run finished, and {out} contains all released values and the report; they could not be shown "
                f"({error.strerror}). Show them with: dpbilevel report {out}"
            ) from None


def write_schema(
    data: Path,
    target: str | None,
    source: str | None,
    out: Path | None,
    *,
    written: dict[str, Any],
    force: bool,
    quiet: bool,
) -> None:
    """Write or print a schema template."""
    how = layout(**written)
    if out is not None and out.exists() and not force:
        raise InvalidArgument(f"--out {out}: already exists; choose another name, or pass --force")
    table = open_table(data, how)
    for option, name in (("--target", target), ("--source", source)):
        if name is not None and name not in table.names:
            raise InvalidArgument(
                f"{option} {name}: {data} has no such column; `dpbilevel schema` shows the names ({table.remedy})"
            )
    text = template(table, target, source)
    if out is None:
        print(text, end="")
        return
    try:
        with SIGNALS.held():
            write_atomically(out, text)
    except OSError:
        raise InvalidArgument(f"--out {out}: cannot be written; check the folder and permissions") from None
    Console(quiet=quiet).print(f"Wrote {out} with {len(table.names)} columns; fill in the public facts about each.")


def show_plan(sizes: dict[str, Any], settings: dict[str, Any], *, as_json: bool) -> None:
    """Show the plan of a run."""
    with _console(as_json, False) as console:
        warn_if_weak(settings["epsilon"])
        show_forecast(console, forecast(planned_for(**sizes, settings=settings)))


def write_predictions(
    folder: Path,
    data: Path,
    out: Path,
    *,
    written: dict[str, Any],
    invalid: str,
    force: bool,
    output: tuple[bool, bool],
) -> None:
    """Predict with the model of a run."""
    with _console(*output) as console:
        how = layout(**written)
        check_invalid(invalid)
        check_output(out, force=force)
        SIGNALS.ending = lambda: remove_unfinished(out)
        rows = predict(_review(folder), data, out, layout=how, invalid=invalid)
        console.print(
            f"Wrote {rows:,} predictions to {out}. They depend on the rows of {data.name}: protect both alike."
        )
        console.result({"predictions": str(out), "rows": rows})


def write_scores(
    folder: Path,
    data: Path,
    out: Path | None,
    wanted: Wanted,
    ledger: tuple[str | None, str | None],
    *,
    written: dict[str, Any],
    force: bool,
    output: tuple[bool, bool],
) -> None:
    """Score the model of a run on private rows."""
    with _console(*output) as console:
        how = layout(**written)
        check_invalid(wanted.invalid)
        budget = wanted.budget(_MANY)
        check_noise(wanted.noise, None)
        if wanted.noise == "exact":
            for_exact_noise(budget)
        warn_if_weak(wanted.epsilon)
        review = _review(folder)
        target = folder / SCORES if out is None else out
        check_file(target, force=force)
        if review.facts.get("data") == data.name:
            warnings.warn(
                f"{data}: has the name of the file that the model was trained on; scores on training rows are too good",
                UtilityWarning,
                stacklevel=2,
            )
        found = score(review, data, target, wanted, layout=how, ledger=_ledger(*ledger, wanted.adjacency))
        show_scores(console, found.evaluation, target)
        if found.failed is not None:
            raise RunFailed(
                f"--out {target}: could not be written ({found.failed.strerror}); the scores were released, and are "
                "shown above. Their epsilon is spent"
            )


def show_unit_sizes(
    data: Path, wanted: WantedSizes, how: Layout, ledger: tuple[str | None, str | None], output: tuple[bool, bool]
) -> None:
    """Release how many rows units have."""
    with _console(*output) as console:
        wanted.budget(_MANY)
        show_sizes(console, release_sizes(data, wanted, layout=how, ledger=_ledger(*ledger, wanted.adjacency)))


def show_report(folder: Path, registry: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Write the report of a run again and show it."""
    with _console(as_json, quiet) as console:
        review = _review(folder)
        if registry is not None:
            _write_registry_entry(review, registry)
        try:
            with SIGNALS.held():
                write_pages(review, folder)
        except OSError as error:
            raise InvalidArgument(
                f"{folder}: its report could not be written ({error.strerror}); free some space, or copy run.json to "
                "another folder and run the command there. Nothing of the run is lost"
            ) from None
        _show_review(console, review, folder)


def _write_registry_entry(review: Review, path: Path) -> None:
    if path.suffix.lower() != ".json":
        raise InvalidArgument(f"--registry {path}: must end in .json")
    try:
        with SIGNALS.held():
            write_atomically(path, json.dumps(registry_entry(review), indent=1) + "\n")
    except OSError:
        raise InvalidArgument(f"--registry {path}: cannot be written; check the folder and permissions") from None


def run_demo(out: Path, *, rows: int, force: bool, as_json: bool, quiet: bool, command: str) -> None:
    """Run the demonstration."""
    with _console(as_json, quiet) as console:
        demonstrate(out, rows=rows, force=force, console=console, command=command)


def run_audits(
    *, epsilon: float, delta: float, adjacency: str, runs: int, confidence: float, as_json: bool, quiet: bool
) -> None:
    """Attack every method, and show the lower bounds on epsilon."""
    from dpbilevel.audit.auditing import audit
    from dpbilevel.audit.verdict import HEADER
    from dpbilevel.audit.worst_cases import standard_cases

    with _console(as_json, quiet) as console:
        budget = Budget(epsilon, delta, adjacency)  # type: ignore[arg-type]
        if not 0 < confidence < 1:
            raise InvalidArgument(f"--confidence {confidence:g}: must be between 0 and 1 (try 0.99)")
        cases, found = standard_cases(budget), []
        each = 1 - (1 - confidence) / len(cases)  # union bound: all bounds hold simultaneously
        with show_progress("audits", len(cases), "audits") as advance:
            for case in cases:
                found.append(audit(case, budget, runs=runs, confidence=each))
                advance(1)
        console.table(
            f"Audits at delta = {delta:g}, {adjacency}; simultaneous confidence of all bounds: {100 * confidence:.4g}%",
            HEADER,
            [one.row() for one in found],
        )
        refuted = [one.name for one in found if not one.passed]
        console.result({"audits": [one.to_json() for one in found], "confidence": confidence, "passed": not refuted})
        if refuted:
            raise Refuted(
                f"the lower bound exceeds the claim, for {'; '.join(refuted)}: this is a privacy bug; please report it"
            )
        console.print("\nNo lower bound exceeds the claim. This does not prove that no better attack exists.")


def create_ledger(where: str, dataset: str, epsilon: float, delta: float, adjacency: str, unit: str | None) -> None:
    """Create the ledger of a data set."""
    show_warnings_as_lines()
    total = Budget(epsilon, delta, adjacency)  # type: ignore[arg-type]
    warn_if_weak(epsilon)
    with SIGNALS.held():
        ledger = ledger_files.create(where, dataset, total, unit)
    Console().print(repr(ledger))
    Console().print(f"Unit of privacy: {ledger.statement().snapshot.unit}.")


def show_ledger(where: str, dataset: str | None, *, as_json: bool) -> None:
    """Show the ledgers in a database."""
    console = Console(as_json)
    views = ledger_files.show(where, dataset)
    for view in views:
        for name, text in view.facts:
            console.print(f"{name}: {text}")
        console.table("Charges", ledger_files.HEADERS, view.rows)
    console.result({"ledgers": [view.statement.to_json() for view in views]})


def export_ledger(where: str, dataset: str | None, out: Path) -> None:
    """Write a ledger to a file."""
    with SIGNALS.held():
        written = ledger_files.export(where, dataset, out)
    Console().print(f"Wrote {written}.")


def _ledger(where: str | None, dataset: str | None, adjacency: str) -> Ledger | None:
    if where is None:
        if dataset is not None:
            raise InvalidArgument("--dataset: requires --ledger; `dpbilevel ledger create` creates one")
        return None
    url = ledger_files.ledger_url(where)
    if dataset is None:
        names = ledger_files.datasets(where)
        if len(names) != 1:
            raise InvalidArgument(f"--dataset: must name one of {', '.join(names)}; each has a ledger of its own")
        dataset = names[0]
    ledger = Ledger.open(url, dataset=dataset)
    if ledger.total.adjacency != adjacency:
        raise InvalidArgument(
            f"--adjacency {adjacency}: must be {ledger.total.adjacency}, the relation of the ledger; spends under "
            "different relations cannot be added"
        )
    return ledger


def _review(folder: Path) -> Review:
    if not folder.is_dir():
        raise InvalidArgument(f"RUN {folder}: is not a folder; pass the folder that `dpbilevel tune` wrote (--out)")
    if not (folder / RUN).is_file():
        raise InvalidArgument(f"RUN {folder}: has no run.json; pass the folder that `dpbilevel tune` wrote (--out)")
    if (folder / SOLUTION).is_file():
        raise InvalidArgument(
            f"RUN {folder}: the run failed after everything was released, and has no report and no model to "
            f"predict with; the released values are in {folder / SOLUTION}, which dpb.Solution.load reads"
        )
    return read_run(folder / RUN)


def _show_review(console: Console, review: Review, folder: Path) -> None:
    solution = review.solution
    privacy = solution.privacy
    console.print(f"\n{for_command_line(privacy.sentence())}")
    if solution.result:
        console.print(f"\n{for_command_line(solution.result)}")
    console.table(
        f"Spend at delta = {privacy.budget.delta:g}" if privacy.budget.delta else "Spend",
        ["role", counted_records(privacy), "epsilon"],
        [[ROLES[role], f"{solution.sizes[role]:,}", f"{privacy.epsilon(role=role):.4g}"] for role in privacy.charges],
    )
    found = hyperparameters(solution)
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    rows = [[name, f"{value:.4g}"] for name, value in values.items()]
    more = f", {_SHOWN} of {len(rows)}" if len(rows) > _SHOWN else ""
    console.table(f"Released{more}", ["name", found.quantity], rows[:_SHOWN])
    if review.evaluation is not None:
        show_table(console, review.evaluation, f"Scores on {review.evaluation.counted_apart}")
    for remark in solution.remarks:
        console.print(f"\nRemark: {remark}.")
    console.print(f"\nModel and all released values: {folder / RUN}")
    console.print(f"Report: {folder / PAGE}")
    console.result(
        {
            "run": str(folder / RUN),
            "report": str(folder / PAGE),
            "private": not privacy.void,
            "guarantee": privacy.sentence(),
            "epsilon": privacy.epsilon() if privacy.budget.is_private else None,
            "delta": privacy.budget.delta,
            "hyperparameters": values,
            "result": solution.result,
            "remarks": list(solution.remarks),
            "scores": None if review.evaluation is None else scores_json(review.evaluation),
        }
    )
