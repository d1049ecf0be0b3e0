"""What every test file shares."""

import os

import jax
import jaxtyping
import pytest

# The programs of tests run for milliseconds and took seconds to compile: so little optimisation, the older emitters of
# loops, and no splitting for threads that the workers have not, which together are a third of the work. XLA reads
# this at its first program, in the processes that tests start too; `XLA_FLAGS= make test` compiles as users do.
IN_HASTE = "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # from then on a flag that XLA does not know, and it gives up on those
    IN_HASTE += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", IN_HASTE)

# Files that take ten seconds or more, about in the order of how long.
LONG = (
    "pixels", "estimators", "estimator_checks", "verify", "adaptive", "runs", "convolutions", "baselines", "predict",
    "house", "grid", "fused", "compare", "sampling", "resume", "cli", "nets", "traps", "train", "models", "engine",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Begin with the long files: one that is left for the end is waited for by a worker that has nothing to do."""
    order = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


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
    """For files whose programs run once or twice: no optimisation at all, where others have a little."""
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
