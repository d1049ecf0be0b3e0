"""What every test file of sdebnn-hopper shares."""

import os

import jax
import pytest

# The programs of tests run for milliseconds, so little optimisation is enough.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Each file starts without the compiled programs of the one before, so that memory stays bounded."""
    yield
    jax.clear_caches()
