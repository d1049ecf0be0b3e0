"""Exact Gaussian-process regression; kernels and linear algebra by tinygp.

    A = K + noise² I,   f(x) | y  ~  N( k(x, X) A⁻¹ y,  k(x, x) - k(x, X) A⁻¹ k(X, x) )

A draw is a function of the prior, corrected at the data (Matheron's rule):

    f(x) = g(x) + k(x, X) A⁻¹ (y - g(X) - ε),   g(x) = Σ random Fourier features,   ε ~ N(0, noise²)

Each draw has its own frequencies, so that the mean and the covariance over draws are exactly those above. The KL from
the prior is in closed form. If the likelihood has the same noise, the ELBO is the evidence, which ``fit`` maximises.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.checks import check_array, check_choice, check_count, check_data, check_positive, plain_number
from sdebnn.contract import AbstractModel
from sdebnn.integrate import Solution
from sdebnn.models import Frozen

KernelName = Literal["rbf", "matern32", "matern52"]
JITTER = 1e-6  # share of the prior's variance that is added to the diagonal, to factorise K in float32


class GP(AbstractModel):
    """A Gaussian process of zero mean, conditioned on the data it is made with. All targets have the same law.

        process = baselines.GP(x, y, kernel="matern52", noise=0.1)
        fitted = fit(process, Gaussian(0.1, learn=True), x, y, key=key, epochs=20)
        mean, covariance = fitted.model.posterior(x)

    ``length`` (one for each feature), ``amplitude`` and ``noise`` are initial values. Train them by ``fit`` on the same
    data with ``Gaussian(noise, learn=True)``. A draw of the prior is a sum of ``features`` pairs of waves.
    """

    x: Frozen
    y: Frozen
    log_length: Float[Array, " feature"]
    log_amplitude: Float[Array, ""]
    log_noise: Float[Array, ""]
    kernel: KernelName = eqx.field(static=True)
    features: int = eqx.field(static=True)

    def __init__(
        self,
        x: Float[Array, "example feature"],
        y: Float[Array, "example target"],
        *,
        kernel: KernelName = "rbf",
        length: float = 1.0,
        amplitude: float = 1.0,
        noise: float = 0.1,
        features: int = 512,
    ):
        tinygp()
        check_data(x, y)
        x, y = jnp.asarray(x, float), jnp.asarray(y, float)
        if x.ndim != 2 or y.ndim != 2:
            raise ValueError(
                f"x has shape {x.shape} and y has shape {y.shape}: pass (examples, features) and (examples, targets)."
            )
        check_choice("kernel", kernel, get_args(KernelName))
        length, amplitude, noise = map(plain_number, (length, amplitude, noise))
        for name, value in (("length", length), ("amplitude", amplitude), ("noise", noise)):
            check_positive(name, value)
        check_count("features", features)
        self.x, self.y = Frozen(x), Frozen(y)
        self.log_length = jnp.full(x.shape[1], math.log(length), x.dtype)
        self.log_amplitude, self.log_noise = (jnp.asarray(math.log(v), x.dtype) for v in (amplitude, noise))
        self.kernel, self.features = kernel, int(features)

    def log_evidence(self) -> Float[Array, ""]:
        """log p(y) of the data."""
        return jax.vmap(self._gp().log_probability, in_axes=1)(self.y.value).sum()

    def posterior(
        self, x: Float[Array, "point feature"]
    ) -> tuple[Float[Array, "point target"], Float[Array, "point point"]]:
        """The mean of each target at some points, and the covariance between the points."""
        check_array("x", x, least_ndim=2)
        gp, at = self._gp(), jnp.asarray(x, float) / self._length
        # No jitter on the diagonal: this covariance is not factorised.
        after = [gp.condition(y, at, diag=jnp.zeros((), at.dtype)).gp for y in self.y.value.T]
        return jnp.stack([law.loc for law in after], axis=-1), after[0].covariance

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """One function of the posterior at x, and the KL."""
        gp, known, y = self._gp(), self.x.value / self._length, self.y.value
        prior_key, noise_key = jax.random.split(key)
        g = self._prior_draw(prior_key)
        error = jnp.sqrt(self._variance) * jax.random.normal(noise_key, y.shape, y.dtype)
        lack = _solve(gp, y - g(known) - error)
        at = x / self._length
        outputs = g(at) + self._kernel()(at, known) @ lack
        return Solution(outputs, self._kl(gp, known, y))

    def _kl(self, gp: PyTree, known: Array, y: Array) -> Float[Array, ""]:
        """KL(p(f | y) || p(f)) at the data: ½ ( noise² tr A⁻¹ - N + αᵀKα + log|A| - N log noise² ),  α = A⁻¹ y."""
        examples, targets = y.shape
        alpha = _solve(gp, y)
        inverse = _solve(gp, jnp.eye(examples, dtype=y.dtype))
        # 2 normalization() = log|A| + N log 2π
        log_det = 2 * gp.solver.normalization() - examples * jnp.log(2 * jnp.pi)
        each = self._variance * jnp.trace(inverse) - examples + log_det - examples * jnp.log(self._variance)
        return 0.5 * (targets * each + jnp.sum(alpha * (self._kernel()(known, known) @ alpha)))

    def _prior_draw(self, key: PRNGKeyArray) -> Callable[[Array], Array]:
        """A function with the covariance of the prior: waves whose frequencies follow the kernel's spectral density."""
        wave_key, tail_key, weight_key = jax.random.split(key, 3)
        waves = jax.random.normal(wave_key, (self.log_length.size, self.features))
        if self.kernel != "rbf":  # the spectral density of a Matérn kernel is Student's t
            df = {"matern32": 3.0, "matern52": 5.0}[self.kernel]
            waves = waves * jnp.sqrt(df / (2 * jax.random.gamma(tail_key, df / 2, (self.features,))))
        weights = jax.random.normal(weight_key, (2, self.features, self.y.value.shape[1]))
        height = jnp.exp(self.log_amplitude) / jnp.sqrt(self.features)
        return lambda x: height * (jnp.cos(x @ waves) @ weights[0] + jnp.sin(x @ waves) @ weights[1])

    @property
    def _length(self) -> Float[Array, " feature"]:
        return jnp.exp(self.log_length)

    @property
    def _variance(self) -> Float[Array, ""]:
        return jnp.exp(2 * self.log_noise) + JITTER * jnp.exp(2 * self.log_amplitude)

    def _kernel(self) -> PyTree:
        kernels = tinygp().kernels
        shape = {
            "rbf": lambda: kernels.ExpSquared(),
            "matern32": lambda: kernels.Matern32(distance=kernels.distance.L2Distance()),
            "matern52": lambda: kernels.Matern52(distance=kernels.distance.L2Distance()),
        }[self.kernel]()
        return jnp.exp(2 * self.log_amplitude) * shape

    def _gp(self) -> PyTree:
        known = self.x.value / self._length
        return tinygp().GaussianProcess(self._kernel(), known, diag=jnp.full(known.shape[0], self._variance))


def _solve(gp: PyTree, right: Float[Array, "example column"]) -> Float[Array, "example column"]:
    """A⁻¹ times a matrix."""
    return gp.solver.solve_triangular(gp.solver.solve_triangular(right), transpose=True)


def tinygp() -> ModuleType:
    """The library tinygp; an error says how to install it."""
    try:
        import tinygp
    except ImportError:
        raise ValueError("GP needs tinygp: pip install 'sdebnn[baselines]'.") from None
    return tinygp
