"""The training engine, against the same computed by hand; for a model with one weight, and for lines."""

import json
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sdebnn import (
    OU,
    Batches,
    Categorical,
    Checkpoints,
    Deterministic,
    FixedGrid,
    Gaussian,
    Normal,
    Objective,
    Optimizer,
    Validation,
    bayesianize,
    elbo,
    fit,
)
from sdebnn.integrate import Solution
from sdebnn.nn import AbstractModel
from sdebnn.processes import LinearDrift, NoDrift
from sdebnn.train import RunFolder, estimator_noise, saved_answer, saved_steps
from sdebnn.train.loop import KL_WARMUP_START

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (24, 2))
Y = X @ jnp.array([[1.0], [-2.0]]) + 0.5
LINE = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
ONE_DRAW = Objective(draws=1)
HOW = {"key": KEY, "objective": ONE_DRAW, "progress": False}
SGD = optax.sgd(1e-2)
STILL = Optimizer(rule=optax.sgd(0.0))  # the parameters do not move


def weights(fitted):
    return np.asarray(fitted.model.module.weight)


def test_accumulated_parts_add_up_to_the_whole_batch():
    runs = [
        fit(LINE, Gaussian(1.0), X, Y, epochs=5, optimizer=Optimizer(rule=SGD), batches=Batches(accumulate=n), **HOW)
        for n in (1, 4)
    ]
    np.testing.assert_allclose(weights(runs[0]), weights(runs[1]), rtol=1e-5)
    np.testing.assert_allclose(runs[0].history["elbo"], runs[1].history["elbo"], rtol=1e-5)


class Belief(AbstractModel):
    """y = θ, q(θ) = N(mean, 1), p(θ) = N(0, 1): a KL of mean² / 2."""

    mean: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        return Solution(jnp.full_like(x, self.mean + jax.random.normal(key)), 0.5 * self.mean**2)


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


def test_early_stopping_returns_the_best_parameters_that_it_saw():
    x, y = X[:12], Y[:12]
    held = (X[12:], -Y[12:])  # the opposite is true there: each step makes it worse
    fitted = fit(
        LINE, Gaussian(1.0), x, y, epochs=50, batches=Batches(6), optimizer=Optimizer(rule=SGD),
        validation=Validation(*held, patience=3), **HOW,
    )  # fmt: skip
    first = fit(LINE, Gaussian(1.0), x, y, epochs=1, batches=Batches(6), optimizer=Optimizer(rule=SGD), **HOW)
    np.testing.assert_array_equal(weights(fitted), weights(first))
    assert np.isfinite(fitted.history["elbo"]).sum() == 4 * 2  # the best, then three in vain


def test_the_watched_elbo_charges_for_the_kl_and_the_nll_does_not(tmp_path):
    x, y = jnp.zeros((10, 1)), jnp.zeros((10, 1))
    for watch in ("nll", "elbo"):
        fit(
            Belief(jnp.array(3.0)), Gaussian(1.0), x, y, epochs=50, validation=Validation(x, y, watch=watch),
            checkpoints=Checkpoints(tmp_path / watch), **HOW,
        )  # fmt: skip
        row = json.loads((tmp_path / watch / "metrics.jsonl").read_text().splitlines()[-1])
        assert row["validation_kl"] > 0
        assert row["validation_elbo"] < -row["validation_nll"]


class Trap(AbstractModel):
    """Not finite where the batch holds a 13: a bad example among good ones."""

    weight: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        bad = jnp.where(jnp.any(x == 13), jnp.nan, 0.0)
        return Solution(self.weight * x + bad, jnp.zeros(()))


def test_a_step_that_is_not_finite_is_skipped_and_counted_and_never_reaches_the_parameters(tmp_path):
    x = jnp.arange(20.0)[:, None]  # one batch of five holds the 13, in every epoch
    with pytest.warns(RuntimeWarning, match="6 of 24 steps were skipped"):
        fitted = fit(
            Trap(jnp.array(0.0)), Gaussian(10.0), x, x, epochs=6, batches=Batches(5),
            optimizer=Optimizer(rule=optax.adam(1e-2), ema=0.9), checkpoints=Checkpoints(tmp_path), **HOW,
        )  # fmt: skip
    assert np.isfinite(fitted.model.weight)
    assert fitted.model.weight > 0
    assert np.isnan(fitted.history["elbo"]).sum() == 6
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["skipped"] == 6


def test_after_so_many_skipped_steps_in_a_row_the_run_stops_where_it_was_last_good():
    x = jnp.full((4, 1), 13.0)
    with pytest.warns(RuntimeWarning, match="the last 7 in a row"):
        fitted = fit(
            Trap(jnp.array(0.5)), Gaussian(1.0), x, x, epochs=100, optimizer=Optimizer(max_skipped=7, rule=SGD), **HOW
        )
    assert fitted.model.weight == 0.5
    assert np.isnan(fitted.history["elbo"]).all()


