"""Draw the pictures of docs/idea.md.

    python docs/idea/draw.py

Every picture is made by the package, with fixed keys, but for figure.png: that is what figure.js shows at first, from
the joint normal law of all weights of its net, as a dense matrix.
"""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes

import sdebnn
from sdebnn import OU, SDEBNN, Deterministic, FixedGrid, Gaussian, Point, bayesianize, plots
from sdebnn.fields import Last
from sdebnn.models.readout import body_key
from sdebnn.nn import AbstractLayer, Augment, ConditionedReadout, Guide, TimeMLP, blocks, draw_keys, prior_of, refined
from sdebnn.processes import AbstractInitialLaw, LinearDrift, NoDrift

HERE = Path(__file__).parent
GREY = "#77777d"

# The net of figure.js, with its defaults.
DOTS = np.array([[-2.6, 1.1], [-2.2, 1.6], [-1.8, 1.2], [-1.4, 0.4], [1.3, -0.9], [1.7, -1.5], [2.1, -1.2]])
CENTRES, WIDTH, FINE = np.linspace(-5, 5, 21), 0.7, 64
RATE, SIGMA, LAYERS, NOISE, UNIT = 1.0, 3.0, 32, 0.1, 6
GRID = np.linspace(-4, 4, 161)


class Bumps(AbstractLayer):
    """dh = w · φ(x) dt for the state (x, h): each unit responds to inputs near its centre."""

    weight: Array

    @property
    def scales(self) -> "Bumps":
        """1: the weights are used as they are."""
        return jax.tree.map(lambda _: 1.0, self)

    def __call__(self, t: Array, state: Array) -> Array:
        phi = jnp.exp(-0.5 * ((state[0] - CENTRES) / WIDTH) ** 2)
        return jnp.stack([jnp.zeros_like(state[0]), self.weight @ phi / jnp.linalg.norm(phi)])


class Zero(AbstractInitialLaw):
    """All weights are 0 at depth 0, and stay so in training."""

    count: int

    def sample(self, *, key: PRNGKeyArray) -> Array:
        return jnp.zeros(self.count)

    def log_ratio(self, w0: Array) -> Array:
        return jnp.zeros(())

    def prior(self) -> "Zero":
        return self


def bump_net() -> SDEBNN:
    """The net of figure.js as a model of the package, with a drift that sees the hidden states of the dots."""
    block = bayesianize(
        Bumps(jnp.zeros(len(CENTRES))), prior=OU(rate=RATE, sigma=SIGMA), drift=LinearDrift(len(CENTRES), 6),
        initial=lambda w: Zero(w.size), guide=Guide(jnp.zeros((len(DOTS), 2)), 1), solver=FixedGrid(LAYERS),
        key=jax.random.key(0),
    )  # fmt: skip
    return SDEBNN((Deterministic(Augment(1, 1)), block, Deterministic(Last(1))))


def exact_law(
    sigma: float, layers: int, points: Float[np.ndarray, "point 2"]
) -> tuple[Float[np.ndarray, " weight"], Float[np.ndarray, "weight weight"], Float[np.ndarray, "weight weight"]]:
    """Mean and covariance of all weights of figure.js given the points, at the depths 0, 1/64, ..., and the prior's."""
    t = np.arange(FINE + 1) / FINE
    one = sigma**2 / (2 * RATE) * (np.exp(-RATE * np.abs(t[:, None] - t)) - np.exp(-RATE * (t[:, None] + t)))
    prior = np.kron(np.eye(len(CENTRES)), one)
    phi = outputs_of_weights(points[:, 0], layers)
    gain = prior @ phi.T @ np.linalg.inv(phi @ prior @ phi.T + NOISE**2 * np.eye(len(points)))
    return gain @ points[:, 1], prior - gain @ phi @ prior, prior


