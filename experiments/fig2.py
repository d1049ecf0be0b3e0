"""Figure 2: functions drawn from the prior and from the posterior, on a set of points that is not monotonic."""

import jax
import numpy as np
from lines import LONGER, PAPER, curves, draw_curves, fitted, paper_net, scores
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table

import sdebnn
from sdebnn.nn import prior_of

NETS = {
    "the paper's net and settings": PAPER, "the paper's net, KL weight 1": LONGER,
    "ours": {"epochs": 300, "learning_rate": 2e-2, "kl_weight": 1.0, "draws": 4},
}  # fmt: skip


class PriorAndPosterior(Experiment):
    title = "Figure 2: functions before and after the data"
    claim = "The SDE-BNN learns a reasonably flexible approximate posterior on a non-monotonic set."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        seeds = range(3 if scale == "full" else 1)
        rows = {}
        for name, training in NETS.items():
            epochs = training["epochs"] if scale == "full" else min(200, training["epochs"])
            for seed in seeds:
                rows[f"{name}, seed {seed}"] = {"net": name, "seed": seed, **training, "epochs": epochs}
        return rows

    def run(self, settings: Settings) -> Found:
        key, seed = jax.random.key(settings["seed"]), settings["seed"]
        ours = settings["net"] == "ours"
        net = sdebnn.SDEBNN.mlp(1, 1, key=key) if ours else paper_net(key)
        fit = fitted(net, seed, settings)
        posterior = curves(fit.model, seed)
        last = slice(-max(1, settings["epochs"] // 10), None)
        return {
            "prior": curves(prior_of(fit.model), seed), "posterior": posterior, **scores(posterior),
            "elbo": float(np.mean(fit.history["elbo"][last])), "kl": float(np.mean(fit.history["kl"][last])),
        }  # fmt: skip

    def finding(self, found: dict[str, Found]) -> Finding:
        means = {name: _means(found, name) for name in NETS}
        words = "; ".join(
            f"{name}: the 95 % band contains {each['coverage_inside']:.0%} of the truth among the data and "
            f"{each['coverage_beyond']:.0%} beyond; its width is {each['width_inside']:.2f} and "
            f"{each['width_beyond']:.2f}"
            for name, each in means.items()
        )
        paper = means["the paper's net and settings"]
        return Finding(bool(paper["rmse"] < 0.3 and paper["coverage_inside"] > 0.5), words[0].upper() + words[1:] + ".")

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for name in NETS:
            each = _means(found, name)
            shares = [f"{each[f'coverage_{zone}']:.0%}" for zone in ("inside", "beyond")]
            widths = [f"{each[f'width_{zone}']:.2f}" for zone in ("inside", "beyond")]
            rows.append([name, f"{each['elbo']:.1f}", f"{each['kl']:.1f}", f"{each['rmse']:.3f}", *shares, *widths])
        return Table(
            ("net", "objective", "KL (nats)", "RMSE", "covered inside", "beyond", "width inside", "beyond"), rows
        )

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(len(NETS), 2, figsize=(10, 3 * len(NETS)), sharex=True, layout="constrained")
        for pair, name in zip(panels, NETS, strict=True):
            each = found[f"{name}, seed 0"]
            draw_curves(pair[0], each["prior"], f"{name}: prior", None)
            draw_curves(pair[1], each["posterior"], f"{name}: posterior")
        return figure


def _means(found: dict[str, Found], name: str) -> dict[str, float]:
    """The mean of every score over seeds."""
    fits = [each for row, each in found.items() if row.startswith(f"{name}, seed")]
    scores = [score for score, value in fits[0].items() if isinstance(value, float)]
    return {score: float(np.mean([fit[score] for fit in fits])) for score in scores}


EXPERIMENT = PriorAndPosterior()
