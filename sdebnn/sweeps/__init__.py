"""Sweeps over the parameters of runs, by any number of processes that share one storage. They need Optuna.

``space.py`` says what is varied, ``training.py`` what a trial trains. ``trials.py``, with ``slots.py`` and
``importance.py``, keeps the trials in a storage of Optuna, and is imported only when there is something to do there.
``working.py`` is the loop of a worker, and ``results.py`` is what a report reads.
"""

from sdebnn.sweeps.results import Results, Row, read_results, shown_value, table
from sdebnn.sweeps.settings import Sweep, is_sweep, read_sweep
from sdebnn.sweeps.space import NET_TYPES, PAPER, TABLE, TABLE_TYPES, Choice, Range, Space, named_space, parsed
from sdebnn.sweeps.training import AbstractTrainee, Nets, Tables, trainee
from sdebnn.sweeps.working import HEARTBEAT, TRIALS, results_so_far, work

__all__ = [
    "HEARTBEAT", "NET_TYPES", "PAPER", "TABLE", "TABLE_TYPES", "TRIALS", "AbstractTrainee", "Choice", "Nets", "Range",
    "Results", "Row", "Space", "Sweep", "Tables", "is_sweep", "named_space", "parsed", "read_results", "read_sweep",
    "results_so_far", "shown_value", "table", "trainee", "work",
]  # fmt: skip
