"""Arguments of the command line: invalid ones are reported before a file is read, as options of the command line."""

import re
import warnings

import pytest
from support.cli_data import SCHEMA, write_people

import dpbilevel as dpb
from dpbilevel.cli.console import show_warnings_as_lines
from dpbilevel.cli.wording import for_command_line

TUNE = ("tune", "none.csv", "--target", "paid", "--schema", "schema.toml")
REWEIGHT = ("reweight", *TUNE[1:], "--source", "clinic")
PREDICT = ("predict", "none", "none.csv")
SCHEMAS = ("schema", "none.csv")
PLAN = ("plan", "--rows", "100", "--columns", "3")
CREATE = ("ledger", "create", "people.db", "--dataset", "people", "--epsilon", "1")
FITS = [
    (("--epsilon", "-1"), "--epsilon -1.0"),
    (("--epsilon", "0"), "--epsilon 0.0"),
    (("--epsilon", "nan"), "--epsilon nan"),
    (("--delta", "0"), "--delta 0.0"),
    (("--delta", "2"), "--delta 2.0"),
    (("--delta", "0.5"), "--delta 0.5"),
    (("--adjacency", "add"), "--adjacency add"),
    (("--validation-fraction", "0"), "--validation-fraction 0.0"),
    (("--validation-fraction", "1.5"), "--validation-fraction 1.5"),
    (("--invalid", "drop"), "--invalid drop"),
    (("--noise", "loud"), "--noise loud"),
    (("--noise", "exact", "--seed", "1"), "--seed 1"),
    (("--seed", "-1"), "--seed -1"),
    (("--devices", "0"), "--devices 0"),
    (("--devices", "1000"), "--devices 1000: must be at most"),
    (("--delimiter", "ab"), "--delimiter 'ab'"),
    (("--decimal", ";"), "--decimal ';'"),
    (("--columns", "a,a"), "--columns"),
    (("--rows", "1", "--dry-run"), "--rows 1"),
    (("--dataset", "people"), "--dataset"),
    (("--ledger", "people.txt"), "ledger people.txt"),
    (("--ledger", "none.db"), "ledger create"),
    (("--out", "schema.toml"), "--out schema.toml"),
    (("--target", "wage"), "--target wage"),
]
BAD = [
    *((command, arguments, expected) for command in (TUNE, REWEIGHT) for arguments, expected in FITS),
    (TUNE, ("--groups", "some"), "--groups some"),
    (REWEIGHT, ("--source", "cost"), "the source 'cost'"),
    (REWEIGHT, ("--source", "hospital"), "--source hospital"),
    *((command, ("--delimiter", "ab"), "--delimiter 'ab'") for command in (PREDICT, SCHEMAS)),
    *((command, ("--decimal", ";"), "--decimal ';'") for command in (PREDICT, SCHEMAS)),
    *((command, ("--columns", ""), "--columns") for command in (PREDICT, SCHEMAS)),
    *((PREDICT, ("--out", name), f"--out {name}: must end in .csv") for name in ("p.xlsx", "p", "p.json", "p.csv.gz")),
    (PREDICT, ("--invalid", "drop"), "--invalid drop"),
    (SCHEMAS, ("--out", "schema.toml"), "--out schema.toml"),
    (("ledger", "export", "none.db"), ("--out", "people.xlsx"), "--out people.xlsx: must end in .json or .csv"),
    (("demo",), ("--rows", "10"), "--rows 10"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(errors):
    """Python's arguments in a message; "classes = [...]" is how a schema has it."""
    return re.findall(r"(?<![\w/?&-])\w+=(?!=)|\b[a-z]+_[a-z_]+\b(?=[ ,;:)=])|dpb\.|Ledger\(", errors)


@pytest.mark.parametrize(("command_line", "arguments", "expected"), BAD, ids=lambda value: " ".join(value)[:40])
def test_a_bad_argument_is_reported_before_a_file_is_read(folder, command, command_line, arguments, expected):
    """None of the data files exists: a command that opened one first would report that."""
    code, out, errors = command(*command_line, *arguments)
    assert (code, out) == (2, "")
    assert expected in errors
    assert "check the path" not in errors
    assert named(errors) == []
    assert [path.name for path in folder.iterdir()] == ["schema.toml"]


OTHERS = [
    (*PLAN, "--epsilon", "-1"),
    (*PLAN, "--delta", "0.5"),
    (*PLAN, "--adjacency", "add"),
    (*PLAN, "--validation-fraction", "2"),
    (*PLAN, "--classes", "1"),
    (*PLAN, "--penalties", "9"),
    (*PLAN, "--sources", "-1"),
    (*PLAN, "--sources", "2", "--validation-rows", "0"),
    (*PLAN, "--validation-rows", "5"),
    ("plan", "--rows", "1", "--columns", "3"),
    ("plan", "--rows", "100", "--columns", "0"),
    (*CREATE[:-1], "-1"),
    (*CREATE, "--delta", "3"),
    (*CREATE, "--adjacency", "add"),
    ("ledger", "create", "people.db", "--dataset", "", "--epsilon", "1"),
    ("ledger", "create", "mysql://people", "--dataset", "people", "--epsilon", "1"),
    ("ledger", "show", "none.db"),
    ("ledger", "show", "none.txt"),
    ("audit", "--epsilon", "-1"),
    ("audit", "--runs", "3"),
    ("audit", "--confidence", "2"),
    ("audit", "--delta", "0"),
    ("report", "none"),
    ("report", "broken"),
    ("predict", "broken", "people.csv"),
]  # fmt: skip


@pytest.mark.parametrize("line", OTHERS, ids=" ".join)
def test_commands_speak_of_their_options(folder, command, line):
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{}")
    code, out, errors = command(*line)
    assert (code, out) == (2, "")
    assert errors.startswith("dpbilevel: ")
    assert named(errors) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--invalid zero"),
        (("--ledger", "people.db", "--dataset", "nobody"), "`dpbilevel ledger create`"),
        (("--ledger", "people.db", "--adjacency", "zero-out"), "--adjacency zero-out: must be replace-one"),
        (("--ledger", "people.db", "--invalid", "zero", "--delta", "1e-5"), "would fit"),
        (("--invalid", "zero", "--delta", "0.1"), "--delta 0.1: must be below 1/n"),
    ],
)
def test_errors_of_a_run_speak_of_options(folder, command, arguments, expected):
    data, _ = write_people(folder, rows=40)
    lines = data.read_text().splitlines()
    data.write_text("\n".join([*lines[:3], "," + lines[3].partition(",")[2], *lines[4:]]) + "\n")
    dpb.Ledger.open("sqlite:///people.db", dataset="people", total=dpb.Budget(0.01, 1e-5))
    code, _, errors = command("tune", "people.csv", *TUNE[2:], *arguments)
    assert code in (2, 3)
    assert expected in errors
    assert named(errors) == []


