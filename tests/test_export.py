"""Exported programs: they forecast what the run forecasts, without the run, and damaged files are refused."""

import hashlib
import json
import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import assert_refused
from small_models import shaken
from test_files import mutations

import sdebnn.export
from sdebnn import FixedGrid
from sdebnn.cli.exporting import export as export_command
from sdebnn.data import Distance, RandomView, features
from sdebnn.export import containers, export_forecaster, export_run, load_exported
from sdebnn.export.exporting import export_program
from sdebnn.export.freezing import frozen_draws
from sdebnn.export.onnx_graph import onnx_bytes
from sdebnn.export.onnx_rules import RULES
from sdebnn.export.programs import BATCH, program_of
from sdebnn.export.summaries import of_numbers
from sdebnn.forecasters import Examples, NetForecaster
from sdebnn.likelihoods import Categorical
from sdebnn.nets import our_net, paper_net
from sdebnn.presets import About, preset
from sdebnn.records import record_bytes
from sdebnn.runs import Unlike
from sdebnn.tables.forecaster import TableForecaster
from sdebnn.tables.frame import Frame
from sdebnn.tables.kind import KIND
from sdebnn.tables.model import fit_table

# The shape checks of jaxtyping take no symbolic sizes.
pytestmark = pytest.mark.usefixtures("_compiled_in_haste", "_as_a_user")
SUFFIXES = (".stablehlo", ".onnx")
QUICK = {"members": 2, "max_iter": 20, "draws": 6, "random_state": 0}
KEY = jax.random.key(3)


def frame(rows=60):
    """Prices of things of some size and colour; some sizes are missing."""
    rng = np.random.default_rng(0)
    size, colour = rng.normal(50, 10, rows), np.array(["red", "green", "blue"], object)[rng.integers(0, 3, rows)]
    price = 0.3 * size + 5 * (colour == "red") + rng.normal(0, 0.5, rows)
    kind = np.array(["cheap", "fair", "dear"], object)[np.digitize(price, (14, 18))]
    size[::7] = np.nan
    return Frame({"size": size, "colour": colour, "price": price, "kind": kind})


def table(target, task, **parameters):
    other = {"price": "kind", "kind": "price"}[target]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TableForecaster(
            fit_table(frame().without(other), target, task, where="prices.csv", **QUICK, **parameters)
        )


def images(net):
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), np.uint8)
    about = About("digits", (8, 8, 1), ("one", "two", "three"), 40, (0.5,), (0.25,))
    return NetForecaster(about, net, Categorical(), Unlike(Distance.of(features(x))), 4, KEY, 1)


def our_images():
    net = our_net(
        (8, 8, 1), 3, channels=(8, 16), blocks=1, solver=FixedGrid(2, at_once=16), compute="float32",
        views=RandomView(1, flip=True, padding="fill"), key=KEY,
    )  # fmt: skip
    return images(shaken(net, KEY, 0.1))


def paper_images():
    return images(paper_net((8, 8, 1), 3, width=4, drift=(1, 8, 1), solver=FixedGrid(2), key=KEY))


def vectors():
    about = About("line", (3,), None, 100, (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), (5.0, 50.0), (2.0, 1.0))
    row = preset("fast", about)
    x = np.random.default_rng(0).normal(size=(40, 3))
    return NetForecaster(about, shaken(row.net(KEY), KEY, 0.1), row.likelihood, Unlike(Distance.of(x)), 4, KEY, 16)


