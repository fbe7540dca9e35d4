"""Errors, warnings, logs and prints of every public entry point have no private value in them, wherever one is put.

Each entry point is called with tables that hold the number 987654.25 and the word "Zanzibar" in every position, in
shapes and types that are refused and in such that are not. Errors are looked at whole: text, repr, arguments, notes,
causes and contexts, suppressed ones too.
"""

import functools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.bad_inputs import bad_tables, bad_targets
from support.cli_data import write_people
from support.disclosures import NUMBER, SECRETS, WORD, check_tells_nothing, reported
from support.estimator_cases import CASES, X, fitted
from support.every_method import BUDGET, METHODS, PROBLEM, START, N, data, solver

import dpbilevel as dpb
from dpbilevel.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")


class Speaking:
    """An object that says what it holds, like cells of many libraries do."""

    def __repr__(self) -> str:
        return f"{WORD} {NUMBER}"

    def __array__(self, *_, **__):
        raise ValueError(f"cannot make an array of {self!r}")

    def __float__(self) -> float:
        raise TypeError(f"no number: {self!r}")


def bad_arrays() -> Iterator[tuple[str, object]]:
    """What no record can be, with private values in it."""
    plain = np.full(N, NUMBER)
    for place in (0, N // 2, N - 1):
        for value in (np.nan, np.inf, -np.inf):
            yield f"{value} at {place}", np.where(np.arange(N) == place, value, plain)
        words = plain.astype(object)
        words[place] = WORD
        yield f"a word at {place}", words
        mixed = plain.astype(object)
        mixed[place] = Speaking()
        yield f"an object at {place}", mixed
    yield "words", np.array([WORD] * N)
    yield "bytes", np.array([WORD.encode()] * N)
    yield "a list of words", [WORD] * N
    yield "a word", WORD
    yield "a number", NUMBER
    yield "an object", Speaking()
    yield "objects in a list", [Speaking()] * N
    yield "complex", plain + 1j
    yield "dates", np.full(N, 987654, "datetime64[s]")
    yield "masked", np.ma.masked_greater(plain, 1.0)
    yield "ragged", [[NUMBER] * 2, [NUMBER]]
    yield "ragged words", [[WORD], [WORD, NUMBER]]
    yield "lengths that differ", {"a": plain, "b": plain[1:]}
    yield "a set", {NUMBER, WORD}
    yield "huge integers", np.full(N, 987654 * 10**15)
    yield "Python's integers", [987654 * 10**30] * N
    yield "empty", plain[:0]
    yield "a function", functools.partial(print, WORD)


BAD_ARRAYS = dict(bad_arrays())


def refused(function: Callable[[], object], kinds: type | tuple[type, ...] = dpb.DPBilevelError) -> None:
    error = check_tells_nothing(function)
    assert isinstance(error, kinds), f"{type(error).__name__} instead of a refusal"


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_records_and_sizes_tell_nothing(name):
    bad = BAD_ARRAYS[name]
    for role in ("lower", "both"):
        refused(lambda role=role: dpb.Records(**{role: bad}))
        check_tells_nothing(lambda role=role: dpb.RecordShapes(**{role: bad}))
        check_tells_nothing(lambda role=role: dpb.Records(**{role: bad}, invalid="zero"))
    refused(lambda: dpb.Records(upper=bad, lower=np.zeros(3)))
    refused(lambda: dpb.Records(lower=(np.zeros(N), bad)))


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_baselines_tell_nothing_of_arrays_that_are_not_wrapped(name):
    """The commonest mistake: private arrays where records, sizes or a budget belong."""
    solve = solver(name)
    arrays = data()
    arrays["upper"][3] = arrays["lower"]["value"][4] = NUMBER
    for bad in (*BAD_ARRAYS.values(), arrays, (X, arrays["upper"])):
        refused(lambda bad=bad: solve(PROBLEM, bad, BUDGET, start=START))
        refused(lambda bad=bad: solve(bad, dpb.Records(**data()), BUDGET, start=START))
        refused(lambda bad=bad: solve(PROBLEM, dpb.Records(**data()), bad, start=START))
    refused(lambda: dpb.plan(PROBLEM, arrays, BUDGET, start=START))
    refused(lambda: dpb.plan(PROBLEM, dpb.Records(**arrays), BUDGET, start=START))


# ---- evaluate

ROWS, LABELS = np.full((N, 2), NUMBER), np.arange(N) % 2


def raises(rows):
    raise ValueError(f"could not convert {rows}")


def exits(rows):
    raise SystemExit(f"could not convert {rows}")


def warns(rows):
    warnings.warn(f"odd row {rows}", stacklevel=1)
    return np.zeros(len(rows))


def quotes_in_a_chain(rows):
    try:
        raises(rows)
    except ValueError as error:
        error.add_note(WORD)
        raise RuntimeError("see above") from error


MODELS = {
    "raises": raises,
    "exits": exits,
    "warns": warns,
    "quotes in a chain": quotes_in_a_chain,
    "words": lambda rows: [WORD] * N,
    "objects": lambda rows: [Speaking()] * N,
    "too few": lambda rows: [NUMBER] * (N - 1),
    "an object": lambda rows: Speaking(),
    "nothing": lambda rows: None,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("metric", ["accuracy", "loss", ("r2", "error_quantiles")])
def test_evaluate_tells_nothing_of_what_a_model_says(name, metric):
    declared = {"metric": metric, "loss_bound": 1.0, "target_range": (0, 1)}
    check_tells_nothing(lambda: dpb.evaluate(MODELS[name], (ROWS, LABELS), BUDGET, seed=0, **declared))


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_evaluate_tells_nothing_of_rows_and_targets(name):
    bad, ledger = BAD_ARRAYS[name], dpb.Ledger(BUDGET)
    for records in ((bad, LABELS), (ROWS, bad), bad, (bad, bad)):
        check_tells_nothing(lambda records=records: dpb.evaluate(lambda rows: LABELS, records, BUDGET, ledger=ledger))
    for names in (["a", "b"], [0, 1]):
        given = {"metric": "group_accuracy", "groups": bad, "group_names": names}
        check_tells_nothing(lambda given=given: dpb.evaluate(lambda rows: LABELS, (ROWS, LABELS), BUDGET, **given))


# ---- black boxes


def training(returned):
    def train(x, lower, upper, upper_weight):
        return returned(lower) if callable(returned) else returned

    return train


TRAINERS = {
    "raises": training(raises),
    "exits": training(exits),
    "quotes in a chain": training(quotes_in_a_chain),
    "a word": training(WORD),
    "a word as array": training(np.array(WORD)),
    "an object": training(Speaking()),
    "a dictionary": training({WORD: 0.0}),
    "rows": training(np.full(3, NUMBER)),
    "complex": training(NUMBER + 1j),
    "a huge integer": training(987654 * 10**400),
    "NaN": training(float("nan")),
    "nothing": training(None),
    "ragged": training([[NUMBER], [NUMBER, NUMBER]]),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_black_boxes_tell_nothing(name):
    method = dpb.DPBilevel(
        inner=dpb.BlackBox(train=TRAINERS[name], event=dpb.GaussianDP(0.01)), steps=1, step_size=0.1, clip_norm=1.0
    )
    arrays = data()
    arrays["lower"]["value"][5] = NUMBER
    refused(
        lambda: dpb.solve(PROBLEM, dpb.Records(**arrays), BUDGET, method=method, start=START, progress=False),
        dpb.TrainerFailed,
    )


# ---- encoders and estimators

ENCODERS = {
    "declared": dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1))),
    "categories": dpb.BoundedEncoder(ranges={0: (-1, 1)}, categories={1: ["a", "other"], 2: ["b"]}),
    "zero": dpb.BoundedEncoder(ranges=dict.fromkeys(range(3), (-1, 1)), invalid="zero"),
}


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_tell_nothing(name):
    """Undeclared facts would be reported in a caveat; everything is declared here."""
    for _, table in bad_tables():
        encoder = ENCODERS[name]
        check_tells_nothing(lambda table=table, encoder=encoder: encoder.fit(table))
        fit = encoder.fit(np.zeros((2, 3)) if name != "categories" else [[0.0, "a", "b"]])
        check_tells_nothing(lambda table=table, fit=fit: fit.transform(table))


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
@pytest.mark.filterwarnings("ignore:X (does not have|has) ")
@pytest.mark.parametrize("name", CASES)
def test_models_tell_nothing_of_what_they_are_asked(name):
    """predict, score and what else a fitted model does with rows; fit has tests of its own."""
    case, model = CASES[name], fitted(CASES[name])
    places = {} if name != "multitask" else {"tasks": np.array([WORD] * 60)}
    asked = [
        model.predict,
        *(getattr(model, more) for more in ("predict_proba", "decision_function") if hasattr(model, more)),
    ]
    for _, table in bad_tables():
        for ask in asked:
            check_tells_nothing(lambda ask=ask, table=table: ask(table, **places))
        check_tells_nothing(lambda table=table: model.score(table, case.y, **places))
    for _, targets in bad_targets():
        check_tells_nothing(lambda targets=targets: model.score(X, targets))
        check_tells_nothing(lambda targets=targets: case.fit(X, targets, epsilon=-1.0))
    if case.places:
        for wrong in (WORD, [WORD] * 60, [NUMBER] * 60, Speaking(), [Speaking()] * 60, [[WORD]] * 60):
            check_tells_nothing(lambda wrong=wrong: case.make().fit(X, case.y, **{case.places: wrong}))


