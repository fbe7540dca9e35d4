"""Nothing leaves a run but its releases: with the releases of one run put into another, on other data, every byte that
comes out is the same."""

import jax
import numpy as np
import pytest
from jax.experimental import io_callback
from support.cli_data import write_people

from dpbilevel import planning
from dpbilevel.cli import app, tuning
from dpbilevel.privacy.release import Release

ANSWER = Release.answer


@pytest.fixture(scope="module", autouse=True)
def _programs_of_their_own():
    """Programs that were compiled with other answers must not be taken from the shelf, here or elsewhere."""
    planning._planned.cache_clear()
    yield
    planning._planned.cache_clear()


PRESENT = []  # what becomes of an answer, in the run that is under way


def exchanging(release, arrays, point, keys):
    """An answer that passes through Python, to be kept or replaced: one program for both, so that both round alike."""
    noisy = ANSWER(release, arrays, point, keys)
    # Scores are in float64, which a callback would not pass on; both runs round them.
    rounded = jax.tree.map(lambda leaf: leaf.astype(np.float32), noisy)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), rounded)
    exchanged = io_callback(_exchanged, shapes, rounded, ordered=True)
    return jax.tree.map(lambda leaf, own: leaf.astype(own.dtype), exchanged, noisy)


def _exchanged(noisy):
    (exchange,) = PRESENT
    return exchange(noisy)


def recording(kept):
    def exchange(noisy):
        kept.append(jax.tree.map(np.array, noisy))
        return noisy

    return exchange


def replaying(kept):
    left = iter(kept)
    return lambda noisy: next(left)


def outcome(folder, seed, exchange, monkeypatch, capfd, command):
    """Everything that a command leaves behind: files by name, and what it says."""
    folder.mkdir()
    write_people(folder, rows=300, seed=seed)
    PRESENT[:] = [exchange]
    with monkeypatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(Release, "answer", staticmethod(exchanging))
        patched.setenv("SOURCE_DATE_EPOCH", "0")
        patched.setattr("sys.argv", ["dpbilevel", *command, "--quiet"])
        with pytest.raises(SystemExit) as ended:
            app.main()
    assert ended.value.code == 0
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted((folder / "run").rglob("*"))}
    assert set(files) == {"run/run.json", "run/report.html", "run/report.md"}
    return files, capfd.readouterr()


COMMANDS = {
    "tune": ["tune", "people.csv", "--target", "paid", "--schema", "schema.toml", "--groups", "columns"],
    "reweight": ["reweight", "people.csv", "--target", "cost", "--source", "clinic", "--schema", "schema.toml"],
}
HELD_OUT = ["--holdout", "0.2"]  # labels have other scores than numbers
COMMANDS |= {f"{name}, held out": [*arguments, *HELD_OUT] for name, arguments in COMMANDS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_tells_its_releases_and_nothing_else(command, tmp_path, monkeypatch, capfd):
    kept = []
    arguments = COMMANDS[command]
    first = outcome(tmp_path / "first", 1, recording(kept), monkeypatch, capfd, arguments)
    assert len(kept) > 10
    second = outcome(tmp_path / "second", 2, replaying(kept), monkeypatch, capfd, arguments)
    assert first == second


def test_a_run_that_tells_more_is_caught(tmp_path, monkeypatch, capfd):
    facts = tuning._facts

    def leaky(job, rows, *others):
        return {**facts(job, rows, *others), "mean of the rows": f"{rows.features.mean():.6f}"}

    monkeypatch.setattr(tuning, "_facts", leaky)
    kept = []
    first = outcome(tmp_path / "first", 1, recording(kept), monkeypatch, capfd, COMMANDS["tune"])
    second = outcome(tmp_path / "second", 2, replaying(kept), monkeypatch, capfd, COMMANDS["tune"])
    assert first != second
