"""Which parameters the score depends on: the share of its variance over the space that each explains, by fANOVA.

Optuna takes a range to be uniform on its own scale, logarithmic or not. A logarithmic range is therefore given to it as
the range of its logarithm.
"""

import math
from collections.abc import Iterable

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances

from sdebnn.sweeps.results import Row
from sdebnn.sweeps.space import Choice, Range, Space, Value

MIN_TRIALS = 8  # complete ones; a forest that was fitted to fewer says little


def importances(rows: Iterable[Row], space: Space) -> dict[str, float]:
    """The share of the variance of the score that each parameter explains by itself, largest first.

    A forest is fitted to the complete trials, and its variance split (functional ANOVA). Parameters that not all of
    them have are left out. There are none while there are too few trials, or if all scores are the same.
    """
    done = [row for row in rows if row.state == "complete"]
    varied = [
        name
        for name in space
        if all(name in row.values for row in done) and len({row.values[name] for row in done}) > 1
    ]
    if len(done) < MIN_TRIALS or len({row.score for row in done}) < 2 or not varied:
        return {}
    study = optuna.create_study()
    for row in done:
        values = {name: _scaled(space[name], row.values[name]) for name in varied}
        ranges = {name: _distribution(space[name]) for name in varied}
        study.add_trial(optuna.trial.create_trial(params=values, distributions=ranges, value=row.score))
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: float(share) for name, share in found.items()}


def _scaled(part: Range | Choice, value: Value) -> Value:
    if isinstance(part, Choice):
        return value
    return math.log(float(value)) if part.log else float(value)


def _distribution(part: Range | Choice) -> BaseDistribution:
    if isinstance(part, Choice):
        return CategoricalDistribution(part.values)
    return FloatDistribution(float(_scaled(part, part.low)), float(_scaled(part, part.high)))
