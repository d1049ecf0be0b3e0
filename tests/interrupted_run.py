"""A small run, the same in every process, for tests that stop it, kill it and damage what it saved."""

import dataclasses
import os
import signal

import equinox as eqx
import jax
import numpy as np
import optax

from sdebnn import Batches, Checkpoints, Gaussian, Objective, Optimizer, Validation, fit
from sdebnn.nn import MeanField
from sdebnn.train import running

STEPS = 50


def data():
    """All inputs and targets, those held out last."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, (60, 1)).astype(np.float32)
    return x, np.sin(3 * x) + 0.1 * rng.normal(size=x.shape).astype(np.float32)


def train(folder, *, likelihood=None, activation=jax.nn.relu, x=None, last=0.0, last_held_out=0.0, **changes):
    """Train for a second or two, saving after every step if there is a folder; with changes, if any are asked for.

    ``changes`` are options of ``fit`` or of one of its groups, such as ``patience`` or ``ema``.
    """
    key = jax.random.key(3)
    inputs, y = data()
    inputs[49] += last
    inputs[59] += last_held_out
    model = MeanField(eqx.nn.MLP(1, 1, 8, 1, activation=activation, key=key))
    options = {
        "objective": _changed(Objective(draws=2, kl_warmup=0.5), changes),
        "batches": _changed(Batches(10), changes),
        "optimizer": _changed(Optimizer(rule=_adam, ema=0.9, clip=10.0), changes),
        "validation": _changed(Validation(inputs[50:], y[50:]), changes),
        "checkpoints": None if folder is None else _changed(Checkpoints(folder, every=0.0), changes),
    }
    likelihood = Gaussian(0.1, learn=True) if likelihood is None else likelihood
    epochs = changes.pop("epochs", STEPS // 5)
    assert not changes, changes
    return fit(
        model, likelihood, inputs[:50] if x is None else x, y[:50], key=key, epochs=epochs, progress=False, **options
    )


def _changed(options, changes):
    """A group of options with the changes that belong to it, which are taken out of ``changes``."""
    own = [field.name for field in dataclasses.fields(options) if field.name in changes]
    return dataclasses.replace(options, **{name: changes.pop(name) for name in own})


def _adam(steps):
    return _ADAM


_ADAM = optax.adam(3e-3)  # one object, so that a second run finds the first one's program


def be_quick(cache):
    """Train one step a call, so that nearly all the time goes into saving; find the programs compiled before."""
    running.SECONDS_A_CALL = 0.0
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def die_slowly(folder, cache):
    """Train, until killed."""
    be_quick(cache)
    train(folder)


def die_at(folder, cache, number):
    """Train, and be killed at the n-th time that a file is synced, renamed or removed."""
    be_quick(cache)
    count = 0

    def deadly(function):
        def call(*arguments, **named):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    os.fsync, os.replace, os.unlink = deadly(os.fsync), deadly(os.replace), deadly(os.unlink)
    train(folder, resume=True)


def leaves(fitted):
    """All arrays of a trained pair, as bytes."""
    return [
        np.asarray(leaf).tobytes()
        for leaf in jax.tree.leaves((fitted.model, fitted.likelihood))
        if hasattr(leaf, "dtype")
    ]
