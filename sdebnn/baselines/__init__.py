"""What one would use instead: models of the same contract, one file each."""

from sdebnn.baselines.meanfield import MeanField
from sdebnn.baselines.odenet import ODEBlock

__all__ = ["MeanField", "ODEBlock"]
