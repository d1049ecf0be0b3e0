"""Compiled functions: a bounded number of programs is kept, and a forked process is refused instead of hanging."""

import multiprocessing
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import programs


def test_a_compiled_function_gives_the_same_results_and_keeps_few_programs(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS_KEPT", 3)
    traces = []

    @programs.compiled
    def twice(x, factor):
        traces.append(x.shape)
        return factor * x

    def kept():
        return twice.program._cached._cache_size()

    for size in range(1, 11):
        np.testing.assert_array_equal(twice(jnp.ones(size), 2.0), np.full(size, 2.0))
        assert kept() <= 3
    before = len(traces)
    for _ in range(3):
        twice(jnp.ones(10), 2.0)
    assert len(traces) <= before + 1  # a shape that comes again is compiled once


def test_arguments_are_consumed_where_that_is_asked_for():
    add = programs.compiled(lambda keep, x: keep + x, donate="all-except-first")
    x = jnp.ones(3)
    np.testing.assert_array_equal(add(jnp.ones(3), x), 2.0)
    assert x.is_deleted()


PROGRAM = """
import multiprocessing, sys, warnings
import jax
import jax.numpy as jnp
import numpy as np
import sdebnn

X, KEY = np.random.default_rng(0).normal(size=(30, 2)), jax.random.key(0)
warnings.simplefilter("ignore")  # Python and JAX say, too, that forking is unwise


def ask(queue, call):
    try:
        call()
    except RuntimeError as error:
        queue.put(str(error))
    else:
        queue.put("done")


model = sdebnn.SDEBNN.paper_mlp(2, 1, widths=(2,), drift=(1,), solver=sdebnn.FixedGrid(2), key=KEY)
table = sdebnn.SDEBNNRegressor(members=1, max_iter=1, width=2, steps=2, draws=2).fit(X, X[:, 0])
inputs = jnp.asarray(X, jnp.float32)
for call in (lambda: table.predict(X), lambda: table.fit(X, X[:, 0]), lambda: sdebnn.predict(model, inputs, key=KEY)):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=ask, args=(queue, call))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.slow
def test_a_process_that_was_forked_after_use_is_refused_and_does_not_hang(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(PROGRAM)
    in_haste = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, env=in_haste)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("get_context('spawn')") == 3
