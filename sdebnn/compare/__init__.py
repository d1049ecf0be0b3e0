"""Comparisons of models on one data set: all rows of the paper's tables, trained and scored in the same way."""

from sdebnn.compare.rows import Row
from sdebnn.compare.running import Comparison, task_of

__all__ = ["Comparison", "Row", "task_of"]
