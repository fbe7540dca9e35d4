"""Every mutation is noticed, and what notices it is silent on the true code: one list, both directions."""

import inspect
import re
from pathlib import Path

import pytest
from support import mutations
from support.mutations import MUTATIONS

from dpbilevel.foundation.tables import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "mutation_tests.md"
DETECTORS = {mutation.detector.__name__: mutation.detector for mutation in MUTATIONS}


@pytest.mark.parametrize("detector", DETECTORS.values(), ids=DETECTORS)
def test_the_true_code_passes(detector):
    detector()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_noticed(mutation, monkeypatch):
    mutation.patch(monkeypatch)
    with pytest.raises(AssertionError):
        mutation.detector()


def test_every_mutation_is_on_the_list():
    written = {
        name
        for name, function in inspect.getmembers(mutations, inspect.isfunction)
        if function.__module__ == mutations.__name__ and list(inspect.signature(function).parameters) == ["monkeypatch"]
    }
    assert written == {mutation.patch.__name__ for mutation in MUTATIONS}


def test_every_detector_states_its_false_alarms():
    for detector in DETECTORS.values():
        assert re.search(r"false-alarm rate \d|no false alarms", " ".join(detector.__doc__.split()))


def table() -> str:
    """The list as the documentation shows it."""
    rows = [
        [mutation.name, _sentence(mutation.patch.__doc__), mutation.means, _sentence(mutation.detector.__doc__)]
        for mutation in MUTATIONS
    ]
    return markdown_table(["mutation", "what is broken", "detected by", "how, and the false-alarm rate"], rows)


def _sentence(text: str) -> str:
    return " ".join(text.split())


def test_the_documentation_shows_the_list():
    assert table() in PAGE.read_text(encoding="utf-8"), f"docs/mutation_tests.md must have this table:\n{table()}"
