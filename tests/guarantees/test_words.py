"""Retired identifiers and a few phrases are not used again, in the library and in its pages.

Ordinary words that are fine elsewhere ("told", "steps", "again") are a matter of reading, and not tested.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder, endings in (("src", (".py",)), ("docs", (".md",)))
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in endings
}
TEXTS |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")}

# Whole identifiers, case-sensitive, and their replacements.
IDENTIFIERS = {
    "Book": "Store",
    "DatabaseBook": "DatabaseStore",
    "Divisor": "Preconditioner",
    "HEARD": "a signal-to-noise ratio",
    "JUDGED": "LOSS_CHANGE",
    "JUDGING": "VALIDATE",
    "MemoryBook": "MemoryStore",
    "SEARCHING": "SEARCH",
    "Surroundings": "StepContext",
    "UNFORESEEN": "INTERNAL_ERROR",
    "WELL": "OK",
    "WORKING": "TRACK",
    "_MEMORY": "_DECAY",
    "_UNHEARD": "a signal-to-noise ratio",
    "_dearest": "_most_expensive",
    "_followed": "_follow",
    "_held": "_floor_clip",
    "_judged": "_validation",
    "_let_go_of_stdout": "_discard_stdout",
    "_speaking": "_console",
    "given_up": "remove_unfinished",
    "in_own_words": "for_command_line",
    "lower_noise": "lower_noise_std",
    "penalised_noise": "penalised_noise_std",
    "remark_on": "warn_if_weak",
    "say_warnings_in_lines": "show_warnings_as_lines",
    "slope_at_zero": "derivative_at_zero",
    "smallest_penalty": "smallest_penalty_weight",
    "takes_everybody": "is_full_batch",
    "write_whole": "write_atomically",
}
# Identifiers that are also ordinary words: only as code.
CODE = {
    r": Facts\b|\bFacts\(|`Facts`": "PublicContext",
    r": Seen\b|\bSeen\(|`Seen`": "Estimate",
    r"\bEverything\(\)|`Everything`|dpb\.Everything\b": "Unconstrained",
    r"\bSizes\(|`Sizes`|dpb\.Sizes\b": "RecordShapes",
    r"\bsealed\(\)": "isolated_jax_config()",
    r"\.hardened\b|`hardened`": "discretized",
    r"\b(planned|plan|solution|solution_)\.numbers\b": "parameters",
    r"\b(release|charge)\.steps\b": "uses",
    r"\brelease\.noise\b": "noise_std",
    r"DPBilevel\([^)]*\bpenalty=": "penalty_weight",
    r"\.course\b": "trajectory",
    r"\bprivacy[./]books\b": "privacy.stores",
    r"\bTheoryPlan\.noise\b": "noise_std",
    r'"heard"': "power_steps",
    r'"lasting"': "persistent",
    r"\bguessed\(": "epsilon_from_guesses",
    r"\btogether\(": "batch_size",
    r"\bunforeseen\(": "describe_unexpected",
    r"\bLinearBounds\([^)]*\bslope=|\bbounds\.slope\b": "derivative",
    r"\bnoise\.drawn\b|\bimport drawn\b": "draw_indices",
    r"\.restored\(|\bimport restored\b": "restore",
    r"\bimport .*\bcounted\b": "show_progress",
    r"\bimport .*\bdisplayed\b": "set_display",
    r"\bimport .*\bparsed\b": "parse",
    r"\bimport .*\bkept\b": "cache_programs",
    r"\bimport .*\bsolved\b": "solve_quadratic",
    r"\bimport .*\bcompleted\b": "complete",
    r"\bimport .*\bdivided\b": "divide",
    r"\bimport .*\bshortened\b": "shorten",
    r"\bcheckpoint_file\.(un)?packed\b": "pack, unpack",
    r"\bstored\.asked\b": "fit_command",
}
PHRASES = (
    "broken twin",
    "cannot be heard",
    "clipped whole",
    "cry wolf",
    "dearest",
    "noise rules",
    "one a line",
    "one a row",
    "one a run",
    "scikit-learn faces",
    "scikit-learn's faces",
    "side door",
    "so manyth",
    "Speak JSON",
    "What there is.",
    "what else ids stand for",
    "whose row each row is",
)


def retired(text: str) -> list[str]:
    """Every retired word of a text, with its replacement."""
    found = [f"{word}: say {new}" for word, new in IDENTIFIERS.items() if re.search(rf"(?<!\w){word}(?!\w)", text)]
    found += [f"{match[0]}: say {new}" for pattern, new in CODE.items() for match in re.finditer(pattern, text)]
    return found + [phrase for phrase in PHRASES if phrase in text]


@pytest.mark.parametrize("name", TEXTS)
def test_retired_words_stay_away(name):
    assert retired(TEXTS[name]) == []


@pytest.mark.parametrize(
    "text",
    [
        "def program(self, facts: Facts) -> Program: ...",
        "x = _MEMORY * x",
        "dpb.BilevelProblem(domain=dpb.Everything())",
        "a `Sizes`",
        "planned.numbers['steps']",
        "release.noise * 2",
        "TheoryPlan.noise, and made.lower_noise",
        'state["heard"] + power',
        "dpb.DPBilevel(steps=3, penalty=10.0)",
        "from dpbilevel.privacy.books.entry import Entry",
        "tests have a broken twin",
        "a table of text, one a line",
        "dpb.LinearBounds(row_norm=1.0, slope=1.0)",
        "from dpbilevel.execution.progress import counted, displayed",
        "schedule = KeySchedule.restored(secret)",
        "contributions are clipped whole",
    ],
)
def test_a_retired_word_is_noticed(text):
    assert retired(text)


@pytest.mark.parametrize(
    "text",
    [
        "Everything in a solution is released. Sizes of batches are public facts, and records are sealed.",
        "the digest of an entry; what was told in so many steps, again",
        "import numbers\nisinstance(seed, numbers.Integral)",
        "class _TOP_MEMORYLESS: ...",
        "noise_std, lower_noise_std and noises, together (all of them)",
        'glm_constants("logistic", penalty=(0.1, 1.0))',
        "the slope of a line; rows are counted, parsed and kept; def counted(self) -> str",
    ],
)
def test_ordinary_words_are_left_alone(text):
    assert retired(text) == []


def test_the_walk_sees_the_library_and_its_pages():
    assert {"src/dpbilevel/records.py", "docs/index.md", "docs/methods/tracking.md"} <= set(TEXTS)
