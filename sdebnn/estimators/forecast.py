"""What the draws say of the targets of some rows:   p(y | x) = 1/K Σ_k p((y - location_k(x)) / scale_k(x)) / scale_k(x)

A mixture of K laws of one kind for every target: its moments, density and quantiles are exact, not sampled.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

MOST_STEPS = 200  # to a quantile, of which a third are halvings: 60 of them would do alone


class Forecast(NamedTuple):
    """Locations and scales, "draw row target", of laws that ``law`` (one of SciPy's) standardises."""

    law: Any
    location: np.ndarray
    scale: np.ndarray

    def mean(self) -> np.ndarray:
        """The mean of every target."""
        return self.location.mean(0)

    def std(self) -> np.ndarray:
        """The standard deviation of every target: of the draws, and of the noise."""
        unit = np.where(self.scale.max(0) > 0, self.scale.max(0), 1.0)  # so that squares stay within range
        noise = self.law.var() * ((self.scale / unit) ** 2).mean(0)
        return unit * np.sqrt(noise + (self.location / unit - self.mean() / unit).var(0))

    def quantile(self, level: float) -> np.ndarray:
        """Where the distribution function of every target reaches the level: between the draws' own quantiles.

        Newton's steps and halvings of what is known to hold it in turn: fast, and sure. A row that is there stays.
        """
        each = self.location + self.scale * self.law.ppf(level)
        low, high = each.min(0), each.max(0)
        found = each.mean(0)
        for step in range(MOST_STEPS):
            z = (found - self.location) / self.scale
            gap = self.law.cdf(z).mean(0) - level
            there = np.abs(gap) < 1e-12
            if there.all():
                break
            low, high = np.where(gap < 0, found, low), np.where(gap < 0, high, found)
            with np.errstate(divide="ignore", invalid="ignore"):  # far out in a tail there is no slope
                newton = found - gap / (self.law.pdf(z) / self.scale).mean(0)
            inside = (low < newton) & (newton < high) & (step % 3 < 2)
            found = np.where(there, found, np.where(inside, newton, low + (high - low) / 2))
        return found

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        """log p(y | x) of every row, all its targets together."""
        each = self.law.logpdf((y - self.location) / self.scale) - np.log(self.scale)
        return special.logsumexp(each.sum(-1), axis=0) - np.log(len(each))

    def sample(self, random: np.random.RandomState) -> np.ndarray:
        """One target of every row from each draw: "draw row target"."""
        return self.location + self.scale * self.law.rvs(size=self.location.shape, random_state=random)
