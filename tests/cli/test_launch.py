"""`dpbilevel launch`: what it starts, how it ends jobs, and that a job releases what one process does."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.cli import launch
from dpbilevel.cli.launch import Child, _place
from dpbilevel.errors import InvalidArgument

TUNE = ("tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--epsilon", "0.8", "--delta", "1e-5")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(launch, "GRACE", 0.5)
    monkeypatch.setattr(launch, "LAST", 1.0)


@pytest.fixture
def ended(capfd, tmp_path):
    """Run shell commands as the processes of a job: the exit code, what was said, and the seconds that it took."""

    def run(*commands, count=None):
        def start(index):
            said = None if index == 0 else (tmp_path / f"said-{index}").open("w+b")
            process = subprocess.Popen(["sh", "-c", commands[index]], stderr=said, process_group=0)
            return Child(count or len(commands), index, process, said)

        began = time.monotonic()
        code = launch.run(range(len(commands)), start, ["tune"])
        return code, capfd.readouterr().err, time.monotonic() - began

    return run


# ---- how jobs end; processes are commands of the shell here


def test_a_job_ends_with_the_code_of_its_first_process(ended):
    assert ended("exit 0", "exit 0")[:2] == (0, "")
    assert ended("echo 'dpbilevel: spent' >&2; exit 3", "exit 3")[:2] == (3, "dpbilevel: spent\n")


TOLD = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("dpbilevel: told"))
open("ready", "w").close()
time.sleep(60)
"""


def test_a_process_that_is_killed_is_named_and_the_others_are_told(ended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.py").write_text(TOLD)
    code, said, _ = ended(f"exec {sys.executable} told.py", "until [ -e ready ]; do sleep 0.05; done; kill -9 $$")
    assert code == 1
    assert said == "dpbilevel: told\ndpbilevel: process 1 of 2 was killed (signal 9), and with it the job\n"


def test_a_first_process_that_is_killed_leaves_advice(ended):
    code, said, _ = ended("kill -9 $$", "exit 4")
    assert code == 4
    assert "process 0 of 2 was killed (signal 9), and with it the job. If the run has a folder, its epsilon" in said
    assert "dpbilevel launch --processes 2 tune --resume RUN" in said


def test_a_process_that_jax_ends_is_reported_as_such(ended):
    _, said, _ = ended("exit 4", "kill -6 $$")
    assert "JAX ended process 1 of 2, because another process had ended or could not be reached" in said


def test_processes_that_do_not_end_are_killed(ended, quick):
    code, _, seconds = ended("exit 2", "trap '' TERM; while true; do sleep 0.05; done")
    assert code == 2
    assert seconds > 1
    code, _, seconds = ended("trap '' TERM; while true; do sleep 0.05; done", "exit 0")
    assert code == 4
    assert seconds > 1


def test_what_others_say_is_left_out_but_for_what_they_could_not_tell(ended):
    other = "echo 'dpbilevel: process 1 is alone' >&2; echo 'dpbilevel: interrupted. x' >&2; echo JAX >&2; exit 2"
    assert ended("exit 2", other)[1] == "dpbilevel: process 1 is alone\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(tmp_path, number):
    program = (
        "import subprocess, sys\n"
        "from dpbilevel.cli import launch\n"
        "trap = 'trap \"echo dpbilevel: interrupted. Nothing was spent. >&2; exit 130\" INT TERM; echo ready;'\n"
        "def start(index):\n"
        "    shell = ['sh', '-c', trap + ' while true; do sleep 0.05; done']\n"
        "    said = None if index == 0 else open('said', 'w+b')\n"
        "    return launch.Child(2, index, subprocess.Popen(shell, stderr=said, process_group=0), said)\n"
        "sys.exit(launch.run(range(2), start, ['tune']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        job.send_signal(number)
        _, said = job.communicate(timeout=300)
    assert job.returncode == 130
    assert said == "dpbilevel: interrupted. Nothing was spent.\n"


# ---- what is asked for


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("evaluate",), "launch evaluate: must be one of"),
        (("tune",), "--processes: must be 1 or more"),
        (("--processes", "0", "tune"), "--processes: must be 1 or more"),
        (("--processes", "2", "--process", "1", "tune"), "--process: is for several machines"),
        (("--coordinator", "127.0.0.1:1", "tune"), "--processes, --process: must be given with --coordinator"),
    ],
)
def test_options_that_make_no_job_are_refused(command, options, words, monkeypatch):
    for name in [name for starter in launch._STARTERS for name in starter if name]:
        monkeypatch.delenv(name, raising=False)
    code, _, stderr = command("launch", *options)
    assert code == 2
    assert words in stderr


@pytest.mark.parametrize(
    ("environment", "given", "place"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, (None, None), (4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, (None, None), (4, 1)),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, (None, None), (2, 0)),
        ({"JOB_COMPLETION_INDEX": "2"}, (3, None), (3, 2)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, (2, 1), (2, 1)),
        ({}, (2, 1), (2, 1)),
    ],
)
def test_what_starts_a_process_says_which_it_is(environment, given, place):
    assert _place(*given, environment) == place


def test_a_process_outside_of_a_job_does_not_know_which_it_is():
    with pytest.raises(InvalidArgument, match="unless mpirun, Slurm or Kubernetes start it"):
        _place(2, None, {})


# ---- whole jobs


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A folder in which a job of two processes has run: with scores, and one ledger."""
    from support.cli_data import write_people

    folder = tmp_path_factory.mktemp("spread")
    write_people(folder, rows=1200)
    dpb.Ledger.open(f"sqlite:///{folder}/people.db", dataset="people", total=dpb.Budget(0.9, 1e-5))
    return folder


def job(folder, *arguments):
    """Run `dpbilevel launch` as a program."""
    program = [sys.executable, "-m", "dpbilevel", "launch", *arguments]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "0"}
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def document(folder):
    return json.loads((folder / "run.json").read_text("utf-8"))


@pytest.mark.slow
def test_a_job_writes_what_one_process_writes_and_is_charged_once(spread, command, monkeypatch):
    monkeypatch.chdir(spread)
    options = (*TUNE, "--holdout", "0.2", "--seed", "1", "--json")
    done = job(spread, "--processes", "2", *options, "--out", "two", "--ledger", "people.db")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "two/run.json"
    assert done.stderr.count("--seed is fixed") == 1
    ledger = dpb.Ledger.open(f"sqlite:///{spread}/people.db", dataset="people")
    assert len(ledger.entries) == 1
    assert {path.name for path in (spread / "two").iterdir()} == {"report.html", "report.md", "run.json"}
    assert command(*options, "--devices", "1", "--out", "one")[0] == 0
    one, two = document(spread / "one"), document(spread / "two")
    assert two["command"].startswith("dpbilevel launch --processes 2 tune people.csv")
    for name in ("coefficients", "intercepts"):
        assert np.allclose(one["model"][name], two["model"][name], rtol=1e-4)
    scores = [run["evaluation"]["values"]["dict"] for run in (one, two)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert two["facts"] | {"ledger": ""} == one["facts"] | {"ledger": ""}

    # Another job of the same data set, whose first process alone sees the ledger.
    beyond = job(spread, "--processes", "2", *TUNE, "--out", "three", "--ledger", "people.db")
    assert beyond.returncode == 3
    assert beyond.stderr.count("needs epsilon 0.8 at delta 1e-05") == 1
    assert not (spread / "three").exists()
    assert len(ledger.entries) == 1