MAKERS = {
    "image net": our_images,
    "paper net": paper_images,
    "vectors": vectors,
    "regressor": lambda: table("price", "regression", family="ensemble"),
    "gaussian noise": lambda: table("price", "regression", family="ensemble", noise="gaussian"),
    "laplace noise": lambda: table("price", "regression", family="ensemble", noise="laplace", conformal=True,
                                   calibration_fraction=0.5),
    "gaussian process": lambda: table("price", "regression", family="gp"),
    "classifier": lambda: table("kind", "classification"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A forecaster of each kind, its program, and its exported files, made when they are first asked for."""
    known, folder = {}, tmp_path_factory.mktemp("exported")

    def get(name, part=None):
        if name not in known:
            known[name] = MAKERS[name]()
        if part is None:
            return known[name]
        if (name, "program") not in known:
            known[name, "program"] = program_of(known[name])
        if part == "program":
            return known[name, "program"]
        path = folder / name / f"run{part}"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            export_program(known[name, "program"], path)
        return path

    return get


def assert_alike(found, wanted, unit, most=1e-5):
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name] / unit, array / unit, rtol=0, atol=most, err_msg=name)


# Agreement


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "noise" in name else []) for name in MAKERS]
)
def test_an_exported_program_forecasts_what_the_run_forecasts_for_batches_of_any_size(made, name, suffix):
    exported, program = load_exported(made(name, suffix)), made(name, "program")
    for seed, rows in enumerate((1, 33)):
        x, wanted = program.compared(np.random.default_rng(seed), rows)
        assert_alike(exported(x), wanted, program.unit)
    names = {tensor["name"]: tensor for tensor in exported.contract["outputs"]}
    assert set(names) == set(wanted)
    assert all(names[each]["shape"][1:] == list(array.shape[1:]) for each, array in wanted.items())


SNIPPETS = dict(
    zip(SUFFIXES, re.findall(r"(?ms)^    import.*?^    outputs = .*?$", sdebnn.export.__doc__ or ""), strict=True)
)
BLOCKED = {
    ".stablehlo": ("equinox", "sdebnn", "onnx", "optax"),
    ".onnx": ("jax", "jaxlib", "sdebnn", "equinox", "onnx"),
}
ALONE = """
import os, sys, textwrap
import numpy as np

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed here")

BLOCKED, SNIPPET, FOLDERS = eval(sys.stdin.read())
sys.meta_path.insert(0, Blocker())
for folder in FOLDERS:
    os.chdir(folder)
    known = {"x": np.load("x.npy")}
    exec(textwrap.dedent(SNIPPET), known)
    assert known["contract"]["input"]["shape"][1:] == list(known["x"].shape[1:])
    np.savez("outputs.npz", **{name: np.asarray(array) for name, array in known["outputs"].items()})
assert not set(BLOCKED) & set(sys.modules)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_documented_lines_read_a_file_where_the_package_is_not_installed(made, suffix):
    names = ("image net", "regressor", "classifier")
    wanted = {}
    for name in names:
        folder, program = made(name, suffix).parent, made(name, "program")
        wanted[name] = folder, program.unit, program.compared(np.random.default_rng(5), 9)
        np.save(folder / "x.npy", wanted[name][2].x)
    given = repr((BLOCKED[suffix], SNIPPETS[suffix], [str(folder) for folder, *_ in wanted.values()]))
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE], input=given, text=True, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for folder, unit, compared in wanted.values():
        assert_alike(dict(np.load(folder / "outputs.npz")), compared.outputs, unit)


def test_the_matrix_of_a_table_can_be_built_from_the_contract_alone(made):
    forecaster, exported = made("regressor"), load_exported(made("regressor", ".onnx"))
    rows = Frame({"size": np.array([40.5, np.nan]), "colour": np.array(["red", "blue"], object)})
    matrix = np.zeros((2, len(exported.contract["input"]["columns"])), np.float32)
    for i, column in enumerate(exported.contract["input"]["columns"]):
        cells = rows.columns[column["column"]]
        if "if_missing" in column:
            matrix[:, i] = np.where(np.isnan(cells), column["if_missing"], cells)
        else:
            matrix[:, i] = cells == column["word"] if "word" in column else np.isnan(cells)
    found, wanted = exported(matrix), forecaster.forecast(rows, where="rows")
    np.testing.assert_allclose(found["mean"], wanted["price"], rtol=1e-5)
    np.testing.assert_allclose(found["upper"], wanted["upper"], rtol=1e-5)


def test_fewer_draws_make_a_smaller_file_and_none_has_random_numbers(made, tmp_path):
    found = export_forecaster(made("regressor"), tmp_path / "few.stablehlo", draws=2)
    assert found.contract["draws"] == 2
    text = jax.export.deserialize(
        bytearray(containers.read_exported(tmp_path / "few.stablehlo")[1])
    ).mlir_module()  # fmt: skip
    assert "rng" not in text
    assert "xor" not in text  # of which Threefry is made
    assert found.size < made("regressor", ".stablehlo").stat().st_size


def test_what_depends_on_x_is_left_and_all_else_is_computed_once():
    def draw(given, key, x):
        weights = jax.random.normal(key, (2, 3)) + given
        return jax.lax.scan(lambda h, w: (h + jnp.tanh(x @ w)[:, None], w.sum()), x, weights)[0]

    keys, x = jax.random.split(KEY, 5), jnp.ones((4, 3))
    frozen = frozen_draws(draw, jnp.arange(3.0), keys, jax.ShapeDtypeStruct((BATCH, 3), jnp.float32))
    assert {each.primitive.name for each in frozen.instructions} <= {
        "add", "dot_general", "tanh", "broadcast_in_dim", "reshape"
    }  # fmt: skip
    fixed = frozen_draws(draw, jnp.arange(3.0), keys, jax.ShapeDtypeStruct((4, 3), jnp.float32))
    wanted = jax.vmap(lambda key: draw(jnp.arange(3.0), key, x))(keys)
    np.testing.assert_allclose(fixed(x), wanted, rtol=1e-6)


def test_a_run_is_exported_by_the_command(made, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "m.onnx"
    run.mkdir()
    made("regressor").model.save(run)
    facts = {
        "digest": "", "data": "prices.csv", "target": "price", "task": "regression", "seed": 0, "test": 0.1,
        "members": 2, "kl_weight": 1.0, "rows": 60, "versions": {}, "asked": {},
    }  # fmt: skip
    (run / "run.json").write_bytes(record_bytes(KIND, facts))
    export_command(run, out)
    assert re.search(r"m\.onnx: .* MB, 6 draws; from x, float32 of batch by 5, to lower, mean", capsys.readouterr().out)
    with pytest.raises(ValueError, match="exists already"):
        export_command(run, out)
    export_command(run, out, draws=4, force=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["contract"]["draws"] == 4
    with pytest.raises(ValueError, match="for nets of images"):
        export_run(run, out, best=True)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "m.onnx"}


# Refusals


def test_what_cannot_be_exported_is_refused(made, tmp_path, refused):
    path = tmp_path / "m.onnx"
    refused(lambda: export_forecaster(made("vectors"), tmp_path / "m.txt"), "suffix")
    sort = jax.make_jaxpr(lambda x: jnp.sort(x, axis=1))(jax.ShapeDtypeStruct((BATCH, 3), jnp.float32))
    refused(lambda: onnx_bytes(sort, RULES, BATCH, "x", ["y"]), "'sort'")
    shape = jax.ShapeDtypeStruct((BATCH, 3), jnp.float32)

    def loop(given, key, x):
        return jax.lax.while_loop(lambda h: jnp.sum(h) < 9, lambda h: h + 1, x)

    refused(lambda: frozen_draws(loop, 0.0, jax.random.split(KEY, 2), shape), "Adaptive")
    assert not path.exists()


@pytest.mark.slow
def test_a_gaussian_process_needs_no_draws_and_takes_any_number(made, tmp_path):
    usual = export_forecaster(made("gaussian process"), tmp_path / "a.onnx")
    asked = export_forecaster(made("gaussian process"), tmp_path / "b.onnx", draws=16)
    assert asked.contract["draws"] == usual.contract["draws"] == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_conformal_intervals_keep_the_draws_of_their_scores(made, tmp_path, refused):
    refused(lambda: export_forecaster(made("laplace noise"), tmp_path / "m.onnx", draws=3), "need 6 draws")


def test_draws_that_take_more_than_a_file_holds_are_refused(refused):
    def wide(given, key, x):
        return x @ jax.random.normal(key, (3, 2**20))

    shape = jax.ShapeDtypeStruct((BATCH, 3), jnp.float32)
    refused(lambda: frozen_draws(wide, 0.0, jax.random.split(KEY, 200), shape), "at most --draws 85")


def test_a_column_whose_differences_float32_loses_is_refused(refused, tmp_path):
    late = Frame({"time": 1.7e9 + np.arange(40.0), "price": np.arange(40.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit_table(late, "price", "regression", where="x", family="gp", random_state=0)
    refused(lambda: export_forecaster(TableForecaster(model), tmp_path / "m.onnx"), "'time'.*subtract a constant")


def test_inputs_that_the_contract_excludes_are_refused(made, refused):
    images, rows = (load_exported(made(name, ".stablehlo")) for name in ("image net", "regressor"))
    refused(lambda: images(np.zeros((2, 8, 8, 1))), "pass uint8")
    refused(lambda: images(np.zeros((2, 8, 8), np.uint8)), "shape")
    refused(lambda: rows(np.full((2, 5), np.nan)), "missing ones")


def test_a_program_that_disagrees_with_the_run_is_not_written(made, refused, tmp_path, monkeypatch):
    def wrong(location, variance):
        return {name: 1.001 * array for name, array in of_numbers(location, variance).items()}

    monkeypatch.setattr("sdebnn.export.programs.of_numbers", wrong)
    for suffix in SUFFIXES:
        path = tmp_path / f"m{suffix}"
        refused(lambda path=path: export_forecaster(made("vectors"), path), "nothing was written")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_is_refused(made, tmp_path, suffix):
    whole, path = made("gaussian process", suffix).read_bytes(), tmp_path / f"m{suffix}"
    ends = [data for _, data in mutations(whole[:1000], 50, seed=2) if len(data) == 1000]  # bits of the header
    damaged = [*mutations(whole, 120, seed=1), *((f"header {i}", data + whole[1000:]) for i, data in enumerate(ends))]
    for name, data in [*damaged, ("longer", whole + b"\0"), ("empty", b""), ("doubled", whole + whole)]:
        path.write_bytes(data)
        assert_refused(load_exported, path, name)


def forged(suffix, contract, program, **changed):
    """A file with these parts and digests that are right."""
    contract = {name: value for name, value in {**contract, **changed}.items() if name not in ("format", "program")}
    return containers.file_bytes(suffix, contract, program)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_forged_contract_is_refused(made, tmp_path, suffix):
    contract, program = containers.read_exported(made("gaussian process", suffix))
    path, outputs = tmp_path / f"m{suffix}", contract["outputs"]
    given = contract["input"]
    cases = {
        "kind": "music", "task": None, "target": 3, "classes": 7, "draws": -1, "outputs": [], "made_with": [],
        "input": {**given, "shape": ["batch", 10**10]},
    }  # fmt: skip
    files = {name: forged(suffix, contract, program, **{name: value}) for name, value in cases.items()}
    for name, value in (("shape", [10**10]), ("shape", ["batch", -1]), ("dtype", "object"), ("name", None)):
        files[f"input {name} {value}"] = forged(suffix, contract, program, input={**given, name: value})
        files[f"output {name} {value}"] = forged(suffix, contract, program, outputs=[{**outputs[0], name: value}])
    files["other outputs"] = forged(suffix, contract, program, outputs=outputs[1:])
    files |= {f"program {size}": forged(suffix, contract, b"\x0a\x01" * size) for size in (1, 50, 10_000)}
    files |= {f"part {size}": forged(suffix, contract, program[:size]) for size in (1, 100, len(program) // 2)}
    files["deep"] = files["kind"].replace(b'"music"', b"[" * 7)
    for name, data in files.items():
        path.write_bytes(data)
        assert_refused(load_exported, path, name)


@pytest.mark.usefixtures("bounded")
def test_lengths_beyond_the_file_are_refused(made, tmp_path):
    whole, path = made("gaussian process", ".stablehlo").read_bytes(), tmp_path / "m.stablehlo"
    for size in (10**10, 2**63, 2**64 - 1, 2**24 + 1, len(whole)):
        path.write_bytes(whole[:8] + size.to_bytes(8, "little") + whole[16:])
        assert_refused(load_exported, path, size)
    text = b"[" * 200_000
    path.write_bytes(containers.MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)
    assert_refused(load_exported, path, "nested")
    for suffix in SUFFIXES:
        path = tmp_path / f"large{suffix}"
        with open(path, "wb") as file:
            file.truncate(10**10)
        assert_refused(load_exported, path, "10 GB")


def test_a_program_that_calls_foreign_code_is_refused(made, tmp_path):
    contract, _ = containers.read_exported(made("gaussian process", ".stablehlo"))
    wanted = {tensor["name"] for tensor in contract["outputs"]}

    def function(x):
        root = jnp.linalg.cholesky(jnp.eye(3) + x.sum())
        return dict.fromkeys(wanted, x.sum(1).astype(jnp.float64) + root.sum())

    with jax.enable_x64(True):
        batch = jax.ShapeDtypeStruct((BATCH, *contract["input"]["shape"][1:]), jnp.float32)
        program = bytes(jax.export.export(jax.jit(function), platforms=["cpu"])(batch).serialize())
    path = tmp_path / "m.stablehlo"
    path.write_bytes(forged(".stablehlo", contract, program))
    with pytest.raises(ValueError, match="which is no part of a forecast"):
        load_exported(path)


def test_an_onnx_model_with_foreign_files_or_operators_is_refused(made, tmp_path):
    import onnx

    contract, program = containers.read_exported(made("gaussian process", ".onnx"))
    path = tmp_path / "m.onnx"
    outside, other = (onnx.load_model_from_string(program) for _ in range(2))
    tensor = outside.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")
    other.graph.node[0].domain = "com.example"
    for model in (outside, other):
        path.write_bytes(forged(".onnx", contract, model.SerializeToString()))
        with pytest.raises(ValueError, match="no part of a forecast"):
            load_exported(path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_trained_run_of_images_is_exported(tmp_path, suffix):
    from sdebnn.forecasters import open_forecaster
    from sdebnn.runs import Settings, train

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (90, 8, 8, 1), np.uint8), rng.integers(0, 3, 90)
    np.savez(tmp_path / "images.npz", x=x, y=y)
    train(Settings(str(tmp_path / "images.npz"), epochs=1, members=1), tmp_path / "run", progress=False)
    export_run(tmp_path / "run", tmp_path / f"m{suffix}", draws=3)
    wanted = open_forecaster(tmp_path / "run", draws=3).forecast(Examples(x[:5]), where="x")
    found = load_exported(tmp_path / f"m{suffix}")(x[:5])
    np.testing.assert_allclose(found["entropy"], wanted["entropy"], atol=1e-5)
    np.testing.assert_allclose(found["probabilities"][:, 0], wanted["p(0)"], atol=1e-5)
