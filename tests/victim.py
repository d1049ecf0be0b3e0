"""A small run, the same in every process, for tests that stop it, kill it and damage what it saved."""

import os
import signal

import equinox as eqx
import jax
import numpy as np
import optax

from sdebnn import Gaussian, MeanField, fit
from sdebnn.data import toy
from sdebnn.train import running

STEPS = 90


def data():
    """All inputs and targets, those held out last."""
    return toy.wave(60, key=jax.random.key(3))


def train(folder, *, activation=jax.nn.relu, x=None, last=0.0, last_held_out=0.0, **how):
    """Train for a few seconds, saving after every step if there is a folder; with a change, if one is asked for."""
    key = jax.random.key(3)
    inputs, y = data()
    inputs = inputs.at[49].add(last).at[59].add(last_held_out)
    model = MeanField(eqx.nn.MLP(1, 1, 8, 1, activation=activation, key=key))
    settings = {
        "likelihood": Gaussian(0.1, learn=True), "validation": (inputs[50:], y[50:]), "epochs": STEPS // 5,
        "batch_size": 10, "draws": 2, "ema": 0.9, "clip": 10.0, "kl_warmup": 0.5, "optimizer": _adam,
        "save_every": 0.0, "progress": False, **how,
    }  # fmt: skip
    likelihood = settings.pop("likelihood")
    return fit(model, likelihood, inputs[:50] if x is None else x, y[:50], key=key, folder=folder, **settings)


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
