"""Cost and accuracy of the solvers:

1. Memory and time of one gradient by the number of steps, for the four ways to compute gradients.
2. Error of a trained model's draws by the number of evaluations of its field, for fixed grids and adaptive steps. All
   use the same Brownian paths, and the reference is a grid of 2000 steps of the order-1.5 method.
3. Error of the stochastic adjoint's gradient by the tolerance, in float64.
4. How much fit the roughness regulariser costs, and how many steps it saves.

    python benchmarks/solvers.py [--json FILE] [--picture FILE] [--quick]
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import record

import sdebnn
from sdebnn import Objective, verify
from sdebnn.data import toy
from sdebnn.models import map_blocks

GRADIENTS = ("backprop", "checkpoint", "reversible", "adjoint")
STEPS = (20, 80, 320, 1280)
METHODS = ("euler", "heun", "ralston3", "reversible_heun")
GRIDS = (2, 3, 4, 5, 7, 10, 20, 40, 80, 160)
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5)
DRAWS = 16


def solver_of(gradient: str, steps: int) -> Any:
    """A grid of reversible Heun or, for the stochastic adjoint, diffrax with the same number of steps."""
    if gradient != "adjoint":
        return sdebnn.FixedGrid(steps, "reversible_heun", gradient)
    return sdebnn.Adaptive(
        10.0, solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint(), max_step=1 / steps, max_steps=2 * steps
    )


def gradient_costs(counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows with compiled memory, times, and the distance of the gradient from that of backprop."""
    x, key = jnp.linspace(-2, 2, 256)[:, None], jax.random.key(1)
    rows, exact = [], {}
    for steps in counts:
        for gradient in GRADIENTS:
            model = sdebnn.SDEBNN.paper_mlp(
                1, 1, widths=(32,), solver=solver_of(gradient, steps), key=jax.random.key(0)
            )
            last = lambda m: m.layers[1].drift.layers[-1].weight  # noqa: E731
            model = eqx.tree_at(last, model, 0.05 * jax.random.normal(key, last(model).shape))
            parameters, rest = eqx.partition(model, eqx.is_inexact_array)

            def loss(parameters: Any, rest: Any = rest) -> jax.Array:
                outputs, kl = eqx.combine(parameters, rest)(x, key=key)
                return jnp.sum(outputs**2) + kl

            start = time.perf_counter()
            compiled = jax.jit(jax.grad(loss)).lower(parameters).compile()
            compile_s = time.perf_counter() - start
            flat = np.asarray(jax.flatten_util.ravel_pytree(compiled(parameters))[0], dtype=float)
            times = [_seconds(compiled, parameters) for _ in range(3 if steps > 300 else 15)]
            analysis = compiled.memory_analysis()
            exact.setdefault(steps, flat)
            rows.append(
                {
                    "gradient": gradient,
                    "steps": steps,
                    "memory_mib": analysis.temp_size_in_bytes / 2**20,
                    "ms": 1e3 * min(times),
                    "us_a_step": 1e6 * min(times) / steps,
                    "compile_s": compile_s,
                    # The adjoint has other noise and another discretisation, so it is not comparable.
                    "off_backprop": None if gradient == "adjoint" else _relative(flat, exact[steps]),
                }
            )
            print(
                f"{gradient:12}{steps:6}{rows[-1]['memory_mib']:12.3f}{rows[-1]['ms']:12.2f}"
                f"{rows[-1]['us_a_step']:12.1f}{compile_s:12.1f}"
                + ("" if gradient == "adjoint" else f"{rows[-1]['off_backprop']:14.1e}"),
                flush=True,
            )
    return rows


