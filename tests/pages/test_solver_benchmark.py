"""The solver benchmark with noise and the study of constants: their statistics on made-up numbers, and a tiny cell."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dpbilevel as dpb
from dpbilevel import planning

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import constants
import pieces
import solver_private
import solver_private_statistics as statistics
from solver_private import DEFAULT, DOUBLE_LOOP, key_of
from solver_problems import PLAIN, table

EPSILONS, RECORDS = (1.0,), (1000, 1_000_000)
NOISE = np.array([-1, 0.5, 1, -0.5, 0.2, -0.2, 0.7, -0.7])
MUTATIONS = {f"plain {index}": f"plain {index}" for index in range(20)} | {"rescaled": "plain 0"}


def cell(mean, spread=0.05):
    return {"left": list(mean * (1 + spread * NOISE))}


def made_up(changes=None):
    """All problems fall from 0.8 to 0.01, but for what is changed."""
    means = {(name, number): 0.8 if number == 1000 else 0.01 for name in MUTATIONS for number in RECORDS} | (
        changes or {}
    )
    return {key_of(name, 1.0, number, DEFAULT): cell(mean) for (name, number), mean in means.items()}


def compare(cells):
    return statistics.compare(cells, MUTATIONS, EPSILONS, RECORDS)


def test_names_of_problems_are_keys():
    names = [entry.name for entry in table()]
    assert len(set(names)) == len(names) >= 60
    assert all(" | " not in name for name in names)


def test_every_rescaled_problem_has_an_original_and_noise_of_its_own():
    plain = {entry.name for entry in table() if entry.units == PLAIN}
    assert all(solver_private.plain_name(entry) in plain for entry in table())
    first, second = solver_private.NOISE_SEEDS.values()
    assert abs(first - second) >= 26  # the most seeds that may be asked for
    assert not set(range(first, first + 26)) & {77, *range(900, 908), 1234, 4321, *range(2000, 2008)}


def test_what_falls_is_seen_to_fall_and_nothing_else():
    found = compare(made_up())
    assert len(found.falls) == len(MUTATIONS)
    assert (found.rises, found.above, found.differs) == ([], [], [])
    assert found.compared == {"falls": 21, "above": 42, "differs": 2}


@pytest.mark.parametrize(
    ("changes", "field", "key"),
    [
        ({("plain 3", 1_000_000): 0.9}, "rises", "plain 3 | 1"),
        ({("plain 3", 1000): 1.2}, "above", key_of("plain 3", 1.0, 1000, DEFAULT)),
        ({("rescaled", 1000): 0.4}, "differs", key_of("rescaled", 1.0, 1000, DEFAULT)),
    ],
)
def test_what_is_wrong_is_found(changes, field, key):
    assert getattr(compare(made_up(changes)), field) == [key]


def test_a_run_that_stays_at_the_start_is_not_above_it():
    assert statistics.above_start([1 + 1e-8] * 8) > 0.1
    assert statistics.above_start([1.01] * 8) < 1e-6
    assert statistics.larger([1.0] * 8, [1.0] * 8) == pytest.approx(1)
    assert statistics.different([1.0] * 8, [1.0] * 8) == pytest.approx(1)


def test_family_wise_error_rate():
    """With no difference anywhere, the share of families with any finding is 5% at most."""
    draws = np.random.default_rng(0).uniform(size=(2000, 50))
    wrong = np.mean([bool(statistics.holm(dict(enumerate(family)))) for family in draws])
    assert 0.03 < wrong < 0.07
    uncorrected = np.mean((draws < 0.05).any(axis=1))
    assert uncorrected > 0.9  # what the adjustment is for


def test_pieces_are_merged_and_not_made_again(tmp_path):
    entries = table()
    key = key_of(entries[10].name, 1.0, 1000, DEFAULT)
    pieces.write_cells(tmp_path / "a.json", {key: cell(0.5)})
    pieces.write_cells(tmp_path / "b.json", {"other": cell(0.1)})
    out = tmp_path / "all.json"
    solver_private.main(["--out", str(out), "--merge", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    there = pieces.read_cells(out)
    assert set(there) == {key, "other"}
    tasks = solver_private.missing(there, [10], [1.0], [1000, 10**6], 8)
    wanted = [key_of(entries[10].name, 1.0, 10**6, DEFAULT), key_of(entries[10].name, 1.0, 1000, DOUBLE_LOOP)]
    assert tasks == [(10, 10**6, (wanted[0],), 8), (10, 1000, (wanted[1],), 8)]


def test_results_are_kept_task_by_task(tmp_path):
    def work(task):
        if task == 3:
            raise KeyboardInterrupt
        return {f"task {task}": {"left": [task]}}

    out = tmp_path / "part.json"
    with pytest.raises(KeyboardInterrupt):
        pieces.run(work, [1, 2, 3], out, processes=1)
    assert list(pieces.read_cells(out)) == ["task 1", "task 2"]


def test_tuning_has_the_budget_that_the_default_gives_it():
    posed = table()[10].posed(1000, 1)
    sizes = dpb.Records(**posed.data).sizes
    whole, alone = (
        planning.prepare(posed.problem, sizes, budget, planning.DEFAULT_METHOD, posed.start, refit)
        for budget, refit in (
            (dpb.Budget(1.0, solver_private.DELTA), "auto"),
            (solver_private.tuning_budget(1.0, sizes), None),
        )
    )
    noises = [[release.noise_std for release in planned.program.releases] for planned in (whole, alone)]
    np.testing.assert_allclose(*noises, rtol=1e-6)
    assert whole.training is not None
    assert alone.training is None


def test_sizes_share_their_records():
    posed = table()[43].posed(100, 1)
    small = solver_private.front(posed, 10)
    assert small.data["lower"][0].shape == (10, 8)
    assert small.data["upper"][1].shape == (5,)
    np.testing.assert_array_equal(small.data["upper"][0], posed.data["upper"][0][:5])


def test_certified_constants_are_not_falsified_by_the_records():
    posed = table()[10].posed(2000, solver_private.DATA_SEED)
    assert max(np.linalg.norm(rows, axis=1).max() for rows in posed.data.values()) < solver_private.RECORD_NORM
    problem = solver_private.certified(posed).problem
    x, y = np.float32([0.8, 0, 0]), np.float32([0.3, -0.2, 0.1])
    record = posed.data["lower"][0]
    hessian = jax.hessian(lambda both: problem.lower_loss(both[:3], both[3:], record))(np.concatenate([x, y]))
    assert np.linalg.norm(hessian, 2) == pytest.approx(problem.constants.lower_smoothness, rel=1e-4)
    assert np.linalg.eigvalsh(hessian[3:, 3:])[0] == pytest.approx(problem.constants.strong_convexity, rel=1e-3)
    assert solver_private.methods_of(table()[10], 1000) == (DEFAULT, DOUBLE_LOOP)
    assert solver_private.methods_of(table()[10], 10**6) == (DEFAULT,)
    rescaled = [entry for entry in table() if entry.units != PLAIN]
    assert all(solver_private.methods_of(entry, 1000) == (DEFAULT,) for entry in rescaled)


def test_the_page_and_the_picture(tmp_path):
    names = [entry.name for entry in table()]
    cells = {
        key_of(name, epsilon, number, DEFAULT): cell(100 / number)
        for name in names
        for epsilon in solver_private.EPSILONS
        for number in solver_private.RECORDS
    }
    cells |= {key: value | {"device": "cpu"} for key, value in cells.items()}
    cells[key_of(names[3], 1.0, 1000, DEFAULT)] |= cell(2.0)
    cells[key_of(names[10], 1.0, 1000, DOUBLE_LOOP)] = cell(0.9) | {"device": "cpu"}
    out = tmp_path / "solver_private.json"
    pieces.write_cells(out, cells)
    solver_private.main(["--out", str(out), "--report"])
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert f"in {2 * len(names)} of {2 * len(names)} cases" in page
    assert f"**1 of {8 * len(names)} means lie above" in page
    assert f"- Above the start: {names[3]} (ε = 1, 10³ records)." in page
    assert f"| {names[10]}, double loop | 0.9 |  |" in page
    assert out.with_suffix(".svg").read_text(encoding="utf-8").count("representation, ε") == 2


def test_a_tiny_cell(tmp_path, monkeypatch):
    """A quadratic in a ball at epsilon 3 on a thousand records: most of the way, and the same when it is run again."""
    monkeypatch.setattr(solver_private, "RECORDS", (1000,))  # what is drawn
    out = tmp_path / "part.json"
    asked = ["--entries", "9", "--epsilons", "3", "--records", "1e3", "--seeds", "2", "--out", str(out)]
    monkeypatch.setattr(solver_private, "methods_of", lambda entry, records: (DEFAULT,))
    solver_private.main(asked)
    (found,) = pieces.read_cells(out).values()
    assert len(found["left"]) == 2
    assert found["gap"] > 0
    assert -0.01 < np.mean(found["left"]) < 0.9
    before = out.read_bytes()
    solver_private.main(asked)
    assert out.read_bytes() == before


def test_every_constant_is_halved_and_doubled_and_put_back():
    found = constants.constants()
    assert {"passes._COUNTS", "passes._PACES[1]", "hyper_steps._DECAY", "loop._PHASE"} <= set(found)
    assert not any(guard in title for title in found for guard in constants.GUARDS)
    assert constants.changed("_COUNTS", 0.05, "doubled") == 0.1
    assert constants.changed("_DECAY", 0.9, "doubled") == pytest.approx(0.95)
    assert constants.changed("_DECAY", 0.9, "halved") == pytest.approx(0.8)
    assert constants.changed("_POWER", 10, "halved") == 5
    before = {title: getattr(module, name) for title, (module, name, _) in found.items()}
    for variant in constants.variants()[1:]:
        undo, _ = constants.set_to(variant)
        title = variant.rsplit(" ", 1)[0]
        module, name, _ = found[title]
        assert getattr(module, name) != before[title]
        undo()
    assert before == {title: getattr(module, name) for title, (module, name, _) in found.items()}


def test_the_page_of_constants(tmp_path):
    def left(variant):
        return {"left": [[0.02 if variant.startswith("loop._PHASE d") else 0.01] * 4] * 2, "values": "1 → 2"}

    cells = {f"{variant} | {index}": left(variant) for variant in constants.variants() for index in constants.ENTRIES}
    out = tmp_path / "constants.json"
    pieces.write_cells(out, cells)
    constants.report(out)
    rows = [line for line in out.with_suffix(".md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(constants.variants()) - 1
    assert [row for row in rows if " 1.00 | 1.00 to 1.00 |" not in row] == [
        "| `loop._PHASE` | 1 → 2 | 2.00 | 2.00 to 2.00 |"
    ]
