"""What all tests share."""

import warnings

import pytest

import dpbilevel as dpb


@pytest.fixture(autouse=True)
def _seeds_are_fine_in_tests():
    """Tests fix seeds so that they repeat; the warning that this voids privacy has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpb.NotPrivateWarning)
        yield
