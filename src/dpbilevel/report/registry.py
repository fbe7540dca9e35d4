"""A run as an entry of OpenDP's registry of deployments (https://registry.opendp.org), as far as a run knows it.

Names and nesting are those of the registry's records. What a run cannot know (who publishes it, what for, where) is
null, to be filled in by a person. Unlike its records, this is JSON, which YAML parsers read.
"""

from typing import Any

from dpbilevel.privacy.spend import Privacy, rounded_up
from dpbilevel.report.content import content
from dpbilevel.report.guarantee import guarantee
from dpbilevel.report.review import Review

_INPUT_METRICS = {"replace-one": "Change-one distance", "zero-out": "Change-one distance to a record of zeros"}


def registry_entry(review: Review) -> dict[str, Any]:
    """The fields of a registry record as plain JSON values; a run that is not private has no record.

    Guarantee: released values and public facts only, like the report.
    """
    report, solution = content(review), review.solution
    privacy, stated = solution.privacy, guarantee(solution)
    private = stated.status != "not private"
    noise = "Discrete Gaussian mechanism" if privacy.exact_noise else "Gaussian mechanism"
    flavor = {"name": "Approximate DP", "input_metric": _INPUT_METRICS[privacy.budget.adjacency]}
    if privacy.exact_noise:
        flavor["output_measure"] = "Zero-concentrated divergence"
    elif privacy.mu is not None:
        flavor["output_measure"] = "Gaussian differential privacy"
    rows = ", ".join(f"{role['records']:,} {role['use']}" for role in report["spend"])
    return {
        "status": "Draft",
        "deployment": {
            "product": {
                "name": review.title,
                "data_curators": None,
                "intended_use": None,
                "data_product_type": "Machine learning model",
                "data_product_region": None,
                "data_product_sector": None,
                "description": f"{solution.method.partition('(')[0]} of dpbilevel {solution.version} on {rows}",
                "publication_date": None if review.created is None else review.created[:10],
            },
            "dp_flavor": flavor if private else None,
            "privacy_loss": {
                "privacy_unit": "record-level",
                "privacy_unit_description": privacy.unit,
                "privacy_parameters": _parameters(privacy) if private else None,
                "privacy_parameters_description": stated.sentence,
            },
            "model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": None,
                "composition": privacy.accountant,
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": "hyperparameters were tuned within the stated epsilon",
                "mechanisms": sorted(
                    {f"{noise}: {release['release']}" for role in report["spend"] for release in role["releases"]}
                ),
                "justification": None,
            },
            "resources": {"sources": None, "registry_authors": None},
        },
    }


def _parameters(privacy: Privacy) -> dict[str, float | None]:
    return {"epsilon": float(rounded_up(privacy.epsilon())), "delta": privacy.budget.delta}
