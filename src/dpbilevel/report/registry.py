"""A run as an entry of OpenDP's registry of deployments (https://registry.opendp.org), as far as a run knows it.

Keys and their types are those of schemas/deployments-schema.yaml in opendp/deployments-registry-data at 3e9c812a (July
2026), which allows no others. What the schema requires and a run cannot know (who publishes it, what for, where) is
`MISSING`, to be filled in by a person; other fields without a value are left out. JSON is a part of YAML.
"""

import re
from typing import Any

from dpbilevel.privacy.spend import Privacy, rounded_up
from dpbilevel.report.content import Content, content
from dpbilevel.report.guarantee import Guarantee, guarantee
from dpbilevel.report.review import Review

MISSING = "To be filled in"
_NO_DATE = "1900-01-01"  # the registry's own placeholder: a date is required


def registry_entry(review: Review) -> dict[str, Any]:
    """The fields of a registry entry as plain JSON values; a run that is not private has no privacy parameters.

    Guarantee: released values and public facts only, like the report.
    """
    report, solution, stated = content(review), review.solution, guarantee(review.solution)
    privacy = solution.privacy
    private = stated.status != "not private"
    day = _NO_DATE if review.created is None else review.created[:10]
    terms = dict(stated.terms)
    records = ", ".join(f"{role['records']:,} {role['use']}" for role in report["spend"])
    return {
        "url_slug": _slug(review.title, MISSING, day[:4]),
        "status": "Draft",
        "tier": 2 if private else 1,
        "deployment": {
            "basic": {
                "name": review.title,
                "data_curators": [MISSING],
                "intended_use": MISSING,
                "data_product_type": "Machine learning model",
                "data_product_region": MISSING,
                "description": f"{solution.method.partition('(')[0]} of dpbilevel {solution.version} on {records}",
                "publication_date": day,
            },
            **({"dp_variant": _variant(privacy, records)} if private else {}),
            "privacy_loss": {
                "privacy_unit": "record-level" if privacy.rows_per_unit is None else f"unit-level: {privacy.unit}",
                "privacy_unit_details": f"{terms['Neighbours']}. Unit: {terms['Unit']}.",
                **({"privacy_parameters": _parameters(privacy)} if private else {}),
                "privacy_parameters_details": stated.sentence,
            },
            "deployment_model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Hyperparameters, the model and its report are computed from released values.",
                "composition": privacy.accountant,
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _preprocessing(stated),
                "mechanisms": _mechanisms(report, privacy, terms["Noise"]),
            },
            "administrative": {
                "notes": f"Drafted from a run by dpbilevel {solution.version}. The date is that of the run.",
                "registry_authors": [MISSING],
            },
        },
    }


def _slug(*parts: str) -> str:
    """Lower-case words joined by hyphens, as the registry makes them of name, curators and year.

    >>> _slug("Dose by age", "To be filled in", "2026")
    'dose-by-age-to-be-filled-in-2026'
    """
    return "-".join(re.findall(r"[^\W_]+", " ".join(parts).lower()))


def _variant(privacy: Privacy, records: str) -> dict[str, str]:
    ids = "" if privacy.rows_per_unit is None else " Which units are in the data, if their ids are known."
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"All data sets with as many records: {records}.",
        "unprotected_quantities": f"The number of records of each role.{ids}",
    }


def _parameters(privacy: Privacy) -> dict[str, float | None]:
    return {"epsilon": float(rounded_up(privacy.epsilon())), "delta": privacy.budget.delta}


def _preprocessing(stated: Guarantee) -> str:
    caveats = f" Caveats: {'; '.join(stated.caveats)}." if stated.caveats else ""
    return (
        "What was tuned on the private records is within the stated epsilon. Settings and declarations about columns, "
        f"targets and classes are assumed to have been chosen without looking at them.{caveats}"
    )


def _mechanisms(report: Content, privacy: Privacy, noise: str) -> str:
    if not privacy.budget.is_private:
        return "None: no noise was added."
    name = "Discrete Gaussian mechanism" if privacy.exact_noise else "Gaussian mechanism"
    releases = [release for role in report["spend"] for release in role["releases"]]
    own = ", ".join(sorted({release["release"] for release in releases if release["declared"] is None}))
    others = sorted({f"{item['release']}: {item['declared']}" for item in releases if item["declared"] is not None})
    described = [f"{name}: {own}", *others] if own else others
    return f"{'; '.join(described)}. Noise: {noise}. Implemented by dpbilevel {report['version']}."
