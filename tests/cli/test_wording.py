"""The command line's rewording of library messages: every pattern still has a message that it rewords."""

import ast
import re
from pathlib import Path

import pytest

import dpbilevel
from dpbilevel.cli import wording

ROOT = Path(dpbilevel.__file__).parent


def _text(node):
    """A string literal with 7 in the place of each formatted value; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
    return None


MESSAGES = [
    text
    for path in sorted(ROOT.rglob("*.py"))
    if path != Path(wording.__file__)
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if (text := _text(node)) is not None
]


@pytest.mark.parametrize("pattern", wording._REMEDIES)
def test_every_remedy_has_a_message(pattern):
    assert any(re.search(pattern, message) for message in MESSAGES)


def test_a_pattern_whose_message_was_reworded_is_caught():
    assert not any(re.search("give total= to start", message) for message in MESSAGES)
