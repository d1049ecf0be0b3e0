"""A trained run as what it is good for: examples in, from a file or as JSON, and forecasts out as named columns.

``open_forecaster`` opens a run of any kind. The commands ``predict``, ``evaluate``, ``export`` and ``serve`` know runs
by this contract alone. Nothing here reads the training data.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from sdebnn import metrics
from sdebnn.checks import check_count, check_level, shown
from sdebnn.columns import Columns, of_classes, of_numbers
from sdebnn.contract import AbstractModel
from sdebnn.data import Part, Standardiser, TrainingInputs, folders, formats
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.prediction import evaluate, predict
from sdebnn.presets import About
from sdebnn.runs import DRAWS, Unlike, open_run, read_stages, read_unlike
from sdebnn.tables.kind import is_table_run

ROWS_AT_ONCE = 1024
TARGETS = 4000  # draws of y, at least, from which an interval is taken
PICTURES = folders.SUFFIXES


@runtime_checkable
class Forecaster(Protocol):
    """What every opened run can do. ``inputs`` are what ``read`` or ``from_json`` returned."""

    @property
    def contract(self) -> dict[str, Any]:
        """What it takes and what it predicts, as JSON."""
        ...

    def read(self, path: Path) -> Any:
        """The examples in a file or folder."""
        ...

    def from_json(self, rows: Any) -> Any:
        """Examples that came as JSON."""
        ...

    def forecast(self, inputs: Any, *, where: str, coverage: float = 0.95) -> Columns:
        """The forecast of every example; ``where`` is what messages call the inputs."""
        ...

    def scores(self, path: Path) -> dict[str, float]:
        """The scores on the examples in a file or folder, which must hold their targets, too."""
        ...


def open_forecaster(run: Path, *, draws: int | None = None, seed: int = 0, best: bool = False) -> Forecaster:
    """The model of a run of any kind.

        from pathlib import Path

        from sdebnn.forecasters import open_forecaster

        forecaster = open_forecaster(Path("model"))  # a folder that sdebnn train made
        rows = forecaster.from_json([{"area": 100, "side": "south"}])
        forecasts = forecaster.forecast(rows, where="rows")
        print(forecasts["price"], forecasts["lower"], forecasts["upper"])

    ``forecaster.contract`` says what it takes and what it predicts, and ``forecaster.read(path)`` reads a file.
    ``seed`` and ``best`` are for nets of images and arrays.
    """
    if is_table_run(run):
        return _of_table(run, draws)
    made, model, likelihood = open_run(run, best=best)
    if draws is not None:
        check_count("draws", draws)
    count = DRAWS * len(made.nets) if draws is None else draws
    return NetForecaster(
        made.about,
        model,
        likelihood,
        read_unlike(run, made.about, None if best else sum(read_stages(run))),
        count,
        jax.random.key(seed),
        made.draws_at_once,
    )


def _of_table(run: Path, draws: int | None) -> Forecaster:
    try:
        return importlib.import_module("sdebnn.tables.forecaster").TableForecaster.open(run, draws)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("sklearn", "scipy"):
            raise
        raise ValueError("tables need scikit-learn: pip install 'sdebnn[sklearn]'.") from None


class Examples(NamedTuple):
    """Examples of a net, and the names of their files, if they have some."""

    x: np.ndarray
    files: list[str] | None = None


def net_contract(about: About) -> dict[str, Any]:
    """What a net takes and what it predicts, as JSON."""
    return {
        "kind": "images" if about.are_images else "vectors",
        "task": "regression" if about.classes is None else "classification",
        "shape": list(about.shape),
        "dtype": "uint8" if about.are_images else "float32",
        "range": [0, 255] if about.are_images else None,
        "classes": None if about.classes is None else list(about.classes),
    }


class NetForecaster(NamedTuple):
    """A net of images or of vectors, with what it needs to know about its inputs."""

    about: About
    model: AbstractModel
    likelihood: AbstractLikelihood
    distances: Unlike
    draws: int
    key: jax.Array
    draws_at_once: int

    @property
    def target(self) -> str:
        """The name of the column with the prediction."""
        return "y" if self.about.classes is None else "label"

    @property
    def contract(self) -> dict[str, Any]:
        """The shape and the type of an example, and the classes."""
        return {**net_contract(self.about), "draws": self.draws}

    def read(self, path: Path) -> Examples:
        """The examples in a .npy or .npz file, or pictures: one, or a folder of them."""
        if self.about.are_images and (path.is_dir() or path.suffix.lower() in PICTURES):
            return Examples(*folders.pictures(path, self.about.shape))
        if path.suffix == ".npz":
            names = folders.members(path)
            name = "x" if "x" in names or len(names) != 1 else next(iter(names))
            return Examples(self._checked(str(path), formats.array_in(path, name)))
        if self.about.are_images and path.suffix != ".npy" and path.is_file():
            raise ValueError(
                f"{path} holds no images: pass a picture ({', '.join(PICTURES)}), a folder of them, or a .npy or .npz "
                "file."
            )
        return Examples(self._checked(str(path), formats.mapped(path)))

    def from_json(self, rows: Any) -> Examples:
        """Examples as nested lists of numbers."""
        if not isinstance(rows, list) or not rows:
            raise ValueError("rows must be a list of at least one example.")
        for number, row in enumerate(rows):
            _check_nested(f"example {number}", row, self.about.shape)
        x = np.array(rows, np.float64)
        if self.about.are_images:
            if not np.array_equal(x, np.clip(np.rint(x), 0, 255)):
                raise ValueError("the pixels of an image must be whole numbers from 0 to 255.")
            x = x.astype(np.uint8)
        return Examples(self._checked("rows", x))

    def forecast(self, inputs: Examples, *, where: str, coverage: float = 0.95) -> Columns:
        """The forecast of every example."""
        check_level("coverage", coverage)
        x = inputs.x
        if not self.about.are_images:  # ``predict`` does so for images
            columns = Standardiser(np.array(self.about.center), np.array(self.about.spread))
            TrainingInputs.table(columns).warn_if_unlike(x)
        parts = [self._forecast(x[i : i + ROWS_AT_ONCE], coverage) for i in range(0, len(x), ROWS_AT_ONCE)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return columns if inputs.files is None else {"file": np.array(inputs.files), **columns}

    def _forecast(self, x: np.ndarray, coverage: float) -> Columns:
        samples = predict(self.model, x, draws=self.draws, key=self.key, draws_at_once=self.draws_at_once)
        unlike = self.unlike(x)
        if self.about.classes is not None:
            proba = np.asarray(self.likelihood.center(samples), np.float64)
            _, reducible, noise = metrics.entropy_split(proba)
            return of_classes(self.target, self.about.classes, proba.mean(0), reducible, noise, unlike)
        centers, variances = (
            np.asarray(of(samples), np.float64) for of in (self.likelihood.center, self.likelihood.variance)
        )
        interval = metrics.interval(self._targets(samples), coverage)
        reducible, noise = centers.std(0), np.sqrt(variances.mean(0))
        whole = np.hypot(reducible, noise)
        names = [self.target] if centers.shape[-1] == 1 else [f"y{i + 1}" for i in range(centers.shape[-1])]
        found: Columns = {}
        for i, name in enumerate(names):
            of_one = of_numbers(
                name, centers.mean(0)[:, i], whole[:, i], reducible[:, i], noise[:, i],
                (np.asarray(interval[0])[:, i], np.asarray(interval[1])[:, i]), unlike,
            )  # fmt: skip
            suffix = "" if len(names) == 1 else f" of {name}"
            found |= {key if key in (name, "unlike") else f"{key}{suffix}": column for key, column in of_one.items()}
        return found

    def unlike(self, x: np.ndarray) -> np.ndarray:
        """How unlike the training data each example is: 99 % of those have at most 1."""
        return self.distances.of(self.model, x)

    def _targets(self, samples: jax.Array) -> np.ndarray:
        """Many draws of y, equally many from each network, "draw example target".

        The noise is the same for all examples, so that a forecast does not depend on the examples beside it.
        """
        keys = jax.random.split(jax.random.fold_in(self.key, 1), -(-TARGETS // len(samples)))
        drawn = jax.vmap(lambda key, row: self.likelihood.sample(row, key=key), in_axes=(0, None))  # over keys
        targets = jax.vmap(drawn, in_axes=(None, 1), out_axes=2)(keys, samples)
        return np.asarray(targets).reshape(-1, *targets.shape[2:])

    def scores(self, path: Path) -> dict[str, float]:
        """The scores on pictures in folders of their classes, or on x and y of a .npz file."""
        return self.scores_of(self.labelled(path))

    def scores_of(self, part: Part, steps: int | None = None) -> dict[str, float]:
        """The scores on examples with their targets."""
        return evaluate(
            self.model, self.likelihood, *part, draws=self.draws, key=self.key, draws_at_once=self.draws_at_once,
            steps=steps,
        )  # fmt: skip

    def labelled(self, path: Path) -> Part:
        """The examples with their targets in folders of their classes, or x and y of a .npz file."""
        classes = self.about.classes
        if path.is_dir() and self.about.are_images and classes is not None:
            return folders.labelled_pictures(path, self.about.shape, classes)
        if path.suffix != ".npz":
            raise ValueError(f"{path} holds no targets: pass a .npz file with x and y, or a folder of classes.")
        x, y = (formats.array_in(path, name) for name in "xy")
        if not y.ndim:
            raise ValueError(f"{path}: y is one number: save one target for each example.")
        x = self._checked(f"{path}: x", x)
        if classes is None:
            return Part(x, y)
        if y.ndim != 1 or y.dtype.kind not in "iuU" or len(y) != len(x):
            raise ValueError(
                f"{path}: y has shape {y.shape} of {y.dtype}: save one label for each of {len(x)} examples."
            )
        return Part(x, _class_numbers(path, y, classes))

    def _checked(self, where: str, x: np.ndarray) -> np.ndarray:
        """Examples of the shape and the type of the training data."""
        shape = self.about.shape
        if x.shape == shape:
            raise ValueError(f"{where} holds one example: pass an array of them, such as x[None].")
        if x.ndim < 2 or not len(x) or x.shape[1:] != shape:
            raise ValueError(
                f"{where} has shape {x.shape}, and the run was trained on examples of {shape}: pass an array of shape "
                f"(examples, {', '.join(map(str, shape))})."
            )
        if self.about.are_images and x.dtype != np.uint8:
            raise ValueError(f"{where} holds {x.dtype}, the run was trained on bytes: save images as uint8, 0 to 255.")
        if x.dtype.kind not in "buif":
            raise ValueError(f"{where} holds {x.dtype}: save real numbers.")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise ValueError(f"{where} holds NaN or infinite values: remove or impute them.")
        return x if x.dtype == np.uint8 else np.asarray(x, np.float32)


def _class_numbers(path: Path, y: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """The class of each label: by its name or, if no class is called by a number, by its number."""
    numbers = {name: number for number, name in enumerate(classes)}
    if y.dtype.kind != "U" and not any(name.lstrip("-").isdigit() for name in classes):
        numbers = {str(number): number for number in range(len(classes))}
    labels, at = np.unique(y, return_inverse=True)
    strange = next((label for label in labels.tolist() if str(label) not in numbers), None)
    if strange is not None:
        raise ValueError(f"{path}: y holds {shown(strange)}, which is none of the classes {shown(classes)}.")
    return np.array([numbers[str(label)] for label in labels.tolist()], np.int32)[at]


def _check_nested(where: str, value: Any, shape: tuple[int, ...]) -> None:
    """Refuse JSON that is not an array of finite numbers of this shape."""
    if not shape:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise ValueError(f"{where} holds {shown(value)}, which is no finite number.")
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        raise ValueError(f"{where} is {shown(value)}, where a list of {shape[0]} is needed.")
    for part in value:
        _check_nested(where, part, shape[1:])
