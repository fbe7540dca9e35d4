"""Plans: what a run will do and cost, from public facts only, before any record is read."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dpbilevel.constraints import Domain, contains
from dpbilevel.errors import InvalidArgument, InvalidProblem
from dpbilevel.execution.notices import memory_remarks, noise_remarks, warn_beforehand
from dpbilevel.execution.program import Program
from dpbilevel.foundation.arguments import one_of
from dpbilevel.foundation.precision import is_double, user_float
from dpbilevel.foundation.tables import short
from dpbilevel.inner.solver import InnerSolver
from dpbilevel.methods.context import PublicContext
from dpbilevel.methods.refit import Refit
from dpbilevel.methods.tracking.tracking import Tracking
from dpbilevel.methods.unit_costs import unit_costs, units_needed
from dpbilevel.methods.unit_losses import problem_for_records
from dpbilevel.privacy.accounting import Chargeable, all_charges
from dpbilevel.privacy.budget import Budget
from dpbilevel.privacy.bundles import is_packed
from dpbilevel.privacy.calibration import for_exact_noise
from dpbilevel.privacy.declared import DeclaredRelease
from dpbilevel.privacy.parts import job_of
from dpbilevel.privacy.record_shapes import RecordShapes
from dpbilevel.privacy.release import Release
from dpbilevel.privacy.sampling import Sampling
from dpbilevel.privacy.spend import Privacy
from dpbilevel.problem import BilevelProblem, inspect
from dpbilevel.records import answer_dimensions, check_traceable

Tree = Any


@runtime_checkable
class Method(Protocol):
    """An outer algorithm, which turns public facts into declared releases and a program."""

    def __hash__(self) -> int:
        """Methods are frozen settings: equal settings give the same plan."""

    def program(self, context: PublicContext) -> tuple[Program, dict[str, tuple[Any, str]]]:
        """The program of the method for a problem, and its parameters with the reason for each value."""


DEFAULT_METHOD: Method = Tracking()
NOISES = ("float", "exact")


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The plan of a run: what is released, how often, with how much noise, and why. `solve` executes it.

    Attributes:
        problem: the bilevel problem.
        sizes: number of records in each role, and the shape of one record.
        budget: privacy budget of the run.
        start: (x0, y0), as JAX arrays.
        method: the method that tunes x.
        refit: settings of the final training; None if there is none.
        noise: "float" or "exact", how noise is drawn.
        program: program of the method.
        training: program of the final training; None if there is none.
        parameters: every parameter of the plan with the reason for its value.
        privacy: the spend of the run, as in its solution.
        remarks: sentences on where noise will dominate, and on bundles of units that take much memory; `plan` and
            `solve` warn about them (`UtilityWarning`).
    """

    problem: BilevelProblem
    sizes: RecordShapes
    budget: Budget
    start: tuple[Tree, Tree]
    method: Method
    refit: Refit | None
    noise: str
    program: Program
    training: Program | None
    parameters: Mapping[str, tuple[Any, str]]
    privacy: Privacy
    remarks: tuple[str, ...]

    @property
    def parts(self) -> tuple[Program, ...]:
        """The programs that run, in order: tuning, and the final training if there is one."""
        return (self.program,) if self.training is None else (self.program, self.training)

    @property
    def releases(self) -> tuple[Chargeable, ...]:
        """All declared releases, of tuning and of training."""
        return tuple(release for part in self.parts for release in part.releases)

    def explain(self) -> str:
        """Every parameter with the reason for its value, one per line."""
        width = max(map(len, self.parameters), default=0)
        lines = [f"{name:<{width}}  {short(value):<14}  {why}" for name, (value, why) in self.parameters.items()]
        return "\n".join([self.privacy.sentence(), *self.remarks, *lines])

    def _repr_html_(self) -> str:
        """A compact card, for notebooks."""
        from dpbilevel.report.privacy_cards import plan_card

        return plan_card(self)

    def __repr__(self) -> str:
        uses = sum(release.uses for release in self.releases)
        return f"Plan({type(self.method).__name__}, {uses} releases on {self.sizes!r}: {self.privacy.label()})"


