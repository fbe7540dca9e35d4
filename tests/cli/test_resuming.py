"""``--resume``: an interrupted run of the command line resumes to the same bits, charged once, or is refused."""

import json
import random
import stat

import pytest
from support.cli_data import SCHEMA, people, write_people

import dpbilevel as dpb
from dpbilevel.checkpoint.file import exclusive
from dpbilevel.cli import memory, resuming, run_folder, tuning
from dpbilevel.cli.applications.tune import Tune
from dpbilevel.privacy import noise
from dpbilevel.report.run_file import run_text

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "0.8", "--delta", "1e-5")
REWEIGHT = ("reweight", *TUNE[1:], "--source", "clinic")
SECRET = bytes(range(32))
LEFT = {".checkpoint", ".options.json", "run.json"}
WRITTEN = {"report.html", "report.md", "run.json"}


class Run:
    """Runs of commands, the first of which has fixed secrets; some end after a number of chunks."""

    def __init__(self, command, monkeypatch):
        self.command, self.monkeypatch = command, monkeypatch
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")

    def __call__(self, *arguments, chunks=None, fixed=False):
        others, done, execute = random.Random(1), [], dpb.Records.execute

        def counted(*given):
            if len(done) == chunks:
                raise RuntimeError("the end of the machine")
            done.append(1)
            return execute(*given)

        with self.monkeypatch.context() as patch:
            patch.setattr(noise.secrets, "token_bytes", lambda n: SECRET[:n] if fixed else others.randbytes(n))
            patch.setattr(dpb.Records, "execute", counted)
            return self.command(*arguments, "--quiet")


@pytest.fixture
def run(command, monkeypatch):
    return Run(command, monkeypatch)


@pytest.fixture
def cut_off(folder, run):
    """A folder in which a run ended after its charge: training is one round."""
    code, _, stderr = run(*TUNE, chunks=0, fixed=True)
    assert code == 4
    assert "resume it, at no further cost, with: dpbilevel tune --resume run" in stderr
    return folder


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [
        pytest.param(TUNE, 0, id="tune, before its round"),
        pytest.param((*TUNE, "--unit", "id", "--rows-per-unit", "2"), 0, id="tune of units"),
        pytest.param((*TUNE, "--memory", "1KB"), 0, id="tune with rows on disk"),
        pytest.param(REWEIGHT, 0, id="reweight, before the first round"),
        pytest.param(REWEIGHT, 5, id="reweight, while it tunes"),
        pytest.param(REWEIGHT, 20, id="reweight, before the training"),
    ],
)
def test_a_run_resumes_to_the_same_file_and_is_charged_once(folder, run, monkeypatch, kind, chunks):
    monkeypatch.setattr(memory, "_FIXED", 0)
    monkeypatch.setattr(memory, "_PER_ROW", 0)

    def ledger():
        return dpb.Ledger.open(f"sqlite:///{folder}/people.db", dataset="people", total=dpb.Budget(3.0, 1e-4))

    assert run(*kind, "--out", "whole", fixed=True)[0] == 0
    assert not ledger().entries
    assert run(*kind, "--ledger", "people.db", chunks=chunks, fixed=True)[0] == 4
    assert names(folder / "run") >= LEFT
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "aborted"
    assert len(ledger().entries) == 1
    monkeypatch.chdir(folder.parent)  # files are found from anywhere
    code, _, stderr = run(kind[0], "--resume", folder / "run")
    assert code == 0, stderr
    assert names(folder / "run") == WRITTEN
    one, other = (json.loads((folder / out / "run.json").read_text()) for out in ("whole", "run"))
    assert other.pop("command") == " ".join(["dpbilevel", *kind, "--ledger", "people.db", "--quiet"])
    assert other["facts"].pop("ledger").startswith("entry 1 of the ledger of the data set 'people'")
    assert one | {"command": None} == other | {"command": None}
    assert len(ledger().entries) == 1