# ---- the command line

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--delta", "1e-4")
REWEIGHT = ("reweight", "people.csv", "--target", "cost", "--source", "clinic", "--schema", "schema.toml")
COLUMNS = ("age", "town", "id", "clinic", "paid", "cost")


def spoil(folder, change: Callable[[list[list[str]]], None]) -> None:
    lines = [line.split(",") for line in (folder / "people.csv").read_text().splitlines()]
    change(lines)
    (folder / "people.csv").write_text("\n".join(",".join(cells) for cells in lines) + "\n")


def quote(lines):
    lines[5][1] = f'"{WORD}\n{NUMBER}'


def lengthen(lines):
    lines[5] += [WORD, str(NUMBER)]


def shorten(lines):
    lines[5] = [str(NUMBER), WORD]


def cell(column: str, text: str, row: int) -> Callable[[list[list[str]]], None]:
    def change(lines):
        lines[row][lines[0].index(column)] = text

    return change


SPOILT = {
    "an open quote": quote,
    "a long row": lengthen,
    "a short row": shorten,
    **{f"{text} for {column} in row {row}": cell(column, text, row)
       for column, text in (("age", WORD), ("age", ""), ("paid", WORD), ("paid", str(NUMBER)), ("paid", ""))
       for row in (1, 40, 80)},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_people(tmp_path, rows=80)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(monkeypatch, *arguments) -> BaseException | None:
    monkeypatch.setattr("sys.argv", ["dpbilevel", *arguments])
    return check_tells_nothing(app.main)


@pytest.mark.parametrize("name", SPOILT)
def test_commands_tell_nothing_of_cells_and_leave_nothing(name, folder, monkeypatch, capfd):
    spoil(folder, SPOILT[name])
    before = sorted(folder.rglob("*"))
    for arguments in (TUNE, (*TUNE, "--ledger", "people.db", "--dataset", "people"), REWEIGHT):
        if name.split(" for ")[-1].startswith("paid") and arguments is REWEIGHT:
            continue  # a label is no target of numbers, and as a category it may be unknown
        assert getattr(command(monkeypatch, *arguments), "code", None) == 2
    assert sorted(folder.rglob("*")) == before
    out, err = capfd.readouterr()
    assert not any(secret in out + err for secret in SECRETS)


def test_a_run_on_marked_cells_tells_nothing_and_writes_nothing_of_them(folder, monkeypatch, capfd):
    """Cells that are allowed: beyond a range, not listed where "other" is, and in a column that is left out."""

    def change(lines):
        for row in (1, 40, 80):
            lines[row][0], lines[row][1], lines[row][2] = str(NUMBER), WORD, WORD
            lines[row][5] = str(-NUMBER)

    spoil(folder, change)
    assert command(monkeypatch, *TUNE, "--seed", "0").code == 0
    assert command(monkeypatch, "report", "run").code == 0
    assert command(monkeypatch, "predict", "run", "people.csv", "--out", "out.csv").code == 0
    written = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("people.csv", "schema.toml")]
    assert len(written) == 4
    for path in written:
        assert not any(secret in path.read_text() for secret in SECRETS), path.name
    out, err = capfd.readouterr()
    assert not any(secret in out + err for secret in SECRETS)


# ---- mutations: the check has eyes


@pytest.mark.parametrize(
    "kind", ["text", "arguments", "note", "context", "cause", "group", "warning", "log", "print", "exit"]
)
def test_a_call_that_tells_is_noticed(kind):
    import logging

    def tells():
        secret = f"a row has {NUMBER}"
        match kind:
            case "text":
                raise ValueError(secret)
            case "arguments":
                raise KeyError(WORD)
            case "note":
                error = ValueError("see the note")
                error.add_note(secret)
                raise error
            case "context":
                try:
                    raises(NUMBER)
                except ValueError:
                    raise RuntimeError("nothing") from None
            case "cause":
                raise RuntimeError("nothing") from ValueError(secret)
            case "group":
                raise ExceptionGroup("several", [ValueError(secret)])
            case "warning":
                warnings.warn(secret, stacklevel=1)
            case "log":
                logging.getLogger("dpbilevel").debug(secret)
            case "print":
                print(secret)
            case "exit":
                raise SystemExit(secret)

    with pytest.raises(AssertionError, match="a private value is shown"):
        check_tells_nothing(tells)
    assert reported(lambda: None) == ("\n", None)