def test_a_total_that_differs_names_the_one_that_is_fixed(folder, command):
    command(*CREATE)
    assert command(*CREATE)[0] == 0
    code, _, errors = command(*CREATE[:-1], "2")
    assert code == 2
    assert "already has a ledger there, with epsilon 1, delta 1e-06 and replace-one" in errors
    assert named(errors) == []


@pytest.mark.parametrize(
    "line",
    [
        (*PLAN, "--epsilon", "21"),
        (*PLAN, "--epsilon", "inf"),
        (*CREATE[:-1], "21"),
        ("tune", "people.csv", *TUNE[2:], "--epsilon", "inf"),
    ],
    ids=" ".join,
)
def test_a_large_epsilon_is_remarked_on_once(folder, command, line):
    write_people(folder, rows=60)
    code, _, errors = command(*line)
    assert code == 0, errors
    assert len([text for text in errors.splitlines() if text.startswith("warning: --epsilon")]) == 1
    assert named(errors) == []


def test_an_epsilon_of_20_is_not_remarked_on(command):
    many = ("plan", "--rows", "100000", "--columns", "3")  # few rows would be warned of
    lines = command(*many, "--epsilon", "20")[2].splitlines()
    assert [line for line in lines if line.startswith("warning")] == []


def test_warnings_are_said_once_and_in_own_words(capfd):
    with warnings.catch_warnings():
        show_warnings_as_lines()
        for _ in range(2):
            warnings.warn("few rows (a larger validation_fraction helps)", dpb.UtilityWarning, stacklevel=1)
            warnings.warn("epsilon=50.0: is large", dpb.UtilityWarning, stacklevel=1)
            warnings.warn("epsilon is above 20, which is large", dpb.PrivacyLeakWarning, stacklevel=1)
            warnings.warn("quotes a cell", RuntimeWarning, stacklevel=1)
    expected = ["warning: few rows (a larger --validation-fraction helps)", "warning: --epsilon 50.0: is large"]
    assert capfd.readouterr().err.splitlines() == expected


def test_paths_and_addresses_stay_as_they_are():
    for text in ("runs/epsilon=1/people.csv: is a folder", "postgresql://a@b/c?seed=3: is down", "x --seed=3"):
        assert for_command_line(text) == text
