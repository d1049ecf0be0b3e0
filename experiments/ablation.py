"""The paper's net on CIFAR-10: which settings take it to the paper's numbers. Each is changed alone, and some together.

The start is the row SDE-BNN of table 1. It has the paper's net, batch size, sigma 0.1 and KL weight 1e-3, and no
augmentation, of which the paper does not speak. It has 20 epochs where the paper has 500, to end within minutes;
standardised weights, with a rate for them instead of the paper's 7e-4; and the whole depth, where the code of the paper
stops at 0.53.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
from jax import Array
from jaxtyping import Float, PRNGKeyArray
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from trained_nets import EPOCHS, PAPER_KL, measured, net

from sdebnn import bayesianize
from sdebnn.compare import Row
from sdebnn.compare.images import ImageNets
from sdebnn.convolutions import TimeConv
from sdebnn.data import DataSet, RandomView
from sdebnn.models import SDEBNN, SDEBlock
from sdebnn.processes import OU

PAPER_ACCURACY, PAPER_ECE = 89.84, 7.19  # of the SDE-BNN on CIFAR-10, in %
START = "the net of table 1"
ALONE: dict[str, dict[str, Any]] = {
    START: {},
    "images shifted and mirrored": {"augment": True},
    "KL weight 1": {"kl_weight": 1.0},
    "a fourth of the learning rate": {"rate": 0.25},
    "twice the learning rate": {"rate": 2.0},
    "four times the epochs": {"longer": 4},
    "noise on weights that are not standardised": {"sigma": 2.4},  # 0.1 times the root of a fan-in of 9 (64 + 1)
    "depth up to 0.53": {"horizon": 0.53},
}
TOGETHER = {
    "shifted and mirrored, four times the epochs": {"augment": True, "longer": 4},
    "the same up to 0.53": {"augment": True, "longer": 4, "horizon": 0.53},
}
SMOKE = (START, "images shifted and mirrored", "depth up to 0.53")


class Shortened(eqx.Module):
    """A field up to a smaller depth, which is taken as the unit: dh/ds = T f(T s, h) for s from 0 to 1."""

    field: TimeConv
    horizon: float = eqx.field(static=True)

    def __call__(self, t: Float[Array, ""], h: Float[Array, "*state"]) -> Float[Array, "*state"]:
        return self.horizon * self.field(self.horizon * t, h)


class Ablation(Experiment):
    title = "Ablations: the settings of the paper's net"
    claim = f"The SDE-BNN has an accuracy of {PAPER_ACCURACY} % and an ECE of {PAPER_ECE} % on CIFAR-10."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        data = "cifar10" if scale == "full" else "digits"
        changes = ALONE | TOGETHER if scale == "full" else {name: ALONE[name] for name in SMOKE}
        return {name: _settings(data, **change) for name, change in changes.items()}

    def run(self, settings: Settings) -> Found:
        return measured(settings, _changed)

    def finding(self, found: dict[str, Found]) -> Finding:
        best = max(found, key=lambda name: found[name]["validation"]["accuracy"])
        accuracy = {name: 100 * each["accuracy"] for name, each in found.items()}
        start = accuracy[START]
        gains = sorted(((accuracy[name] - start, name) for name in found if name in ALONE), reverse=True)
        words = "; ".join(f"{name} {gain:+.1f}" for gain, name in gains if name != START)
        return Finding(
            accuracy[best] >= PAPER_ACCURACY - 0.5,
            f"With {START}, {start:.1f} %. One change at a time, in points: {words}. The most accurate on the "
            f"validation part is {best}, with {accuracy[best]:.1f} % and an ECE of {100 * found[best]['ece']:.1f} %.",
        )

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for name, each in found.items():
            scores = [f"{100 * each[score]:.2f}" for score in ("accuracy", "ece")]
            training = f"{100 * each['training']['accuracy']:.2f}"
            rows.append([name, *scores, f"{each['nll']:.3f}", training, f"{each['kl']:.1f}", f"{each['seconds']:.0f}"])
        rows.append(["the paper", f"{PAPER_ACCURACY}", f"{PAPER_ECE}", "", "", "", ""])
        return Table(
            ("changed", "accuracy, %", "ECE, %", "NLL", "accuracy in training, %", "KL in nats", "seconds"), rows
        )


def _settings(data: str, longer: int = 1, kl_weight: float = PAPER_KL, **changes: Any) -> Settings:
    others = {"changes": changes} if changes else {}
    return net(data, "SDE-BNN", 0, kl_weight=kl_weight, epochs=longer * EPOCHS[data], **others)


def _changed(row: Row, data: DataSet, settings: Settings) -> Row:
    """The row with the changes of these settings."""
    changes = settings.get("changes", {})
    training = row.training
    if "rate" in changes:
        rate = changes["rate"] * training.optimizer.learning_rate
        training = training._replace(optimizer=replace(training.optimizer, learning_rate=rate))
    if "augment" in changes:
        view = RandomView(max(1, data.train.x.shape[1] // 8), flip=data.train.x.shape[-1] > 1)  # not digits
        training = training._replace(batches=replace(training.batches, augment=view))
    if "sigma" in changes or "horizon" in changes:
        start = partial(_net, data, changes.get("sigma", 0.1), changes.get("horizon", 1.0))
        return row._replace(net=start, training=training)
    return row._replace(training=training)


def _net(data: DataSet, sigma: float, horizon: float, key: PRNGKeyArray) -> SDEBNN:
    """The paper's net with another size of the noise, or to another depth, over which the noise is the same."""
    nets = ImageNets(data)
    prior = OU(rate=horizon, sigma=sigma * horizon**0.5)

    def block(field: TimeConv, key: PRNGKeyArray) -> SDEBlock:
        shortened = field if horizon == 1 else Shortened(field, horizon)
        return bayesianize(shortened, prior=prior, drift=nets.size.drift, solver=nets.size.grid, key=key)

    return nets.depth(block, key)


EXPERIMENT = Ablation()
