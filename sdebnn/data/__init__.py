"""Data sets: one file for each kind."""

from sdebnn.data import augment, images, toy
from sdebnn.data.augment import RandomView
from sdebnn.data.dataset import DataSet, Part, held_out

__all__ = ["DataSet", "Part", "RandomView", "augment", "held_out", "images", "toy"]
