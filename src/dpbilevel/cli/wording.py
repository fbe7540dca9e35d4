"""Rewrites messages of the library for the command line: options instead of Python arguments.

Errors and warnings of the library name arguments, such as ``epsilon=-1.0: must be > 0``. A user who typed
``--epsilon -1`` does not know this argument, and some arguments have another name on the command line.
"""

import re

from dpbilevel.cli.fit_command import COMMANDS, FitCommand, options

# Arguments and their names on the command line. With an empty name only the value is shown, as for a file.
_NAMES = {
    "checkpoint": "",
    "classes": "classes in the schema",
    "composition": "composition",
    "confidence": "--confidence",
    "data": "",
    "metric": "--metrics",
    "path": "",
    "positive_class": "--positive-class",
    "random_state": "--seed",
    "runs": "--runs",
    "largest": "--largest",
    "largest_weight": "largest weight in the schema",
    "sample_weight": "--weight",
    "target_range": "range of the target in the schema",
    "total": "--epsilon and --delta",
    "url": "--ledger",
    "validation_rows": "--validation-rows",
}
# Remedies in Python, and their equivalents on the command line.
_REMEDIES = {
    r"data=None: ": "",
    r"try (Tracking\(steps=\d+\))": r"try \1, from Python",
    r": use group=k for k rows of one person": "",
    r"as data=\.\.\. or in the environment": "in the environment",
    r"give total= to create (its|a) ledger( there)?( \(on the command line: dpbilevel ledger create\))?": (
        r"create \1 ledger\2 with `dpbilevel ledger create`"
    ),
    r"create the ledger with Ledger\(total, composition=\"basic\"\) before its first run": (
        "create another with `dpbilevel ledger create`, whose first run is of this kind"
    ),
    r"does not exist; check the address$": "does not exist; check the address (`dpbilevel ledger create` creates one)",
    r"name it in missing=\[\.\.\.\] for": "add missing = true to the schema for",
    r"declare a wider range in ranges=, with knots": "leave out kind for a wider range",
    r"^smooth=True: X must be the output of a BoundedEncoder with curves of at least three knots .*": (
        '--smooth: the schema must declare a curve, a number or a date with at least three knots (try knots = "auto")'
    ),
    r"^epsilon is ": "--epsilon is ",
    r"^url: ": "--ledger: ",
    r"^schema: ": "--schema: ",
    r"delete (the checkpoint|it) to start a new run, which": "start a new run in its folder with --force, which",
}
_START = r"(?<![\w/.=?&-])"  # not inside a path, a URL or an option
_ARGUMENT = re.compile(_START + r"([a-z_]+)=(\([^()]*\)|'[^']*'|\"[^\"]*\"|[^\s:;,()'\"]+)?")


def for_command_line(message: str) -> str:
    """A message of the library, rewritten for the command line.

    >>> for_command_line("epsilon=-1.0: must be > 0; it bounds the privacy loss (try 1.0)")
    '--epsilon -1.0: must be > 0; it bounds the privacy loss (try 1.0)'
    >>> for_command_line('clean it, or pass invalid="zero" to encode such cells')
    'clean it, or pass --invalid zero to encode such cells'
    """
    for pattern, words in _REMEDIES.items():
        message = re.sub(pattern, words, message)
    names = _options() | _NAMES

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in names:
            return found[0]
        shown = "" if value in (None, "None", "...") else value.strip("'\"")
        return f"{names[name]} {shown}".strip()

    message = _ARGUMENT.sub(option, message)
    bare = "|".join(name for name in names if "_" in name)
    return re.sub(rf"{_START}({bare})\b", lambda found: names[found[1]], message)


def _options() -> dict[str, str]:
    """Options of commands that fit a model, and arguments that the schema declares."""
    names: dict[str, str] = {}
    kinds: list[type[FitCommand]] = [FitCommand, *COMMANDS.values()]
    for kind in kinds:
        names |= {option.name: f"--{option.name.replace('_', '-')}" for option in options(kind)}
        names |= {f"{place}_names": f"categories of the {place} in the schema" for place in kind.places}
    return names
