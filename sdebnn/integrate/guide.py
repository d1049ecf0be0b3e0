"""The guide: a drift that sees what the noise has done to the hidden units, and steers them to pseudo-observations.

Under the prior, (w, h(Z)) is a Markov process, where h(Z) are the hidden states of some inputs Z. Conditioned on
observations y of h_1(Z), its drift is f_p + σ² ∇_w log φ(t, w, h(Z)), with φ the density of y given the present state
(Doob's transform). The guide replaces φ by the Gaussian that follows from linearising the rest of the depth in w:

    ŷ = the outputs that h(Z) reaches at depth 1 if no more noise comes,      J = ∂ŷ / ∂w
    φ ≈ N(y; ŷ, S + V(t) J J'),      V(t) = the variance that the noise still to come gives a weight on average
    NN_φ = σ² J' (S + V(t) J J')⁻¹ (y - ŷ)

The pseudo-observations y and their variances S are trained. A normal law of w_0 is conditioned in the same way, with
the look-ahead linearised at its mean.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from sdebnn.checks import check_array, check_count
from sdebnn.host_arrays import filled
from sdebnn.integrate.factors import cholesky, solve
from sdebnn.processes import AbstractInitialLaw, AbstractPrior, Depth, Weights
from sdebnn.processes.drift import between_knots

KNOTS = 6  # over depth, between which variances are interpolated
LOOK_STEPS = 2  # steps of the look-ahead, from the present depth to depth 1
LARGEST_SHIFT = 50.0  # bound on |u|: the drift of a poor linearisation is not followed without limit
SPEED = 3.0  # logarithms of variances are stored divided by this, so that training moves them faster
UNKNOWN = 20.0  # log variance of a pseudo-observation that says nothing
ROUNDING = 1e-6  # added to the diagonal of the covariance, relative to its mean

Points = Float[Array, "point *state"]


@runtime_checkable
class Moving(Protocol):
    """What the guide needs to know of a block."""

    @property
    def prior(self) -> AbstractPrior: ...

    @property
    def initial(self) -> AbstractInitialLaw: ...

    def unravel(self, w: Float[Array, "*step weight"]) -> PyTree[Array]: ...

    def f_h(
        self, t: Depth, h: Float[Array, "example *state"], arrays: PyTree[Array]
    ) -> Float[Array, "example *state"]: ...


class Guide(eqx.Module):
    """Steers the outputs of a block at some inputs to trained pseudo-observations.

        guide = Guide(jnp.zeros((8, 4)))
        block = bayesianize(field, drift=NoDrift(), guide=guide, key=key)
        last = Deterministic(Readout(4, 1, key=key))
        net = SDEBNN((Deterministic(Augment(1, 3)), block, last))

    ``points`` are these inputs, as states at depth 0, "point state"; they are not trained. ``outputs`` is the number of
    outputs, which are the last entries of the state at depth 1 (default: all of it). ``targets`` are the
    pseudo-observations, in units that do not change in training.

    A new guide knows nothing, and the posterior is the prior. ``fit`` places its points among the inputs, and begins
    with pseudo-observations that follow from the targets there.
    """

    points: Points
    unit: Float[Array, " output"]
    targets: Float[Array, "point output"]
    log_noise: Float[Array, "knot point output"]
    log_future: Float[Array, " knot"]

    def __init__(self, points: Points, outputs: int | None = None):
        check_array("points", points)
        if points.ndim != 2:
            raise ValueError(f"points has shape {points.shape}: pass one state, a vector, for each point.")
        outputs = points.shape[-1] if outputs is None else outputs
        check_count("outputs", outputs)
        if outputs > points.shape[-1]:
            raise ValueError(f"outputs={outputs} are more than the {points.shape[-1]} entries of a state: pass fewer.")
        self.points = jnp.asarray(points)
        self.unit = filled(outputs, 1.0, self.points.dtype)
        self.targets = filled((len(points), outputs), dtype=self.points.dtype)
        self.log_noise = filled((KNOTS, len(points), outputs), UNKNOWN / SPEED, self.points.dtype)
        self.log_future = filled(KNOTS, dtype=self.points.dtype)

    @property
    def is_new(self) -> bool:
        """Whether no pseudo-observation says anything yet."""
        return bool(np.all(np.asarray(self.log_noise) == np.asarray(UNKNOWN / SPEED, self.log_noise.dtype)))

    def placed(
        self,
        points: Float[np.ndarray, "given *state"],
        targets: Float[np.ndarray, "given output"] | None = None,
        variances: Float[np.ndarray, "given output"] | None = None,
    ) -> "Guide":
        """A guide at these points, with pseudo-observations of these variances if they are given.

        If there are fewer points than the guide has, the others repeat them and know nothing.
        """
        given, dtype = len(points), self.points.dtype
        new = Guide(jnp.asarray(np.resize(points, self.points.shape), dtype), self.targets.shape[1])
        if targets is None or variances is None:
            return new
        unit = targets.std(0)
        unit, values = np.where(unit > 0, unit, 1.0), np.zeros(self.targets.shape)
        log_noise = np.full(self.log_noise.shape, np.log(variances).max() + UNKNOWN)
        values[:given], log_noise[:, :given] = targets / unit, np.log(variances)
        found = tuple(jnp.asarray(each, dtype) for each in (unit, values, log_noise / SPEED))
        return eqx.tree_at(lambda g: (g.unit, g.targets, g.log_noise), new, found)

    def start(self) -> Points:
        """The hidden states of the points at depth 0."""
        return lax.stop_gradient(self.points)

    def drift(self, process: Moving, t: Depth, w: Weights, seen: Points) -> Weights:
        """NN_φ(t, w, h(Z))."""
        sigma, t = process.prior.sigma, jnp.asarray(t, w.dtype)
        outputs, jacobian = self._look_ahead(process, t, w, seen)
        covariance = self._covariance(t, self._future(t, sigma) * jacobian @ jacobian.T)
        factor = cholesky(covariance)
        missing = self._missing(outputs)
        u = sigma * jacobian.T @ solve(factor, solve(factor, missing), True)
        return sigma * u / jnp.sqrt(1 + jnp.sum(u**2) / LARGEST_SHIFT**2)

    def start_law(self, process: Moving) -> "StartLaw | None":
        """The law of w_0, linearised at its mean; None if w_0 is not normal."""
        moments, prior = process.initial.moments(), process.initial.prior().moments()
        if moments is None or prior is None:
            return None
        mean, std = moments
        zero, sigma = jnp.zeros((), mean.dtype), process.prior.sigma
        outputs, jacobian = self._look_ahead(process, zero, mean, self.start())
        a = jacobian * std
        kernel = a @ a.T
        noise = self._covariance(zero, self._future(zero, sigma) * kernel)
        return StartLaw(a, cholesky(noise), cholesky(noise + kernel), self._missing(outputs), mean, std, *prior)

    def _missing(self, outputs: Float[Array, "point output"]) -> Float[Array, " pseudo"]:
        return (lax.stop_gradient(self.unit) * self.targets - outputs).ravel()

    def _look_ahead(
        self, process: Moving, t: Float[Array, ""], w: Weights, seen: Points
    ) -> tuple[Float[Array, "point output"], Float[Array, "pseudo weight"]]:
        """The outputs at depth 1 if no more noise came, and their Jacobian."""
        dt, count, prior = (1 - t) / LOOK_STEPS, self.targets.shape[1], process.prior

        def one(h: Float[Array, " state"], w: Weights) -> Float[Array, " output"]:
            for i in range(LOOK_STEPS):
                middle = w + 0.5 * dt * prior.drift(t + i * dt, w)
                h = h + dt * process.f_h(t + (i + 0.5) * dt, h[None], process.unravel(middle))[0]
                w = w + dt * prior.drift(t + (i + 0.5) * dt, middle)
            return h[-count:]

        def with_rows(h: Float[Array, " state"]) -> tuple[Array, Array]:
            outputs, pull = jax.vjp(lambda w: one(h, w), w)
            return outputs, jax.vmap(lambda each: pull(each)[0])(jnp.eye(count, dtype=w.dtype))

        outputs, rows = jax.vmap(with_rows)(seen)
        return outputs, rows.reshape(-1, w.shape[0])

    def _future(self, t: Float[Array, ""], sigma: float) -> Float[Array, ""]:
        """V(t). A disturbance at depth s counts in proportion to 1 - s, whose square has the mean (1 - t)² / 3."""
        return sigma**2 * (1 - t) / 3 * jnp.exp(SPEED * between_knots(self.log_future, t))

    def _covariance(self, t: Float[Array, ""], kernel: Float[Array, "pseudo pseudo"]) -> Float[Array, "pseudo pseudo"]:
        noise = jnp.exp(SPEED * between_knots(self.log_noise, t)).ravel()
        return kernel + jnp.diag(noise + ROUNDING * jnp.trace(kernel) / noise.size)


class StartLaw(NamedTuple):
    """The law of w_0 = mean + std · n, where n is standard normal given b = A n + noise.

    With R R' the covariance of the noise and T = R R' + A A' = L L', n has the mean A' T⁻¹ b and the covariance
    I - A' T⁻¹ A, of which I - A' L'⁻¹ (L + R)⁻¹ A is a square root (Andrews 1968).
    """

    a: Float[Array, "pseudo weight"]
    noise: Float[Array, "pseudo pseudo"]  # R
    total: Float[Array, "pseudo pseudo"]  # L
    b: Float[Array, " pseudo"]
    mean: Weights
    std: Weights
    prior_mean: Weights
    prior_std: Weights

    def moved(self, w0: Weights) -> Weights:
        """w_0 of the independent law, moved to where it is likely."""
        n = self._standard(w0)
        shrunk = n - self.a.T @ solve(self.total, solve(self.total + self.noise, self.a @ n), True)
        return self.mean + self.std * (self._shift() + shrunk)

    def more_kl(self) -> Float[Array, ""]:
        """What the KL of this law from the prior has more than that of the independent law."""
        variances = jnp.sum(solve(self.total, self.a) ** 2, axis=0)  # subtracted from 1
        shift = self.std * self._shift()
        squares = shift * (2 * (self.mean - self.prior_mean) + shift) - self.std**2 * variances
        return 0.5 * (jnp.sum(squares / self.prior_std**2) - self._log_determinant())

    def more_log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """What the log density of w_0 under this law has more than under the independent law."""
        n = self._standard(w0)
        off = n - self._shift()
        squares = jnp.sum(off**2) + jnp.sum(solve(self.noise, self.a @ off) ** 2)
        return 0.5 * (jnp.sum(n**2) - squares - self._log_determinant())

    def _standard(self, w0: Weights) -> Weights:
        return (w0 - self.mean) / self.std

    def _shift(self) -> Weights:
        return self.a.T @ solve(self.total, solve(self.total, self.b), True)

    def _log_determinant(self) -> Float[Array, ""]:
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.noise)) - jnp.log(jnp.diagonal(self.total)))
