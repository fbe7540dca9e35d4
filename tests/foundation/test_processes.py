"""Messages of the processes of a job: what all know, what one raises, where one waits. Processes are threads here."""

import contextlib
import threading
import time

import numpy as np
import pytest

from dpbilevel import errors
from dpbilevel.errors import BudgetExceeded, JobFailed
from dpbilevel.foundation import processes
from dpbilevel.foundation.processes import ALONE, Job, current, reached


class Service:
    """A store of messages like JAX's."""

    def __init__(self):
        self.values, self.lock = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.lock:
            assert key not in self.values
            self.values[key] = value
            self.lock.notify_all()

    def key_value_delete(self, key):
        with self.lock:
            self.values.pop(key, None)

    def blocking_key_value_get(self, key, milliseconds):
        with self.lock:
            if not self.lock.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: too late")
            return self.values[key]


@pytest.fixture
def service(monkeypatch):
    found = Service()
    monkeypatch.setattr(processes, "_service", lambda: found)
    monkeypatch.setattr(processes, "_POLLING", 20)
    monkeypatch.setattr(processes, "_LEAVING", 200)
    return found


def ran(action, count=3):
    """What ``action`` of each process of a job returns, or raises."""
    found = {}

    def run(index):
        try:
            found[index] = action(Job(count, index))
        except Exception as error:
            found[index] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a process hangs"
    return [found[index] for index in range(count)]


def test_alone_a_process_talks_to_itself():
    assert current() is ALONE
    assert (ALONE.is_first, ALONE.is_several) == (True, False)
    assert ALONE.exchange("here", "text") == ["text"]
    assert ALONE.first("here", lambda: "said") == "said"
    assert ALONE.by_first("here", lambda: 1, lambda: 2) == 1
    assert ALONE.broadcast(b"secret") == b"secret"
    assert ALONE.broadcast_arrays({"a": np.ones(2)})["a"].tolist() == [1, 1]
    assert ALONE.leave(3) == 3
    ALONE.agree({"names": "a"})
    with pytest.raises(KeyError), ALONE.barrier("here"):
        raise KeyError("own")


def test_texts_come_in_the_order_of_processes(service):
    def action(job):
        time.sleep(0.05 * (2 - job.index))
        return job.exchange("one", f"text {job.index}"), job.exchange("two")

    assert ran(action) == [(["text 0", "text 1", "text 2"], ["", "", ""])] * 3


def test_messages_that_all_have_read_are_removed(service):
    ran(lambda job: [job.exchange("place", str(number)) for number in range(50)])
    assert len(service.values) <= 2 * 3


def test_the_first_alone_acts_and_the_others_wait_for_it(service):
    done = []

    def action(job):
        def charge():
            time.sleep(0.2)
            done.append(job.index)
            return "receipt"

        return job.by_first("charge", charge, lambda: f"follows {done}"), job.first("name", lambda: f"of {job.index}")

    assert ran(action) == [("receipt", "of 0"), ("follows [0]", "of 0"), ("follows [0]", "of 0")]


@pytest.mark.parametrize("place", [0, 2])
def test_what_one_raises_all_raise(service, place):
    def action(job):
        with job.barrier("records"):
            if job.index == place:
                raise BudgetExceeded("needs more")
        return "went on"

    assert ran(action) == ["BudgetExceeded: needs more"] * 3


def test_every_error_of_the_library_arrives_as_what_it_is(service):
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        if issubclass(kind, Warning):
            continue

        def action(job, kind=kind):
            job.first("place", lambda: (_ for _ in ()).throw(kind("text")))

        service.values.clear()
        assert ran(action, 2) == [f"{kind.__name__}: text"] * 2


def test_what_other_errors_say_is_not_sent(service):
    def action(job):
        with job.telling():
            if job.index == 1:
                raise ValueError("cell 987654.25")
            job.exchange("next")

    first, own, other = ran(action)
    assert own == "ValueError: cell 987654.25"
    assert first == other
    assert first.startswith("JobFailed: processes: 1 ended with ValueError; what it said is withheld")


def test_a_job_goes_on_after_an_error_that_all_raised(service):
    def action(job):
        with contextlib.suppress(BudgetExceeded), job.telling(), job.barrier("charge"):
            if job.is_first:
                raise BudgetExceeded("too much")
            return "went on"
        assert job.exchange("again", "text") == ["text"] * 3
        return "end"

    assert ran(action) == ["end"] * 3


def test_an_error_is_told_once_however_many_sections_it_leaves(service):
    def action(job):
        with pytest.raises(BudgetExceeded) as found, job.telling(), job.telling(), job.barrier("inner"):
            raise BudgetExceeded("of all")
        return job.knows(found.value), job.exchange("after", "here")

    assert ran(action) == [(True, ["here"] * 3)] * 3


def test_facts_that_differ_are_named_to_all(service):
    found = ran(lambda job: job.agree({"versions": "1", "columns of files": f"{job.index == 2}"}))
    assert found[0] == found[2]
    assert found[0].startswith("JobFailed: processes: 0 and 2 have other columns of files; all must run the same code")
    assert "1 and 2 have other columns" in found[1]
    service.values.clear()
    assert ran(lambda job: job.agree({"versions": "1"})) == [None] * 3


def test_processes_that_run_different_code_are_noticed(service):
    found = ran(lambda job: job.exchange("here" if job.index else "there"), 2)
    assert found[0].startswith("JobFailed: processes: 1 is at 'here' and 0 is at 'there'")
    assert found[1].startswith("JobFailed: processes: 0 is at 'there' and 1 is at 'here'")


def test_patience_ends(service, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    first, other = ran(lambda job: job.exchange("place") if job.is_first else "went elsewhere", 2)
    assert first.startswith("JobFailed: processes: 1 did not get to 'place' within 0.2 s")
    assert other == "went elsewhere"


def test_a_process_that_is_told_of_a_loss_does_not_wait(service, monkeypatch):
    monkeypatch.setattr(processes, "_LOST", [])
    threading.Timer(0.2, processes.lose).start()
    (first,) = ran(lambda job: Job(2, 0).exchange("place"), 1)
    assert first.startswith("JobFailed: processes: JAX failed, most likely because another process")


def test_all_leave_with_the_exit_code_of_the_first(service):
    assert ran(lambda job: job.leave(4 if job.is_first else 0)) == [4, 4, 4]
    assert "dpbilevel/end" in service.values


def test_one_that_does_not_come_to_the_end_is_not_waited_for(service):
    began = time.monotonic()
    assert Job(2, 0).leave(4) == 4
    assert Job(3, 1).leave(0) == 4
    service.values.clear()
    assert Job(2, 1).leave(2) == 2
    assert time.monotonic() - began < 5


def raising(error):
    raise error


def test_errors_of_jax_are_errors_of_the_library_without_their_text():
    with pytest.raises(JobFailed, match="has ended or cannot be reached") as found:
        reached(lambda: raising(ValueError("UNKNOWN: Gloo all-reduce failed: cell 987654.25")))
    assert found.value.__cause__ is found.value.__context__ is None
    with pytest.raises(TimeoutError):
        reached(lambda: raising(RuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")))
    with pytest.raises(BudgetExceeded):
        reached(lambda: raising(BudgetExceeded("own")))
    assert reached(lambda: 1) == 1
