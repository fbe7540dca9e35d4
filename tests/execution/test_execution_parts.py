"""A round in parts: every step once, with its own noise, and the bits of one call."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import counted

import dpbilevel as dpb
from dpbilevel.execution import parts
from dpbilevel.execution.parts import Observer, is_divided, run_part
from dpbilevel.execution.program import Program, Stage
from dpbilevel.foundation.precision import is_double
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule
from dpbilevel.privacy.release import Release
from dpbilevel.records import Records, isolated_jax_config

ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32) / 4
START = np.zeros(3, np.float32)


def mean(point, record):
    return record - point


def one(state, carry, step):
    return carry[0] if isinstance(carry, tuple) else carry


def begun(state):
    """A carry of another kind than the state."""
    return state, jnp.ones((), jnp.int32)


def counting(state, carry, answer, step):
    return carry[0] + (carry[1] + step) * answer + 0.1 * state, carry[1] + 1


def ended(state, carry):
    return carry[0] / carry[1] - state


def moved(state, carry, answer, step):
    return carry + answer / (1 + step)


def doubled(state, carry, answer, step):
    return 2 * carry


def observed(state):
    return {"state": state}


def started(x, y):
    return x


def finished(state):
    return state, state


def program(uses=(1, 45, 3), rounds=1):
    """Stages with one use and with several, with carries of two kinds, and one without a release."""

    def release(name, number):
        declared = {"lower": dpb.Contribution(mean, 1.0, len(ROWS))}
        return Release(name=name, contributions=declared, noise_std=0.1, uses=rounds * number)

    first, second, third = (release(name, number) for name, number in zip("abc", uses, strict=True))
    stages = [
        Stage(release=first, query=one, update=moved, uses_per_round=uses[0]),
        Stage(release=second, query=one, update=counting, uses_per_round=uses[1], begin=begun, end=ended),
        Stage(release=None, update=doubled),
        Stage(release=third, query=one, update=moved, uses_per_round=uses[2]),
    ]
    return Program(rounds=rounds, stages=stages, start=started, observe=observed, finish=finished)


def executed(asked, **observed):
    records = Records(lower=ROWS)
    arguments = asked, Receipt(asked.releases), KeySchedule(0), START, asked.rounds, 0, Observer(**observed)
    state, history = records.execute(*arguments)
    return np.asarray(state), history["state"]


def at_once(asked):
    """The state after one call of the whole loop."""
    randomness = asked.randomness(KeySchedule(0), 0, 1)
    records = {"lower": (ROWS, np.ones(len(ROWS), bool))}

    @jax.jit
    def whole(asked, records, state, randomness):
        def answer(release, point, keys):
            return Release.answer(release, records, point, keys)

        with jax.enable_x64(is_double()):
            return asked.loop(answer, state, randomness, 1)

    with isolated_jax_config():
        state, _ = whole(asked, records, START, randomness)
    return np.asarray(state)


@pytest.mark.parametrize("uses", [(1, 45, 3), (1, 2, 1), (3, 1, 1)])
def test_parts_are_the_steps_of_one_call(uses):
    asked = program(uses)
    assert is_divided(asked)
    told = []
    state, history = executed(asked, advance=told.append)
    np.testing.assert_allclose(state, at_once(asked), rtol=1e-5)  # another program may round differently
    np.testing.assert_array_equal(history, state[None])
    assert sum(told) == sum(uses)
    assert len(told) == min(20, -(-(sum(uses) + 1) // -(-(sum(uses) + 1) // 20)))


@pytest.mark.parametrize("number", [1, 2, 7, 1000])
def test_any_number_of_parts_gives_the_same_bits(monkeypatch, number):
    expected, _ = executed(program())
    monkeypatch.setattr(parts, "_PARTS", number)
    told = []
    state, _ = executed(program(), advance=told.append)
    np.testing.assert_array_equal(state, expected)
    assert max(told) <= -(-50 // number)


def test_all_parts_are_one_program_whatever_their_steps():
    executed(program((1, 45, 3)))
    with counted() as compiled:
        executed(program((1, 31, 8)))
    assert compiled[0] == 0


def test_programs_of_many_rounds_or_of_one_step_are_not_divided():
    assert not is_divided(program(rounds=2))
    single = program()
    assert not is_divided(replace(single, stages=single.stages[:1]))


@pytest.mark.parametrize("mutant", ["a step twice", "a step left out", "begins twice"])
def test_steps_that_are_not_run_once_are_noticed(monkeypatch, mutant):
    """A step that is run again uses its noise twice: the difference of the answers would have none."""
    change = {"a step twice": (0, 1), "a step left out": (1, 0), "begins twice": (0, 0)}[mutant]

    def broken(program, answer, start, randomness, steps):
        if mutant == "begins twice":
            start = parts.Opened(start.state, jax.tree.map(jnp.zeros_like, start.carries))
        return run_part(program, answer, start, randomness, steps + np.array(change, np.int32))

    expected, _ = executed(program())
    monkeypatch.setattr("dpbilevel.records.run_part", broken)
    state, _ = executed(program())
    assert not np.array_equal(state, expected)