@pytest.mark.parametrize("kind", [TUNE, (*TUNE, "--unit", "id", "--rows-per-unit", "2")], ids=["rows", "units"])
def test_scores_have_the_same_noise_whenever_they_are_computed(folder, run, monkeypatch, kind):
    """A process may be killed when its scores are on disk, and the file is not complete."""
    written = []

    def killed(folder, made):
        written.append(json.loads(run_text(made())))
        raise RuntimeError("the end of the machine")

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "finished", killed)
        patch.setattr(run_folder.RunFolder, "save_solution", lambda folder: "")
        assert run(*kind, "--holdout", "0.25", fixed=True)[0] == 4
    code, _, stderr = run(kind[0], "--resume", folder / "run")
    assert code == 0, stderr
    again = json.loads((folder / "run" / "run.json").read_text())
    assert again["evaluation"] == written[0]["evaluation"]
    assert again["model"] == written[0]["model"]


def test_what_a_run_is_resumed_from_is_for_its_owner_alone(cut_off):
    for name in (".checkpoint", ".options.json"):
        assert stat.S_IMODE((cut_off / "run" / name).stat().st_mode) == 0o600


def test_a_finished_run_keeps_no_checkpoint_and_is_not_resumed(folder, run):
    assert run(*TUNE)[0] == 0
    assert names(folder / "run") == WRITTEN
    (folder / "run" / ".checkpoint").write_text("left by a kill between the results and the end")
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 2
    assert "has finished; `dpbilevel report run` shows" in stderr
    assert names(folder / "run") == WRITTEN


