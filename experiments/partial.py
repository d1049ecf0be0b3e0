"""Partly stochastic nets, as in the follow-up paper: randomness up to some depth, in some layers, or everywhere."""

import numpy as np
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from table1 import cell, named, of, percent, sets_of
from trained_nets import PAPER_KL, data_sets, is_charged, measured, net, trained

from sdebnn import metrics
from sdebnn.shifts import other_images

DETERMINISTIC, WHOLE = "ODEnet", "SDE-BNN"
NETS = (
    DETERMINISTIC, "SDE-BNN, random in one layer", "SDE-BNN, random to depth 1/2", WHOLE, "SDE-BNN, w0 inferred",
)  # fmt: skip
STRANGE = {"digits": ["noise", "shuffled"], "mnist": ["fashion-mnist", "noise", "shuffled"],
           "cifar10": ["fashion-mnist", "noise", "shuffled"]}  # fmt: skip
IMAGES = 2000


class PartlyRandom(Experiment):
    title = "The partly stochastic nets of the follow-up paper"
    claim = "Nets that are random in a part of their depth or layers do as well as wholly random ones, in less time."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        names = NETS if scale == "full" else (DETERMINISTIC, "SDE-BNN, random to depth 1/2", WHOLE)
        return {
            named(data, name, seed, weight): {
                "net": net(data, name, seed, kl_weight=weight), "strange": STRANGE[data], "images": IMAGES
            }
            for data, seeds in data_sets(scale).items()
            for name in names
            for weight in [PAPER_KL if is_charged(name) else None]
            for seed in range(seeds)
        }  # fmt: skip

    def run(self, settings: Settings) -> Found:
        found, seed, count = trained(settings["net"]), settings["net"]["seed"], settings["images"]
        usual = np.asarray(found.test.x[:count])

        def entropy(images: np.ndarray) -> np.ndarray:
            return metrics.entropy_split(found.samples(images, seed)).total

        areas = {
            name: float(metrics.detection(entropy(usual), entropy(other_images(name, usual)[:count])).auroc)
            for name in settings["strange"]
        }
        return {**measured(settings["net"]), "auroc": areas}

    def finding(self, found: dict[str, Found]) -> Finding:
        words, holds = [], True
        for data in sets_of(found):
            whole = of(found, data, WHOLE, PAPER_KL)
            parts = {name: of(found, data, name, PAPER_KL) for name in NETS if "random" in name}
            accuracy, seconds = percent(whole, "accuracy"), np.mean([fit["seconds_an_epoch"] for fit in whole])
            for name, fits in parts.items():
                if fits:
                    own, time = percent(fits, "accuracy"), np.mean([fit["seconds_an_epoch"] for fit in fits])
                    holds &= own > accuracy - 0.5 and time < seconds
                    words.append(f"{data}, {name.partition(', ')[2]}: {own:.2f} % in {time:.1f} s an epoch")
            words.append(f"{data}, wholly random: {accuracy:.2f} % in {seconds:.1f} s an epoch")
        return Finding(bool(holds), "; ".join(words) + ".")

    def table(self, found: dict[str, Found]) -> Table:
        sets = list(dict.fromkeys(name for row in found.values() for name in row["auroc"]))
        rows = []
        for data in sets_of(found):
            for name in NETS:
                fits = of(found, data, name, PAPER_KL if is_charged(name) else None)
                if fits:
                    areas = [
                        f"{np.mean([fit['auroc'][each] for fit in fits]):.3f}" if each in fits[0]["auroc"] else ""
                        for each in sets
                    ]
                    seconds = np.mean([fit["seconds_an_epoch"] for fit in fits])
                    rows.append([data, name, cell(fits, "accuracy"), cell(fits, "ece"), *areas, f"{seconds:.2f}"])
        heads = ("accuracy %", "ECE %", *(f"AUROC, {each}" for each in sets), "seconds an epoch")
        return Table(("data", "net", *heads), rows)


EXPERIMENT = PartlyRandom()
