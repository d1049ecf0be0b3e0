"""Hamiltonian Monte Carlo over the weights of any model, on all data at once; the sampler is BlackJAX's NUTS.

    p(w | D) ∝ p(D | w) N(w; 0, prior_std²),   w standardised by its fan-in

Gradient steps first fit a mean-field posterior; the chains start from draws of it, adapt their step and masses, and
sample. What they found is told, never presumed: R-hat, effective sample size, divergences.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn.baselines.ensemble import keys_in_turn, number_of
from sdebnn.baselines.meanfield import MeanField
from sdebnn.baselines.weights import Held, check_deterministic
from sdebnn.checks import check_count, check_positive, plain_number
from sdebnn.contract import draw_keys, solve
from sdebnn.integrate import Solution
from sdebnn.likelihoods import Likelihood
from sdebnn.processes import Normal, Weights
from sdebnn.programs import compiled

PARTS = 10  # of the sampling, after each of which something is said
ROWS = 100  # of the data, at whose outputs the chains are compared


class Diagnostics(NamedTuple):
    """Whether the chains can be believed: over all weights, and over the outputs at some of the data, the worst.

    Weights of a net may be permuted without changing it, so that chains which agree on the outputs need not on them.
    R-hat is rank-normalised and split (1 at best), the effective sample size that of the bulk.
    """

    rhat_weights: float
    rhat_outputs: float
    ess_weights: float
    ess_outputs: float
    divergences: int
    acceptance: float
    leapfrogs: float  # of a draw, on average


class HMC(eqx.Module):
    """Any model, or module of one example, whose weights are sampled: ``fit`` runs the chains after its gradient steps.

    Until then it is ``start``, a mean-field posterior. The KL of samples is not known, and given as 0.
    ``doublings`` bounds a trajectory: at most 2^doublings leapfrog steps.
    """

    start: MeanField
    samples: Held | None
    diagnostics: Diagnostics | None
    prior_std: float = eqx.field(static=True)
    chains: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    doublings: int = eqx.field(static=True)

    def __init__(
        self,
        model: Any,
        *,
        prior_std: float = 1.0,
        std: float = 0.05,
        chains: int = 4,
        warmup: int = 500,
        draws: int = 500,
        doublings: int = 8,
    ):
        blackjax()
        check_deterministic("HMC", model)
        for name, value in (("chains", chains), ("doublings", doublings)):
            check_count(name, value)
        check_count("warmup", warmup, least=20)
        check_count("draws", draws, least=PARTS)
        prior_std = plain_number(prior_std)
        check_positive("prior_std", prior_std)
        self.start = MeanField(model, partial(Normal, std=std, prior_std=prior_std))
        self.samples = self.diagnostics = None
        self.prior_std = prior_std
        self.chains, self.warmup, self.draws, self.doublings = map(int, (chains, warmup, draws, doublings))

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """Keys that name each sample in turn, once there are any.

        Samples are kept in random order, so that any number of them is a fair choice: none need be drawn as often as
        the others.
        """
        if self.samples is None:
            return draw_keys(key, draws)
        return keys_in_turn(key, draws, self.samples.bits.shape[0])

    def training(self) -> Any:
        """The mean-field start."""
        return self.start.training() if self.samples is None else self

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The solution of the model under the sample that the key names."""
        if self.samples is None:
            return self.start.solve(x, key=key, rough=rough)
        w = self.samples.value[number_of(key, self.samples.bits.shape[0])]
        part = solve(self.start.net(w), x, key=jax.random.fold_in(key, 0), rough=rough)
        return part._replace(kl=jnp.zeros_like(part.kl))

    def conditioned(
        self,
        likelihood: Likelihood,
        x: Any,
        y: Array,
        *,
        validation: tuple[Any, Array] | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "HMC":
        """The same model with samples of its posterior, and what the chains say of themselves."""
        x = jnp.asarray(x[:], float)
        start_key, adapt_key, sample_key, order_key = jax.random.split(key, 4)
        starts = jax.vmap(lambda k: self.start.law.sample(key=k))(jax.random.split(start_key, self.chains))
        target = _Target(self.start.net, likelihood, x, y, self.prior_std)
        say(f"HMC: {self.chains} chains of {starts.shape[1]} weights adapt over {self.warmup} draws each.")
        chains = _adapted(target, starts, jax.random.split(adapt_key, self.chains), self.warmup, self.doublings)
        parts, infos = [], []
        sizes = [self.draws // PARTS + (i < self.draws % PARTS) for i in range(PARTS)]
        for i, size in enumerate(sizes):
            keys = jax.random.split(jax.random.fold_in(sample_key, i), (self.chains, max(sizes)))
            # One program for all parts: the longest; of the shorter ones the last draw is made, and forgotten.
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
        # In no order, so that the first few are as good as any few.
        shuffled = jax.random.permutation(order_key, w.reshape(-1, w.shape[-1]))
        return eqx.tree_at(
            lambda model: (model.samples, model.diagnostics), self, (Held(shuffled), diagnostics),
            is_leaf=lambda node: node is None,
        )  # fmt: skip

    def _diagnosed(self, w: Float[Array, "chain draw weight"], x: Array, infos: list[Any]) -> Diagnostics:
        tools = blackjax().diagnostics
        outputs = jax.lax.map(jax.vmap(lambda w: _evaluated(self.start.net, w, x[:ROWS]).ravel()), w)
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


class _Target(eqx.Module):
    """log p(D | w) + log p(w), up to a constant."""

    net: Any
    likelihood: Any
    x: Array
    y: Array
    prior_std: float = eqx.field(static=True)

    def __call__(self, w: Weights) -> Float[Array, ""]:
        fits = jnp.sum(self.likelihood.log_prob(_evaluated(self.net, w, self.x), self.y))
        return fits - 0.5 * jnp.sum(w**2) / self.prior_std**2


def _evaluated(net: Any, w: Weights, x: Array) -> Array:
    return net(w)(x, key=jax.random.key(0))[0]


@compiled
def _adapted(target: _Target, starts: Any, keys: Any, warmup: int, doublings: int) -> Any:
    """The chains after their warm-up: where they are, and the step and masses of each."""
    library = blackjax()
    adaptation = library.window_adaptation(library.nuts, target, max_num_doublings=doublings)

    def one(start: Weights, key: PRNGKeyArray) -> Any:
        (state, parameters), _ = adaptation.run(key, start, warmup)
        return state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    return jax.vmap(one)(starts, keys)


@compiled
def _sampled(target: _Target, chains: Any, keys: Key[Array, "chain draw"], doublings: int) -> Any:
    """So many draws of every chain; whether each diverged, its acceptance and its leapfrog steps."""
    kernel = blackjax().nuts.build_kernel()

    def one(chain: Any, keys: Key[Array, " draw"]) -> Any:
        state, parameters = chain

        def step(state: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
            state, info = kernel(key, state, target, max_num_doublings=doublings, **parameters)
            return state, (state.position, (info.is_divergent, info.acceptance_rate, info.num_integration_steps))

        state, (w, info) = jax.lax.scan(step, state, keys)
        return (state, parameters), w, info

    return jax.vmap(one)(chains, keys)


def blackjax() -> Any:
    """The library, or how to get it."""
    try:
        import blackjax
    except ImportError:
        raise ValueError("HMC needs blackjax: pip install 'sdebnn[baselines]'.") from None
    return blackjax
