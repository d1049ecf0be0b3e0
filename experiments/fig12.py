"""Figure 12: calibration of one SDE-BNN at numbers of steps near that of its training."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from resolutions import at_resolutions, draw_reliability, settings_of
from trained_nets import PAPER_KL, net

STEPS = (19, 20, 22, 24)  # the paper's 154, 160, 176 and 192 evaluations, relative to the 160 of its training


class StepsAtTest(Experiment):
    title = "Figure 12: the number of steps at test time"
    claim = "Steps near those of training do not yield significant differences in calibration."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        data, images = ("cifar10", 10_000) if scale == "full" else ("digits", 100)
        seeds = range(3 if scale == "full" else 1)
        resolutions = [{"steps": each} for each in STEPS]
        return {
            f"seed {seed}": settings_of(net(data, "SDE-BNN", seed, kl_weight=PAPER_KL), resolutions, images)
            for seed in seeds
        }

    def run(self, settings: Settings) -> Found:
        return at_resolutions(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        ranges = [[row["ece"] for row in each["at"]] for each in found.values()]
        widest = max(max(each) - min(each) for each in ranges)
        return Finding(
            widest < 0.005,
            f"Between {STEPS[0]} and {STEPS[-1]} steps, the ECE differs by at most {100 * widest:.2f} percent points.",
        )

    def table(self, found: dict[str, Found]) -> Table:
        rows = [
            [name, str(row["steps"]), *(f"{row[score]:.4f}" for score in ("accuracy", "ece", "nll", "brier"))]
            for name, each in found.items()
            for row in each["at"]
        ]
        return Table(("net", "steps", "accuracy", "ECE", "NLL", "Brier"), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        rows = next(iter(found.values()))["at"]
        figure, panels = plt.subplots(1, len(rows), figsize=(3.6 * len(rows), 3.8), layout="constrained")
        for axes, row in zip(panels, rows, strict=True):
            draw_reliability(axes, row, f"{row['steps']} steps")
        return figure


EXPERIMENT = StepsAtTest()
