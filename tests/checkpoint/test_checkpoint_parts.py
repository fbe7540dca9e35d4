"""Runs that end within their only round, in memory and on disk: they resume there, to the same bits."""

import json
import random

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel.checkpoint import file as checkpoint_file
from dpbilevel.checkpoint.checkpoint import Checkpoint
from dpbilevel.execution.parts import is_divided
from dpbilevel.privacy import noise

pytestmark = pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")

ROWS = np.random.default_rng(0).uniform(-0.5, 0.5, (300, 3)).astype(np.float32)
DATA = {"upper": (ROWS[:60], ROWS[:60, 0] > 0), "lower": (ROWS[60:], ROWS[60:, 0] > 0)}
PROBLEM = dpb.applications.regularization("logistic", columns=3, row_norm=1.0)
BUDGET, METHOD = dpb.Budget(3.0, 1e-4), dpb.Refit()
SECRET = bytes(range(32))


class Cut(BaseException):
    """The end of a process, as far as a test in the same process can have it."""


def solved(path, where=None, *, writes=None):
    """A run with the secrets of a first process; with ``writes``, one that ends after so many of its saves."""
    others, true, done = random.Random(1), checkpoint_file.write, []

    def write(*arguments):
        true(*arguments)
        done.append(1)
        if len(done) == writes:
            raise Cut

    def secret(size):
        return SECRET[:size] if path is None or not path.exists() else others.randbytes(size)

    records = dpb.Records(**DATA, storage=where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise.secrets, "token_bytes", secret)
        patch.setattr(checkpoint_file, "write", write)
        return dpb.solve(PROBLEM, records, BUDGET, method=METHOD, checkpoint=path, progress=False)


def bits(solution):
    leaves = jax.tree.leaves((solution.x, solution.y, solution.history))
    return [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves]


@pytest.fixture(params=["memory", "disk"])
def where(request, tmp_path):
    return tmp_path if request.param == "disk" else None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


@pytest.fixture
def started(monkeypatch):
    """How many steps were done when records were first used by a run."""
    true, seen = dpb.Records.execute, []

    def execute(self, program, receipt, schedule, state, rounds, done, observer):
        seen.append(done)
        return true(self, program, receipt, schedule, state, rounds, done, observer)

    monkeypatch.setattr(dpb.Records, "execute", execute)
    return seen


def test_such_a_run_has_one_round_with_stages_of_several_steps():
    (part,) = dpb.plan(PROBLEM, dpb.Records(**DATA).sizes, BUDGET, method=METHOD).parts
    assert is_divided(part)
    assert [stage.uses_per_round > 1 for stage in part.stages] == [False, True]


def test_it_resumes_where_it_was_to_the_same_bits(path, where, started):
    whole = bits(solved(None, where))
    for writes in (3, 4, 9):  # two precede the first part of the round
        with pytest.raises(Cut):
            solved(path, where, writes=writes)
        steps = json.loads(path.read_text().splitlines()[1])["steps"]
        started.clear()
        assert bits(solved(path, where)) == whole, f"after {steps} steps"
        assert started == [steps]
        assert steps > 0
        path.unlink()


def test_a_run_that_is_interrupted_again_and_again_ends(path, where, started):
    whole, found = bits(solved(None, where)), None
    for _ in range(20):
        try:
            found = solved(path, where, writes=5)
            break
        except Cut:
            continue
    assert found is not None
    assert bits(found) == whole
    assert started == sorted(started)
    assert len(set(started)) >= 3


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_steps_is_noticed(path, where, monkeypatch, change):
    """A mutation. A step that is run again adds the same noise to another answer: their difference has none."""
    whole, true = bits(solved(None, where)), Checkpoint.restore

    def restore(self, index, part, start):
        state, rounds, steps = true(self, index, part, start)
        return state, rounds, steps + change * (steps > 0)

    with pytest.raises(Cut):
        solved(path, where, writes=10)
    monkeypatch.setattr(Checkpoint, "restore", restore)
    assert bits(solved(path, where)) != whole


def test_what_is_kept_is_refused_for_other_records(path):
    with pytest.raises(Cut):
        solved(path, writes=10)
    others = {role: (rows + np.float32(0.1), labels) for role, (rows, labels) in DATA.items()}
    with pytest.raises(dpb.CheckpointRefused, match="are not those"):
        dpb.solve(PROBLEM, dpb.Records(**others), BUDGET, method=METHOD, checkpoint=path)


@pytest.mark.parametrize("change", [{"steps": 0}, {"steps": 10**6}, {"rounds": 1}, {"state": []}])
def test_content_that_no_run_wrote_is_refused(path, change):
    with pytest.raises(Cut):
        solved(path, writes=10)
    content = json.loads(path.read_text().splitlines()[1])
    text = json.dumps(content | change)
    path.write_text(f"{checkpoint_file.FORMAT} {checkpoint_file._mac(content, text)}\n{text}\n")
    with pytest.raises(dpb.CheckpointRefused, match="is damaged"):
        solved(path)
