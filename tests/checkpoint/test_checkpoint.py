"""Checkpoints: an interrupted run resumes to the same bits, charged once, or is refused. Mutants must be caught."""

import dataclasses
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import postgresql_server
from support.problems import leak

import dpbilevel as dpb
from dpbilevel.checkpoint import checkpoint, fingerprint
from dpbilevel.checkpoint import file as checkpoint_file
from dpbilevel.privacy import noise
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule


def problem_with(weight=1.0, table=(1.0, 1.0)):
    array = np.asarray(table, np.float32)
    return dpb.BilevelProblem(
        upper_term=lambda x, y: 0.5 * jnp.sum((x + y) ** 2),
        lower_loss=lambda x, y, record: 0.5 * weight * jnp.sum((y - record) ** 2) + 0 * jnp.sum(array),
        public=[array],
    )


PROBLEM = problem_with()  # one for all tests, so that it is compiled once
POINTS = leak(60).data["lower"]
BUDGET, TOTAL = dpb.Budget(1.0, 1e-4), dpb.Budget(2.0, 1e-4)
RUN = {"method": dpb.Tracking(steps=2), "refit": dpb.Refit(steps=2), "start": (np.zeros(3), np.zeros(3))}
SECRET = bytes(range(32))
MOMENTS = 22  # before and after: six writes, four chunks and one charge


class Cut(BaseException):
    """The end of a process, as far as a test in the same process can have it."""


def solve(path=None, points=POINTS, *, problem=PROBLEM, budget=BUDGET, invalid="refuse", **changes):
    records = dpb.Records(lower=points, invalid=invalid)
    return dpb.solve(problem, records, budget, checkpoint=path, **(RUN | changes))


def draw_secrets(patch, *, fixed):
    """The secrets of a first process are fixed, those of later ones are not: noise drawn again is noticed."""
    others = random.Random(1)
    patch.setattr(noise.secrets, "token_bytes", lambda size: SECRET[:size] if fixed else others.randbytes(size))


def test_what_follows_a_run_has_keys_of_the_checkpoint_and_of_its_records(tmp_path):
    """The same noise on other records would cancel in the difference; so would that of the run itself."""
    paths = tmp_path / "one", tmp_path / "other"
    for path in paths:
        solve(path)
    scores, others = (dpb.Records(heldout=np.arange(4.0) + shift) for shift in (0, 1))
    made = [checkpoint.following_schedule(*given) for given in ((paths[0], scores), (paths[0], scores))]
    made += [checkpoint.following_schedule(*given) for given in ((paths[0], others), (paths[1], scores))]
    made += [checkpoint.following_schedule(tmp_path / "none", scores) for _ in range(2)]  # no run can resume from it
    keys = [bytes(schedule.keys("noise", 0, 3)) for schedule in made]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5
    assert not any(schedule.reproducible for schedule in made)


def solved_until(path, moment, **changes):
    """Run with fixed secrets until a moment: writes, charges and chunks have one before and one after them."""
    passed = 0

    def counted(plain):
        def wrapped(*arguments, **settings):
            tick()
            result = plain(*arguments, **settings)
            tick()
            return result

        return wrapped

    def tick():
        nonlocal passed
        if passed == moment:
            raise Cut
        passed += 1

    with pytest.MonkeyPatch.context() as patch:
        draw_secrets(patch, fixed=True)
        for home, name in ((checkpoint_file, "write"), (dpb.Ledger, "charge"), (dpb.Records, "execute")):
            patch.setattr(home, name, counted(getattr(home, name)))
        try:
            solve(path, **changes)
        except Cut:
            return passed
    return passed


def resumed(path, **changes):
    with pytest.MonkeyPatch.context() as patch:
        draw_secrets(patch, fixed=False)
        return solve(path, **changes)


def bits(solution):
    leaves = jax.tree.leaves((solution.x, solution.y, solution.history))
    return [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves]


@pytest.fixture(scope="module")
def whole():
    """The uninterrupted run, without a checkpoint and with the same secret."""
    with pytest.MonkeyPatch.context() as patch:
        draw_secrets(patch, fixed=True)
        return solve()


