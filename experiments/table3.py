"""Table 3: w_0 inferred or a point, with STL or without it, under the paper's KL weight and under 1."""

from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from table1 import cell, named, of, percent, sets_of
from trained_nets import PAPER_KL, data_sets, measured, net

# Accuracy and ECE in %, on MNIST and CIFAR-10.
PAPER = {
    "SDE-BNN": ("99.30 / 0.63", "88.08 / 7.53"),
    "SDE-BNN + STL": ("99.10 / 0.78", "87.95 / 7.94"),
    "SDE-BNN, w0 inferred": ("99.04 / 0.73", "88.04 / 6.56"),
    "SDE-BNN, w0 inferred + STL": ("99.05 / 0.79", "87.37 / 6.44"),
}
SMOKE = ("SDE-BNN", "SDE-BNN, w0 inferred")


class InferredStart(Experiment):
    title = "Table 3: w0 inferred or a point, with STL or without"
    claim = "Inferring w0 hardly changes the accuracy, and calibrates better on CIFAR-10."
    shares = ("table1",)

    def rows(self, scale: Scale) -> dict[str, Settings]:
        names = PAPER if scale == "full" else SMOKE
        return {
            named(data, name, seed, weight): net(data, name, seed, kl_weight=weight)
            for data, seeds in data_sets(scale).items()
            for name in names
            for weight in (PAPER_KL, 1.0)
            for seed in range(seeds)
        }

    def run(self, settings: Settings) -> Found:
        return measured(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        words, holds = [], True
        for data in sets_of(found):
            point, inferred = (of(found, data, name, PAPER_KL) for name in ("SDE-BNN", "SDE-BNN, w0 inferred"))
            (a, b), (e, f) = (
                [percent(fits, score) for fits in (point, inferred)] for score in ("accuracy", "ece")
            )  # fmt: skip
            holds &= abs(a - b) < 1 and (data != "cifar10" or f < e)
            words.append(
                f"{data}: {a:.2f} % and an ECE of {e:.2f} % with a point, {b:.2f} % and {f:.2f} % with w0 inferred"
            )
        return Finding(bool(holds), "; ".join(words) + ".")

    def table(self, found: dict[str, Found]) -> Table:
        sets = sets_of(found)
        rows = []
        for name, paper in PAPER.items():
            for weight in (PAPER_KL, 1.0):
                fits = [of(found, data, name, weight) for data in sets]
                if any(fits):
                    cells = [cell(each, score) for each in fits for score in ("accuracy", "ece")]
                    kl = ", ".join(f"{sum(fit['kl'] for fit in each) / len(each):.1f}" for each in fits if each)
                    rows.append([name, f"{weight:g}", *cells, kl, *paper])
        heads = [f"{data}, {score} %" for data in sets for score in ("accuracy", "ECE")]
        return Table(("net", "KL weight", *heads, "KL in nats", "paper, MNIST", "paper, CIFAR-10"), rows)


EXPERIMENT = InferredStart()
