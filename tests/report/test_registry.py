"""The fields of OpenDP's registry of deployments: what a run knows, and null for what it does not."""

import json

from support.report_data import infinite, made, review, with_privacy

from dpbilevel.report.registry import registry_entry
from dpbilevel.report.review import Review


def test_a_private_run_fills_in_what_it_knows():
    made_review = review()
    deployment = registry_entry(made_review)["deployment"]
    privacy = made_review.solution.privacy
    assert deployment["product"]["name"] == made_review.title
    assert deployment["product"]["data_curators"] is None
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert privacy.epsilon() <= parameters["epsilon"] <= 1.001 * privacy.epsilon()  # rounded up
    assert parameters["delta"] == privacy.budget.delta
    assert deployment["privacy_loss"]["privacy_unit"] == "record-level"
    assert deployment["dp_flavor"]["name"] == "Approximate DP"
    assert deployment["accounting"]["composition"] == privacy.accountant
    assert "Gaussian mechanism: training" in deployment["implementation"]["mechanisms"]
    json.dumps(registry_entry(made_review), allow_nan=False)


def test_a_run_that_is_not_private_states_no_parameters():
    for solution in (infinite(), with_privacy(made(), void=True)):
        entry = registry_entry(Review(solution=solution))
        assert entry["deployment"]["privacy_loss"]["privacy_parameters"] is None
        assert entry["deployment"]["dp_flavor"] is None
        assert "NOT PRIVATE" in entry["deployment"]["privacy_loss"]["privacy_parameters_description"]
        json.dumps(entry, allow_nan=False)
