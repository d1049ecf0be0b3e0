"""Figure 13: backpropagation through the solver takes longer than the adjoint, the paper says. Fixed steps."""

from gradients import BACKPROP, FIXED_ADJOINT, Gradients, draw_curves
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Finding, Found

PAPER = (162.58, 135.90)  # seconds an epoch


class SecondsOfGradients(Gradients):
    title = "Figure 13: seconds of backpropagation and of the adjoint"
    claim = "Backpropagation takes 162.58 seconds an epoch and the adjoint 135.90, with similar curves."
    full = smoke = ((BACKPROP, None), (FIXED_ADJOINT, None))

    def finding(self, found: dict[str, Found]) -> Finding:
        backprop, adjoint = found.values()
        ratio = adjoint["seconds_an_epoch"] / backprop["seconds_an_epoch"]
        return Finding(
            ratio < 1,
            f"The adjoint takes {ratio:.2f} times as long as backpropagation; in the paper "
            f"{PAPER[1] / PAPER[0]:.2f} times.",
        )

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
        draw_curves(axes, found, by_time=True)
        axes.legend()
        return figure


EXPERIMENT = SecondsOfGradients()
