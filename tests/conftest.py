"""What every test file shares."""

import os
import pathlib
import signal
import tempfile

import jax
import jaxtyping
import numpy as np
import pytest
from hostile import MOST_MEMORY, peak

# The programs of tests run for milliseconds and took seconds to compile: so little optimisation, the older emitters of
# loops, and no splitting for threads that the workers have not, which together are a third of the work. XLA reads
# this at its first program, in the processes that tests start too; `XLA_FLAGS= make test` compiles as users do.
IN_HASTE = "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # from then on a flag that XLA does not know, and it gives up on those
    IN_HASTE += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", IN_HASTE)

# Compiled programs are kept for later files, and for the processes that tests start. JAX does not lock the folder, so
# each worker of pytest-xdist has its own.
PROGRAMS = tempfile.TemporaryDirectory(prefix="sdebnn-programs-")
for name, value in (
    ("jax_compilation_cache_dir", PROGRAMS.name),
    ("jax_persistent_cache_min_compile_time_secs", 0),
):
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)

# Files that take ten seconds or more, about in the order of how long.
LONG = (
    "estimators_checks", "estimators", "verify", "integrate_adaptive", "extending", "runs", "sweeps",
    "predict", "docstrings",
    "train_resuming", "nets", "integrate_grid", "estimators_table", "convolutions", "compare", "runs_folders",
    "baselines_hmc", "integrate_brownian", "models", "edited_files", "project", "cli", "artifacts", "paper_errors",
    "train_objective", "train_engine", "baselines", "train_collapse", "benchmarks", "programs",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Begin with the long files: one that is left for the end is waited for by a worker that has nothing to do."""
    order = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Forget the compiled programs before they exhaust the memory maps of the process, of which Linux allows 65,530."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists() or maps.read_text().count("\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def _as_a_user():
    """Users have no shape checks switched on."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def _signals_heard():
    """Signals act as in a terminal; ``nohup``, and shells that start jobs in the background, have some ignored."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def _compiled_in_haste():
    """For files whose programs run once or twice: no optimisation at all, where others have a little."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # other files compare bits


@pytest.fixture
def bounded():
    """No more than 500 MB are taken meanwhile."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the process, unless it is set back
    before = peak()
    yield
    assert peak() - before < MOST_MEMORY


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


@pytest.fixture(scope="session")
def line():
    """A table whose target depends on its first column, with more noise where that is positive."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (400, 2))
    return x, 3 * x[:, 0] + (0.1 + 0.4 * (x[:, 0] > 0)) * random.normal(size=400)


@pytest.fixture(scope="session")
def regressor(line):
    """A regressor fitted to ``line``."""
    from sdebnn import SDEBNNRegressor

    return SDEBNNRegressor(max_iter=200, members=2, random_state=0).fit(*line)


@pytest.fixture(scope="session")
def classifier():
    """A classifier fitted to the irises, with words as labels."""
    from sklearn.datasets import load_iris

    from sdebnn import SDEBNNClassifier

    x, y = load_iris(return_X_y=True)
    words = np.array(["setosa", "versicolor", "virginica"])
    return SDEBNNClassifier(members=2, max_iter=200, draws=20, random_state=0).fit(x, words[y])