REFUSED = {
    "another option": (("--epsilon", "0.9"), "--epsilon 0.9: the run was started with 0.8; leave it out"),
    "an option for new runs": (("--force",), "--force: is for new runs"),
    "another folder": (("--out", "other"), "--out other: must be run"),
    "another target": (("--target", "cost"), "--target cost: the run was started with paid"),
    "another seed": (("--seed", "1"), "--seed 1: the run was started with None"),
    "another ledger": (("--dataset", "people"), "--dataset people: the run was started with None"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_another_option_is_refused_and_nothing_changes(cut_off, run, kind):
    options, expected = REFUSED[kind]
    before = {path.name: path.read_bytes() for path in (cut_off / "run").iterdir()}
    code, _, stderr = run("tune", "--resume", "run", *options)
    assert code == 2
    assert expected in stderr
    assert {path.name: path.read_bytes() for path in (cut_off / "run").iterdir()} == before


def test_the_same_options_and_moved_files_are_fine(cut_off, run):
    (cut_off / "people.csv").rename(cut_off / "moved.csv")
    (cut_off / "schema.toml").rename(cut_off / "moved.toml")
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 2
    assert "schema.toml: does not exist" in stderr
    moved = ("moved.csv", "--schema", "moved.toml", "--epsilon", "0.8", "--out", "run", "--target", "paid")
    code, _, stderr = run("tune", *moved, "--resume", "run")
    assert code == 0, stderr
    assert json.loads((cut_off / "run" / "run.json").read_text())["facts"]["data"] == "people.csv"


def test_other_rows_are_refused_and_the_run_can_still_be_resumed(cut_off, run):
    write_people(cut_off, name="other.csv", seed=1)
    code, _, stderr = run("tune", "other.csv", "--resume", "run")
    assert code == 2
    assert "records: are not those" in stderr
    assert "start a new run in its folder with --force" in stderr
    assert json.loads((cut_off / "run" / "run.json").read_text())["status"] == "aborted"
    assert run("tune", "--resume", "run")[0] == 0


def test_another_schema_is_refused(cut_off, run):
    (cut_off / "schema.toml").write_text(SCHEMA.replace("[0, 100]", "[0, 101]"))
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 2
    assert "declares something else than when the run was started" in stderr


@pytest.mark.parametrize("missing", [".checkpoint", ".options.json"])
def test_a_run_without_a_checkpoint_is_refused(cut_off, run, missing):
    (cut_off / "run" / missing).unlink()
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 2
    assert "has no checkpoint, so that it cannot be resumed" in stderr


@pytest.mark.parametrize("text", ["{}", "[]", "half a fi", '{"command": "tune"}'])
def test_damaged_options_are_refused(cut_off, run, text):
    (cut_off / "run" / ".options.json").write_text(text)
    code, _, stderr = run("tune", "--resume", "run")
    assert code == 2
    assert ".options.json is damaged" in stderr


def test_what_is_no_run_is_refused(folder, run):
    for name, expected in (("nowhere", "has no run.json"), (".", "has no run.json")):
        code, _, stderr = run("tune", "--resume", name)
        assert code == 2
        assert expected in stderr


def test_another_command_is_refused(cut_off, run):
    code, _, stderr = run("reweight", "--resume", "run")
    assert code == 2
    assert "resume it with `dpbilevel tune --resume run`" in stderr


def test_a_run_that_another_process_runs_is_left_alone(cut_off, run):
    before = {path.name: path.read_bytes() for path in (cut_off / "run").iterdir()}
    with exclusive(cut_off / "run" / ".checkpoint"):
        for arguments in (("tune", "--resume", "run"), (*TUNE, "--force")):
            code, _, stderr = run(*arguments)
            assert code == 2
            assert "another process is using it" in stderr
            now = {path.name: path.read_bytes() for path in (cut_off / "run").iterdir() if path.suffix != ".lock"}
            assert now == before


def test_without_resume_options_are_required_as_before(folder, run):
    code, _, stderr = run("tune", "people.csv", "--target", "paid")
    assert code == 2
    assert "--schema" in stderr
    code, _, stderr = run("tune", "people.csv", "--target", "--resume")
    assert code == 2


def test_force_starts_a_new_run_in_place_of_one_that_could_be_resumed(cut_off, run):
    code, _, stderr = run(*TUNE, "--force", chunks=0)
    assert code == 4, stderr
    assert names(cut_off / "run") >= LEFT
    assert not any(name.endswith(".before") for name in names(cut_off / "run"))
    assert run(*TUNE, "--force")[0] == 0
    assert names(cut_off / "run") == WRITTEN


def test_a_forced_run_that_is_refused_leaves_the_earlier_one_to_be_resumed(cut_off, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(dpb.Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(dpb.BudgetExceeded("spent")))
        assert run(*TUNE, "--force")[0] == 3
    assert run("tune", "--resume", "run")[0] == 0


def test_a_disk_that_is_full_while_a_run_is_running_does_not_stop_it(folder, run, monkeypatch):
    from dpbilevel.checkpoint import file

    write, saves = file.write_atomically, []

    def full(path, text, **options):
        saves.append(path)
        if len(saves) > 2:  # not at its creation or its seal
            raise OSError(28, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(file, "write_atomically", full)
    code, _, stderr = run(*REWEIGHT)
    assert code == 0, stderr
    assert len(saves) > 20
    assert names(folder / "run") == WRITTEN


def test_runs_with_exact_noise_have_no_checkpoint(folder, run, monkeypatch):
    pytest.importorskip("opendp")
    kept = []
    monkeypatch.setattr(tuning, "_fit", lambda model, prepared, checkpoint: kept.append(checkpoint) or 1 / 0)
    assert run(*TUNE, "--noise", "exact")[0] != 0
    assert kept == [None]


def test_passwords_are_not_stored():
    asked = Tune(data="a.csv", target="b", schema="c", ledger="postgresql://officer:secret@server/ledgers")
    stored = resuming.StoredRun.of(asked, facts={}, schema={}, typed="dpbilevel tune", created="now")
    assert "secret" not in stored.text()
    with pytest.raises(dpb.InvalidArgument, match=r"--ledger: give .* again, because its password is not stored"):
        stored.fit_command(Tune, run_folder.Path("run"), {})
    again = stored.fit_command(Tune, run_folder.Path("run"), {"ledger": asked.ledger})
    assert again.ledger == asked.ledger


def test_a_report_of_a_run_that_can_be_resumed_says_so(cut_off, run):
    code, _, stderr = run("report", "run")
    assert code == 2
    assert "--resume" in stderr


def test_no_cell_reaches_what_is_stored(cut_off):
    text = (cut_off / "run" / ".options.json").read_text()
    assert not any(str(cell) in text for cell in people(400)["age"] if cell > 10.1 and "." in str(cell))
