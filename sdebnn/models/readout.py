"""A linear read-out that is conditioned on what the noise has done to its features.

    y = offset + unit · scale · (B φ(x) + b),      B, b ~ N(0, I),      log scale ~ N(0, 1)

φ(x) are the outputs of a model, one draw of which is a set of P - 1 features; let Φ also hold a column of ones. Given
this draw, the outputs are linear in the coefficients. So pseudo-observations ỹ of them at M inputs Z, of variances S,
determine their law in closed form, for every output

    Λ = I + Φ(Z)' S⁻¹ Φ(Z),      B, b ~ N(Λ⁻¹ Φ(Z)' S⁻¹ ỹ, Λ⁻¹),      KL = ½ (tr Λ⁻¹ + |mean|² - P + log |Λ|).

If Z are the data and the noise is normal, it is the exact posterior, whatever the features are. The features at Z are
computed along with those of a batch, as its first examples: the read-out sees what the noise has made of them, and
takes it back.

The features themselves, and the scale, have a posterior q beside a prior p. Of J draws of them, a prediction takes one
with chances proportional to

    w_j = N(ỹ; 0, S + scale_j² Φ_j(Z) Φ_j(Z)') p_j / q_j.

With J = 1 this is a draw from q; as J grows, the law of the chosen draw tends to the exact posterior given the
pseudo-observations. Let c_i be the density N(ỹ; ...) of the chosen draw. The KL of its law is at most the mean of
log c_i - log (Σ_j w_j / J), which is charged (proof in docs/mathematics.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from sdebnn.checks import as_inputs, check_count, check_instance, check_key
from sdebnn.contract import AbstractModel, Data, LayerLine, parameter_count
from sdebnn.fields import fixed_logarithms
from sdebnn.host_arrays import filled
from sdebnn.integrate import KLEstimator, Solution
from sdebnn.integrate.factors import gram_factor, solve
from sdebnn.integrate.paths import check_estimator, frozen, start_nats
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models.placing import PseudoData, pseudo_data
from sdebnn.processes import Normal

SPEED = 3.0  # logarithms of variances are stored divided by this, so that training moves them faster
UNIT = 2.0  # the median of an inferred scale, in spreads of the targets: data show a part of what a function may do
START_STD = 0.2  # of log scale, before training; 1 under the prior
WIDER = 2.0  # the law of log scale is so much wider for candidates: training finds one that is too narrow


class ConditionedReadout(AbstractModel):
    """The outputs of a model, its features, followed by a linear layer whose posterior is exact given the features.

    For example, a net of your own with a Bayesian last layer:

        first = Deterministic(eqx.nn.Linear(1, 4, key=key))
        body = SDEBNN((first, bayesianize(field, drift=(8,), key=key)))
        net = ConditionedReadout(body, outputs=1, count=16)
        outputs, kl = net(x, key=key)

    ``body`` is any model whose outputs are vectors, and ``outputs`` the number of outputs. ``fit`` chooses at most
    ``count`` inputs from the data, at which the layer is conditioned on pseudo-observations, and trains these.
    ``scale`` is the size of the outputs under the prior, one number or one for each; without it, the scale is inferred,
    around twice the spread of the targets.

    A prediction chooses each of its draws among ``candidates`` draws of the features, by how well each explains the
    pseudo-observations: more of them are nearer to the exact posterior, and take longer. Training draws one. So does a
    prediction if not all that is random in the body are blocks on a ``FixedGrid``, whose draws have known densities.
    ``kl`` is the estimator of the KL of what is linear, as in ``bayesianize``.
    """

    body: AbstractModel
    points: Num[Array, "point *input"]
    targets: Float[Array, "point output"]  # where the pseudo-observations start
    shift: Float[Array, "point output"]  # how far they have moved, in units of their noise
    log_noise: Float[Array, "point output"]
    offset: Float[Array, " output"]
    unit: Float[Array, " output"]
    amplitude: Normal | None  # the law of log scale; None if the scale is given
    log_scale: tuple[float, ...] | None
    candidates: int
    count: int = eqx.field(static=True)
    kl: KLEstimator = eqx.field(static=True)

    def __init__(
        self,
        body: AbstractModel,
        outputs: int,
        *,
        count: int = 128,
        scale: float | Sequence[float] | None = None,
        candidates: int = 1,
        kl: KLEstimator = "analytic",
    ):
        check_instance("body", body, AbstractModel, "a model", "Deterministic(module)")
        check_count("outputs", outputs)
        check_count("count", count)
        check_count("candidates", candidates)
        check_estimator(kl)
        self.body, self.count, self.candidates, self.kl = body, count, candidates, kl
        self.points = filled((0, 0))
        self.targets, self.shift, self.log_noise = (filled((0, outputs)) for _ in range(3))
        self.offset, self.unit = filled(outputs), filled(outputs, 1.0)
        self.log_scale = None if scale is None else fixed_logarithms("scale", scale, outputs)
        self.amplitude = Normal(filled(outputs), START_STD) if scale is None else None

    @property
    def is_new(self) -> bool:
        """Whether it has no pseudo-observations yet, so that the coefficients follow their prior."""
        return self.points.shape[0] == 0

    @property
    def starts_near_posterior(self) -> bool:
        """True: what is linear is conditioned on the data before the first step."""
        return True

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The outputs for one draw of the features, of the scale and of the coefficients."""
        check_key(key)
        batch, count = as_inputs("x", x), self.points.shape[0]
        choice = self._choice(key) if self._chooses else None
        model, key = (self, key) if choice is None else (self._proposal(), choice.key)
        if count:
            batch = jnp.concatenate([lax.stop_gradient(self.points).astype(batch.dtype), batch])
        inner = self.body.solve(batch, key=body_key(key), with_roughness=with_roughness)
        layer = model.draw(inner.outputs[:count], key=key)
        outputs = layer(inner.outputs[count:])
        if choice is None:
            return inner._replace(outputs=outputs, kl=inner.kl + layer.scale_kl + layer.kl)
        evaluations = inner.evaluations + choice.evaluations
        return inner._replace(outputs=outputs, kl=choice.kl + layer.kl, evaluations=evaluations)

    def draw(self, features: Float[Array, "point feature"], *, key: PRNGKeyArray) -> "LinearLayer":
        """The linear layer that the key names, if these are the features at the points."""
        scale_key, coefficient_key = jax.random.split(jax.random.fold_in(key, 1))
        scale, scale_kl = self._scale(scale_key, self.kl)
        law = self._law(features, scale)
        noise = jax.random.normal(coefficient_key, law.mean.shape, law.mean.dtype)
        coefficients = law.sample(noise)
        if self.kl == "analytic":
            own = law.kl()
        else:
            still: ConditionedReadout = frozen(self) if self.kl == "stl" else self
            own = still._law(features, scale).log_ratio(coefficients)
        offset, unit = lax.stop_gradient((self.offset, self.unit))
        return LinearLayer(offset, (unit * scale)[:, None] * coefficients, own, scale_kl)

    @property
    def _chooses(self) -> bool:
        """Whether a draw is one of several candidates: whether there is something to choose by, and the body allows."""
        return self.candidates > 1 and not self.is_new and self.body.as_candidate() is not None

    def _choice(self, key: PRNGKeyArray) -> "Choice":
        """One of the candidates, evaluated at the points, on the grid of training whatever the solver is now."""
        model, body = self._proposal(), self.body.as_candidate()
        assert body is not None

        def candidate(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
            inner = body.solve(lax.stop_gradient(self.points), key=body_key(key))
            scale, nats = model._scale(jax.random.split(jax.random.fold_in(key, 1))[0], "full")
            log_density = model._law(inner.outputs, scale).log_density
            return log_density, log_density - inner.kl - nats, jnp.asarray(inner.evaluations)

        keys = jax.random.split(jax.random.fold_in(key, 2), self.candidates)
        log_density, log_weight, evaluations = lax.map(candidate, keys)
        log_weight = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight)  # a draw that is not finite is not taken
        taken = jax.random.categorical(jax.random.fold_in(key, 3), log_weight)
        mean = jax.nn.logsumexp(log_weight) - jnp.log(self.candidates)
        return Choice(keys[taken], log_density[taken] - mean, jnp.sum(evaluations))

    def _proposal(self) -> "ConditionedReadout":
        """The same read-out with a wider law of the scale, of which candidates are drawn."""
        if self.amplitude is None:
            return self
        wider = self.amplitude.log_std + jnp.log(WIDER)
        return eqx.tree_at(lambda model: model.amplitude, self, eqx.tree_at(lambda a: a.log_std, self.amplitude, wider))

    def _scale(self, key: PRNGKeyArray, kl: KLEstimator) -> tuple[Float[Array, " output"], Float[Array, ""]]:
        """One draw of the outputs' size, in units of ``unit``, and its KL."""
        if self.amplitude is None:
            given = jnp.exp(jnp.asarray(self.log_scale, self.unit.dtype))
            return given / lax.stop_gradient(self.unit), jnp.zeros((), self.unit.dtype)
        log_scale = self.amplitude.sample(key=key)
        return jnp.exp(log_scale), start_nats(self.amplitude, log_scale, kl)

    def _law(self, features: Float[Array, "point feature"], scale: Float[Array, " output"]) -> "CoefficientLaw":
        """The law of the coefficients of every output, given the features at the points."""
        std = jnp.exp(0.5 * SPEED * self.log_noise)
        scaled = (scale / std).T[..., None] * _with_ones(features)
        return CoefficientLaw.of(scaled, (lax.stop_gradient(self.targets) / std + self.shift).T)

    def for_training(self) -> "ConditionedReadout":
        """The same read-out, with its body as it is trained and without a choice among candidates."""
        return eqx.tree_at(lambda model: model.candidates, self.with_body(self.body.for_training()), 1)

    def with_body(self, body: AbstractModel) -> "ConditionedReadout":
        """The same read-out of another model's outputs."""
        return eqx.tree_at(lambda model: model.body, self, body)

    def prior(self) -> "ConditionedReadout":
        """The same read-out without pseudo-observations. Its body stays as it is."""
        new = ConditionedReadout(
            self.body, self.offset.size, count=self.count, candidates=self.candidates, kl=self.kl
        )  # fmt: skip
        kept = (self.offset, self.unit, self.amplitude and self.amplitude.prior(), self.log_scale)
        return eqx.tree_at(
            lambda model: (model.offset, model.unit, model.amplitude, model.log_scale), new, kept,
            is_leaf=lambda leaf: leaf is None,
        )  # fmt: skip

    def before_training(self, likelihood: AbstractLikelihood, data: Data) -> "ConditionedReadout":
        """The same read-out, conditioned on pseudo-observations that say about the same as the data, if it is new."""
        if not self.is_new:
            return self
        found = pseudo_data(likelihood, data, self.offset.size, self.count)
        offset, std = np.average(found.targets, axis=0, weights=1 / found.variances.mean(1)), found.targets.std(0)
        unit = UNIT * np.where(std > 0, std, 1.0)
        scaled = PseudoData(found.points, (found.targets - offset) / unit, found.variances / unit**2)
        body = self.body.before_training(likelihood, data)
        body = body.suited_to(as_inputs("x", scaled.points), scaled.targets, scaled.variances)
        targets = scaled.targets
        arrays = (targets, np.zeros_like(targets), np.log(scaled.variances) / SPEED, offset, unit)
        return eqx.tree_at(
            lambda m: (m.body, m.points, m.targets, m.shift, m.log_noise, m.offset, m.unit),
            self, (body, jnp.asarray(found.points), *(jnp.asarray(each, self.unit.dtype) for each in arrays)),
        )  # fmt: skip

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The number of pseudo-observations, and the line of the body."""
        inside = self.body.layer_line(x)
        features = jax.eval_shape(lambda x: self.body.solve(x, key=jax.random.key(0)).outputs, x)
        weights = self.offset.size * (features.shape[1] + 1) + (self.offset.size if self.log_scale is None else 0)
        like = jax.ShapeDtypeStruct((x.shape[0], self.offset.size), features.dtype)
        facts = (f"conditioned on {self.points.shape[0]} pseudo-observations of each output",)
        if self._chooses:
            facts += (f"each draw is one of {self.candidates} candidates",)
        return LayerLine(type(self).__name__, parameter_count(self), weights, facts, inside=(inside,), outputs=like)


class Choice(NamedTuple):
    """The key of one candidate, the KL of what is drawn before the coefficients, and the evaluations that it took."""

    key: PRNGKeyArray
    kl: Float[Array, ""]
    evaluations: Int[Array, ""]


class LinearLayer(NamedTuple):
    """One draw of a read-out: offset + coefficients · (features, 1), its KL, and that of the scale."""

    offset: Float[Array, " output"]
    coefficients: Float[Array, "output feature_and_one"]
    kl: Float[Array, ""]
    scale_kl: Float[Array, ""]

    def __call__(self, features: Float[Array, "*lead feature"]) -> Float[Array, "*lead output"]:
        return self.offset + _with_ones(features) @ self.coefficients.T


def body_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key with which a read-out draws its body."""
    return jax.random.fold_in(key, 0)


