"""The report as one page that needs nothing else: no script, no network, no other file."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpbilevel.report.card_parts import CAVEATS, NOT_PRIVATE, PRIVATE
from dpbilevel.report.content import Content, content
from dpbilevel.report.elements import (
    assembled,
    bullets,
    epsilon_text,
    folded,
    number,
    paragraph,
    section,
    table,
    terms,
    text,
)
from dpbilevel.report.pictures import course_picture, spend_picture, values_picture
from dpbilevel.report.review import Review
from dpbilevel.report.stylesheet import STYLESHEET
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

_TONES = {PRIVATE: "good", CAVEATS: "fair", NOT_PRIVATE: "bad"}
_SHOUTS = {PRIVATE: "Private", CAVEATS: "Private, with caveats", NOT_PRIVATE: "NOT PRIVATE"}
_SHOWN = 20  # coefficients and hyperparameters before the fold
_LISTED = 1000  # at most, folded ones included; run.json has all


def html_report(review: Review) -> str:
    """The report as one self-contained HTML page. It contains released values and public facts only."""
    told = content(review)
    solution = review.solution
    parts = [
        _banner(told["guarantee"]),
        _head(told),
        _guarantee(told["guarantee"], told["spend"]),
        _basis(told["guarantee"]),
        section("result", "What became of the run", paragraph(told["result"])) if told["result"] else "",
        section("remarks", "Remarks", bullets([f"{remark}." for remark in told["remarks"]])) if told["remarks"] else "",
        section(
            "spend",
            "What was spent",
            paragraph(spend_words(told)),
            spend_picture(solution),
            table(
                "Spend by role and release",
                ["release", "role", "uses", "sampling", "sensitivity / noise", "mu", "share"],
                release_rows(told),
                numeric=(2, 4, 5, 6),
                wide=True,
            ),
        ),
        section(
            "hyperparameters",
            "Hyperparameters",
            paragraph(returned_words(told)),
            course_picture(solution),
            values_picture(solution),
            _hyperparameters(told["hyperparameters"]),
        ),
        section("model", "Model", paragraph(model_words(told["model"])), _model(told["model"])),
        _plan(told),
        section("facts", "Public facts", terms(list(told["facts"].items())), _schema(told)),
        section("reproduce", "How to reproduce", *_reproduction(told)),
    ]
    body = "\n".join(filter(None, parts))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(told['title'])}: {text(told['guarantee']['label'])}</title>\n"
        f"<style>{STYLESHEET}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _banner(guarantee: Content) -> str:
    if not guarantee["notice"]:
        return ""
    status = guarantee["status"]
    tone, shout = _TONES[status], _SHOUTS[status]
    return f'<div class="banner {tone}"><strong>{text(shout)}</strong> {text(guarantee["notice"])}</div>'


def _head(told: Content) -> str:
    made = [f"dpbilevel {told['version']}", str(told["method"]).partition("(")[0], told["created"]]
    byline = " · ".join(text(part) for part in made if part)
    return f'<header>\n<h1>{text(told["title"])}</h1>\n<p class="byline">{byline}</p>\n</header>'


def _guarantee(guarantee: Content, spend: Sequence[Content]) -> str:
    status = guarantee["status"]
    spent = "epsilon, were the noise secret" if guarantee["void"] and guarantee["delta"] else "epsilon"
    figures = {spent: epsilon_text(guarantee["epsilon"]), "delta": number(guarantee["delta"])}
    figures |= {"neighbours": guarantee["adjacency"]}
    figures |= {f"{role['role']} records": number(role["records"]) for role in spend}
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in figures.items())
    return (
        f'<section class="guarantee {_TONES[status]}" aria-labelledby="guarantee">\n'
        f'<h2 id="guarantee">The guarantee: {text(_SHOUTS[status])}</h2>\n<dl class="figures">{shown}</dl>\n'
        f"<blockquote>{text(guarantee['sentence'])}</blockquote>\n</section>"
    )


def _basis(guarantee: Content) -> str:
    caveats = guarantee["caveats"]
    clipped = [(entry["what"], entry["bound"]) for entry in guarantee["clipped"]]
    groups = [[f"{entry['rows']} rows", epsilon_text(entry["epsilon"])] for entry in guarantee["groups"]]
    return section(
        "basis",
        "What it means, and what it rests on",
        f"<h3>Caveats</h3>{bullets(caveats)}" if caveats else "",
        paragraph(guarantee["meaning"]),
        terms([(entry["term"], entry["meaning"]) for entry in guarantee["terms"]]),
        table("For a person with several rows, at the same delta", ["together", "epsilon"], groups, numeric=(1,)),
        f"<h3>What was clipped</h3>{terms(clipped)}" if clipped else "",
        f"<h3>What was assumed</h3>{bullets(guarantee['assumptions'])}" if guarantee["assumptions"] else "",
    )


def _hyperparameters(told: Content) -> str:
    rows = [[name, number(value)] for name, value in ordered_values(told)]

    def made(part: Sequence[Sequence[str]]) -> str:
        return table("Returned values, the largest first", ["name", told["quantity"]], part, numeric=(1,))

    return _cut(rows, made)


def _model(model: Content) -> str:
    rows = model_rows(model)
    if not rows:
        return ""
    columns = ["column", *(model["outputs"] if len(model["outputs"]) > 1 else ["coefficient"])]
    largest = max((abs(value) for _, values in rows for value in values), default=0.0)

    def made(part: Sequence[tuple[str, list[float]]]) -> str:
        caption = f"Coefficients for {', '.join(model['outputs'])}, the largest first"
        if len(model["outputs"]) == 1:
            return _with_bars(caption, columns, [(name, values[0]) for name, values in part], largest)
        cells = [[name, *map(number, values)] for name, values in part]
        return table("Coefficients, the largest first", columns, cells, numeric=range(1, len(columns)), wide=True)

    return _cut(rows, made)


def _with_bars(caption: str, header: Sequence[str], rows: Sequence[tuple[str, float]], largest: float) -> str:
    """A table with a bar beside every number, to the right of the middle where it is positive."""
    heads = f'<th scope="col">{text(header[0])}</th><th scope="col" class="number">{text(header[1])}</th><td></td>'
    lines = []
    for name, value in rows:
        long = 50 * min(1.0, abs(value) / largest) if largest > 0 else 0.0
        kind, start = (' class="down"', 50 - long) if value < 0 else ("", 50.0)
        bar = f'<span{kind} style="--from: {start:.1f}%; --long: {long:.1f}%"></span>'
        cells = f'<td class="number">{text(number(value))}</td><td class="size">{bar}</td>'
        lines.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    return assembled(caption, heads, lines)


def _cut(rows: Sequence[Any], made: Any) -> str:
    """The first rows of a long table, the others folded away."""
    if not rows:
        return ""
    rest = rows[_SHOWN:_LISTED]
    left_out = f" ({len(rows) - _LISTED:,} more are in run.json)" if len(rows) > _LISTED else ""
    return made(rows[:_SHOWN]) + (folded(f"{len(rest):,} more{left_out}", made(rest)) if rest else "")


def _plan(told: Content) -> str:
    def entries(plan: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return [[entry["name"], entry["value"], entry["reason"]] for entry in plan]

    header, loud = ["number", "value", "why"], told["noise_to_signal"]
    others = [[entry["name"], number(entry["numbers"]), _shown(entry["values"])] for entry in told["other_releases"]]
    return section(
        "plan",
        "The plan",
        table("Planned noise to signal: public, known before any record was read", header, entries(loud)),
        table("Every number of the plan, with the reason for it", header, entries(told["plan"])),
        table("Released besides x and y, all of it in run.json", ["name", "numbers", "values"], others, numeric=(1,)),
    )


def _shown(values: Sequence[float] | None) -> str:
    return "–" if values is None else ", ".join(map(number, values))


def _schema(told: Content) -> str:
    rows = declared_rows(told["schema"])
    return table("Declared about the columns, without looking at the data", ["column", "declared"], rows)


def _reproduction(told: Content) -> list[str]:
    command = f"<pre><code>{text(told['command'])}</code></pre>" if told["command"] else ""
    method = f"<h3>Method and settings</h3><pre><code>{text(told['method'])}</code></pre>"
    return [paragraph(reproduction(told)), command, method]
