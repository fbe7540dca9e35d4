"""The report in Markdown: the content of the HTML page without its pictures, for review as text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpbilevel.foundation.tables import markdown_table, visible
from dpbilevel.report.card_parts import CAVEATS, NOT_PRIVATE
from dpbilevel.report.content import Content, content
from dpbilevel.report.elements import epsilon_text, number
from dpbilevel.report.review import Review
from dpbilevel.report.summary import summary_rows
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

_HEADINGS = {NOT_PRIVATE: "NOT PRIVATE.", CAVEATS: "With caveats."}
_MARKS = re.compile(r"[\\`*\[\]<#|~]|^>|(?<![^\W_])_|_(?![^\W_])")  # characters that Markdown would interpret
_LISTED = 200  # coefficients and hyperparameters; run.json has all


def markdown_report(review: Review) -> str:
    """The report as Markdown. It contains released values and public facts only."""
    report = content(review)
    guarantee = report["guarantee"]
    made = [f"dpbilevel {report['version']}", str(report["method"]).partition("(")[0], report["created"]]
    roles = [[role["use"], number(role["records"]), epsilon_text(role["epsilon"])] for role in report["spend"]]
    parts = [
        f"# {_text(report['title'])}",
        _text(", ".join(part for part in made if part)),
        f"> **{_HEADINGS[guarantee['status']]}** {_text(guarantee['notice'])}" if guarantee["notice"] else "",
        "## The guarantee",
        f"> {_text(guarantee['sentence'])}",
        "## Summary",
        _bullets(f"{question}: {answer}" for question, answer in summary_rows(report)),
        _scores(review),
        _titled("## Meaning and assumptions", _text(guarantee["meaning"])),
        *_basis(guarantee),
        _titled("## Outcome", _text(report["result"])),
        _titled("## Remarks", _bullets(f"{remark}." for remark in report["remarks"])),
        "## Privacy spend",
        _text(spend_words(report)),
        _table(
            ["release", "rows", "uses", "sampling", "sensitivity / noise", "noise multiplier", "mu", "share"],
            release_rows(report),
        ),
        _table(["rows", "number", "epsilon"], roles),
        "## Hyperparameters",
        _text(returned_words(report)),
        _hyperparameters(report["hyperparameters"]),
        "## Model",
        _text(model_words(report["model"])),
        _model(report["model"]),
        *_plan(report),
        *_facts(report),
        "## How to reproduce",
        _text(reproduction(report)),
        _code(report["command"]),
        "Method and settings:",
        _code(report["method"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _scores(review: Review) -> str:
    if review.evaluation is None:
        return ""
    rows = review.evaluation.score_rows()
    title = f"Scores on {review.evaluation.counted_apart}; intervals cover noise and sampling:"
    scores = _titled(title, _table(["metric", "score", "noise", "95% interval", "what it is"], rows))
    if "calibration" not in review.evaluation.values:
        return scores
    bins = _titled(
        "Calibration curve, with an interval for the share of positives:", _table(*review.evaluation.bin_rows())
    )
    return "\n\n".join(filter(None, [scores, bins]))


def _basis(guarantee: Content) -> list[str]:
    groups = [[f"{entry['rows']} rows", epsilon_text(entry["epsilon"])] for entry in guarantee["groups"]]
    return [
        _titled("### Caveats", _bullets(guarantee["caveats"])),
        _bullets(f"{entry['term']}: {entry['meaning']}" for entry in guarantee["terms"]),
        _titled("For a person with several rows, at the same delta:", _table(["group", "epsilon"], groups)),
        _titled("### Clipping", _bullets(f"{e['what']}: {e['bound']}" for e in guarantee["clipped"])),
        _titled("### Assumptions", _bullets(guarantee["assumptions"])),
    ]


def _hyperparameters(report: Content) -> str:
    return _long(["name", report["quantity"]], [[name, number(value, 6)] for name, value in ordered_values(report)])


def _model(model: Content) -> str:
    rows = [
        [name, *(number(value, 6) for value in values), *([] if noise is None else [number(max(noise), 2)])]
        for name, values, noise in model_rows(model)
    ]
    return (
        _long(["column", *model["outputs"], *([] if model.get("noise") is None else ["noise"])], rows) if rows else ""
    )


def _plan(report: Content) -> list[str]:
    def entries(plan: Sequence[Mapping[str, Any]]) -> str:
        return _table(
            ["number", "value", "reason"], [[entry["name"], entry["value"], entry["reason"]] for entry in plan]
        )

    others = [
        [entry["name"], number(entry["numbers"]), ", ".join(map(number, entry["values"] or ()))]
        for entry in report["other_releases"]
    ]
    return [
        _titled("## Planned noise-to-signal ratios", entries(report["noise_to_signal"])),
        _titled("## Every number of the plan and its reason", entries(report["plan"])),
        _titled("## Other released values", _table(["name", "numbers", "values"], others)),
    ]


def _facts(report: Content) -> list[str]:
    return [
        _titled("## Public facts", _bullets(f"{name}: {fact}" for name, fact in report["facts"].items())),
        _titled("## Column declarations", _table(["column", "declared"], declared_rows(report["schema"]))),
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
    """Escape text so that Markdown shows it unchanged, on one line."""
    line = " ".join(visible(str(value)).split())
    return _MARKS.sub(r"\\\g<0>", line)


def _cell(value: Any) -> str:
    """Escape text for a table cell; the table escapes vertical bars."""
    return _text(value).replace("\\|", "|")


def _code(value: Any) -> str:
    """A code block whose fence is longer than any fence inside it."""
    if not value:
        return ""
    inside = visible(str(value))
    fence = "```"
    while fence in inside:
        fence += "`"
    return f"{fence}text\n{inside}\n{fence}"
