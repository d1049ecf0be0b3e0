"""Runs of the command line: a folder with the settings, the training log, the checkpoints and the scores."""

from sdebnn.runs.run import Run, make, open_run
from sdebnn.runs.settings import PARAMETERS, Settings, read_about, read_settings, read_stages
from sdebnn.runs.training import DRAWS, draws_of, known_scores, score, score_key, scored_part, train
from sdebnn.runs.unlike import Unlike, read_unlike

__all__ = [
    "DRAWS",
    "PARAMETERS",
    "Run",
    "Settings",
    "Unlike",
    "draws_of",
    "known_scores",
    "make",
    "open_run",
    "read_about",
    "read_settings",
    "read_stages",
    "read_unlike",
    "score",
    "score_key",
    "scored_part",
    "train",
]
