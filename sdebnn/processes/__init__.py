"""Weight processes over depth t in [0, 1]: the prior, the drift that makes it the posterior, and the law of w_0.

prior       dw = f_p(t, w) dt + σ dB
posterior   dw = (f_p(t, w) + NN_φ(t, w)) dt + σ dB

Both share one σ: otherwise the KL between them is infinite. With NN_φ = 0 the posterior is the prior and their KL is 0.
"""

from sdebnn.processes.drift import AbstractDrift, ConcatSquash, DriftNet, LinearDrift, NoDrift
from sdebnn.processes.initial import AbstractInitialLaw, Independent, Normal, Point
from sdebnn.processes.prior import OU, AbstractPrior, Depth, Weights

__all__ = [
    "OU",
    "AbstractDrift",
    "AbstractInitialLaw",
    "AbstractPrior",
    "ConcatSquash",
    "Depth",
    "DriftNet",
    "Independent",
    "LinearDrift",
    "NoDrift",
    "Normal",
    "Point",
    "Weights",
]
