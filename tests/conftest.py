"""What every test file shares."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Each file starts without the last one's compiled programs: hundreds of them exhaust a process's memory maps."""
    yield
    jax.clear_caches()
