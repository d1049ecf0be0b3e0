"""The forecast of a regression:   p(y | x) = 1/K Σ_k p((y - location_k(x)) / scale_k(x)) / scale_k(x)

It is a mixture of K laws of one kind, one for each draw of the network. Its moments, density and quantiles are computed
exactly, without sampling.
"""

from typing import NamedTuple, Protocol

import numpy as np
from scipy import special

MAX_QUANTILE_STEPS = 200  # at most 60 bisections, and 40 Newton steps that halve the error


class StandardLaw(Protocol):
    """A frozen law of SciPy with location 0 and scale 1, such as ``scipy.stats.norm()``."""

    def var(self) -> float:
        """The variance."""
        ...

    def ppf(self, q: float) -> float:
        """The quantile."""
        ...

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """The distribution function."""
        ...

    def pdf(self, x: np.ndarray) -> np.ndarray:
        """The density."""
        ...

    def logpdf(self, x: np.ndarray) -> np.ndarray:
        """The log density."""
        ...

    def rvs(self, size: tuple[int, ...], random_state: np.random.RandomState) -> np.ndarray:
        """Samples."""
        ...


class Forecast(NamedTuple):
    """Locations and scales, "draw row target", of the laws in the mixture."""

    law: StandardLaw
    location: np.ndarray
    scale: np.ndarray

    def mean(self) -> np.ndarray:
        """The mean of every target."""
        return self.location.mean(0)

    def std(self) -> np.ndarray:
        """The standard deviation of every target, of the draws and of the noise together."""
        unit = np.where(self.scale.max(0) > 0, self.scale.max(0), 1.0)  # keeps the squares finite
        noise = self.law.var() * ((self.scale / unit) ** 2).mean(0)
        return unit * np.sqrt(noise + (self.location / unit - self.mean() / unit).var(0))

    def std_of_draws(self) -> np.ndarray:
        """The standard deviation of every target over the draws alone, which more data would reduce."""
        unit = np.where(self.scale.max(0) > 0, self.scale.max(0), 1.0)
        return unit * (self.location / unit - self.mean() / unit).std(0)

    def quantile(self, level: float) -> np.ndarray:
        """The quantile of every target, which lies between the quantiles of the draws.

        A Newton step is taken where the last one has at least halved the error, and a bisection elsewhere: the former
        are fast, and the latter always converge. A row whose quantile is found is not changed any more.
        """
        each = self.location + self.scale * self.law.ppf(level)
        low, high = each.min(0), each.max(0)
        found, error = each.mean(0), np.full(each.shape[1:], np.inf)
        for _ in range(MAX_QUANTILE_STEPS):
            z = (found - self.location) / self.scale
            gap = self.law.cdf(z).mean(0) - level
            done, halved, error = np.abs(gap) < 1e-12, np.abs(gap) <= error / 2, np.abs(gap)
            if done.all():
                break
            low, high = np.where(gap < 0, found, low), np.where(gap < 0, high, found)
            with np.errstate(divide="ignore", invalid="ignore"):  # the density may be zero far out in a tail
                newton = found - gap / (self.law.pdf(z) / self.scale).mean(0)
            inside = (low < newton) & (newton < high) & halved
            found = np.where(done, found, np.where(inside, newton, low + (high - low) / 2))
        return found

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        """log p(y | x) of every row, for all its targets together."""
        each = self.law.logpdf((y - self.location) / self.scale) - np.log(self.scale)
        return special.logsumexp(each.sum(-1), axis=0) - np.log(len(each))

    def sample(self, random: np.random.RandomState) -> np.ndarray:
        """One target of every row from each draw, "draw row target"."""
        return self.location + self.scale * self.law.rvs(size=self.location.shape, random_state=random)
