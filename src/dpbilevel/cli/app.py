"""The command `dpbilevel`: the arguments of all subcommands, and the entry point.

Only typer is imported here. The other modules, which implement the commands, are imported when a command is called.
Commands that fit a model are defined in `dpbilevel.cli.applications`, one per module.
"""

import importlib
import inspect
import pkgutil
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpbilevel.cli import applications
from dpbilevel.cli import fit_command as shared
from dpbilevel.cli.fit_command import COMMANDS, FitCommand, Positional
from dpbilevel.cli.launch import member
from dpbilevel.cli.registration import Launching, Resumable, add

app = typer.Typer(
    help="Tune and train models on private data, under one (epsilon, delta) for everything.",
    epilog="From a CSV to predictions: schema, tune, report, predict; then evaluate. Exit codes: 0 success, 2 invalid "
    "input (nothing was spent), 3 budget exceeded (nothing was spent), 4 failed after the charge, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledgers = typer.Typer(
    help="Ledgers of data sets: who spent how much privacy budget, on what, and when.", no_args_is_help=True
)
app.add_typer(ledgers, name="ledger")

Run = Annotated[Path, Positional("The folder of a run.")]
Address = Annotated[str, Positional("A ledger file, or the URL of a database.")]


def _added(
    example: str, name: str | None = None, to: typer.Typer = app, kind: type[TyperCommand] = TyperCommand
) -> Callable[[Callable[..., None]], None]:
    """Register a function as a command; its options are its parameters, with their help texts."""
    return lambda function: add(function, inspect.signature(function).parameters.values(), example, to, name, kind)


