"""Mutations: the library with its privacy broken in one way each, by monkeypatches alone, and what notices it.

The package has no switch that voids its guarantee (test_house_rules.py), so that a mutation can only be made from
outside. `MUTATIONS` is the one list: tests run its detectors on the true code and on each mutation,
docs/mutation_tests.md shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from support import buffer_cases, detectors
from support.broken_sums import leafwise_clipped_sum, realised_batch_sum, unclipped_sum
from support.unit_neighbours import clipped_row_by_row

from dpbilevel import problem as problem_module
from dpbilevel.checkpoint.checkpoint import Checkpoint
from dpbilevel.execution.program import Program
from dpbilevel.privacy import profiles
from dpbilevel.privacy import release as release_module
from dpbilevel.privacy.ledger import Ledger, Receipt
from dpbilevel.privacy.noise import standard_normal
from dpbilevel.privacy.release import Release
from dpbilevel.records import Records

Patch = Callable[[pytest.MonkeyPatch], None]


def noise_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise is added to answers."""
    monkeypatch.setattr(release_module, "standard_normal", lambda key, size: jnp.zeros(size, jnp.float64))


def noise_at_70_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise has 70% of the standard deviation that was charged for."""
    monkeypatch.setattr(release_module, "standard_normal", lambda key, size: 0.7 * standard_normal(key, size))


def clip_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per-record contributions are summed without clipping."""
    monkeypatch.setattr(release_module, "clipped_sum", unclipped_sum)


def clip_of_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each term of a record's contribution is clipped separately, not the contribution as a whole."""
    monkeypatch.setattr(release_module, "clipped_sum", leafwise_clipped_sum)


def rows_of_a_unit_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of a unit is clipped separately, not the contribution of the unit as a whole."""
    monkeypatch.setattr(release_module, "clipped_sum", clipped_row_by_row)


def sensitivity_of_one_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a record is charged as C; it can move the sum by 2C."""
    true = Release.sensitivity
    monkeypatch.setattr(
        Release,
        "sensitivity",
        lambda self, role: true(self, role) / (2 if self.adjacency == "replace-one" else 1),
    )


def noise_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step reuses the noise of the first one, so that differences of answers contain no noise."""
    _change_keys(monkeypatch, lambda keys: _set(keys, 0, keys[:1, :1, 0]))


def realised_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Poisson batch is divided by the number of records in it, not by the public rate times n."""
    monkeypatch.setattr(release_module, "clipped_sum", realised_batch_sum)


def one_batch_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """All releases of a round use one Poisson batch, but are charged as if each had drawn its own."""
    _change_keys(monkeypatch, lambda keys: _set(keys, 1, keys[:, :1, 1]))


def empty_place_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero-out in a fixed-size batch is charged as if no other record took the place of the removed one."""
    true = profiles.loss_distribution
    monkeypatch.setattr(
        profiles,
        "loss_distribution",
        lambda profile, parameters, adjacency, step: true(profile, parameters, "replace-one", step),
    )


def closure_treated_as_data_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that closes over data is treated as data-free: its x-gradient is neither charged nor reported."""
    monkeypatch.setattr(problem_module, "closed_over_arrays", lambda traced, public: False)


def no_charge_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that resumes from its checkpoint is not charged to the ledger that it is given."""
    true = Checkpoint.charge

    def free(self: Checkpoint, ledger: Ledger, records: Records, description: str) -> Receipt:
        return true(self, ledger, records, description) if self._new else Receipt(self._planned.releases)

    monkeypatch.setattr(Checkpoint, "charge", free)


def contribution_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler may compute a contribution once for its norm and again for the sum, with different rounding."""
    buffer_cases.broken(monkeypatch, buffer_cases.direct)


def _change_keys(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    true = Program.keys
    monkeypatch.setattr(Program, "keys", lambda *arguments: change(np.array(true(*arguments))))


def _set(keys: np.ndarray, purpose: int, value: np.ndarray) -> np.ndarray:
    keys[:, :, purpose] = value  # keys have the axes round, use, purpose (noise, batch), and two words
    return keys


@dataclass(frozen=True)
class Mutation:
    """A way to break privacy, and what has to notice it.

    Args:
        patch: breaks the library.
        detector: raises AssertionError where it is broken, and passes where it is not.
        means: how it is noticed, in a few words.
    """

    patch: Patch
    detector: Callable[[], None]
    means: str

    @property
    def name(self) -> str:
        return self.patch.__name__.replace("_", " ")


STATISTICS, SEARCH = "statistics of released values", "neighbour search"
BRUTE_FORCE, LEDGER, COMPILER = "accounting compared with brute force", "the ledger", "inspection of compiled code"

MUTATIONS = (
    Mutation(noise_off, detectors.noise_has_the_law_that_the_budget_asks_for, STATISTICS),
    Mutation(noise_at_70_percent, detectors.noise_has_the_law_that_the_budget_asks_for, STATISTICS),
    Mutation(clip_off, detectors.no_record_moves_an_answer_too_far, SEARCH),
    Mutation(clip_of_terms, detectors.no_record_moves_an_answer_too_far, SEARCH),
    Mutation(rows_of_a_unit_clipped, detectors.no_unit_moves_an_answer_too_far, SEARCH),
    Mutation(sensitivity_of_one_clip, detectors.no_record_moves_an_answer_too_far, SEARCH),
    Mutation(noise_replayed, detectors.steps_have_noise_of_their_own, STATISTICS),
    Mutation(realised_batch_size, detectors.batches_are_divided_by_public_numbers, SEARCH),
    Mutation(one_batch_as_several, detectors.releases_cost_what_their_batches_leak, BRUTE_FORCE),
    Mutation(empty_place_in_a_batch, detectors.fixed_batches_cost_what_they_leak, BRUTE_FORCE),
    Mutation(closure_treated_as_data_free, detectors.data_that_a_loss_closes_over_is_reported, SEARCH),
    Mutation(no_charge_on_resume, detectors.a_resumed_run_is_in_the_ledger, LEDGER),
    Mutation(contribution_computed_twice, detectors.what_is_measured_is_what_is_summed, COMPILER),
)
