"""Processes meet at an address before JAX starts, or say what is wrong; here they are threads."""

import json
import re
import socket
import threading
import time

import jax
import pytest

from dpbilevel.errors import InvalidArgument, JobFailed
from dpbilevel.foundation import joining, processes
from dpbilevel.foundation.joining import join_job, meet


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch):
    monkeypatch.setattr(joining, "_PATIENCE", 0.3)


def met(address, *processes, seconds=5.0):
    """What became of each of some processes, given as (how many it believes there are, which it is)."""
    found = {}

    def run(place, count, index):
        try:
            found[place] = meet(address, count, index, seconds)
        except JobFailed as error:
            found[place] = str(error)

    threads = [threading.Thread(target=run, args=(place, *one)) for place, one in enumerate(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a process hangs"
    return [found[place] for place in range(len(processes))]


def test_processes_meet_whatever_the_order_in_which_they_come(address):
    assert met(address, (3, 1), (3, 0), (3, 2)) == ["127.0.0.1"] * 3


def test_one_process_meets_nobody(address):
    assert met(address, (1, 0)) == ["127.0.0.1"]


def test_a_process_that_does_not_come_is_named_to_all(address):
    first, other = met(address, (3, 0), (3, 1), seconds=0.5)
    assert first == other
    assert "process 2 of 3 did not come in time" in first
    assert "nothing was charged" in first


def test_a_process_without_a_first_one_says_so(address):
    (found,) = met(address, (2, 1), seconds=0.3)
    assert f"coordinator {address}: process 1 could not reach process 0" in found


def test_a_process_that_was_killed_is_not_waited_for(address, monkeypatch):
    monkeypatch.setattr(processes, "_LOST", [])
    threading.Timer(0.2, processes.lose).start()
    found = met(address, (3, 0), (3, 1), seconds=60.0)
    assert all("process 2 of 3 ended before it came" in text for text in found)
    (found,) = met(address, (2, 1), seconds=60.0)
    assert "another process has ended before all came" in found


def test_two_processes_of_one_number_are_refused(address):
    found = met(address, (3, 0), (3, 1), (3, 1))
    assert all("there are two processes 1" in text for text in found)


def test_processes_that_count_differently_are_refused(address):
    found = met(address, (2, 0), (3, 1))
    assert all("process 1 is one of 3, and process 0 one of 2" in text for text in found)


def test_another_version_is_refused(address, monkeypatch):
    versions = {}
    monkeypatch.setattr(joining, "_versions", lambda: versions.setdefault(threading.get_ident(), f"1.{len(versions)}"))
    found = met(address, (2, 0), (2, 1))
    assert all(re.search(r"process 1 has 1\.\d, and process 0 has 1\.\d", text) for text in found)


def test_an_address_that_is_taken_is_refused(address):
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        (found,) = met(address, (2, 0), seconds=0.3)
    assert "process 0 cannot listen there (Address already in use)" in found


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"[]\n", b"{}\n"])
def test_another_service_is_noticed(address, answer):
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:

        def serve():
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        (found,) = met(address, (2, 1))
        thread.join()
    assert "is no first process of a job" in found


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"process": "1"}\n', b"x" * 10**5])
def test_strangers_are_ignored(address, said):
    host, port = address.split(":")

    def call():
        for _ in range(100):
            try:
                with socket.create_connection((host, int(port)), 1) as connection:
                    connection.sendall(said)
                    connection.recv(1)
                    return
            except OSError:
                time.sleep(0.01)

    thread = threading.Thread(target=call)
    thread.start()
    assert met(address, (2, 0), (2, 1)) == ["127.0.0.1"] * 2
    thread.join()


def test_what_processes_tell_each_other_is_public(address, monkeypatch):
    said = []
    true = json.dumps
    monkeypatch.setattr(joining.json, "dumps", lambda content: said.append(content) or true(content))
    met(address, (2, 0), (2, 1))
    assert sorted(name for content in said for name in content) == ["problem", "process", "processes", "versions"]


@pytest.mark.parametrize(
    "coordinator", ["localhost", "127.0.0.1:", ":80", "127.0.0.1:0", "127.0.0.1:65536", "a:b", 80, None]
)
def test_an_address_has_a_host_and_a_port(coordinator):
    with pytest.raises(InvalidArgument, match=r"^coordinator=.*HOST:PORT"):
        meet(coordinator, 2, 0)


def test_a_port_has_five_digits():
    """Python refuses to read longer numbers."""
    with pytest.raises(InvalidArgument, match=r"^coordinator="):
        meet("127.0.0.1:" + 5000 * "9", 2, 0)


@pytest.mark.parametrize("processes", [0, 1.5, "2", None])
def test_there_is_a_whole_number_of_processes(address, processes):
    with pytest.raises(InvalidArgument, match=r"^processes="):
        meet(address, processes, 0)


def test_a_process_that_has_started_jax_joins_no_job(address):
    """JAX would refuse it, after all others have come."""
    jax.devices()
    with pytest.raises(InvalidArgument, match="before anything else computes"):
        join_job(address, 2, 0)


@pytest.mark.parametrize("process", [-1, 2, "0", True, None])
def test_a_process_has_a_number_of_the_job(address, process):
    with pytest.raises(InvalidArgument, match=r"^process="):
        meet(address, 2, process)
