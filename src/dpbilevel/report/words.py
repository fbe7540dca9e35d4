"""Sentences and table rows that the HTML and Markdown reports share."""

import math
from collections.abc import Mapping
from typing import Any

from dpbilevel.foundation.tables import short
from dpbilevel.report.content import Content
from dpbilevel.report.elements import epsilon_text, number


def spend_words(report: Content) -> str:
    """Explain how the spend of releases adds up to the spend of each role."""
    guarantee, spend = report["guarantee"], report["spend"]
    if math.isinf(guarantee["epsilon"]):
        return "Epsilon is infinite, so the releases share no budget. They are listed for completeness."
    if not spend:
        return "No record was read, so nothing was spent."
    parts = [f"{epsilon_text(role['epsilon'])} for {role['use']}" for role in spend]
    total = f"Epsilon: {', '.join(parts)}."
    if len(spend) > 1:
        total += " No record has two of these uses, so the total is the largest of these."
    if guarantee["noise"] == "exact":
        return (
            f"{total} Noise is exact, and every use of a release takes all records: rho of zCDP is the sum over "
            "releases of uses times (sensitivity / noise)²/2. Shares are fractions of rho. Epsilon is the minimum over "
            "orders a > 1 of a rho + ln(1 - 1/a) - ln(a delta)/(a - 1)."
        )
    if guarantee["mu"] is None:
        return f"{total} Shares are proportional to the cost of each release alone."
    return (
        f"{total} Every use of a release is a Gaussian mechanism on all records: mu² is the sum over releases of uses "
        f"times (sensitivity / noise)², here mu = {number(guarantee['mu'])}. Shares are fractions of mu², and "
        "delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)."
    )


def release_rows(report: Content) -> list[list[str]]:
    """One row per charge: release, rows, uses, sampling, sensitivity over noise, noise multiplier, mu and share."""
    return [
        [
            release["release"],
            role["use"],
            number(release["uses"]),
            release["sampling"].removesuffix("()"),
            release["declared"] or number(release["sensitivity_over_noise"]),
            number(release["noise_multiplier"]),
            number(release["mu"]),
            f"{release['share']:.1%}" if release["share"] else "–",
        ]
        for role in report["spend"]
        for release in role["releases"]
    ]


def returned_words(report: Content) -> str:
    """Describe x and the iterate that was returned."""
    values = report["hyperparameters"]
    count = len(values["values"])
    what = f"{count:,} released number{'' if count == 1 else 's'} ({values['quantity']})"
    if values["logarithmic"]:
        what += ", shown as exp(x): x holds logarithms"
    chosen = f" That is the iterate after round {values['chosen_round']:,}." if values["chosen_round"] else ""
    returned = f" Returned: {values['returned']}.{chosen}" if values["returned"] else chosen
    none = "" if values["rounds"] else " The method releases no trajectory of x."
    return f"{what}.{returned}{none}"


def ordered_values(report: Content) -> list[tuple[str, float]]:
    """Returned hyperparameters in descending order; NaN comes last."""
    pairs = [(entry["name"], entry["value"]) for entry in report["values"]]
    return sorted(pairs, key=lambda pair: (math.isnan(pair[1]), -pair[1]))


def model_words(model: Content) -> str:
    """Describe the model."""
    if model["kind"] == "linear":
        pairs = zip(model["outputs"], model["intercepts"], strict=True)
        intercepts = ", ".join(f"{name}: {number(value)}" for name, value in pairs)
        scale = "log-odds of " if predicts_classes(model) else ""
        known = (
            ""
            if model["noise"] is None
            else " Noise is one standard deviation by the noise of training; sampling error is not part of it. Where "
            "columns sum to a constant, such as those of a curve, how they and the intercept share the level is not "
            "either: read the effects of columns instead."
        )
        return (
            f"{model['estimator']} for {model['target']} with {len(model['columns']):,} columns, all of it released. "
            f"Coefficients refer to encoded columns and predict {scale}{', '.join(model['outputs'])}. "
            f"Intercept: {intercepts}.{known}"
        )
    shapes = "; ".join(
        f"{name}: {' × '.join(map(str, shape))}" if shape else f"{name}: one number"
        for name, shape in model["shapes"].items()
    )
    return (
        f"{model['count']:,} released number{'' if model['count'] == 1 else 's'} ({shapes}), trained at the returned x."
    )


def predicts_classes(model: Content) -> bool:
    """Whether scores are log-odds."""
    return "Classifier" in model["estimator"] or "Logistic" in model["estimator"]


def shape_words(model: Content) -> str:
    """Describe the effects of columns; empty if the model has none."""
    if not model.get("effects"):
        return ""
    unit = "log-odds" if predicts_classes(model) else f"units of {model['target']}"
    known = any(shape["error"] is not None for shape in model["effects"])
    bands = "Bands are two standard deviations of the noise of training." if known else "Their noise is not known."
    return (
        f"What each column adds to the score, in {unit}, minus its mean over the declared points. {bands} Sampling "
        "error is not part of it. Crosses and text are not shown."
    )


def model_rows(model: Content) -> list[tuple[str, list[float], list[float] | None]]:
    """Columns with coefficients, one per output, and their noise, in descending order of the largest coefficient."""
    if model["kind"] != "linear":
        return []
    noise = model["noise"]
    noises = [None] * len(model["columns"]) if noise is None else list(map(list, zip(*noise, strict=True)))
    columns = zip(model["columns"], zip(*model["coefficients"], strict=True), noises, strict=True)
    rows = [(name, list(values), own) for name, values, own in columns]
    return sorted(rows, key=lambda row: -max(map(abs, row[1]), default=0.0))


def declared_rows(schema: Mapping[str, Any] | None) -> list[list[str]]:
    """One row per declaration, in the given order: name and declared value.

    >>> declared_rows({"age": {"range": [17, 90]}, "sex": {"categories": ["F", "M"]}})
    [['age', 'range: 17 to 90'], ['sex', 'categories: F, M']]
    >>> declared_rows({"crosses": [["age", "sex"]]})
    [['crosses', 'age x sex']]
    """
    rows: list[list[str]] = []

    def walk(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            rows.append([name, _declared("", value)])
        elif not name or any(isinstance(item, Mapping) for item in value.values()):
            for key, item in value.items():
                walk(f"{name}.{key}" if name else str(key), item)
        else:
            rows.append([name, "; ".join(_declared(str(key), item) for key, item in value.items())])

    for key, item in (schema or {}).items():
        walk("" if key == "columns" and isinstance(item, Mapping) else str(key), item)
    return rows


def _declared(key: str, value: Any) -> str:
    if isinstance(value, list):
        joint = " to " if key in ("range", "bounds") and len(value) == 2 else ", "
        shown = joint.join(" x ".join(map(short, item)) if isinstance(item, list) else short(item) for item in value)
    else:
        shown = short(value)
    return f"{key}: {shown}" if key else shown


def reproduction(report: Content) -> str:
    """State which values another run reproduces."""
    guarantee = report["guarantee"]
    made = f"Made with dpbilevel {report['version']}."
    if math.isinf(guarantee["epsilon"]):
        return f"{made} No noise was added: the same data and settings give the same values."
    if guarantee["void"]:
        return f"{made} The seed is fixed: anyone with the same data, settings and seed gets the same values."
    return (
        f"{made} Run the same method with the same settings on the same data. Noise is secret and independent in each "
        "run, so values differ between runs by the noise stated in the plan. The guarantee and every number of the "
        "plan are the same. Each run spends its own epsilon."
    )
