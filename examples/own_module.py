"""Give a part of your own module random weights: here the first layer of a field that has two."""

import equinox as eqx
import jax

import sdebnn


class Field(eqx.Module):
    """The change of a state h at depth t."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, size, width, *, key):
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(size, width, key=keys[0])
        self.second = eqx.nn.Linear(width, size, key=keys[1])

    def __call__(self, t, h):
        return self.second(jax.nn.tanh(self.first(h) + t))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    x, y = sdebnn.data.toy.two_sides(40, key=keys[0])
    block = sdebnn.bayesianize(
        Field(8, 16, key=keys[1]), where=lambda field: field.first, prior=sdebnn.OU(sigma=0.1), key=keys[2]
    )
    first, last = (
        sdebnn.Deterministic(eqx.nn.Linear(*sizes, key=key)) for sizes, key in (((1, 8), keys[3]), ((8, 1), keys[4]))
    )
    net = sdebnn.SDEBNN([first, block, last])
    print(sdebnn.describe(net, x))
    options = {"epochs": 2000, "optimizer": sdebnn.Optimizer(1e-2)}
    net, likelihood, _ = sdebnn.fit(net, sdebnn.Gaussian(0.1, learn=True), x, y, key=keys[5], **options)
    scores = sdebnn.evaluate(net, likelihood, x, y, key=keys[5])
    print(f"root mean squared error: {scores['rmse']:.3f}")


if __name__ == "__main__":
    main()