class Push(eqx.Module):
    """dh/dt = w."""

    w: jax.Array

    def __call__(self, t, h):
        return self.w


def test_the_monitor_finds_stl_paying_at_the_exact_posterior_and_not_far_from_it():
    # Weights that stay where they start: y = w_0 + noise of 0.5, w_0 ~ N(0, 1), whose posterior is normal.
    x, y, precision = jnp.zeros((1, 1)), jnp.array([[1.5]]), 1 + 1 / 0.5**2
    block = bayesianize(
        Push(jnp.array([y[0, 0] / 0.5**2 / precision])), prior=OU(rate=0.0, sigma=1e-3), drift=LinearDrift(1, knots=2),
        solver=FixedGrid(2), initial=lambda w: Normal(w, precision**-0.5), key=KEY,
    )  # fmt: skip
    held = eqx.tree_at(lambda b: b.drift, block, NoDrift())
    near = estimator_noise(held, Gaussian(0.5), x, y, key=KEY)
    assert near is not None
    assert near.stl < 0.01 * near.analytic
    assert near.stl < 0.01 * near.full
    assert "stl pays" in near.verdict()
    sharp = eqx.tree_at(lambda b: b.initial, held, Normal(jnp.zeros(1), 1e-3))
    far = estimator_noise(sharp, Gaussian(0.5), x, y, key=KEY)
    assert far is not None
    assert far.stl > far.analytic
    assert "stl costs" in far.verdict()
    assert estimator_noise(LINE, Gaussian(1.0), X, Y, key=KEY) is None


def test_the_monitor_measures_when_told_and_under_the_weight_of_the_kl(tmp_path):
    block = bayesianize(
        Push(jnp.ones(1)), drift=LinearDrift(1, knots=2), solver=FixedGrid(2), initial=lambda w: Normal(w, 0.5), key=KEY
    )
    x, y = jnp.zeros((3, 1)), jnp.zeros((3, 1))
    fit(
        block,
        Gaussian(1.0),
        x,
        y,
        epochs=60,
        objective=Objective(draws=1, monitor_every=20),
        checkpoints=Checkpoints(tmp_path),
        optimizer=STILL,
        key=KEY,
        progress=False,
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "noise_stl" in row] == [20, 40, 60]
    heavy, light = (estimator_noise(block, Gaussian(1.0), x, y, key=KEY, kl_weight=weight) for weight in (100.0, 0.0))
    assert heavy is not None
    assert light is not None
    assert heavy.full > 100 * light.full == pytest.approx(100 * light.stl)


def test_the_metrics_of_a_run_are_lines_of_json_with_all_that_a_bar_shows(tmp_path, capsys):
    labels = (Y[:, 0] > 0).astype(int)
    model = Deterministic(eqx.nn.Linear(2, 2, key=KEY))
    fit(
        model, Categorical(), X[:16], labels[:16], validation=Validation(X[16:], labels[16:]), objective=ONE_DRAW,
        batches=Batches(8), checkpoints=Checkpoints(tmp_path, tensorboard=True), key=KEY, epochs=3,
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows][-1] == 6
    assert {"epoch", "seconds", "loss", "elbo", "kl", "accuracy", "gradient_norm", "skipped"} <= set(rows[0])
    assert 0 <= rows[-1]["validation_accuracy"] <= 1
    assert rows[-1]["loss"] == pytest.approx(-rows[-1]["elbo"] / 16)
    assert list((tmp_path / "tensorboard").glob("events.*"))
    said = capsys.readouterr().err
    for words in ("effective temperature 1", "loss", "KL", "accuracy", "left"):
        assert words in said


