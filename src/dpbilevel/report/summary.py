"""The first page of a report: the questions of a privacy review, with their answers. All details come after it."""

import math

from dpbilevel.report.content import Content
from dpbilevel.report.elements import epsilon_text, number

LEDGER = "ledger"  # the public fact that names the entry of a ledger
_NO_LEDGER = "none is recorded with this run, which accounts for itself alone; other runs on the same rows add to it"
_ONE_ROW = "the content of one row, not of a person with several"


def summary_rows(report: Content) -> list[tuple[str, str]]:
    """Pairs of a question and its answer."""
    rows = [
        ("What is protected", _protected(report)),
        ("Which rows were read", _rows_read(report)),
        ("Which ledger paid", report["facts"].get(LEDGER, _NO_LEDGER)),
        ("What was released", _released(report)),
        ("What set the clip norms", _clips(report)),
        ("At the edge of its range", "; ".join(_at_edges(report)) or "nothing"),
        ("What the guarantee leaves out", _left_out(report)),
    ]
    return [(question, answer) for question, answer in rows if answer]


def _protected(report: Content) -> str:
    guarantee = report["guarantee"]
    if guarantee["status"] == "not private":
        return "nothing: this run is not private"
    content = "all rows of one unit" if _has_units(report) else _ONE_ROW
    return (
        f"{content}: epsilon {epsilon_text(guarantee['epsilon'])} at delta "
        f"{number(guarantee['delta'])} ({guarantee['adjacency']})"
    )


def _rows_read(report: Content) -> str:
    parts = [f"{number(role['records'])} {role['use']}" for role in report["spend"]]
    disjoint = "; each of them has one of these uses" if len(parts) > 1 else ""
    return f"{', '.join(parts)} (their numbers are public){disjoint}" if parts else "none"


def _has_units(report: Content) -> bool:
    """Whether a record is all rows of one person."""
    return bool(report["guarantee"]["unit"].startswith("one unit"))


def _released(report: Content) -> str:
    values, model = report["hyperparameters"], report["model"]
    count = len(values["values"])
    trajectory = "" if report["trajectory"] is None else ", and all values during tuning"
    parts = [f"{count:,} number{'' if count == 1 else 's'} ({values['quantity']}){trajectory}"]
    if model["kind"] == "linear":
        parts.append(f"a linear model with {len(model['columns']):,} columns")
    else:
        parts.append(f"a model of {model['count']:,} numbers")
    if report["evaluation"] is not None:
        held = next((role["use"] for role in report["spend"] if role["role"] == "heldout"), "held-out rows")
        parts.append(f"scores on {report['evaluation']['records']:,} {held}")
    return "; ".join(parts)


def _clips(report: Content) -> str:
    bounds = [entry["bound"] for entry in report["guarantee"]["clipped"]]
    if not bounds:
        return ""
    if any("adapts" in bound or "median" in bound for bound in bounds):
        return (
            "declared numbers at the start; some then follow fractions of rows that the same noisy releases contain, "
            "so that no other release paid for them"
        )
    return "declared numbers, chosen without looking at the rows"


def _at_edges(report: Content) -> list[str]:
    return [remark for remark in report["remarks"] if remark.startswith("At ")]


def _left_out(report: Content) -> str:
    guarantee = report["guarantee"]
    if guarantee["status"] == "not private" or math.isinf(guarantee["epsilon"]):
        return ""
    caveats = guarantee["caveats"]
    return "; ".join(caveats) if caveats else "no caveats; the assumptions are listed below"
