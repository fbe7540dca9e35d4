"""The report in Markdown: the content of the page without its pictures, for where text is reviewed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpbilevel.foundation.tables import markdown_table, visible
from dpbilevel.report.card_parts import CAVEATS, NOT_PRIVATE
from dpbilevel.report.content import Content, content
from dpbilevel.report.elements import epsilon_text, number
from dpbilevel.report.review import Review
from dpbilevel.report.words import (
    declared_rows,
    model_rows,
    model_words,
    ordered_values,
    release_rows,
    reproduction,
    returned_words,
    spend_words,
)

_SHOUTS = {NOT_PRIVATE: "NOT PRIVATE.", CAVEATS: "With caveats."}
_MARKS = re.compile(r"[\\`*\[\]<#|~]|^>|(?<![^\W_])_|_(?![^\W_])")  # what Markdown could take for its own
_LISTED = 200  # coefficients and hyperparameters; run.json has all


def markdown_report(review: Review) -> str:
    """The report as Markdown. It contains released values and public facts only."""
    told = content(review)
    guarantee = told["guarantee"]
    made = [f"dpbilevel {told['version']}", str(told["method"]).partition("(")[0], told["created"]]
    roles = [[role["role"], number(role["records"]), epsilon_text(role["epsilon"])] for role in told["spend"]]
    parts = [
        f"# {_text(told['title'])}",
        _text(", ".join(part for part in made if part)),
        f"> **{_SHOUTS[guarantee['status']]}** {_text(guarantee['notice'])}" if guarantee["notice"] else "",
        "## The guarantee",
        f"> {_text(guarantee['sentence'])}",
        *_basis(guarantee),
        _titled("## What became of the run", _text(told["result"])),
        _titled("## Remarks", _bullets(f"{remark}." for remark in told["remarks"])),
        "## What was spent",
        _text(spend_words(told)),
        _table(["release", "role", "uses", "sampling", "sensitivity / noise", "mu", "share"], release_rows(told)),
        _table(["role", "records", "epsilon"], roles),
        "## Hyperparameters",
        _text(returned_words(told)),
        _hyperparameters(told["hyperparameters"]),
        "## Model",
        _text(model_words(told["model"])),
        _model(told["model"]),
        *_plan(told),
        *_facts(told),
        "## How to reproduce",
        _text(reproduction(told)),
        _code(told["command"]),
        "Method and settings:",
        _code(told["method"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _basis(guarantee: Content) -> list[str]:
    groups = [[f"{entry['rows']} rows", epsilon_text(entry["epsilon"])] for entry in guarantee["groups"]]
    return [
        _titled("### Caveats", _bullets(guarantee["caveats"])),
        _text(guarantee["meaning"]),
        _bullets(f"{entry['term']}: {entry['meaning']}" for entry in guarantee["terms"]),
        _titled("For a person with several rows, at the same delta:", _table(["together", "epsilon"], groups)),
        _titled("### What was clipped", _bullets(f"{e['what']}: {e['bound']}" for e in guarantee["clipped"])),
        _titled("### What was assumed", _bullets(guarantee["assumptions"])),
    ]


def _hyperparameters(told: Content) -> str:
    return _long(["name", told["quantity"]], [[name, number(value, 6)] for name, value in ordered_values(told)])


def _model(model: Content) -> str:
    rows = [[name, *(number(value, 6) for value in values)] for name, values in model_rows(model)]
    return _long(["column", *model["outputs"]], rows) if rows else ""


def _plan(told: Content) -> list[str]:
    def entries(plan: Sequence[Mapping[str, Any]]) -> str:
        return _table(["number", "value", "why"], [[entry["name"], entry["value"], entry["reason"]] for entry in plan])

    others = [
        [entry["name"], number(entry["numbers"]), ", ".join(map(number, entry["values"] or ()))]
        for entry in told["other_releases"]
    ]
    return [
        _titled("## Planned noise to signal", entries(told["noise_to_signal"])),
        _titled("## Every number of the plan, with the reason for it", entries(told["plan"])),
        _titled("## Released besides x and y", _table(["name", "numbers", "values"], others)),
    ]


def _facts(told: Content) -> list[str]:
    return [
        _titled("## Public facts", _bullets(f"{name}: {fact}" for name, fact in told["facts"].items())),
        _titled("## Declared about the columns", _table(["column", "declared"], declared_rows(told["schema"]))),
    ]


def _titled(title: str, inside: str) -> str:
    return f"{title}\n\n{inside}" if inside else ""


def _long(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    left_out = f"\n\n{len(rows) - _LISTED:,} more are in run.json." if len(rows) > _LISTED else ""
    return _table(header, rows[:_LISTED]) + left_out


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    escaped = [[_cell(cell) for cell in row] for row in rows]
    return markdown_table([_cell(name) for name in header], escaped) if rows else ""


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _text(value: Any) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(visible(str(value)).split())
    return _MARKS.sub(r"\\\g<0>", line)


def _cell(value: Any) -> str:
    """The same for a cell; bars are escaped by the table."""
    return _text(value).replace("\\|", "|")


def _code(value: Any) -> str:
    """A block of code, with a fence that is longer than any in it."""
    if not value:
        return ""
    inside = visible(str(value))
    fence = "```"
    while fence in inside:
        fence += "`"
    return f"{fence}text\n{inside}\n{fence}"
