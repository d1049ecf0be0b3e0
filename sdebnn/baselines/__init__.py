"""Other Bayesian and deterministic models, one file each."""

from sdebnn.baselines.backprop import ScaleMixture, bayes_by_backprop
from sdebnn.baselines.bbvi import bbvi
from sdebnn.baselines.dropout import MCDropout
from sdebnn.baselines.gp import GP
from sdebnn.baselines.hmc import HMC, Diagnostics
from sdebnn.baselines.hypernet import Hypernet
from sdebnn.baselines.hyperodenet import HyperODEBlock
from sdebnn.baselines.laplace import LastLayerLaplace
from sdebnn.baselines.partial import PartlyRandom
from sdebnn.baselines.resnet import ResNet
from sdebnn.baselines.temperature import TemperatureScaled

__all__ = [
    "GP",
    "HMC",
    "Diagnostics",
    "HyperODEBlock",
    "Hypernet",
    "LastLayerLaplace",
    "MCDropout",
    "PartlyRandom",
    "ResNet",
    "ScaleMixture",
    "TemperatureScaled",
    "bayes_by_backprop",
    "bbvi",
]
