"""Writes the files of this folder: each holds a saved model or estimator, with predictions beside it in an .npz file.

A file is never written again, because it stands for all files of its version that users have. When a format gets a new
version, its files are added under new names: run ``python tests/artifacts/make.py`` after changing ``VERSIONS``.
``fields.json`` has the fields of each class as they were when it first appeared.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sdebnn
from sdebnn.artifacts.encoding import field_names
from sdebnn.artifacts.names import known_objects

FOLDER = Path(__file__).parent
FIELDS = FOLDER / "fields.json"
VERSIONS = {"estimator": 3, "model": 1}
KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
Y = np.sin(X[:, :1]) + 0.1
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1)).astype(np.uint8)
SHORT = {"members": 1, "width": 4, "steps": 2, "draws": 4, "max_iter": 5, "random_state": 0}
GRID = sdebnn.FixedGrid(3)


def regressor():
    return sdebnn.SDEBNNRegressor(**SHORT, family="ensemble").fit(X, Y[:, 0]), X


def gaussian_process():
    return sdebnn.SDEBNNRegressor(**SHORT, family="gp").fit(X, Y[:, 0]), X


def classifier():
    return sdebnn.SDEBNNClassifier(**SHORT).fit(X, np.where(X[:, 0] > 0, "yes", "no")), X


def fitted(model, likelihood, x, y):
    return sdebnn.fit(model, likelihood, x, y, key=KEY, epochs=2, progress=False), x


def our_net():
    # Not in bfloat16, whose rounding differs between machines.
    small = {"channels": (2,), "blocks": 1, "drift": (1, 2, 1), "compute": "float32"}
    net = sdebnn.our_net((8, 8, 1), 3, **small, infer_w0_of=(1,), key=KEY)
    return fitted(net, sdebnn.Categorical(), IMAGES, np.arange(6) % 3)


def views():
    small = {"channels": (2,), "blocks": 1, "drift": (1, 2, 1), "compute": "float32"}
    net = sdebnn.our_net((8, 8, 1), 3, **small, views=sdebnn.data.RandomView(1, flip=True, fill=(7,)), key=KEY)
    return fitted(net, sdebnn.Categorical(), IMAGES, np.arange(6) % 3)


def mlp():
    net = sdebnn.SDEBNN.mlp(2, 1, width=4, augment=1, points=3, candidates=2, solver=GRID, key=KEY)
    return fitted(net, sdebnn.Gaussian(0.1, learn=True), X, Y)


def ensemble():
    keys = jax.random.split(KEY, 2)
    nets = [sdebnn.SDEBNN.paper_mlp(2, 1, widths=(2,), drift=(2,), solver=GRID, key=key) for key in keys]
    return sdebnn.Ensemble(nets), X


FILES = {
    f"estimator-{VERSIONS['estimator']}": {"regressor": regressor, "gp": gaussian_process, "classifier": classifier},
    f"model-{VERSIONS['model']}": {"our_net": our_net, "views": views, "mlp": mlp, "ensemble": ensemble},
}


def predictions(thing, x):
    """What a thing says about inputs, in float32."""
    if isinstance(thing, sdebnn.Fit | sdebnn.Ensemble):
        model = thing.model if isinstance(thing, sdebnn.Fit) else thing
        return np.asarray(sdebnn.predict(model, jnp.asarray(x), draws=4, key=KEY))
    return thing.predict_proba(x) if hasattr(thing, "classes_") else thing.predict(x)


def fields():
    """The fields of every class that a file may name."""
    found = {name: part for name, part in known_objects().items() if isinstance(part, type)}
    return {name: sorted(field_names(of)) for name, of in found.items() if name.startswith("sdebnn.")}


if __name__ == "__main__":
    known = json.loads(FIELDS.read_text()) if FIELDS.exists() else {}
    FIELDS.write_text(json.dumps({**fields(), **known}, indent=1, sort_keys=True) + "\n")  # what is known stays
    for version, makers in FILES.items():
        for name, make in makers.items():
            path = FOLDER / f"{version}-{name}.safetensors"
            if not path.exists():
                thing, x = make()
                options = {"inputs": x} if version.startswith("model") else {}
                sdebnn.save(thing, path, **options)
                np.savez_compressed(path.with_suffix(".npz"), x=x, said=predictions(thing, x))
                print(path.name, path.stat().st_size, "bytes")
