"""Numbers are passed to compiled programs: another one compiles nothing, and what was charged is what runs."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.compilations import counted
from support.every_method import PROBLEM, START, data

import dpbilevel as dpb
from dpbilevel import baselines
from dpbilevel import records as records_module
from dpbilevel.checkpoint import fingerprint as fingerprint_module
from dpbilevel.checkpoint.fingerprint import fingerprint
from dpbilevel.errors import NotCharged
from dpbilevel.estimators import DPLogisticRegressionCV
from dpbilevel.execution.program import Program, Stage
from dpbilevel.privacy.calibration import calibrate
from dpbilevel.privacy.ledger import Receipt
from dpbilevel.privacy.noise import KeySchedule

pytestmark = pytest.mark.filterwarnings(
    "ignore::dpbilevel.PrivacyLeakWarning", "ignore::dpbilevel.UtilityWarning", "ignore::dpbilevel.NotPrivateWarning"
)

ROWS = np.linspace(-1, 1, 180).reshape(90, 2).astype(np.float32)
REFIT = dpb.Refit(steps=12)


def records() -> dpb.Records:
    return dpb.Records(**data())  # of the problem that other files solve: what they compile serves these runs


def solved(method, epsilon=3.0, delta=1e-4, seed=0, **settings):
    return dpb.solve(PROBLEM, records(), dpb.Budget(epsilon, delta), start=START, method=method, seed=seed, **settings)


def searched(search, epsilon=3.0, seed=0):
    return search.solve(PROBLEM, records(), dpb.Budget(epsilon, 1e-4), start=START, seed=seed)


def bilevel(inner, **settings):
    given = {"strong_convexity": 1.0, "steps": 4, **inner.pop("settings", {})}
    return dpb.DPBilevel(inner=inner["kind"](**given), steps=settings.pop("steps", 3), step_size=0.1, **settings)


def loc_gd(**settings):
    return {"kind": dpb.DPLocGD, "settings": settings}


def loc_sgd(**settings):
    return {"kind": dpb.DPLocSGD, "settings": {"sampling": dpb.Poisson(0.5)} | settings}


def scored(epsilon=1.0, delta=1e-4, seed=0):
    return dpb.evaluate(lambda rows: rows[:, 0] > 0.1, (ROWS, ROWS[:, 0] > 0), dpb.Budget(epsilon, delta), seed=seed)


def fitted(epsilon=1.0, seed=0, **method):
    model = DPLogisticRegressionCV(
        epsilon=epsilon, method=dpb.Tracking(steps=25, **method), data_norm=2.0, classes=[0, 1], random_state=seed
    )
    return model.fit(ROWS, (ROWS[:, 0] > 0).astype(int))


SEARCH = {"training": REFIT, "score_range": (0.0, 1.0)}
# name -> the first run, then runs with other numbers
CASES = {
    "Tracking": [
        lambda: solved(dpb.Tracking(steps=30), refit=REFIT),
        lambda: solved(dpb.Tracking(steps=30), refit=REFIT, epsilon=5.0),
        lambda: solved(dpb.Tracking(steps=30), refit=REFIT, delta=1e-5, seed=7),
        lambda: solved(dpb.Tracking(steps=30, clip_norm=3.0), refit=replace(REFIT, clip_norm=2.0)),
        lambda: solved(dpb.Tracking(steps=47), refit=dpb.Refit(steps=31, learning_rate=0.1, share=0.3)),
    ],
    "DPBilevel with DPLocGD": [
        lambda: solved(bilevel(loc_gd())),
        lambda: solved(bilevel(loc_gd()), epsilon=300.0),  # more rounds of localisation
        lambda: solved(bilevel(loc_gd(), penalty_weight=7, clip_norm=2.0), seed=5),
        lambda: solved(bilevel(loc_gd(steps=9, clip_norm=3.0, strong_convexity=2.0, radius=4.0), steps=7)),
    ],
    "DPBilevel with DPLocSGD": [
        lambda: solved(bilevel(loc_sgd())),
        lambda: solved(bilevel(loc_sgd(), penalty_weight=5.0), epsilon=5.0),
        lambda: solved(bilevel(loc_sgd(steps=5, clip_norm=0.5), steps=2)),
    ],
    "FixedDefault": [
        lambda: searched(baselines.FixedDefault(training=REFIT)),
        lambda: searched(baselines.FixedDefault(training=dpb.Refit(steps=9, learning_rate=0.1)), epsilon=1.0),
    ],
    "UpperRecordsOnly": [
        lambda: searched(baselines.UpperRecordsOnly(training=REFIT)),
        lambda: searched(baselines.UpperRecordsOnly(training=REFIT), epsilon=1.0),
    ],
    "NaiveGridSearch": [
        lambda: searched(baselines.NaiveGridSearch(candidates=[np.eye(3)[0], np.eye(3)[1]], **SEARCH)),
        lambda: searched(baselines.NaiveGridSearch(candidates=[np.ones(3) / 3, np.eye(3)[2]], **SEARCH), epsilon=1.0),
    ],
    "PrivateRandomSearch": [
        lambda: searched(baselines.PrivateRandomSearch(candidates=[np.eye(3)[0]], mean_runs=2.0, **SEARCH)),
        lambda: searched(
            baselines.PrivateRandomSearch(candidates=[np.eye(3)[1]], mean_runs=3.0, **SEARCH), epsilon=1.0, seed=1
        ),
    ],
    "ScreenSources": [
        lambda: searched(baselines.ScreenSources(source=source, training=REFIT)),
        lambda: searched(baselines.ScreenSources(source=source, training=REFIT, loss_range=(0, 1)), epsilon=1.0),
    ],
    "evaluate": [scored, lambda: scored(epsilon=2.0), lambda: scored(delta=1e-5, seed=3)],
    "DPLogisticRegressionCV": [
        fitted,
        lambda: fitted(epsilon=2.0),
        lambda: fitted(seed=3, clip_norm=0.5),
    ],
}


def source(record):
    return record["source"]


@pytest.mark.parametrize("name", CASES)
def test_another_number_compiles_nothing(name):
    first, *others = CASES[name]
    first()
    for place, run in enumerate(others):
        with counted() as compiled:
            run()
        assert compiled[0] == 0, f"run {place + 2} of {name}"


@dataclass(frozen=True)
class Baked:
    """A method whose number is part of its code: it is compiled for every plan, and right."""

    step_size: float = 0.5

    def program(self, context):
        declared = dpb.Release(
            name="mean",
            contributions={"lower": dpb.Contribution(mean, 1.0, context.sizes.count("lower"))},
            noise_std=1.0,
            uses=3,
        )
        (release,) = calibrate([declared], context.budget)
        stage = Stage(
            release=release,
            query=lambda state, carry, step: carry["y"],
            update=lambda state, carry, answer, step: carry | {"y": carry["y"] - self.step_size * answer},
        )
        program = Program(
            rounds=3,
            stages=[stage],
            start=lambda x, y: {"x": x, "y": y},
            observe=lambda state: {"y": state["y"]},
            finish=lambda state: (state["x"], state["y"]),
        )
        return program, {}


def mean(point, record):
    return point - record["value"]


def test_a_number_that_is_part_of_the_code_compiles_again_and_is_right():
    first = solved(Baked(step_size=0.5), epsilon=50.0)
    with counted() as compiled:
        other = solved(Baked(step_size=0.25), epsilon=50.0)
    assert compiled[0] > 0
    steps = [np.diff(solution.history["y"], axis=0)[0] for solution in (first, other)]
    assert not np.allclose(*steps)


# ---- what was charged is what runs


def asking(noise_std: float, clip: float = 10.0, uses: int = 2) -> Program:
    release = dpb.Release(
        name="mean",
        contributions={"lower": dpb.Contribution(value, clip, 4)},
        noise_std=noise_std,
        uses=uses,
    )
    return Program(
        rounds=uses,
        stages=[Stage(release=release, query=nothing, update=kept)],
        start=lambda x, y: x,
        observe=itself,
        finish=lambda state: (state, state),
    )


def value(point, record):
    return record


def nothing(state, carry, step):
    return ()


def kept(state, carry, answer, step):
    return answer


def itself(state):
    return state


def answers(program: Program, charged: Program | None = None) -> np.ndarray:
    held = dpb.Records(lower=np.full((4, 3), 2.0))
    receipt = Receipt((charged or program).releases)
    return held.execute(program, receipt, KeySchedule(0), np.zeros(3, np.float32), program.rounds)[1]


def noise_and_clip_are_those_of_the_release() -> bool:
    quiet, loud = asking(1e-3), asking(4e-3)
    ratio = (answers(loud) - 2.0) / (answers(quiet) - 2.0)
    short = answers(asking(1e-6, clip=0.5))
    return bool(np.allclose(ratio, 4.0, rtol=1e-2)) and bool(np.allclose(np.linalg.norm(short, axis=1), 0.5, rtol=1e-2))


def test_noise_and_clips_are_those_of_the_charged_releases():
    answers(asking(1e-3))
    with counted() as compiled:
        assert noise_and_clip_are_those_of_the_release()
    assert compiled[0] == 0, "with one program for all of them"


def test_a_program_that_runs_with_numbers_of_another_is_noticed(monkeypatch):
    """A mutation: code is compiled with the numbers of the first program."""
    first, true = [], records_module._execute

    def stale(program, *arguments):
        first.append(program)
        return true(first[0], *arguments)

    monkeypatch.setattr(records_module, "_execute", stale)
    assert not noise_and_clip_are_those_of_the_release()


def test_a_program_with_less_noise_than_was_charged_is_refused():
    charged, quieter = asking(1.0), asking(1e-9)
    with pytest.raises(NotCharged):
        answers(quieter, charged)
    (stage,) = charged.stages
    changed = replace(charged, stages=[replace(stage, release=replace(stage.release, noise_std=0.0))])
    with pytest.raises(NotCharged):
        answers(changed, charged)


def test_rounds_beyond_one_call_are_the_rounds_of_many_calls():
    whole = answers(asking(1.0, uses=120))
    held, program = dpb.Records(lower=np.full((4, 3), 2.0)), asking(1.0, uses=120)
    receipt, schedule, state, parts = Receipt(program.releases), KeySchedule(0), np.zeros(3, np.float32), []
    assert program.capacity < 120
    for rounds in (1, 7, 50, 62):
        state, rows = held.execute(program, receipt, schedule, state, rounds)
        parts.append(rows)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole)) == whole.size, "no use repeats the noise of another"
    with pytest.raises(NotCharged):
        held.execute(program, receipt, schedule, state, 1)


# ---- a checkpoint knows the numbers


def same_fingerprints(**number) -> set[str]:
    """Arguments that two plans with different numbers have in common, of those that describe what runs."""
    given = {"epsilon": 3.0, "learning_rate": 0.2} | number
    shapes = records().sizes
    plans = [
        dpb.plan(PROBLEM, shapes, dpb.Budget(one["epsilon"], 1e-4), start=START, method=dpb.Tracking(steps=30),
                 refit=dpb.Refit(steps=12, learning_rate=one["learning_rate"]))
        for one in ({"epsilon": 3.0, "learning_rate": 0.2}, given)
    ]  # fmt: skip
    one, other = (fingerprint(b"0" * 32, plan, KeySchedule(0), [2, 1]) for plan in plans)
    return {name for name in one if one[name] == other[name]}


@pytest.mark.parametrize("number", [{"epsilon": 2.0}, {"learning_rate": 0.1}], ids=str)
def test_the_fingerprint_of_a_program_has_its_numbers(number, monkeypatch):
    assert "problem" in same_fingerprints()
    assert "problem" not in same_fingerprints(**number)
    monkeypatch.setattr(fingerprint_module, "numbers_as_bytes", lambda program: b"")  # a mutation
    assert "problem" in same_fingerprints(**number)
