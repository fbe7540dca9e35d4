"""How `dpbilevel plan`, and dry runs, show what a run would cost."""

from dpbilevel.cli.console import Console
from dpbilevel.cli.forecast import Forecast
from dpbilevel.cli.wording import for_command_line
from dpbilevel.execution.notices import TRAINING_LIMIT
from dpbilevel.foundation.tables import short
from dpbilevel.privacy.spend import Privacy

ROLES = {"lower": "training (lower)", "upper": "validation (upper)", "both": "both", "heldout": "held out"}


def counted_records(privacy: Privacy) -> str:
    """What a run counts: records, or units if these are protected."""
    return "records" if privacy.rows_per_unit is None else "units"


def show_forecast(console: Console, shown: Forecast) -> None:
    """Print the guarantee, the spend and the parameters of a plan, and how much noise training would have."""
    privacy, sizes = shown.planned.privacy, shown.planned.sizes
    console.print(f"A run would be {for_command_line(privacy.sentence())}")
    console.table(
        f"Spend (roles hold disjoint {counted_records(privacy)})",
        ["role", counted_records(privacy), "epsilon"],
        [[ROLES[role], f"{sizes.count(role):,}", f"{privacy.epsilon(role=role):.4g}"] for role in privacy.charges],
    )
    console.table(
        "Parameters of the plan",
        ["number", "value", "why"],
        [[name, short(value), why] for name, (value, why) in shown.planned.parameters.items()],
    )
    verdict = "noise is small" if shown.noise_to_signal < TRAINING_LIMIT else "noise dominates"
    good = f"{TRAINING_LIMIT:g}"
    console.print(f"\nNoise to signal of training: {shown.noise_to_signal:.3g} ({verdict}; below {good} is good).")
    kind = "rows" if sizes.rows_per_unit is None else "units"
    console.print(f"For {good} at this epsilon and delta: about {shown.rows_needed:,} {kind}.")
    if shown.theory is not None:
        promise = f"a hypergradient norm of at most {shown.theory.alpha:.3g} with probability 0.95"
        empty = " This bound is vacuous at these sizes: the norm is never larger." if shown.theory.vacuous else ""
        needed = (
            "no data set is large enough" if shown.theory_rows is None else f"{shown.theory_rows:,} rows are needed"
        )
        console.print(f"The paper's theorems guarantee {promise}, for its algorithm.{empty} For 0.1, {needed}.")
        console.print("Privacy does not depend on these theorems.")
    console.result(shown.to_json())