@pytest.fixture(scope="module")
def midway(tmp_path_factory):
    """The file of a run that was interrupted after its first chunk."""
    path = tmp_path_factory.mktemp("midway") / "run.checkpoint"
    solved_until(path, 10)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


def content(path):
    return json.loads(path.read_text().splitlines()[1])


def stored_ledger(folder):
    return dpb.Ledger.open(f"sqlite:///{folder}/ledger.db", dataset="points", total=TOTAL)


# --- to the same bits, charged once ------------------------------------------------------------------------------


def faults(path, moment, whole):
    """The faults of a run that was interrupted at a moment and resumed with a ledger in a database."""
    solved_until(path, moment, ledger=stored_ledger(path.parent))
    was_there = path.exists()
    solution = resumed(path, ledger=stored_ledger(path.parent))
    found = []
    if was_there and bits(solution) != bits(whole):
        found.append("other bits")
    if len(stored_ledger(path.parent).entries) != 1:
        found.append(f"charged {len(stored_ledger(path.parent).entries)} times")
    if sorted(os.listdir(path.parent)) != ["ledger.db", "run.checkpoint"]:
        found.append("left something behind")
    return found


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_run_interrupted_anywhere_resumes_to_the_same_bits_and_is_charged_once(path, moment, whole):
    assert faults(path, moment, whole) == []


@pytest.mark.skipif(postgresql_server.reason_to_skip() is not None, reason=postgresql_server.reason_to_skip() or "")
def test_a_ledger_in_postgresql_is_charged_once_as_well(path, whole):
    with postgresql_server.server() as url:
        for moment in range(1, MOMENTS):
            store = {"url": url, "dataset": f"cut off at {moment}", "total": TOTAL}
            solved_until(path, moment, ledger=dpb.Ledger.open(**store))
            assert not path.exists() or bits(resumed(path, ledger=dpb.Ledger.open(**store))) == bits(whole)
            assert len(dpb.Ledger.open(**store).entries) == path.exists()
            path.unlink(missing_ok=True)


def test_the_moments_are_all_there_are(path, whole):
    assert solved_until(path, 10**6) == MOMENTS
    assert bits(resumed(path)) == bits(whole)


def test_a_run_may_be_interrupted_again_and_again(path, whole):
    for moment in (3, 5, 4, 6, 5):
        solved_until(path, moment)
    assert bits(resumed(path)) == bits(whole)


def test_runs_with_one_part_and_with_batches_resume_too(path):
    case = leak(60)
    method = case.method(steps=2, sampling=dpb.Poisson(0.5), inner={"steps": 2, "rounds": 1})
    arguments = {"problem": case.problem, "method": method, "refit": None}
    with pytest.MonkeyPatch.context() as patch:
        draw_secrets(patch, fixed=True)
        expected = solve(**arguments)
    solved_until(path, 10, **arguments)
    assert content(path)["rounds"] == 1
    assert bits(resumed(path, **arguments)) == bits(expected)


def test_a_seeded_run_resumes_and_its_checkpoint_holds_no_noise_secret(path):
    solved_until(path, 8, seed=5)
    assert content(path)["secret"] is None
    assert bits(resumed(path, seed=5)) == bits(solve(seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, pytest.param(12, marks=pytest.mark.heavy)])
