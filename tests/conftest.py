"""What every test file shares."""

import jax
import jaxtyping
import pytest


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Each file starts without the last one's compiled programs: hundreds of them exhaust a process's memory maps."""
    yield
    jax.clear_caches()


@pytest.fixture
def _as_a_user():
    """Users have no shape checks switched on."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module")
def _compiled_in_haste():
    """For files whose programs run for milliseconds each: what takes long is to make them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def refused():
    """A check that a call is refused in one line of such words, with a remedy."""

    def check(call, words):
        with pytest.raises(ValueError, match=words) as error:
            call()
        message = str(error.value)
        assert "\n" not in message
        assert message.endswith(".")
        assert ":" in message or "must be" in message  # a remedy, or the range

    return check
