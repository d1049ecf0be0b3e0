"""How well a score orders examples: strange ones from usual ones, and wrong predictions from right ones."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sdebnn.checks import shown
from sdebnn.metrics.classes import Numbers

KEPT = 0.95  # of the usual examples, at the threshold of ``fpr_at_95``


class Detection(NamedTuple):
    """How well strange examples are told from usual ones.

    ``auroc`` is the probability that a strange example has the higher score, ties counting half. ``aupr_strange`` and
    ``aupr_usual`` are the average precision with the strange, or the usual, as what is sought. ``fpr_at_95`` is the
    share of strange examples that pass as usual, at the lowest threshold below or at which 95 % of the usual ones lie.
    """

    auroc: float
    aupr_strange: float
    aupr_usual: float
    fpr_at_95: float


def detection(usual: Float[Numbers, " example"], strange: Float[Numbers, " other"]) -> Detection:
    """How well a score that is higher for strange examples tells them from usual ones.

        entropy = metrics.entropy_split(probs[None]).total
        wrong = np.asarray(probs.argmax(-1) != labels)
        found = metrics.detection(usual=entropy[~wrong], strange=entropy[wrong])
        print(f"a mistake has the higher entropy with probability {found.auroc:.2f}")

    The strange examples may be images of another kind or, as here, mistakes: then pass the uncertainty of right
    predictions, and that of wrong ones. Without an example of either kind there is no answer, and an error is raised.
    Infinite scores are the highest or the lowest.
    """
    low, high = _scores("usual", usual), _scores("strange", strange)
    _, group, count = np.unique(np.concatenate([low, high]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[group]  # equal scores share the mean of their ranks
    auroc = (ranks[len(low) :].sum() - len(high) * (len(high) + 1) / 2) / (len(low) * len(high))
    threshold = np.sort(low)[int(np.ceil(KEPT * len(low) - 1e-9)) - 1]
    return Detection(
        auroc=float(auroc), aupr_strange=_average_precision(high, low), aupr_usual=_average_precision(-low, -high),
        fpr_at_95=float(np.mean(high <= threshold)),
    )  # fmt: skip


class RiskCoverage(NamedTuple):
    """The mean error of the most certain examples, for each share of them, from the most certain one to all."""

    coverage: Float[np.ndarray, " example"]
    risk: Float[np.ndarray, " example"]

    @property
    def area(self) -> float:
        """The mean risk over all shares (AURC); lower is better."""
        return float(self.risk.mean())

    def accuracy_at(self, coverage: float) -> float:
        """1 minus the risk of the most certain examples, if this share of all is answered.

        The share is rounded up to whole examples. Losses outside [0, 1] have no accuracy.
        """
        if self.risk.min() < 0 or self.risk.max() > 1:
            raise ValueError("the errors are losses outside [0, 1], which have no accuracy: look at risk instead.")
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage={shown(coverage)} must be a share above 0 and at most 1, such as 0.9.")
        return float(1 - self.risk[int(np.ceil(coverage * len(self.risk) - 1e-9)) - 1])


def risk_coverage(uncertainty: Float[Numbers, " example"], errors: Numbers) -> RiskCoverage:
    """Risk against coverage. ``errors`` may be True where a prediction is wrong, or any loss.

        uncertainty = metrics.entropy_split(probs[None]).total
        curve = metrics.risk_coverage(uncertainty, errors=probs.argmax(-1) != labels)
        print(curve.area, curve.accuracy_at(0.9))

    Examples of equal uncertainty have the mean error of all of them, as if their order were drawn at random.
    """
    scores = _scores("uncertainty", uncertainty)
    wrong = np.asarray(errors, float)
    if wrong.shape != scores.shape or not np.isfinite(wrong).all():
        raise ValueError(f"errors has shape {wrong.shape}: pass one finite number for each of {len(scores)} examples.")
    _, group = np.unique(scores, return_inverse=True)
    mean = np.bincount(group, wrong) / np.bincount(group)
    ordered = mean[np.sort(group)]
    count = np.arange(1, len(scores) + 1)
    return RiskCoverage(count / len(scores), np.cumsum(ordered) / count)


def _scores(name: str, scores: Float[Numbers, " example"]) -> Float[np.ndarray, " example"]:
    """The scores in float64; an error if there are none, or one is not a number."""
    found = np.asarray(scores, float)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name} has shape {found.shape}: pass the score of at least one example.")
    if np.isnan(found).any():
        raise ValueError(f"{name} holds NaN, such as in place {int(np.isnan(found).argmax())}: no order is known.")
    return found


def _average_precision(wanted: Float[np.ndarray, " one"], other: Float[np.ndarray, " two"]) -> float:
    """The mean over those wanted of the precision at their score, equal scores being taken together."""
    scores = np.concatenate([wanted, other])
    hit = np.concatenate([np.ones(len(wanted)), np.zeros(len(other))])
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(hit[order])
    last = np.append(scores[1:] != scores[:-1], True)  # of each group of equal scores
    precision = hits[last] / (np.flatnonzero(last) + 1)
    return float(np.sum(np.diff(hits[last], prepend=0) * precision) / len(wanted))