def test_runs_that_are_really_killed_resume(kills):
    """kill -9, in every phase, and where there are more of them again at random times; `make trust` asks for 200."""
    program = Path(__file__).parents[1] / "support" / "killed_solves.py"
    source = str(Path(dpb.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(program), "--kills", str(kills)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    happened = json.loads(done.stdout)
    assert happened["kills"] == kills
    assert set(happened["killed in"]) >= {"start", "charge", "loop", "checkpoint write", "report"}


# --- ledgers -----------------------------------------------------------------------------------------------------


def test_a_charge_that_the_checkpoint_does_not_know_of_is_found_in_the_database(path, tmp_path):
    solved_until(path, 4, ledger=stored_ledger(tmp_path))  # charged, and not yet noted
    (entry,) = stored_ledger(tmp_path).entries
    assert content(path)["records"] is None
    assert entry.description == f"Tracking, run {content(path)['run']}"
    resumed(path, ledger=stored_ledger(tmp_path))
    assert stored_ledger(tmp_path).entries == (entry,)


def test_a_copy_of_an_unfinished_checkpoint_holds_the_noise_secret_and_the_pages_say_so(path, tmp_path):
    solved_until(path, 4, ledger=stored_ledger(tmp_path))  # charged, and not yet sealed to records
    early = content(path)
    resumed(path, ledger=stored_ledger(tmp_path))
    assert (early["records"], content(path)["secret"]) == (None, None)
    assert len(bytes.fromhex(early["secret"])) == 32, "the copy has what the file has lost"
    root = Path(__file__).parents[2]
    for page, words in (("docs/checkpoints.md", "A copy keeps the secret"), ("SECURITY.md", "Copies of checkpoints")):
        assert words in (root / page).read_text(encoding="utf-8")
    assert "**Copies.**" in (checkpoint.__doc__ or "")


def entered(path):
    """How often a fresh ledger in memory counts a run that another process has charged."""
    ledger = dpb.Ledger(TOTAL)
    resumed(path, ledger=ledger)
    resumed(path, ledger=ledger)
    return len(ledger.entries)


@pytest.mark.parametrize("moment", [4, 10, 10**6], ids=["charged", "mid-way", "finished"])
def test_a_new_ledger_in_memory_counts_the_run_once(path, moment):
    solved_until(path, moment, ledger=dpb.Ledger(TOTAL))
    assert entered(path) == 1


def test_a_finished_run_takes_its_place_in_a_new_ledger_so_that_others_cannot(path, tmp_path):
    ledger = dpb.Ledger(BUDGET)
    solved_until(path, 10**6)
    resumed(path, ledger=ledger)
    with pytest.raises(dpb.BudgetExceeded):
        solve(ledger=ledger, budget=dpb.Budget(0.1, 1e-4))


@pytest.mark.parametrize("moment", [10, 10**6], ids=["mid-way", "finished"])
def test_a_database_that_has_forgotten_the_charge_is_refused(path, tmp_path, moment):
    solved_until(path, moment, ledger=stored_ledger(tmp_path))
    (tmp_path / "ledger.db").unlink()
    check_refused(path, "restored from a backup", ledger=stored_ledger(tmp_path))


def test_a_run_that_does_not_fit_leaves_no_checkpoint(path):
    ledger = dpb.Ledger(dpb.Budget(0.5, 1e-4))
    with pytest.raises(dpb.BudgetExceeded):
        solve(path, ledger=ledger)
    assert not path.exists()
    assert solved_until(path, 6, ledger=ledger, budget=ledger.total) == 6
    assert len(ledger.entries) == 1


def test_a_run_that_was_started_before_keeps_its_checkpoint_when_a_ledger_refuses_it(path, tmp_path, whole):
    """It may have been charged already, elsewhere."""
    solved_until(path, 4, ledger=stored_ledger(tmp_path))
    with pytest.raises(dpb.BudgetExceeded):
        solve(path, ledger=dpb.Ledger(dpb.Budget(0.5, 1e-4)))
    assert bits(resumed(path, ledger=stored_ledger(tmp_path))) == bits(whole)
    assert len(stored_ledger(tmp_path).entries) == 1


def test_one_name_is_not_charged_with_two_costs():
    ledger = dpb.Ledger(TOTAL)
    planned = dpb.plan(PROBLEM, dpb.Records(lower=POINTS).sizes, BUDGET, **RUN)
    ledger.charge(planned.releases, BUDGET, "run a", once=True)
    ledger.charge(planned.releases, BUDGET, "run a", once=True)
    assert len(ledger.entries) == 1
    with pytest.raises(dpb.InvalidArgument, match="another cost"):
        ledger.charge(planned.releases[:1], BUDGET, "run a", once=True)


# --- refused, with nothing charged, read or written --------------------------------------------------------------


def check_refused(path, match, *, error=dpb.CheckpointRefused, **changes):
    before = path.read_bytes()
    ledger = changes.pop("ledger", None) or dpb.Ledger(TOTAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpb.Records, "execute", lambda *a, **k: pytest.fail("records were used"))
        with pytest.raises(error, match=match) as caught:
            solve(path, ledger=ledger, **changes)
    assert ledger.entries == ()
    assert path.read_bytes() == before
    for secret in filter(None, (content(path)["key"], content(path)["secret"])):
        assert secret not in str(caught.value)
    assert caught.value.__context__ is None


def edited(row=0, by=1e-6):
    points = POINTS.astype(np.float32).copy()
    points[row, 0] += np.float32(by)
    return points


BROKEN = np.where(np.arange(60)[:, None] == 7, np.nan, POINTS)


@pytest.mark.parametrize("moment", [6, 10, 10**6], ids=["charged", "mid-way", "finished"])
@pytest.mark.parametrize(
    "points",
    [edited(), edited(59, 0.5), POINTS[::-1].copy(), np.roll(POINTS, 1, 0), -POINTS],
    ids=["one bit", "one row", "reversed", "shifted", "negated"],
)
def test_other_records_are_refused(path, moment, points):
    solved_until(path, moment)
    check_refused(path, "records: are not those", points=points)


def test_records_that_differ_in_what_is_invalid_are_refused(path):
    solved_until(path, 10, points=BROKEN, invalid="zero")
    check_refused(path, "records: are not those", points=np.nan_to_num(BROKEN), invalid="zero")
    check_refused(path, "records: are not those", points=np.roll(BROKEN, 1, 0), invalid="zero")


OTHERS = {
    "budget": {"budget": dpb.Budget(1.0 + 1e-12, 1e-4)},
    "budget's delta": {"budget": dpb.Budget(1.0, 1.1e-4)},
    "size of records": {"points": POINTS[:-1]},
    "start": {"start": (np.float32([0, 0, 1e-30]), np.zeros(3))},
    "method": {"method": dpb.Tracking(steps=2, clip_norm=1.5)},
    "plan": {"refit": dpb.Refit(steps=2, learning_rate=0.21)},
    "plan's parts": {"refit": None},
    "problem": {"problem": problem_with(weight=1.0 + 1e-6)},
    "problem's constants": {"problem": problem_with(table=(1.0, 1.5))},
    "seed": {"seed": 1},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused(path, midway, name):
    path.write_bytes(midway)
    path.chmod(0o600)
    check_refused(path, f"another {name.split(chr(39))[0]};", **OTHERS[name])


def test_a_problem_that_is_written_again_is_the_same(path):
    """Functions are known by what they compute: a new process has new ones."""
    solved_until(path, 10)
    planned = dpb.plan(problem_with(), dpb.Records(lower=POINTS).sizes, BUDGET, **RUN)
    with checkpoint.opened(path, planned, KeySchedule(), [1, 1]) as kept:
        assert kept.schedule.reveal_secret() == SECRET


@pytest.mark.parametrize("seed", [None, 6])
def test_a_seeded_run_is_not_resumed_with_another_seed_or_none(path, seed):
    solved_until(path, 10, seed=5)
    check_refused(path, "another seed", seed=seed)


@pytest.mark.parametrize("moment", [2, 10, 10**6], ids=["created", "mid-way", "finished"])
def test_another_version_is_refused(path, moment, monkeypatch):
    solved_until(path, moment)
    monkeypatch.setattr(fingerprint, "version", lambda: "0.0.1")
    check_refused(path, r"was written by dpbilevel .*, and this is dpbilevel 0\.0\.1")


def test_damage_is_refused(path, tmp_path):
    solved_until(path, 10)
    sound, draws = path.read_bytes(), random.Random(0)
    lengths = [0, 1, 60, len(sound) // 2, len(sound) - 2, *(draws.randrange(len(sound) - 1) for _ in range(200))]
    damages = [sound[:length] for length in lengths]
    for _ in range(400):
        place, flip = draws.randrange(len(sound) - 1), draws.randrange(1, 256)
        damages.append(sound[:place] + bytes([sound[place] ^ flip]) + sound[place + 1 :])
    damages += [b"\xff\xfe", b"{}", b"dpbilevel.checkpoint/2 0\n{}\n", sound + sound, sound.replace(b"/2 ", b"/1 ")]
    damages += [b"dpbilevel.checkpoint/2 0\n" + b"[" * 100_000 + b"\n", b'dpbilevel.checkpoint/2 0\n{"key":"00"}\n']
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(dpb.CheckpointRefused, match="is damaged") as caught:
            checkpoint_file.read(path)
        assert caught.value.__context__ is None  # decoders keep what they have read
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises(dpb.CheckpointRefused, match="is damaged"):
        solve(path, ledger=ledger)
    assert ledger.entries == ()


IMPOSSIBLE = [
    *({"state": 3}, {"key": None}, {"more": 1}, {"secret": "x"}, {"secret": None}, {"fingerprint": None}),
    *({"records": 0}, {"records": None}, {"run": 1}, {"code": None}, {"part": 2}, {"part": 1}, {"part": True}),
    *({"rounds": 0}, {"rounds": -1}, {"rounds": 10**6}, {"rounds": 1.0}, {"state": []}, {"history": []}),
    *({"steps": 1}, {"steps": -1}, {"steps": True}, {"steps": 1.0}),
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_content_that_no_run_wrote_is_refused(path, change):
    solved_until(path, 10)
    whole = content(path)
    text = json.dumps(whole | change)
    mac = checkpoint_file._mac(whole, text)
    path.write_text(f"{checkpoint_file.FORMAT} {mac}\n{text}\n")
    with pytest.raises(dpb.CheckpointRefused, match="is damaged"):
        solve(path)


@pytest.mark.filterwarnings("ignore::dpbilevel.PrivacyLeakWarning")
def test_a_black_box_takes_no_checkpoint(path):
    trainer = dpb.BlackBox(train=lambda *a: pytest.fail("called"), event=dpb.GaussianDP(0.01))
    method = dpb.DPBilevel(inner=trainer, steps=2, step_size=0.1)
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises(dpb.InvalidArgument, match="black box"):
        solve(path, method=method, refit=None, ledger=ledger)
    assert (ledger.entries, path.exists()) == ((), False)


@pytest.mark.parametrize("bad", [3, b"x", "", " ", "a\0b", ".", "/nowhere/at/all", True, "x" * 300], ids=repr)
def test_bad_paths_are_refused_before_the_charge(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = dpb.Ledger(TOTAL)
    with pytest.raises((dpb.InvalidArgument, dpb.CheckpointRefused), match="checkpoint"):
        solve(bad, ledger=ledger)
    assert (ledger.entries, os.listdir(tmp_path)) == ((), [])


# --- the file ----------------------------------------------------------------------------------------------------


posix = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")


@posix
def test_the_file_is_private_from_its_first_byte(path, monkeypatch):
    modes = []
    plain = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: modes.append(os.fstat(handle).st_mode) or plain(handle))
    before = os.umask(0)
    try:
        solve(path)
    finally:
        os.umask(before)
    written = [stat.S_IMODE(mode) for mode in modes if stat.S_ISREG(mode)]
    assert len(written) == 6
    assert {*written, stat.S_IMODE(path.stat().st_mode)} == {0o600}


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(path, mode):
    solved_until(path, 10)
    path.chmod(mode)
    check_refused(path, "chmod 600")


@posix
def test_a_file_of_somebody_else_is_refused(path, monkeypatch):
    solved_until(path, 10)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    check_refused(path, "belongs to another user")


@posix
def test_a_pipe_is_refused_and_not_waited_for(path):
    os.mkfifo(path, 0o600)
    with pytest.raises(dpb.CheckpointRefused, match="plain file"):
        solve(path)


@posix
def test_two_processes_do_not_work_on_one_checkpoint(path):
    solved_until(path, 10)
    with checkpoint_file.exclusive(path):
        before = path.read_bytes()
        with pytest.raises(dpb.CheckpointRefused, match="another process"):
            solve(path)
        assert path.read_bytes() == before
    resumed(path)


def test_what_a_killed_write_has_left_is_removed_and_nothing_else(path):
    solved_until(path, 10)
    left = path.with_name(".run.checkpoint.123.part")
    others = [path.with_name(name) for name in (".run.checkpoint.b.123.part", ".run.part", "run.checkpoint.1.part")]
    for file in (left, *others):
        file.touch()
    resumed(path)
    assert not left.exists()
    assert all(other.exists() for other in others)


def test_a_full_disk_stops_the_run_and_it_resumes_later(path, whole):
    solved_until(path, 10)
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(dpb.CheckpointRefused, match="No space left"):
            solve(path)
    assert path.read_bytes() == before
    assert bits(resumed(path)) == bits(whole)


def test_a_checkpoint_holds_keys_and_released_values_and_in_the_end_no_noise_secret(path, whole):
    solved_until(path, 10)
    held = content(path)
    assert set(held) == {field.name for field in dataclasses.fields(checkpoint.Saved)}
    assert held["secret"] == SECRET.hex()
    arrays = [checkpoint_file.unpack(leaf) for leaf in (*held["state"], *held["history"])]
    assert sum(array.size for array in arrays) < POINTS.size  # there is no room for the records
    solution = resumed(path)
    assert content(path)["secret"] is None
    assert SECRET.hex() not in path.read_text().replace(content(path)["key"], "")
    assert solution.privacy.to_json() == whole.privacy.to_json()
    assert not solution.privacy.void


def test_arrays_keep_every_bit():
    values = [np.float32([0.1, -0.0, np.inf, np.nan]), np.int32([[1], [-2]]), np.float64(1 / 3), np.zeros((0, 3)), True]
    values += [np.frombuffer(b"\x01\x00\xc0\x7f", np.float32), jnp.bfloat16(1.5), np.uint8([255])]
    for value in map(np.asarray, values):
        back = checkpoint_file.unpack(json.loads(json.dumps(checkpoint_file.pack(value))))
        assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())


# --- the seal ----------------------------------------------------------------------------------------------------


def test_a_seal_tells_records_apart_and_nothing_else():
    points = POINTS.astype(np.float32)
    alike = [dpb.Records(lower=points), dpb.Records(lower=points.astype(np.float64)), dpb.Records(lower=points.copy())]
    assert len({records.seal(SECRET) for records in alike}) == 1
    different = [
        dpb.Records(lower=edited()),
        dpb.Records(both=points),
        dpb.Records(lower=[points]),
        dpb.Records(lower=points.reshape(30, 6)),
        dpb.Records(lower=points.view(np.int32)),
        dpb.Records(upper=points[:30], lower=points[30:]),
        dpb.Records(upper=points[:31], lower=points[31:]),
        dpb.Records(lower=BROKEN, invalid="zero"),
    ]
    seals = {records.seal(SECRET) for records in (alike[0], *different)}
    assert len(seals) == 9
    assert alike[0].seal(bytes(32)) not in seals
    assert {len(seal) for seal in seals} == {32}


@pytest.mark.parametrize("key", [b"", b"short", "x" * 32, None, 3], ids=repr)
def test_a_seal_without_a_secret_key_is_refused(key):
    with pytest.raises(dpb.InvalidArgument, match="32 secret bytes"):
        dpb.Records(lower=POINTS).seal(key)


# --- mutations: each check above must catch what it is for ----------------------------------------------------


def test_mutant_that_draws_noise_again(path, whole, monkeypatch):
    monkeypatch.setattr(KeySchedule, "restore", classmethod(lambda cls, secret: cls()))
    assert faults(path, 10, whole) == ["other bits"]


def test_mutant_that_starts_its_keys_from_the_first(path, whole, monkeypatch):
    """It uses the noise of rounds that are done once more, on the same records at other points."""
    plain = Receipt.advance
    first = {}

    def replayed(receipt, schedule, uses):
        index = plain(receipt, schedule, uses)
        return index - first.setdefault(id(receipt), index + uses)

    monkeypatch.setattr(Receipt, "advance", lambda *arguments: max(replayed(*arguments), 0))
    assert "other bits" in faults(path, 12, whole)


def test_mutant_that_does_not_check_records(path, monkeypatch):
    solved_until(path, 10)
    monkeypatch.setattr(checkpoint.hmac, "compare_digest", lambda one, other: True)
    with pytest.raises(pytest.fail.Exception, match="records were used"):
        check_refused(path, "records: are not those", points=edited())


def test_what_the_records_check_is_for(tmp_path, monkeypatch):
    """Without it, two solutions with the same noise tell an edited record exactly, at any epsilon."""
    monkeypatch.setattr(checkpoint.hmac, "compare_digest", lambda one, other: True)
    planned = dpb.plan(PROBLEM, dpb.Records(lower=POINTS).sizes, BUDGET, **RUN)
    state = jax.tree.structure(planned.program.start(*jax.tree.map(jnp.asarray, RUN["start"])))
    released = []
    shortest = int(np.argmin(np.linalg.norm(POINTS, axis=1)))  # which no clip touches
    for name, points in (("a", POINTS), ("b", edited(shortest, 0.125))):
        solved_until(tmp_path / name, 6)
        solved_until(tmp_path / name, 6, points=points)  # one chunk further
        leaves = map(checkpoint_file.unpack, content(tmp_path / name)["state"])
        released.append(jax.tree.unflatten(state, list(leaves))["lower"]["model gradient"])
    difference = 60 * (released[0] - released[1])  # in units of the clip, which is public
    assert difference[0] > 0.01
    np.testing.assert_allclose(difference / difference[0], [1, 0, 0], atol=1e-3)
    assert planned.program.releases[0].noise_std > 0.1  # of a mean, in which a record makes 0.002


@pytest.mark.parametrize("moment", [10, 10**6])
def test_mutant_that_does_not_charge_when_it_resumes(path, moment, monkeypatch):
    solved_until(path, moment)
    plain = checkpoint.Checkpoint.charge

    def free(self, ledger, records, description):
        if self._saved.records is None:
            return plain(self, ledger, records, description)
        return Receipt(self._planned.releases)

    monkeypatch.setattr(checkpoint.Checkpoint, "charge", free)
    assert entered(path) == 0


def test_mutant_that_takes_a_started_run_for_charged(path, whole, monkeypatch):
    def trusting(self, ledger, records, description):
        if not ledger.entries and os.path.getsize(self._path) and not fresh:
            return Receipt(self._planned.releases)
        fresh.clear()
        return plain(self, ledger, records, description)

    plain, fresh = checkpoint.Checkpoint.charge, [True]
    monkeypatch.setattr(checkpoint.Checkpoint, "charge", trusting)
    assert faults(path, 2, whole) == ["charged 0 times"]


def test_mutant_that_charges_whenever_it_resumes(path, whole, monkeypatch):
    plain = dpb.Ledger.charge
    monkeypatch.setattr(dpb.Ledger, "charge", lambda *given, once=False, **more: plain(*given, **more))
    assert faults(path, 10, whole) == ["charged 2 times"]


def test_mutant_that_does_not_know_functions(path, monkeypatch):
    monkeypatch.setattr(fingerprint, "_programs", lambda *arguments: [])
    solved_until(path, 10)
    with pytest.raises(pytest.fail.Exception, match="records were used"):
        check_refused(path, "another problem", problem=problem_with(weight=1.1))


def test_mutant_that_writes_in_place(path, whole, monkeypatch):
    """A kill in the middle of a write leaves half of a file, from which nothing can go on."""

    def in_place(target, text, *, owner_only=False):
        Path(target).write_text(text[: len(text) // 2])
        Path(target).chmod(0o600)
        raise Cut

    solved_until(path, 10)
    monkeypatch.setattr(checkpoint_file, "write_atomically", in_place)
    with pytest.raises(Cut):
        resumed(path)
    with pytest.raises(dpb.CheckpointRefused, match="is damaged"):
        resumed(path)


def test_exact_noise_is_refused_for_it_cannot_be_drawn_again(tmp_path):
    pytest.importorskip("opendp")
    case = leak()
    with pytest.raises(dpb.InvalidArgument, match="exact noise"):
        dpb.solve(
            case.problem,
            case.records(),
            dpb.Budget(1.0, 1e-4),
            method=case.method(steps=4),
            start=case.start,
            noise="exact",
            checkpoint=tmp_path / "checkpoint",
        )
    assert not (tmp_path / "checkpoint").exists()
