"""Table 4: training with the STL estimator and with the analytic one: accuracy, NLL and objective in training."""

import numpy as np
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from table1 import named, of, sets_of
from trained_nets import PAPER_KL, data_sets, measured, net

# Accuracy in %; the paper gives NLL and ELBO in units of its own.
PAPER = {"SDE-BNN": "95.91", "SDE-BNN + STL": "96.89"}


class TrainingWithSTL(Experiment):
    title = "Table 4: training with STL"
    claim = "Training with STL ends with a higher accuracy on the training part and a better objective."
    shares = ("table1", "table3")

    def rows(self, scale: Scale) -> dict[str, Settings]:
        return {
            named(data, name, seed, weight): net(data, name, seed, kl_weight=weight)
            for data, seeds in data_sets(scale).items()
            for name in PAPER
            for weight in (PAPER_KL, 1.0)
            for seed in range(seeds)
        }

    def run(self, settings: Settings) -> Found:
        return measured(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        words, holds = [], True
        for data in sets_of(found):
            for weight in (PAPER_KL, 1.0):
                plain, stl = (of(found, data, name, weight) for name in PAPER)
                (a, b), (e, f) = (
                    [_mean(fits, score) for fits in (plain, stl)] for score in ("accuracy", "elbo")
                )  # fmt: skip
                holds &= b > a and f > e
                words.append(
                    f"{data}, KL weight {weight:g}: accuracy {100 * a:.2f} % and objective {e:.0f} nats without STL, "
                    f"{100 * b:.2f} % and {f:.0f} with it"
                )
        return Finding(bool(holds), "; ".join(words) + ".")

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for data in sets_of(found):
            for name, paper in PAPER.items():
                for weight in (PAPER_KL, 1.0):
                    fits = of(found, data, name, weight)
                    accuracy, elbo, kl = (_mean(fits, score) for score in ("accuracy", "elbo", "kl"))
                    nll = np.mean([fit["nll"] for fit in fits])
                    cells = [f"{100 * accuracy:.2f}", f"{elbo:.1f}", f"{kl:.2f}", f"{nll:.4f}"]
                    rows.append([data, name, f"{weight:g}", *cells, paper if data == "cifar10" else ""])
        heads = ("accuracy in training, %", "objective in nats", "KL in nats", "NLL of the test part")
        return Table(("data", "net", "KL weight", *heads, "paper, %"), rows)


def _mean(fits: list[Found], score: str) -> float:
    """The mean over seeds of a score of the end of training."""
    return float(np.mean([fit["training"][score] for fit in fits]))


EXPERIMENT = TrainingWithSTL()
