"""Examples run, at small size."""

import math
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Example to a small size and a word that its table must have.
SMALL = {
    "grouped_penalties": (2000, "a penalty for each group"),
    "hospitals": (3000, "weighted hospitals"),
    "label_noise": (2000, "corrected"),
    "neural_weights": (2000, "weighted by a network"),
    "private_ridge": (2000, "RidgeCV"),
    "rare_classes": (2000, "failures seen"),
    "schools": (2000, "shared representation"),
}


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpbilevel.UtilityWarning")  # small on purpose
@pytest.mark.filterwarnings("ignore::dpbilevel.NotPrivateWarning")  # epsilon = inf is the end of a curve
@pytest.mark.parametrize("name", SMALL)
def test_example(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows, word = SMALL[name]
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    if "EPSILONS" in main.__globals__:
        main.__globals__["EPSILONS"] = (1.0, math.inf)  # every point of a curve is compiled separately
    main(rows=rows)
    assert word in " ".join(capsys.readouterr().out.split())
    assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
