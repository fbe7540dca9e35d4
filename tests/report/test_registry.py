"""The fields of OpenDP's registry of deployments: keys and types of its schema, and what a run knows."""

import json
from datetime import date
from typing import Any

import pytest
from support.report_data import black_box, infinite, made, review, with_privacy

import dpbilevel as dpb
from dpbilevel.report.registry import MISSING, registry_entry
from dpbilevel.report.review import Review

# Keys, required keys (with !), types and allowed texts of schemas/deployments-schema.yaml of
# opendp/deployments-registry-data at commit 3e9c812a924cf01d228f26f6c462c59c391c3f2a. No other key is allowed anywhere.
VARIANTS = ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom")
STATUSES = (
    "Converted",
    "Draft",
    "Pending",
    "Changes Required",
    "Approved",
    "Approved (Update Requested)",
    "Approved (Pending)",
)
PRODUCTS = (
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
)
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
SCHEMA = {
    "url_slug!": str,
    "status!": STATUSES,
    "tier!": (1, 2, 3),
    "deployment!": {
        "basic!": {
            "name!": str,
            "data_curators!": [str],
            "description!": str,
            "intended_use!": str,
            "data_product_type!": PRODUCTS,
            "data_product_region!": str,
            "publication_date!": date,
            "data_product_sector": SECTORS,
        },
        "dp_variant": {"variant_name": VARIANTS, "data_domain": str, "unprotected_quantities": str},
        "privacy_loss": {
            "privacy_unit": str,
            "privacy_unit_details": str,
            "privacy_parameters": {"epsilon": float, "delta": float, "rho": float},
            "privacy_parameters_details": str,
        },
        "deployment_model": {
            "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
            "model_name_details": str,
            "actors": str,
            "release_type": ("One release", "Many releases"),
            "release_type_details": str,
            "data_source_type": ("Static", "Dynamic"),
            "data_source_type_details": str,
            "access_type": ("Interactive", "Non-interactive"),
            "access_type_details": str,
        },
        "accounting": {"post_processing": str, "composition": str},
        "implementation": {"preprocessing_and_hyperparameter_tuning": str, "mechanisms": str, "justification": str},
        "administrative": {"sources": str, "notes": str, "registry_authors!": [str]},
    },
}


def misfits(value: Any, schema: Any, place: str = "") -> list[str]:
    """Where a value is not what the schema allows."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        allowed = {key.removesuffix("!"): item for key, item in schema.items()}
        required = {key.removesuffix("!") for key in schema if key.endswith("!")}
        wrong = [f"{place}/{key}: not allowed" for key in value.keys() - allowed.keys()]
        wrong += [f"{place}/{key}: required" for key in required - value.keys()]
        return wrong + [
            line for key in value.keys() & allowed for line in misfits(value[key], allowed[key], f"{place}/{key}")
        ]
    if isinstance(schema, list):
        fits = isinstance(value, list) and bool(value) and all(isinstance(item, str) and item for item in value)
    elif isinstance(schema, tuple):
        fits = value in schema
    elif schema is date:
        fits = isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    else:
        fits = isinstance(value, schema) and value != ""
    return [] if fits else [f"{place}: {value!r}"]


def units() -> dpb.Solution:
    return with_privacy(made(), rows_per_unit=8)


SOLUTIONS = {
    "rows": made,
    "units": units,
    "infinite": infinite,
    "seeded": lambda: with_privacy(made(), void=True),
    "caveats": lambda: with_privacy(made(), caveats=("classes were not declared",)),
    "black box": black_box,
}


@pytest.mark.parametrize("kind", SOLUTIONS)
@pytest.mark.parametrize("created", [None, "2026-11-19T04:00:00+00:00"])
def test_an_entry_fits_the_schema_of_the_registry(kind, created):
    entry = registry_entry(Review(solution=SOLUTIONS[kind](), title='Dose: "A" & β_2', created=created))
    assert misfits(entry, SCHEMA) == []
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert entry["url_slug"] == f"dose-a-β-2-to-be-filled-in-{'1900' if created is None else '2026'}"


@pytest.mark.parametrize(
    "broken",
    [
        {"product": {}},  # a key of an older schema
        {"tier": None},
        {"deployment": {"basic": {"name": None}}},
        {"deployment": {"implementation": {"mechanisms": ["Gaussian"]}}},
    ],
)
def test_the_check_of_the_schema_finds_what_does_not_fit(broken):
    entry = registry_entry(review())

    def merged(old, new):
        return old | {
            key: merged(old[key], item) if isinstance(item, dict) and key in old else item for key, item in new.items()
        }

    assert misfits(entry, SCHEMA) == []
    assert len(misfits(merged(entry, broken), SCHEMA)) == 1


def test_a_private_run_fills_in_what_it_knows():
    made_review = review()
    entry = registry_entry(made_review)
    deployment, privacy = entry["deployment"], made_review.solution.privacy
    assert deployment["basic"]["name"] == made_review.title
    assert deployment["basic"]["data_curators"] == [MISSING]
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert privacy.epsilon() <= parameters["epsilon"] <= 1.001 * privacy.epsilon()  # rounded up
    assert parameters["delta"] == privacy.budget.delta
    assert deployment["privacy_loss"]["privacy_unit"] == "record-level"
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["accounting"]["composition"] == privacy.accountant
    assert deployment["implementation"]["mechanisms"].startswith(
        "Gaussian mechanism: training, training pass, validation pass. "
    )


def test_a_run_of_units_names_the_unit():
    loss = registry_entry(Review(solution=units()))["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == f"unit-level: {units().privacy.unit}"
    assert "at most 8" in loss["privacy_unit"]
    assert "a row of the data" not in json.dumps(loss)


def test_what_a_black_box_declares_is_said_to_be_declared():
    mechanisms = registry_entry(Review(solution=black_box()))["deployment"]["implementation"]["mechanisms"]
    assert mechanisms.startswith("Gaussian mechanism: hypergradient; training: ApproximateDP")


def test_a_run_that_is_not_private_states_no_parameters():
    for solution in (infinite(), with_privacy(made(), void=True)):
        deployment = registry_entry(Review(solution=solution))["deployment"]
        assert "privacy_parameters" not in deployment["privacy_loss"]
        assert "dp_variant" not in deployment
        assert "NOT PRIVATE" in deployment["privacy_loss"]["privacy_parameters_details"]
