"""The page of `side_by_side`: estimators beside scikit-learn, diffprivlib and DP-EBM."""

import statistics
from typing import Any

from rates import ROOT
from utility_results import estimated, read_results

from dpbilevel.foundation.tables import markdown_table

DIGITS = {"adult": 4, "california": 3}
PAGE = """# Estimators compared with scikit-learn, diffprivlib and DP-EBM

Every model has the same declared facts: ranges, scales and categories of columns, for California also the cross of
latitude and longitude and the range of targets. Linear models have the columns that `BoundedEncoder` makes of them
([curves](../encoder.md#feature-maps-curves-dates-text-crosses)). diffprivlib is run on plain columns too, because its
noise grows with the number of columns, and is shown with the better of both. DP-EBM of `interpret` bins columns by
itself, within the declared ranges.

Our settings are defaults, with δ = {delta:g}, and were not chosen by looking at these tables. **The peers are shown at
their best setting by test rows**, of {penalties} values of C (diffprivlib; its regression has no setting) and of
{boosting} combinations of rounds, learning rate and leaves (DP-EBM); no ε covers this choice. Mean and 95% interval
(Student's t) over {seeds} seeds of ours and {peer_seeds} of each setting of a peer, the worst in brackets.

## Adult: accuracy on {adult_test:,} test rows

{adult_rows:,} training rows, {adult_columns} encoded columns.

{adult}

scikit-learn's `LogisticRegressionCV` without privacy reaches {adult_curves:.4f} on the same curves, and
{adult_plain:.4f} on plain columns.

Log-loss of the same models:

{losses}

## California: R² on {california_test:,} test rows

{california_rows:,} training rows, {california_columns} encoded columns.

{california}

scikit-learn's `RidgeCV` without privacy reaches {california_curves:.3f} on the same curves, and
{california_plain:.3f} on plain columns. diffprivlib's regression adds noise to every product of two columns and has no
penalty; an R² below zero is worse than the mean of the targets.

## What is protected

Ours: (ε, {delta:g})-DP when the content of one row is replaced, all of tuning and training together. diffprivlib: pure
ε-DP (δ = 0), the stronger notion, when one row is replaced. DP-EBM: (ε, {delta:g})-DP when one row is added or removed,
which takes half of the noise of a replacement: at the same ε its guarantee is weaker. *The same for a
replacement* is DP-EBM at the ε of μ/2, where μ is that of the first column: the same guarantee as ours.

## The adult-sources task of the utility benchmark, with `DPSourceWeightedClassifier`

Test log-loss over the {repetitions} repetitions of the [utility benchmark](utility.md) at ε = 1, same rows, sources,
wrong labels and validation rows. *Benchmark*: the result of `dpb.solve` there; *bad weight*: the sum of the released
weights of the eight bad sources of twelve.

{sources}

## How it was made

`make bench-estimators`. Seeds are fixed for reproducibility, so that none of these runs is itself private.

{made}
"""


def page(content: dict[str, Any]) -> str:
    """The page of results."""
    known: dict[str, Any] = {}
    for name in DIGITS:
        mine = content["ours"][name]
        known |= {f"{name}_{key}": mine[given] for key, given in (("rows", "rows"), ("test", "test rows"))}
        known |= {f"{name}_columns": mine["columns"], name: _table(content, name)}
        known |= {f"{name}_{kind}": content["references"][name][kind] for kind in ("curves", "plain")}
    settings = [len(content[peer]["adult"]["1"]) for peer in ("diffprivlib", "ebm")]
    return PAGE.format(
        **known,
        delta=content["delta"],
        seeds=content["seeds"],
        peer_seeds=content["peer_seeds"],
        penalties=settings[0] // 2,
        boosting=settings[1],
        losses=_losses(content),
        repetitions=len(content["sources"]),
        sources=_sources(content["sources"]),
        made="\n".join(f"- {part}: {made}" for part, made in content["made"].items()),
    )


def _table(content: dict[str, Any], name: str) -> str:
    """Scores by epsilon, ours first."""
    digits, boosted = DIGITS[name], content["ebm"][name]
    rows = []
    for epsilon in content["epsilons"]:
        own, at = content["ours"][name][f"{epsilon:g}"], f"{epsilon:g}"
        rows.append(
            [
                at,
                _scores(own, digits),
                *_diffprivlib(content["diffprivlib"][name][at], name),
                _scores(boosted[at]["defaults"], digits),
                _at_best(boosted[at], digits),
                _at_best(content["ebm-replacement"][name][at], digits),
            ]
        )
    own = {"adult": "`DPLogisticRegressionCV`", "california": "`DPRidgeCV`"}[name]
    peer = ["diffprivlib, defaults", "diffprivlib, best"] if name == "adult" else ["diffprivlib"]
    return markdown_table(["ε", own, *peer, "DP-EBM, defaults", "DP-EBM, best", "the same for a replacement"], rows)


def _diffprivlib(tried: dict[str, list[dict[str, float]]], name: str) -> list[str]:
    """At C = 1 on curves, and at the best setting; its regression has none."""
    best = _at_best(tried, DIGITS[name])
    return [_scores(tried["curves, C = 1"], DIGITS[name]), best] if name == "adult" else [best]


def _losses(content: dict[str, Any]) -> str:
    """Log-losses on Adult; the setting of DP-EBM is the best by test log-loss."""
    boosted = content["ebm"]["adult"]

    def lowest(tried: dict[str, list[dict[str, float]]]) -> str:
        losses = {name: [run["log_loss"] for run in runs] for name, runs in tried.items()}
        best = min(losses, key=lambda name: statistics.fmean(losses[name]))
        return f"{estimated(losses[best]).text(4)}, {best}"

    rows = [
        [
            f"{epsilon:g}",
            estimated([run["log_loss"] for run in content["ours"]["adult"][f"{epsilon:g}"]]).text(4),
            lowest(boosted[f"{epsilon:g}"]),
            lowest(content["ebm-replacement"]["adult"][f"{epsilon:g}"]),
        ]
        for epsilon in content["epsilons"]
    ]
    heads = ["ε", "`DPLogisticRegressionCV`", "DP-EBM, best", "the same for a replacement"]
    return markdown_table(heads, rows)


def _sources(found: list[dict[str, float]]) -> str:
    benchmark = read_results(ROOT / "docs" / "results" / "utility.json")
    there = [benchmark[f"adult-sources|tracking|1|{seed}"]["test_loss"] for seed in range(len(found))]
    row = [
        estimated([run["test_loss"] for run in found]).text(4),
        estimated(there).text(4),
        estimated([run["bad"] for run in found]).text(4),
    ]
    return markdown_table(["`DPSourceWeightedClassifier`", "benchmark", "bad weight"], [row])


def _scores(runs: list[dict[str, float]], digits: int) -> str:
    mean = statistics.fmean(run["score"] for run in runs)
    if mean < -1:
        return f"{mean:.0e}"
    return estimated([run["score"] for run in runs], min).text(digits)


def _at_best(tried: dict[str, list[dict[str, float]]], digits: int) -> str:
    best = max(tried, key=lambda name: statistics.fmean(run["score"] for run in tried[name]))
    return f"{_scores(tried[best], digits)}, {best}"
