"""What each command does, and what it says about it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpbilevel.cli import ledger as ledger_files
from dpbilevel.cli.console import Console, say_warnings_in_lines
from dpbilevel.cli.demo import demonstrate
from dpbilevel.cli.ending import Refuted, RunFailed
from dpbilevel.cli.fit_command import FitCommand
from dpbilevel.cli.forecast import Forecast, forecast, planned_for
from dpbilevel.cli.job import prepared
from dpbilevel.cli.layout import layout
from dpbilevel.cli.options import check_invalid, check_options, remark_on
from dpbilevel.cli.prediction import check_output, given_up, predict
from dpbilevel.cli.resuming import StoredRun, stored_run
from dpbilevel.cli.run_folder import PAGE, RUN, SOLUTION, check_free, write_pages
from dpbilevel.cli.schema import template
from dpbilevel.cli.signals import SIGNALS
from dpbilevel.cli.table_file import open_table
from dpbilevel.cli.tuning import run
from dpbilevel.cli.wording import in_own_words
from dpbilevel.errors import InvalidArgument
from dpbilevel.execution.progress import counted, displayed
from dpbilevel.foundation.files import write_atomically
from dpbilevel.foundation.tables import short
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run
from dpbilevel.solution.hyperparameters import hyperparameters

_SHOWN = 15  # hyperparameters in the terminal; the report has all
_ROLES = {"lower": "training (lower)", "upper": "validation (upper)", "both": "both"}


@contextlib.contextmanager
def _speaking(as_json: bool, quiet: bool) -> Iterator[Console]:
    say_warnings_in_lines()
    with displayed("none" if quiet else "lines"):
        yield Console(as_json, quiet)


def resume(kind: type[FitCommand], folder: Path, given: dict[str, Any], command: str) -> None:
    """Resume a run with the options that it was started with; those that are ``given`` again must be the same."""
    stored = stored_run(kind, folder)
    fit(stored.asked(kind, folder, given), command, stored)


def fit(asked: FitCommand, command: str, stored: StoredRun | None = None) -> None:
    """Fit what an application asks for, or say what that would cost; with ``stored``, resume a run."""
    out, rows = asked.out, asked.rows
    with _speaking(asked.json, asked.quiet) as console:
        check_options(asked)
        if not asked.dry_run and stored is None:
            check_free(out, force=asked.force)
        keeper = _ledger(asked.ledger, asked.dataset, asked.adjacency)
        job = prepared(asked)
        if asked.dry_run:
            tables = (job.table, *([] if job.validation is None else [job.validation]))
            counts = [table.rows if rows is None or table is not job.table else rows for table in tables]
            if None in counts:
                raise InvalidArgument(
                    "--dry-run: reads no record and so cannot count the rows of a CSV; add --rows N (and plan with "
                    "`dpbilevel plan` where --validation is a CSV)"
                )
            validating = counts[1] if len(counts) > 1 else None
            _show_forecast(console, forecast(job.plan(counts[0] or 0, validating)))
            return
        finished = run(job, ledger=keeper, command=command, stored=stored)
        try:
            _show_review(console, finished.review, finished.folder)
        except BrokenPipeError:
            raise
        except OSError as error:  # of stdout, where it goes to a disk that is full
            raise RunFailed(
                f"the run finished, and {out} has all that it released and its report; they could not be shown "
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
    """Write or print a schema to fill in."""
    how = layout(**written)
    if out is not None and out.exists() and not force:
        raise InvalidArgument(f"--out {out}: is there already; choose another name, or pass --force")
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
    Console(quiet=quiet).say(f"Wrote {out} with {len(table.names)} columns; fill in what is publicly known of each.")


def show_plan(sizes: dict[str, Any], settings: dict[str, Any], *, as_json: bool) -> None:
    """Say what a run would cost."""
    with _speaking(as_json, False) as console:
        remark_on(settings["epsilon"])
        _show_forecast(console, forecast(planned_for(**sizes, settings=settings)))


def write_predictions(
    folder: Path,
    data: Path,
    out: Path,
    *,
    written: dict[str, Any],
    invalid: str,
    force: bool,
    speech: tuple[bool, bool],
) -> None:
    """Predict with a run's model."""
    with _speaking(*speech) as console:
        how = layout(**written)
        check_invalid(invalid)
        check_output(out, force=force)
        SIGNALS.ending = lambda: given_up(out)
        rows = predict(_review(folder), data, out, layout=how, invalid=invalid)
        console.say(f"Wrote {rows:,} predictions to {out}. They are about the people in {data.name}: keep both alike.")
        console.result({"predictions": str(out), "rows": rows})


