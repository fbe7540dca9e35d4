"""Every broken twin is noticed, and what notices it is silent on the true code: one list, both directions."""

import inspect
import re
from pathlib import Path

import pytest
import twins
from twins import TWINS

from dpbilevel.foundation.tables import markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "twins.md"
DETECTORS = {twin.detector.__name__: twin.detector for twin in TWINS}


@pytest.mark.parametrize("detector", DETECTORS.values(), ids=DETECTORS)
def test_the_true_code_passes(detector):
    detector()


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_a_broken_twin_is_noticed(twin, monkeypatch):
    twin.patch(monkeypatch)
    with pytest.raises(AssertionError):
        twin.detector()


def test_every_twin_is_on_the_list():
    written = {
        name
        for name, function in inspect.getmembers(twins, inspect.isfunction)
        if function.__module__ == twins.__name__ and list(inspect.signature(function).parameters) == ["monkeypatch"]
    }
    assert written == {twin.patch.__name__ for twin in TWINS}


def test_every_detector_states_its_false_alarms():
    for detector in DETECTORS.values():
        assert re.search(r"false-alarm rate \d|no false alarms", " ".join(detector.__doc__.split()))


def table() -> str:
    """The list as the documentation shows it."""
    rows = [[twin.name, _sentence(twin.patch.__doc__), twin.means, _sentence(twin.detector.__doc__)] for twin in TWINS]
    return markdown_table(["twin", "what is broken", "noticed by", "how, and how often it would cry wolf"], rows)


def _sentence(text: str) -> str:
    return " ".join(text.split())


def test_the_documentation_shows_the_list():
    assert table() in PAGE.read_text(encoding="utf-8"), f"docs/twins.md must have this table:\n{table()}"
