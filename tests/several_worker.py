"""One of several processes, or one process with several devices, that train small models and save what they found.

python several_worker.py '{"devices": 8, "out": "...", "scenario": "meshes", ...}'
"""

import json
import os
import re
import sys
import time
from pathlib import Path

GIVEN = json.loads(sys.argv[1])
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # to compile
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={GIVEN.get('devices', 1)} {FAST}"

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import sdebnn  # noqa: E402
from sdebnn import (  # noqa: E402
    SDEBNN,
    Adaptive,
    Batches,
    Categorical,
    Checkpoints,
    Ensemble,
    FixedGrid,
    Gaussian,
    Objective,
    Optimizer,
    Validation,
    fit,
    hosts,
    make_mesh,
    meshes,
    our_net,
    predict,
)
from sdebnn.data import RandomMixing, RandomView  # noqa: E402
from sdebnn.likelihoods import Weighted  # noqa: E402
from sdebnn.train import loop  # noqa: E402

if GIVEN.get("processes", 1) > 1:  # before anything is computed
    hosts.connect(GIVEN["coordinator"], GIVEN["processes"], GIVEN["process"])

KEY = jax.random.key(0)
ONE, SHAPES = (1, 1), [(8, 1), (4, 2), (1, 8)]


GRID = FixedGrid(4, unroll=1)


def net(outputs=1, key=KEY, solver=GRID):
    return SDEBNN.paper_mlp(1, outputs, widths=(8,), drift=(8,), solver=solver, key=key)


def flat(model):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))])


def vectors(mesh, **options):
    """A regression, trained by plain gradient steps, so that an error in a gradient is not hidden by Adam."""
    x, y = sdebnn.data.toy.two_sides(64, key=KEY)
    plan = {
        "epochs": 2, "objective": Objective(draws=8), "optimizer": Optimizer(rule=optax.sgd(1e-3)),
        "batches": Batches(32),
    }  # fmt: skip
    model = options.pop("model", None) or net()
    likelihood = options.pop("likelihood", Gaussian(0.1, learn=True))
    targets = options.pop("targets", y)
    fitted = fit(model, likelihood, x, targets, key=KEY, progress=False, mesh=mesh, **{**plan, **options})
    samples = predict(fitted.model, x[:37], draws=6, key=KEY, mesh=mesh)
    return {"parameters": flat(fitted.model), "samples": np.asarray(samples), **fitted.history}


def images(mesh, augment, **options):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (64, 16, 16, 3)).astype(np.uint8), random.integers(0, 3, 64)
    net = our_net(
        (16, 16, 3), 3, channels=(8,), mean=(0.5,) * 3, std=(0.2,) * 3, blocks=1, compute="float32",
        solver=FixedGrid(4, unroll=1), key=KEY,
    )  # fmt: skip
    fitted = fit(
        net, Categorical(), x, y, key=KEY, epochs=1, progress=False, mesh=mesh,
        objective=Objective(draws=options.get("draws", 1), draws_at_once=1),
        batches=Batches(32, augment=augment, accumulate=options.get("accumulate", 1)),
        optimizer=Optimizer(rule=optax.sgd(1e-2)),
    )  # fmt: skip
    return {"parameters": flat(fitted.model), **fitted.history}


def collectives(run):
    """The operations of the compiled steps by which devices exchange numbers, by the loop that they are in."""
    texts, real = [], loop.program()

    def spy(call, state):
        if not texts:
            texts.append(real.program.lower(("cpu", call), state).compile().compiled.as_text())
        return real(call, state)

    loop.program = lambda: spy
    try:
        run()
    finally:
        loop.program = lambda: real
    pattern = (
        r"= .*? (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(.*op_name=\"(.*?)\""
    )
    found = re.findall(pattern, texts[0])
    return [[name, path.count("while/body")] for name, path in found]


def save(results, **facts):
    if not hosts.is_first():
        return
    out = Path(GIVEN["out"])
    arrays = {f"{name}/{part}": array for name, parts in results.items() for part, array in parts.items()}
    np.savez(out / "found.npz", **arrays)
    (out / "facts.json").write_text(json.dumps(facts))


def scenario_meshes():
    one, found = make_mesh(*ONE), {}
    for shape in (ONE, *SHAPES):
        found[f"vectors {shape[0]}x{shape[1]}"] = vectors(make_mesh(*shape))
    view = RandomView(2, flip=True, cutout=3, turn=10)
    found["images 1x1"] = images(one, view)
    counted = {"images": collectives(lambda: found.update({"images 8x1": images(make_mesh(8, 1), view)}))}
    save(found, collectives=counted)


