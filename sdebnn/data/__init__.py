"""Everything that brings data in: the catalogue of data sets, their readers, downloads, standardising, augmentation."""

from sdebnn.data import augment, images, tabular, toy
from sdebnn.data.arrays import as_arrays, as_floats, batch_dtype, is_lazy, is_resident
from sdebnn.data.augment import RandomView
from sdebnn.data.catalogue import CATALOGUE, find, load
from sdebnn.data.dataset import DataSet, Part, check_part, held_out
from sdebnn.data.distance import USUAL, Distance, features
from sdebnn.data.download import get, is_here
from sdebnn.data.entry import Entry, File, Request, Source
from sdebnn.data.mixing import RandomMixing
from sdebnn.data.rows import Inputs, SelectedRows, ShardedRows, name_of_row
from sdebnn.data.standardise import Standardiser, evenly_spaced_rows, pixel_statistics
from sdebnn.data.storage import home
from sdebnn.data.training_inputs import TrainingInputs, UnlikeTrainingWarning

__all__ = [
    "CATALOGUE",
    "USUAL",
    "DataSet",
    "Distance",
    "Entry",
    "File",
    "Inputs",
    "Part",
    "RandomMixing",
    "RandomView",
    "Request",
    "SelectedRows",
    "ShardedRows",
    "Source",
    "Standardiser",
    "TrainingInputs",
    "UnlikeTrainingWarning",
    "as_arrays",
    "as_floats",
    "augment",
    "batch_dtype",
    "check_part",
    "evenly_spaced_rows",
    "features",
    "find",
    "get",
    "held_out",
    "home",
    "images",
    "is_here",
    "is_lazy",
    "is_resident",
    "load",
    "name_of_row",
    "pixel_statistics",
    "tabular",
    "toy",
]
