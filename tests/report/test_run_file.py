"""run.json: written, read back, checked against its documented schema, and refused where it is something else."""

import json
import math
from importlib import resources

import jsonschema
import numpy as np
import pytest
from support.report_data import KINDS, linear, review, searched

import dpbilevel as dpb
from dpbilevel.report.html import html_report
from dpbilevel.report.markdown import markdown_report
from dpbilevel.report.review import Review
from dpbilevel.report.run_file import read_run, unfinished_text, write_run

SCHEMA = json.loads(resources.files("dpbilevel.report").joinpath("run.schema.json").read_text(encoding="utf-8"))
BUDGET = dpb.Budget(1.0, 1e-6)


def checked(path):
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    return content


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_read_back_as_it_was(kind, tmp_path):
    before = review(kind)
    path = write_run(before, tmp_path / "run.json")
    content = checked(path)
    assert (content["format"], content["status"]) == ("dpbilevel.run/1", "finished")
    after = read_run(path)
    assert write_run(after, tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert html_report(after) == html_report(before)
    assert markdown_report(after) == markdown_report(before)
    np.testing.assert_array_equal(after.model.coefficients, before.model.coefficients)
    assert after.solution.privacy.epsilon() == before.solution.privacy.epsilon()


@pytest.mark.parametrize("kind", ["grid", "random"])
def test_a_run_of_a_baseline_is_a_run(kind, tmp_path):
    path = write_run(Review(solution=searched(kind)), tmp_path / "run.json")
    assert checked(path)["model"] == {"kind": "numbers", "count": 1, "shapes": {"y": []}}
    assert read_run(path).model is None


def test_numbers_are_where_the_schema_says(tmp_path):
    content = checked(write_run(review(), tmp_path / "run.json"))
    guarantee = content["guarantee"]
    whole = review().solution
    assert guarantee["epsilon"] == whole.privacy.epsilon()
    assert guarantee["status"] == "private"
    assert [role["role"] for role in content["spend"]] == ["lower", "upper"]
    assert sum(release["share"] for release in content["spend"][0]["releases"]) == pytest.approx(1)
    for release in (release for role in content["spend"] for release in role["releases"]):
        assert release["noise_multiplier"] * release["sensitivity_over_noise"] == pytest.approx(1, rel=1e-15)
    assert [entry["name"] for entry in content["hyperparameters"]["values"]] == ["age", "sex", "job"]
    assert np.shape(content["trajectory"]) == (40, 3)
    assert content["model"]["coefficients"] == linear().coefficients.tolist()
    assert {entry["name"] for entry in content["plan"]} == set(whole.parameters)
    assert [entry["name"] for entry in content["noise_to_signal"]] == ["training: noise to signal"]
    assert content["facts"]["data"] == "adult.csv"
    assert content["solution"] == whole.to_json()


def test_numbers_that_are_not_finite_are_words(tmp_path):
    infinite = checked(write_run(review("infinite"), tmp_path / "run.json"))
    assert infinite["guarantee"]["epsilon"] == "inf"
    model = linear()
    model.coefficients[0, 0] = math.nan
    path = write_run(review(model=model), tmp_path / "run.json")
    assert checked(path)["model"]["coefficients"][0][0] == "nan"
    assert math.isnan(read_run(path).model.coefficients[0, 0])


@pytest.mark.parametrize("status", ["running", "aborted"])
@pytest.mark.parametrize("budget", [BUDGET, dpb.Budget(math.inf)], ids=["private", "infinite"])
def test_an_unfinished_run_has_spent_its_epsilon(status, budget, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(unfinished_text(status=status, budget=budget, facts={"data": "a.csv"}, command="dpbilevel tune"))
    content = checked(path)
    assert content["budget"]["epsilon"] == (1.0 if budget.is_private else "inf")
    assert "counts as spent" in content["notice"]
    with pytest.raises(dpb.InvalidArgument, match=rf"did not finish \(its status is .{status}.\).*counts as spent"):
        read_run(path)


def test_only_two_kinds_of_runs_are_unfinished():
    with pytest.raises(dpb.InvalidArgument, match=r"^status"):
        unfinished_text(status="finished", budget=BUDGET, facts={})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a JSON file"),
        (b"\xff\xfe\x00", "is not a JSON file"),
        (b"[1, 2", "is not a JSON file"),
        (b"[]", "is not a dpbilevel.run/1 file"),
        (b'{"format": 3}', "is not a dpbilevel.run/1 file"),
        (b'{"format": "dpbilevel.run/2"}', "upgrade dpbilevel"),
        (b'{"format": "dpbilevel.solution/1"}', r"dpb\.Solution\.load"),
        (b'{"format": "dpbilevel.run/1"}', "is damaged"),
        (b'{"format": "dpbilevel.run/1", "status": "finished", "solution": {}}', "is damaged"),
    ],
)
def test_what_is_no_run_is_refused(content, words, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(dpb.InvalidArgument, match=words):
        read_run(path)


@pytest.mark.parametrize("key", ["solution", "title", "model", "facts", "schema", "command", "created"])
def test_a_run_that_lacks_something_is_damaged(key, tmp_path):
    path = write_run(review(), tmp_path / "run.json")
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(dpb.InvalidArgument, match="is damaged"):
        read_run(path)
    with pytest.raises(jsonschema.ValidationError):
        checked(path)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path / "run.json")


def test_the_page_documents_every_key(tmp_path):
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "run_file.md").read_text(encoding="utf-8")
    keys = {*SCHEMA["$defs"]["finished"]["properties"], *SCHEMA["$defs"]["unfinished"]["properties"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
