"""``sdebnn demo``: a regression in less than a minute, with pictures and metrics."""

import json
import platform
import time
from pathlib import Path
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer

from sdebnn import __version__
from sdebnn.checks import check_count
from sdebnn.cli.common import key_of, prepare_pictures, pyplot, save_picture
from sdebnn.contract import AbstractModel, draw_keys
from sdebnn.data import toy
from sdebnn.files import write_whole
from sdebnn.likelihoods import AbstractLikelihood, Gaussian
from sdebnn.models import SDEBNN, blocks, prior_of
from sdebnn.predict import evaluate, predict
from sdebnn.processes import Normal, Point
from sdebnn.train import Objective, fit


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and metrics.json.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the model and its draws.")] = 0,
    epochs: Annotated[int, typer.Option(help="Training steps.")] = 5000,
) -> None:
    """Fit a one-dimensional regression, and draw its uncertainty inside and outside the range of the data."""
    check_count("epochs", epochs)
    keys = jax.random.split(key_of(seed), 7)
    prepare_pictures(out)
    x, y = toy.wave(200, key=keys[0])
    model, likelihood = SDEBNN.mlp(1, 1, key=keys[1]), Gaussian(toy.WAVE_NOISE)
    kl_weight, start = 1.0, time.perf_counter()
    fitted = fit(model, likelihood, x, y, key=keys[2], epochs=epochs, objective=Objective(kl_weight=kl_weight))
    seconds = time.perf_counter() - start

    held_out = toy.wave(400, key=keys[3])
    scores = evaluate(fitted.model, fitted.likelihood, *held_out, draws=400, key=keys[4])
    metrics = {
        **scores,
        **_spread(fitted.model, fitted.likelihood, key=keys[5]),
        "kl_weight": kl_weight,
        "examples": len(x),
        "epochs": epochs,
        "seed": seed,
        "fit_seconds": round(seconds, 2),
        "versions": {"sdebnn": __version__, "jax": jax.__version__, "python": platform.python_version()},
    }
    write_whole(out / "metrics.json", (json.dumps(metrics, indent=2) + "\n").encode())
    assert isinstance(fitted.model, SDEBNN)
    _pictures(out, fitted.model, fitted.likelihood, x, y, key=keys[6])
    print(
        f"Look at {out / 'predictive.png'} and {out / 'trajectories.png'}: 95 % intervals cover "
        f"{metrics['coverage_95']:.1%} of 400 held-out points, and the predictive spread is "
        f"{metrics['std_ratio']:.1f} times wider one range-width outside the data."
    )


def _spread(model: AbstractModel, likelihood: AbstractLikelihood, *, key: jax.Array) -> dict[str, float]:
    """The predictive standard deviation inside the range of the data, and one width outside it (the smaller side)."""
    low, high = toy.WAVE_RANGE
    width = high - low
    grid = jnp.concatenate([jnp.linspace(low, high, 81), jnp.array([low - width, high + width])])[:, None]
    targets = likelihood.sample(predict(model, grid, draws=400, key=key), key=jax.random.fold_in(key, 1))
    std = np.asarray(targets.std(0))[:, 0]
    inside, outside = float(std[:81].mean()), float(std[81:].min())
    return {"std_inside": inside, "std_outside": outside, "std_ratio": outside / inside}


def _pictures(
    out: Path, model: SDEBNN, likelihood: AbstractLikelihood, x: jax.Array, y: jax.Array, *, key: jax.Array
) -> None:
    """Write predictive.png (prior and posterior) and trajectories.png (hidden states over depth)."""
    from sdebnn import plots

    plt = pyplot()

    grid = jnp.linspace(-6, 6, 161)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axes, law, title in zip(
        panels,
        (prior_of(model), model),
        ("Prior: before any data", f"Posterior: after {len(x)} observations"),
        strict=True,
    ):
        samples = predict(law, grid, draws=2000, key=key)
        plots.bands(axes, grid[:, 0], likelihood.sample(samples, key=jax.random.fold_in(key, 1))[..., 0])
        plots.draws(axes, grid[:, 0], likelihood.center(samples)[:5, :, 0])
        plots.label(axes, title, "x", "y" if axes is panels[0] else "")
    plots.observations(panels[1], x[:, 0], y[:, 0])
    panels[1].plot(grid[:, 0], toy.wave_mean(grid[:, 0]), "--", color="#555", linewidth=1, label="truth")
    panels[1].legend(frameon=False, fontsize=9, loc="lower center", ncols=3)
    panels[1].set_ylim(-4, 4)
    save_picture(figure, out / "predictive.png")

    inputs = jnp.linspace(*toy.WAVE_RANGE, 6)[:, None]
    block = blocks(model)[0]
    assert isinstance(block.initial, Normal)
    without_noise = eqx.tree_at(  # σ nearly zero and w_0 a point, so that each input has one trajectory
        lambda model: (blocks(model)[0].prior.sigma, blocks(model)[0].initial),
        model,
        (1e-6, Point(block.initial.mean)),
    )
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    titles = ("The same net without noise: an ODE", "The posterior: weights follow an SDE")
    for axes, law, title in zip(panels, (without_noise, model), titles, strict=True):
        plots.trajectories(axes, block.solver.times(), _read_out(law, inputs, draws=200, key=key))
        plots.label(axes, title, "depth t", "hidden state, as the output reads it" if axes is panels[0] else "")
    save_picture(figure, out / "trajectories.png")


def _read_out(model: SDEBNN, x: jax.Array, *, draws: int, key: jax.Array) -> jax.Array:
    """The output layer applied to the hidden states at all depths, as an array "draw time example"."""
    augment, _, head = model.layers
    block = blocks(model)[0]

    def one(key: jax.Array) -> jax.Array:
        h0, _ = augment(x, key=key)
        states, _ = block.trajectory(h0, key=jax.random.fold_in(key, 1))  # the key of layer 1, as in SDEBNN
        return jax.vmap(lambda h: head(h, key=key)[0][:, 0])(states)

    return jax.jit(jax.vmap(one))(draw_keys(key, draws))
