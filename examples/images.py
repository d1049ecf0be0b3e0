"""Classify images of digits, 8 by 8 pixels, and leave the answers of which the net is least sure to a person."""

from functools import partial

import jax
import numpy as np

import sdebnn
from sdebnn import metrics
from sdebnn.train import grouped_muon


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    digits = sdebnn.data.load("digits")
    net = sdebnn.our_net(
        digits.train.x.shape[1:], 10, channels=(16, 32), blocks=1, solver=sdebnn.FixedGrid(4, at_once=16), key=keys[0]
    )
    net, likelihood, _ = sdebnn.fit(
        net, sdebnn.Categorical(), *digits.train, key=keys[1], epochs=15, batches=sdebnn.Batches(64),
        optimizer=sdebnn.Optimizer(2e-2, partial(grouped_muon, 2e-2), ema=0.99),
    )  # fmt: skip
    scores = sdebnn.evaluate(net, likelihood, *digits.test, draws=8, key=keys[2])
    print(f"accuracy: {scores['accuracy']:.3f}, log loss: {scores['nll']:.3f}")

    probs = jax.nn.softmax(sdebnn.predict(net, digits.test.x, draws=8, key=keys[2]))
    entropy, _, _ = metrics.entropy_split(probs)
    sure = np.argsort(entropy)[: int(0.9 * len(entropy))]
    right = np.asarray(probs.mean(0).argmax(-1) == digits.test.y)
    print(f"accuracy on the nine tenths of which it is surest: {right[sure].mean():.3f}")


if __name__ == "__main__":
    main()
