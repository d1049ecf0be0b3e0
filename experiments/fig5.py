"""Figure 5: training by backpropagation through the solver, and by the stochastic adjoint."""

from gradients import ADJOINT, BACKPROP, CHECKPOINT, FIXED_ADJOINT, REVERSIBLE, Gradients, draw_curves, title_of
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Finding, Found


class BackpropAndAdjoint(Gradients):
    title = "Figure 5: backpropagation and the stochastic adjoint"
    claim = "Both have similar dynamics, performance and wall-clock time, and the adjoint needs less memory."
    full = ((BACKPROP, None), (CHECKPOINT, None), (REVERSIBLE, None), (FIXED_ADJOINT, None), (ADJOINT, 1e-2))
    smoke = ((BACKPROP, None), (REVERSIBLE, None), (FIXED_ADJOINT, None))

    def finding(self, found: dict[str, Found]) -> Finding:
        backprop, adjoint, ours = (found[title_of(name, None)] for name in (BACKPROP, FIXED_ADJOINT, REVERSIBLE))
        seconds = adjoint["seconds_an_epoch"] / backprop["seconds_an_epoch"]
        alike = abs(adjoint["nll"] - backprop["nll"]) < 0.1 * backprop["nll"]
        holds = alike and 0.5 < seconds < 2 and adjoint["memory_mib"] < backprop["memory_mib"]
        return Finding(
            bool(holds),
            f"The NLL is {backprop['nll']:.4f} by backpropagation and {adjoint['nll']:.4f} by the adjoint, which takes "
            f"{seconds:.1f} times as long and {adjoint['memory_mib']:.0f} MiB instead of "
            f"{backprop['memory_mib']:.0f}. A reversible method, whose gradient is exact, takes "
            f"{ours['memory_mib']:.0f} MiB and {ours['seconds_an_epoch'] / backprop['seconds_an_epoch']:.1f} times as "
            f"long{', and is unstable on this net' if ours['warned'] else ''}.",
        )

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        draw_curves(left, found, by_time=False)
        draw_curves(right, found, by_time=True)
        left.legend()
        return figure


EXPERIMENT = BackpropAndAdjoint()
