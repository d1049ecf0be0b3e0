"""Figure 15: the tolerance of adaptive steps in training: precision and speed, by backpropagation."""

from gradients import ADAPTIVE_BACKPROP, BACKPROP, RTOL, Gradients, draw_curves
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Finding, Found


class ToleranceInTraining(Gradients):
    title = "Figure 15: the tolerance in training"
    claim = "Trainings with adaptive steps are comparable to those with fixed steps, at any tolerance."
    full = ((BACKPROP, None), *((ADAPTIVE_BACKPROP, rtol) for rtol in RTOL))
    smoke = ((BACKPROP, None), (ADAPTIVE_BACKPROP, RTOL[0]))

    def finding(self, found: dict[str, Found]) -> Finding:
        fixed, *adaptive = found.values()
        words = ", ".join(
            f"{name}: NLL {each['nll']:.4f} at {each['seconds_an_epoch']:.1f} s an epoch"
            for name, each in found.items()
        )
        holds = all(abs(each["nll"] - fixed["nll"]) < 0.1 * fixed["nll"] for each in adaptive)
        return Finding(bool(holds), words[0].upper() + words[1:] + ".")

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
        draw_curves(axes, found, by_time=True)
        axes.legend()
        return figure


EXPERIMENT = ToleranceInTraining()
