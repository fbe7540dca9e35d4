"""The command `dpbilevel`: what each command takes, and how each ends.

Only typer is imported here. What a command does lives in the other modules, which are imported when it is called.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Tune and train models on private data, under one (epsilon, delta) for everything.",
    epilog="From a CSV to predictions: schema, tune, report, predict. Exit codes: 0 well, 2 wrong input (nothing was "
    "spent), 3 the budget does not allow it (nothing was spent), 4 failed after the charge, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledgers = typer.Typer(help="Ledgers of data sets: what was spent on whom, by whom, when.", no_args_is_help=True)
app.add_typer(ledgers, name="ledger")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="A CSV or Parquet file, one row a record.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Target = Annotated[str, typer.Option(help="The column to predict.")]
SchemaFile = Annotated[Path, typer.Option("--schema", help="What is declared of the columns (TOML).")]
Out = Annotated[Path, typer.Option(help="The folder to write the run to.")]
Epsilon = Annotated[float, typer.Option(help="Of everything together, tuning and training.")]
Delta = Annotated[float | None, typer.Option(help="By default 1/n^1.1, rounded down; n is public.")]
Adjacency = Annotated[str, typer.Option(help="Which data sets are neighbours: replace-one or zero-out.")]
Fraction = Annotated[float, typer.Option(help="Part of the rows that validates; it trains the final model too.")]
Delimiter = Annotated[str | None, typer.Option(help="Of a CSV file; a comma by default, a tab for .tsv.")]
Decimal = Annotated[str, typer.Option(help="The decimal mark of numbers in text: . or ,")]
Columns = Annotated[str | None, typer.Option(help="NAME,NAME,...: the columns of a CSV file that has no header.")]
Invalid = Annotated[str, typer.Option(help="refuse rows with missing numbers (before the charge), or count them zero.")]
LedgerOption = Annotated[str | None, typer.Option("--ledger", help="Where the data set's ledger is: a file or a URL.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="The data set's name in the ledger.")]
Seed = Annotated[int | None, typer.Option(help="Fix the noise, for experiments. The run is then NOT private.")]
Noise = Annotated[str, typer.Option(help="float, or exact for integer noise, which needs OpenDP.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Plan and spend only; reads no record.")]
RowCount = Annotated[int | None, typer.Option("--rows", help="Rows of a CSV, for a dry run, which cannot count them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but warnings and errors.")]


@app.command(epilog="Example: dpbilevel demo --out flights-run")
def demo(
    out: Out = Path("flights-run"),
    rows: Annotated[int, typer.Option(help="How many flights take part.")] = 100_000,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Tune penalties on 80,000 private flights and write a report: will a flight from New York arrive late?"""
    from dpbilevel.cli.commands import run_demo

    run_demo(out, rows=rows, force=force, as_json=as_json, quiet=quiet, command=_command())