def outputs_of_weights(x: Float[np.ndarray, " x"], layers: int) -> Float[np.ndarray, "x weight"]:
    """The matrix that makes outputs at x of all weights: each layer takes them in the middle of its step."""
    used = np.zeros(FINE + 1)
    used[(2 * np.arange(layers) + 1) * FINE // (2 * layers)] = 1 / layers
    phi = np.exp(-0.5 * ((x[:, None] - CENTRES) / WIDTH) ** 2)
    return np.kron(phi / np.linalg.norm(phi, axis=1, keepdims=True), used)


def save(figure: plt.Figure, name: str) -> None:
    """Write a picture beside this file."""
    figure.savefig(HERE / f"{name}.png", dpi=100)
    plt.close(figure)


def panels(count: int, height: float = 3.2, *, sharey: bool = False) -> tuple[plt.Figure, list[Axes]]:
    """A row of axes."""
    figure, row = plt.subplots(1, count, figsize=(9, height), sharey=sharey, layout="constrained")
    return figure, list(row)


def of_block(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key of layer 1, the block, in a sequence that is drawn with this key."""
    return jax.random.fold_in(key, 1)


def steps() -> None:
    """A residual net of 3 layers, of 12, and its limit: the hidden state of seven inputs over depth."""
    field = TimeMLP(2, (32,), gain=3.0, key=jax.random.key(3))
    figure, row = panels(3, sharey=True)
    for axes, layers in zip(row, (3, 12, 300), strict=True):
        h = [jnp.stack([jnp.linspace(-1.5, 1.5, 7), jnp.zeros(7)], axis=1)]
        for k in range(layers):
            h.append(h[-1] + jax.vmap(field, (None, 0))(k / layers, h[-1]) / layers)
        for i, line in enumerate(np.stack(h)[..., 0].T):
            marker = {"marker": "o", "markersize": 3.5} if layers < 100 else {}
            axes.plot(np.linspace(0, 1, layers + 1), line, color=plots.COLOURS[i], linewidth=1.3, **marker)
        title = f"{layers} layers" if layers < 100 else "ever more layers: an equation"
        plots.label(axes, title, "depth t", "hidden state h" if axes is row[0] else "")
    save(figure, "steps")


def weight() -> None:
    """One weight: one path in 8 and in 256 layers, and 500 paths for two values of sigma."""
    keys = draw_keys(jax.random.key(1), 500)

    def block(sigma: float) -> sdebnn.nn.SDEBlock:
        return bayesianize(
            Bumps(jnp.zeros(1)), prior=OU(rate=2.0, sigma=sigma), drift=NoDrift(), initial=lambda w: Point(w + 2),
            solver=FixedGrid(8), key=keys[0],
        )  # fmt: skip

    figure, row = panels(3, sharey=True)
    coarse, fine = (net.draw(key=keys[0]) for net in (block(1.5), refined(block(1.5), steps=256)))
    row[0].plot(fine.t, fine.w, color=plots.BLUE, linewidth=0.8, label="in 256 layers")
    row[0].stairs(coarse.w[:-1, 0], coarse.t, baseline=None, color=plots.COLOURS[0], linewidth=2, label="in 8 layers")
    row[0].legend(frameon=False, fontsize=9)
    plots.label(row[0], "one path of one weight, σ = 1.5", "depth t", "weight w")
    row[0].tick_params(labelsize=8)  # as in the other two
    for axes, sigma in zip(row[1:], (0.5, 1.5), strict=True):
        net = refined(block(sigma), steps=64)
        paths = jax.vmap(lambda key, net=net: net.draw(key=key).w[:, 0])(keys)
        plots.densities(axes, np.linspace(0, 1, 65), np.asarray(paths))
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle="--")
        plots.label(axes, f"500 paths, σ = {sigma}", "depth t", "")
    row[1].set_ylim(-3.6, 4.4)
    save(figure, "weight")


def functions() -> None:
    """One of the weights of four draws of the prior, and the functions of the same keys, for two lengths."""
    keys = draw_keys(jax.random.key(4), 4)
    x = np.linspace(-4, 4, 201)[:, None]
    figure, row = panels(3)
    for axes, length in zip(row[1:], (2.0, 0.7), strict=True):
        net = SDEBNN.mlp(1, 1, length=length, scale=1.0, key=jax.random.key(0))
        samples = np.stack([net(x, key=key)[0][:, 0] for key in keys])
        plots.draws(axes, x[:, 0], samples)
        plots.label(axes, f"their functions, length = {length:g}", "input x", "output f(x)")
        axes.set_ylim(-3.5, 3.5)
    block = blocks(prior_of(net))[0]
    for key, colour in zip(keys, plots.COLOURS, strict=False):
        path = block.draw(key=of_block(body_key(key)))
        row[0].plot(path.t, path.w[:, 7], color=colour, linewidth=1.6)
    count = blocks(net)[0].weights.size
    plots.label(row[0], f"one of {count} weights, four keys", "depth t", "weight w")
    save(figure, "functions")


def bending() -> None:
    """The net of figure.js, fitted by the package: a weight and the function, before and after."""
    model = bump_net()
    x, y = (DOTS[:, [i]].astype(np.float32) for i in (0, 1))
    fitted = sdebnn.fit(model, Gaussian(NOISE), x, y, key=jax.random.key(1), epochs=200, progress=False).model
    keys = draw_keys(jax.random.key(2), 300)
    figure, row = panels(2, 3.4)
    laws = ((prior_of(fitted), GREY), (fitted, plots.BLUE))
    for law, colour in laws:
        block = blocks(law)[0]
        paths = np.asarray(jax.vmap(lambda key, block=block: block.draw(key=of_block(key)).w[:, UNIT])(keys))
        samples = sdebnn.predict(law, GRID[:, None].astype(np.float32), draws=300, key=jax.random.key(2))[..., 0]
        levels = (0.95,) if colour == GREY else (0.95, 0.6)
        plots.bands(row[0], np.linspace(0, 1, LAYERS + 1), paths, levels=levels, colour=colour)
        plots.bands(row[1], GRID, samples, levels=levels, colour=colour)
    for axes, at, lines in ((row[0], np.linspace(0, 1, LAYERS + 1), paths), (row[1], GRID, samples)):
        plots.draws(axes, at, np.asarray(lines)[:4])
    plots.observations(row[1], x[:, 0], y[:, 0])
    plots.label(row[0], "a weight: prior (grey), posterior (blue)", "depth t", "weight w")
    plots.label(row[1], "the functions of the same draws", "input x", "output f(x)")
    save(figure, "bending")
    scores = sdebnn.evaluate(fitted, Gaussian(NOISE), x, y, draws=300, key=jax.random.key(3))
    bound = len(x) * scores["log_likelihood"] - scores["kl"]
    kl, evidence = exact_answers()
    print(f"bending: KL {scores['kl']:.1f} nats, of the exact posterior {kl:.1f}")
    print(f"bending: ELBO {bound:.1f} nats, log evidence {evidence:.1f}")


def exact_answers() -> tuple[float, float]:
    """The KL of the exact posterior of ``bump_net``, and the log evidence."""
    keep, steps = 1 - RATE / LAYERS, np.arange(LAYERS)
    # The part of the noise of step i that is left in the weight of layer k, which Euler's method takes at its left end.
    left = np.tril(keep ** (steps[:, None] - 1.0 - steps).clip(0), -1)
    variance = SIGMA**2 / LAYERS * np.sum(left.mean(0) ** 2)
    phi = np.exp(-0.5 * ((DOTS[:, :1] - CENTRES) / WIDTH) ** 2)
    phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    kernel, noise = variance * phi @ phi.T, NOISE**2 * np.eye(len(DOTS))
    y, inverse = DOTS[:, 1], np.linalg.inv(kernel + noise)
    evidence = -0.5 * (y @ inverse @ y + np.linalg.slogdet(2 * np.pi * (kernel + noise))[1])
    off, covariance = NOISE**2 * inverse @ y, kernel - kernel @ inverse @ kernel
    fit = -0.5 * ((off @ off + np.trace(covariance)) / NOISE**2 + len(y) * np.log(2 * np.pi * NOISE**2))
    return fit - evidence, evidence


def fitted_mlp() -> tuple[ConditionedReadout, Array, Array]:
    """``SDEBNN.mlp`` after 40 observations with a gap, and the data."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = sdebnn.data.toy.two_sides(40, key=keys[0])
    fitted = sdebnn.fit(SDEBNN.mlp(1, 1, key=keys[1]), Gaussian(0.1), x, y, key=keys[2], progress=False)
    assert isinstance(fitted.model, ConditionedReadout)
    return fitted.model, x, y


def seeing(model: ConditionedReadout, x: Array, y: Array) -> None:
    """Draws whose last layer sees their own features, and the same layers on the features of another draw."""
    grid, count = jnp.linspace(-2.6, 2.6, 201)[:, None], model.points.shape[0]
    batch = jnp.concatenate([model.points, x, grid])

    @eqx.filter_jit
    def with_layer_of(other: PRNGKeyArray, key: PRNGKeyArray) -> Array:
        features, others = (model.body(batch, key=body_key(each))[0] for each in (key, other))
        return model.draw(others[:count], key=other)(features)[count:, 0]

    keys = draw_keys(jax.random.key(5), 60)
    seen = np.stack([with_layer_of(key, key) for key in keys])
    blind = np.stack([with_layer_of(other, key) for key, other in zip(keys, jnp.roll(keys, 1), strict=True)])
    figure, row = panels(2, 3.4, sharey=True)
    titles = ("the last layer of another draw: it has not seen", "each with its own last layer: it has seen")
    for axes, samples, title in zip(row, (blind, seen), titles, strict=True):
        plots.draws(axes, grid[:, 0], samples[:6, len(x) :])
        plots.observations(axes, x[:, 0], y[:, 0])
        plots.label(axes, title, "input x", "output f(x)" if axes is row[0] else "")
    row[0].set_ylim(-4.5, 4.5)
    save(figure, "seeing")
    for name, samples in (("blind", blind), ("seeing", seen)):
        print(f"seeing: {name}: standard deviation at the data {samples[:, : len(x)].std(0).mean():.2f}")


def result(model: ConditionedReadout, x: Array, y: Array) -> None:
    """The posterior of ``SDEBNN.mlp``, and its standard deviation at every input."""
    grid = np.linspace(-5, 5, 201, dtype=np.float32)
    samples = np.asarray(sdebnn.predict(model, grid[:, None], draws=500, key=jax.random.key(7)))[..., 0]
    figure, (top, low) = plt.subplots(
        2, 1, figsize=(9, 5), sharex=True, height_ratios=(2.4, 1), layout="constrained"
    )  # fmt: skip
    plots.bands(top, grid, samples)
    plots.draws(top, grid, samples[:4])
    top.plot(grid, sdebnn.data.toy.two_sides_mean(grid), "--", color="#555", linewidth=1, label="truth")
    plots.observations(top, x[:, 0], y[:, 0])
    top.legend(frameon=False, fontsize=9, loc="lower right", ncols=3)
    plots.label(top, "", "", "output f(x)")
    low.plot(grid, samples.std(0), color=plots.BLUE)
    plots.label(low, "", "input x", "standard deviation")
    low.set_ylim(0)
    zones = {"beyond": (-5, -2), "data": (-2, -0.7), "gap": (-0.7, 0.7), " data": (0.7, 2), " beyond": (2, 5)}
    for name, (left, right) in zones.items():
        inside = (grid >= left) & (grid <= right)
        print(f"result: {name.strip()} from {left} to {right}: standard deviation {samples.std(0)[inside].mean():.2f}")
        top.text((left + right) / 2, 4.1, name.strip(), ha="center", color=GREY, fontsize=10)
        for axes in (top, low):
            axes.axvline(right, color=GREY, linewidth=0.6, linestyle=":", alpha=float(right < 5))
    top.set(xlim=(-5, 5), ylim=(-4.6, 4.6))
    save(figure, "result")


def figure_at_first() -> None:
    """What figure.js shows at first, with other random numbers."""
    mean, covariance, prior = exact_law(SIGMA, LAYERS, DOTS)
    paths = np.random.default_rng(1).multivariate_normal(mean, covariance, 5, method="eigh")
    to_outputs = outputs_of_weights(GRID, LAYERS)
    one = np.eye(len(mean))[UNIT * (FINE + 1) : (UNIT + 1) * (FINE + 1)]
    figure, row = panels(2, 3.4)
    for axes, at, matrix in ((row[0], np.arange(FINE + 1) / FINE, one), (row[1], GRID, to_outputs)):
        for law, centre, colour, alpha in ((prior, 0 * mean, GREY, 0.15), (covariance, mean, "#2b8cbe", 0.3)):
            std = np.sqrt(np.einsum("ij,jk,ik->i", matrix, law, matrix, optimize=True).clip(0))
            middle = matrix @ centre
            axes.fill_between(at, middle - 1.96 * std, middle + 1.96 * std, color=colour, alpha=alpha, linewidth=0)
        plots.draws(axes, at, paths @ matrix.T)
    plots.observations(row[1], DOTS[:, 0], DOTS[:, 1])
    plots.label(row[0], "one weight of each network, over depth", "depth t", "weight w")
    plots.label(row[1], "the functions of the same networks", "input x", "output f(x)")
    save(figure, "figure")


def main() -> None:
    """Draw all pictures."""
    figure_at_first()
    steps()
    weight()
    functions()
    bending()
    model, x, y = fitted_mlp()
    seeing(model, x, y)
    result(model, x, y)


if __name__ == "__main__":
    main()
