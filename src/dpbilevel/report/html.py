"""The report as one self-contained HTML page: no script, no network access, no other file."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpbilevel.report.card_parts import CAVEATS, NOT_PRIVATE, PRIVATE
from dpbilevel.report.content import Content, content
from dpbilevel.report.elements import (
    bullets,
    epsilon_text,
    folded,
    number,
    paragraph,
    section,
    table,
    table_element,
    terms,
    text,
)
from dpbilevel.report.pictures import (
    calibration_picture,
    shape_pictures,
    spend_picture,
    trajectory_picture,
    values_picture,
)
from dpbilevel.report.review import Review
from dpbilevel.report.stylesheet import STYLESHEET
from dpbilevel.report.summary import summary_rows
from dpbilevel.report.words import (
    declared_rows,
    model_rows,
    model_words,
    ordered_values,
    release_rows,
    reproduction,
    returned_words,
    shape_words,
    spend_words,
)

_TONES = {PRIVATE: "good", CAVEATS: "fair", NOT_PRIVATE: "bad"}
_HEADINGS = {PRIVATE: "Private", CAVEATS: "Private, with caveats", NOT_PRIVATE: "NOT PRIVATE"}
_SHAPES = 12  # small plots that are visible at once
_SHOWN = 20  # coefficients and hyperparameters that are visible at once
_LISTED = 1000  # at most, including the expandable ones; run.json has all


def html_report(review: Review) -> str:
    """The report as one self-contained HTML page. It contains released values and public facts only."""
    report = content(review)
    solution = review.solution
    parts = [
        _banner(report["guarantee"]),
        _head(report),
        _guarantee(report["guarantee"], report["spend"]),
        section("summary", "Summary", terms(summary_rows(report)), _scores(review)),
        _basis(report["guarantee"]),
        section("result", "Outcome", paragraph(report["result"])) if report["result"] else "",
        section("remarks", "Remarks", bullets([f"{remark}." for remark in report["remarks"]]))
        if report["remarks"]
        else "",
        section(
            "spend",
            "Privacy spend",
            paragraph(spend_words(report)),
            spend_picture(solution),
            table(
                "Spend by use of rows and release",
                ["release", "rows", "uses", "sampling", "sensitivity / noise", "noise multiplier", "mu", "share"],
                release_rows(report),
                numeric=(2, 4, 5, 6, 7),
                wide=True,
            ),
        ),
        section(
            "hyperparameters",
            "Hyperparameters",
            paragraph(returned_words(report)),
            trajectory_picture(solution),
            values_picture(solution),
            _hyperparameters(report["hyperparameters"]),
        ),
        section("shapes", "The effect of every column", paragraph(shape_words(report["model"])), _shapes(review)),
        section("model", "Model", paragraph(model_words(report["model"])), _model(report["model"])),
        _plan(report),
        section("facts", "Public facts", terms(list(report["facts"].items())), _schema(report)),
        section("reproduce", "How to reproduce", *_reproduction(report)),
    ]
    body = "\n".join(filter(None, parts))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(report['title'])}: {text(report['guarantee']['label'])}</title>\n"
        f"<style>{STYLESHEET}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _banner(guarantee: Content) -> str:
    if not guarantee["notice"]:
        return ""
    status = guarantee["status"]
    tone, heading = _TONES[status], _HEADINGS[status]
    return f'<div class="banner {tone}"><strong>{text(heading)}</strong> {text(guarantee["notice"])}</div>'


def _head(report: Content) -> str:
    made = [f"dpbilevel {report['version']}", str(report["method"]).partition("(")[0], report["created"]]
    byline = " · ".join(text(part) for part in made if part)
    return f'<header>\n<h1>{text(report["title"])}</h1>\n<p class="byline">{byline}</p>\n</header>'


def _guarantee(guarantee: Content, spend: Sequence[Content]) -> str:
    status = guarantee["status"]
    spent = "epsilon, if the noise were secret" if guarantee["void"] and guarantee["delta"] else "epsilon"
    figures = {spent: epsilon_text(guarantee["epsilon"]), "delta": number(guarantee["delta"])}
    figures |= {"neighbours": guarantee["adjacency"]}
    figures |= {role["use"]: number(role["records"]) for role in spend}
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in figures.items())
    return (
        f'<section class="guarantee {_TONES[status]}" aria-labelledby="guarantee">\n'
        f'<h2 id="guarantee">The guarantee: {text(_HEADINGS[status])}</h2>\n<dl class="figures">{shown}</dl>\n'
        f"<blockquote>{text(guarantee['sentence'])}</blockquote>\n</section>"
    )


def _scores(review: Review) -> str:
    if review.evaluation is None:
        return ""
    scores = review.evaluation
    rows = [row[:4] for row in scores.score_rows()]
    caption = f"Scores on {scores.counted_apart}; intervals cover noise and sampling"
    shown = table(caption, ["metric", "score", "noise", "95% interval"], rows, numeric=(1, 2, 3), wide=True)
    if "calibration" not in scores.values:
        return shown
    header, bins = scores.bin_rows()
    numbers = table("Bins of the calibration curve", header, bins, numeric=range(1, len(header)), wide=True)
    return f"{shown}{calibration_picture(scores)}{folded('The numbers of the bins', numbers)}"


def _basis(guarantee: Content) -> str:
    caveats = guarantee["caveats"]
    clipped = [(entry["what"], entry["bound"]) for entry in guarantee["clipped"]]
    groups = [[f"{entry['rows']} rows", epsilon_text(entry["epsilon"])] for entry in guarantee["groups"]]
    return section(
        "basis",
        "Meaning and assumptions",
        f"<h3>Caveats</h3>{bullets(caveats)}" if caveats else "",
        paragraph(guarantee["meaning"]),
        terms([(entry["term"], entry["meaning"]) for entry in guarantee["terms"]]),
        table("For a person with several rows, at the same delta", ["group", "epsilon"], groups, numeric=(1,)),
        f"<h3>Clipping</h3>{terms(clipped)}" if clipped else "",
        f"<h3>Assumptions</h3>{bullets(guarantee['assumptions'])}" if guarantee["assumptions"] else "",
    )


def _hyperparameters(report: Content) -> str:
    rows = [[name, number(value)] for name, value in ordered_values(report)]

    def made(part: Sequence[Sequence[str]]) -> str:
        return table("Returned values, the largest first", ["name", report["quantity"]], part, numeric=(1,))

    return _with_folded_rest(rows, made)


def _shapes(review: Review) -> str:
    model = review.model
    if model is None or not model.shapes:
        return ""
    pictures = shape_pictures(model)
    rest = pictures[_SHAPES:]
    shown = f'<div class="shapes">{"".join(pictures[:_SHAPES])}</div>'
    return shown + (folded(f"{len(rest):,} more", f'<div class="shapes">{"".join(rest)}</div>') if rest else "")


def _model(model: Content) -> str:
    rows = model_rows(model)
    if not rows:
        return ""
    noisy = ["noise"] if model["noise"] is not None else []
    columns = ["column", *(model["outputs"] if len(model["outputs"]) > 1 else ["coefficient"]), *noisy]
    largest = max((abs(value) for _, values, _ in rows for value in values), default=0.0)

    def made(part: Sequence[tuple[str, list[float], list[float] | None]]) -> str:
        caption = f"Coefficients for {', '.join(model['outputs'])}, the largest first"
        cells = [
            [name, *map(number, values), *([] if noise is None else [_noise(noise)])] for name, values, noise in part
        ]
        if len(model["outputs"]) == 1:
            return _with_bars(caption, columns, cells, [values[0] for _, values, _ in part], largest)
        return table("Coefficients, the largest first", columns, cells, numeric=range(1, len(columns)), wide=True)

    return _with_folded_rest(rows, made)


def _noise(values: Sequence[float]) -> str:
    return "±" + number(max(values), 2)


def _with_bars(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], values: Sequence[float], largest: float
) -> str:
    """A table with a bar beside every number: to the right for positive numbers, to the left for negative ones."""
    heads = f'<th scope="col">{text(header[0])}</th>'
    heads += "".join(f'<th scope="col" class="number">{text(name)}</th>' for name in header[1:]) + "<td></td>"
    lines = []
    for (name, *numbers), value in zip(rows, values, strict=True):
        long = 50 * min(1.0, abs(value) / largest) if largest > 0 else 0.0
        kind, start = (' class="down"', 50 - long) if value < 0 else ("", 50.0)
        bar = f'<span{kind} style="--from: {start:.1f}%; --long: {long:.1f}%"></span>'
        cells = "".join(f'<td class="number">{text(cell)}</td>' for cell in numbers) + f'<td class="size">{bar}</td>'
        lines.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    return table_element(caption, heads, lines)


def _with_folded_rest(rows: Sequence[Any], made: Any) -> str:
    """The first rows of a long table, with the others in a section that readers can expand."""
    if not rows:
        return ""
    rest = rows[_SHOWN:_LISTED]
    left_out = f" ({len(rows) - _LISTED:,} more are in run.json)" if len(rows) > _LISTED else ""
    return made(rows[:_SHOWN]) + (folded(f"{len(rest):,} more{left_out}", made(rest)) if rest else "")


def _plan(report: Content) -> str:
    def entries(plan: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return [[entry["name"], entry["value"], entry["reason"]] for entry in plan]

    header, ratios = ["number", "value", "reason"], report["noise_to_signal"]
    others = [[entry["name"], number(entry["numbers"]), _shown(entry["values"])] for entry in report["other_releases"]]
    return section(
        "plan",
        "The plan",
        table("Planned noise-to-signal ratios: public, known before any record was read", header, entries(ratios)),
        table("Every number of the plan and its reason", header, entries(report["plan"])),
        table("Other released values (run.json has all of them)", ["name", "numbers", "values"], others, numeric=(1,)),
    )


def _shown(values: Sequence[float] | None) -> str:
    return "–" if values is None else ", ".join(map(number, values))


def _schema(report: Content) -> str:
    rows = declared_rows(report["schema"])
    return table("Column declarations, made without looking at the data", ["column", "declared"], rows)


def _reproduction(report: Content) -> list[str]:
    command = f"<pre><code>{text(report['command'])}</code></pre>" if report["command"] else ""
    method = f"<h3>Method and settings</h3><pre><code>{text(report['method'])}</code></pre>"
    return [paragraph(reproduction(report)), command, method]
