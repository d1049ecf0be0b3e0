"""Every system of the paper's tables on one data set: built, trained and judged alike."""

from sdebnn.compare.rows import Row
from sdebnn.compare.running import Comparison, task_of

__all__ = ["Comparison", "Row", "task_of"]
