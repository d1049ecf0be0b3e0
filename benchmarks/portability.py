"""Whether a saved model predicts the same on another machine, device, Python and version of JAX.

    python benchmarks/portability.py make FOLDER                         train, save, and keep predictions
    python benchmarks/portability.py check FOLDER [--json FILE]          elsewhere: load, predict, compare

A difference is the largest over all draws and examples, in units of the standard deviation of the predictions. Matrix
products are computed in float32; on some GPUs, JAX rounds their factors to fewer bits unless it is told otherwise, and
``default_precision`` is the difference with that rounding.
"""

import argparse
import datetime
import json
import platform
from pathlib import Path

import jax
import numpy as np
from sklearn.datasets import load_diabetes, load_digits, load_wine

import sdebnn

KEY = jax.random.key(0)


def regression() -> tuple[object, np.ndarray]:
    x, y = sdebnn.data.toy.two_sides(40, key=KEY)
    return sdebnn.fit(sdebnn.SDEBNN.mlp(1, 1, key=KEY), sdebnn.Gaussian(0.1), x, y, key=KEY), np.asarray(x)


def images() -> tuple[object, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    x = (x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    net = sdebnn.our_net((8, 8, 1), 10, channels=(16, 32), blocks=1, compute="float32", key=KEY)
    batches = sdebnn.Batches(64)
    return sdebnn.fit(net, sdebnn.Categorical(), x[:1000], y[:1000], key=KEY, epochs=5, batches=batches), x[1000:1200]


def regressor() -> tuple[object, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return sdebnn.SDEBNNRegressor(random_state=0, family="ensemble").fit(x[:300], y[:300]), x[300:]


def gaussian_process() -> tuple[object, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return sdebnn.SDEBNNRegressor(random_state=0, family="gp").fit(x[:300], y[:300]), x[300:]


def classifier() -> tuple[object, np.ndarray]:
    x, y = load_wine(return_X_y=True)
    return sdebnn.SDEBNNClassifier(random_state=0).fit(x[::2], y[::2]), x[1::2]


MODELS = {
    "regression": regression, "images": images, "regressor": regressor, "gaussian process": gaussian_process,
    "classifier": classifier,
}  # fmt: skip


def said(thing: object, x: np.ndarray) -> np.ndarray:
    """Its predictions: of each draw, or those of an estimator."""
    if isinstance(thing, sdebnn.Fit):
        return np.asarray(sdebnn.predict(thing.model, x, draws=16, key=KEY), np.float64)
    if isinstance(thing, sdebnn.SDEBNNClassifier):
        return np.asarray(thing.predict_proba(x), np.float64)
    assert isinstance(thing, sdebnn.SDEBNNRegressor)
    return np.stack(thing.predict(x, return_std=True)).astype(np.float64)


def machine() -> dict[str, str]:
    return {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "python": platform.python_version(),
        "sdebnn": sdebnn.__version__, "date": str(datetime.date.today()),
    }  # fmt: skip


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        thing, x = model()
        sdebnn.save(thing, folder / f"{name}.safetensors")
        np.savez(folder / f"{name}.npz", x=x, said=said(thing, x))
        print(f"{name}: saved", flush=True)
    (folder / "machine.json").write_text(json.dumps(machine()))


def check(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in MODELS:
        thing = sdebnn.load(folder / f"{name}.safetensors")
        with np.load(folder / f"{name}.npz") as file:
            x, before = file["x"], file["said"]
        with jax.default_matmul_precision("highest"):
            full = said(thing, x)
        by_default = said(thing, x)
        spread = before.std()
        found[name] = {
            "difference": float(np.abs(full - before).max() / spread),
            "default_precision": float(np.abs(by_default - before).max() / spread),
        }
        print(name, found[name], flush=True)
    return {"made": json.loads((folder / "machine.json").read_text()), "checked": machine(), "models": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "make":
        make(given.folder)
        return
    found = check(given.folder)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
