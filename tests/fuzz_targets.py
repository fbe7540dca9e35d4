"""Every public entry point and file format, called with bad inputs: typed errors only, nothing charged or written.

Each target draws an input and returns a call, and what must not have changed if the call is refused.
"""

import functools
import json
import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cli_data import SCHEMA, write_people
from estimator_cases import CASES, X, fitted
from every_method import BUDGET, METHODS, PROBLEM, SHORT, START, data, solved, solver
from fuzz_functions import FUNCTIONS
from fuzz_inputs import anything, changed, damaged_bytes, damaged_json, damaged_text
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import dpbilevel as dpb
from dpbilevel.cli.rows import fitted_encoder, read_rows
from dpbilevel.cli.schema import parsed, read_schema
from dpbilevel.cli.table_file import open_table
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run, write_run

Draw = Callable[[st.SearchStrategy[Any]], Any]
Call = Callable[[], Any]
# NotFittedError is scikit-learn's word for predict before fit, and part of its contract.
TYPED = (dpb.DPBilevelError, NotFittedError)


# --- constructors and plain functions ----------------------------------------------------------------------------


def arguments_of_functions(draw: Draw) -> Call:
    """Constructors and functions of public numbers, with one to three arguments replaced by anything."""
    function, valid, more = FUNCTIONS[draw(st.sampled_from(sorted(FUNCTIONS)))]
    return functools.partial(function, **draw(changed(valid, more)))


# --- records, plans, runs ----------------------------------------------------------------------------------------


def records(draw: Draw) -> Call:
    """Trees of anything as records, and as sizes."""
    kind = draw(st.sampled_from([dpb.Records, dpb.Sizes]))
    return functools.partial(kind, **draw(changed({"lower": np.zeros(3)}, ("upper", "both"))))


_planned = {"problem": PROBLEM, "budget": BUDGET, "start": START, "method": METHODS["Tracking"], "refit": SHORT}


def plans(draw: Draw) -> Call:
    """plan, with some arguments replaced."""
    return functools.partial(dpb.plan, **draw(changed(_planned | {"sizes": dpb.Sizes(**data())})))


@functools.cache
def _records() -> dpb.Records:
    return dpb.Records(**data())


@dataclass
class Charged:
    """A ledger that must be as it was after a refusal."""

    ledger: dpb.Ledger = field(default_factory=lambda: dpb.Ledger(dpb.Budget(1e6, 0.9), composition="basic"))
    nothing: dpb.Ledger = field(default_factory=lambda: dpb.Ledger(dpb.Budget(1e-9, 1e-12)))  # refuses every run

    @property
    def entries(self) -> tuple[Any, ...]:
        """Of both."""
        return (*self.ledger.entries, *self.nothing.entries)


def runs(draw: Draw, charged: Charged) -> Call:
    """solve, by every method and baseline, with some arguments replaced."""
    name = draw(st.sampled_from([name for name in METHODS if "," not in name]))
    valid = {"problem": PROBLEM, "records": _records(), "budget": BUDGET, "start": START}
    given = draw(changed(valid, ("seed", "ledger")))
    ledger = given.pop("ledger", None if name == "OracleHyperparameters" else charged.ledger)
    return functools.partial(solver(name), **given, ledger=ledger, progress=False)


def losses(draw: Draw, charged: Charged) -> Call:
    """solve, with a loss or a term that returns anything."""
    part = draw(st.sampled_from(["lower_loss", "upper_loss", "lower_term", "upper_term", "lower_scale"]))
    returned = draw(anything())
    functions = {"lower_loss": PROBLEM.lower_loss, "upper_loss": PROBLEM.upper_loss, part: lambda *_: returned}
    problem = dpb.BilevelProblem(domain=dpb.Simplex(), **functions)
    return lambda: dpb.solve(problem, _records(), BUDGET, start=START, ledger=charged.nothing, refit=SHORT)


