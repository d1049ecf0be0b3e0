"""How a net does when inputs or solver are not those of training: corrupted images, strange ones, other resolutions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdebnn import metrics
from sdebnn.checks import shown
from sdebnn.corruptions import NAMES, SEVERITIES, cached, published
from sdebnn.data import Part, evenly_spaced_rows, find, folders, formats, load
from sdebnn.forecasters import NetForecaster
from sdebnn.likelihoods import Categorical
from sdebnn.prediction import evaluate, predict
from sdebnn.records import read_result

SHIFTS_FILE = "shifts.json"  # of a run, with what was found about it
Say = Callable[[str], None]
MADE = ("noise", "textures", "shuffled")  # sets of images that are made here
PATCHES = 4  # along each side of an image whose patches are shuffled
SCORES = ("accuracy", "nll", "ece")
SHOWN_IMAGES = 1000  # of each set, in the histogram of a report


def corruption_scores(
    net: NetForecaster, part: Part, *, relative_to: dict[str, Any] | None = None, say: Say = lambda words: None
) -> dict[str, Any]:
    """The scores on all 95 corruptions of a test part: of each cell, by severity, and in the mean.

    ``relative_to`` are such scores of another net. The mean corruption error is then the mean over corruptions of the
    ratio of the errors, summed over severities.
    """
    _check_images(net, "--corruptions")
    cells: dict[str, list[dict[str, float]]] = {}
    for number, name in enumerate(NAMES, start=1):
        say(f"Corruption {number} of {len(NAMES)}: {name}")
        cells[name] = [_short(net.scores_of(Part(_cell(part, name, severity), part.y))) for severity in SEVERITIES]
    by_severity = [
        {score: float(np.mean([cells[name][i][score] for name in NAMES])) for score in SCORES}
        for i in range(len(SEVERITIES))
    ]
    found: dict[str, Any] = {
        "mean": {score: float(np.mean([each[score] for each in by_severity])) for score in SCORES},
        "by_severity": by_severity,
        "by_corruption": cells,
    }
    if relative_to is not None:
        found["mean_corruption_error"] = mean_corruption_error(cells, relative_to)
    return found


def mean_corruption_error(cells: dict[str, list[dict[str, float]]], other: dict[str, Any]) -> float:
    """The mean over corruptions of the summed error, relative to that of another net."""
    try:
        known = other["by_corruption"]
        pairs = [([1 - c["accuracy"] for c in cells[name]], [1 - c["accuracy"] for c in known[name]]) for name in cells]
    except (KeyError, TypeError):
        raise ValueError(
            "the run to compare with has no scores on corruptions: evaluate it with --corruptions."
        ) from None
    if any(sum(theirs) == 0 for _, theirs in pairs):
        raise ValueError("the run to compare with makes no error on some corruption: choose one that does.")
    return float(np.mean([sum(ours) / sum(theirs) for ours, theirs in pairs]))


def _cell(part: Part, name: str, severity: int) -> np.ndarray:
    """A corruption of a test part: the published one if it is on disk, else one of ours."""
    images = np.asarray(part.x)
    if images.shape == (10_000, 32, 32, 3):
        found = published(name, severity, np.asarray(part.y))
        if found is not None:
            return np.asarray(found)
    return cached(images, name, severity)


def _short(scores: dict[str, float]) -> dict[str, float]:
    return {name: scores[name] for name in SCORES}


class StrangeScores(NamedTuple):
    """For each set of images, how well each score tells it; and the entropies of some forecasts, also of "test"."""

    detection: dict[str, dict[str, Any]]
    entropies: dict[str, list[float]]


def strange_scores(
    net: NetForecaster, part: Part, sets: Sequence[str], *, say: Say = lambda words: None
) -> StrangeScores:
    """How well the test part is told from other sets of images, by each of three scores.

    ``entropy`` of the forecast, its ``reducible`` part, and ``unlike``, the distance of the hidden states from those
    of training (of the pixels, if the run keeps no states). A set is a name of the catalogue, a file or folder of
    images, or made here: "noise", "textures" (smooth random fields) or "shuffled" (the test images with their patches
    in another order).
    """
    _check_images(net, "--ood")
    usual = _strangeness(net, np.asarray(part.x))
    found, entropies = {}, {"test": _some(usual["entropy"])}
    for name in sets:
        say(f"Out of distribution: {name}")
        others = _strangeness(net, other_images(name, np.asarray(part.x)))
        found[name] = {score: metrics.detection(usual[score], others[score])._asdict() for score in usual}
        entropies[name] = _some(others["entropy"])
    return StrangeScores(found, entropies)


def _some(values: np.ndarray) -> list[float]:
    """Some values, evenly spaced, for a histogram."""
    return [round(float(value), 5) for value in values[evenly_spaced_rows(len(values), SHOWN_IMAGES)]]


def other_images(name: str, usual: np.ndarray) -> np.ndarray:
    """Images of another set, in the shape of the usual ones."""
    random, (height, width, channels) = np.random.default_rng(0), usual.shape[1:]
    if name == "noise":
        return random.integers(0, 256, usual.shape, np.uint8)
    if name == "textures":
        return _textures(random, len(usual), (height, width, channels))
    if name == "shuffled":
        return _shuffled(random, usual)
    if find(name) is not None:
        return fitted_to(np.asarray(load(name, parts=("test",)).test.x), (height, width, channels))
    path = Path(name)
    if not path.exists():
        raise ValueError(f"ood={shown(name)} is no data set, file or folder: choose from {', '.join(MADE)}, or a path.")
    if path.is_dir():
        return folders.pictures(path, (height, width, channels))[0]
    array = formats.array_in(path, "x") if path.suffix == ".npz" else formats.mapped(path)
    return fitted_to(np.asarray(array), (height, width, channels))


def fitted_to(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images in another shape: grey made colour or the reverse, and cropped, or padded by zeros, around the middle."""
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise ValueError(
            f"images have shape {images.shape} of {images.dtype}: pass bytes (examples, height, width, 1 or 3)."
        )
    height, width, channels = shape
    if images.shape[-1] > channels:
        images = np.rint(images @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]
    images = np.broadcast_to(images, (*images.shape[:-1], channels))
    out = np.zeros((len(images), *shape), np.uint8)
    rows, columns = min(height, images.shape[1]), min(width, images.shape[2])
    to, of = (
        [(whole - part) // 2 for whole, part in zip(side, (rows, columns), strict=True)]
        for side in ((height, width), images.shape[1:3])
    )
    out[:, to[0] : to[0] + rows, to[1] : to[1] + columns] = images[:, of[0] : of[0] + rows, of[1] : of[1] + columns]
    return out


def _textures(random: np.random.Generator, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Smooth random fields: white noise with a spectrum that falls with the frequency, between 0 and 255."""
    height, width, channels = shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width)
    weight = (1 / np.maximum(frequency, 1.0) ** 1.5)[None, :, :, None]
    noise = np.fft.rfft2(random.normal(size=(count, height, width, channels)), axes=(1, 2))
    field = np.fft.irfft2(noise * weight, s=(height, width), axes=(1, 2))
    field = (field - field.mean((1, 2), keepdims=True)) / field.std((1, 2), keepdims=True)
    return np.clip(128 + 64 * field, 0, 255).astype(np.uint8)


def _shuffled(random: np.random.Generator, images: np.ndarray) -> np.ndarray:
    """Each image with its patches in a random order."""
    side = (images.shape[1] // PATCHES, images.shape[2] // PATCHES)
    if min(side) < 1:
        raise ValueError(
            f"images of {images.shape[1:3]} are too small for {PATCHES} patches a side: leave out shuffled."
        )
    out = images.copy()
    for image in out:
        order = random.permutation(PATCHES**2)
        patches = [_patch(image, i, side).copy() for i in range(PATCHES**2)]
        for place, i in enumerate(order):
            _patch(image, place, side)[...] = patches[i]
    return out


def _patch(image: np.ndarray, number: int, side: tuple[int, int]) -> np.ndarray:
    row, column = divmod(number, PATCHES)
    return image[row * side[0] : (row + 1) * side[0], column * side[1] : (column + 1) * side[1]]


def _strangeness(net: NetForecaster, x: np.ndarray) -> dict[str, np.ndarray]:
    """Scores of images, each higher for those that are more strange."""
    samples = predict(net.model, x, draws=net.draws, key=net.key, draws_at_once=net.draws_at_once)
    split = metrics.entropy_split(np.asarray(net.likelihood.center(samples)))
    return {"entropy": split.total, "reducible": split.reducible, "unlike": net.unlike(x)}


def resolution_scores(
    net: NetForecaster, part: Part, *, steps: Sequence[int] = (), rtol: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """The scores of a test part at other resolutions of the solver, with the evaluations that each needs."""
    how: dict[str, Any] = {"draws": net.draws, "key": net.key, "draws_at_once": net.draws_at_once}
    found = [{"steps": each, **evaluate(net.model, net.likelihood, *part, steps=each, **how)} for each in steps]
    return found + [{"rtol": each, **evaluate(net.model, net.likelihood, *part, rtol=each, **how)} for each in rtol]


def known_shifts(run: Path) -> dict[str, Any]:
    """What was found about a run before; nothing if it was not evaluated so."""
    file = run / SHIFTS_FILE
    return read_result(file) if file.is_file() else {}


def _check_images(net: NetForecaster, what: str) -> None:
    if not net.about.are_images or not isinstance(net.likelihood, Categorical):
        raise ValueError(f"{what} is for runs of images with classes: leave it out.")