def _with_ones(features: Float[Array, "*lead feature"]) -> Float[Array, "*lead feature_and_one"]:
    return jnp.concatenate([features, jnp.ones_like(features[..., :1])], axis=-1)


class CoefficientLaw(NamedTuple):
    """The law N(mean, Λ⁻¹) of the coefficients of every output, with Λ = L L', beside the prior N(0, I).

    ``misfit`` is |targets - features · mean|² + |mean|².
    """

    mean: Float[Array, "output feature"]
    factor: Float[Array, "output feature feature"]  # L
    misfit: Float[Array, " output"]

    @staticmethod
    def of(features: Float[Array, "output point feature"], targets: Float[Array, "output point"]) -> "CoefficientLaw":
        """The posterior of targets = features · coefficients + standard normal noise."""

        def one(a: Float[Array, "point feature"], r: Float[Array, " point"]) -> tuple[Array, Array, Array]:
            factor = gram_factor(a)

            def by_normal_equations(b: Float[Array, " feature"]) -> Float[Array, " feature"]:
                return solve(factor, solve(factor, b), True)

            mean = by_normal_equations(a.T @ r)
            # One step of iterative refinement: in single precision, the normal equations alone are too coarse.
            mean = mean + by_normal_equations(a.T @ (r - a @ mean) - mean)
            return mean, factor, jnp.sum((r - a @ mean) ** 2) + jnp.sum(mean**2)

        return CoefficientLaw(*jax.vmap(one)(features, targets))

    def sample(self, noise: Float[Array, "output feature"]) -> Float[Array, "output feature"]:
        """mean + L'⁻¹ noise."""
        return self.mean + jax.vmap(lambda factor, n: solve(factor, n, True))(self.factor, noise)

    @property
    def log_density(self) -> Float[Array, ""]:
        """That of the targets with the coefficients integrated out, up to a constant."""
        return -0.5 * jnp.sum(self.misfit) - self._half_log_determinant()

    def kl(self) -> Float[Array, ""]:
        """KL(N(mean, Λ⁻¹) ‖ N(0, I))."""
        eye = jnp.eye(self.mean.shape[1], dtype=self.mean.dtype)
        variances = jnp.sum(jax.vmap(lambda factor: solve(factor, eye))(self.factor) ** 2)
        return 0.5 * (variances + jnp.sum(self.mean**2) - self.mean.size) + self._half_log_determinant()

    def log_ratio(self, coefficients: Float[Array, "output feature"]) -> Float[Array, ""]:
        """log N(coefficients; mean, Λ⁻¹) - log N(coefficients; 0, I)."""
        off = jax.vmap(lambda factor, b: factor.T @ b)(self.factor, coefficients - self.mean)
        return 0.5 * (jnp.sum(coefficients**2) - jnp.sum(off**2)) + self._half_log_determinant()

    def _half_log_determinant(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=1, axis2=2)))