def test_one_program_serves_every_length_of_call(caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        fit(LINE, Gaussian(0.7), X, Y, epochs=120, **HOW)
    assert sum("Finished XLA compilation of jit(advance)" in m for m in caplog.messages) == 1


def test_parameters_that_were_never_tried_are_not_announced_as_good(tmp_path):
    # One step at a rate of 1e6: the parameters are finite, and useless. The last ones of a good ELBO are the first.
    with pytest.warns(RuntimeWarning, match="the parameters of step 0, the last with a good ELBO, are returned"):
        fitted = fit(
            LINE,
            Gaussian(0.1),
            X,
            Y,
            epochs=1,
            optimizer=Optimizer(rule=optax.sgd(1e6)),
            checkpoints=Checkpoints(tmp_path),
            **HOW,
        )
    assert np.array_equal(weights(fitted), LINE.module.weight)
    saved = saved_answer(tmp_path, eqx.filter((LINE, Gaussian(0.1)), eqx.is_inexact_array))
    assert np.array_equal(saved[0].module.weight, LINE.module.weight)


class Cliff(AbstractModel):
    """Falls off where the weight passes 0.3: finite parameters whose ELBO is not."""

    weight: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        return Solution(self.weight * x * jnp.where(self.weight > 0.3, jnp.inf, 1.0), jnp.zeros(()))


def test_a_run_that_falls_off_a_cliff_returns_and_keeps_what_was_before(tmp_path, monkeypatch):
    x = jnp.ones((4, 1))
    how = {
        **HOW, "optimizer": Optimizer(rule=optax.sgd(0.06), max_skipped=3),
        "checkpoints": Checkpoints(tmp_path, keep=1, every=0.0),
    }  # fmt: skip
    monkeypatch.setattr("sdebnn.train.running.SECONDS_A_CALL", 0.0)  # a call for every step, and a checkpoint
    with pytest.warns(RuntimeWarning, match="3 of .* steps were skipped"):
        fitted = fit(Cliff(jnp.array(0.0)), Gaussian(1.0), x, x, epochs=50, **how)
    assert 0 < fitted.model.weight <= 0.3
    best = float(np.nanmax(np.where(np.isfinite(fitted.history["elbo"]), fitted.history["elbo"], np.nan)))
    assert float(elbo(fitted.model, Gaussian(1.0), x, x, key=KEY).elbo) == pytest.approx(best, rel=1e-6)
    saved = saved_answer(tmp_path, eqx.filter((Cliff(jnp.array(0.0)), Gaussian(1.0)), eqx.is_inexact_array))
    assert saved[0].weight == fitted.model.weight


def test_rotation_keeps_the_last_good_checkpoint(tmp_path):
    with RunFolder(tmp_path, keep=2) as place:
        facts = {"seconds": 0.0, "stopped": False, "waited": 0, "best_value": None, "best_step": 0,
                 "answer": "parameters", "settings": {}, "configuration": {}, "versions": {}}  # fmt: skip
        for step in range(1, 8):
            place.save(step, {"a": np.zeros(1)}, {**facts, "step": step, "good": step == 3})
    assert saved_steps(tmp_path) == [3, 6, 7]


def test_a_trained_rate_never_turns_negative():
    block = bayesianize(Push(jnp.ones(1)), prior=OU(rate=jnp.array(0.05), sigma=0.5), drift=LinearDrift(1), key=KEY)
    x, y = jnp.zeros((8, 1)), jnp.full((8, 1), 3.0)  # growing weights would fit them best
    fitted = fit(block, Gaussian(0.1), x, y, epochs=10, optimizer=Optimizer(learning_rate=0.05), **HOW)
    assert fitted.model.prior.rate == 0.0


def test_a_resume_does_not_take_exploded_parameters_for_good_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("sdebnn.train.running.SECONDS_A_CALL", 0.0)
    rate = optax.sgd(lambda step: jnp.where(step < 5, 1e-3, 1e6))
    how = {**HOW, "optimizer": Optimizer(rule=rate), "epochs": 12}
    log = RunFolder.log

    def stop(self, row):
        log(self, row)
        if row["step"] == 7:
            raise RuntimeError

    monkeypatch.setattr(RunFolder, "log", stop)
    with pytest.raises(RuntimeError):
        fit(LINE, Gaussian(1.0), X, Y, checkpoints=Checkpoints(tmp_path, every=0.0), **how)
    monkeypatch.setattr(RunFolder, "log", log)
    with pytest.warns(RuntimeWarning, match="the parameters of step 5"):
        fitted = fit(LINE, Gaussian(1.0), X, Y, checkpoints=Checkpoints(tmp_path, resume=True, every=0.0), **how)
    assert np.abs(weights(fitted)).max() < 10
    with RunFolder(tmp_path) as place:
        assert place.is_good(saved_steps(tmp_path)[-1])


def test_an_average_that_holds_what_exploded_is_not_returned():
    rate = optax.sgd(lambda step: jnp.where(step == 20, -1e6, 0.0))  # one step far away, and none back
    back = optax.chain(rate, optax.stateless(lambda updates, now: jax.tree.map(
        lambda u, p: jnp.where(jnp.abs(p) > 1e3, -p, u), updates, now)))  # fmt: skip
    with pytest.warns(RuntimeWarning, match="the last with a good ELBO"):
        fitted = fit(LINE, Gaussian(1.0), X, Y, epochs=40, optimizer=Optimizer(rule=back, ema=0.9999), **HOW)
    assert np.abs(weights(fitted)).max() < 10


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