def show_report(folder: Path, *, as_json: bool, quiet: bool) -> None:
    """Write the report of a run anew and show it."""
    with _speaking(as_json, quiet) as console:
        review = _review(folder)
        try:
            with SIGNALS.held():
                write_pages(review, folder)
        except OSError as error:
            raise InvalidArgument(
                f"{folder}: its report could not be written ({error.strerror}); make room, or copy run.json to another "
                "folder and report on that. Nothing of the run is lost"
            ) from None
        _show_review(console, review, folder)


def run_demo(out: Path, *, rows: int, force: bool, as_json: bool, quiet: bool, command: str) -> None:
    """The demonstration."""
    with _speaking(as_json, quiet) as console:
        demonstrate(out, rows=rows, force=force, console=console, command=command)


def run_audits(
    *, epsilon: float, delta: float, adjacency: str, runs: int, confidence: float, as_json: bool, quiet: bool
) -> None:
    """Attack every method, and show what that proves."""
    from dpbilevel.audit.auditing import audit
    from dpbilevel.audit.verdict import HEADER
    from dpbilevel.audit.worst_cases import standard_cases

    with _speaking(as_json, quiet) as console:
        budget = Budget(epsilon, delta, adjacency)  # type: ignore[arg-type]
        if not 0 < confidence < 1:
            raise InvalidArgument(f"--confidence {confidence:g}: must lie between 0 and 1 (try 0.99)")
        cases, found = standard_cases(budget), []
        each = 1 - (1 - confidence) / len(cases)  # so that all bounds hold together
        with counted("audits", len(cases), "audits") as advance:
            for case in cases:
                found.append(audit(case, budget, runs=runs, confidence=each))
                advance(1)
        console.table(
            f"Audits at delta = {delta:g}, {adjacency}; all bounds hold together with {100 * confidence:.4g}%",
            HEADER,
            [one.row() for one in found],
        )
        refuted = [one.name for one in found if not one.passed]
        console.result({"audits": [one.to_json() for one in found], "confidence": confidence, "passed": not refuted})
        if refuted:
            raise Refuted(
                f"more is proved than claimed, of {'; '.join(refuted)}: privacy is broken here, so please report it"
            )
        console.say("\nNo audit proves more than is claimed. That does not show that nothing more can be proved.")


def create_ledger(where: str, dataset: str, epsilon: float, delta: float, adjacency: str) -> None:
    """Start the ledger of a data set."""
    say_warnings_in_lines()
    total = Budget(epsilon, delta, adjacency)  # type: ignore[arg-type]
    remark_on(epsilon)
    with SIGNALS.held():
        ledger = ledger_files.create(where, dataset, total)
    Console().say(repr(ledger))


def show_ledger(where: str, dataset: str | None, *, as_json: bool) -> None:
    """Show the ledgers in a database."""
    console = Console(as_json)
    views = ledger_files.show(where, dataset)
    for view in views:
        for name, text in view.facts:
            console.say(f"{name}: {text}")
        console.table("Charges", ledger_files.HEADERS, view.rows)
    console.result({"ledgers": [view.statement.to_json() for view in views]})


