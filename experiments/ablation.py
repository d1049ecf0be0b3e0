"""What the paper's settings leave out: the paper's net on CIFAR-10 under its settings, each of them changed alone.

The paper names the net, Adam, sigma 0.1 and rates from 1e-4 to 1e-3. Its code multiplies the KL by 1e-3, solves to a
depth of 0.53, and does not standardise the weights. Neither says how long it trains, or whether images are augmented.
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
from sdebnn.compare.images import size_of
from sdebnn.convolutions import TimeConv
from sdebnn.data import DataSet, RandomView, pixel_statistics
from sdebnn.models import SDEBlock
from sdebnn.nets import paper_net
from sdebnn.processes import OU

PAPER_ACCURACY, PAPER_ECE = 89.84, 7.19  # of the SDE-BNN on CIFAR-10, in %
ALONE: dict[str, dict[str, Any]] = {
    "as the paper says": {},
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
SMOKE = ("as the paper says", "images shifted and mirrored", "depth up to 0.53")


class Shortened(eqx.Module):
    """A field up to a smaller depth, which is taken as the unit: dh/ds = T f(T s, h) for s from 0 to 1."""

    field: TimeConv
    horizon: float = eqx.field(static=True)

    def __call__(self, t: Float[Array, ""], h: Float[Array, "*state"]) -> Float[Array, "*state"]:
        return self.horizon * self.field(self.horizon * t, h)


class Ablation(Experiment):
    title = "Ablations: what the paper's settings leave out"
    claim = f"The SDE-BNN has an accuracy of {PAPER_ACCURACY} % and an ECE of {PAPER_ECE} % on CIFAR-10."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        data = "cifar10" if scale == "full" else "digits"
        changes = ALONE | TOGETHER if scale == "full" else {name: ALONE[name] for name in SMOKE}
        return {name: _settings(data, **change) for name, change in changes.items()}

    def run(self, settings: Settings) -> Found:
        return measured(settings, _changed)

    def finding(self, found: dict[str, Found]) -> Finding:
        best = max(found, key=lambda name: found[name]["accuracy"])
        accuracy = {name: 100 * each["accuracy"] for name, each in found.items()}
        start = accuracy["as the paper says"]
        gains = sorted(((accuracy[name] - start, name) for name in found if name in ALONE), reverse=True)
        words = "; ".join(f"{name} {gain:+.1f}" for gain, name in gains if name != "as the paper says")
        return Finding(
            accuracy[best] >= PAPER_ACCURACY - 0.5,
            f"As the paper says, {start:.1f} %. One change at a time, in points: {words}. The most accurate is "
            f"{best}, with {accuracy[best]:.1f} % and an ECE of {100 * found[best]['ece']:.1f} %.",
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
        view = RandomView(max(1, data.train.x.shape[1] // 8), flip=True)
        training = training._replace(batches=replace(training.batches, augment=view))
    if "sigma" in changes or "horizon" in changes:
        start = partial(_net, data, changes.get("sigma", 0.1), changes.get("horizon", 1.0))
        return row._replace(net=start, training=training)
    return row._replace(training=training)


def _net(data: DataSet, sigma: float, horizon: float, key: PRNGKeyArray) -> Any:
    """The paper's net with another size of the noise, or to another depth, over which the noise is the same."""
    shape, looks = pixel_statistics(data)
    size = size_of(shape)
    prior = OU(rate=horizon, sigma=sigma * horizon**0.5)

    def block(field: TimeConv, key: PRNGKeyArray) -> SDEBlock:
        shortened = field if horizon == 1 else Shortened(field, horizon)
        return bayesianize(shortened, prior=prior, drift=size.drift, solver=size.grid, key=key)

    return paper_net(
        shape, len(data.classes or ()), blocks=size.blocks, width=size.width, solver=size.grid, block=block,
        mean=looks["mean"], std=looks["std"], key=key,
    )  # fmt: skip


EXPERIMENT = Ablation()
