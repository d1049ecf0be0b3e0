"""Figure 1: hidden units over depth in an ODE-Net and in an SDE-BNN, for several inputs."""

import jax
import jax.numpy as jnp
import numpy as np
from lines import LONGER, fitted, paper_net
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings

import sdebnn
from sdebnn.integrate import FixedGrid
from sdebnn.nn import ODEBlock, prior_of
from sdebnn.plots import label, trajectories

INPUTS = np.array([[-1.6], [-0.8], [0.0], [0.8], [1.6]], np.float32)
STEPS = 20
ODE, PRIOR, POSTERIOR = "ODE-Net", "SDE-BNN, prior", "SDE-BNN, posterior"


class Trajectories(Experiment):
    title = "Figure 1: hidden units over depth"
    claim = "Uncertain weights make the trajectories of hidden units uncertain; those of an ODE-Net are deterministic."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        training = LONGER if scale == "full" else {**LONGER, "epochs": 300}
        draws = 200 if scale == "full" else 50
        return {
            name: {"net": name, "draws": draws if name != ODE else 1, "seed": 0, **training, "draws_of_training": 4}
            for name in (ODE, PRIOR, POSTERIOR)
        }

    def run(self, settings: Settings) -> Found:
        seed, training = settings["seed"], {**settings, "draws": settings["draws_of_training"]}
        key = jax.random.key(seed)
        if settings["net"] == ODE:
            net = sdebnn.SDEBNN.paper_mlp(
                1, 1, widths=(32,), block=lambda field, key: ODEBlock(field, solver=FixedGrid(10)), key=key
            )
            net = fitted(net, seed, training).model
            return {"states": np.round(_euler(net)[None], 3)}
        net = fitted(paper_net(key), seed, training).model
        if settings["net"] == PRIOR:
            net = prior_of(net)
        augment, block, _ = net.layers
        block = block.with_solver(block.solver.with_steps(STEPS))
        h0, _ = augment(jnp.asarray(INPUTS), key=key)
        keys = jax.random.split(jax.random.fold_in(key, 1), settings["draws"])
        states = jax.vmap(lambda key: block.trajectory(h0, key=key)[0][..., 0])(keys)
        return {"states": np.round(np.asarray(states), 3)}

    def finding(self, found: dict[str, Found]) -> Finding:
        spread = {name: np.std(found[name]["states"], axis=0) for name in (PRIOR, POSTERIOR)}
        ends = {name: float(values[-1].mean()) for name, values in spread.items()}
        starts = max(float(values[0].max()) for values in spread.values())
        return Finding(
            starts < 1e-6 < 1e-2 < min(ends.values()),
            "All draws begin at the input. At depth 1 the first hidden unit has a standard deviation of "
            f"{ends[PRIOR]:.2f} under the prior and {ends[POSTERIOR]:.2f} under the posterior, as a mean over five "
            "inputs; an ODE-Net has one curve for each input.",
        )

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
        for axes, (name, each) in zip(panels, found.items(), strict=True):
            states = np.array(each["states"])
            trajectories(axes, np.linspace(0, 1, STEPS + 1), states)
            low, high = np.quantile(states, (0.02, 0.98))  # rare draws go far away
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            label(axes, name, "depth t", "first hidden unit" if axes is panels[0] else "")
        return figure


def _euler(net: sdebnn.SDEBNN) -> np.ndarray:
    """The first hidden unit of an ODE-Net over depth."""
    augment, block, _ = net.layers
    h, _ = augment(jnp.asarray(INPUTS), key=jax.random.key(0))
    states = [h]
    for step in range(STEPS):
        h = h + block.f_h(jnp.asarray(step / STEPS), h, block.unravel(block.value)) / STEPS
        states.append(h)
    return np.asarray(jnp.stack(states)[..., 0])


EXPERIMENT = Trajectories()
