"""Data sets: one file for each kind."""

from sdebnn.data import augment, images, tabular, toy
from sdebnn.data.augment import RandomView
from sdebnn.data.dataset import DataSet, Part, held_out
from sdebnn.data.download import get

__all__ = ["DataSet", "Part", "RandomView", "augment", "get", "held_out", "images", "tabular", "toy"]
