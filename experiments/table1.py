"""Table 1: accuracy and calibration on MNIST and CIFAR-10 of every net of the paper, and of ours."""

import numpy as np
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from trained_nets import OURS, PAPER_KL, data_sets, is_charged, measured, net

# Accuracy and ECE in %, on MNIST and CIFAR-10, as the paper prints them; those that it took from others are marked.
PAPER: dict[str, tuple[str, str, str, str]] = {
    "ResNet32": ("99.46", "2.88", "87.35", "8.47"),
    "ODEnet": ("98.90", "1.11", "88.30", "8.71"),
    "HyperODEnet": ("99.04", "1.04", "87.92", "15.86"),
    "MFVI ResNet32": ("99.44", "2.76", "86.97", "3.04"),
    "Deep Ensemble": ("", "", "89.22†", "2.79†"),
    "HMC": ("98.31†", "1.79†", "90.70†", "5.94†"),
    "MFVI ODEnet (Bayesian neural ODE)": ("98.81", "2.63", "81.59", "3.62"),
    "MFVI HyperODEnet": ("98.77", "2.82", "80.62", "4.29"),
    "SDE-BNN": ("99.30", "0.63", "89.84", "7.19"),
    "SDE-BNN + STL": ("99.10", "0.78", "89.10", "7.97"),
}
RIVALS = ("ODEnet", "MFVI ODEnet (Bayesian neural ODE)", "MFVI HyperODEnet")
SMOKE = ("ResNet32", "ODEnet", "SDE-BNN")
SEEDS_OF_SLOW = {"HMC": 1, "Deep Ensemble": 1}


class Images(Experiment):
    title = "Table 1: accuracy and calibration on images"
    claim = (
        "The SDE-BNN is more accurate than other continuous-time Bayesian nets, and better calibrated than an ODEnet."
    )

    def rows(self, scale: Scale) -> dict[str, Settings]:
        rows: dict[str, Settings] = {}
        for data, seeds in data_sets(scale).items():
            for name in (*PAPER, OURS) if scale == "full" else SMOKE:
                weights = (PAPER_KL, 1.0) if is_charged(name) else (None,)
                for weight in weights:
                    for seed in range(min(seeds, SEEDS_OF_SLOW.get(name, seeds))):
                        rows[named(data, name, seed, weight)] = net(data, name, seed, kl_weight=weight)
        return rows

    def run(self, settings: Settings) -> Found:
        return measured(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        words, holds = [], True
        for data in sets_of(found):
            ours = of(found, data, "SDE-BNN", PAPER_KL)
            rivals = {name: of(found, data, name, PAPER_KL if is_charged(name) else None) for name in RIVALS}
            accuracy = {name: percent(each, "accuracy") for name, each in rivals.items() if each}
            errors = {name: percent(each, "ece") for name, each in rivals.items() if each}
            of_ours, calibration = percent(ours, "accuracy"), percent(ours, "ece")
            bayesian = [value for name, value in accuracy.items() if name.startswith("MFVI")]
            holds &= all(of_ours > value for value in bayesian) and calibration < errors["ODEnet"]
            words.append(
                f"{data}: the SDE-BNN has an accuracy of {of_ours:.2f} % and an ECE of {calibration:.2f} %; "
                + ", ".join(f"{name} {accuracy[name]:.2f} and {errors[name]:.2f}" for name in accuracy)
            )
        return Finding(bool(holds), "; ".join(words) + ".")

    def table(self, found: dict[str, Found]) -> Table:
        sets = sets_of(found)
        heads = [f"{data}, {score} %" for data in sets for score in ("accuracy", "ECE")]
        rows = []
        for name in (*PAPER, OURS):
            for weight in (None, PAPER_KL, 1.0):
                cells = [cell(of(found, data, name, weight), score) for data in sets for score in ("accuracy", "ece")]
                if any(cells):
                    mnist, cifar = PAPER.get(name, ("",) * 4)[:2], PAPER.get(name, ("",) * 4)[2:]
                    kl = "" if weight is None else f"{weight:g}"
                    rows.append([name, kl, *cells, *(" / ".join(filter(None, pair)) for pair in (mnist, cifar))])
        return Table(("net", "KL weight", *heads, "paper, MNIST", "paper, CIFAR-10"), rows)


def named(data: str, name: str, seed: int, weight: float | None) -> str:
    """The name of a row."""
    return f"{data}, {name}" + ("" if weight is None else f", KL weight {weight:g}") + f", seed {seed}"


def of(found: dict[str, Found], data: str, name: str, weight: float | None) -> list[Found]:
    """The results of a net, by seed."""
    start = named(data, name, 0, weight).removesuffix("0")
    return [each for row, each in found.items() if row.startswith(start)]


def sets_of(found: dict[str, Found]) -> list[str]:
    """The data sets that these rows are of, in order."""
    return list(dict.fromkeys(row.partition(",")[0] for row in found))


def percent(fits: list[Found], score: str) -> float:
    """The mean of a score over seeds, in percent."""
    return 100 * float(np.mean([fit[score] for fit in fits]))


def cell(fits: list[Found], score: str) -> str:
    """The mean of a score, and its standard deviation over seeds, in percent."""
    values = [100 * fit[score] for fit in fits]
    if not values:
        return ""
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


EXPERIMENT = Images()
