"""Forecasts beside what came true: all that the scores, the plots and the report of a model need.

A run keeps them in RUN/outcomes.safetensors, so that it can be judged without its data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn import metrics
from sdebnn.checks import shown
from sdebnn.likelihoods import AbstractLikelihood, Categorical
from sdebnn.metrics import Estimate
from sdebnn.records import Rule, Rules, broken, check_finite, load_one, save_one

OUTCOMES_FILE, EXAMPLES_FILE = "outcomes.safetensors", "examples.safetensors"
KIND, EXAMPLES_KIND = "forecasts and outcomes, version 1", "examples of outcomes, version 1"
MAX_SHOWN = 5000  # examples of a regression that are kept for a picture
BINS = 15
RESAMPLES = 200
TARGETS = 200  # at least so many draws of y
RULES: Rules = {
    "names": Rule(
        "a list of names", lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value)
    ),
}


class ClassOutcomes(NamedTuple):
    """The probabilities of each draw, and the label of every example as the number of its class.

        from sdebnn.outcomes import ClassOutcomes

        samples = np.asarray(probs[None])
        outcomes = ClassOutcomes(samples, np.asarray(labels), ("cat", "dog", "owl"))
        accuracy, lower, upper = outcomes.scores()["accuracy"]

    ``outcomes_of`` makes them from what ``predict`` returned.
    """

    samples: Float[np.ndarray, "draw example class"]
    labels: Int[np.ndarray, " example"]
    names: tuple[str, ...]  # of the classes
    unlike: Float[np.ndarray, " example"] | None = None  # how far each example is from those of training

    @property
    def probs(self) -> Float[np.ndarray, "example class"]:
        """The averaged forecast."""
        mean = np.asarray(self.samples, float).mean(0)
        return mean / mean.sum(-1, keepdims=True)

    @property
    def wrong(self) -> np.ndarray:
        """Whether the most probable class is another one than the label."""
        return self.probs.argmax(-1) != self.labels

    def scores(self, resamples: int = RESAMPLES) -> dict[str, Estimate]:
        """The scores of the averaged forecast, each with an interval over the examples: bootstrap, or exact for shares.

        In the NLL, a probability of 0 counts as 1e-300. The AUROC of mistakes is left out unless there are right and
        wrong answers.
        """
        probs, labels = self.probs, self.labels
        nll = -np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-300))
        total, reducible, _ = metrics.entropy_split(self.samples)
        wrong = self.wrong

        def calibration(**how: Any) -> Any:
            return lambda rows: metrics.ece(probs[None, rows], labels[rows], **how)

        found = {
            "nll": lambda rows: nll[rows].mean(),
            "brier": lambda rows: metrics.brier(probs[None, rows], labels[rows]),
            "ece10": calibration(bins=10),
            "ece15": calibration(bins=BINS),
            "ece15_mass": calibration(bins=BINS, binning="mass"),
            "classwise_ece15": lambda rows: metrics.classwise_ece(probs[None, rows], labels[rows], BINS),
            "aurc": lambda rows: metrics.risk_coverage(total[rows], wrong[rows]).area,
            "entropy": lambda rows: total[rows].mean(),
            "entropy_reducible": lambda rows: reducible[rows].mean(),
        }
        scores = {"accuracy": metrics.share(~wrong), **_estimates(found, len(labels), resamples)}
        answered = np.argsort(total, kind="stable")[: int(np.ceil(0.9 * len(total) - 1e-9))]
        answers = metrics.share(~wrong[answered])
        scores["accuracy_of_90"] = answers._replace(value=metrics.risk_coverage(total, wrong).accuracy_at(0.9))
        if wrong.any() and not wrong.all():
            scores["auroc_of_mistakes"] = metrics.bootstrap(
                lambda right, mistaken: metrics.detection(total[~wrong][right], total[wrong][mistaken]).auroc,
                int((~wrong).sum()), int(wrong.sum()), resamples=resamples,
            )  # fmt: skip
        return scores


class NumberOutcomes(NamedTuple):
    """The mean and the variance of y under each draw, draws of y itself, its log density in nats, and y.

        from sdebnn.outcomes import outcomes_of

        outcomes = outcomes_of(likelihood, samples, y, key=key)
        lower, upper = outcomes.interval(0.9)
        rmse, least, most = outcomes.scores()["rmse"]

    ``outcomes_of`` makes them from what ``predict`` returned.
    """

    mean: Float[np.ndarray, "draw example target"]
    variance: Float[np.ndarray, "draw example target"]
    targets: Float[np.ndarray, "sample example target"]
    log_prob: Float[np.ndarray, " example"]
    y: Float[np.ndarray, "example target"]
    names: tuple[str, ...]  # of the targets
    unlike: Float[np.ndarray, " example"] | None = None  # how far each example is from those of training

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The ends of central intervals, "example target"."""
        low, high = metrics.interval(self.targets, level)
        return np.asarray(low), np.asarray(high)

    def scores(self, resamples: int = RESAMPLES) -> dict[str, Estimate]:
        """The scores of the forecast, each with its interval over the examples: bootstrap, or exact for shares.

        The interval of the coverage of several targets is a bootstrap one, for an example's targets are dependent.
        """
        mean, (low, high), y = self.mean.mean(0), self.interval(), self.y
        total, reducible, _ = metrics.variance_split(self.mean, self.variance)
        inside = (low <= y) & (y <= high)
        crps = np.asarray(metrics.crps_of_each(self.targets, y))
        found = {
            "rmse": lambda rows: np.sqrt(np.mean((mean[rows] - y[rows]) ** 2)),
            "nll": lambda rows: -self.log_prob[rows].mean(),
            "crps": lambda rows: crps[rows].mean(),
            "coverage_95": lambda rows: inside[rows].mean(),
            "width_95": lambda rows: (high - low)[rows].mean(),
            "interval_score_95": lambda rows: metrics.interval_score(low[rows], high[rows], y[rows]),
            "std": lambda rows: np.sqrt(total[rows].mean()),
            "std_reducible": lambda rows: np.sqrt(reducible[rows].mean()),
        }
        scores = _estimates(found, len(y), resamples)
        return scores if y.shape[1] > 1 else {**scores, "coverage_95": metrics.share(inside[:, 0])}


