"""The benchmark of speed: a line at a tiny size, its statistics on made-up numbers, and what the page claims."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.append(str(ROOT / "benchmarks"))
import pieces  # noqa: E402
import speed  # noqa: E402
import speed_blocks  # noqa: E402
import speed_report  # noqa: E402
import speed_tuning  # noqa: E402
import speed_worker  # noqa: E402

from dpbilevel.privacy import memory  # noqa: E402

# The machine of an accelerator may have none of these.
BARE = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"sklearn", "pandas", "matplotlib", "rich", "sqlalchemy", "jax_privacy"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rsplit("/", 1)[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def sides(over, under, **runs):
    return {"sides": {over: {"runs": runs["above"]}, under: {"runs": runs["below"]}}}


MADE_UP = {
    "step, linear, 50000 x 100": sides("private", "plain", above=[1.0, 1.1, 9.0], below=[1.0, 1.0, 1.0]),
    "fit, 50000 x 100": sides("now", "0cb980d", above=[1.0, 1.0, 1.0], below=[2.0, 2.0, 4.0]),
    "gradient step, opacus, 100 x 10": {"left out": "needs 99 GB of free memory"},
    **{
        f"memory of a fit, {rows} x 100": {"peak": 50 + 2 * rows, "encoded": 4 * rows, "rows": rows}
        for rows in (1000, 10_000, 100_000)
    },
}


def test_a_line_is_measured_once_and_reported(tmp_path, monkeypatch):
    out = tmp_path / "speed.json"
    speed.main(["--tiny", "--only", "step, linear, 500 x 10", "--out", str(out)])
    (cell,) = pieces.read_cells(out).values()
    assert {len(side["runs"]) for side in cell["sides"].values()} == {2}
    assert all(min(side["runs"]) > 0 for side in cell["sides"].values())
    assert cell["sides"]["private"]["compile seconds"] > 0
    assert "step, linear, 500 x 10: private / plain" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert out.with_suffix(".svg").read_text(encoding="utf-8").startswith("<?xml")
    monkeypatch.setattr(speed_worker.subprocess, "Popen", None)  # nothing more may be started
    speed.main(["--tiny", "--only", "step, linear, 500 x 10", "--out", str(out)])


def test_a_device_step_needs_only_the_librarys_requirements(tmp_path):
    out = tmp_path / "speed.json"
    command = [sys.executable, "-c", BARE, str(ROOT / "benchmarks" / "speed.py"), "--device-step"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, "--rows", "500", "--columns", "8", "--out", str(out)], env=environment, check=True)
    (cell,) = pieces.read_cells(out).values()
    assert (cell["rows"], cell["columns"], len(cell["milliseconds"])) == (500, 8, 9)


def test_a_side_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="a side failed"):
        speed_worker.interleaved({"none": lambda: speed_worker.Side("no such side", {}, "speed_sides.py")}, 1)


def test_targets_that_are_missed_are_said_to_be_missed():
    found = {claim.name: claim for claim in speed_report.claims(MADE_UP)}
    step = found["step, linear, 50000 x 100: private / plain"]
    assert (step.ratio, step.largest, step.holds) == (1.1, 9.0, True)
    assert not found["fit, 50000 x 100: now / 0cb980d"].holds
    assert found["memory of a fit, 100000 rows: peak / encoded rows"].ratio == pytest.approx(0.495)
    assert found["memory of a fit: exponent of its growth"].ratio == pytest.approx(1.0, abs=0.05)
    assert len(found) == 4
    verdict = "3 of 4 targets are met. Missed:\n\n- fit, 50000 x 100: now / 0cb980d"
    assert speed_report.verdict([*found.values()]) == verdict


def test_time_to_a_value_is_that_of_the_first_point_which_the_evaluator_accepts():
    points = [(1.0, 0.9, [0]), (2.0, 0.5, [1]), (3.0, 0.5, [2]), (4.0, 0.4, [3])]
    truth = {0: 0.9, 1: 0.7, 2: 0.5, 3: 0.4}  # the second point is not what its run believes
    assert speed_tuning.first_within(points, 0.5, lambda x: truth[x[0]]) == 2
    assert speed_tuning.first_within(points, 0.1, lambda x: truth[x[0]]) is None


def test_blocks_and_cores_are_compared_by_processor_time():
    def side(processor, runs):
        return {"processor": [processor] * 3, "runs": runs}

    cell = {
        "14, 1": side(2.0, [9.0, 4.0, 5.0]),
        "14, 2": side(2.0, [2.0, 2.0, 3.0]),
        "16, 1": side(1.0, [2.0, 2.0, 2.0]),
        "16, 2": side(1.0, [1.0, 0.8, 4.0]),
    }
    page = speed_blocks.section({"blocks, a case": {"sides": cell}, "tuning, 5 penalties": {}})
    assert "| 2^14 | 2.00 | 2.00 |" in page
    assert "| 2^16 | 1.00 | 1.00 |" in page
    assert "| a case | 0.50 | 1.25 | 1.00 |" in page  # of the best size


def test_the_block_size_is_one_of_those_that_were_measured():
    """And no other one is better by a tenth for all kinds of records."""
    cells = json.loads((RESULTS / "speed.json").read_text(encoding="utf-8"))["cells"]
    cases = [cells[f"{speed_blocks.KEY}{case}"]["sides"] for case in speed_blocks.CASES]
    largest = {
        exponent: max(
            speed_blocks.processor_seconds(sides, exponent, 1)
            / min(speed_blocks.processor_seconds(sides, other, 1) for other in speed_blocks.EXPONENTS)
            for sides in cases
        )
        for exponent in speed_blocks.EXPONENTS
    }
    assert largest[memory._ELEMENTS.bit_length() - 1] <= 1.1 * min(largest.values())


def test_the_committed_page_says_what_its_numbers_say(tmp_path):
    cells = json.loads((RESULTS / "speed.json").read_text(encoding="utf-8"))["cells"]
    speed_report.write(cells, tmp_path / "speed.json")
    assert (tmp_path / "speed.md").read_text(encoding="utf-8") == (RESULTS / "speed.md").read_text(encoding="utf-8")
    lengths = [len(side["runs"]) for cell in cells.values() for side in cell.get("sides", {}).values()]
    assert lengths