def plan(
    problem: BilevelProblem,
    sizes: RecordShapes,
    budget: Budget,
    *,
    start: tuple[Tree, Tree] | None = None,
    method: Method = DEFAULT_METHOD,
    refit: Refit | str | None = "auto",
    noise: str = "float",
) -> Plan:
    """Plan a run from public facts: record shapes, budget, method, starting point and final training.

    Reads no record and charges nothing. All errors in the arguments are found here, by tracing the losses on shapes, so
    that `solve` fails before its charge or not at all. The arguments are those of `solve`, and ``solve(plan, records)``
    executes what was planned.
    """
    planned = prepare(problem, sizes, budget, method, start, refit, noise)
    warn_beforehand(planned.privacy, planned.remarks, stacklevel=2)
    return planned


def prepare(
    problem: BilevelProblem,
    sizes: RecordShapes,
    budget: Budget,
    method: Method,
    start: tuple[Tree, Tree] | None,
    refit: Refit | str | None = "auto",
    noise: str = "float",
) -> Plan:
    """The same as `plan`, without warnings."""
    _check_type("problem", problem, BilevelProblem, "dpb.BilevelProblem(...)")
    _check_type("sizes", sizes, RecordShapes, "records.sizes, or dpb.RecordShapes(...) to plan without data")
    _check_type("budget", budget, Budget, "dpb.Budget(epsilon, delta)")
    _check_type("method", method, Method, "a method such as dpb.DPBilevel(inner=dpb.DPLocGD(...))")
    if isinstance(refit, str) and refit == "auto":
        refit = getattr(method, "default_refit", None)
    if refit is not None and not isinstance(refit, Refit):
        raise InvalidArgument(
            f'refit={refit!r}: must be dpb.Refit(...), "auto" for the method\'s default, or None for none'
        )
    one_of("noise", noise, NOISES, "it selects how noise is drawn")
    x, y = checked_start(problem, start)
    _check_levels(problem, sizes)
    check_delta(budget, sum(map(sizes.count, sizes.roles)))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (x, y))
    leaves, structure = jax.tree.flatten(shapes)
    planned = _planned(problem, sizes, budget, method, refit, structure, tuple(leaves), is_double(), noise)
    # The cached plan is shared between callers: each gets its own starting point and dictionaries.
    privacy = replace(planned.privacy, charges=dict(planned.privacy.charges))
    return replace(planned, start=(x, y), privacy=privacy, parameters=dict(planned.parameters))