def export_ledger(where: str, dataset: str | None, out: Path) -> None:
    """Write a ledger to a file."""
    with SIGNALS.held():
        written = ledger_files.export(where, dataset, out)
    Console().say(f"Wrote {written}.")


def _ledger(where: str | None, dataset: str | None, adjacency: str) -> Ledger | None:
    if where is None:
        if dataset is not None:
            raise InvalidArgument("--dataset: goes with --ledger; `dpbilevel ledger create` makes one")
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
            "different relations do not add up"
        )
    return ledger


def _review(folder: Path) -> Review:
    if not folder.is_dir():
        raise InvalidArgument(f"RUN {folder}: is not a folder; pass the folder that `dpbilevel tune` wrote (--out)")
    if not (folder / RUN).is_file():
        raise InvalidArgument(f"RUN {folder}: has no run.json; pass the folder that `dpbilevel tune` wrote (--out)")
    if (folder / SOLUTION).is_file():
        raise InvalidArgument(
            f"RUN {folder}: the run failed after it had released everything, and has no report or model to predict "
            f"with; its released values are in {folder / SOLUTION}, which dpb.Solution.load reads"
        )
    return read_run(folder / RUN)


def _show_review(console: Console, review: Review, folder: Path) -> None:
    solution = review.solution
    privacy = solution.privacy
    console.say(f"\n{in_own_words(privacy.sentence())}")
    if solution.result:
        console.say(f"\n{in_own_words(solution.result)}")
    console.table(
        f"Spend at delta = {privacy.budget.delta:g}" if privacy.budget.delta else "Spend",
        ["role", "records", "epsilon"],
        [[_ROLES[role], f"{solution.sizes[role]:,}", f"{privacy.epsilon(role=role):.4g}"] for role in privacy.charges],
    )
    found = hyperparameters(solution)
    values = dict(zip(found.names, found.values.tolist(), strict=True))
    rows = [[name, f"{value:.4g}"] for name, value in values.items()]
    more = f", {_SHOWN} of {len(rows)}" if len(rows) > _SHOWN else ""
    console.table(f"Released{more}", ["name", found.quantity], rows[:_SHOWN])
    for remark in solution.remarks:
        console.say(f"\nRemark: {remark}.")
    console.say(f"\nModel and all released values: {folder / RUN}")
    console.say(f"Report: {folder / PAGE}")
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
        }
    )


def _show_forecast(console: Console, told: Forecast) -> None:
    privacy, sizes = told.planned.privacy, told.planned.sizes
    console.say(f"A run would be {in_own_words(privacy.sentence())}")
    console.table(
        "Spend (roles hold disjoint records)",
        ["role", "records", "epsilon"],
        [[_ROLES[role], f"{sizes.count(role):,}", f"{privacy.epsilon(role=role):.4g}"] for role in privacy.charges],
    )
    console.table(
        "Numbers of the plan",
        ["number", "value", "why"],
        [[name, short(value), why] for name, (value, why) in told.planned.parameters.items()],
    )
    verdict = "noise will hardly matter" if told.noise_to_signal < 0.3 else "noise will rule"
    console.say(f"\nNoise to signal of a training step: {told.noise_to_signal:.3g} ({verdict}; below 0.3 is good).")
    console.say(f"For 0.3 at this epsilon and delta: about {told.rows_needed:,} rows.")
    if told.theory is not None:
        promise = f"a hypergradient of at most {told.theory.alpha:.3g} with probability 0.95"
        empty = " That is larger than it can be: at this size they promise nothing." if told.theory.vacuous else ""
        needed = "no data set is large enough" if told.theory_rows is None else f"{told.theory_rows:,} rows are needed"
        console.say(f"The paper's theorems guarantee {promise}, for its algorithm.{empty} For 0.1, {needed}.")
        console.say("The guarantee of privacy rests on none of that.")
    console.result(told.to_json())
