"""Forecasts of a class: calibration, and the images behind the forecasts."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes

from sdebnn import metrics
from sdebnn.checks import check_array
from sdebnn.metrics.classes import Binning, ClassSamples, Labels, Numbers
from sdebnn.plots.elements import (
    BLUE,
    GREY,
    INK,
    RED,
    SHADE,
    SMALL,
    chance_band,
    check_between,
    diagonal,
    in_percent,
    label_axes,
    percent,
    vectors,
)

STRIP = (-0.31, -0.11)  # where the shares of the bins are drawn, below accuracy zero


def reliability_diagram(
    axes: Axes, samples: ClassSamples, labels: Labels, *, bins: int = 15, binning: Binning = "width"
) -> None:
    """Accuracy against confidence in bins, with the share of examples in each bin below.

        plots.reliability_diagram(axes, probs[None], labels, bins=5)

    A calibrated forecast lies inside the shaded bar of a bin with a probability of at least 95 % (binomial, at the mean
    confidence of the bin).
    """
    count, confidence, accuracy = metrics.reliability(samples, labels, bins, binning)
    error = float(metrics.ece(samples, labels, bins, binning))
    low, high = chance_band(count, np.minimum(confidence, 1))
    axes.vlines(confidence, low, high, color=SHADE, linewidth=7, zorder=1, gid="chance")
    diagonal(axes, "underconfident", "overconfident")
    axes.scatter(confidence, accuracy, s=24, color=BLUE, edgecolor="white", linewidth=0.6, zorder=4, clip_on=False)
    share = count / count.sum()
    bottom, top = STRIP
    tall = bottom + (top - bottom) * share / share.max()
    axes.vlines(confidence, bottom, tall, color=GREY, linewidth=4, zorder=2, gid="share")
    most = int(share.argmax())
    axes.annotate(
        in_percent(float(share[most]), 0), (confidence[most], top), xytext=(0, 1.5), textcoords="offset points",
        ha="center", va="bottom", fontsize=SMALL - 1, color=GREY,
    )  # fmt: skip
    axes.annotate(
        "share of\nexamples", (0, (bottom + top) / 2), xytext=(-7, 0), textcoords="offset points", ha="right",
        va="center", fontsize=SMALL - 1, color=GREY, annotation_clip=False,
    )  # fmt: skip
    axes.text(0.02, 1.13, f"ECE {error:.3f}, {count.sum():,} examples", va="top", fontsize=SMALL + 1, color=INK)
    axes.set(xlim=(0, 1.02), ylim=(bottom, 1.14), xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
    percent(axes, x=True, y=True)
    label_axes(axes, "confidence", "accuracy")


Images = UInt8[Numbers, "example height width"] | UInt8[Numbers, "example height width channel"]


def pictures(
    panels: Iterable[Axes],
    images: Images,
    said: Int[Numbers, " example"],
    true: Int[Numbers, " example"],
    probability: Float[Numbers, " example"],
    *,
    names: Sequence[str] | None = None,
) -> None:
    """Images, one on each of the panels, with the class said, its probability, and the true class.

        import matplotlib.pyplot as plt

        figure, panels = plt.subplots(2, 4)
        pixels, said, names = np.uint8(255 * images), probs.argmax(-1), ("cat", "dog", "owl")
        plots.pictures(panels.ravel(), pixels, said, labels, probs.max(-1), names=names)

    A wrong answer has a thick frame and a bold caption. Panels without an image are hidden.
    """
    found, places = np.asarray(images), list(panels)
    check_array("images", found, least_ndim=3)
    if found.dtype != np.uint8 or found.ndim not in (3, 4) or found.shape[3:] not in ((), (1,), (3,), (4,)):
        raise ValueError(
            f"images have dtype {found.dtype} and shape {found.shape}: pass uint8, (examples, height, width) or "
            "(examples, height, width, 3)."
        )
    answers, truth, certainty = vectors(said=said, true=true, probability=probability)
    check_between("probability", certainty, 0.0, 1.0, "pass the probability of the class said")
    if len(answers) != len(found) or len(places) < len(found):
        raise ValueError(
            f"there are {len(found)} images, {len(answers)} answers and {len(places)} panels: pass one answer and one "
            "panel for each image."
        )
    last = len(names) - 1.0 if names else np.inf
    check_between("said and true", np.concatenate([answers, truth]), 0.0, last, "pass a name for each class")
    for axes in places[len(found) :]:
        axes.set_visible(False)
    for axes, image, one, other, p in zip(places, found, answers, truth, certainty, strict=False):
        word, correct = (names[int(k)] if names else str(int(k)) for k in (one, other))
        _picture(axes, image, word, correct, float(p))


def _picture(axes: Axes, image: UInt8[np.ndarray, "height width ..."], said: str, true: str, p: float) -> None:
    """One image with its caption and, if the answer is wrong, a frame."""
    wrong = said != true
    axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(
        f"said {said} ({in_percent(p, 0)})\n" + (f"× is {true}" if wrong else "right"), fontsize=SMALL, labelpad=4,
        color=RED if wrong else INK, fontweight="bold" if wrong else "normal", linespacing=1.3,
    )  # fmt: skip
    for spine in axes.spines.values():
        spine.set(visible=wrong, linewidth=2.5, color=RED)
