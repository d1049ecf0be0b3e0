import logging
import os
import subprocess
import sys
import warnings

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sdebnn import (
    OU,
    SDEBNN,
    Batches,
    Deterministic,
    FixedGrid,
    Gaussian,
    Objective,
    Optimizer,
    Point,
    bayesianize,
    elbo,
    fit,
)
from sdebnn.data import toy
from sdebnn.integrate import Solution
from sdebnn.nn import AbstractModel
from sdebnn.processes import LinearDrift
from sdebnn.train import loop, stacks, xla_options
from sdebnn.train.stacks import Stacks, by_row, by_stacks, stacked, unstacked

KEY = jax.random.key(0)
STILL = Optimizer(rule=optax.sgd(0.0))  # the parameters do not move


class Push(eqx.Module):
    """dh/dt = w, so that h_1 = x + ∫ w dt is Gaussian."""

    w: jax.Array

    def __call__(self, t, h):
        return self.w


def linear_data(n=200):
    key, noise_key = jax.random.split(KEY)
    x = jax.random.normal(key, (n, 2))
    return x, x @ jnp.array([[1.0], [-2.0]]) + 0.5 + 0.3 * jax.random.normal(noise_key, (n, 1))


def test_fitting_a_deterministic_line_and_its_noise_is_least_squares():
    x, y = linear_data()
    design = np.column_stack([x, np.ones(len(x))])
    solution, residual, *_ = np.linalg.lstsq(design, np.asarray(y), rcond=None)
    fitted = fit(
        Deterministic(eqx.nn.Linear(2, 1, key=KEY)), Gaussian(1.0, learn=True), x, y,
        key=KEY, epochs=1500, objective=Objective(draws=1), optimizer=Optimizer(learning_rate=3e-2), progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(fitted.model.module.weight[0], solution[:2, 0], atol=1e-3)
    np.testing.assert_allclose(fitted.model.module.bias, solution[2], atol=1e-3)
    noise = np.sqrt(residual[0] / len(x))
    np.testing.assert_allclose(jnp.exp(fitted.likelihood.log_scale), noise, rtol=1e-3)


def test_a_fitted_elbo_comes_near_the_log_evidence_and_stays_below_it():
    steps, sigma, noise = 20, 1.0, 0.5
    y = np.array([0.9, 1.4, 1.1, 0.7])
    ones = np.ones(steps)
    chain = exact.euler_chain(-ones, 0 * ones, sigma, 0.3)
    evidence = exact.log_evidence_of_integral(*chain, 0.3, noise, y)
    block = bayesianize(
        Push(jnp.array([0.3])), prior=OU(sigma=sigma), drift=LinearDrift(1), solver=FixedGrid(steps), key=KEY
    )
    x, targets = jnp.zeros((4, 1)), jnp.asarray(y)[:, None]
    # w_0 is known here, so it is not trained
    held = eqx.tree_at(lambda b: b.initial, block, Held(jnp.array([0.3])))
    untrained = bound(held, x, targets, noise)[0]
    fitted = fit(held, Gaussian(noise), x, targets, key=KEY, epochs=600, objective=Objective(draws=16), progress=False)
    mean, error = bound(fitted.model, x, targets, noise)
    assert mean <= evidence + 4 * error
    # A drift that sees w alone cannot reach it: what is left of the posterior lies in ∫ w.
    assert evidence - mean < 0.65 < 1.0 < evidence - untrained
    assert np.mean(fitted.history["elbo"][-100:]) > np.mean(fitted.history["elbo"][:100])


class Held(Point):
    """A known value of w_0 that is not trained."""

    value: jax.Array = eqx.field(static=False)

    def sample(self, *, key):
        return jax.lax.stop_gradient(self.value)


def bound(model, x, y, noise):
    keys = jax.random.split(jax.random.key(7), 4096)
    values = np.asarray(jax.vmap(lambda key: elbo(model, Gaussian(noise), x, y, key=key).elbo)(keys), dtype=float)
    return values.mean(), values.std() / 64


class Belief(AbstractModel):
    """A model with one weight: y = θ, q(θ) = N(mean, std²), p(θ) = N(0, 1)."""

    mean: jax.Array
    log_std: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        theta = self.mean + jnp.exp(self.log_std) * jax.random.normal(key)
        kl = 0.5 * (jnp.exp(2 * self.log_std) + self.mean**2 - 1) - self.log_std
        return Solution(jnp.full_like(x, theta), kl)


@pytest.mark.parametrize(("kl_weight", "batch_size"), [(1.0, None), (0.1, None), (1.0, 10)])  # 2000 steps each
def test_fit_finds_the_exact_posterior_with_and_without_tempering_and_batches(kl_weight, batch_size):
    x, noise = jnp.zeros((40, 1)), 2.0
    y = 0.8 + noise * jax.random.normal(jax.random.key(3), (40, 1))
    # The bound's optimum is p(θ) p(D | θ)^(1 / kl_weight): normal, with
    precision = 1 + 40 / (noise**2 * kl_weight)
    mean = float(y.sum()) / (noise**2 * kl_weight) / precision
    start = Belief(jnp.array(0.0), jnp.array(0.0))
    fitted = fit(
        start, Gaussian(noise), x, y,
        key=KEY, epochs=2000 if batch_size is None else 500, optimizer=Optimizer(learning_rate=5e-2),
        batches=Batches(batch_size), objective=Objective(draws=32, kl_weight=kl_weight), progress=False,
    )  # fmt: skip
    assert float(fitted.model.mean) == pytest.approx(mean, abs=0.02)
    assert float(jnp.exp(fitted.model.log_std)) == pytest.approx(precision**-0.5, rel=0.05)


def test_more_draws_reduce_the_noise_and_every_step_has_its_own_draws():
    x, y = jnp.zeros((12, 1)), jnp.ones((12, 1))  # examples all alike: only the draws differ
    still = {"key": KEY, "epochs": 100, "batches": Batches(4), "optimizer": STILL, "progress": False}
    start = Belief(jnp.array(0.0), jnp.array(0.0))
    one, many = (
        fit(start, Gaussian(1.0), x, y, objective=Objective(draws=n), **still).history["log_likelihood"]
        for n in (1, 16)
    )
    assert len(np.unique(one)) == len(one) == 300
    assert one.std() / many.std() == pytest.approx(4.0, rel=0.25)  # sqrt(16); each std of 300 is known to 4 % or so


def test_examples_that_do_not_fill_a_batch_change_from_epoch_to_epoch():
    x, y = jnp.arange(10.0)[:, None], jnp.zeros((10, 1))
    model = Deterministic(eqx.nn.Linear(1, 1, use_bias=False, key=KEY))
    still = {"key": KEY, "epochs": 30, "objective": Objective(draws=1), "optimizer": STILL, "progress": False}
    batches = fit(model, Gaussian(1.0), x, y, batches=Batches(7), **still).history["log_likelihood"]
    whole = fit(model, Gaussian(1.0), x, y, **still).history["log_likelihood"]
    assert len(np.unique(whole)) == 1
    assert len(np.unique(batches)) > 10  # seven of ten, others each time


def test_the_elbo_of_batches_averages_to_that_of_all_the_data():
    x, y = linear_data(40)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    whole = elbo(model, Gaussian(0.5), x, y, key=KEY).elbo
    parts = [elbo(model, Gaussian(0.5), x[i : i + 8], y[i : i + 8], key=KEY, examples=40).elbo for i in range(0, 40, 8)]
    assert np.mean(parts) == pytest.approx(float(whole), rel=1e-5)


def test_an_epoch_takes_every_example_once():
    x, y = jnp.arange(12.0)[:, None], jnp.zeros((12, 1))
    # Each step adds the sum of its batch's gradient: over an epoch at rate zero, that of all examples.
    fitted = fit(
        Deterministic(eqx.nn.Linear(1, 1, use_bias=False, key=KEY)), Gaussian(1.0), x, y,
        key=KEY, epochs=2, batches=Batches(4), objective=Objective(draws=1), optimizer=STILL, progress=False,
    )  # fmt: skip
    weight = float(fitted.model.module.weight[0, 0])
    whole = float(np.sum(-0.5 * (weight * np.arange(12.0)) ** 2 - 0.5 * np.log(2 * np.pi)))
    by_epoch = fitted.history["log_likelihood"].reshape(2, 3).mean(1)
    np.testing.assert_allclose(by_epoch, whole, rtol=1e-5)
    assert not np.allclose(*fitted.history["log_likelihood"].reshape(2, 3))  # in another order each time


def test_fits_with_the_same_key_are_identical():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    runs = [fit(model, Gaussian(0.5), x, y, key=KEY, epochs=5, batches=Batches(7), progress=False) for _ in range(2)]
    assert np.array_equal(runs[0].model.module.weight, runs[1].model.module.weight)
    assert np.array_equal(runs[0].history["elbo"], runs[1].history["elbo"])


def test_a_fit_that_diverges_returns_the_last_good_parameters_with_a_warning():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    with pytest.warns(RuntimeWarning, match="lower learning_rate=0.02"):
        fitted = fit(
            model, Gaussian(0.5), x, y, key=KEY, epochs=300, optimizer=Optimizer(rule=optax.sgd(100.0)), progress=False
        )
    assert np.all(np.isfinite(fitted.model.module.weight))


def test_parameters_that_diverge_in_the_last_step_are_not_returned():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    with pytest.warns(RuntimeWarning, match="1 of 1 steps were skipped"):
        fitted = fit(
            model, Gaussian(0.5), x, y, key=KEY, epochs=1, optimizer=Optimizer(rule=optax.sgd(3e38)), progress=False
        )
    assert np.array_equal(fitted.model.module.weight, model.module.weight)


def test_the_same_fit_again_compiles_nothing():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    go = lambda: fit(model, Gaussian(0.5), x, y, key=KEY, epochs=7, progress=False)  # noqa: E731
    go()
    with jax.log_compiles(), warnings.catch_warnings(), Log("jax._src") as log:
        go()
    assert not any("Finished XLA compilation" in message for message in log)


class Log(logging.Handler):
    """The messages of a logger."""

    def __init__(self, name):
        super().__init__()
        self.logger, self.said = logging.getLogger(name), []

    def emit(self, record):
        self.said.append(record.getMessage())

    def __enter__(self):
        self.logger.addHandler(self)
        return self.said

    def __exit__(self, *_):
        self.logger.removeHandler(self)


def test_the_kl_weight_is_printed(capsys):
    x, y = linear_data(20)
    for weight, words in ((1.0, "KL weight 1 (the ELBO)"), (0.001, "KL weight 0.001 (a tempered posterior)")):
        fit(
            Deterministic(eqx.nn.Linear(2, 1, key=KEY)),
            Gaussian(0.5),
            x,
            y,
            key=KEY,
            epochs=1,
            objective=Objective(kl_weight=weight),
        )
        assert words in capsys.readouterr().err


def test_the_roughness_weight_makes_the_dynamics_smoother():
    x, y = toy.wave(40, key=KEY)
    model, ends = SDEBNN.mlp(1, 1, widths=(8,), drift=(4,), solver=FixedGrid(10), key=KEY), []
    for weight in (0.0, 100.0):
        fitted = fit(
            model, Gaussian(0.1), x, y, key=KEY, epochs=100,
            objective=Objective(draws=2, roughness_weight=weight), progress=False,
        )  # fmt: skip
        ends.append(float(elbo(fitted.model, fitted.likelihood, x, y, key=KEY, draws=8, with_roughness=True).roughness))
        assert (fitted.history["roughness"][0] > 0) == (weight > 0)
    assert ends[1] < 0.5 * ends[0]


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
            fit(SDEBNN.mlp(1, 1, key=KEY), Gaussian(0.1), jnp.zeros((4, 1)), jnp.zeros((4, 1)), key=KEY, progress=False)
    finally:
        loop.program.cache_clear()


def several():
    """Arrays of equal shape, of equal size only, of another dtype, of another size, and a None."""
    keys = iter(jax.random.split(KEY, 6))
    small = [jax.random.normal(next(keys), (3, 2)) for _ in range(3)]
    return {
        "a": small[0],
        "b": (small[1], None, small[2].astype(jnp.bfloat16)),
        "c": jnp.ones(7),
        "d": 2.0 * small[2].reshape(6),
    }


def test_unstacking_is_the_inverse_of_stacking():
    tree = several()
    found = stacked(tree, tree)
    assert sorted(stack.shape for stack in found.rows.values()) == [(1, 6), (1, 7), (3, 6)]
    assert_same_trees(unstacked(found, tree), tree)


def assert_same_trees(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_only_the_parts_of_a_tree_that_look_like_the_parameters_are_stacked():
    tree = several()
    state = optax.adam(1e-2).init(tree)
    found = stacked(state, tree)
    assert isinstance(found[0].mu, Stacks)
    assert isinstance(found[0].nu, Stacks)
    assert found[0].count is state[0].count
    assert_same_trees(unstacked(found, tree), state)
    one = jnp.zeros(())
    assert isinstance(stacked(one, one), Stacks)
    assert not isinstance(stacked(jnp.zeros((), int), one), Stacks)  # a counter is not a parameter


OPTIMIZERS = (optax.adamw(1e-2), optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimiser_on_stacks_takes_the_same_steps_with_a_state_of_the_same_structure(optimizer):
    tree, ends = several(), []
    for each in (optimizer, by_stacks(lambda _: optimizer)):
        now, state = tree, each.init(tree)
        for step in range(3):
            gradient = jax.tree.map(lambda leaf, step=step: jnp.cos(leaf + step).astype(leaf.dtype), now)
            updates, state = each.update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        ends.append((now, state))
    assert jax.tree.structure(ends[0]) == jax.tree.structure(ends[1])
    for ours, theirs in zip(*map(jax.tree.leaves, ends), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=1e-5)


def test_training_without_stacks_reaches_the_same_parameters(monkeypatch):
    x, y = linear_data(20)
    how = {"key": KEY, "epochs": 5, "batches": Batches(7), "progress": False}

    def trained(max_skipped):  # which makes no difference here, except that the program is compiled again
        optimizer = Optimizer(ema=0.9, clip=1.0, max_skipped=max_skipped)
        model = Deterministic(eqx.nn.MLP(2, 1, 3, 2, key=KEY))
        fitted = fit(model, Gaussian(0.5), x, y, optimizer=optimizer, **how)
        return jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))

    with_stacks = trained(10)
    for name in ("stacked", "unstacked"):
        monkeypatch.setattr(loop, name, lambda tree, like: tree)
    for ours, plain in zip(with_stacks, trained(11), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-7)


class Sums(eqx.Module):
    """x (Σ a + 3 Σ b): two arrays of one shape, whose gradients differ."""

    a: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x * (jnp.sum(self.a) + 3 * jnp.sum(self.b))


def test_an_update_may_be_one_number_for_an_array():
    def mean(updates, state, params=None):
        return jax.tree.map(lambda leaf: -1e-4 * jnp.mean(leaf), updates), state

    optimizer = optax.GradientTransformation(lambda _: optax.EmptyState(), mean)
    x = jnp.linspace(-1, 1, 8)[:, None]
    how = {"key": KEY, "epochs": 1, "progress": False, "optimizer": Optimizer(rule=optimizer)}
    model = fit(Deterministic(Sums(jnp.zeros((3, 2)), jnp.zeros((3, 2)))), Gaussian(1.0), x, x, **how).model.module
    assert float(jnp.ptp(model.a)) == float(jnp.ptp(model.b)) == 0.0
    np.testing.assert_allclose(model.b, 3 * model.a, rtol=1e-5)


@pytest.mark.parametrize("convert", [lambda tree: tree, jax.device_get], ids=["jax", "numpy"])
def test_a_large_array_is_stored_alone_in_its_own_shape(monkeypatch, convert):
    monkeypatch.setattr(stacks, "MIN_SIZE_STORED_ALONE", 6)
    tree = {"a": jnp.ones((3, 2)), "b": jnp.zeros((3, 2)), "c": jnp.ones(5), "d": jnp.zeros(5)}
    found = convert(stacked(tree, tree))
    assert sorted(stack.shape for stack in found.rows.values()) == [(1, 3, 2), (1, 3, 2), (2, 5)]
    assert_same_trees(unstacked(found, tree), tree)


def test_the_history_of_a_float64_model_is_float64_whatever_else_it_holds():
    with jax.enable_x64(True):
        a, b = jnp.zeros(2, jnp.float32), jnp.full(2, 1 / 3, jnp.float64)
        x = jnp.linspace(-1, 1, 8)[:, None]
        found = fit(Deterministic(Sums(a, b)), Gaussian(1.0), x, x, key=KEY, epochs=1, progress=False)
    errors = np.linspace(-1, 1, 8)  # the outcome is x (0 + 3 · 2/3), the target x
    expected = -0.5 * np.sum(errors**2) - 4 * np.log(2 * np.pi)
    np.testing.assert_allclose(found.history["elbo"][0], expected, rtol=1e-12)


def test_trained_parameters_stay_on_their_device():
    """The parameters are on the second of two devices."""
    program = (
        "import jax, jax.numpy as jnp, sdebnn\n"
        "there = jax.devices()[1]\n"
        "def put(leaf): return jax.device_put(leaf, there) if hasattr(leaf, 'devices') else leaf\n"
        "net, x = jax.tree.map(put, (sdebnn.SDEBNN.mlp(1, 1, widths=(2,), key=jax.random.key(0)), jnp.zeros((4, 1))))\n"
        "found = sdebnn.fit(net, sdebnn.Gaussian(0.1), x, x, key=jax.random.key(1), epochs=1, progress=False)\n"
        "where = {d for leaf in jax.tree.leaves(found.model) if isinstance(leaf, jax.Array) for d in leaf.devices()}\n"
        "assert where == {there}, where\n"
    )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"XLA_FLAGS": flags}, check=True)


def test_by_row_gives_each_array_the_number_of_its_path():
    tree = {"b": jnp.zeros((2, 1)), "a": jnp.zeros(2), "c": jnp.zeros(3)}
    rows = by_row(lambda path: {"a": 1.0, "b": 2.0, "c": 3.0}[path[0].key], tree)
    of_rows = jax.tree.map(lambda stack, numbers: stack + numbers, stacked(tree, tree), rows)
    again = unstacked(of_rows, tree)
    assert {name: float(jnp.mean(again[name])) for name in again} == {"a": 1.0, "b": 2.0, "c": 3.0}
