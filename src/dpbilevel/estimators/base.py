"""The base class of all estimators: settings, reading of rows, budget, and the only run of a plan.

Each estimator has a method ``_prepare`` with the arguments of its ``fit``. It reads the data, defines the problem and
plans it (`Prepared`). A fit executes this plan, a plan uses shapes instead of data, an audit attacks it.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from dpbilevel.encoding.columns import Table, is_dictionary, read_table
from dpbilevel.encoding.encoded_rows import EncodedRows, caveats_of
from dpbilevel.encoding.streamed_rows import StreamedRows
from dpbilevel.errors import InvalidArgument, InvalidRecords, PrivacyLeakWarning
from dpbilevel.estimators.copies import CountedCopies
from dpbilevel.estimators.owners import Levels, Owners, planned_sizes
from dpbilevel.estimators.prepared import Prepared, Rows, Unread, split_levels
from dpbilevel.estimators.rows import scaling
from dpbilevel.estimators.scaled_rows import ScaledRows
from dpbilevel.estimators.settings import with_inherited_settings
from dpbilevel.execution.notices import warn_afterwards, warn_beforehand
from dpbilevel.execution.running import check_ledger
from dpbilevel.foundation.arguments import one_of, positive
from dpbilevel.methods.preconditioned_steps import STANDARD_ERRORS
from dpbilevel.methods.refit import Refit
from dpbilevel.planning import DEFAULT_METHOD, Method, Plan, prepare, with_caveats
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.ledger import Ledger
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.parts import job_of
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.shards import mesh_of
from dpbilevel.privacy.storage import Storage
from dpbilevel.problem import BilevelProblem
from dpbilevel.records import Records
from dpbilevel.report.card import shapes_card, solution_card
from dpbilevel.solution.solution import Solution
from dpbilevel.solving import check_noise, execute, for_records, warn_if_not_private

Tree = Any


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(CountedCopies):
    """Settings shared by all estimators.

    Args:
        epsilon: the total epsilon of a fit; ``float("inf")`` runs without noise or clipping.
        delta: None takes 1/n^1.1, rounded down to one digit; n, the number of rows, is public. The guarantee states it.
        adjacency: "replace-one" or "zero-out".
        data_norm: declared bound on the Euclidean norm of every row of X. Longer rows are scaled down to it. Rows from
            `BoundedEncoder` include their own bound.
        bounds: declared instead of ``data_norm``: (low, high), two numbers or two arrays with one number per column.
            Columns are clamped to them.
        validation_fraction: the fraction of rows used for tuning; the final model is trained on them too.
        split_seed: the seed of the public permutation of positions that selects them.
        method: the tuning method; None takes `Tracking`, the default of `solve`, where it pays.
        ledger: the ledger of the data set; without one, every fit has a budget of its own.
        invalid: "refuse" (default) raises for missing or infinite cells, before anything is charged. With "zero", rows
            with such cells contribute nothing, and predictions replace such cells by zero (or the middle of bounds).
        random_state: an integer fixes the noise for experiments. The result is then NOT private, and every fit warns.
        noise: "float", or "exact" for integer noise, as in `solve`.
        rows_per_unit: k, for ``fit(..., units=ids)``: a record is all rows of one id, at most k of them used. None:
            a record is a row.
        mean_rows: a public guess of the mean number of rows of an id; k by default, as in `dpb.Records`.
        unit_ids: a public list of all ids that may be in the data, as in `dpb.Records`: ids without rows are units.
        devices: on how many devices the rows are divided, the first that JAX finds; None for one, without dividing.
            In a job of several processes, rows are divided among the devices of all of them.
        storage: a folder on a disk, for rows that need not fit into memory, as in `dpb.Records`. Rows of a role are
            then in the order of the table, so that sums, and with them models, differ in the last bits.
    """

    epsilon: float = 1.0
    delta: float | None = None
    adjacency: str = "replace-one"
    data_norm: float | None = None
    bounds: Any = None
    validation_fraction: float = 0.2
    split_seed: int = 0
    method: Method | None = None
    ledger: Ledger | None = None
    invalid: str = "refuse"
    random_state: int | None = None
    noise: str = "float"
    rows_per_unit: int | None = None
    mean_rows: float | None = None
    unit_ids: Any = None
    devices: int | None = None
    storage: Any = None

    _refit: ClassVar[Refit | str] = "auto"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = with_inherited_settings(cls.__doc__, PrivateEstimator.__doc__)

    def _read(self, X: Any, *, reset: bool, fitted: bool = True) -> Table:
        """Read a table and check its columns; except in ``fit`` they must be those of the fit."""
        if not reset and fitted:
            check_is_fitted(self, "solution_")
        one_of("invalid", self.invalid, ("refuse", "zero"), "it defines how rows with missing cells are treated")
        if is_dictionary(X):
            raise InvalidRecords("X: must be a matrix or a data frame; dpb.BoundedEncoder takes dictionaries")
        table = read_table(X)
        if table.shape[0] < (2 if reset else 1) or table.shape[1] < 1:  # with scikit-learn's wording
            noun, least = ("feature", 1) if table.shape[1] < 1 else ("sample", 2 if reset else 1)
            found = table.shape[1] if table.shape[1] < 1 else table.shape[0]
            shape = f" (shape={table.shape})" if self.rows_per_unit is None else ""  # the number of rows is private
            raise InvalidRecords(
                f"X: Found array with {found} {noun}(s){shape} while a minimum of {least} is required."
            )
        validate_data(self, X if table.names else table, reset=reset, skip_check_array=True)
        return table

    def _rows(self, X: Any, *more: Any, like: Rows | None = None) -> Rows:
        """Scaled rows with their caveats and those of ``more``; only their shape if X is `Unread`.

        With ``like``, the rows must have the same columns as those, and are scaled in the same way.
        """
        if isinstance(X, Unread):
            return Rows(jax.ShapeDtypeStruct((X.rows, X.columns), np.float32))
        table = self._read(X, reset=like is None, fitted=False)
        scaled, caveat = (None, None) if like is None else (like.scaling, None)
        if scaled is None:
            undeclared = self.data_norm is None and self.bounds is None and isinstance(X, EncodedRows | StreamedRows)
            scaled, caveat = scaling(table, X.data_norm if undeclared else self.data_norm, self.bounds)
        refuse, storage, mesh = self.invalid == "refuse", Storage.of(self.storage), mesh_of(self.devices)
        values = ScaledRows(scaled, table, refuse=refuse, storage=storage, mesh=mesh)
        return Rows(values, (*caveats_of((X, *more)), *([caveat] if caveat else [])), scaled)

    def _levels(self, upper: Sequence[Any], lower: Sequence[Any], owners: Owners | None) -> Levels:
        """Records of both levels: ``upper`` columns of a public selection of records, ``lower`` ones of the others."""
        if owners is None:
            return self._of_rows(split_levels(upper, lower, self.validation_fraction, self.split_seed))
        return owners.split(upper, lower)

    def _of_rows(self, records: dict[str, Tree]) -> Levels:
        """Records as they are. Lines of shapes are rows, or units if the estimator bounds their rows."""
        return Levels(records, planned_sizes(records, self), {})

    def _fit(self, prepared: Prepared, checkpoint: str | Path | None = None, *, saves_required: bool = True) -> Self:
        """Warn, execute the plan, and set the attributes of the fitted estimator."""
        seed = self._checked_seed()
        check_noise(self.noise, seed, "random_state")
        check_ledger(self.ledger)
        schedule = KeySchedule(seed)
        mesh = prepared.planned.sizes.mesh
        where = {"mesh": mesh, "storage": self.storage}
        records = Records(**prepared.records, **prepared.units, invalid=self.invalid, **where)
        job = job_of(mesh)
        # Warnings come before the charge: if a filter turns one into an error, nothing has been spent.
        with job.barrier("warnings"):
            if job.is_first:
                for caveat in prepared.caveats:
                    warnings.warn(caveat, PrivacyLeakWarning, stacklevel=3)
                self._warn_of_copies(stacklevel=3)
                warn_beforehand(prepared.planned.privacy, prepared.planned.remarks, stacklevel=3)
                warn_if_not_private(prepared.planned.budget, schedule, "random_state", stacklevel=4)
        copies = self._copies_caveat()
        known = (*prepared.caveats, *(() if copies is None else (copies,)))
        solution, result = execute(
            for_records(with_caveats(prepared.planned, before=known), records),
            records,
            schedule,
            ledger=self.ledger,
            checkpoint=checkpoint,
            legend=prepared.legend,
            facts=prepared.facts_as_text(),
            saves_required=saves_required,
        )
        if not result.usable and job.is_first:
            warn_afterwards(result.sentence, stacklevel=3)
        attributes = dict(prepared.finish(solution.x, solution.y))
        if prepared.errors is not None and STANDARD_ERRORS in solution.history:
            attributes |= prepared.errors(attributes, solution.history)
        return self._fitted(solution, attributes)

    def _fitted(self, solution: Solution, attributes: Mapping[str, Any]) -> Self:
        """Set the attributes of a fitted estimator."""
        self.solution_, self.privacy_ = solution, solution.privacy
        for name, value in attributes.items():
            setattr(self, name, value)
        return self

    def _plan(self, prepared: Prepared) -> Plan:
        """The plan of a fit, with the same warnings; for ``plan`` of every estimator."""
        warn_beforehand(prepared.planned.privacy, prepared.planned.remarks, stacklevel=3)
        return prepared.planned

    def _planned(
        self,
        problem: BilevelProblem,
        sizes: RecordShapes,
        first: Any = None,
        default: Method = DEFAULT_METHOD,
    ) -> Plan:
        """The plan of a fit to records of these shapes.

        Args:
            problem: the bilevel problem.
            sizes: shapes by role.
            first: where all hyperparameters start, or where each does.
            default: the method, unless the estimator has one.
        """
        sizes = replace(sizes, mesh=mesh_of(self.devices))
        rows = sum(map(sizes.count, sizes.roles))
        budget = self._budget(rows)
        method = default if self.method is None else self.method
        start = problem.start
        if first is not None and start is not None:
            start = np.full_like(start[0], first), start[1]
        planned = prepare(problem, sizes, budget, method, start, self._refit, self.noise)
        if self.delta is not None or not budget.is_private:
            return planned
        kind = "rows" if sizes.rows_per_unit is None else "units"
        reason = f"1/n^1.1 rounded down, n = {rows:,} {kind}, which is public"
        return replace(planned, parameters={**planned.parameters, "delta": (budget.delta, reason)})

    def _columns(self) -> list[str] | None:
        """Names of the columns that fit has seen; None if they have none."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(map(str, names))

    def _budget(self, rows: int) -> Budget:
        epsilon = positive("epsilon", self.epsilon, "it bounds the privacy loss (try 1.0)", infinite=True)
        delta = default_delta(rows) if self.delta is None and math.isfinite(epsilon) else self.delta
        return Budget(epsilon, delta, self.adjacency)  # type: ignore[arg-type]

    def _checked_seed(self) -> int | None:
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidArgument(
                f"random_state={seed!r}: must be None for a private fit, or a whole number >= 0, which fixes the noise"
            )
        return None if seed is None else int(seed)

    def _repr_html_inner(self) -> str:
        # scikit-learn's diagram, followed by the summary of the solution after a fit.
        return str(super()._repr_html_inner()) + self._card()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle = dict(super()._repr_mimebundle_(**options))
        if "text/html" in bundle:
            bundle["text/html"] += self._card()
        return bundle

    def _card(self) -> str:
        return solution_card(self.solution_) + shapes_card(self) if hasattr(self, "solution_") else ""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.invalid == "zero"
        return tags


def default_delta(rows: int) -> float:
    """1/n^1.1, rounded down to one digit.

    >>> default_delta(32_561), default_delta(1000)
    (1e-05, 0.0005)
    """
    exact = Decimal(rows**-1.1)  # a logarithm in floating point is off by one if this is a power of ten
    power = exact.adjusted()
    return float(f"{int(exact.scaleb(-power))}e{power}")
