"""Figure 11: calibration of SDE-BNNs that were trained with different numbers of steps, each at its own."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from resolutions import at_resolutions, draw_reliability, settings_of
from trained_nets import PAPER_KL, net

STEPS = (10, 20, 30, 40)  # evaluations of the field; the paper counts those of all blocks and stages, 160 to 208


class StepsInTraining(Experiment):
    title = "Figure 11: the number of steps in training"
    claim = "More steps calibrate better, and hardly change the error."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        data, images = ("cifar10", 10_000) if full else ("digits", 100)
        return {
            f"{steps} steps": settings_of(
                net(data, "SDE-BNN", 0, kl_weight=PAPER_KL, steps=steps), [{"steps": steps}], images
            )
            for steps in (STEPS if full else (5, 10))
        }

    def run(self, settings: Settings) -> Found:
        return at_resolutions(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        rows = {name: each["at"][0] for name, each in found.items()}
        first, last = rows[next(iter(rows))], rows[list(rows)[-1]]
        words = ", ".join(f"{name}: ECE {row['ece']:.2%}, accuracy {row['accuracy']:.2%}" for name, row in rows.items())
        holds = last["ece"] < first["ece"] and abs(last["accuracy"] - first["accuracy"]) < 0.01
        return Finding(bool(holds), words[0].upper() + words[1:] + ".")

    def table(self, found: dict[str, Found]) -> Table:
        rows = [
            [name, *(f"{each['at'][0][score]:.4f}" for score in ("accuracy", "ece", "nll", "brier"))]
            for name, each in found.items()
        ]
        return Table(("in training and at test", "accuracy", "ECE", "NLL", "Brier"), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(1, len(found), figsize=(3.6 * len(found), 3.8), layout="constrained")
        for axes, (name, each) in zip(panels, found.items(), strict=True):
            draw_reliability(axes, each["at"][0], name)
        return figure


EXPERIMENT = StepsInTraining()
