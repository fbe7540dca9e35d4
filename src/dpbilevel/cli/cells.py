"""Cells of a file, read as text, as numbers, dates or words. Errors contain no cell."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbilevel.encoding.columns import MISSING
from dpbilevel.encoding.declarations import OTHER
from dpbilevel.errors import InvalidRecords

# Numbers with either decimal mark.
_NUMBERS = {mark: rf"^[+-]?(\d+[{mark}]?\d*|[{mark}]\d+)([eE][+-]?\d+)?$" for mark in ".,"}
_DATES = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?$"
_FLOATS = r"^[+-]?\d+[.,]0*$"  # integers, as programs write them that read a column with missing cells
_OTHER_MARK = {".": "pass --decimal , for 2,5", ",": "leave --decimal out for 2.5"}
# Words allowed in a column of numbers: missing and infinite values.
_NO_NUMBERS = sorted(MISSING | {f"{sign}{word}" for sign in ("", "+", "-") for word in ("inf", "infinity")})


def numbers(name: str, cells: Any, decimal: str = ".") -> npt.NDArray[np.float64]:
    """Cells of a column as numbers; NaN for missing ones. Other text is refused.

    >>> import pyarrow
    >>> numbers("age", pyarrow.array(["1", "2.5e3", "", "NA", None, "-inf"])).tolist()
    [1.0, 2500.0, nan, nan, nan, nan]
    >>> numbers("age", pyarrow.array(["2,5"]), decimal=",").tolist()
    [2.5]
    """
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_string(cells.type):
        numeric = compute.fill_null(compute.match_substring_regex(cells, _NUMBERS[decimal]), False)
        others = compute.drop_null(cells.filter(compute.invert(numeric)))
        known = pyarrow.array(_NO_NUMBERS, pyarrow.string())
        if not compute.all(compute.is_in(compute.utf8_lower(others), known), min_count=0).as_py():
            raise InvalidRecords(
                f"column {name!r}: the schema declares a range, but a cell is not a number. Numbers are written like "
                f"2{decimal}5 ({_OTHER_MARK[decimal]}); empty cells and NA are missing values; other text is refused: "
                "convert dates to numbers, and declare categories for words"
            )
        cells = compute.replace_substring(compute.if_else(numeric, cells, None), decimal, ".")
    return np.asarray(compute.cast(cells, pyarrow.float64()).to_numpy(zero_copy_only=False), np.float64)


def dates(name: str, cells: Any) -> npt.NDArray[np.datetime64]:
    """Cells of a column as dates; NaT for missing ones. Other text is refused.

    >>> import pyarrow
    >>> dates("when", pyarrow.array(["2026-01-31", "2026-01-31 18:30", "NA", None])).tolist()[1:]
    [datetime.datetime(2026, 1, 31, 18, 30), None, None]
    """
    import pyarrow
    import pyarrow.compute as compute

    texts = compute.cast(cells, pyarrow.string())
    written = compute.fill_null(compute.match_substring_regex(texts, _DATES), False)
    others = compute.drop_null(texts.filter(compute.invert(written)))
    known = compute.all(compute.is_in(compute.utf8_lower(others), pyarrow.array(sorted(MISSING))), min_count=0).as_py()
    found = None
    if known:
        with contextlib.suppress(pyarrow.ArrowInvalid):  # the 30th of February; its message quotes the cell
            seconds = compute.utf8_slice_codeunits(compute.if_else(written, texts, None), 0, 19)
            found = compute.cast(seconds, pyarrow.timestamp("s"))
    if found is None:
        raise InvalidRecords(
            f"column {name!r}: the schema declares a date, but a cell is none. Dates are written like 2026-01-31 or "
            "2026-01-31 18:30, without a time zone; empty cells and NA are missing values; other text is refused"
        )
    return np.asarray(found.to_numpy(zero_copy_only=False), "datetime64[s]")


def words(cells: Any, values: Sequence[str] = ()) -> npt.NDArray[np.object_]:
    """Cells as strings, in the spelling of ``values``; empty for missing cells."""
    import pyarrow
    import pyarrow.compute as compute

    cells = compute.cast(cells, pyarrow.string())  # for numbers in a Parquet file that the schema lists as words
    for spelling, value in _spellings(values).items():
        cells = compute.if_else(compute.fill_null(compute.equal(cells, spelling), False), value, cells)
    return np.asarray(compute.fill_null(cells, "").to_numpy(zero_copy_only=False), dtype=object)


def unit_ids(what: str, cells: Any) -> npt.NDArray[np.object_]:
    """Ids as strings; ``what`` is what errors call their cells.

    Missing ones are refused: they would all be rows of one unit. So are numbers that are no integers: one id would be
    17 in one file and 17.0 in another, two units of one person, which may have two roles.

    >>> import pyarrow
    >>> unit_ids("column 'person'", pyarrow.array(["17", "b-4"])).tolist()
    ['17', 'b-4']
    """
    import pyarrow
    import pyarrow.compute as compute
    from pyarrow import types

    texts = compute.cast(cells, pyarrow.string())
    known = compute.is_in(compute.utf8_lower(texts), pyarrow.array(sorted(MISSING)))
    if compute.any(compute.or_(compute.is_null(texts), known)).as_py():
        raise InvalidRecords(
            f"{what}: holds ids, none of them missing; empty cells and NA are missing values. Drop rows "
            "without an id, or give each of them an id of its own"
        )
    is_typed = types.is_floating(cells.type) or types.is_decimal(cells.type) or types.is_boolean(cells.type)
    if is_typed or compute.any(compute.match_substring_regex(texts, _FLOATS)).as_py():
        raise InvalidRecords(
            f"{what}: holds ids, which must be integers or text; these are floats or booleans, "
            "or look like 17.0. Write them as integers, in all files alike"
        )
    return words(texts)


def listed_words(cells: Any, values: Sequence[str], *, other: bool) -> npt.NDArray[np.object_] | None:
    """Cells as listed values, or None if a cell is not listed.

    With ``other``, unlisted cells become "other" if that is listed. Equal cells share one string.

    >>> import pyarrow
    >>> listed_words(pyarrow.array(["F", None]), ["F", "other"], other=True).tolist()
    ['F', 'other']
    >>> listed_words(pyarrow.array([True, False]), ["False", "True"], other=False).tolist()
    ['True', 'False']
    """
    import pyarrow
    import pyarrow.compute as compute

    spellings = _spellings(values)
    known = [*values, *spellings]
    codes = compute.index_in(compute.cast(cells, pyarrow.string()), pyarrow.array(known, pyarrow.string()))
    if codes.null_count:
        if not other or OTHER not in values:
            return None
        codes = compute.fill_null(codes, known.index(OTHER))
    return np.array([*values, *spellings.values()], dtype=object)[codes.to_numpy(zero_copy_only=False)]


def _spellings(values: Sequence[str]) -> dict[str, str]:
    """Alternative spellings of listed booleans: Parquet and TOML have true, Python writes True."""
    truths = [value for value in values if value.lower() in ("true", "false")]
    spellings = {style(value): value for value in truths for style in (str.lower, str.capitalize, str.upper)}
    return {spelling: value for spelling, value in spellings.items() if spelling not in values}