def _seconds(call: Callable, *arguments: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - start


def _relative(value: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def trained(epochs: int, roughness_weight: float = 0.0, **shape: Any) -> sdebnn.Fit:
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = toy.wave(200, key=keys[0])
    model = sdebnn.SDEBNN.paper_mlp(1, 1, key=keys[1], **shape)
    return sdebnn.fit(
        model,
        sdebnn.Gaussian(toy.WAVE_NOISE),
        x,
        y,
        key=keys[2],
        epochs=epochs,
        objective=Objective(roughness_weight=roughness_weight),
    )


def by_method(model: Any, method: str) -> Any:
    """The same model and draws, solved by another method."""
    return map_blocks(lambda block: block.with_solver(sdebnn.FixedGrid(20, method)), model)


def errors(model: Any) -> list[dict[str, Any]]:
    """Rows with the root mean square distance of draws from the same draws on a fine grid, and their evaluations."""
    x, key = jnp.linspace(*toy.WAVE_RANGE, 61)[:, None], jax.random.key(5)
    fine = sdebnn.predict(by_method(model, "ralston3"), x, steps=2000, draws=DRAWS, key=key)
    print(f"{'':18}{'':10}{'evaluations':>12}{'error':>12}   (spread of the draws {float(fine.std(0).mean()):.3f})")
    rows = []

    def add(solver: str, law: Any, **dial: Any) -> None:
        samples, evaluations = sdebnn.predict(law, x, draws=DRAWS, key=key, return_evaluations=True, **dial)
        error = float(jnp.sqrt(jnp.mean((samples - fine) ** 2)))
        rows.append({"solver": solver, **dial, "evaluations": float(evaluations.mean()), "error": error})
        at = " ".join(f"{name}={value:g}" for name, value in dial.items())
        print(f"{solver:18}{at:10}{rows[-1]['evaluations']:12.1f}{error:12.5f}", flush=True)

    for method in METHODS:
        for steps in GRIDS:
            add(method, by_method(model, method), steps=steps)
    for solver in (diffrax.Heun(), diffrax.ShARK()):
        law = map_blocks(
            lambda block, s=solver: block.with_solver(sdebnn.Adaptive(1e-3, solver=s, noise_steps=20)), model
        )
        for rtol in TOLERANCES:
            add(f"adaptive {type(solver).__name__}", law, rtol=rtol)
    return rows


def evaluations_for_euler_error(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """The error of Euler with 20 steps, and the fewest evaluations with which the order-1.5 method reaches it."""
    euler = next(row["error"] for row in rows if row["solver"] == "euler" and row["steps"] == 20)
    enough = [row["evaluations"] for row in rows if row["solver"] == "ralston3" and row["error"] <= euler]
    return euler, min(enough)


def adjoint_errors(tolerances: tuple[float, ...]) -> list[dict[str, Any]]:
    """Error of the adjoint equation's gradient, relative to 512 steps of ralston3 with the same Brownian path."""
    base, key, rows = 512, jax.random.key(0), []
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        model = verify.small_model(sdebnn.FixedGrid(base, "ralston3"), key=key)
        _, reference = verify.loss_and_gradient(model, x, key=key)
        for rtol in tolerances:
            law = sdebnn.Adaptive(
                rtol, solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint(), max_steps=100_000, noise_steps=base
            )
            _, gradient = verify.loss_and_gradient(verify.small_model(law, key=key), x, key=key)
            rows.append({"rtol": rtol, "error": verify.relative(gradient, reference)})
            print(f"rtol={rtol:<8g}{rows[-1]['error']:12.2e}", flush=True)
    return rows


def trade_off(epochs: int, weights: tuple[float, ...]) -> list[dict[str, Any]]:
    """Fit and cost by the weight of the roughness."""
    held_out = toy.wave(400, key=jax.random.key(3))
    print(f"{'weight':>8}{'roughness':>11}{'NLL':>9}{'NLL, 5 steps':>14}{'solver error':>14}{'evaluations':>13}")
    rows, key = [], jax.random.key(4)
    for weight in weights:
        model, likelihood, _ = trained(epochs, weight)
        terms = sdebnn.elbo(model, likelihood, *held_out, key=key, draws=16, with_roughness=True)
        row = {
            "weight": weight,
            "roughness": float(terms.roughness),
            "nll": sdebnn.evaluate(model, likelihood, *held_out, draws=100, key=key)["nll"],
            "nll_5_steps": sdebnn.evaluate(model, likelihood, *held_out, draws=100, key=key, steps=5)["nll"],
            "uncertainty_sources": float(
                sdebnn.uncertainty_sources(model, likelihood, held_out[0], draws=50, key=key).solver.mean()
            ),
            "evaluations_rtol_1e-2": float(
                sdebnn.predict(model, held_out[0], draws=16, rtol=1e-2, key=key, return_evaluations=True)[1].mean()
            ),
        }
        rows.append(row)
        print(
            f"{weight:8g}{row['roughness']:11.3f}{row['nll']:9.3f}{row['nll_5_steps']:14.3f}"
            f"{row['uncertainty_sources']:14.4f}{row['evaluations_rtol_1e-2']:13.1f}",
            flush=True,
        )
    return rows


def picture(path: Path, costs: list, found: list, adjoint: list, trade: list) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    panels = grid.ravel()
    for gradient in GRADIENTS:
        rows = [row for row in costs if row["gradient"] == gradient]
        steps = [row["steps"] for row in rows]
        panels[0].loglog(steps, [row["memory_mib"] for row in rows], "o-", label=gradient)
        panels[1].loglog(steps, [row["us_a_step"] for row in rows], "o-", label=gradient)
    _label(panels[0], "Memory of one gradient", "steps", "MiB")
    _label(panels[1], "Time of one gradient", "steps", "µs a step")
    for solver in dict.fromkeys(row["solver"] for row in found):
        rows = [row for row in found if row["solver"] == solver]
        style = "s--" if solver.startswith("adaptive") else "o-"
        panels[2].loglog(
            [r["evaluations"] for r in rows], [r["error"] for r in rows], style, markersize=4, label=solver
        )
    euler, _ = evaluations_for_euler_error(found)
    panels[2].axhline(euler, color="#999", linewidth=0.8, linestyle=":", label="Euler, 20 steps")
    _label(panels[2], "Error of a trained model's draws", "evaluations of the field", "root mean square error")
    panels[3].loglog([row["rtol"] for row in adjoint], [row["error"] for row in adjoint], "o-", label="Heun, backsolve")
    _label(panels[3], "The stochastic adjoint", "rtol", "relative error of the gradient")
    weights = [max(row["weight"], 1e-2) for row in trade]
    for name, label in (("nll", "20 steps, as trained"), ("nll_5_steps", "5 steps")):
        panels[4].semilogx(weights, [row[name] for row in trade], "o-", label=label)
    _label(panels[4], "The regulariser: fit", "weight of the roughness (0 drawn at 0.01)", "held-out NLL")
    panels[5].semilogx(weights, [row["uncertainty_sources"] for row in trade], "o-", label="error of 20 Euler steps")
    _label(
        panels[5], "The regulariser: solver", "weight of the roughness (0 drawn at 0.01)", "uncertainty_sources, mean"
    )
    figure.savefig(path, dpi=110)


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true", help="few steps and epochs, to test that it runs")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*trained on a grid")  # other grids are what is measured here

    print(
        f"{'gradient':12}{'steps':>6}{'memory MiB':>12}{'ms':>12}{'µs a step':>12}{'compile s':>12}{'off backprop':>14}"
    )
    costs = gradient_costs(STEPS[:2] if options.quick else STEPS)
    epochs = 50 if options.quick else 2000
    print("\nDraws of a trained model against the same draws on 2000 steps of ralston3")
    found = errors(trained(epochs, **TOY).model)
    euler, evaluations = evaluations_for_euler_error(found)
    print(
        f"Euler-20's error {euler:.4f} takes ralston3 {evaluations:g} evaluations: {evaluations / 20:.2f} of Euler's."
    )
    print("\nThe stochastic adjoint's gradient, relative error")
    adjoint = adjoint_errors(TOLERANCES[:2] if options.quick else (1e-1, *TOLERANCES[:3]))
    print("\nThe roughness regulariser")
    trade = trade_off(epochs, (0.0, 1.0) if options.quick else (0.0, 0.1, 1.0, 10.0))
    if options.json:
        record.write(
            options.json,
            "python benchmarks/solvers.py",
            gradients=costs,
            errors=found,
            adjoint=adjoint,
            trade_off=trade,
        )
    if options.picture:
        picture(options.picture, costs, found, adjoint, trade)


TOY = {"widths": (64,), "gain": 1.0, "augment": 6}  # smooth dynamics

if __name__ == "__main__":
    main()