Outcomes = ClassOutcomes | NumberOutcomes


def outcomes_of(
    likelihood: AbstractLikelihood,
    samples: Float[Array, "draw example output"],
    y: Array,
    names: Sequence[str] | None = None,
    *,
    key: PRNGKeyArray,
) -> Outcomes:
    """The outcomes of what ``predict`` returned.

        from sdebnn.outcomes import outcomes_of

        outcomes = outcomes_of(likelihood, samples, y, key=key)
        for name, score in outcomes.scores().items():
            print(f"{name} {score.value:.3f} ({score.lower:.3f} to {score.upper:.3f})")

    They are ``ClassOutcomes`` if the likelihood is ``Categorical``, and ``NumberOutcomes`` otherwise. ``names`` are
    those of the classes, or of the targets.
    """
    center = np.asarray(likelihood.center(samples))
    if isinstance(likelihood, Categorical):
        names = [str(i) for i in range(center.shape[-1])] if names is None else names
        return _fitting(ClassOutcomes(center, np.asarray(y), tuple(names)))
    names = names or (["y"] if center.shape[-1] == 1 else [f"y{i + 1}" for i in range(center.shape[-1])])
    keys = jax.random.split(key, -(-TARGETS // len(center)))
    targets = np.concatenate([np.asarray(likelihood.sample(samples, key=each)) for each in keys])
    log_prob = logsumexp(jnp.asarray(likelihood.log_prob(samples, y)), axis=0) - np.log(len(center))
    return _fitting(NumberOutcomes(
        center, np.asarray(likelihood.variance(samples)), targets, np.asarray(log_prob), np.asarray(y, center.dtype),
        tuple(names),
    ))  # fmt: skip


def _fitting(made: Outcomes) -> Outcomes:
    """The outcomes, if their parts fit together."""
    wrong = _misfit(made)
    if wrong is not None:
        raise ValueError(f"forecasts and targets do not fit together ({wrong}): pass the targets of these examples.")
    return made


def save_outcomes(folder: Path, outcomes: Outcomes) -> None:
    """Write them into the folder of a run.

        from pathlib import Path

        from sdebnn.outcomes import load_outcomes, outcomes_of, save_outcomes

        save_outcomes(Path("."), outcomes_of(likelihood, samples, y, key=key))
        outcomes = load_outcomes(Path("."))

    The file is called outcomes.safetensors; floats are kept in single precision.
    """
    arrays = {name: array for name, array in outcomes._asdict().items() if isinstance(array, np.ndarray)}
    floats = {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in arrays.items()}
    save_one(folder / OUTCOMES_FILE, floats, KIND, {"names": list(outcomes.names)})


def load_outcomes(folder: Path) -> Outcomes:
    """What ``save_outcomes`` wrote.

        from pathlib import Path

        from sdebnn.outcomes import load_outcomes

        outcomes = load_outcomes(Path("model"))  # a folder that sdebnn train made
        print(outcomes.scores()["rmse"])

    A run keeps the forecasts of its test part.
    """
    path = folder / OUTCOMES_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {OUTCOMES_FILE}, the forecasts of its test part: train it again, with a test part; a "
            "run of images or arrays with --resume."
        )
    arrays, facts = load_one(path, KIND, RULES)
    check_finite(path, {name: array for name, array in arrays.items() if array.dtype.kind == "f"})
    names = tuple(facts["names"])
    for kind in (ClassOutcomes, NumberOutcomes):
        if set(arrays) | {"names", "unlike"} == set(kind._fields):
            made = kind(**arrays, names=names)
            wrong = _misfit(made)
            if wrong is not None:
                raise broken(path, f"holds arrays that do not fit together ({wrong})")
            return made
    raise broken(path, f"holds {shown(sorted(arrays))}, which are no outcomes")


def telling_rows(outcomes: Outcomes, count: int = 8) -> Int[np.ndarray, " row"]:
    """Examples to look at, each once: of classes the surest mistakes, the least certain and the surest; else all."""
    if isinstance(outcomes, NumberOutcomes):
        return np.arange(len(outcomes.y))[:MAX_SHOWN]
    order, wrong = np.argsort(-outcomes.probs.max(-1), kind="stable"), outcomes.wrong
    rows = np.concatenate([order[wrong[order]][:count], order[::-1][:count], order[~wrong[order]][:count]])
    return rows[np.sort(np.unique(rows, return_index=True)[1])]


def save_examples(folder: Path, x: np.ndarray, rows: Int[np.ndarray, " row"]) -> None:
    """Write some of the examples that the outcomes are of, with their numbers, for the report."""
    save_one(folder / EXAMPLES_FILE, {"x": x, "rows": rows}, EXAMPLES_KIND, {})


def load_examples(folder: Path, examples: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What ``save_examples`` wrote beside so many outcomes; None if it wrote nothing."""
    path = folder / EXAMPLES_FILE
    if not path.is_file():
        return None
    arrays, _ = load_one(path, EXAMPLES_KIND, {})
    x, rows = arrays.get("x", np.zeros(0)), arrays.get("rows", np.zeros(0))
    fits = rows.dtype.kind in "iu" and rows.ndim == 1 and len(x) == len(rows)
    if set(arrays) != {"x", "rows"} or not fits or (len(rows) and not 0 <= rows.min() <= rows.max() < examples):
        raise broken(path, "holds no examples of these outcomes")
    return x, rows


def _misfit(made: Outcomes) -> str | None:
    """What does not fit together; None if all does."""
    examples = made.labels if isinstance(made, ClassOutcomes) else made.log_prob
    if made.unlike is not None and made.unlike.shape != examples.shape:
        return f"{made.unlike.shape} distances"
    if isinstance(made, ClassOutcomes):
        draws, examples, classes = made.samples.shape if made.samples.ndim == 3 else (0, 0, 0)
        if not draws * examples * classes or made.labels.shape != (examples,) or classes != len(made.names):
            return f"{made.samples.shape} and {made.labels.shape} for {len(made.names)} classes"
        if made.labels.dtype.kind not in "iu" or made.labels.min() < 0 or made.labels.max() >= classes:
            return "labels beyond the classes"
        sums = np.asarray(made.samples, float).sum(-1)
        return None if made.samples.min() >= 0 and np.allclose(sums, 1, atol=1e-3) else "no probabilities"
    shapes = {array.shape[1:] for array in (made.mean, made.variance, made.targets)} | {made.y.shape}
    if len(shapes) != 1 or made.y.ndim != 2 or not made.y.size or made.log_prob.shape != made.y.shape[:1]:
        return "their shapes differ"
    return None if made.y.shape[1] == len(made.names) else f"{made.y.shape[1]} targets, {len(made.names)} names"


def _estimates(scores: dict[str, Any], examples: int, resamples: int) -> dict[str, Estimate]:
    return {name: metrics.bootstrap(score, examples, resamples=resamples) for name, score in scores.items()}