@app.command(epilog="Example: dpbilevel schema people.csv --target income --out schema.toml")
def schema(
    data: Data,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    source: Annotated[str | None, typer.Option(help="The column that says where a row comes from.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; without it, the schema is printed.")] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    columns: Columns = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a schema to fill in, from the names of the columns. No value is read."""
    from dpbilevel.cli.commands import write_schema

    written = {"delimiter": delimiter, "decimal": decimal, "columns": columns}
    write_schema(data, target, source, out, written=written, force=force, quiet=quiet)


@app.command(
    epilog="Example: dpbilevel tune people.csv --target income --schema schema.toml --epsilon 1 --delta 1e-6 --out run"
)
def tune(
    data: Data,
    target: Target,
    schema_file: SchemaFile,
    out: Out = Path("run"),
    epsilon: Epsilon = 1.0,
    delta: Delta = None,
    groups: Annotated[str, typer.Option(help="Penalties: one, one for each of the columns, or by schema.")] = "one",
    adjacency: Adjacency = "replace-one",
    validation_fraction: Fraction = 0.2,
    invalid: Invalid = "refuse",
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    columns: Columns = None,
    ledger: LedgerOption = None,
    dataset: Dataset = None,
    noise: Noise = "float",
    seed: Seed = None,
    force: Force = False,
    dry_run: DryRun = False,
    rows: RowCount = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Tune the penalties of a linear model on private rows, train it, and write a run with its report."""
    from dpbilevel.cli.commands import fit

    fit(
        {"data": data, "schema": schema_file, "target": target, "groups": groups},
        {
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "validation_fraction": validation_fraction,
            "invalid": invalid,
            "noise": noise,
            "random_state": seed,
        },
        written={"delimiter": delimiter, "decimal": decimal, "columns": columns},
        out=out,
        force=force,
        ledger=(ledger, dataset),
        dry_run=dry_run,
        rows=rows,
        speech=(as_json, quiet),
        command=_command(),
    )


@app.command(
    epilog="Example: dpbilevel reweight visits.csv --target sick --source hospital --schema schema.toml --out run"
)
def reweight(
    data: Data,
    target: Target,
    source: Annotated[str, typer.Option(help="The column that says where a row comes from.")],
    schema_file: SchemaFile,
    out: Out = Path("run"),
    validation: Annotated[Path | None, typer.Option(help="A file of rows that are known to be good.")] = None,
    epsilon: Epsilon = 1.0,
    delta: Delta = None,
    adjacency: Adjacency = "replace-one",
    validation_fraction: Fraction = 0.2,
    invalid: Invalid = "refuse",
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    columns: Columns = None,
    ledger: LedgerOption = None,
    dataset: Dataset = None,
    noise: Noise = "float",
    seed: Seed = None,
    force: Force = False,
    dry_run: DryRun = False,
    rows: RowCount = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Weigh the sources of private rows, train a linear model, and write a run with its report."""
    from dpbilevel.cli.commands import fit

    fit(
        {
            "data": data,
            "schema": schema_file,
            "target": target,
            "source": source,
            "validation": validation,
        },
        {
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "validation_fraction": validation_fraction,
            "invalid": invalid,
            "noise": noise,
            "random_state": seed,
        },
        written={"delimiter": delimiter, "decimal": decimal, "columns": columns},
        out=out,
        force=force,
        ledger=(ledger, dataset),
        dry_run=dry_run,
        rows=rows,
        speech=(as_json, quiet),
        command=_command(),
    )


@app.command(epilog="Example: dpbilevel plan --rows 50000 --columns 100 --epsilon 1 --delta 1e-6")
def plan(
    rows: Annotated[int, typer.Option(help="How many rows there will be.")],
    columns: Annotated[int, typer.Option(help="Encoded columns: one for each number and each category.")],
    classes: Annotated[int, typer.Option(help="Labels of the target; 0 for a target of numbers.")] = 2,
    penalties: Annotated[int, typer.Option(help="How many penalties are tuned.")] = 1,
    sources: Annotated[int, typer.Option(help="Sources to weigh instead of penalties; 0 for none.")] = 0,
    validation_rows: Annotated[int | None, typer.Option(help="With --sources: rows given apart.")] = None,
    epsilon: Epsilon = 1.0,
    delta: Delta = None,
    adjacency: Adjacency = "replace-one",
    validation_fraction: Fraction = 0.2,
    as_json: AsJson = False,
) -> None:
    """Say what a run would spend and how loud its noise would be, from sizes alone."""
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
        {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "validation_fraction": validation_fraction},
        as_json=as_json,
    )


@app.command(epilog="Example: dpbilevel predict run new_people.csv --out predictions.csv")
def predict(
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="The file to write, CSV or Parquet.")] = Path("predictions.csv"),
    delimiter: Delimiter = None,
    decimal: Decimal = ".",
    columns: Columns = None,
    invalid: Annotated[str, typer.Option(help="refuse rows with missing numbers, or take them for zero.")] = "refuse",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the target of every row of a file with a run's model. Costs no budget."""
    from dpbilevel.cli.commands import write_predictions

    written = {"delimiter": delimiter, "decimal": decimal, "columns": columns}
    write_predictions(run, data, out, written=written, invalid=invalid, force=force, speech=(as_json, quiet))


@app.command(epilog="Example: dpbilevel report run")
def report(run: Run, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Show what a run released and spent, and write its report anew from run.json."""
    from dpbilevel.cli.commands import show_report

    show_report(run, as_json=as_json, quiet=quiet)


@app.command(epilog="Example: dpbilevel audit --epsilon 4 --runs 4000")
def audit(
    epsilon: Annotated[float, typer.Option(help="What every run claims.")] = 4.0,
    delta: Annotated[float, typer.Option(help="Of the claim; a small one hides all that few runs can show.")] = 1e-2,
    runs: Annotated[int, typer.Option(help="On each of two neighbouring data sets, for every method.")] = 2000,
    confidence: Annotated[float, typer.Option(help="With which all bounds hold together.")] = 0.99,
    adjacency: Adjacency = "replace-one",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack every method on invented data, and show what that proves about epsilon (a few minutes)."""
    from dpbilevel.cli.commands import run_audits

    run_audits(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        runs=runs,
        confidence=confidence,
        as_json=as_json,
        quiet=quiet,
    )


@ledgers.command(name="create", epilog="Example: dpbilevel ledger create visits.db --dataset visits-2026 --epsilon 3")
def ledger_create(
    where: Annotated[str, typer.Argument(metavar="LEDGER", help="A file to make, or the URL of a database.")],
    dataset: Annotated[str, typer.Option(help="The data set's name.")],
    epsilon: Annotated[float, typer.Option(help="The total of all runs on the data set, for ever.")],
    delta: Annotated[float, typer.Option(help="The total's delta.")] = 1e-6,
    adjacency: Adjacency = "replace-one",
) -> None:
    """Start the ledger of a data set."""
    from dpbilevel.cli.commands import create_ledger

    create_ledger(where, dataset, epsilon, delta, adjacency)


@ledgers.command(name="show", epilog="Example: dpbilevel ledger show visits.db")
def ledger_show(
    where: Annotated[str, typer.Argument(metavar="LEDGER", help="A ledger file, or the URL of a database.")],
    dataset: Dataset = None,
    as_json: AsJson = False,
) -> None:
    """Show what was spent on a data set."""
    from dpbilevel.cli.commands import show_ledger

    show_ledger(where, dataset, as_json=as_json)


@ledgers.command(name="export", epilog="Example: dpbilevel ledger export visits.db --out visits.csv")
def ledger_export(
    where: Annotated[str, typer.Argument(metavar="LEDGER", help="A ledger file, or the URL of a database.")],
    out: Annotated[Path, typer.Option(help="The file to write: .json or .csv.")],
    dataset: Dataset = None,
) -> None:
    """Write all entries of a ledger to a file, for review."""
    from dpbilevel.cli.commands import export_ledger

    export_ledger(where, dataset, out)


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"dpbilevel {importlib.metadata.version('dpbilevel')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Tune and train models on private data, under one (epsilon, delta) for everything."""


def _command() -> str:
    """What was typed, for the report, which may be published: without the password in the address of a ledger."""
    typed = (re.sub(r"(?<=://)([^:@/]*):[^@]*(?=@)", r"\1:***", argument) for argument in sys.argv[1:])
    return shlex.join(["dpbilevel", *typed])


def main() -> None:
    """The entry point: runs a command, and turns every error into one line on stderr and an exit code."""
    from dpbilevel.cli.ending import ended
    from dpbilevel.cli.signals import SIGNALS

    called = SIGNALS.install()  # by Python: as a command, `dpbilevel.cli.entry` has done so, to the end of the process
    try:
        code = ended(app)
        SIGNALS.answer()  # one that came in a section which then failed
    finally:
        if called:
            SIGNALS.uninstall()
    sys.exit(code)
