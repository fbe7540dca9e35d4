"""Bad inputs to every public entry point and file format: typed errors only, nothing charged, nothing written.

About 1,000 inputs, and 2,000 in `make test-heavy`, the same in every run; `make trust` tries more than 20,000 others.
"""

import inspect

import pytest
from support.fuzz_functions import FUNCTIONS
from support.fuzz_targets import TARGETS, fuzz, shares

import dpbilevel as dpb
from dpbilevel import applications, baselines
from dpbilevel.privacy.stores.entry import Entry

INPUTS = (1000, pytest.param(2000, marks=pytest.mark.heavy))


@pytest.mark.slow
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", TARGETS)
def test_bad_inputs_are_refused_in_words(name, inputs):
    found = fuzz(name, shares(inputs)[name])
    assert found.total() - found["accepted"] > 0.5 * found.total(), "most inputs must be bad ones"


@pytest.mark.parametrize("inputs", [1000, 2000])
def test_the_subset_is_as_large_as_it_says(inputs):
    assert inputs <= sum(shares(inputs).values()) <= 1.03 * inputs


def test_arguments_are_those_of_the_functions():
    """A name that is no parameter would be refused by Python, and prove nothing."""
    for function, valid, more in FUNCTIONS.values():
        assert {*valid, *more} <= set(inspect.signature(function).parameters), function


def test_every_public_constructor_and_function_is_tried():
    elsewhere = {
        "plan",
        "solve",
        "evaluate",
        "Records",
        "RecordShapes",
        "BoundedEncoder",
        "Solution",
        "Privacy",
        "Plan",
        "Evaluation",
        "UnitSizes",
    }
    no_arguments = {"Unconstrained", "NonNegative", "FullBatch", "InnerSolver", "Sampling"}  # the last two: abstract
    errors = {
        name
        for name in dpb.__all__
        if isinstance(getattr(dpb, name), type) and issubclass(getattr(dpb, name), Exception)
    }
    public = {name for name in dpb.__all__ if not inspect.ismodule(getattr(dpb, name))}
    assert public - errors - elsewhere - no_arguments <= set(FUNCTIONS)
    functions = {name for name in applications.__all__ if inspect.isfunction(getattr(applications, name))}
    assert functions - {"confusion", "represented"} <= set(FUNCTIONS)  # of released values
    classes = {name for name in baselines.__all__ if isinstance(getattr(baselines, name), type)}
    assert classes <= set(FUNCTIONS)


# ---- mutations: the harness notices


def mutant_raises(draw):
    def call():
        raise KeyError("not typed")

    return call


def mutant_charges(draw, charged):
    def call():
        with charged.ledger._store.writing() as (_, append):
            append(Entry("run", 1.0, 0.0, None), None)
        raise dpb.InvalidArgument("refused, after the charge")

    return call


def mutant_writes(draw, folder):
    def call():
        (folder / "half.json").write_text("{")
        raise dpb.InvalidArgument("refused, after writing")

    return call


@pytest.mark.parametrize(
    ("mutant", "error", "words"),
    [
        (mutant_raises, KeyError, "not typed"),
        (mutant_charges, AssertionError, "refused, and charged"),
        (mutant_writes, AssertionError, "refused, and something was written"),
    ],
)
def test_an_entry_point_that_misbehaves_is_noticed(mutant, error, words, monkeypatch):
    monkeypatch.setitem(TARGETS, "mutant", (mutant, 1))
    with pytest.raises(error, match=words):
        fuzz("mutant", 2)
