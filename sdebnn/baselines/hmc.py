"""Hamiltonian Monte Carlo over the weights of any model, on all data at once, by the NUTS of BlackJAX.

    p(w | D) ∝ p(D | w) N(w; 0, prior_std²),   w standardised by its fan-in

Gradient steps first fit a mean-field posterior. The chains start from draws of it, adapt their step size and masses,
and sample. R-hat, effective sample size and divergences are reported.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_positive, plain_number
from sdebnn.contract import AbstractModel, Data, LayerLine, draw_keys, parameter_count
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import (
    Frozen,
    MeanField,
    WeightFunction,
    as_model,
    check_deterministic,
    index_of,
    keys_in_turn,
)
from sdebnn.processes import Normal, Weights
from sdebnn.programs import compiled

PROGRESS_REPORTS = 10  # while sampling
COMPARED_EXAMPLES = 100  # examples at which the outputs of the chains are compared


class Diagnostics(NamedTuple):
    """Whether the chains have converged: the worst value over all weights, and over the outputs for some examples.

    Hidden units may be permuted without changing a net, so that chains may agree on the outputs but not on the weights.
    R-hat is rank-normalised and split (1 at best); the effective sample size is that of the bulk.
    """

    rhat_weights: float
    rhat_outputs: float
    ess_weights: float
    ess_outputs: float
    divergences: int
    acceptance: float
    leapfrogs: float  # steps in a draw, on average


class HMC(AbstractModel):
    """Any model, or module of one example, with sampled weights: ``fit`` runs the chains after its gradient steps.

        mlp = eqx.nn.MLP(1, 1, 4, 1, key=key)
        net = baselines.HMC(mlp, chains=2, warmup=20, draws=20)  # the defaults are larger
        fitted = fit(net, likelihood, x, y, key=key, epochs=20)
        print(fitted.model.diagnostics.rhat_outputs)

    Until then, it is the mean-field posterior ``start``. The KL of samples is unknown, and reported as 0. A trajectory
    has at most 2^doublings leapfrog steps.
    """

    start: MeanField
    samples: Frozen | None
    diagnostics: Diagnostics | None
    prior_std: float = eqx.field(static=True)
    chains: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    doublings: int = eqx.field(static=True)

    def __init__(
        self,
        model: AbstractModel | Callable[[Array], Array],
        *,
        prior_std: float = 1.0,
        std: float = 0.05,
        chains: int = 4,
        warmup: int = 500,
        draws: int = 500,
        doublings: int = 8,
    ):
        blackjax()
        check_deterministic("HMC", as_model(model))
        for name, value in (("chains", chains), ("doublings", doublings)):
            check_count(name, value)
        check_count("warmup", warmup, least=20)
        check_count("draws", draws, least=PROGRESS_REPORTS)
        prior_std = plain_number(prior_std)
        check_positive("prior_std", prior_std)
        self.start = MeanField(model, partial(Normal, std=std, prior_std=prior_std))
        self.samples = self.diagnostics = None
        self.prior_std = prior_std
        self.chains, self.warmup, self.draws, self.doublings = map(int, (chains, warmup, draws, doublings))

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """Keys that name the samples in turn, once there are any.

        The samples are stored in random order, so that any number of them represents the posterior.
        """
        if self.samples is None:
            return draw_keys(key, draws)
        return keys_in_turn(key, draws, self.samples.bits.shape[0])

    def for_training(self) -> AbstractModel:
        """The mean-field posterior, until there are samples."""
        return self.start.for_training() if self.samples is None else self

    @property
    def learns_after_training(self) -> bool:
        """True: the chains run after training."""
        return True

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The mean-field posterior from which the chains start, and its model."""
        return LayerLine(type(self).__name__, parameter_count(self), inside=(self.start.layer_line(x),))

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the model under the sample that the key names."""
        if self.samples is None:
            return self.start.solve(x, key=key, with_roughness=with_roughness)
        w = self.samples.value[index_of(key, self.samples.bits.shape[0])]
        part = self.start.net(w).solve(x, key=jax.random.fold_in(key, 0), with_roughness=with_roughness)
        return part._replace(kl=jnp.zeros_like(part.kl))

    def after_training(
        self,
        likelihood: AbstractLikelihood,
        data: Data,
        *,
        validation: Data | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "HMC":
        """The same model with samples of its posterior and the diagnostics of the chains."""
        x, y = jnp.asarray(data[0][:], float), data[1]
        start_key, adapt_key, sample_key, order_key = jax.random.split(key, 4)
        starts = jax.vmap(lambda k: self.start.law.sample(key=k))(jax.random.split(start_key, self.chains))
        target = _Target(self.start.net, likelihood, x, y, self.prior_std)
        say(f"HMC: {self.chains} chains of {starts.shape[1]} weights adapt over {self.warmup} draws each.")
        chains = _adapted(target, starts, jax.random.split(adapt_key, self.chains), self.warmup, self.doublings)
        parts, infos = [], []
        sizes = _sizes(self.draws, PROGRESS_REPORTS)
        for i, size in enumerate(sizes):
            keys = jax.random.split(jax.random.fold_in(sample_key, i), (self.chains, max(sizes)))
            # All parts have the length of the longest one, and so share a program; additional draws are dropped.
            chains, w, info = _sampled(target, chains, keys, self.doublings)
            parts.append(w[:, :size])
            infos.append(jax.tree.map(lambda each, size=size: each[:, :size], info))
            say(f"HMC: {sum(sizes[: i + 1])} of {self.draws} draws, {info[2].mean():.0f} leapfrog steps each.")
        w = jnp.concatenate(parts, axis=1)
        diagnostics = self._diagnosed(w, x, infos)
        say(
            f"HMC: R-hat {diagnostics.rhat_outputs:.3f} over outputs ({diagnostics.rhat_weights:.3f} over weights), "
            f"effective sample size {diagnostics.ess_outputs:.0f} ({diagnostics.ess_weights:.0f}) of "
            f"{self.chains * self.draws}, {diagnostics.divergences} divergences."
        )
        # In random order, so that the first few samples represent the posterior.
        shuffled = jax.random.permutation(order_key, w.reshape(-1, w.shape[-1]))
        return eqx.tree_at(
            lambda model: (model.samples, model.diagnostics), self, (Frozen(shuffled), diagnostics),
            is_leaf=lambda node: node is None,
        )  # fmt: skip

    def _diagnosed(self, w: Float[Array, "chain draw weight"], x: Array, infos: list[PyTree]) -> Diagnostics:
        tools = blackjax().diagnostics
        outputs = jax.lax.map(jax.vmap(lambda w: _evaluated(self.start.net, w, x[:COMPARED_EXAMPLES]).ravel()), w)
        divergent, acceptance, leapfrogs = (jnp.concatenate(part, axis=1) for part in zip(*infos, strict=True))
        return Diagnostics(
            rhat_weights=float(jnp.max(tools.rhat(w))),
            rhat_outputs=float(jnp.max(tools.rhat(outputs))),
            ess_weights=float(jnp.min(tools.ess_bulk(w))),
            ess_outputs=float(jnp.min(tools.ess_bulk(outputs))),
            divergences=int(jnp.sum(divergent)),
            acceptance=float(jnp.mean(acceptance)),
            leapfrogs=float(jnp.mean(leapfrogs)),
        )


def _sizes(draws: int, parts: int) -> list[int]:
    """The sizes of parts that differ by at most one."""
    return [draws // parts + (i < draws % parts) for i in range(parts)]


class _Target(eqx.Module):
    """log p(D | w) + log p(w), up to a constant."""

    net: WeightFunction
    likelihood: AbstractLikelihood
    x: Array
    y: Array
    prior_std: float = eqx.field(static=True)

    def __call__(self, w: Weights) -> Float[Array, ""]:
        log_likelihood = jnp.sum(self.likelihood.log_prob(_evaluated(self.net, w, self.x), self.y))
        return log_likelihood - 0.5 * jnp.sum(w**2) / self.prior_std**2


def _evaluated(net: WeightFunction, w: Weights, x: Array) -> Array:
    return net(w)(x, key=jax.random.key(0))[0]


@compiled
def _adapted(
    target: _Target, starts: Float[Array, "chain weight"], keys: Key[Array, " chain"], warmup: int, doublings: int
) -> PyTree:
    """The states of the chains after the warm-up, and the step size and masses of each."""
    library = blackjax()
    adaptation = library.window_adaptation(library.nuts, target, max_num_doublings=doublings)

    def one(start: Weights, key: PRNGKeyArray) -> PyTree:
        (state, parameters), _ = adaptation.run(key, start, warmup)
        return state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    return jax.vmap(one)(starts, keys)


@compiled
def _sampled(target: _Target, chains: PyTree, keys: Key[Array, "chain draw"], doublings: int) -> PyTree:
    """One draw of every chain for each key: the weights, divergence, acceptance rate and number of leapfrog steps."""
    kernel = blackjax().nuts.build_kernel()

    def one(chain: PyTree, keys: Key[Array, " draw"]) -> PyTree:
        state, parameters = chain

        def step(state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
            state, info = kernel(key, state, target, max_num_doublings=doublings, **parameters)
            return state, (state.position, (info.is_divergent, info.acceptance_rate, info.num_integration_steps))

        state, (w, info) = jax.lax.scan(step, state, keys)
        return (state, parameters), w, info

    return jax.vmap(one)(chains, keys)


def blackjax() -> ModuleType:
    """The library blackjax; an error says how to install it."""
    try:
        import blackjax
    except ImportError:
        raise ValueError("HMC needs blackjax: pip install 'sdebnn[baselines]'.") from None
    return blackjax
