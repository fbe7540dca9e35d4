"""Output of commands: tables for people, JSON for programs, one line per error or warning.

Results go to stdout; warnings, progress and errors go to stderr.
"""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbilevel.foundation.tables import text_table


@dataclass(frozen=True)
class Console:
    """Prints the output of a command.

    Args:
        as_json: print one JSON object on stdout instead of text.
        quiet: print no text on stdout; warnings and errors are still printed.
    """

    as_json: bool = False
    quiet: bool = False

    def print(self, text: str) -> None:
        """Print a line of text."""
        if not (self.as_json or self.quiet):
            print(text, flush=True)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table: formatted on a terminal, as plain text otherwise."""
        if self.as_json or self.quiet:
            return
        if not sys.stdout.isatty():
            print(f"\n{title}\n{text_table(header, rows)}", flush=True)
            return
        from rich.console import Console as Terminal
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(*map(escape, header), title=escape(title), title_justify="left")
        for row in rows:
            drawn.add_row(*map(escape, row))
        Terminal().print("", drawn)

    def result(self, content: Mapping[str, Any]) -> None:
        """Print the result as JSON, if asked for."""
        if self.as_json:
            print(json.dumps(content, indent=1, allow_nan=False), flush=True)


def show_warnings_as_lines() -> None:
    """Show warnings of the library as one line each, without the file and line of the code that raised them."""
    from dpbilevel.cli.wording import for_command_line
    from dpbilevel.errors import NotPrivateWarning, PrivacyLeakWarning, UtilityWarning

    ours = (NotPrivateWarning, PrivacyLeakWarning, UtilityWarning)
    shown = set[str]()

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        # Warnings of other libraries may quote cells.
        text = for_command_line(str(message))
        # The command, its estimator and `solve` may all warn about the same option: the first warning is enough.
        topic = text.split()[0].rstrip(":") if text.startswith("--") else text
        if issubclass(category, ours) and topic not in shown:
            shown.add(topic)
            print(f"warning: {text}", file=sys.stderr, flush=True)

    warnings.showwarning = show
    for category in ours:
        warnings.simplefilter("always", category)