def scenario_more_meshes():
    one, four, found = make_mesh(*ONE), make_mesh(4, 2), {}
    classes = {"likelihood": Weighted(Categorical()), "model": net(3)}
    labels = np.stack([np.arange(64) % 3, np.linspace(0.1, 2, 64)], axis=1)
    members = Ensemble([net(key=key) for key in jax.random.split(KEY, 2)])
    cases = {
        "parts": {"batches": Batches(32, accumulate=2), "objective": Objective(draws=8, draws_at_once=1)},
        "members": {"model": members, "objective": Objective(draws=2)},
        "weighted classes": {**classes, "targets": labels},
        "read-out": {
            "model": SDEBNN.mlp(1, 1, width=8, candidates=2, key=KEY),
            "batches": Batches(),
            "objective": Objective(draws=4),
        },
        "Adam": {"optimizer": Optimizer(1e-3, ema=0.9, clip=1.0)},
    }
    for name, options in cases.items():
        found[f"{name} 1x1"], found[f"{name} 4x2"] = vectors(one, **options), vectors(four, **options)
    mixed = RandomMixing(RandomView(2))
    found["mixing 1x1"] = images(one, mixed, draws=2, accumulate=2)
    counted = {"mixing": collectives(lambda: found.update({"mixing 4x2": images(four, mixed, draws=2, accumulate=2)}))}
    adaptive = {"model": net(solver=Adaptive(rtol=1e-2)), "epochs": 1, "objective": Objective(draws=2)}
    found["adaptive 1x1"] = vectors(None, **adaptive)
    refusals = []
    try:
        vectors(four, **adaptive)
    except ValueError as error:
        refusals.append(str(error))
    x = np.linspace(-1, 1, 16)[:, None].astype(np.float32)
    slope = jax.grad(lambda x: predict(net(), x, draws=2, key=KEY).sum())(x)
    np.testing.assert_allclose(slope, jax.grad(lambda x: predict(net(), x, draws=2, key=KEY, mesh=one).sum())(x))
    alone = predict(net(), x, draws=2, key=KEY) + jax.device_put(x, jax.devices()[3])  # results are not on the mesh
    assert alone.shape == (2, 16, 1)
    meshes.DIVIDED_FROM = 1000
    found["divided 1x1"], found["divided 8x1"] = vectors(one), vectors(make_mesh(8, 1))
    save(found, collectives=counted, refusals=refusals)


class Slow:
    """Rows that take a while to read; those of one process are never read after some time."""

    def __init__(self, rows, seconds, stuck_after):
        self.rows, self.seconds, self.stuck_after = rows, seconds, stuck_after
        self.reads, self.rows_read = 0, 0
        self.shape, self.dtype = rows.shape, rows.dtype

    def __getitem__(self, rows):
        self.reads += 1
        if self.stuck_after is not None and self.reads > self.stuck_after:
            time.sleep(1000)
        time.sleep(self.seconds)
        found = self.rows[rows]
        self.rows_read += len(found)
        return found


def scenario_hosts():
    if GIVEN.get("differ"):
        differ()
    x, y = (np.asarray(part) for part in sdebnn.data.toy.two_sides(160, key=KEY))  # more than the limit below
    stuck_after = GIVEN.get("stuck_after") if GIVEN["process"] == 1 else None
    if "limit" in GIVEN:
        hosts.STUCK_AFTER = GIVEN["limit"]
    rows = Slow(x, GIVEN.get("seconds", 0.0), stuck_after)
    mesh = make_mesh() if GIVEN["processes"] * GIVEN.get("devices", 1) > 1 else make_mesh(*ONE)
    options = {} if "folder" not in GIVEN else {"checkpoints": Checkpoints(GIVEN["folder"], resume=True, every=0.5)}
    try:
        found = vectors_of(rows, y, mesh, options)
    except hosts.LostProcessError as error:
        hosts.exit_now(str(error))
        return
    save({"hosts": found}, rows_read=rows.rows_read)
    hosts.wait_for_all("done")


def differ():
    """Train other things in the processes, and on a mesh that leaves one of them out."""
    number = GIVEN["process"]
    x, y = (np.asarray(part) for part in sdebnn.data.toy.two_sides(64, key=jax.random.key(number)))
    own = net(key=jax.random.key(number))
    for mesh, epochs in ((make_mesh(1, 1, devices=jax.devices()[:1]), 1), (None, 1 + number)):
        try:
            fit(own, Gaussian(0.1), x, y, key=KEY, epochs=epochs, progress=False, mesh=mesh)
        except ValueError as error:
            print(error, file=sys.stderr, flush=True)
    os._exit(2)


def vectors_of(rows, y, mesh, options):
    fitted = fit(
        net(), Gaussian(0.1, learn=True), rows, y, key=KEY, epochs=GIVEN["epochs"],
        progress=False, mesh=mesh, objective=Objective(draws=4), batches=Batches(16, memory_limit=600),
        optimizer=Optimizer(1e-3, ema=0.9), validation=Validation(rows.rows[:16], y[:16], every=10), **options,
    )  # fmt: skip
    samples = predict(fitted.model, rows.rows[:13], draws=6, key=KEY, mesh=mesh)
    return {"parameters": flat(fitted.model), "samples": np.asarray(samples), **fitted.history}


if __name__ == "__main__":
    globals()[f"scenario_{GIVEN['scenario']}"]()