def with_caveats(planned: Plan, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> Plan:
    """The same plan with additional caveats, before and after its own; each is kept once."""
    caveats = tuple(dict.fromkeys((*before, *planned.privacy.caveats, *after)))
    return replace(planned, privacy=replace(planned.privacy, caveats=caveats))


@functools.lru_cache(maxsize=16)
def _planned(
    problem: BilevelProblem,
    sizes: RecordShapes,
    budget: Budget,
    method: Method,
    refit: Refit | None,
    structure: Any,
    leaves: tuple[Any, ...],
    double: bool,
    noise: str,
) -> Plan:
    # Cached only because compiled programs are cached by the program that a plan holds: a second plan of the same
    # problem does not compile again. No run needs the cache to find its own plan, which it carries.
    x, y = jax.tree.unflatten(structure, leaves)
    inspection = inspect(problem, x, y, {level: sizes.row(level) for level in ("upper", "lower")})
    of_records = problem_for_records(problem, sizes)
    if of_records is not problem:
        units = {level: sizes.record(level) for level in ("upper", "lower")}
        inspection = replace(inspect(of_records, x, y, units), caveats=inspection.caveats)
    exact = noise == "exact"
    if exact:
        _check_exact(method)
    context = PublicContext(of_records, inspection, sizes, for_exact_noise(budget) if exact else budget, (x, y))
    program, training, parameters = _programs(context, method, refit)
    if exact:
        program = _discretize(program, context)
        training = None if training is None else _discretize(training, context)
        parameters = parameters | _exact_parameters(program, training)
    parameters = parameters | units_needed(sizes, parameters) | unit_costs(sizes) | _devices(sizes)
    parts = (program,) if training is None else (program, training)
    _check_calls(parts, sizes)
    for part in parts:
        check_traceable(part, sizes, jax.eval_shape(part.start, x, y))
    releases = tuple(release for part in parts for release in part.releases)
    schemes = dict.fromkeys(r.sampling.assumption for r in releases if isinstance(r, Release))
    caveats = (
        *inspection.caveats,
        *(r.assumption for r in releases if isinstance(r, DeclaredRelease)),
        *(assumption for assumption in schemes if assumption is not None),
    )
    most = sizes.rows_per_unit
    privacy = Privacy(all_charges(releases), budget, caveats, void=not budget.is_private, rows_per_unit=most)
    remarks = noise_remarks(parameters, releases, sum(map(sizes.count, sizes.roles)), budget)
    if not (is_packed(most, sizes.mesh) and all(part.is_compiled for part in parts)):
        remarks = (*remarks, *memory_remarks(most, sizes.mean_rows))
    return Plan(
        problem=problem,
        sizes=sizes,
        budget=budget,
        start=(x, y),  # their shapes, on which programs depend; `prepare` puts the values in their place
        method=method,
        refit=refit,
        noise=noise,
        program=program,
        training=training,
        parameters=parameters,
        privacy=privacy,
        remarks=remarks,
    )


def _check_exact(setting: Any) -> None:
    """Raise where exact noise is not supported, before a slow calibration; `Program.discretized` checks the rest."""
    if isinstance(setting, InnerSolver) and not setting.calibrated:
        raise InvalidArgument(
            'noise="exact": does not apply to a black box, which draws its own noise (leave noise="float")'
        )
    if isinstance(setting, Sampling) and not setting.is_full_batch:
        raise InvalidArgument(
            f'sampling={setting!r}: must be dpb.FullBatch() for noise="exact" (or leave noise="float")'
        )
    if is_dataclass(setting) and not isinstance(setting, type):
        for field in fields(setting):
            _check_exact(getattr(setting, field.name))


def _check_calls(parts: Sequence[Program], sizes: RecordShapes) -> None:
    """Raise unless declared costs are those of the records: of rows, or of units with as many rows."""
    most = sizes.rows_per_unit or 1
    for release in (release for part in parts for release in part.releases if isinstance(release, DeclaredRelease)):
        declared = release.rows_per_unit or 1
        if most > declared:
            cost = "a record with one row" if declared == 1 else f"a unit of at most {declared} rows"
            raise InvalidArgument(
                f"rows_per_unit={most}: must be at most {declared} for {release.name!r}, whose declared cost is that "
                f"of {cost}; use fewer rows per unit, declare the cost of a unit "
                "(dpb.BlackBox(..., rows_per_unit=...)), or take an inner solver of the library"
            )
        if most == 1 < declared:
            raise InvalidArgument(
                f"rows_per_unit={declared}: must be left out of {release.name!r} for records that are rows; its "
                "trainer takes units of several rows"
            )


def _discretize(program: Program, context: PublicContext) -> Program:
    """The program with exact noise in all of its releases; methods declare releases without regard to it."""
    if not program.is_compiled:
        return program.discretized({})  # raises
    return program.discretized(answer_dimensions(program, context.sizes, jax.eval_shape(program.start, *context.point)))


def _exact_parameters(*programs: Program | None) -> dict[str, tuple[Any, str]]:
    parameters: dict[str, tuple[Any, str]] = {
        "noise": ("exact", "integer noise on integer sums, by OpenDP; accounted for by zCDP, which needs more noise")
    }
    for release in (release for program in programs if program is not None for release in program.releases):
        if isinstance(release, Release) and release.grid is not None:
            reason = "grid of the answer, a power of two; each record's vector is rounded to it after clipping"
            parameters[f"{release.name}: unit"] = (release.grid.unit, reason)
            parameters[f"{release.name}: noise in units"] = (release.scale, "the scale of the discrete Gaussian")
    return parameters


def _devices(sizes: RecordShapes) -> dict[str, tuple[Any, str]]:
    if sizes.mesh is None:
        return {}
    found: dict[str, tuple[Any, str]] = {
        "devices": (sizes.mesh.size, "records are divided among them, and clipped sums are merged once per pass")
    }
    if (processes := job_of(sizes.mesh).count) > 1:
        found["processes"] = (processes, "each has its part of the devices and of the records")
    return found


def _programs(
    context: PublicContext, method: Method, refit: Refit | None
) -> tuple[Program, Program | None, dict[str, tuple[Any, str]]]:
    """The program of the method and that of the final training, each with its share of the budget."""
    if refit is None:
        program, parameters = method.program(context)
        return program, None, parameters
    for gaussian in (True, False):
        tuning, rest, share = refit.budgets(context.budget, context.sizes, gaussian)
        program, parameters = method.program(replace(context, budget=tuning))
        charges = [charge for release in program.releases for charge in release.charges()]
        if not context.budget.is_private or all(charge.is_gaussian for charge in charges):
            break  # otherwise mu^2 cannot be split, and epsilon and delta are split instead
    training, training_parameters = refit.program(replace(context, budget=rest))
    shares = {"share of the budget for tuning": (share, "the rest trains the model at the final x")}
    return program, training, parameters | shares | training_parameters


def checked_start(problem: BilevelProblem, start: Any) -> tuple[Tree, Tree]:
    """The starting point as JAX arrays (the problem's own for None), or a typed error."""
    if start is None:
        start = problem.start
    if start is None:
        raise InvalidArgument("start: must be a pair (x0, y0) of pytrees; the problem has no start of its own")
    if not isinstance(start, tuple) or len(start) != 2:
        raise InvalidArgument("start: must be a pair (x0, y0) of pytrees of real arrays")
    x, y = (_floating(name, tree) for name, tree in zip(("x0", "y0"), start, strict=True))
    _check_inside("x0", x, "domain", problem.domain)
    _check_inside("y0", y, "lower_domain", problem.lower_domain)
    return x, y


def _floating(name: str, tree: Tree) -> Tree:
    if not jax.tree.leaves(tree):
        raise InvalidArgument(f"start: {name} has no arrays; give at least one real number")

    def convert(leaf: Any) -> jax.Array:
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise InvalidArgument(
                f"start: {name} has a leaf of dtype {dtype}; must be floating point, otherwise gradient steps would be "
                "rounded away (try 0.0 instead of 0, or array.astype(float))"
            )
        with np.errstate(over="ignore"):
            array = np.asarray(leaf).astype(user_float())
        if not np.isfinite(array).all():
            raise InvalidArgument(f"start: {name} must be finite in {array.dtype} (try zeros)")
        return jnp.asarray(array)

    return jax.tree.map(convert, tree)


def _check_inside(name: str, point: Tree, domain_name: str, domain: Domain) -> None:
    try:
        inside = contains(domain, point)
    except (TypeError, ValueError) as error:
        raise InvalidProblem(
            f"{domain_name}: its structure does not fit {name}; use one set for the whole point, or a pytree of sets "
            "with the point's structure"
        ) from error
    if not inside:
        raise InvalidArgument(f"start: {name} lies outside {domain_name}={domain!r}; start inside it")


def check_delta(budget: Budget, records: int) -> None:
    """Raise unless delta is below 1/n for the public number n of records."""
    if budget.is_private and budget.delta is not None and budget.delta >= 1 / records:
        raise InvalidArgument(
            f"delta={budget.delta!r}: must be below 1/n = {1 / records:.3g}; a larger delta would allow publishing a "
            f"whole record (try {0.1 / records:.0e})"
        )


def _check_levels(problem: BilevelProblem, sizes: RecordShapes) -> None:
    for level in ("upper", "lower"):
        loss, role = problem.loss(level), sizes.role_of(level)
        if loss is not None and role is None:
            raise InvalidProblem(f"{level}_loss: has no records; pass Records({level}=...), or leave the loss out")
        if loss is None and role == level:
            raise InvalidProblem(
                f"{level}_loss: is missing, but Records has {level}=...; give the loss or drop the records"
            )


def _check_type(name: str, value: Any, expected: type, remedy: str) -> None:
    if not isinstance(value, expected) or isinstance(value, type):
        raise InvalidArgument(f"{name}: must be {remedy}, not {type(value).__name__}")
