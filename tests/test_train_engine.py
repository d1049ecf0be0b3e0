"""The options of fit, compared with the same computation by hand."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line_fits import HOW, KEY, LINE, SGD, STILL, X, Y, weights
from small_models import Belief, Push

from sdebnn import (
    OU,
    Batches,
    Checkpoints,
    Deterministic,
    Gaussian,
    Objective,
    Optimizer,
    bayesianize,
    elbo,
    fit,
)
from sdebnn.integrate import Solution
from sdebnn.nn import AbstractModel
from sdebnn.processes import LinearDrift
from sdebnn.train.loop import KL_WARMUP_START


def test_accumulated_parts_add_up_to_the_whole_batch():
    runs = [
        fit(LINE, Gaussian(1.0), X, Y, epochs=5, optimizer=Optimizer(rule=SGD), batches=Batches(accumulate=n), **HOW)
        for n in (1, 4)
    ]
    np.testing.assert_allclose(weights(runs[0]), weights(runs[1]), rtol=1e-5)
    np.testing.assert_allclose(runs[0].history["elbo"], runs[1].history["elbo"], rtol=1e-5)


def test_each_part_of_an_accumulated_batch_has_a_draw_of_its_own():
    x, y = jnp.zeros((16, 1)), jnp.zeros((16, 1))
    still = {**HOW, "epochs": 400, "optimizer": STILL}
    one, many = (
        fit(Belief(jnp.array(0.0)), Gaussian(1.0), x, y, batches=Batches(accumulate=n), **still).history
        for n in (1, 16)
    )
    # the log likelihood is a sum of 16 draws' instead of 16 times one's: its spread falls by √16, known to 5 %
    assert one["log_likelihood"].std() / many["log_likelihood"].std() == pytest.approx(4.0, rel=0.25)


def test_the_average_is_the_recursion_it_says():
    start = np.asarray(LINE.module.weight)
    points = [
        weights(fit(LINE, Gaussian(1.0), X, Y, epochs=n, optimizer=Optimizer(rule=SGD), **HOW)) for n in (1, 2, 3)
    ]
    average = start
    for step, point in enumerate(points):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * point
    averaged = fit(LINE, Gaussian(1.0), X, Y, epochs=3, optimizer=Optimizer(rule=SGD, ema=0.5), **HOW)
    np.testing.assert_allclose(weights(averaged), average, rtol=1e-5)


def test_the_kl_is_warmed_up_geometrically_and_then_has_its_weight():
    steps, rate = 10, 0.1
    blind = jnp.zeros((2, 1))

    class OnlyKL(AbstractModel):
        mean: jax.Array

        def solve(self, x, *, key, with_roughness=False):
            return Solution(jnp.zeros_like(x), 0.5 * self.mean**2)

    fitted = fit(
        OnlyKL(jnp.array(2.0)), Gaussian(1.0), blind, blind, epochs=steps, optimizer=Optimizer(rule=optax.sgd(rate)),
        objective=Objective(draws=1, kl_weight=0.5, kl_warmup=0.6), key=KEY, progress=False,
    )  # fmt: skip
    mean = 2.0
    for step in range(steps):
        share = min(1.0, (step + 1) / (0.6 * steps))
        mean -= rate * 0.5 * KL_WARMUP_START ** (1 - share) * mean / 2  # the loss is -ELBO / N, N = 2
    assert float(fitted.model.mean) == pytest.approx(mean, rel=1e-5)


def test_clipping_bounds_the_gradient_s_norm():
    one = fit(LINE, Gaussian(1e-3), X, Y, epochs=1, optimizer=Optimizer(rule=optax.sgd(1.0), clip=0.25), **HOW)
    before, after = (np.concatenate([np.ravel(m.weight), m.bias]) for m in (LINE.module, one.model.module))
    assert np.linalg.norm(after - before) == pytest.approx(0.25, rel=1e-4)


def test_a_schedule_is_made_from_the_number_of_steps():
    seen = []

    def optimizer(steps):
        seen.append(steps)
        return SGD

    fit(LINE, Gaussian(1.0), X, Y, epochs=3, batches=Batches(10), optimizer=Optimizer(rule=optimizer), **HOW)
    assert seen == [6]


def test_augmentation_changes_what_the_model_sees_with_another_key_each_step():
    zero = lambda x, *, key: jnp.zeros_like(x)  # noqa: E731
    assert fit(
        LINE, Gaussian(1.0), X, Y, epochs=1, optimizer=Optimizer(rule=SGD), batches=Batches(augment=zero), **HOW
    ).history["elbo"][0] == (pytest.approx(float(elbo(LINE, Gaussian(1.0), 0 * X, Y, key=KEY).elbo), rel=1e-5))
    noise = lambda x, *, key: x + jax.random.normal(key, x.shape)  # noqa: E731
    still = {**HOW, "epochs": 5, "optimizer": STILL}
    assert len(np.unique(fit(LINE, Gaussian(1.0), X, Y, batches=Batches(augment=noise), **still).history["elbo"])) == 5


def test_bytes_train_as_the_numbers_they_are():
    x = np.random.default_rng(0).integers(0, 256, (24, 2))
    one, two = (
        fit(
            LINE,
            Gaussian(100.0),
            x.astype(kind),
            Y,
            epochs=3,
            batches=Batches(8),
            optimizer=Optimizer(rule=optax.sgd(1e-5)),
            **HOW,
        )
        for kind in (np.uint8, np.float32)
    )
    np.testing.assert_array_equal(weights(one), weights(two))


def test_a_set_larger_than_the_memory_limit_trains_as_if_it_were_not(tmp_path):
    rng = np.random.default_rng(0)
    big = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (20_000, 800))  # 16 MB
    for i in range(0, 20_000, 1000):
        big[i : i + 1000] = rng.integers(0, 256, (1000, 800))
    big.flush()
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = np.asarray(x[:, 0], np.float32)[:, None] / 255
    line = Deterministic(eqx.nn.Linear(800, 1, key=KEY))
    how = {**HOW, "epochs": 2, "optimizer": Optimizer(rule=optax.sgd(1e-7))}
    streamed = fit(line, Gaussian(1.0), x, y, batches=Batches(500, memory_limit=2 * 2**20), **how)
    resident = fit(line, Gaussian(1.0), np.asarray(x), y, batches=Batches(500), **how)
    np.testing.assert_allclose(weights(streamed), weights(resident), rtol=1e-5)
    np.testing.assert_allclose(streamed.history["elbo"], resident.history["elbo"], rtol=1e-5)
    assert not np.allclose(weights(streamed), np.asarray(line.module.weight), rtol=1e-5)
    with pytest.raises(ValueError, match="lower batch_size, or raise the limit"):
        fit(line, Gaussian(1.0), x, y, batches=Batches(500, memory_limit=1000), **how)


def test_one_program_serves_every_length_of_call(caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        fit(LINE, Gaussian(0.7), X, Y, epochs=120, **HOW)
    assert sum("Finished XLA compilation of jit(advance)" in m for m in caplog.messages) == 1


def test_a_trained_rate_never_turns_negative():
    block = bayesianize(Push(jnp.ones(1)), prior=OU(rate=jnp.array(0.05), sigma=0.5), drift=LinearDrift(1), key=KEY)
    x, y = jnp.zeros((8, 1)), jnp.full((8, 1), 3.0)  # growing weights would fit them best
    fitted = fit(block, Gaussian(0.1), x, y, epochs=10, optimizer=Optimizer(learning_rate=0.05), **HOW)
    assert fitted.model.prior.rate == 0.0


@pytest.mark.usefixtures("_as_a_user")
def test_numpy_numbers_are_numbers(tmp_path):
    fitted = fit(
        LINE, Gaussian(1.0), X, Y, epochs=np.int64(2), batches=Batches(np.int64(8)),
        optimizer=Optimizer(learning_rate=np.float32(0.01), clip=np.float64(1.0)), checkpoints=Checkpoints(tmp_path),
        **HOW,
    )  # fmt: skip
    assert len(fitted.history["elbo"]) == 6


def test_bfloat16_data_are_recognised(tmp_path):
    x = X.astype(jnp.bfloat16)
    for resume in (False, True):
        fit(LINE, Gaussian(1.0), x, Y, epochs=1, checkpoints=Checkpoints(tmp_path, resume=resume), **HOW)
