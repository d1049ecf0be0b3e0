"""Convolutions of images that are fast on every platform, and layers made of them."""

from sdebnn.convolutions.layers import (
    Compute,
    Conv,
    Pixels,
    TimeConv,
    TimeConvLayer,
    pooled,
)
from sdebnn.convolutions.norms import GroupNorm
from sdebnn.convolutions.operations import squeeze, unsqueeze
from sdebnn.convolutions.residual import ResidualConv

__all__ = [
    "Compute",
    "Conv",
    "GroupNorm",
    "Pixels",
    "ResidualConv",
    "TimeConv",
    "TimeConvLayer",
    "pooled",
    "squeeze",
    "unsqueeze",
]
