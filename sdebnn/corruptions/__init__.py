"""Corruptions of images in the manner of CIFAR-10-C: 19 kinds at 5 severities.

The first 15 of ``NAMES`` are the benchmark, the last 4 are extra. ``corrupted`` generates a cell, ``cached`` stores
it too, and ``published`` reads the arrays of CIFAR-10-C if they are on disk:

    x = published("fog", 3, labels)
    x = cached(images, "fog", 3) if x is None else x
"""

from sdebnn.corruptions.cells import NAMES, SEVERITIES, corrupted
from sdebnn.corruptions.storage import cached, published

__all__ = ["NAMES", "SEVERITIES", "cached", "corrupted", "published"]
