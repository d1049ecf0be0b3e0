"""The options with which the training program is compiled on a GPU."""

import jax
import jax.numpy as jnp
import pytest

from sdebnn import (
    SDEBNN,
    Gaussian,
    fit,
)
from sdebnn.train import loop, xla_options

KEY = jax.random.key(0)


@pytest.fixture
def on_nvidia(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(xla_options, "_is_nvidia", lambda: True)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    xla_options.compiler_options.cache_clear()
    yield monkeypatch
    xla_options.compiler_options.cache_clear()


def test_xla_accepts_our_compiler_options(on_nvidia):
    assert xla_options.compiler_options() == xla_options.OPTIONS


def test_an_option_in_xla_flags_is_left_to_the_user(on_nvidia):
    on_nvidia.setenv("XLA_FLAGS", "--xla_gpu_command_buffer_scheduling_mode=SERIALIZE")
    options = xla_options.compiler_options()
    assert options is not None
    assert set(xla_options.OPTIONS) - set(options) == {"xla_gpu_command_buffer_scheduling_mode"}


def test_xla_flags_in_a_file_replace_all_our_options(on_nvidia):
    on_nvidia.setenv("XLA_FLAGS", "flags.txt")
    assert xla_options.compiler_options() is None


def test_options_unknown_to_xla_are_left_out(on_nvidia):
    on_nvidia.setattr(xla_options, "OPTIONS", {"xla_gpu_of_another_time": "1"})
    assert xla_options.compiler_options() is None


def test_cpus_and_gpus_of_other_makers_get_no_options(on_nvidia):
    on_nvidia.setattr(xla_options, "_is_nvidia", lambda: False)
    assert xla_options.compiler_options() is None
    xla_options.compiler_options.cache_clear()
    on_nvidia.setattr(jax, "default_backend", lambda: "cpu")
    assert xla_options.compiler_options() is None


def test_the_training_program_is_compiled_with_our_options(monkeypatch):
    monkeypatch.setattr(loop, "compiler_options", lambda: {"xla_of_another_time": True})
    loop.program.cache_clear()
    try:
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_of_another_time"):
            fit(
                SDEBNN.paper_mlp(1, 1, key=KEY),
                Gaussian(0.1),
                jnp.zeros((4, 1)),
                jnp.zeros((4, 1)),
                key=KEY,
                progress=False,
            )
    finally:
        loop.program.cache_clear()
