"""Figure 14: fixed and adaptive steps in training, both with the stochastic adjoint: convergence and evaluations."""

from gradients import ADJOINT, FIXED_ADJOINT, RTOL, Gradients, draw_curves
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Finding, Found


class FixedAndAdaptive(Gradients):
    title = "Figure 14: fixed and adaptive steps"
    claim = "Adaptive steps converge as fixed ones do, and take longer."
    full = ((FIXED_ADJOINT, None), *((ADJOINT, rtol) for rtol in RTOL))
    smoke = ((FIXED_ADJOINT, None), (ADJOINT, RTOL[0]))

    def finding(self, found: dict[str, Found]) -> Finding:
        fixed, *adaptive = found.values()
        best = min(adaptive, key=lambda each: each["nll"])
        words = ", ".join(
            f"{name}: NLL {each['nll']:.4f}, {each['seconds_an_epoch']:.1f} s and {each['evaluations_an_epoch']:.0f} "
            "evaluations an epoch"
            for name, each in found.items()
        )
        holds = best["nll"] < 1.1 * fixed["nll"] and best["seconds_an_epoch"] > fixed["seconds_an_epoch"]
        return Finding(bool(holds), words[0].upper() + words[1:] + ".")

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        draw_curves(left, found, by_time=False)
        draw_curves(right, found, by_time=True)
        left.legend()
        return figure


EXPERIMENT = FixedAndAdaptive()