def evaluations(draw: Draw, charged: Charged) -> Call:
    """evaluate, with some arguments replaced, among them what the model returns."""
    returned = draw(st.one_of(st.just(np.zeros(60)), anything()))
    valid = {"model": lambda rows: returned, "records": (np.zeros((60, 2)), np.arange(60) % 2), "budget": BUDGET}
    more = ("metric", "loss_bound", "positive_class", "bins", "seed", "ledger")
    given = draw(changed(valid, more))
    if draw(st.booleans()):
        given["records"] = (draw(anything()), draw(anything()))
    return functools.partial(dpb.evaluate, **{"ledger": charged.ledger} | given)


# --- encoders and estimators -------------------------------------------------------------------------------------

_SETTINGS = (
    "epsilon",
    "delta",
    "adjacency",
    "data_norm",
    "bounds",
    "validation_fraction",
    "split_seed",
    "method",
    "invalid",
    "random_state",
)


def fits(draw: Draw, charged: Charged) -> Call:
    """fit of every estimator, with settings or data replaced; what is left of it is refused by a ledger of nothing."""
    name = draw(st.sampled_from(sorted(CASES)))
    case = CASES[name]
    given = draw(changed({"X": X, "y": case.y, **case.more()}, _SETTINGS if draw(st.booleans()) else ()))
    rows = {part: given.pop(part) for part in ("X", "y", *case.more())}
    return lambda: case.make(ledger=charged.nothing, **given).fit(**rows)


def plans_of_estimators(draw: Draw) -> Call:
    """plan of every estimator."""
    case = CASES[draw(st.sampled_from(sorted(CASES)))]
    sizes = draw(changed({"rows": 60, "columns": 3}, ("validation_rows",) if case.places == "sources" else ()))
    return lambda: case.make().plan(**sizes)


def predictions(draw: Draw) -> Call:
    """predict and score of fitted models."""
    name = draw(st.sampled_from(sorted(CASES)))
    model = fitted(CASES[name])
    table, targets = draw(st.one_of(st.just(X), anything())), draw(anything())
    extra = {"tasks": draw(anything())} if name == "multitask" and draw(st.booleans()) else {}
    asked = draw(st.booleans())

    def ask() -> None:
        try:
            model.predict(table, **extra) if asked else model.score(table, targets, **extra)
        except ValueError as error:
            if "features as input" not in str(error):  # scikit-learn's own words, which its checks insist on
                raise
            raise dpb.InvalidRecords("another number of columns") from None

    return ask


def encoders(draw: Draw) -> Call:
    """BoundedEncoder, with declarations and tables of any kind."""
    table, other = draw(anything()), draw(anything())
    valid = {"ranges": {0: (0, 1), 1: (0, 1)}, "categories": {2: ["a", "other"]}}
    encoder = draw(changed(valid, ("row_norm", "intercept", "invalid")))
    rows = [[0.1, 0.2, "a"]] if draw(st.booleans()) else table
    return lambda: dpb.BoundedEncoder(**encoder).fit(rows).transform(other)


# --- files -------------------------------------------------------------------------------------------------------


@functools.cache
def _solution() -> dpb.Solution:
    return solved("Tracking", _records(), seed=0)


@functools.cache
def _solution_json() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(_solution().to_json()))
    return content


@functools.cache
def _run_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return write_run(Review(solution=_solution(), title="a run"), Path(folder) / "run.json").read_text("utf-8")


@functools.cache
def _ledger_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        ledger = dpb.Ledger.open(f"sqlite:///{folder}/a.db", dataset="people", total=dpb.Budget(3.0, 1e-4))
        solved("FixedDefault", _records(), ledger=ledger)
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
                {"format": "dpbilevel.schema/1", "columns": {"a": {"range": [0, 1]}, "b": {"classes": ["x", "y"]}}}
            )
        )
        return lambda: parsed(content, "here")
    (folder / "schema.toml").write_bytes(draw(damaged_text(SCHEMA)))
    return lambda: read_schema(folder / "schema.toml")


