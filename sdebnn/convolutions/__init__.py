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

__all__ = ["Compute", "Conv", "GroupNorm", "Pixels", "TimeConv", "TimeConvLayer", "pooled", "squeeze", "unsqueeze"]