def register(kind: type[FitCommand]) -> None:
    """Register an application as a command; called for all modules of `dpbilevel.cli.applications`."""

    def fit(context: typer.Context, **given: Any) -> None:
        from dpbilevel.cli.commands import fit, resume

        folder = given["resume"]
        if folder is None:
            fit(kind(**given), _command())
            return
        typed = {name for name in given if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
        resume(kind, folder, {name: given[name] for name in typed - {"resume"}}, _command())

    fit.__doc__ = kind.__doc__
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    add(fit, [context, *shared.options(kind)], kind.example, app, kind.command, Resumable)
    COMMANDS[kind.command] = kind


@_added("dpbilevel demo --out flights-run")
def demo(
    out: shared.Out = Path("flights-run"),
    rows: Annotated[int, "The number of private flights."] = 20_000,
    force: shared.Force = False,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Tune weights of sources on 20,000 private flights and write a report: will a flight arrive late?"""
    from dpbilevel.cli.commands import run_demo

    run_demo(out, rows=rows, force=force, as_json=json, quiet=quiet, command=_command())


@_added("dpbilevel schema people.csv --target income --out schema.toml")
def schema(
    data: shared.Data,
    target: Annotated[str | None, "The column to predict."] = None,
    source: Annotated[str | None, "The column with the source of each row."] = None,
    out: Annotated[Path | None, "The file to write; by default, the schema is printed."] = None,
    delimiter: shared.Delimiter = None,
    decimal: shared.Decimal = ".",
    columns: shared.Columns = None,
    force: shared.Force = False,
    quiet: shared.Quiet = False,
) -> None:
    """Write a schema template from the names of the columns. No values are read."""
    from dpbilevel.cli.commands import write_schema

    written = {"delimiter": delimiter, "decimal": decimal, "columns": columns}
    write_schema(data, target, source, out, written=written, force=force, quiet=quiet)


for _found in pkgutil.iter_modules(applications.__path__, f"{applications.__name__}."):
    register(importlib.import_module(_found.name).COMMAND)


@_added("dpbilevel launch --processes 4 tune people.csv --target income --schema schema.toml --out run", kind=Launching)
def launch(
    command: Annotated[list[str], Positional("tune or reweight, with its options.")],
    processes: Annotated[int | None, "How many processes there are."] = None,
    coordinator: Annotated[
        str | None,
        "HOST:PORT of process 0, if this machine is one of several; by default all processes are on this one.",
    ] = None,
    process: Annotated[
        int | None, "With --coordinator: which process this is, from 0 on; mpirun, Slurm and Kubernetes say it."
    ] = None,
) -> None:
    """Run tune or reweight as several processes, each with its part of the rows, on one machine or on several."""
    from dpbilevel.cli.launch import launch as run

    sys.exit(run(command, processes, coordinator, process))


@_added("dpbilevel plan --rows 50000 --columns 100 --epsilon 1 --delta 1e-6")
def plan(
    rows: Annotated[int, "The number of rows."],
    columns: Annotated[int, "Encoded columns: one per number and one per category."],
    classes: Annotated[int, "Number of classes of the target; 0 for a numeric target."] = 2,
    penalties: Annotated[int, "The number of penalties to tune."] = 1,
    sources: Annotated[int, "Tune weights of this many sources instead of penalties; 0 for penalties."] = 0,
    validation_rows: Annotated[int | None, "With --sources: the number of separate validation rows."] = None,
    rows_per_unit: Annotated[int | None, "Protect units of at most so many rows; --rows is then their number."] = None,
    mean_rows: shared.MeanRows = None,
    epsilon: shared.Epsilon = 1.0,
    delta: shared.Delta = None,
    adjacency: shared.Adjacency = "replace-one",
    validation_fraction: shared.Fraction = 0.2,
    json: shared.Json = False,
) -> None:
    """Show the privacy spend and the noise of a run, from sizes alone."""
    from dpbilevel.cli.commands import show_plan

    show_plan(
        {
            "rows": rows,
            "columns": columns,
            "classes": classes,
            "penalties": penalties,
            "sources": sources,
            "validation_rows": validation_rows,
        },
        {
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "validation_fraction": validation_fraction,
            "rows_per_unit": rows_per_unit,
            "mean_rows": mean_rows,
        },
        as_json=json,
    )


@_added("dpbilevel predict run new_people.csv --out predictions.csv")
def predict(
    run: Run,
    data: shared.Data,
    out: Annotated[Path, "The file to write, CSV or Parquet."] = Path("predictions.csv"),
    delimiter: shared.Delimiter = None,
    decimal: shared.Decimal = ".",
    columns: shared.Columns = None,
    invalid: Annotated[str, "refuse rows with missing numbers, or replace missing numbers by zero."] = "refuse",
    force: Annotated[bool, "Replace an existing file."] = False,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Predict the target of every row of a file with the model of a run. Spends no budget."""
    from dpbilevel.cli.commands import write_predictions

    written = {"delimiter": delimiter, "decimal": decimal, "columns": columns}
    write_predictions(run, data, out, written=written, invalid=invalid, force=force, output=(json, quiet))


@_added("dpbilevel evaluate run held_out.csv --epsilon 0.5 --metrics accuracy,auc --ledger people.db")
def evaluate(
    run: Run,
    data: shared.Data,
    epsilon: Annotated[float, "The epsilon of the scores, for the rows of DATA."],
    delta: Annotated[float | None, "The delta of the scores; by default 1/n^1.1, rounded down; n is public."] = None,
    metrics: Annotated[
        str | None,
        "NAME,NAME,...: accuracy, auc, loss, brier, calibration, or r2, error_quantiles, loss for numbers.",
    ] = None,
    groups: Annotated[str | None, "Release the accuracy of each category of this column too."] = None,
    positive_class: Annotated[str | None, "The class of auc and calibration, if there are more than two."] = None,
    unit: shared.UnitColumn = None,
    rows_per_unit: shared.RowsPerUnit = None,
    unit_ids: shared.UnitIds = None,
    adjacency: shared.Adjacency = "replace-one",
    ledger: shared.LedgerAddress = None,
    dataset: shared.Dataset = None,
    noise: shared.Noise = "float",
    out: Annotated[Path | None, "The file to write; by default evaluation.json in the folder of the run."] = None,
    delimiter: shared.Delimiter = None,
    decimal: shared.Decimal = ".",
    columns: shared.Columns = None,
    invalid: Annotated[str, "refuse rows with missing numbers, or replace missing numbers by zero."] = "refuse",
    force: Annotated[bool, "Replace an existing file."] = False,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Score the model of a run on private rows that it was not trained on: noisy scores with confidence intervals."""
    from dpbilevel.cli.commands import write_scores
    from dpbilevel.cli.evaluation import Wanted

    wanted = Wanted(
        metrics=metrics,
        groups=groups,
        positive_class=positive_class,
        unit=unit,
        rows_per_unit=rows_per_unit,
        unit_ids=unit_ids,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        noise=noise,
        invalid=invalid,
    )
    written = {"delimiter": delimiter, "decimal": decimal, "columns": columns}
    write_scores(run, data, out, wanted, (ledger, dataset), written=written, force=force, output=(json, quiet))


@_added("dpbilevel unit-sizes visits.csv --unit patient --epsilon 0.2 --ledger visits.db", "unit-sizes")
def unit_sizes(
    data: shared.Data,
    unit: Annotated[str, "The column of ids."],
    epsilon: Annotated[float, "The epsilon of the histogram; a small one will do."],
    delta: Annotated[
        float | None, "Its delta; by default 1/n^1.1, rounded down; n, the number of ids, is public."
    ] = None,
    unit_ids: shared.UnitIds = None,
    largest: Annotated[int, "Bins end at 1, 2, 4, ... rows up to this number, which is public."] = 64,
    adjacency: shared.Adjacency = "replace-one",
    ledger: shared.LedgerAddress = None,
    dataset: shared.Dataset = None,
    delimiter: shared.Delimiter = None,
    columns: shared.Columns = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Release how many rows ids have, as a noisy histogram, to choose --rows-per-unit from it."""
    from dpbilevel.cli.commands import show_unit_sizes
    from dpbilevel.cli.layout import layout
    from dpbilevel.cli.unit_sizes import WantedSizes

    wanted = WantedSizes(
        unit=unit, unit_ids=unit_ids, largest=largest, epsilon=epsilon, delta=delta, adjacency=adjacency
    )
    show_unit_sizes(data, wanted, layout(delimiter, ".", columns), (ledger, dataset), (json, quiet))


@_added("dpbilevel report run")
def report(
    run: Run,
    registry: Annotated[Path | None, "Also write the fields of OpenDP's deployments registry, as JSON."] = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Show what a run released and spent, and write its report again from run.json."""
    from dpbilevel.cli.commands import show_report

    show_report(run, registry, as_json=json, quiet=quiet)


@_added("dpbilevel audit --epsilon 4 --runs 4000")
def audit(
    epsilon: Annotated[float, "The claimed epsilon of every run."] = 4.0,
    delta: Annotated[float, "The claimed delta; with a small one, few runs prove little."] = 1e-2,
    runs: Annotated[int, "Number of runs on each of two neighbouring data sets, for every method."] = 2000,
    confidence: Annotated[float, "Simultaneous confidence level of all bounds."] = 0.99,
    adjacency: shared.Adjacency = "replace-one",
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Attack every method on synthetic data, and show the lower bounds on epsilon (a few minutes)."""
    from dpbilevel.cli.commands import run_audits

    run_audits(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        runs=runs,
        confidence=confidence,
        as_json=json,
        quiet=quiet,
    )


@_added("dpbilevel ledger create visits.db --dataset visits-2026 --epsilon 3", "create", ledgers)
def ledger_create(
    ledger: Annotated[str, Positional("The file to create, or the URL of a database.")],
    dataset: Annotated[str, "The name of the data set."],
    epsilon: Annotated[float, "The total epsilon of all runs on the data set, permanently."],
    delta: Annotated[float, "The total delta."] = 1e-6,
    adjacency: shared.Adjacency = "replace-one",
    unit: Annotated[
        str | None, "A column of ids: only runs that protect all rows of one of its ids are charged."
    ] = None,
) -> None:
    """Create the ledger of a data set."""
    from dpbilevel.cli.commands import create_ledger

    create_ledger(ledger, dataset, epsilon, delta, adjacency, unit)


@_added("dpbilevel ledger show visits.db", "show", ledgers)
def ledger_show(
    ledger: Address,
    dataset: shared.Dataset = None,
    json: shared.Json = False,
) -> None:
    """Show what was spent on a data set."""
    from dpbilevel.cli.commands import show_ledger

    show_ledger(ledger, dataset, as_json=json)


@_added("dpbilevel ledger export visits.db --out visits.csv", "export", ledgers)
def ledger_export(
    ledger: Address,
    out: Annotated[Path, "The file to write: .json or .csv."],
    dataset: shared.Dataset = None,
) -> None:
    """Write all entries of a ledger to a file, for review."""
    from dpbilevel.cli.commands import export_ledger

    export_ledger(ledger, dataset, out)


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"dpbilevel {importlib.metadata.version('dpbilevel')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Tune and train models on private data, under one (epsilon, delta) for everything."""


def _command() -> str:
    """The command line for the report, without the password in the URL of a ledger: reports may be published."""
    from dpbilevel.cli.resuming import without_password
    from dpbilevel.foundation.processes import current

    launched = ["launch", "--processes", str(current().count)] if current().is_several else []
    return shlex.join(["dpbilevel", *launched, *map(without_password, sys.argv[1:])])


def main() -> None:
    """The entry point: runs a command, and converts every error into one line on stderr and an exit code."""
    from dpbilevel.cli.ending import exit_code_of
    from dpbilevel.cli.signals import SIGNALS

    called = (
        SIGNALS.install()
    )  # True if called from Python; for the command, `dpbilevel.cli.entry` has installed them for the whole process
    try:
        if (described := member()) is not None:
            from dpbilevel.cli.member import take_part

            take_part(described, app)
        code = exit_code_of(app)
        SIGNALS.answer()  # a signal that arrived in a protected section which then failed
    finally:
        if called:
            SIGNALS.uninstall()
    sys.exit(code)
