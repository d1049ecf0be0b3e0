"""Likelihoods p(y | outputs): what a model's outputs say about the targets."""

from sdebnn.likelihoods.categorical import Categorical
from sdebnn.likelihoods.likelihood import AbstractLikelihood, Outputs, Summary
from sdebnn.likelihoods.location_scale import AbstractLocationScale, Cauchy, Gaussian, Laplace, StudentT
from sdebnn.likelihoods.weighted import Weighted

__all__ = [
    "AbstractLikelihood",
    "AbstractLocationScale",
    "Categorical",
    "Cauchy",
    "Gaussian",
    "Laplace",
    "Outputs",
    "StudentT",
    "Summary",
    "Weighted",
]
