"""Files that are there whole or not at all."""

import os

import pytest

from dpbilevel.foundation.files import write_atomically


def test_text_is_written_as_it_is(tmp_path):
    path = write_atomically(tmp_path / "a.txt", "line\nnäme\r\n")
    assert path.read_bytes() == "line\nnäme\r\n".encode()
    write_atomically(path, "shorter")
    assert path.read_text() == "shorter"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write_atomically(tmp_path / "a.txt", "old")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_missing_folder_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "a.txt", "text")
