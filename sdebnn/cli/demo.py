"""``sdebnn demo``: a regression in about a minute, with pictures and metrics."""

import json
import platform
import time
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer

from sdebnn import __version__, metrics
from sdebnn.checks import check_count
from sdebnn.cli.common import Json, key_of, prepare_pictures, print_result, pyplot, save_picture
from sdebnn.contract import draw_keys
from sdebnn.data import toy
from sdebnn.files import write_whole
from sdebnn.likelihoods import AbstractLikelihood, Gaussian
from sdebnn.models import SDEBNN, ConditionedReadout, blocks, prior_of
from sdebnn.models.readout import body_key
from sdebnn.prediction import evaluate, predict
from sdebnn.train import Objective, fit

EXAMPLES = 40
# Held-out points and the grid of the pictures, up to |x| = 6, have the same shape and share a compiled program.
ROWS, DRAWS = 201, 500
GRID = np.linspace(-6, 6, ROWS, dtype=np.float32)[:, None]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and metrics.json.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the data, the model and its draws.")] = 0,
    epochs: Annotated[int, typer.Option(help="Training steps.")] = 300,
    as_json: Json = False,
) -> None:
    """Fit 40 points with a gap between them, and draw what is known inside the data, in the gap and beyond."""
    check_count("epochs", epochs)
    keys = jax.random.split(key_of(seed), 7)
    prepare_pictures(out)
    x, y = toy.two_sides(EXAMPLES, key=keys[0])
    model, likelihood = SDEBNN.mlp(1, 1, key=keys[1]), Gaussian(toy.TWO_SIDES_NOISE)
    kl_weight, start = 1.0, time.perf_counter()
    fitted = fit(model, likelihood, x, y, key=keys[2], epochs=epochs, objective=Objective(kl_weight=kl_weight))
    seconds = time.perf_counter() - start

    held_out = toy.two_sides(ROWS, key=keys[3])
    scores = evaluate(fitted.model, fitted.likelihood, *held_out, draws=DRAWS, key=keys[4])
    functions = predict(fitted.model, jnp.asarray(GRID), draws=DRAWS, key=keys[5])
    elbo = fitted.history["elbo"][-max(1, epochs // 10) :].mean()
    found = {
        **scores,
        **_zones(functions[..., 0]),
        "elbo": float(elbo),
        "kl_weight": kl_weight,
        "examples": len(x),
        "epochs": epochs,
        "seed": seed,
        "fit_seconds": round(seconds, 2),
        "versions": {"sdebnn": __version__, "jax": jax.__version__, "python": platform.python_version()},
    }
    write_whole(out / "metrics.json", (json.dumps(found, indent=2) + "\n").encode())
    assert isinstance(fitted.model, ConditionedReadout)
    _pictures(out, fitted.model, fitted.likelihood, x, y, functions, key=keys[6])
    if as_json:
        print_result({**found, "out": str(out)}, as_json)
        return
    print(
        f"Look at {out / 'predictive.png'} and {out / 'trajectories.png'}: the 95 % band of the function contains the "
        f"truth at {found['coverage_inside']:.0%} of the inputs among the data, {found['coverage_gap']:.0%} in the gap "
        f"and {found['coverage_beyond']:.0%} beyond, where it is {found['std_ratio']:.0f} times as wide."
    )


def _zones(samples: jax.Array) -> dict[str, float]:
    """Spread of the function, and coverage of the truth by its 95 % band, among the data, in the gap, and beyond.

    Beyond means up to half the width of the data on each side.
    """
    edge, gap = toy.TWO_SIDES_RANGE[1], toy.TWO_SIDES_GAP[1]
    distance, truth = np.abs(GRID[:, 0]), np.asarray(toy.two_sides_mean(jnp.asarray(GRID[:, 0])))
    low, high = metrics.interval(np.asarray(samples), 0.95)
    std, inside = np.asarray(samples.std(0)), (distance >= gap) & (distance <= edge)
    zones = {"inside": inside, "gap": distance < gap, "beyond": (distance > edge) & (distance <= 2 * edge)}
    found = {f"std_{name}": float(std[where].mean()) for name, where in zones.items()}
    covered = (low <= truth) & (truth <= high)
    found |= {f"coverage_{name}": float(covered[where].mean()) for name, where in zones.items()}
    return {**found, "std_ratio": found["std_beyond"] / found["std_inside"]}


def _pictures(
    out: Path,
    model: ConditionedReadout,
    likelihood: AbstractLikelihood,
    x: jax.Array,
    y: jax.Array,
    functions: jax.Array,
    *,
    key: jax.Array,
) -> None:
    """Write predictive.png (prior and posterior) and trajectories.png (outputs over depth)."""
    from sdebnn import plots

    plt = pyplot()

    laws = (prior_of(model), model)
    grid = jnp.asarray(GRID)
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    titles = ("Prior: before any data", f"Posterior: after {len(x)} observations")
    before = predict(laws[0], grid, draws=DRAWS, key=key)
    for axes, samples, title in zip(panels, (before, functions), titles, strict=True):
        plots.bands(axes, grid[:, 0], likelihood.sample(samples, key=jax.random.fold_in(key, 1))[..., 0])
        plots.draws(axes, grid[:, 0], likelihood.center(samples)[:5, :, 0])
        plots.label(axes, title, "x", "y" if axes is panels[0] else "")
    plots.observations(panels[1], x[:, 0], y[:, 0])
    panels[1].plot(grid[:, 0], toy.two_sides_mean(grid[:, 0]), "--", color="#555", linewidth=1, label="truth")
    panels[1].legend(frameon=False, fontsize=9, loc="lower center", ncols=3)
    panels[1].set_ylim(-4.5, 4.5)
    save_picture(figure, out / "predictive.png")

    inputs = jnp.array([[-1.5], [-0.8], [0.0], [0.8], [1.5]])
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    titles = (
        "Prior: weights follow an SDE, and move the outputs",
        "Posterior: the read-out takes back what the noise has done",
    )
    for axes, law, title in zip(panels, laws, titles, strict=True):
        plots.trajectories(axes, blocks(model)[0].solver.times(), _outputs_over_depth(law, inputs, draws=200, key=key))
        plots.label(axes, title, "depth t", "output" if axes is panels[0] else "")
    panels[1].scatter(
        jnp.ones(len(inputs)), toy.two_sides_mean(inputs[:, 0]), marker="x", s=30, color="#1b1b1e", zorder=4
    )
    panels[0].set_ylim(-3.5, 3.5)
    save_picture(figure, out / "trajectories.png")


def _outputs_over_depth(model: ConditionedReadout, x: jax.Array, *, draws: int, key: jax.Array) -> jax.Array:
    """The read-out applied to the features at all depths, without a choice, as an array "draw time example"."""
    assert isinstance(model.body, SDEBNN)
    augment, _, last = model.body.layers
    block, count = blocks(model)[0], model.points.shape[0]
    batch = jnp.concatenate([model.points, x]) if count else x

    def one(key: jax.Array) -> jax.Array:
        h0, _ = augment(batch, key=key)
        states, _ = block.trajectory(h0, key=jax.random.fold_in(body_key(key), 1))  # the key of layer 1 of the body
        features = jax.vmap(lambda h: last(h, key=key)[0])(states)
        layer = model.draw(features[-1, :count], key=key)
        # The constant is added in proportion to the depth, as the waves are.
        return layer(features[:, count:])[..., 0] - (1 - block.solver.times())[:, None] * layer.coefficients[0, -1]

    return jax.jit(jax.vmap(one))(draw_keys(key, draws))
