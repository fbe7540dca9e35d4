"""After the charge nothing depends on records but releases: no shape, branch, early exit, callback or exception.

Every method runs on records that no computation survives; what it ran is then traced and looked at, operation by
operation. A compiled program of fixed shapes without branches and without a way out has no side channels left. The
lengths of its loops are public: numbers of rounds and of uses, which are inputs of the program.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import unit_neighbours
from support.compilations import counted
from support.every_method import BUDGET, METHODS, NUMBER, PROBLEM, SHORT, START, data, solved, spoiled
from support.loop_lengths import steered_loops

import dpbilevel as dpb
from dpbilevel import records as records_module
from dpbilevel.execution import segments
from dpbilevel.execution.parts import Opened, is_divided
from dpbilevel.execution.program import Call, Program, Stage
from dpbilevel.foundation.precision import is_double
from dpbilevel.foundation.tracing import _jaxprs
from dpbilevel.privacy.memory import Memory
from dpbilevel.records import Records, isolated_jax_config

pytestmark = pytest.mark.filterwarnings(
    "ignore::dpbilevel.PrivacyLeakWarning", "ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.NotPrivateWarning"
)

DEADLY = {"NaN": np.nan, "infinity": np.inf, "huge": 3e38, "tiny": 1e-45, "large": -NUMBER}
# Branches on values are `cond`; a scan has a fixed length, and a `while` that of its condition.
DOORS = ("callback", "debug", "feed", "print", "cond")


def doors(traced, numbers: int, rest: int) -> list[str]:
    """The operations of a traced program through which values could leave, or steer it.

    Its first inputs are public numbers, the last one is the number of rounds; the others, as many as ``rest``, are
    arrays of records, released values and keys.
    """
    names = {equation.primitive.name for jaxpr, _ in _jaxprs(traced) for equation in jaxpr.eqns}
    public = [*[True] * numbers, *[False] * rest, *[True] * (len(traced.jaxpr.invars) - numbers - rest)]
    found = [name for name in names if any(door in name for door in DOORS)]
    return sorted([*found, *map(str, traced.effects), *steered_loops(traced.jaxpr, public)])


def doors_of(program: Program, sizes: dpb.RecordShapes, state) -> list[str]:
    """Those of a whole program, as records execute it."""
    arrays = records_module._shapes(sizes)
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), state)
    found = []
    with isolated_jax_config():
        if program.is_compiled:
            keys, rounds = program.randomness_shapes(), jax.ShapeDtypeStruct((), jnp.int32)
            if is_divided(program):
                state, rounds = Opened.of(program, state, is_double()), jax.ShapeDtypeStruct((2,), jnp.int32)
            traced = records_module._execute.trace(program, is_double(), arrays, state, keys, rounds).jaxpr
            return doors(traced, len(jax.tree.leaves(program)), len(jax.tree.leaves((arrays, state, keys))))
        for stage in program.stages:
            if not isinstance(stage, Call):
                keys = jax.ShapeDtypeStruct((stage.keys_per_round, 2, 2), jnp.uint32)
                traced = records_module._execute_stage.trace(stage, is_double(), arrays, state, keys).jaxpr
                found += doors(traced, len(jax.tree.leaves(stage)), len(jax.tree.leaves((arrays, state, keys))))
    return found


@pytest.fixture
def executed(monkeypatch):
    """Every program that records execute, with sizes and state, as often as it is executed."""
    seen = []
    true = Records.execute

    def execute(self, program, receipt, schedule, state, rounds, *rest):
        seen.append(SimpleNamespace(program=program, sizes=self.sizes, state=state, rounds=rounds))
        return true(self, program, receipt, schedule, state, rounds, *rest)

    monkeypatch.setattr(Records, "execute", execute)
    return seen


def outline(executed, solution):
    """What an observer sees of a run besides values: shapes, rounds, charges."""
    shapes = jax.tree.map(np.shape, (solution.x, solution.y, dict(solution.history)))
    return [run.rounds for run in executed], shapes, solution.privacy.charges


@pytest.mark.parametrize("name", METHODS)
def test_a_charged_run_comes_to_its_end_whatever_records_hold(name, executed):
    charged = (
        {} if name == "OracleHyperparameters" else {"ledger": dpb.Ledger(dpb.Budget(20.0, 1e-2), composition="basic")}
    )
    seed = {"seed": 0} if name == "PrivateRandomSearch" else {}  # its number of runs is random, and secret
    plain = outline(executed, solved(name, dpb.Records(**data()), **charged, **seed))
    compiled = records_module._execute._cache_size(), records_module._execute_stage._cache_size()
    for value in DEADLY.values():
        executed.clear()
        solution = solved(name, spoiled(value), **charged, **seed)
        assert outline(executed, solution) == plain, "what is seen of a run depends on records"
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((solution.x, solution.y)))
    again = records_module._execute._cache_size(), records_module._execute_stage._cache_size()
    assert again == compiled, "a program was compiled again for other values"
    for ledger in charged.values():
        assert len(ledger.entries) == 1 + len(DEADLY)
    for run in {id(run.program): run for run in executed}.values():
        assert doors_of(run.program, run.sizes, run.state) == []


def tables_of_units():
    """Records of a list of units, one of whom has rows of every number and kind: none, more than k, unusable ones."""
    arrays, ids, one = unit_neighbours.table(), unit_neighbours.ids(), unit_neighbours.ids()["lower"][7]
    listed = {"upper": np.unique(ids["upper"]), "lower": np.arange(ids["lower"].min(), ids["lower"].max() + 5)}
    others = ids["lower"] != one
    for rows, value in ((3, 0.5), (0, 0.5), (1, 0.5), (9, 0.5), *((9, value) for value in DEADLY.values())):

        def changed(leaf, new, rows=rows):
            return np.concatenate([leaf[others][:50], np.full(rows, new, leaf.dtype), leaf[others][50:]])

        lower = {"source": changed(arrays["lower"]["source"], 1), "value": changed(arrays["lower"]["value"], value)}
        unit = {"upper": ids["upper"], "lower": changed(ids["lower"], one)}
        options = {"rows_per_unit": unit_neighbours.MOST, "unit_ids": listed, "invalid": "zero"}
        yield dpb.Records(upper=arrays["upper"], lower=lower, unit=unit, **options)


@pytest.mark.parametrize("name", ["Tracking, Poisson", "ScreenSources", "PrivateRandomSearch"])
def test_nothing_that_is_seen_of_a_run_on_units_depends_on_how_many_rows_they_have(name, executed):
    seen, compiled = [], []
    for held in tables_of_units():
        executed.clear()
        ledger = dpb.Ledger(dpb.Budget(20.0, 1e-2), composition="basic")
        seed = {"seed": 0} if name == "PrivateRandomSearch" else {}  # its number of runs is random, and secret
        solution = solved(name, held, ledger=ledger, **seed)
        seen.append((outline(executed, solution), solution.sizes, held.sizes, ledger.entries[0].rows_per_unit))
        compiled.append(records_module._execute._cache_size())
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((solution.x, solution.y)))
    assert all(one == seen[0] for one in seen), "what is seen of a run depends on rows of units"
    assert len(set(compiled)) == 1, "a program was compiled again for another number of rows"
    for run in {id(run.program): run for run in executed}.values():
        assert doors_of(run.program, run.sizes, run.state) == []


def doors_of_segments(program: Program, sizes: dpb.RecordShapes, state) -> list[str]:
    """Those of the programs that records on disk execute, step by step: everything in between is public."""
    found, use = [], jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), state)

    def look(compiled, public, values, *static):
        """The doors of one of them, given its public numbers and its values; returns the shape of what it returns."""
        traced = compiled.trace(public, *static, *values)
        jaxpr = traced.jaxpr
        found.extend(doors(jaxpr, len(jax.tree.leaves(public)), len(jax.tree.leaves(values))))
        return traced.out_info

    with isolated_jax_config():
        for stage in program.stages:
            precise, release = is_double(), stage.release
            carry = look(segments._begin, stage, (state,), precise)
            at, total, key, nobody = (state, carry, use), None, None, {}
            if release is not None:
                key = jax.ShapeDtypeStruct((2, 2), jnp.uint32)
                if not release.sampling.is_full_batch:
                    look(segments._draw, release, (jax.ShapeDtypeStruct((2,), jnp.uint32),))
                for role, part in release.contributions.items():
                    records = Memory.shapes(getattr(sizes, role))
                    mask = jax.ShapeDtypeStruct((part.count,), bool)
                    total = look(segments._sum, stage, (records, mask, at), role, precise)
                    nobody[role] = (records.arrays, None)
            state_after = look(segments._update, stage, (nobody, at, total, key), precise)
            look(segments._end, stage, (state, state_after), precise)
    return sorted(found)


@pytest.mark.parametrize("name", ["Tracking", "Tracking, Poisson"])
def test_a_charged_run_on_disk_comes_to_its_end_whatever_records_hold(name, executed, tmp_path):
    plain = outline(executed, solved(name, dpb.Records(**data(), storage=tmp_path)))
    with counted() as compiled:
        for value in DEADLY.values():
            executed.clear()
            solution = solved(name, spoiled(value, storage=tmp_path))
            assert outline(executed, solution) == plain, "what is seen of a run depends on records"
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((solution.x, solution.y)))
    assert compiled[0] == 0, "a program was compiled again for other values"
    for run in {id(run.program): run for run in executed}.values():
        assert doors_of_segments(run.program, run.sizes, run.state) == []


def test_an_evaluation_comes_to_its_end_whatever_a_model_says(executed):
    rows, labels = np.linspace(-1, 1, 80), np.arange(80) % 2
    for value in DEADLY.values():
        ledger = dpb.Ledger(BUDGET)
        said = np.where(np.arange(80) == 3, value, 0.5)
        scored = dpb.evaluate(
            lambda _, said=said: said, (rows, labels), BUDGET, metric="loss", loss_bound=1.0, ledger=ledger
        )
        assert np.isfinite(scored.values["loss"])
        assert len(ledger.entries) == 1
    assert doors_of(executed[0].program, executed[0].sizes, executed[0].state) == []


# ---- mutations: each door is seen


def looks(answer, step):
    jax.debug.callback(lambda value: None, answer)
    return answer


def asks(answer, step):
    return jax.pure_callback(lambda value: np.asarray(value), jax.ShapeDtypeStruct(answer.shape, answer.dtype), answer)


def branches(answer, step):
    return jax.lax.cond(answer[0] > 0, lambda: answer, lambda: -answer)


def ends_early(answer, step):
    return jax.lax.while_loop(lambda value: value[0] > 1, lambda value: value / 2, answer)


def counts(answer, step):
    """The loop of a public number, with a number that is released in its place."""
    return jax.lax.fori_loop(0, jnp.abs(answer[0]).astype(jnp.int32), lambda _, value: value / 2, answer)


def counts_on(answer, step):
    """A loop with a public bound that is raised while it runs."""
    bound = jnp.asarray(step + 3)
    return jax.lax.while_loop(
        lambda carry: carry[0] < carry[1],
        lambda carry: (carry[0] + 1, carry[1] - (carry[2][0] > 0), carry[2] / 2),
        (jnp.zeros_like(bound), bound, answer),
    )[2]


MUTANTS = [looks, asks, branches, ends_early, counts, counts_on]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_program_with_a_side_channel_is_noticed(mutant):
    release = dpb.Release(
        name="mean",
        contributions={"lower": dpb.Contribution(lambda point, record: record, 1.0, 4)},
        noise_std=1.0,
        uses=1,
    )
    stage = Stage(
        release=release,
        uses_per_round=1,
        query=lambda state, carry, step: 0.0,
        update=lambda state, carry, answer, step: mutant(answer, step),
        begin=lambda state: state,
        end=lambda state, carry: carry,
    )
    program = Program(
        rounds=1,
        stages=[stage],
        start=lambda x, y: x,
        observe=lambda state: state,
        finish=lambda state: (state, state),
    )
    for look in (doors_of, doors_of_segments):
        assert look(program, dpb.RecordShapes(lower=np.zeros((4, 3))), np.zeros(3, np.float32))


def test_a_loss_with_a_side_channel_is_refused_before_the_charge():
    ledger = dpb.Ledger(BUDGET)
    problem = dpb.BilevelProblem(
        upper_loss=PROBLEM.upper_loss,
        lower_loss=lambda x, y, record: looks(PROBLEM.lower_loss(x, y, record)[None], 0)[0],
        domain=dpb.Simplex(),
    )
    with pytest.raises(dpb.InvalidProblem, match="no side effects"):
        dpb.solve(problem, dpb.Records(**data()), BUDGET, start=START, refit=SHORT, ledger=ledger)
    assert ledger.entries == ()
