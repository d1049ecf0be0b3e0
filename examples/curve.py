"""Fit a curve with a gap in its data, and draw the band that contains 95 % of the functions to curve.png."""

import jax
import matplotlib.pyplot as plt
import numpy as np

import sdebnn


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x, y = sdebnn.data.toy.two_sides(40, key=keys[0])
    model = sdebnn.SDEBNN.mlp(in_size=1, out_size=1, key=keys[1])
    fitted = sdebnn.fit(model, sdebnn.Gaussian(0.1), x, y, key=keys[2])

    grid = np.linspace(-4, 4, 200)[:, None]
    functions = sdebnn.predict(fitted.model, grid, draws=200, key=keys[3])[..., 0]
    low, high = np.quantile(functions, [0.025, 0.975], axis=0)
    truth = np.asarray(sdebnn.data.toy.two_sides_mean(grid[:, 0]))
    inside = np.abs(grid[:, 0]) <= np.abs(x).max()
    covered = (low <= truth) & (truth <= high)
    print(f"the band contains the truth at {covered[inside].mean():.0%} of the inputs inside the data's range")

    _, axes = plt.subplots(figsize=(8, 4))
    axes.fill_between(grid[:, 0], low, high, alpha=0.3, label="95 % of the functions")
    axes.plot(grid, truth, "k--", label="truth")
    axes.plot(x, y, "k.", label="data")
    axes.legend()
    plt.savefig("curve.png")


if __name__ == "__main__":
    main()
