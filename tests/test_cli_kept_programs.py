"""Compiled programs in the user's cache folder: where they are kept, and how much of them."""

import inspect
import os

import jax
import pytest

from sdebnn.cli import kept_programs
from sdebnn.cli.training import train


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What JAX is told, in a process that was not told where to keep programs before."""
    found = {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(kept_programs.jax.config, "update", found.__setitem__)
    yield found
    monkeypatch.undo()
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_kept_in_a_folder_of_this_processor(told, tmp_path):
    kept_programs.with_kept_programs(lambda: None)()
    folder = told["jax_compilation_cache_dir"]
    assert os.path.isdir(folder)
    assert os.path.dirname(folder) == str(tmp_path / "sdebnn-programs")
    kept_programs.with_kept_programs(lambda: None)()
    assert told["jax_compilation_cache_dir"] == folder


def test_a_user_who_says_where_is_heard(told, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    kept_programs.with_kept_programs(lambda: None)()
    assert told == {}


def test_a_home_that_cannot_be_written_to_is_no_error(told, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept_programs.with_kept_programs(lambda: 7)() == 7
    assert told == {}


def test_the_oldest_files_go_when_there_are_too_many(monkeypatch, tmp_path):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(10))
        os.utime(tmp_path / str(number), (number, number))
    monkeypatch.setattr(kept_programs, "MAX_BYTES", 25)
    kept_programs._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_a_command_keeps_its_options():
    assert inspect.signature(kept_programs.with_kept_programs(train)) == inspect.signature(train)
