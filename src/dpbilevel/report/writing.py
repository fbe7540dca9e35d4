"""Write a report as HTML, Markdown or JSON; the file name's ending selects the format."""

from collections.abc import Callable
from pathlib import Path

from dpbilevel.errors import InvalidArgument
from dpbilevel.foundation.files import write_atomically
from dpbilevel.report.html import html_report
from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import run_text
from dpbilevel.solution.solution import Solution

_KINDS: dict[str, Callable[[Review], str]] = {".html": html_report, ".md": markdown_report, ".json": run_text}


def write_report(made: Solution | Review, path: str | Path) -> Path:
    """Write the report of a solution or a review, and return its path.

    Args:
        made: the solution or review to report.
        path: a path that ends in .html, .md or .json; the pictures in HTML need the extra "plot".
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _KINDS:
        raise InvalidArgument(f"path={str(path)!r}: must end in .html, .md or .json; the ending selects the format")
    review = made if isinstance(made, Review) else Review(solution=made)
    return write_atomically(path, _KINDS[suffix](review))
