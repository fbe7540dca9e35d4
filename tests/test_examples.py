"""Examples run, at small size."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_flights(tmp_path, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / "flights.py"))["main"]
    main(rows=20_000, steps=10)
    printed = capsys.readouterr().out
    for word in ("untuned", "tuned", "upper", "lower", "departure delay", "flights.json"):
        assert word in printed
    assert "epsilon 1 of 1 spent" in printed.replace("\n", " ")
    assert (tmp_path / "flights.json").exists()
    assert (tmp_path / "flights.md").exists()
