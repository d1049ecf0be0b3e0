"""Scores of forecasts: of classes, of numbers, of orderings, and of uncertainty by its source."""

from sdebnn.metrics.bootstrap import Estimate, bootstrap, share
from sdebnn.metrics.classes import (
    BrierParts,
    Reliability,
    accuracy,
    brier,
    brier_parts,
    classwise_ece,
    ece,
    nll,
    reliability,
)
from sdebnn.metrics.ranking import Detection, RiskCoverage, detection, risk_coverage
from sdebnn.metrics.splits import Split, entropy_split, variance_split
from sdebnn.metrics.targets import coverage, crps, crps_of_each, interval, interval_score, pinball, pit, rmse

__all__ = [
    "BrierParts", "Detection", "Estimate", "Reliability", "RiskCoverage", "Split", "accuracy", "bootstrap", "brier",
    "brier_parts", "classwise_ece", "coverage", "crps", "crps_of_each", "detection", "ece", "entropy_split", "interval",
    "interval_score", "nll", "pinball", "pit", "reliability", "risk_coverage", "rmse", "share", "variance_split",
]  # fmt: skip