@functools.cache
def _schema() -> Any:
    import tomllib

    return parsed(tomllib.loads(SCHEMA), "here")


def tables(draw: Draw, folder: Path) -> Call:
    """Rows of a damaged CSV or Parquet file."""
    kind = draw(st.sampled_from(["csv", "parquet", "tsv"]))
    good = _table_bytes("parquet" if kind == "parquet" else "csv")
    path = folder / f"people.{kind}"
    path.write_bytes(draw(damaged_bytes(good) if kind == "parquet" else damaged_text(good.decode())))
    encoder = fitted_encoder(_schema().features("paid", "clinic"), "refuse")

    def read() -> None:
        table = open_table(path, delimiter)
        if set(_schema().columns) <= set(table.names):
            read_rows(table, encoder, _schema(), "paid", "clinic")

    delimiter = draw(st.one_of(st.none(), st.sampled_from([",", ";", "\t", "", "ab", '"', "\n"])))
    return read


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


def accounts(draw: Draw) -> Call:
    """Questions to a spend, and one that was damaged on its way through a file."""
    if draw(st.booleans()):
        content = draw(damaged_json(json.loads(json.dumps(_solution().privacy.to_json()))))
        return lambda: dpb.Privacy.from_json(content).sentence()
    privacy, given = _solution().privacy, draw(changed({}, ("delta", "group", "role")))
    return functools.partial(privacy.epsilon, **given)


def commands(draw: Draw, folder: Path) -> Call:
    """The command line, with damaged files and arguments; one line on stderr and exit code 2 or 3."""
    from dpbilevel.cli import app

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
    for _ in range(draw(st.integers(0, 2))):
        line[draw(st.integers(0, len(line) - 1))] = draw(text)
    if line[0] in ("tune", "reweight"):
        line += ["--dry-run"]

    def run() -> None:
        import contextlib
        import io
        import sys

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
        if code:
            raise dpb.InvalidArgument("refused, as the exit code says")

    return run


TARGETS: dict[str, tuple[Callable[..., Call], int]] = {  # with a weight: how many of all inputs
    "arguments of functions": (arguments_of_functions, 5),
    "records": (records, 2),
    "plans": (plans, 1),
    "runs": (runs, 1),
    "losses": (losses, 1),
    "evaluations": (evaluations, 2),
    "fits": (fits, 1),
    "plans of estimators": (plans_of_estimators, 1),
    "predictions": (predictions, 1),
    "encoders": (encoders, 1),
    "solutions": (solutions, 1),
    "run files": (run_files, 1),
    "schemas": (schemas, 1),
    "tables": (tables, 1),
    "ledger files": (ledger_files, 1),
    "ledger arguments": (ledger_arguments, 1),
    "accounts": (accounts, 1),
    "commands": (commands, 1),
}


def fuzz(name: str, inputs: int, start: int = 0) -> Counter[str]:
    """Call a target with so many inputs; counts by what became of them. Raises on one that is not as it should be."""
    import inspect

    make = TARGETS[name][0]
    wanted = list(inspect.signature(make).parameters)[1:]
    found: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def one(drawn: st.DataObject) -> None:
        charged = Charged()
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = Path(place)
            context = {"charged": charged, "folder": folder}
            call = make(drawn.draw, **{parameter: context[parameter] for parameter in wanted})
            before = _listing(folder)
            try:
                call()
            except TYPED as error:
                found[type(error).__name__] += 1
                assert charged.entries == (), "refused, and charged"
                assert _listing(folder) == before, "refused, and something was written"
            else:
                found["accepted"] += 1

    one()
    return found


def _listing(folder: Path) -> dict[str, bytes]:
    # SQLite's own files beside a database (of its log and its lock) come and go when it is read.
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def shares(total: int) -> dict[str, int]:
    """How many inputs each target gets of a total."""
    weight = sum(weight for _, weight in TARGETS.values())
    return {name: math.ceil(total * mine / weight) for name, (_, mine) in TARGETS.items()}
