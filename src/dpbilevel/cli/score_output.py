"""How `dpbilevel evaluate`, and runs with held-out rows, show scores."""

import math
from pathlib import Path
from typing import Any

from dpbilevel.cli.console import Console
from dpbilevel.cli.wording import for_command_line
from dpbilevel.evaluation.result import Evaluation


def show_scores(console: Console, evaluation: Evaluation, path: Path) -> None:
    """Print scores with their intervals, and where they are."""
    privacy = evaluation.privacy
    console.print(f"\n{for_command_line(privacy.sentence())}")
    show_table(console, evaluation, f"Scores on {evaluation.counted}")
    console.print(f"\nScores with all released numbers: {path}")
    console.result(
        {
            "evaluation": str(path),
            "private": not privacy.void,
            "guarantee": privacy.sentence(),
            "epsilon": privacy.epsilon() if privacy.budget.is_private else None,
            "delta": privacy.budget.delta,
            "records": evaluation.records,
            "scores": scores_json(evaluation),
        }
    )


def show_table(console: Console, evaluation: Evaluation, title: str) -> None:
    """Print scores as a table, and the bins of a calibration curve as another."""
    if rows := evaluation.score_rows():
        console.table(title, ["metric", "score", "noise", "95% interval", "what it is"], rows)
    if "calibration" in evaluation.values:
        console.table(f"Calibration: {evaluation.meanings['calibration']}", *evaluation.bin_rows())


def scores_json(evaluation: Evaluation) -> dict[str, Any]:
    """Every score with its noise and interval, as plain JSON values; null for numbers that are not finite."""

    def plain(number: float) -> float | None:
        return float(number) if math.isfinite(number) else None

    return {
        line.name: {
            "score": plain(line.score),
            "noise": plain(line.noise),
            "interval": None if line.interval is None else [plain(end) for end in line.interval],
        }
        for line in evaluation.lines()
    }
